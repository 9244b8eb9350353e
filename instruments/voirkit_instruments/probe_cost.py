"""What instruments do themselves when they inspect what the program has, so that it counts for none of the program's: the time it takes is
a phase of its own, and what they call of torch meanwhile is not recorded by ``--calls``.

The phase is ``voirkit.look``, of kind ``phase``; a part of ``other`` in the table of a step, and a part of the overhead.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

mute_calls: Callable[[int], object] | None = None  # of the engine of ``--calls``, while it records


class quiet:
    """No call of this thread is recorded until its end; may be nested."""

    __slots__ = ("_mute",)

    def __enter__(self) -> None:
        self._mute = mute_calls
        if self._mute is not None:
            self._mute(1)

    def __exit__(self, *_: object) -> None:
        if self._mute is not None:
            self._mute(-1)


class ProbeCost:
    """The inspections of one instrument.

    Args:
        recorder: ``voirkit.trace.recorder``, or what has its ``name``, ``span`` and ``timed``.

    Attributes:
        own_ns: How long they took.
        n: How many there were.
    """

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._span, self._name = recorder.span, recorder.name("voirkit", "look", kind="phase")
        self.own_ns = self.n = 0

    def add(self, began_ns: int, end_ns: int) -> None:
        """Record one inspection."""
        self._span(self._name, began_ns, end_ns, 0, 0)
        self.own_ns += end_ns - began_ns
        self.n += 1

    def report(self, records: int = 0) -> None:
        """Add their cost to the run's overhead, with the number of records of another kind that were made meanwhile."""
        self._recorder.timed(self.n + records, self.own_ns, "instruments")
