"""The engine: functions that are redefined while a probe is on, and several probes on what functions make."""

from __future__ import annotations

import gc
import linecache
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from conftest import Place

from voirkit import probing, streams

Cell = Callable[[str], None]


@pytest.fixture
def home() -> Iterator[ModuleType]:
    """A module that cells of a notebook are executed in."""
    module = sys.modules["a_notebook"] = ModuleType("a_notebook")
    yield module
    del sys.modules["a_notebook"]


@pytest.fixture
def cell(home: ModuleType) -> Cell:
    """Executes a text as a cell of a notebook: its source is known under a name of its own."""

    def execute(text: str) -> None:
        name = f"<cell {len(linecache.cache)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), vars(home))

    return execute


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said on stderr."""
    found: list[str] = []
    monkeypatch.setattr(streams, "report", found.append)
    return found


def plus(number: int) -> str:
    return f"def f(x):\n    y = x + {number}\n    return y\n"


@pytest.mark.parametrize("selector", ["f > y", "/a_notebook/f > y"])
def test_a_function_that_is_defined_anew_is_watched_at_once(
    home: ModuleType, cell: Cell, told: list[str], selector: str
) -> None:
    cell(plus(1))
    with probing(selector, env=vars(home)).values() as seen:
        assert home.f(0) == 1
        cell(plus(10) + "r = f(0)\n")
        assert home.r == 10
        cell(plus(100))
        assert home.f(0) == 100
    assert home.f(0) == 100
    assert (seen, told) == ([{"y": 1}, {"y": 10}, {"y": 100}], [])


def test_the_new_function_has_its_own_code_when_the_probe_has_left(
    home: ModuleType, cell: Cell
) -> None:
    cell(plus(1))
    with probing("f > y", env=vars(home)) as probe:
        probe.subscribe(lambda event: None)
        cell(plus(10) + "code = f.__code__\n")
        before = home.code
        assert home.f.__code__ is before
    assert home.f.__code__ is not before
    assert home.f.__code__ == compile(plus(10), home.f.__code__.co_filename, "exec").co_consts[0]


def test_a_new_version_without_the_variable_is_told(
    home: ModuleType, cell: Cell, told: list[str]
) -> None:
    cell(plus(1))
    with probing("f > y", env=vars(home)).values() as seen:
        cell("def f(x):\n    z = x\n    return z\n")
        assert home.f(1) == 1
    assert seen == []
    assert len(told) == 1
    assert "has no variable 'y'.\n  Its variables: x, z." in told[0]


def test_a_new_version_without_source_is_told(
    home: ModuleType, cell: Cell, told: list[str]
) -> None:
    cell(plus(1))
    with probing("f > y", env=vars(home)).values() as seen:
        # not "<string>": python 3.13 keeps the text of ``python -c`` under that name
        exec(compile("def f(x):\n    y = x\n    return y\n", "<made>", "exec"), vars(home))
        home.f(1)
    assert seen == []
    assert len(told) == 1
    assert (
        "f (<made>:1) was defined while the probe was on, and is not watched: it cannot be probed: its source is not there"
        in told[0]
    )


def test_a_function_that_somebody_still_holds_is_found_out_at_the_end(
    home: ModuleType, cell: Cell, told: list[str]
) -> None:
    cell(plus(1))
    held = home.f
    with probing("f > y", env=vars(home)).values() as seen:
        cell(plus(10))
        held(0)
        home.f(0)
    assert seen == [{"y": 1}]
    assert len(told) == 1
    assert "was defined while the probe was on, and is not watched." in told[0]


def test_a_class_of_an_earlier_cell_that_is_not_freed_yet_is_found_out_at_the_end(
    home: ModuleType, cell: Cell, told: list[str]
) -> None:
    cell("class K:\n    def g(self, x):\n        y = x\n")
    gc.disable()  # the old class is garbage, but in a circle
    try:
        with probing("K.g > y", env=vars(home)).values() as seen:
            cell("class K:\n    def g(self, x):\n        y = x + 1\n")
            home.K().g(1)
    finally:
        gc.enable()
    assert seen == []
    assert len(told) == 1
    assert "was defined while the probe was on, and is not watched." in told[0]


def test_a_name_that_is_given_to_another_thing_is_left_alone(
    home: ModuleType, cell: Cell, told: list[str]
) -> None:
    cell(plus(1))
    with probing("f > y", env=vars(home)):
        home.f = len
    assert told == []
    cell(plus(1))
    with probing("f > y", env=vars(home)):
        del home.f
    assert told == []


# What functions make

MAKE = """
def make(step):
    one = lambda n: n; short = lambda n: (s := n + step)
    def add(n):
        s = n + step
        return s
    return {"add": add, "short": short}
"""


@pytest.mark.parametrize("kind", ["add", "short"])
def test_what_was_made_before_the_probe_is_watched_lambdas_too(
    home: ModuleType, cell: Cell, kind: str
) -> None:
    cell(MAKE)
    before = home.make(1)[kind]
    code = before.__code__
    with probing(f"/a_notebook/make/{kind} > s").values() as seen:
        before(1)
    before(1)
    assert seen == [{"s": 2}]
    assert before.__code__ is code


@pytest.mark.parametrize("kind", ["add", "short"])
@pytest.mark.parametrize("first_leaves_first", [True, False])
def test_two_probes_see_all_that_a_function_has_made(
    home: ModuleType, cell: Cell, kind: str, first_leaves_first: bool
) -> None:
    cell(MAKE)
    selector = f"/a_notebook/make/{kind} > s"
    made = [home.make(1)[kind]]
    code = made[0].__code__
    one, two = probing(selector), probing(selector)
    events: dict[str, list[int]] = {"one": [], "two": []}
    one.subscribe(lambda event: events["one"].append(event["s"]))
    two.subscribe(lambda event: events["two"].append(event["s"]))

    def call_all() -> dict[str, list[int]]:
        for taken in events.values():
            taken.clear()
        for function in made:
            function(1)
        return {name: list(taken) for name, taken in events.items()}

    one.__enter__()
    made.append(home.make(2)[kind])
    two.__enter__()
    made.append(home.make(3)[kind])
    assert call_all() == {"one": [2, 3, 4], "two": [2, 3, 4]}
    (one if first_leaves_first else two).__exit__(None, None, None)
    assert call_all() == {
        "one": [] if first_leaves_first else [2, 3, 4],
        "two": [2, 3, 4] if first_leaves_first else [],
    }
    (two if first_leaves_first else one).__exit__(None, None, None)
    assert call_all() == {"one": [], "two": []}
    assert all(function.__code__ is code for function in made)


def test_what_was_made_while_nobody_listened_is_watched_too(home: ModuleType, cell: Cell) -> None:
    cell(MAKE)
    seen: list[Any] = []
    with probing("/a_notebook/make/add > s") as probe:
        early = home.make(1)["add"]
        probe.subscribe(seen.append)
        early(1)
    assert seen == [{"s": 2}]


def test_a_later_probe_costs_an_earlier_one_nothing_on_functions_of_the_script(
    place: Place,
) -> None:
    place.write(
        main="""
        def now(f): return f
        print("start")
        @now
        def f(n):
            x = n
            y = n + 1
        @now
        def make(step):
            z = step
            def add(n): s = n + step
            return add
        def turn(): pass
        for n in range(3):
            turn()
            f(n)
            make(1)(n)
        """,
        voirfile="""
        from voirkit import probing
        def instrument_x(ov):
            yield ov.phases.init
            ov.probe("//f > x", "//make/add > s").subscribe(lambda e: print("early", e))
            late = probing("//f > y", "//make > z")
            late.subscribe(lambda e: print("late", e))
            turns = iter([lambda: None, late.__enter__, lambda: late.__exit__(None, None, None)])
            ov.probe("//turn > #enter").subscribe(lambda e: next(turns)() and None)
        """,
    )
    done = place.voirkit("main.py")
    early = [
        "early {'x': 0}",
        "early {'s': 1}",
        "early {'x': 1}",
        "early {'s': 2}",
        "early {'x': 2}",
        "early {'s': 3}",
    ]
    assert [line for line in done.out.splitlines() if line.startswith("early")] == early
    assert [line for line in done.out.splitlines() if line.startswith("late")] == [
        "late {'y': 2}",
        "late {'z': 1}",
    ]
    assert "not watched" not in done.err


def test_a_lambda_that_raised_is_not_around_later_calls() -> None:
    def inner(x: int) -> int:
        y = x
        return y

    fails = lambda n: inner(n) / 0  # noqa: E731 -- a lambda is what this is about

    def other(n: int) -> None:
        inner(n)

    def drive() -> None:
        for n in range(200):  # so that a frame gets the place of another that is gone
            with pytest.raises(ZeroDivisionError):
                fails(n)
            other(-1)

    with probing("fails(n) > inner > y").values() as seen:
        drive()
    assert seen == [{"n": n, "y": n} for n in range(200)]
