# ruff: noqa: F841 -- programs to watch: their variables are what matters
"""A function sees its variables as it would without a probe: ``locals()``, what ``exec`` has made, the order in which they go."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import pytest

from voirkit import SelectorError, probing

BEFORE_3_13 = sys.version_info < (
    3,
    13,
)  # from there on exec in a function makes no variables, and locals() is a new dictionary each time


class Tells:
    """Tells when it goes."""

    def __init__(self, name: str, gone: list[str]) -> None:
        self.name, self.gone = name, gone

    def __del__(self) -> None:
        self.gone.append(self.name)


def ordered(gone: list[str]) -> list[str]:
    x = 1
    y = Tells("y", gone)
    squares = [inner * inner for inner in range(2)]
    z = Tells("z", gone)
    __private = [name for name in locals()]  # noqa: C416
    return list(locals())


@pytest.mark.parametrize(
    "selector",
    ["f(z) > x", "f(z, y) > x", "f(z) > $x", "f(squares) > x", "f(z) > #error", "f > inner"],
)
def test_variables_keep_their_order(selector: str) -> None:
    def drive() -> Any:
        gone: list[str] = []
        return ordered(gone), gone

    plain, names = drive(), ordered.__code__.co_varnames
    refused = ""
    try:
        with probing(selector, env={"f": ordered}, raw=True) as probe:
            probe.subscribe(lambda event: None)
            assert ordered.__code__.co_varnames == names
            assert drive() == plain
    except SelectorError as error:
        refused = str(error)
    assert not refused or selector == "f > inner"


def shares(ns: list[int]) -> Any:
    last = 0
    for shared in ns:
        squares = [shared * shared for shared in ns]
        last = (lambda: shared)()
    end = [last, squares]
    return list(locals()), end


def test_a_comprehension_s_variable_keeps_its_place_though_it_is_shared_outside() -> None:
    plain, names = shares([1, 2]), shares.__code__.co_varnames
    with probing("shares(end) > last") as probe:
        probe.subscribe(lambda event: None)
        assert shares.__code__.co_varnames == names
        assert shares([1, 2]) == plain


class Private:
    def method(self) -> list[str]:
        first = 1
        __second = 2
        third = 3
        return list(locals())


def test_private_names_keep_their_order() -> None:
    plain = Private().method()
    with probing("Private.method(third) > first") as probe:
        probe.subscribe(lambda event: None)
        assert Private().method() == plain


def made(c: int) -> Any:
    exec("k = 5")
    if c:
        a = b = d = 1
    w = 2
    return eval("k") if BEFORE_3_13 else "k" in locals()


def test_what_exec_has_made_stays() -> None:
    plain = made(0)
    with probing("made(a, b, d) > w").values() as seen:
        assert (made(0), made(1)) == (plain, plain)
    assert seen == [{"w": 2}, {"a": 1, "b": 1, "d": 1, "w": 2}]


def looks(c: int) -> list[str]:
    there = locals()
    z = 1
    if c:
        a = b = d = 3
    if y := 5:
        pass
    w = 6
    return sorted(there)


def test_the_dictionary_that_locals_has_given_stays_as_it_is() -> None:
    plain = looks(0)
    with probing("looks(a, b, d) > w") as probe:
        probe.subscribe(lambda event: None)
        assert looks(0) == plain


def test_where_it_would_change_the_probe_is_refused() -> None:
    plain = looks(0)
    refused = pytest.raises(
        SelectorError, match=r"'y' together with a: before Python 3\.13 its locals would show it"
    )
    with refused if BEFORE_3_13 else nullcontext(), probing("looks(a) > y") as probe:
        probe.subscribe(lambda event: None)
        assert looks(0) == plain


def test_variables_that_may_be_unset_are_right_in_recursion_and_generators() -> None:
    def walk(n: int) -> Any:
        if n % 2:
            a = n
        if n > 1:
            b = n
            yield from walk(n - 1)
        if n == 3:
            c = n
        w = n
        yield w

    with probing("walk(a, b, c) > w").values() as seen:
        assert list(walk(3)) == [1, 2, 3]
    assert seen == [{"a": 1, "w": 1}, {"b": 2, "w": 2}, {"a": 3, "b": 3, "c": 3, "w": 3}]


def test_an_error_is_itself_beside_a_variable_that_is_not_set() -> None:
    def fails(c: int) -> None:
        if c:
            a = 1
        raise ValueError("its own")

    with probing("fails(a) > #error as e") as probe:
        seen: list[Any] = []
        probe.subscribe(seen.append)
        with pytest.raises(ValueError, match="its own"):
            fails(0)
    assert [type(event["e"]) for event in seen] == [ValueError]
