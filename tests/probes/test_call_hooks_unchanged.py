"""What a program could notice of being entered, and does not: each test does the same with and without."""

from __future__ import annotations

import copy
import cProfile
import inspect
import io
import os
import pickle
import pstats
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from conftest import needs_pickler

from tests.probes.hooked import Told, run, told
from voirkit.probes import probing
from voirkit.probes.around import Around

pytest.importorskip("voirkit.probes._entry", reason="voirkit was installed without a C compiler")


def scale(x: int, by: int = 2, *, plus: int = 0) -> int:
    """Documented."""
    if by == 0:
        raise ValueError(f"{x} by nothing")
    return x * by + plus


def warns() -> int:
    warnings.warn("look at your caller", UserWarning, stacklevel=2)
    return sys._getframe(1).f_lineno


def recurses(n: int) -> int:
    return 0 if n == 0 else 1 + recurses(n - 1)


def stack() -> list[str]:
    return [frame.function for frame in inspect.stack()[:3]]


def own_locals(a: int, *b: int, **c: int) -> list[str]:
    d = a
    return [*locals(), *sys._getframe().f_locals] if d else []


class Base:
    def who(self, n: int) -> str:
        return f"base {n}"


class Derived(Base):
    def who(self, n: int) -> str:
        def inner() -> int:
            nonlocal n
            n += 1
            return n

        return super().who(inner()) + __class__.__name__  # type: ignore[name-defined]


@pytest.mark.parametrize(
    "what",
    [
        "__name__",
        "__qualname__",
        "__module__",
        "__doc__",
        "__defaults__",
        "__kwdefaults__",
        "__closure__",
    ],
)
def test_a_function_says_the_same_of_itself(what: str):
    before = getattr(scale, what)
    with told(scale):
        assert getattr(scale, what) is before


@pytest.mark.parametrize("what", [
    "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_varnames", "co_names", "co_freevars", "co_cellvars", "co_flags",
    "co_filename", "co_name", "co_firstlineno", "co_nlocals",
])  # fmt: skip
def test_its_code_says_the_same(what: str):
    functions = [scale, own_locals, Derived.who]
    before = [getattr(function.__code__, what) for function in functions]
    with told(*functions):
        assert [getattr(function.__code__, what) for function in functions] == before


def test_signature_and_source_are_the_same():
    before = inspect.signature(scale), inspect.getsource(scale), inspect.getsourcelines(Derived.who)
    with told(scale, Derived.who):
        assert (
            inspect.signature(scale),
            inspect.getsource(scale),
            inspect.getsourcelines(Derived.who),
        ) == before


def test_identity_type_and_copies_are_the_same():
    before = type(scale), hash(scale), repr(scale), id(scale)
    with told(scale, str.upper):
        assert (type(scale), hash(scale), repr(scale), id(scale)) == before
        assert copy.deepcopy(scale) is scale
        assert "a".upper == "a".upper
        assert hash("a".upper) == hash("a".upper)
        assert str.upper.__get__("a")() == "A"
        assert "a".upper.__name__ == "upper"


def test_pickles_by_name_are_the_same():
    things: list[Any] = [scale, Derived.who, max, str.upper, "a".upper]
    before = [pickle.dumps(thing) for thing in things]
    with told(scale, Derived.who, max, str.upper):
        assert [pickle.dumps(thing) for thing in things] == before
        assert pickle.loads(before[0]) is scale


@pytest.mark.parametrize("pickler", ["cloudpickle", "dill"])
def test_pickles_by_value_run_in_another_process_as_without(pickler: str):
    needs_pickler(pickler)
    program = f"""
        import subprocess, sys, {pickler}
        from tests.probes.hooked import told
        def scale(x, by=2): return x * by
        with told(scale) as found:
            data = {pickler}.dumps(scale, **({{"recurse": True}} if {pickler!r} == "dill" else {{}}))
            print(scale(2), found.began())
        other = "import pickle, sys, {pickler}; f = {pickler}.loads(sys.stdin.buffer.read()); print(f(21), 'voirkit' in sys.modules)"
        print(subprocess.run([sys.executable, "-c", other], input=data, capture_output=True).stdout.decode())
    """
    assert run(program).split() == ["4", "1", "42", "False"]


def _error(function: Callable[..., Any], *args: Any) -> str:
    try:
        function(*args)
    except Exception:
        return traceback.format_exc()
    return ""


def test_tracebacks_are_the_same_also_of_exceptions_in_exceptions():
    def tries(n: int) -> None:
        try:
            scale(n, 0)
        except ValueError as exc:
            raise KeyError(n) from exc
        finally:
            scale(1)

    before = _error(tries, 5)
    with told(scale, tries) as found:
        assert _error(tries, 5) == before
        assert _error(max, None) == _error(max, None)
    assert found.began() == 2


def test_an_exception_being_handled_is_seen_as_without():
    def handled() -> Any:
        return sys.exc_info()[1], sys.exc_info()[0]

    def tries() -> Any:
        try:
            raise KeyError(1)
        except KeyError:
            return handled()

    with told(handled, tries):
        exc, kind = tries()
        assert kind is KeyError
        assert exc.__context__ is None
        assert handled() == (None, None)


def test_warnings_and_frames_name_the_caller():
    with told(warns, stack) as found, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        line = warns()
        names = stack()
    assert [(record.filename, record.lineno) for record in seen] == [(__file__, line)]
    assert names[:2] == ["stack", "test_warnings_and_frames_name_the_caller"]
    assert found.began() == 1


def test_locals_closures_and_super_are_the_same():
    before = own_locals(1, 2, z=3), Derived().who(1)
    with told(own_locals, Derived.who, Base.who) as found:
        assert (own_locals(1, 2, z=3), Derived().who(1)) == before
    assert [event[:2] for event in found.events] == [
        (0, "begin"),
        (0, "end"),
        (1, "begin"),
        (2, "begin"),
        (2, "end"),
        (1, "end"),
    ]


def _depth() -> int:
    n = 0

    def down() -> None:
        nonlocal n
        n += 1
        down()

    def enter(function: Any) -> Any:
        with told(function):
            return _error(function)

    error, plain = enter(down), n
    n = 0
    assert _error(down).splitlines()[-1] == error.splitlines()[-1]
    return plain - n


def test_recursion_ends_where_it_did():
    assert abs(_depth()) <= 3  # the frames of the test itself


def test_recursion_as_deep_as_the_program_asks_for_works():
    program = """
        import sys
        from tests.probes.hooked import told
        def down(n): return 0 if n == 0 else 1 + down(n - 1)
        sys.setrecursionlimit(50000)
        with told(down) as found:
            print(down(9000), found.began() >= 300, sorted(found.entry.skipped.values()))
        print(down(9000))
    """
    said = run(program).splitlines()
    by_pointer = sys.version_info >= (3, 12)
    assert (
        said[0]
        == f"9000 True {['calls itself too deeply, and is left alone since it was seen to'] if by_pointer else []}"
    )
    assert said[1] == "9000"


def _events_of(set_hook: Callable[[Any], None], function: Callable[[], Any]) -> list[Any]:
    seen: list[Any] = []

    def note(frame: Any, event: str, arg: Any) -> Any:
        name = getattr(arg, "__name__", None) if event.startswith("c_") else None
        seen.append((event, frame.f_code.co_name, frame.f_lineno, name))
        return note

    set_hook(note)
    try:
        function()
    finally:
        set_hook(None)
    return [event for event in seen if event[1] != "_events_of"]


def _work() -> None:
    for n in range(2):
        scale(n)
        scale(n, plus=1)
    try:
        scale(1, 0)
    except ValueError:
        max([1, 2])
    Derived().who(1)
    "a".upper()


@pytest.mark.parametrize("hook", ["settrace", "setprofile"])
def test_a_debugger_or_profiler_of_the_program_sees_the_same(hook: str):
    before = _events_of(getattr(sys, hook), _work)
    found = Told(scale, Derived.who, Base.who, _work, max, str.upper)
    found.entry.on()
    during = _events_of(getattr(sys, hook), _work)
    found.entry.remove()
    assert during == before
    assert found.began() == 5


def _profile() -> str:
    profiler = cProfile.Profile()
    profiler.runcall(_work)
    out = io.StringIO()
    pstats.Stats(profiler, stream=out).strip_dirs().sort_stats("name").print_stats()
    rows = [line.split() for line in out.getvalue().splitlines()]
    return "\n".join(
        sorted(f"{row[0]} {row[-1]}" for row in rows if row and row[0].split("/")[0].isdigit())
    )


def test_cProfile_counts_the_same():
    before = _profile()
    with told(scale, Derived.who, Base.who, _work, max, str.upper) as found:
        assert _profile() == before
    assert found.began() == 5


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is of python 3.12")
def test_sys_monitoring_sees_the_same():
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    tool, kinds = monitoring.PROFILER_ID, monitoring.events

    def watched() -> list[Any]:
        seen: list[Any] = []
        monitoring.use_tool_id(tool, "program")
        for kind in (kinds.PY_START, kinds.PY_RETURN, kinds.PY_UNWIND, kinds.RAISE):
            monitoring.register_callback(
                tool, kind, lambda code, *rest, kind=kind: seen.append((kind, code.co_name))
            )
        monitoring.set_events(
            tool, kinds.PY_START | kinds.PY_RETURN | kinds.PY_UNWIND | kinds.RAISE
        )
        _work()
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
        return seen

    before = watched()
    with told(scale, Derived.who, _work) as found:
        assert watched() == before
    assert found.began() == 5


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no such signals")
def test_a_signal_that_raises_in_a_function_comes_out_of_it():
    def waits() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        while True:
            pass

    def ring(*_: object) -> None:
        raise TimeoutError("rang")

    old = signal.signal(signal.SIGALRM, ring)
    try:
        with told(waits) as found:
            assert _error(waits).endswith("TimeoutError: rang\n")
    finally:
        signal.signal(signal.SIGALRM, old)
    assert [event[1] for event in found.events] == ["begin", "failed"]


def test_a_thread_that_ends_within_calls_harms_nobody():
    def ends(n: int) -> None:
        if n == 0:
            raise SystemExit
        ends(n - 1)

    def run() -> None:
        with pytest.raises(SystemExit):
            ends(100)

    with told(ends) as found:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        ends_here = _error(lambda: scale(1, 0))
    assert "by nothing" in ends_here
    assert [event[1] for event in found.events] == ["begin"] * 101 + ["failed"] * 101


def test_processes_that_are_spawned_get_functions_by_name():
    program = """
        import concurrent.futures, multiprocessing, shutil
        from tests.probes.hooked import told
        if __name__ == "__main__":
            with told(shutil.which) as found, concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                print(pool.submit(shutil.which, "no such program").result(), found.began())
    """
    path = os.path.join(os.path.dirname(__file__), "..", "..")
    assert subprocess.run([sys.executable, "-c", f"import textwrap; exec(textwrap.dedent({program!r}))"], cwd=path, capture_output=True, text=True, timeout=120).stdout.split() == ["None", "0"]  # fmt: skip


class Here(threading.local):
    inside = 0

    def __deepcopy__(self, memo: object) -> Here:
        return self


def _around(log: list[Any]) -> Around:
    here = Here()

    def enter(*values: object) -> int:
        log.append(("enter", *values))
        return 1

    def leave(began: int, was: int, *values: object) -> None:
        here.inside = was
        log.append(("leave", *values[1:]))

    return Around(here, 0, enter, leave, ("x",), True)


@pytest.mark.parametrize("first_on", ["entry", "around"])
@pytest.mark.parametrize("first_off", ["entry", "around"])
def test_it_goes_together_with_what_stands_around_a_function_in_any_order(
    first_on: str, first_off: str
):
    from voirkit.intercept import Patches

    own, log, patches = scale.__code__, [], Patches()  # type: ignore[var-annotated]
    found, around = Told(scale), _around(log)
    on = {"entry": found.entry.on, "around": lambda: patches.around("scale", scale, around)}
    off = {"entry": found.entry.off, "around": patches.remove}
    for name in sorted(on, key=lambda name: name != first_on):
        on[name]()
    assert scale(3) == 6
    assert (log, found.began()) == ([("enter", 3), ("leave", 6)], 1)
    names = sorted(on, key=lambda name: name != first_off)
    off[names[0]]()
    assert scale(4) == 8
    assert (len(log), found.began()) == ((2, 2) if first_off == "around" else (4, 1))
    off[names[1]]()
    assert scale(5) == 10
    assert (len(log), found.began()) == ((2, 2) if first_off == "around" else (4, 1))
    assert scale.__code__ is own
    assert set(patches.table.values()) <= {""}
    found.entry.remove()


@pytest.mark.parametrize("probe_first", [True, False])
@pytest.mark.parametrize("probe_ends_first", [True, False])
def test_it_goes_together_with_probes_in_any_order(probe_first: bool, probe_ends_first: bool):
    own = scale.__code__
    found = Told(scale)
    probe = probing("scale > x", env=globals())
    seen: list[Any] = []
    if probe_first:
        seen = probe.__enter__().accum()
        found.entry.on()
    else:
        found.entry.on()
        seen = probe.__enter__().accum()
    scale(3)
    assert (seen, found.began()) == ([{"x": 3}], 1)
    if probe_ends_first:
        probe.__exit__(None, None, None)
        scale(4)
        found.entry.off()
    else:
        found.entry.off()
        scale(4)
        probe.__exit__(None, None, None)
    scale(5)
    assert (len(seen), found.began()) == ((1, 2) if probe_ends_first else (2, 1))
    assert scale.__code__ is own
    found.entry.remove()
