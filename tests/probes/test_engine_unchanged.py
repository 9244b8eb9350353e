# ruff: noqa: F811, PT017 -- programs to watch: their variables are what matters
"""The engine: a probed function does what it did, and is what it was when the probe has left."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import weakref
from typing import Any

import pytest

from voirkit import SelectorError, probing


class Thing:
    """Something with a life to watch."""


def unpacks(t: Any) -> Any:
    a, (b, *c) = t
    return a, b, c


def handles(n: int) -> Any:
    e = "before"
    try:
        raise ValueError(n)
    except ValueError as e:
        kept = e.args
    return kept, "e" in locals()


def counts() -> Any:
    total = 0

    def hit(n: int) -> int:
        nonlocal total
        total += n
        return total

    return hit


def fails(n: int) -> int:
    x = n
    for i in range(2):
        y = 1 // (n - i)
    return x + y


def frees(n: int) -> bool:
    thing = Thing()
    alive = weakref.ref(thing)
    del thing
    gone = alive() is None
    return gone


def names(n: int, *rest: int) -> Any:
    x = n
    with open(__file__) as file:
        line = file.name == __file__
    return sorted(locals()), x, line


def matches(value: Any) -> Any:
    match value:
        case [first, *others] if first:
            return first, others
        case {"k": inner, **more}:
            return inner, more
        case other:
            return other


class Base:
    def method(self, n: int) -> Any:
        return n


class Derived(Base):
    def method(self, n: int) -> Any:
        got = super().method(n)
        return got, __class__.__name__  # type: ignore[name-defined]


PROGRAMS = {
    "unpacking": (unpacks, lambda: [unpacks(iter((1, (2, 3)))), unpacks((1, [2]))]),
    "except as": (handles, lambda: handles(1)),
    "nonlocal": (counts(), None),
    "locals": (names, lambda: names(1, 2)),
    "match": (
        matches,
        lambda: [matches([1, 2]), matches([0]), matches({"k": 1, "z": 2}), matches(5)],
    ),
    "super": (Derived.method, lambda: Derived().method(1)),
    "destructors": (frees, lambda: frees(1)),
}
SELECTORS = ["f > $x", "f > #enter", "f > #exit", "f > #error", "f() as r", "f($x)", "f > n"]


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_probed_function_does_what_it_did(program: str, selector: str) -> None:
    function, drive = PROGRAMS[program]
    code = function.__code__
    if drive is None:
        function = counts()
        code = function.__code__

        def drive() -> Any:
            return function(1) - function(1)

    if (program, selector) == ("destructors", "f($x)"):
        pytest.skip("a total has all values at the end, so it keeps them till then")
    plain = drive()
    try:
        with probing(selector, env={"f": function}, raw=True) as probe:
            probe.subscribe(lambda event: None)
            assert function.__code__ is not code
            assert drive() == plain
    except SelectorError as error:
        assert "no variable 'n'" in str(error)
    assert function.__code__ is code


@pytest.mark.parametrize(
    "selector", [*SELECTORS, "f > #endloop_i", "f(y) > #endloop_i", "f(i, y) > #exit"]
)
def test_a_traceback_has_the_lines_it_had(selector: str) -> None:
    def lines() -> list[tuple[str, int | None]]:
        try:
            fails(1)
        except ZeroDivisionError as error:
            assert error.__context__ is None
            return [
                (frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)
            ]
        raise AssertionError

    plain = lines()
    with probing(selector, env={"f": fails}, raw=True) as probe:
        probe.subscribe(lambda event: None)
        assert lines()[1:] == plain[1:]
        assert len(lines()) == len(plain)


def test_what_is_captured_is_not_kept() -> None:
    def outer(n: int) -> bool:
        thing = Thing()
        alive = weakref.ref(thing)
        inner(thing)
        del thing
        return alive() is None

    def inner(what: Any) -> int:
        z = 1
        return z

    env = {"outer": outer, "inner": inner}
    with probing("outer(thing) > inner(what) > z", env=env) as probe:
        probe.subscribe(lambda event: None)
        assert outer(1)


def test_probes_leave_in_any_order_and_from_any_thread() -> None:
    code = fails.__code__
    probes = [
        probing("fails > x", env=globals()),
        probing("fails > y", env=globals()),
        probing("fails > i", env=globals()),
    ]
    seen: list[Any] = []
    for probe in probes:
        probe.subscribe(seen.append)
        probe.activate()
    for probe in (probes[1], probes[0]):
        thread = threading.Thread(target=probe.deactivate)
        thread.start()
        thread.join()
    fails(5)
    assert seen == [{"i": 0}, {"i": 1}]
    probes[2].deactivate()
    assert fails.__code__ is code


def test_a_probe_that_can_not_be_put_on_leaves_no_trace() -> None:
    code = fails.__code__
    with (
        pytest.raises(SelectorError, match="zz"),
        probing("fails > x", "fails > zz", env=globals()),
    ):
        pass
    assert fails.__code__ is code


def test_a_function_that_runs_when_its_probe_leaves_goes_on() -> None:
    def numbers() -> Any:
        n = 0
        while True:
            n += 1
            yield n

    seen: list[Any] = []
    probe = probing("numbers > n", env={"numbers": numbers})
    probe.subscribe(seen.append)
    probe.activate()
    running = numbers()
    next(running)
    probe.deactivate()
    assert next(running) == 2
    assert seen == [{"n": 0}, {"n": 1}]


def test_a_probe_keeps_no_function_alive() -> None:
    def made() -> int:
        x = 1
        return x

    alive = weakref.ref(made)
    probe = probing("made > x", env={"made": made})
    probe.subscribe(lambda event: None)
    probe.activate()
    del made
    gc.collect()
    assert alive() is None
    probe.deactivate()


@pytest.mark.parametrize("slots", [(), ("x",), ("x", "__weakref__")])
def test_a_probe_on_a_bound_method_keeps_no_object_alive(slots: tuple[str, ...]) -> None:
    gone: list[int] = []

    class C:
        if slots:
            __slots__ = slots

        def __del__(self) -> None:
            gone.append(1)

        def m(self, k: int) -> int:
            x = k
            return x

    o, other = C(), C()
    seen: list[int] = []
    with probing("o.m > x") as probe:
        probe.subscribe(lambda event: seen.append(event["x"]))
        o.m(1)
        other.m(2)
        del o
        assert gone == [1]
    assert seen == [1]


def test_a_program_at_its_recursion_limit_does_not_silence_the_probe() -> None:
    def deep(n: int) -> int:
        m = n + 1
        return deep(m)

    seen = 0

    def count(event: Any) -> None:
        nonlocal seen
        seen += 1

    with probing("deep > m", env={"deep": deep}) as probe:
        probe.subscribe(count)
        for _ in range(2):
            before = seen
            with pytest.raises(RecursionError):
                deep(0)
            assert seen > before


def test_ptera_is_not_imported() -> None:
    assert "voirkit.probes.engine" in sys.modules
    import subprocess

    code = "import sys; from voirkit import probing; probing('f > x'); print([m for m in sys.modules if m.startswith('ptera')])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
