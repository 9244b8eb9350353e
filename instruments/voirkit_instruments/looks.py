"""The time that instruments take to look at what the program has: a phase of its own, so that it counts for none of the program's.

Kind ``phase``, ``voirkit.look``; a part of ``other`` in the table of a step, and a part of the overhead.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Looks:
    """The looks of one instrument.

    Args:
        recorder: ``voirkit.trace.recorder``, or what has its ``name``, ``span`` and ``timed``.

    Attributes:
        own_ns: What they took.
        n: How many there were.
    """

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._span, self._name = recorder.span, recorder.name("voirkit", "look", kind="phase")
        self.own_ns = self.n = 0

    def took(self, began_ns: int, end_ns: int) -> None:
        """Write one down."""
        self._span(self._name, began_ns, end_ns, 0, 0)
        self.own_ns += end_ns - began_ns
        self.n += 1

    def finish(self, records: int = 0) -> None:
        """Say what all of them cost, and how many records of another kind were made meanwhile."""
        self._recorder.timed(self.n + records, self.own_ns, "instruments")
