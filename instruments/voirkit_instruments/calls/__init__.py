"""``--calls``: records calls of functions in chosen modules, with a short form of each argument."""

from __future__ import annotations

from collections.abc import Sequence

from voirkit.instrument import Instrument, Option, lazy_names, whole_number


def _is_script(word: str, following: Sequence[str]) -> bool:
    from voirkit_instruments.calls.record_functions import is_script

    return is_script(word, following)


_whole = whole_number("no number of steps")
_at_least_1 = whole_number("no number of steps", " of at least 1", 1, 1_000_000)

INSTRUMENT = Instrument(
    "calls",
    group="look deeper",
    options=(
        Option(
            "--calls",
            "record calls of the functions of these modules, torch or your own, with commas"
            " (default: those that training calls)",
            type=str,
            const=True,
            metavar="MODULES",
            is_script=_is_script,
        ),
        Option(
            "--calls-every",
            "record the calls of one step in N",
            type=_at_least_1,
            metavar="N",
        ),
        Option(
            "--calls-warmup",
            "with --calls-every: record all calls of the first M steps",
            type=_whole,
            metavar="M",
        ),
        Option(
            "--calls-list",
            "print what --calls would record, what not and why, and exit",
            prints="voirkit_instruments.calls.record:print_list",
        ),
    ),
    record="voirkit_instruments.calls.record:record",
    parts={"calls": dict},
    schema=__name__,
    summarise="voirkit_instruments.calls.analyse:summarise",
    summarised_from=("call",),
    sections="voirkit_instruments.calls.analyse:sections",
    difference="voirkit_instruments.calls.difference:difference",
)

__getattr__ = lazy_names(__name__, calls="record")
