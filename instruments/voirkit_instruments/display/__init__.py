"""``--display``: prints each event of given values as one line on stderr. The script's stdout is
left alone.

Tensors and other large values are shown by type, shape and dtype. No value is read from a device,
since that would wait for the device.
"""

from __future__ import annotations

import sys

from voirkit.instrument import Instrument, Option
from voirkit_instruments.values import brief

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer

INSTRUMENT = Instrument(
    "display",
    group="see a run",
    options=(Option("--display", "print all given values on stderr, one event a line"),),
    record="voirkit_instruments.display:record",
)
instrument_display = INSTRUMENT


def line(event: dict[str, Any]) -> str:
    """Return an event as one line: ``loss: 0.693; task: train``. The begin and the end of a wrapped
    block (``$wrap``) are named; other keys that begin with ``$`` are left out."""
    parts = [f"{key}: {brief(value)}" for key, value in event.items() if not key.startswith("$")]
    wrap = event.get("$wrap")
    if wrap is not None:
        parts.insert(0, f"{wrap['name']} {wrap['step']}s")
    return "; ".join(parts)


def display(ov: Overseer) -> Iterator[Phase]:
    """Print all values that are given from now on."""
    is_empty = True

    def show(event: dict[str, Any]) -> None:
        nonlocal is_empty
        text = line(event)
        if text:
            is_empty = False
            print(text, file=sys.stderr)

    ov.given.subscribe(show)
    yield ov.phases.finalize
    if is_empty:
        ov.warn("--display: the run gave no values to show.")


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase | PhaseWithPriority]:
    return display(ov)
