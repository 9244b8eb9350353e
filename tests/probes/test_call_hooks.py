"""Ways into functions: each call is told, whoever makes it and however often it was made before; off means as before."""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
from types import FunctionType
from typing import Any

import pytest

from tests.probes.hooked import Told, told

pytest.importorskip("voirkit.probes._entry", reason="voirkit was installed without a C compiler")


@pytest.fixture(autouse=True)
def _nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have had torch compile something, after which functions keep the code that they have."""
    monkeypatch.setattr("voirkit.probes.call_hooks._torch_compile.is_used", False)


def plainly(a: Any, b: Any = 2, *more: Any, key: Any = None, **others: Any) -> Any:
    return (a, b, more, key, others)


def fails(a: int) -> float:
    return 1 / a


class Thing:
    def __init__(self, value: int) -> None:
        self.value = value

    def __getitem__(self, index: int) -> int:
        return index

    def __call__(self, other: int) -> int:
        return self.value + other

    def __iter__(self) -> Any:
        return iter((1, 2))

    def __len__(self) -> int:
        return 3

    def __enter__(self) -> int:
        return 1

    def __exit__(self, *_: object) -> None:
        pass

    def __add__(self, other: int) -> int:
        return self.value + other

    def __getattr__(self, name: str) -> str:
        return name

    @property
    def shown(self) -> int:
        return self.value

    @classmethod
    def made(cls, value: int) -> int:
        return value

    @staticmethod
    def kept(value: int) -> int:
        return value

    def method(self, value: int = 1) -> int:
        return value


def test_a_call_is_told_with_its_arguments_and_its_value():
    with told(plainly) as found:
        value = plainly(1, 7, 8, key=3, z=4)
    assert value == (1, 7, (8,), 3, {"z": 4})
    assert found.events == [(0, "begin", (1, 7, 8), {"key": 3, "z": 4}), (0, "end", value)]


def test_what_a_function_gives_itself_is_no_argument():
    with told(plainly) as found:
        plainly(1)
        plainly(1, key=3)
    assert [event[2:] for event in found.events if event[1] == "begin"] == [
        ((1,), {}),
        ((1,), {"key": 3}),
    ]


def test_an_exception_is_told_and_goes_on():
    with told(fails) as found, pytest.raises(ZeroDivisionError) as raised:
        fails(0)
    assert found.events == [(0, "begin", (0,), {}), (0, "failed", raised.value)]


def test_calls_within_calls_are_told_in_their_order():
    def outer() -> Any:
        try:
            fails(0)
        except ZeroDivisionError:
            return plainly(1)

    with told(outer, fails, plainly) as found:
        outer()
    assert [event[:2] for event in found.events] == [
        (0, "begin"), (1, "begin"), (1, "failed"), (2, "begin"), (2, "end"), (0, "end"),
    ]  # fmt: skip


def test_off_is_as_before_and_on_again_tells_again():
    code = plainly.__code__
    found = Told(plainly)
    plainly(1)
    found.entry.on()
    plainly(2)
    found.entry.off()
    assert plainly.__code__ is code
    plainly(3)
    found.entry.on()
    plainly(4)
    found.entry.remove()
    assert plainly.__code__ is code
    plainly(5)
    assert [event[2] for event in found.events if event[1] == "begin"] == [(2,), (4,)]


def test_methods_of_all_kinds_are_told():
    thing = Thing(1)
    functions = [
        Thing.method,
        Thing.made,
        Thing.__dict__["kept"],
        Thing.__dict__["shown"].fget,
        Thing.__getitem__,
        Thing.__call__,
    ]
    with told(*functions) as found:
        thing.method()
        Thing.made(1)
        thing.kept(2)
        assert thing.shown == 1
        assert thing[5] == 5
        thing(1)
    assert [found.began(number) for number in range(6)] == [1] * 6


def _sites(thing: Thing, n: int) -> None:
    bound, partial = thing.method, functools.partial(thing.method, 2)
    for _ in range(n):
        plainly(1)
        plainly(*(1, 2), **{"key": 3})
        plainly(1, key=2)
        thing.method()
        thing.method(2)
        bound()
        partial()
        Thing(1)
        thing[0]
        thing(1)
        list(thing)
        len(thing)
        with thing:
            pass
        thing + 1
        _ = thing.anything
        _ = thing.shown
        list(map(thing.method, [1]))
        sorted([1], key=thing.method)


def test_lines_that_ran_often_before_are_told_too():
    of = Thing.__dict__
    names = (
        "__init__",
        "__getitem__",
        "__call__",
        "__iter__",
        "__len__",
        "__enter__",
        "__add__",
        "__getattr__",
    )
    thing = Thing(1)
    _sites(thing, 2000)
    with told(plainly, Thing.method, *(of[name] for name in names), of["shown"].fget) as found:
        _sites(thing, 300)
    expected = {0: 900, 1: 1800, 2: 300, 5: 300, 6: 600, 8: 300}  # list() asks for the length
    assert {n: found.began(n) for n in range(11)} == dict.fromkeys(range(11), 300) | expected


def _builtin_sites(n: int) -> None:
    text, made = "a", ["b"]
    for _ in range(n):
        text.upper()  # METH_NOARGS
        text.join(made)  # METH_O
        text.split("a")  # METH_FASTCALL | METH_KEYWORDS
        text.startswith("a")  # METH_VARARGS or METH_FASTCALL
        text.format(1)  # METH_VARARGS | METH_KEYWORDS
        abs(1)  # METH_O
        sorted(made)  # METH_FASTCALL | METH_KEYWORDS
        max(1, 2)  # METH_VARARGS | METH_KEYWORDS, or METH_FASTCALL | METH_KEYWORDS
        divmod(1, 2)  # METH_FASTCALL
        text.encode("utf8", errors="strict")
        encode = text.encode  # as all but plain calls without keywords do on 3.10
        encode()
        getattr(text, "encode")(*("utf8",))  # noqa: B009


def test_functions_and_methods_of_C_are_told_wherever_they_are_called():
    functions = [
        str.upper,
        str.join,
        str.split,
        str.startswith,
        str.format,
        abs,
        sorted,
        max,
        divmod,
        str.encode,
    ]
    _builtin_sites(2000)
    with told(*functions) as found:
        _builtin_sites(300)
    assert [found.began(number) for number in range(10)] == [300] * 9 + [900]
    assert not found.entry.skipped


def test_a_function_of_C_is_called_with_what_it_was_given():
    with told(max, str.encode) as found:
        assert max(3, 4, key=lambda n: -n) == 3
        assert "a".encode(encoding="ascii") == b"a"
        with pytest.raises(TypeError, match="not iterable"):
            max(1)
    assert [event[1] for event in found.events] == ["begin", "end"] * 2 + ["begin", "failed"]
    assert found.events[2][2:] == (("a",), {"encoding": "ascii"})


def test_what_python_calls_without_looking_is_skipped_and_said():
    found = Told(len, dict, "text")
    skipped = found.entry.skipped
    assert (0 in skipped) == (sys.version_info >= (3, 11))
    assert skipped[1] == "is a type, which is called in a way of its own"
    assert skipped[2] == "is a str, which is called in a way of its own"
    found.entry.remove()


def test_a_generator_gives_the_same_and_its_making_is_told_or_it_is_skipped():
    def counts(n: int) -> Any:
        yield from range(n)

    with told(counts) as found:
        assert list(counts(3)) == [0, 1, 2]
    if sys.version_info[:2] == (3, 11):
        assert found.events == []
        assert found.entry.skipped == {
            0: "is a generator or async, which is entered later than it is called"
        }
    else:
        assert [event[1] for event in found.events] == ["begin", "end"]


def test_every_thread_is_told():
    with told(plainly) as found:
        threads = [threading.Thread(target=plainly, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(event[2] for event in found.events if event[1] == "begin") == [
        (n,) for n in range(8)
    ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_is_told():
    with told(plainly) as found:
        child = os.fork()
        if child == 0:
            plainly(1)
            os._exit(len(found.events))
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2


def test_nothing_is_told_inside_of_deaf_functions_on_their_thread():
    inside = threading.Event()
    go_on = threading.Event()

    def compiles() -> None:
        inside.set()
        plainly(1)
        go_on.wait(60)

    with told(plainly, compiles) as found:
        found.entry.mute([compiles, fails])
        thread = threading.Thread(target=compiles)
        thread.start()
        inside.wait(60)
        plainly(2)
        go_on.set()
        thread.join()
        with pytest.raises(ZeroDivisionError):
            fails(0)
        plainly(3)
    assert [event[0:3] for event in found.events if event[1] == "begin"] == [
        (1, "begin", ()),
        (0, "begin", (2,)),
        (0, "begin", (3,)),
    ]


def test_what_the_hooks_call_is_not_told():
    class Calls(Told):
        def _begin(self, *event: Any) -> bool:
            plainly("from a hook")
            return super()._begin(*event)

    found = Calls(plainly)
    found.entry.on()
    plainly(1)
    found.entry.remove()
    assert found.began() == 1


def test_hooks_may_switch_off_and_on_and_an_open_call_is_told_to_its_end():
    class Once(Told):
        def _begin(self, *event: Any) -> bool:
            self.entry.off()
            return super()._begin(*event)

    def outer() -> None:
        plainly(1)

    found = Once(plainly, outer)
    found.entry.on()
    outer()
    outer()
    found.entry.remove()
    assert [event[:2] for event in found.events] == [(1, "begin"), (1, "end")]


def test_hooks_that_fail_are_told_once_and_left_alone(monkeypatch: pytest.MonkeyPatch):
    class Broken(Told):
        def _begin(self, *event: Any) -> bool:
            raise ValueError("a bug of an instrument")

    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: seen.append(raised.exc_value))
    found = Broken(plainly)
    found.entry.on()
    assert [plainly(1)[0], plainly(2)[0]] == [1, 2]
    found.entry.remove()
    assert [str(exc) for exc in seen] == ["a bug of an instrument"]


def test_functions_are_not_kept_alive_and_others_in_their_place_are_not_mistaken():
    made = [FunctionType(fails.__code__, globals(), f"made_{n}") for n in range(200)]
    with told(*made) as found:
        made[7](1)
        del made
        gc.collect()
        others = [FunctionType(fails.__code__, globals(), f"other_{n}") for n in range(200)]
        for other in others:
            other(2)
        found.entry.off()
        found.entry.on()
        again = FunctionType(fails.__code__, globals(), "again")
        found.entry.add({1000: again})
        again(3)
    assert [event[0] for event in found.events if event[1] == "begin"] == [7, 1000]


def test_more_functions_may_come_while_it_is_on():
    with told(plainly) as found:
        found.entry.add({5: fails})
        fails(1)
        found.entry.add({6: fails})
    assert [event[0] for event in found.events] == [5, 5]
    assert found.entry.skipped == {6: "is watched under another number"}


def test_several_who_watch_the_same_function_are_each_told_while_they_are_on():
    code = plainly.__code__
    one, other = Told(plainly, max), Told(fails, plainly, max)
    for who, switch in (
        (one, "on"),
        (other, "on"),
        (one, "off"),
        (one, "on"),
        (other, "remove"),
        (one, "remove"),
    ):
        getattr(who.entry, switch)()
        plainly(switch)
        max(1, 2)
    assert [event[2] for event in one.events if event[:2] == (0, "begin")] == [
        ("on",),
        ("on",),
        ("on",),
        ("remove",),
    ]
    assert [event[2] for event in other.events if event[:2] == (1, "begin")] == [
        ("on",),
        ("off",),
        ("on",),
    ]
    assert (one.began(1), other.began(2)) == (4, 3)
    assert plainly.__code__ is code


def test_some_may_be_switched_by_their_numbers():
    code = plainly.__code__
    with told(plainly, fails, max) as found:
        found.entry.off(n for n in (0, 2, 77))
        assert plainly.__code__ is code
        for _ in range(2):
            plainly(1)
            fails(1)
            max(1, 2)
            found.entry.on([0, 2])
    assert [found.began(n) for n in range(3)] == [1, 2, 1]


def test_code_that_the_program_puts_into_a_function_stays():
    def first() -> int:
        return 1

    def second() -> int:
        return 2

    def third() -> int:
        return 3

    found = Told(first)
    first.__code__ = second.__code__
    found.entry.on()
    assert first() == 2
    found.entry.off()
    assert first.__code__ is second.__code__
    found.entry.on()
    first.__code__ = third.__code__
    assert first() == 3
    found.entry.remove()
    assert first.__code__ is third.__code__
    assert found.events[:2] == [(0, "begin", (), {}), (0, "end", 2)]


def test_objects_of_later_classes_are_made_as_before():
    with told(Thing.__init__) as found:

        class Later(Thing):
            pass

        for _ in range(100):
            assert Later(3).value == 3
    assert found.began() > 0
    assert Later(4).value == 4
