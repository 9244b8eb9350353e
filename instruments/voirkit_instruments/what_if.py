"""``--what-if NAME[=ARG]``: what a change would win, measured on the script itself, which nobody edits."""

from __future__ import annotations

from voirkit.instrument import instrument_definition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from voirkit.overseer import Overseer
    from voirkit.phases import Phase


@instrument_definition
def what_if(ov: Overseer, name: str, argument: str | None, pairs: int, steps: int | None) -> Iterator[Phase]:
    """Measure, and end without running the script here."""
    ov.stop()
    yield ov.phases.parse_args
