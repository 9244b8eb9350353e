"""Something around the body of a function: the function stays itself, and what is around it sees each call, its end and its value."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import pytest

from voirkit.intercept import Patches
from voirkit.probes import probing
from voirkit.probes.around import ABSENT, Around
from voirkit.probes.source import NoSource


class Here(threading.local):
    inside = 0

    def __deepcopy__(self, memo: object) -> Here:
        return self


class Calls:
    """Notes what is around calls."""

    def __init__(
        self,
        passed: tuple[str, ...] = (),
        value: bool = True,
        most: int = 0,
        plain: tuple[str, ...] = (),
        left: tuple[str, ...] | None = None,
    ) -> None:
        here, self.log = Here(), []  # type: ignore[var-annotated]
        self.here, log = here, self.log

        def enter(*values: object) -> int:
            here.inside = 1
            log.append(("enter", *values))
            return 7

        def leave(began: int, was: int, *values: object) -> None:
            here.inside = was
            log.append(
                (
                    "leave",
                    began,
                    *values,
                    *([sys.exc_info()[0]] if values and values[-1] is ABSENT else []),
                )
            )

        self.around = Around(here, most, enter, leave, passed, value, plain, left)

    @contextmanager
    def put(self, *functions: Callable[..., Any]) -> Iterator[list[Any]]:
        before = [function.__code__ for function in functions]
        for function in functions:
            assert isinstance(function, FunctionType)
            function.__code__ = self.around.code(function)
        try:
            yield self.log
        finally:
            for function, code in zip(functions, before, strict=True):
                function.__code__ = code
            self.around.forget()


COUNT = 0


def plainly(x: int, *more: int, key: int = 3) -> int:
    """Adds."""
    if x < 0:
        raise ValueError(x)
    return x + sum(more) + key


def nothing(x: int) -> None:
    x += 1


def counts(x: int) -> int:
    if x:
        global COUNT
        COUNT += x
    return COUNT


def warns(level: int) -> None:
    warnings.warn("careful", stacklevel=level)


def recursive(n: int) -> int:
    return 0 if n == 0 else 1 + recursive(n - 1)


def nested(n: int) -> list[Callable[[], int]]:
    def inner() -> int:
        return n

    with warnings.catch_warnings():
        for _ in range(n):
            try:
                return [inner]
            finally:
                n += 1
    return []


class Base:
    def __init__(self, x: int = 0) -> None:
        self.__x = x

    def value(self) -> int:
        return self.__x


class Derived(Base):
    def value(self) -> int:
        return super().value() + 1


def generates() -> Iterator[int]:
    yield 1


async def later() -> int:
    return 1


def test_a_call_is_told_before_and_after_with_variables_and_value() -> None:
    with Calls(("x", "more")).put(plainly) as log:
        assert plainly(1, 2, key=4) == 7
    assert log == [("enter", 1, (2,)), ("leave", 7, 1, (2,), 7)]


def test_a_lambda_is_told_where_it_returns() -> None:
    first, second = (lambda x: 10 // x), (lambda x: [x for _ in range(2)])
    with Calls(("x",)).put(first, second) as log:
        assert (first(5), second(1)) == (2, [1, 1])
        assert first.__name__ == "<lambda>"
        with pytest.raises(ZeroDivisionError):
            first(0)
    assert log == [
        ("enter", 5),
        ("leave", 7, 5, 2),
        ("enter", 1),
        ("leave", 7, 1, [1, 1]),
        ("enter", 0),
    ]


def test_variables_that_the_body_deletes_are_told_before_alone() -> None:
    def deleting(x: int) -> int:
        y = x + 1
        del x
        return y

    with Calls(("x",), left=()).put(deleting) as log:
        assert deleting(1) == 2
    assert log == [("enter", 1), ("leave", 7, 2)]


def test_a_call_that_raises_has_no_value_and_the_exception_can_be_asked_for() -> None:
    with Calls().put(plainly) as log:
        try:
            raise KeyError("handled all the while")
        except KeyError:
            with pytest.raises(ValueError, match="-1"):
                plainly(-1)
            assert plainly(0) == 3
    assert log == [("enter",), ("leave", 7, ABSENT, ValueError), ("enter",), ("leave", 7, 3)]


def test_a_body_without_a_value_and_one_with_returns_in_other_statements() -> None:
    with Calls().put(nothing, nested) as log:
        nothing(1)
        assert nested(1)[0]() == 2
    assert log[1] == ("leave", 7, ABSENT, None)
    assert len(log) == 4


def test_calls_inside_of_a_call_are_left_alone() -> None:
    with Calls().put(recursive) as log:
        assert recursive(5) == 5
    assert log == [("enter",), ("leave", 7, 5)]


def test_more_than_one_depth_may_be_told() -> None:
    with Calls(most=1).put(recursive) as log:
        assert recursive(2) == 2
    assert [entry[0] for entry in log] == ["enter"] * 3 + ["leave"] * 3


def test_nothing_is_done_where_it_is_plain() -> None:
    with Calls(
        plain=("nowhere.asked()", "inspect.isfunction(print)", "inspect.isbuiltin(print)")
    ).put(plainly) as log:
        plainly(1)
    assert len(log) == 2
    with Calls(plain=("nowhere.asked()", "inspect.isbuiltin(print)")).put(plainly) as log:
        assert plainly(1) == 4
    assert log == []


def test_global_variables_closures_and_private_names() -> None:
    before = COUNT
    with Calls().put(counts, Derived.value, Base.value) as log:
        assert counts(2) == before + 2
        assert Derived(4).value() == 5
    assert len(log) == 4


def test_the_function_stays_itself() -> None:
    def looks() -> list[Any]:
        code = plainly.__code__
        return [
            plainly.__name__, plainly.__doc__, inspect.signature(plainly), plainly.__defaults__, plainly.__kwdefaults__, code.co_filename,
            code.co_firstlineno, code.co_name, code.co_freevars, inspect.getsource(plainly), pickle.dumps(plainly), copy.deepcopy(plainly) is plainly,
        ]  # fmt: skip

    before, code = looks(), plainly.__code__
    with Calls().put(plainly):
        assert looks() == before
    assert plainly.__code__ is code


def test_a_traceback_has_the_same_lines() -> None:
    def shown() -> str:
        try:
            plainly(-1)
        except ValueError:
            return traceback.format_exc()
        return ""

    before = shown()
    with Calls().put(plainly):
        assert shown() == before


def test_a_warning_names_the_same_line() -> None:
    def lines() -> list[int]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for level in (1, 2):
                warns(level)
        return [warning.lineno for warning in seen]

    before = lines()
    with Calls().put(warns):
        assert lines() == before


def test_code_can_be_copied_with_what_is_around_it() -> None:
    calls = Calls()
    constants = calls.around.code(plainly).co_consts
    copied = copy.deepcopy(constants)
    assert all(a is b or a == b for a, b in zip(constants, copied, strict=True))
    calls.around.forget()


def test_a_probe_on_the_same_function_works_and_goes() -> None:
    with Calls().put(plainly) as log:
        during = plainly.__code__
        with probing("plainly > x", env=globals()).values() as seen:
            plainly(5)
        assert [event["x"] for event in seen] == [5]
        assert plainly.__code__ is during
        plainly(6)
    assert log == [("enter",), ("leave", 7, 9)]


def test_several_stand_around_the_same_function_and_each_goes_by_itself() -> None:
    own = plainly.__code__
    first, second = Calls(("x",)), Calls(("x", "more"))
    with first.put(plainly) as inner, second.put(plainly) as outer:
        assert plainly(1, 2, key=4) == 7
        assert [len(inner), len(outer)] == [2, 2]
        plainly.__code__ = first.around.less(plainly)
        plainly(1, 2)
        assert [len(inner), len(outer)] == [2, 4]
        assert second.around.less(plainly) is own
    assert plainly.__code__ is own


@pytest.mark.parametrize("function", [generates, later])
def test_a_body_that_runs_later_is_refused(function: Any) -> None:
    with pytest.raises(NoSource, match="runs after its call"):
        Calls().around.code(function)


def test_a_function_without_source_is_refused() -> None:
    names: dict[str, Any] = {}
    exec("def made(x): return x", names)
    with pytest.raises(NoSource):
        Calls().around.code(names["made"])


def test_a_variable_that_is_not_there_is_refused() -> None:
    with pytest.raises(NoSource, match="has no variable y"):
        Calls(("y",)).around.code(plainly)


def test_a_function_whose_syntax_tree_python_has_lost_count_of_is_compiled_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled, attempts = Around.code, []  # type: ignore[var-annotated]

    def code(*arguments: Any) -> Any:
        attempts.append(arguments)
        if len(attempts) == 1:
            raise SystemError("AST constructor recursion depth mismatch")
        return compiled(*arguments)

    monkeypatch.setattr(Around, "code", code)
    patches = Patches()
    assert patches.around("plainly", plainly, Calls().around)
    assert (len(attempts), patches.table) == (2, {"plainly": ""})
    patches.remove()


def test_no_garbage_is_collected_while_a_function_is_compiled_again() -> None:
    collected: list[str] = []
    patches, thresholds = Patches(), gc.get_threshold()

    def notice(phase: str, _: object) -> None:
        collected.append(phase)

    gc.set_threshold(50)
    gc.collect()
    gc.callbacks.append(notice)
    try:
        patches.around("plainly", plainly, Calls().around)
        seen = list(collected)
    finally:
        gc.callbacks.remove(notice)
        gc.set_threshold(*thresholds)
        patches.remove()
    assert gc.isenabled()
    assert len(seen) <= 4, "a tree has thousands of objects"
