"""Variables of comprehensions and generator expressions are seen as those of loops are, on every Python, and nothing else changes.

Since Python 3.12 a comprehension is compiled into its function; before, it is code of its own, as a generator expression still is.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import traceback
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from voirkit import SelectorError, probing
from voirkit.probes.selector import parse
from voirkit.probes.selector.catalogue import catalogue
from voirkit.probes.selector.check import check_all
from voirkit.probes.selector.offers import offers

Events = list[dict[str, Any]]


def events(selector: str, f: Callable[..., Any], *args: Any, **options: Any) -> Events:
    """The events of a call of ``f``, which must come out as without a probe."""
    code, plain = f.__code__, f(*args)
    with probing(selector, env={"f": f, "double": double}, **options).values() as seen:
        assert f(*args) == plain
    assert f.__code__ is code
    return list(seen)


def of(name: str, *values: Any) -> Events:
    return [{name: value} for value in values]


def double(x: int) -> int:
    y = 2 * x
    return y


# Programs


def listed(xs: Any) -> Any:
    return [i + 1 for i in xs if i]


def in_a_set(xs: Any) -> Any:
    return {i for i in xs}  # noqa: C416 -- a comprehension is what is watched


def in_a_dictionary(xs: Any) -> Any:
    return {i: j for i, (j, *_) in enumerate(zip(xs, xs, strict=True))}


def generated(xs: Any) -> Any:
    return sum(i for i in xs)


def handed_on(xs: Any) -> Any:
    return consumed(i for i in xs)


def consumed(values: Iterator[Any]) -> Any:
    return list(values)


def nested(n: int) -> Any:
    factor = 10
    return [[factor * j for j in range(i)] for i in range(n)]


def product(xs: Any) -> Any:
    return [(i, j) for i in xs for j in xs if i != j]


def in_an_iterable(xs: Any) -> Any:
    return [k for k in [i for i in xs] if k]  # noqa: C416 -- a comprehension is what is watched


def own_name(xs: Any) -> Any:
    i = "own"
    return i, [i for i in xs]  # noqa: C416 -- a comprehension is what is watched


def walrus(xs: Any) -> Any:
    return [last := i for i in xs], last


def calls(xs: Any) -> Any:
    return [double(i) for i in xs]


def assigned(xs: Any) -> Any:
    total = sum([i for i in xs])  # noqa: C416 -- a comprehension is what is watched
    return total


def shares(xs: Any) -> Any:
    return [read() for read in [lambda: i for i in xs]]  # noqa: B023 -- that they share it is what is watched


async def numbers(n: int) -> AsyncIterator[int]:
    for k in range(n):
        yield k


async def awaited(n: int) -> Any:
    return [i async for i in numbers(n)], [k async for k in (m async for m in numbers(n) if m)]


def asynchronous(n: int) -> Any:
    return asyncio.run(awaited(n))


CASES = [
    (listed, "f > i", of("i", 0, 1, 2)),
    (in_a_set, "f > i", of("i", 0, 1, 2)),
    (in_a_dictionary, "f > j", of("j", 0, 1, 2)),
    (in_a_dictionary, "f(i) > j", [{"i": n, "j": n} for n in range(3)]),
    (in_a_dictionary, "f(j) > i", of("i", 0, 1, 2)),
    (generated, "f > i", of("i", 0, 1, 2)),
    (handed_on, "f > i", of("i", 0, 1, 2)),
    (product, "f(i) > j", [{"i": i, "j": j} for i in range(3) for j in range(3)]),
    (in_an_iterable, "f > i", of("i", 0, 1, 2)),
    (in_an_iterable, "f > k", of("k", 0, 1, 2)),
    (own_name, "f > i", of("i", "own")),
    (walrus, "f(i) > last", [{"i": n, "last": n} for n in range(3)]),
    (calls, "f(i) > double > y", [{"i": n, "y": 2 * n} for n in range(3)]),
    (shares, "f > i", of("i", 0, 1, 2)),
    (listed, "f(xs) > i", [{"xs": range(3), "i": n} for n in range(3)]),
    (listed, "f > i=2", of("i", 2)),
    (listed, "f > i as found", of("found", 0, 1, 2)),
    (lambda xs: [i for i in xs], "f > i", of("i", 0, 1, 2)),  # noqa: C416 -- a comprehension is what is watched
]


@pytest.mark.parametrize(("f", "selector", "expected"), CASES)
def test_they_are_seen_each_time_they_are_set(
    f: Callable[..., Any], selector: str, expected: Events
) -> None:
    assert events(selector, f, range(3)) == expected


def test_those_of_comprehensions_in_comprehensions_are_seen_with_what_is_around_them() -> None:
    assert events("f(i, factor) > j", nested, 3) == [
        {"i": i, "factor": 10, "j": j} for i in range(3) for j in range(i)
    ]


@pytest.mark.parametrize(("name", "values"), [("i", [0, 1, 2]), ("m", [0, 1, 2]), ("k", [1, 2])])
def test_those_of_asynchronous_comprehensions_are_seen(name: str, values: list[int]) -> None:
    plain = asynchronous(3)
    with probing(f"awaited > {name}").values() as seen:
        assert asynchronous(3) == plain
    assert seen == of(name, *values)


def test_a_total_has_all_of_a_call() -> None:
    found = events("f(i)", listed, range(3), raw=True)
    assert [event["i"].values for event in found] == [[0, 1, 2]]


def test_a_pair_may_begin_in_a_comprehension_and_end_outside() -> None:
    found = events("f(!i, !!total)", assigned, [5])
    assert [event["$wrap"]["step"] for event in found] == ["begin", "end"]
    assert found[0]["$wrap"]["id"] == found[1]["$wrap"]["id"]


def test_all_variables_are_those_of_the_function_itself() -> None:
    assert events("f > $v", assigned, [1, 2])[1:3] == [{"v": [1, 2]}, {"v": 3}]


# What cannot be had


def test_one_is_not_shown_where_it_has_no_value() -> None:
    with (
        pytest.raises(
            SelectorError,
            match="for 'total' together with 'i': that is a variable of a comprehension",
        ),
        probing("assigned(i) > total"),
    ):
        pass


def test_one_that_hides_a_variable_of_the_function_is_not_taken_for_it() -> None:
    def hides(xs: Any) -> Any:
        i = "own"
        return i, [last := i for i in xs], last

    with (
        pytest.raises(
            SelectorError,
            match="together with 'i': in the comprehension there that name means another",
        ),
        probing("hides(i) > last"),
    ):
        pass


def test_none_can_be_replaced() -> None:
    with (
        pytest.raises(SelectorError, match="to replace it: a comprehension"),
        probing("listed > i", overridable=True),
    ):
        pass


@pytest.mark.parametrize(
    ("selector", "refused"),
    [
        ("//f > i", ""),
        ("//f(i) > j", ""),
        ("//f(i)", ""),
        ("//f(j) > i", "together with 'j'"),
        ("//f(i) > n", "together with 'i'"),
    ],
)
def test_the_check_before_the_run_says_the_same(selector: str, refused: str) -> None:
    script = catalogue("def f(n):\n    return [[j for j in i] for i in n]\n", "main.py")
    if not refused:
        check_all(parse(selector, "here"), script, "main.py")
        return
    with pytest.raises(SelectorError, match=refused):
        check_all(parse(selector, "here"), script, "main.py")


def test_they_are_offered_unless_the_name_means_something_else() -> None:
    script = catalogue(
        "def f(n):\n    i = 1\n    return [k for k in n], [i for i in n], [n for n in n]\n",
        "main.py",
    )
    (found,) = offers(script)
    assert [(offer.names, offer.lines) for offer in found.offers if offer.names] == [
        (("n",), (1,)),
        (("i",), (2,)),
        (("k",), (3,)),
    ]


# The program is as it was


class Thing:
    """Tells when it goes."""

    def __init__(self, gone: list[Any], name: int) -> None:
        self.gone, self.name = gone, name

    def __del__(self) -> None:
        self.gone.append(self.name)


def lives(gone: list[Any]) -> Any:
    lengths = [len(gone) for one in (Thing(gone, n) for n in range(3))]
    return lengths, list(gone), list(locals())


def test_values_live_as_long_as_without_a_probe() -> None:
    plain = lives([])
    with probing("lives > one") as probe:
        probe.subscribe(lambda event: None)
        assert lives([]) == plain


def fails(xs: Any) -> Any:
    return [
        1 // i
        for i in xs
        if i < 5
    ]  # fmt: skip


@pytest.mark.parametrize("xs", [[1, 0], [1, "a"], [None]])
def test_tracebacks_are_the_same(xs: Any) -> None:
    def told() -> str:
        try:
            fails(xs)
        except Exception:
            return traceback.format_exc()
        return ""

    plain = told()
    with probing("fails > i") as probe:
        probe.subscribe(lambda event: None)
        assert told() == plain


def test_a_value_is_never_asked_whether_it_is_true_or_equal() -> None:
    class Stubborn:
        def __bool__(self) -> bool:
            raise TypeError("no truth")

        __eq__ = __hash__ = None  # type: ignore[assignment]

    thing = Stubborn()
    for kind in ("immediate", "total"):
        with probing("in_a_list > one", probe_type=kind, raw=True).values() as seen:
            assert in_a_list(thing) == [1]
        assert [capture.values[0] is thing for event in seen for capture in event.values()] == [
            True
        ]


def in_a_list(thing: Any) -> Any:
    return [1 for one in [thing]]


def test_what_is_shared_with_functions_is_shared_under_a_probe() -> None:
    names, free = shares.__code__.co_varnames, shares.__code__.co_cellvars
    with probing("shares > i") as probe:
        probe.subscribe(lambda event: None)
        assert (shares.__code__.co_varnames, shares.__code__.co_cellvars) == (names, free)
        assert shares([1, 2]) == [2, 2]


def made(xs: Any) -> Iterator[Any]:
    return (i for i in xs)


def test_a_generator_that_is_left_alone_ends_as_without_a_probe() -> None:
    with probing("made > i").values() as seen:
        generator = made(range(3))
        gone = weakref.ref(generator)
        assert next(generator) == 0
        del generator
        gc.collect()
        assert gone() is None
        kept = made(range(5))
        next(kept)
    assert seen == of("i", 0, 0)
    assert list(kept) == [1, 2, 3, 4]  # the probe is off, and what it was put into goes on
    assert seen == of("i", 0, 0)


def test_what_a_subscriber_raises_stays_outside() -> None:
    def wrong(event: Any) -> None:
        raise ValueError("mine")

    with probing("listed > i") as probe:
        probe.subscribe(wrong)
        assert listed(range(3)) == [2, 3]


def test_a_bound_method_tells_its_object_whatever_else_is_set_beside_it() -> None:
    class Holder:
        def each(self, xs: Any) -> Any:
            found = []
            for _ in xs:
                found.append(self)
            return [(self, i) for i in xs], found

    holder = Holder()
    with probing("holder.each(self as s) > i", env={"holder": holder}).values() as seen:
        holder.each([1, 2])
        Holder().each([3])
    assert [event["i"] for event in seen] == [1, 2]


def in_lines(xs: Any) -> Any:
    return [
        i
        for i
        in xs
        if i
    ]  # fmt: skip


def first_in_lines(n: int) -> Any:
    x = (
        n
        + 1
    )  # fmt: skip
    return x


@pytest.mark.parametrize(
    ("f", "selector", "argument"),
    [
        (in_lines, "f > i", [0, 1, 2]),
        pytest.param(
            first_in_lines,
            "f > x",
            3,
            marks=pytest.mark.skipif(
                sys.version_info < (3, 11), reason="a NOP has a line of its own"
            ),
        ),
    ],
)
def test_a_tracer_is_told_the_same_lines(
    f: Callable[..., Any], selector: str, argument: Any
) -> None:
    def lines() -> list[tuple[str, int]]:
        told: list[tuple[str, int]] = []

        def tracer(frame: Any, event: str, _: Any) -> Any:
            if frame.f_code.co_filename == __file__:
                told.append((event, frame.f_lineno))
            return tracer

        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            f(argument)
        finally:
            sys.settrace(before)
        return told[:-1]  # but for the one of this very function

    plain = lines()
    with probing(selector, env={"f": f}) as probe:
        probe.subscribe([].append)
        assert lines() == plain
