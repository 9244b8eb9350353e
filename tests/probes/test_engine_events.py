# ruff: noqa: F841 -- programs to watch: their variables are what matters
"""The engine: which events come, and what is in them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from voirkit import SelectorError, probing, streams, tag


def scale(n: Any, by: int = 3) -> Any:
    out = n * by
    rest = out % 4
    return rest


def choose(n: int) -> int:
    if n > 0:
        up = n
    else:
        down = n
    if n > 5:
        high = n
    last = n
    return last


def quiet(n: int) -> None:
    seen = n


def epoch(batches: list[Any]) -> None:
    for batch, target in batches:
        loss = batch + target


def leaf(v: int) -> int:
    w = v * 2
    return w


def branch(k: int) -> int:
    first = leaf(k)
    second = leaf(k + 1)
    return first + second


def down(n: int) -> int:
    left = n - 1
    if left:
        down(left)
    return n


def feeding(n: int) -> Any:
    for i in range(n):
        inner = leaf(i)
        yield inner


class Model:
    def __init__(self) -> None:
        self.seen = 0

    def forward(self, x: int) -> int:
        y = x + 1
        self.seen = y
        return y

    def __secret(self, x: int) -> int:
        z = x
        return z

    def open(self, x: int) -> int:
        return self.__secret(x)


async def fetch(n: int) -> int:
    got = n * 2
    await asyncio.sleep(0)
    act(n)
    return got


def act(n: int) -> int:
    done = n
    return done


def events(
    selector: str | list[str], drive: Callable[[], Any], **options: Any
) -> list[dict[str, Any]]:
    """What a probe sees while something runs."""
    selectors = [selector] if isinstance(selector, str) else selector
    seen: list[dict[str, Any]] = []
    with probing(*selectors, **{"env": globals(), **options}) as probe:
        probe.subscribe(seen.append)
        drive()
    return seen


def test_an_event_has_what_is_set_and_what_was_set_before() -> None:
    assert events("scale(n, rest) > out", lambda: scale(4)) == [{"n": 4, "out": 12}]


def weigh(value: int) -> int:
    weight = value + 100
    return weight


def test_a_captured_variable_may_be_called_value() -> None:
    assert events("weigh(value) > weight", lambda: weigh(1)) == [{"value": 1, "weight": 101}]


def test_a_parameter_is_set_after_those_before_it() -> None:
    assert events("scale(by) > n", lambda: scale(4)) == [{"n": 4}]
    assert events("scale(n) > by", lambda: scale(4)) == [{"n": 4, "by": 3}]


@pytest.mark.parametrize(
    ("n", "names"),
    [(-1, {"down"}), (1, {"up"}), (6, {"up", "high"})],
    ids=["below", "above", "far above"],
)
def test_variables_that_are_not_set_are_not_in_the_event(n: int, names: set[str]) -> None:
    (event,) = events("choose(up, down, high) > last", lambda: choose(n))
    assert set(event) == {*names, "last"}
    (event,) = events("choose(up, down, high) as r", lambda: choose(n))
    assert set(event) == {*names, "r"}
    (event,) = events("choose(down) > last", lambda: choose(n))
    assert set(event) == (names & {"down"}) | {"last"}


def test_a_function_without_a_return_returns_none() -> None:
    assert events("quiet(seen) as r", lambda: quiet(1)) == [{"seen": 1, "r": None}]


def test_a_loop_begins_without_what_the_last_iteration_set() -> None:
    seen = events(
        "epoch(batch, !#loop_batch as s, !!#endloop_batch as e)", lambda: epoch([(1, 2), (3, 4)])
    )
    assert [{k: v for k, v in e.items() if k != "$wrap"} for e in seen] == [
        {"s": True},
        {"batch": 1, "s": True, "e": True},
        {"s": True},
        {"batch": 3, "s": True, "e": True},
    ]
    assert [e["$wrap"]["step"] for e in seen] == ["begin", "end"] * 2
    ids = [e["$wrap"]["id"] for e in seen]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_a_loop_ends_however_it_is_left() -> None:
    with pytest.raises(TypeError):
        events("epoch(batch) > #endloop_batch", lambda: epoch([(1, 2), (3, None)]))
    seen: list[Any] = []
    with probing("epoch(batch) > #endloop_batch", env=globals()) as probe:
        probe["batch"].subscribe(seen.append)
        with pytest.raises(TypeError):
            epoch([(1, 2), (3, None)])
    assert seen == [1, 3]


def test_pairs_are_timed_by_a_generator() -> None:
    def pair() -> Any:
        end = yield
        return end["batch"]

    seen: list[Any] = []
    with probing("epoch(batch, !#loop_batch as s, !!#endloop_batch as e)", env=globals()) as probe:
        probe.wmap(pair).subscribe(seen.append)
        epoch([(1, 2), (3, 4)])
        assert probe.events == 4
    assert seen == [1, 3]


def test_pairs_hand_the_begin_to_a_generator_that_asks_for_it() -> None:
    def pair(s: bool) -> Any:
        end = yield
        return s, end["batch"]

    seen: list[Any] = []
    with probing("epoch(batch, !#loop_batch as s, !!#endloop_batch as e)", env=globals()) as probe:
        probe.wmap(pair).subscribe(seen.append)
        epoch([(1, 2)])
    assert seen == [(True, 1)]


def test_calls_within_calls_share_what_the_outer_one_has() -> None:
    assert events("branch(k, first) > leaf > w", lambda: (leaf(9), branch(1))) == [
        {"k": 1, "w": 2},
        {"k": 1, "first": 2, "w": 4},
    ]


def test_each_enclosing_call_of_a_recursive_function_gives_an_event() -> None:
    seen = events("down(n as m) > down > n", lambda: down(3))
    assert [(e["n"], e["m"]) for e in seen] == [(2, 3), (1, 2), (1, 3)]


def test_of_two_captures_of_a_name_the_innermost_counts() -> None:
    assert [e["n"] for e in events("down(n) > down > n", lambda: down(3))] == [2, 1, 1]


def test_who_consumes_a_generator_is_not_inside_it() -> None:
    assert events("feeding(i) > leaf > w", lambda: [leaf(v + 100) for v in feeding(2)]) == [
        {"i": 0, "w": 0},
        {"i": 1, "w": 2},
    ]


def test_tasks_do_not_see_each_others_calls() -> None:
    async def both() -> None:
        await asyncio.gather(fetch(1), fetch(2))

    assert events("fetch(n) > act > done", lambda: asyncio.run(both())) == [
        {"n": 1, "done": 1},
        {"n": 2, "done": 2},
    ]


def test_threads_do_not_see_each_others_calls() -> None:
    inside, done = threading.Event(), threading.Event()

    def waits(_: Any) -> None:
        inside.set()
        assert done.wait(60)

    def outer(function: Callable[[Any], Any], n: int) -> None:
        here = n
        function(n)

    seen: list[Any] = []
    with probing("outer(n) > leaf > w", env={"outer": outer, "leaf": leaf}) as probe:
        probe.subscribe(seen.append)
        thread = threading.Thread(target=outer, args=(waits, 1))
        thread.start()
        assert inside.wait(60)
        leaf(1)
        done.set()
        thread.join()
        outer(leaf, 2)
    assert seen == [{"n": 2, "w": 4}]


def test_a_total_has_all_values_of_a_call() -> None:
    (event,) = events("branch(k, leaf(w))", lambda: branch(1), raw=True)
    assert event["w"].values == [2, 4]
    assert event["k"].value == 1


def test_a_bound_method_is_watched_on_that_object_only() -> None:
    one, other = Model(), Model()
    seen: list[Any] = []
    with probing("one.forward > y", env={"one": one}) as probe:
        probe.subscribe(seen.append)
        one.forward(1)
        other.forward(5)
    assert seen == [{"self": one, "y": 2}]


def test_an_attribute_that_is_set_is_seen() -> None:
    assert events("Model.forward > self.seen", lambda: Model().forward(1)) == [{"self.seen": 2}]


class Box:
    """Keeps ``x`` in a slot, ``y`` behind a property."""

    __slots__ = ("_y", "x")

    @property
    def y(self) -> Any:
        raise AssertionError("a probe must not run code of the program")

    @y.setter
    def y(self, value: Any) -> None:
        self._y = value


def adds(box: Box, pair: Any) -> None:
    box.x = pair
    box.x += 1


def hides(box: Box, pair: Any) -> None:
    box.y, box.x = pair


def test_an_attribute_that_is_added_to_is_seen() -> None:
    assert events("adds > box.x", lambda: adds(Box(), 1), env={"adds": adds}) == [
        {"box.x": 1},
        {"box.x": 2},
    ]


@pytest.mark.parametrize(("name", "overridable"), [("x", False), ("y", False), ("x", True)])
def test_an_attribute_that_is_unpacked_to_is_refused_with_what_to_write(
    name: str, overridable: bool
) -> None:
    words = rf"hides \(.*\) cannot be probed for 'box.{name}': line \d+ sets it where no value shows\. Assign to a variable first"
    with (
        pytest.raises(SelectorError, match=words),
        probing(f"hides > box.{name}", env={"hides": hides}, overridable=overridable),
    ):
        pass


def test_what_is_added_to_an_attribute_can_be_replaced() -> None:
    def adds_only(box: Any) -> None:
        box.x += 1

    box = Box()
    box.x = 1
    with probing("adds_only > box.x", overridable=True) as probe:
        probe.override(lambda event: event["box.x"] * 10)
        adds_only(box)
    assert box.x == 20


def test_private_names_are_what_they_are_in_the_source() -> None:
    assert events("Model._Model__secret > z", lambda: Model().open(3)) == [{"z": 3}]


def test_a_condition_that_fails_is_told_once_and_nothing_fires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(streams, "report", told.append)
    assert (
        events(
            "scale(n ~ bad) > out",
            lambda: (scale(1), scale(2)),
            env={"scale": scale, "bad": lambda v: 1 / 0},
        )
        == []
    )
    assert len(told) == 1
    assert "ZeroDivisionError" in told[0]


def test_a_value_whose_comparison_misbehaves_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(streams, "report", told.append)

    class Odd(int):
        def __eq__(self, other: object) -> Any:
            raise RuntimeError("no truth here")

        __hash__ = None  # type: ignore[assignment]

    assert events("scale(n=2) > out", lambda: scale(Odd(1))) == []
    assert "no truth here" in told[0]


def test_tags_choose_assignments() -> None:
    def dish(n: int) -> int:
        salt: tag.Spice = n
        basil: tag.Herb = n + 1
        return salt + basil

    seen: list[Any] = []
    with probing("dish > $x:@Herb", raw=True, env={"dish": dish}) as probe:
        probe.subscribe(lambda e: seen.append((e["x"].name, e["x"].value)))
        dish(1)
    assert seen == [("basil", 2)]


def test_a_value_is_replaced_before_the_function_uses_it() -> None:
    with probing("scale > out", env=globals(), overridable=True) as probe:
        probe.override(lambda e: e["out"] + 1)
        assert scale(5) == 0
    assert scale(5) == 3
