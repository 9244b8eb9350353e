"""When TrainCheck is to see what optimizers did: each step and each ``zero_grad``, with what ``--parameters`` recorded of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

KIND = "parameter"
STEP, ZERO_GRAD, SEEN = "step", "zero_grad", "seen"

# (start_ns, end_ns, tid, category, name, value, number, arguments as JSON)
Row = tuple[int, int, int, str, str, "int | None", "float | None", "str | None"]


class Figure(NamedTuple):
    """Something recorded of one parameter; see docs/parameters.md."""

    category: str
    parameter: str
    value: int | None
    number: float | None
    arguments: str | None


class Moment:
    """A step, a ``zero_grad``, or (``SEEN``) only the sight of parameters.

    Attributes:
        what: ``step``, ``zero_grad`` or ``seen``.
        start_ns, end_ns, tid: When and where.
        n: Number of the optimizer's step.
        optimizer: Arguments of the record of the optimizer, as JSON.
        figures: What was recorded of parameters.
        is_entered, is_left: Whether what was so before it, and what was so after it, has been written.
    """

    __slots__ = ("end_ns", "figures", "is_entered", "is_left", "n", "optimizer", "start_ns", "tid", "what")

    def __init__(self, what: str, start_ns: int, end_ns: int, tid: int, n: int = 0, optimizer: str | None = None) -> None:
        self.what, self.start_ns, self.end_ns, self.tid, self.n, self.optimizer = what, start_ns, end_ns, tid, n, optimizer
        self.figures: list[Figure] = []
        self.is_entered = self.is_left = False


def moments(batches: Iterator[list[Row]]) -> Iterator[Moment]:
    """Rows of the same start as one moment.

    Args:
        batches: Of rows by start, those of optimizers first.
    """
    now: Moment | None = None
    for batch in batches:
        for start, end, tid, category, name, value, number, arguments in batch:
            is_optimizer = category in (STEP, ZERO_GRAD)
            if now is None or start != now.start_ns or is_optimizer:
                if now is not None:
                    yield now
                now = Moment(category if is_optimizer else SEEN, start, end, tid, value or 0, arguments if is_optimizer else None)
            if not is_optimizer:
                now.figures.append(Figure(category, name, value, number, arguments))
    if now is not None:
        yield now


class Coming:
    """The moments that are still to come, in order."""

    def __init__(self, source: Iterator[Moment]) -> None:
        self._source = source
        self._waiting: deque[Moment] = deque()

    def until(self, end_ns: int) -> Iterator[Moment]:
        """Those that began before some time; they stay."""
        while not self._waiting or self._waiting[-1].start_ns < end_ns:
            more = next(self._source, None)
            if more is None:
                break
            self._waiting.append(more)
        return (one for one in list(self._waiting) if one.start_ns < end_ns)

    def done(self, moment: Moment) -> None:
        """It is over."""
        self._waiting.remove(moment)

    def over(self, at_ns: int) -> Moment | None:
        """The first one, if it had ended by some time and nothing has entered it."""
        for one in self.until(at_ns):
            if not one.is_entered and one.end_ns <= at_ns:
                return one
        return None
