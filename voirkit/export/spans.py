"""What the formats of spans have in common: which span of a thread lies in which, and what values they may hold.

Nesting follows from times alone, since records hold no parents. Spans of one thread may also overlap without one holding the other
(coroutines and generators that take turns). A viewer that draws a thread as one stack would show wrong durations for those; here they get
lanes of their own beside it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

# The argument that connects spans, also of several threads and processes: arrows lead from one to the next of the same value.
FLOW = "flow"

_INT64 = range(-(2**63), 2**63)


class Nesting(Generic[T]):
    """The open spans of one thread, at a moment that only goes forward.

    Spans are added by their start; of those with the same start the longer first.
    """

    def __init__(self) -> None:
        self._lanes: list[list[tuple[int, int, T]]] = [[]]

    def ended(self, now_ns: int | None = None) -> Iterator[tuple[int, int, T]]:
        """Take out the spans that are over at this moment (all of them, with None).

        Yields:
            (end_ns, lane, span); within a lane in the order in which they end.
        """
        for number, lane in enumerate(self._lanes):
            while lane and (now_ns is None or lane[-1][1] <= now_ns):
                _, end_ns, what = lane.pop()
                yield end_ns, number, what

    def holder(self, end_ns: int) -> T | None:
        """The innermost open span that lasts until then or longer."""
        holding = [one for lane in self._lanes for one in reversed(lane) if one[1] >= end_ns]
        return max(holding, key=lambda one: one[0])[2] if holding else None  # of the same start, the first: the inner ones come first

    def add(self, start_ns: int, end_ns: int, what: T) -> int:
        """Open a span; what was over before its start has been taken out.

        Returns:
            Its lane: the first in which it lies wholly within the innermost open span. 0 unless spans overlap.
        """
        for number, lane in enumerate(self._lanes):
            if not lane or lane[-1][1] >= end_ns:
                lane.append((start_ns, end_ns, what))
                return number
        self._lanes.append([(start_ns, end_ns, what)])
        return len(self._lanes) - 1


def overlapping(spans: Iterable[tuple[H, int, int]]) -> Iterator[tuple[H, int, int, int]]:
    """The spans that do not lie in lane 0 of their thread; the same lanes as those of ``Nesting``, for many spans at once.

    Args:
        spans: (thread, start, end), in any unit, in the order that ``Nesting`` asks for.

    Yields:
        (thread, start, end, lane), the lane from 1.
    """
    threads: dict[H, list[list[int]]] = {}
    for thread, start, end in spans:
        lanes = threads.get(thread)
        if lanes is None:
            lanes = threads[thread] = [[]]
        lane = 0
        for ends in lanes:
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or ends[-1] >= end:
                ends.append(end)
                break
            lane += 1
        else:
            lanes.append([end])
        if lane:
            yield thread, start, end, lane


def unicode_text(text: str) -> str:
    """The text, with what UTF-8 cannot hold (half a surrogate pair: a file name of odd bytes, say) as escape sequences."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def typed(value: object) -> tuple[str, object]:
    """The field that a value of an argument is in, of OTLP's and of Perfetto's messages alike, and the value as that can hold it."""
    if isinstance(value, bool):
        return "bool_value", value
    if isinstance(value, int) and value in _INT64:
        return "int_value", value
    if isinstance(value, float):
        return "double_value", value
    return "string_value", unicode_text(str(value))
