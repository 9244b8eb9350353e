
"""The engine: programs that were found to get fewer events than they should, others' events, or wrong values in them."""

from __future__ import annotations

from typing import Any

import pytest

from voirkit import probing


def seen(selector: str, call: Any, *args: Any, names: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The events of a probe while something is called."""
    with probing(selector, env=globals() if names is None else names).values() as found:
        call(*args)
    return list(found)


class Refuses:
    """An object that keeps no attributes."""

    bad: int

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError

    def __setitem__(self, name: str, value: Any) -> None:
        raise ValueError


def raises_halfway(o: Refuses, items: Any = ((1, 2),)) -> Any:
    try:
        a = o.bad = 5
    except ValueError:
        pass
    try:
        (b, *c), o.bad = (6, 7), 7
    except ValueError:
        pass
    try:
        for i, o["bad"] in items:  # noqa: B007  # type: ignore[index]
            pass
    except ValueError:
        pass
    return a, b, c, i


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("raises_halfway > a", [{"a": 5}]),
        ("raises_halfway > b", [{"b": 6}]),
        ("raises_halfway(b) > c", [{"b": 6, "c": [7]}]),
        ("raises_halfway(o, items as n) > i", [{"n": ((1, 2),), "i": 1}]),
    ],
)
def test_a_variable_is_seen_if_the_statement_raises_after_it_is_set(selector: str, expected: list[Any]) -> None:
    o = Refuses()
    plain = raises_halfway(o)
    assert plain == (5, 6, [7], 1)
    found = seen(selector, lambda: raises_halfway(o))
    assert [{k: v for k, v in e.items() if k != "o"} for e in found] == expected
