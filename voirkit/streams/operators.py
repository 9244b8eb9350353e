"""The operators that a training loop's streams use at every step, as plain functions from one subscriber to another.

They do what giving's operators of the same names do (0.4.3), without reactivex, whose observers cost a microsecond
each.  A stream takes these where nothing but them stands between it and a subscriber.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from types import FunctionType
from typing import Any

from giving.utils import lax_function

Next = Callable[[Any], None]
Operator = Callable[[Next], Next]


def map_(function: Callable[[Any], Any]) -> Operator:
    """Each element through a function."""

    def operator(then: Next) -> Next:
        return lambda element: then(function(element))

    return operator


def filter_(function: Callable[[Any], Any]) -> Operator:
    """The elements for which a function holds."""

    def operator(then: Next) -> Next:
        def on_next(element: Any) -> None:
            if function(element):
                then(element)

        return on_next

    return operator


def _equals(expected: Any) -> Callable[[Any], Any]:
    return lambda value: expected == value


def where(keys: Iterable[str], conditions: Mapping[str, Any]) -> Operator:
    """The dictionaries that have keys, have not ``"!key"``, and hold values that equal others or pass a plain function."""
    tests = {key: condition if isinstance(condition, FunctionType) else _equals(condition) for key, condition in conditions.items()}
    excluded = [key.lstrip("!") for key in keys if key.startswith("!")]
    wanted = [*(key for key in keys if not key.startswith("!")), *tests]
    if len(wanted) == 1 and not tests and not excluded:
        (only,) = wanted

        def operator(then: Next) -> Next:
            def on_next(element: Any) -> None:
                if isinstance(element, dict) and only in element:
                    then(element)

            return on_next

        return operator

    def passes(element: Any) -> bool:
        if not isinstance(element, dict):
            return False
        if any(key not in element for key in wanted) or any(key in element for key in excluded):
            return False
        return all(test(element[key]) for key, test in tests.items())

    return filter_(passes)


def getitem(keys: tuple[Any, ...], strict: bool) -> Operator:
    """Values by keys, a tuple for several; unless ``strict`` only of elements that have them."""
    get = itemgetter(*keys)

    def operator(then: Next) -> Next:
        def strictly(element: Any) -> None:
            then(get(element))

        def laxly(element: Any) -> None:
            for key in keys:
                if key not in element:
                    return
            then(get(element))

        return strictly if strict else laxly

    return operator


class Wmap:
    """For each pair of ``$wrap`` events what a generator function returns that runs from the begin to the end.

    An end whose begin was before the subscription is nothing.

    Raises:
        TypeError: It is no generator function.
    """

    def __init__(self, name: Any, function: Any = None, pass_keys: bool = True) -> None:
        if function is None and not isinstance(name, str):
            name, function = None, name
        if not inspect.isgeneratorfunction(function):
            raise TypeError("wmap() must take a generator function")
        kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
        self.takes_keys = pass_keys and bool(kinds - {inspect.Parameter.VAR_POSITIONAL})
        self.name, self.start = name, lax_function(function) if self.takes_keys else function

    def __call__(self, then: Next) -> Next:
        """As an operator."""
        name = self.name
        begin, end, drop = self.pair(then)

        def on_next(element: Any) -> None:
            wrap = element.get("$wrap")
            if wrap is None or (name is not None and wrap["name"] != name):
                return
            if wrap["step"] == "end":
                end(wrap["id"], element)
            else:
                begin(wrap["id"], element)

        on_next.pair = (begin, end, drop)  # type: ignore[attr-defined]  # for who needs no event to begin with
        return on_next

    def pair(self, then: Next) -> tuple[Callable[..., None], Callable[[Any, Any], None], Callable[[Any], None]]:
        """What is called at the begin, with what tells pairs apart (and the event); at the end, with both; and if there will be no end."""
        start = self.start
        running: dict[Any, Any] = {}
        pop = running.pop
        spare: Any = None  # a driver that has nothing to drive

        # `yield from` takes what the function returns without raising StopIteration, which is a tenth of a microsecond.
        def drive() -> Any:
            while True:
                yield running
                then((yield from start()))

        def drive_with_keys() -> Any:
            while True:
                keys = yield running
                function, keys = start(**keys), None
                then((yield from function))

        new = drive_with_keys if self.takes_keys else drive

        def start_pair(key: Any, element: Any = None) -> None:
            nonlocal spare
            driver, spare = spare, None
            if driver is None:
                driver = new()
                next(driver)
            running[key] = driver
            if driver.send(element) is running:
                raise RuntimeError("the function in wmap() should yield exactly once")

        def end(key: Any, element: Any) -> None:
            nonlocal spare
            driver = pop(key, None)
            if driver is not None:
                if driver.send(element) is not running:
                    raise RuntimeError("the function in wmap() should yield exactly once")
                spare = driver

        def drop(key: Any) -> None:
            pop(key, None)

        return start_pair, end, drop
