# ruff: noqa: F841 -- programs to watch: their variables are what matters
"""The engine: programs that were found to get fewer events than they should, others' events, or wrong values in them."""

from __future__ import annotations

import _thread
import inspect
import re
import sys
import threading
import types
from typing import Any

import pytest

from voirkit import SelectorError, probing
from voirkit.probes import weave


def seen(
    selector: str, call: Any, *args: Any, names: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
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
    "selector",
    [
        "raises_halfway > a",
        "raises_halfway > b",
        "raises_halfway(b) > c",
        "raises_halfway(o, items as n) > i",
    ],
)
def test_a_variable_whose_statement_raises_after_it_is_set_has_no_event(selector: str) -> None:
    o = Refuses()
    assert raises_halfway(o) == (5, 6, [7], 1)
    results: list[Any] = []
    assert seen(selector, lambda: results.append(raises_halfway(o))) == []
    assert results == [(5, 6, [7], 1)]


def begins_or_ends(n: int) -> None:
    if n == 1:
        a = "begin of call 1"
    if n == 2:
        b = "end of call 2"


begins_or_fails = lambda n: [n and (a := n), 1 // (n - 1), (b := n)]  # noqa: E731


def test_a_pair_that_has_not_ended_with_its_call_is_not_ended_by_another() -> None:
    found = seen(
        "begins_or_ends(!a as s, !!b as e)", lambda: [begins_or_ends(n) for n in (1, 2, 2)]
    )
    assert [(e["$wrap"]["step"], bool(e["$wrap"]["id"])) for e in found] == [
        ("begin", True),
        ("end", False),
        ("end", False),
    ]


def test_wmap_measures_nothing_across_calls() -> None:
    closed = []

    def between() -> Any:
        try:
            yield
        except GeneratorExit:
            closed.append(True)
            raise
        return "ended"

    with probing("begins_or_ends(!a as s, !!b as e)").wmap(between).values() as found:
        for n in (1, 2, 1, 1):
            begins_or_ends(n)
    assert (found, len(closed)) == ([], 3)


def test_a_pair_in_a_lambda_that_raises_is_not_ended_by_another_call() -> None:
    def drive() -> None:
        with pytest.raises(ZeroDivisionError):
            begins_or_fails(1)
        begins_or_fails(0)

    found = seen("begins_or_fails(!a as s, !!b as e)", drive)
    assert [(e["$wrap"]["step"], bool(e["$wrap"]["id"])) for e in found] == [
        ("begin", True),
        ("end", False),
    ]


def matches(v: int, c: int = 0) -> str:
    if c:
        a = 1
    match v:
        case [p, y] if y:
            return "two"
        case x if x != 1 and x != (1, 0):
            return f"big {x}"
        case x:
            return f"small {x}"


@pytest.mark.parametrize("selector", ["matches > x", "matches(a) > x", "matches(a, y) > x"])
def test_a_variable_of_a_case_is_seen_whether_its_guard_holds_or_not(selector: str) -> None:
    assert seen(selector, matches, 1) == [{"x": 1}, {"x": 1}]
    assert seen(selector, matches, 1, 1) == [{**({"a": 1} if "(a" in selector else {}), "x": 1}] * 2
    assert seen(selector, matches, 9) == [{"x": 9}]
    assert seen("matches(a, p) > y", matches, (1, 0)) == [{"p": 1, "y": 0}]


def test_a_variable_of_a_case_can_be_replaced_before_its_guard_is_asked() -> None:
    with probing("matches > x", env=globals(), overridable=True) as probe:
        probe.override(lambda e: 7)
        assert matches(1) == "big 7"


def inner_call(n: int, k: int) -> None:
    w = n


def outer_call(n: int) -> None:
    inner_call(5, n)


def counts_down(n: int) -> None:
    w = n
    if n:
        counts_down(n - 1)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("outer_call(n=1) > inner_call > w", [{"n": 1, "w": 5}]),
        ("outer_call(n=1) > inner_call(n) > w", [{"n": 5, "w": 5}]),
        ("outer_call(n=1) > inner_call(n=5) > w", [{"n": 5, "w": 5}]),
        ("outer_call(n=5) > inner_call(n=5) > w", []),
        ("outer_call(n) > inner_call(n=1) > w", []),
        ("outer_call(n=1, inner_call(n=5, !w))", [{"n": 5, "w": 5}]),
        ("counts_down(n=2) > counts_down(n=1) > w", [{"n": 1, "w": 1}]),
        ("counts_down(n=1) > counts_down(n=2) > w", []),
    ],
)
def test_a_condition_is_on_the_variable_of_its_own_call(selector: str, expected: list[Any]) -> None:
    assert seen(selector, lambda: [outer_call(1), counts_down(3)]) == expected


def test_a_total_tests_each_condition_on_its_own_call_too() -> None:
    with probing("outer_call(n=1, inner_call(n=5, w))", env=globals(), raw=True).values() as found:
        outer_call(1)
        outer_call(2)
    assert [e["n"].values for e in found] == [[1, 5]]


def test_the_condition_of_a_variable_that_is_deleted_is_no_more() -> None:
    assert seen("deletes(n=1) > inner_call(n=5) > w", deletes) == [{"n": 5, "w": 5}]


def deletes() -> None:
    n = 2
    inner_call(5, n)
    del n
    inner_call(5, 0)


n_of_both = "the module's"


def uses_in_inner(late: int) -> Any:
    g = lambda: n_of_both  # noqa: E731
    if y := 1:
        pass
    n_of_both = 5
    return g()


def test_a_variable_that_is_not_set_yet_is_not_the_modules_of_its_name() -> None:
    assert seen("uses_in_inner(n_of_both) > y", uses_in_inner, 0) == [{"y": 1}]


class Private:
    def look(self, c: int) -> Any:
        if c:
            __s = 3
        if y := 5:
            pass
        return [z := __s for _ in range(c)]  # type: ignore[possibly-undefined]


def test_a_private_name_is_captured_wherever_the_tap_has_to_look_for_it() -> None:
    names = {"Private": Private}
    assert seen(
        "Private.look(__s) > y", lambda: [Private().look(n) for n in (0, 1)], names=names
    ) == [{"y": 5}, {"__s": 3, "y": 5}]
    assert seen("Private.look(__s) > z", lambda: Private().look(1), names=names) == [
        {"__s": 3, "z": 3}
    ]


def eats(made: Any) -> list[Any]:
    a = "of who consumes it"
    return list(made)


def feeds(how: str) -> Any:
    a = how
    made = ((y := i) for i in range(1))
    if how == "makes":
        return made
    return eats(made) if how == "right" else list(made)


def test_what_a_generator_expression_sets_is_never_shown_with_variables_of_who_consumes_it() -> (
    None
):
    assert seen("feeds(a) > y", feeds, "right") == [{"a": "right", "y": 0}]
    assert seen("feeds(a) > y", feeds, "itself") == [{"a": "itself", "y": 0}]
    assert seen("feeds(a) > y", lambda: eats(feeds("makes"))) == [{"y": 0}]


def nests(deep: int) -> Any:
    made = ((y := i) for i in range(1))
    return nested(deep, made)


def nested(deep: int, outer: Any) -> Any:
    return [nests(deep - 1) if deep else 0, list(outer)]


def test_of_several_calls_that_may_have_made_a_generator_expression_none_is_taken() -> None:
    assert seen("nests(deep) > y", nests, 0) == [{"deep": 0, "y": 0}]
    assert seen("nests(deep) > y", nests, 1) == [{"y": 0}, {"deep": 1, "y": 0}]


def sets_often(n: int) -> None:
    for i in range(n):
        x = i


def test_subscribers_take_turns_in_threads_that_threading_does_not_list() -> None:
    count, ended = 0, threading.Semaphore(0)

    def subscriber(event: Any) -> None:
        nonlocal count
        before = count
        for _ in (1, 2):
            pass
        count = before + 1

    def work() -> None:
        sets_often(5000)
        ended.release()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with probing("sets_often > x", env=globals()) as probe:
            probe.subscribe(subscriber)
            for _ in range(3):
                _thread.start_new_thread(work, ())
            assert all(ended.acquire(timeout=60) for _ in range(3))
            assert count == probe.events == 15000
    finally:
        sys.setswitchinterval(interval)


class Bound:
    def of_any(*args: Any) -> None:
        z = len(args)

    def rebinds(self) -> None:
        self = Bound()
        z = 1

    def rebinds_inside(self) -> None:
        def inner() -> None:
            nonlocal self
            self = Bound()

        z = inner()

    def keeps(self) -> None:
        def inner(other: Any) -> None:
            self = other
            self.self = other

        z = inner(self)


bound = Bound()


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("of_any", "takes its object in '*args'"),
        ("rebinds", "gives 'self' another value"),
        ("rebinds_inside", "gives 'self' another value"),
    ],
)
def test_a_bound_method_that_does_not_tell_its_object_is_refused(method: str, why: str) -> None:
    with (
        pytest.raises(SelectorError, match=re.escape(why)) as caught,
        probing(f"bound.{method} > z", env=globals()),
    ):
        pass
    assert f"Bound.{method}" in str(caught.value)


def test_a_bound_method_whose_inner_function_has_a_self_of_its_own_is_not() -> None:
    assert seen("bound.keeps > z", lambda: [bound.keeps(), Bound().keeps()]) == [
        {"self": bound, "z": None}
    ]


def returns(n: int) -> int:
    x = n
    return x


def test_probes_that_leave_a_function_one_by_one_do_not_weave_all_the_others_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, made, asked = returns.__code__, [0], []
    plain = weave.weave_code

    def counted(*args: Any) -> Any:
        made[0] += len(args[3])
        return plain(*args)

    def ask(value: Any) -> bool:
        asked.append(value)
        return True

    probes = [
        probing("returns(x~ask) > #value", env={"returns": returns, "ask": ask}) for _ in range(40)
    ]
    seen: list[list[Any]] = [[] for _ in probes]
    for probe, events in zip(probes, seen, strict=True):
        probe.subscribe(events.append)
        probe.__enter__()
    monkeypatch.setattr(weave, "weave_code", counted)
    for n, probe in enumerate(probes):
        asked.clear()
        assert returns(n) == n
        assert len(asked) == len(probes) - n
        probe.__exit__(None, None, None)
    assert returns.__code__ is code
    assert (
        [len(events) for events in seen]
        == [probe.events for probe in probes]
        == [n + 1 for n in range(40)]
    )
    assert made[0] < 5 * len(probes)


@types.coroutine
def _paused(n: int) -> Any:
    turns = n + 1
    got = yield turns
    return got


def test_a_function_of_types_coroutine_is_probed_and_stays_awaitable() -> None:
    async def main() -> Any:
        return await _paused(3)

    before = _paused.__code__
    with probing("_paused > turns", env={"_paused": _paused}).values() as seen:
        running = main()
        assert running.send(None) == 4
        with pytest.raises(StopIteration, match="5"):
            running.send(5)
    assert seen == [{"turns": 4}]
    assert _paused.__code__ is before


def test_a_generator_that_becomes_a_coroutine_while_it_is_probed_stays_one() -> None:
    def pause(n: int) -> Any:
        turns = n + 1
        yield turns

    with probing("pause > turns").values() as seen:
        types.coroutine(pause)
        assert list(pause(1)) == [2]
    assert seen == [{"turns": 2}]
    assert pause.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE
    assert not [const for const in pause.__code__.co_consts if callable(const)]
