"""``--parameters``: records norms, changes, gradients and NaN of parameters at optimizer steps."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names, whole_number


def _watched_too(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not words or not set(words) <= {"buffers", "state"}:
        raise ValueError(
            f"{text!r} is not known; give buffers, state, or both with a comma between."
        )
    return words


INSTRUMENT = Instrument(
    "parameters",
    group="look deeper",
    options=(
        Option(
            "--parameters",
            "record norms, changes, gradients and NaN of the parameters, each of them every EVERY"
            " optimizer steps (default: 50)",
            type=whole_number("no number of steps", " of at least 1", 1, 1_000_000),
            const=0,
            metavar="EVERY",
        ),
        Option(
            "--parameters-of",
            "also record the models' buffers, the optimizers' state, or both; implies --parameters",
            type=_watched_too,
            metavar="buffers,state",
        ),
    ),
    record="voirkit_instruments.parameters.record:record",
    in_children=False,
    parts={"parameters": dict},
    schema=__name__,
    summarise="voirkit_instruments.parameters.analyse:summarise",
    summarised_from=("parameter",),
    sections="voirkit_instruments.parameters.analyse:sections",
    priority=1,  # begins before the steps instrument, from which it learns of the steps
)

__getattr__ = lazy_names(__name__, parameters="record")
