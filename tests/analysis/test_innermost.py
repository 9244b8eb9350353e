"""Which span an instant lies in, against looking at every span."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from voirkit.analysis.nesting import innermost

Span = tuple[int, int]


@st.composite
def nested(draw: st.DrawFn, low: int = 0, high: int = 60, depth: int = 0) -> list[Span]:
    """Spans of calls: beside or inside each other."""
    spans: list[Span] = []
    at = low
    while at < high and draw(st.booleans()):
        start = draw(st.integers(at, high - 1))
        end = draw(st.integers(start + 1, high))
        spans.append((start, end))
        if depth < 3:
            spans += draw(nested(start, end, depth + 1))
        at = end
    return spans


@given(nested(), st.lists(st.integers(-3, 63)))
def test_it_is_the_innermost_of_those_around_it(spans: list[Span], instants: list[int]) -> None:
    spans = sorted(spans, key=lambda s: (s[0], -s[1]))
    starts, ends = (
        np.array([s for s, _ in spans], np.int64),
        np.array([e for _, e in spans], np.int64),
    )
    found = innermost(starts, ends, np.array(instants, np.int64)).tolist()
    for at, which in zip(instants, found, strict=True):
        around = [i for i, (start, end) in enumerate(spans) if start <= at < end]
        assert which == (around[-1] if around else -1)
