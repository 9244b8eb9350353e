"""Which span lies in which: as a drawing would show it, checked against the definition on many made-up threads."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from voirkit.export.spans import overlapping

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=25).map(
    lambda spans: sorted(
        [(start, start + duration) for start, duration in spans],
        key=lambda span: (span[0], -span[1]),
    )
)


def lanes_of(spans: list[tuple[int, int]]) -> list[int]:
    """The first lane of each span whose earlier spans are over at its start, or hold it."""
    lanes: list[int] = []
    for start, end in spans:
        crossed = {
            lane
            for (_, other_end), lane in zip(spans, lanes, strict=False)
            if start < other_end < end
        }
        lanes.append(next(lane for lane in count() if lane not in crossed))
    return lanes


def cross(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two spans overlap without one holding the other."""
    return one[0] < other[0] < one[1] < other[1] or other[0] < one[0] < other[1] < one[1]


@given(SPANS)
def test_spans_of_one_lane_never_cross(spans: list[tuple[int, int]]) -> None:
    placed = list(zip(spans, lanes_of(spans), strict=True))
    assert not [
        (a, b) for a, lane in placed for b, other in placed if lane == other and cross(a, b)
    ]


@given(SPANS)
def test_spans_that_do_not_cross_are_all_in_lane_0(spans: list[tuple[int, int]]) -> None:
    if not any(cross(a, b) for a in spans for b in spans):
        assert set(lanes_of(spans)) <= {0}


@given(SPANS)
def test_a_lane_can_be_known_without_keeping_what_is_in_it(spans: list[tuple[int, int]]) -> None:
    expected = [
        ("t", start, end, lane)
        for (start, end), lane in zip(spans, lanes_of(spans), strict=True)
        if lane
    ]
    assert list(overlapping(("t", start, end) for start, end in spans)) == expected


def test_threads_have_lanes_of_their_own() -> None:
    assert list(overlapping([("a", 0, 10), ("b", 5, 15), ("a", 6, 16)])) == [("a", 6, 16, 1)]
