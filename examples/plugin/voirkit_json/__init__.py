"""``--json-time``: the time that a script spends in ``json.dumps``."""

from __future__ import annotations

from voirkit import Instrument, Option

CATEGORY, NAME = "json", "dumps"  # of its spans


def milliseconds(text: str) -> float:
    """The value of ``--json-time``."""
    if not (text.replace(".", "", 1).isdigit() and text.isascii()):
        raise ValueError(f"{text!r} is no time; give a number of milliseconds, such as 0.5.")
    return float(text)


INSTRUMENT = Instrument(
    "json",
    options=(
        Option(
            "--json-time",
            "record the calls of json.dumps that take a millisecond or more, or as many as --json-time=MS says",
            type=milliseconds, const=1.0, metavar="MS",
        ),
    ),
    record="voirkit_json.record:record",
    parts={"json": dict},
    schema=__name__,
    summarise="voirkit_json.analyse:summarise",
    sections="voirkit_json.show:sections",
)  # fmt: skip
