"""The operators that a training loop's streams use at every step, as plain functions from one subscriber to another.

They do what giving's operators of the same names do (0.4.3), without reactivex, whose observers cost a microsecond each.  A stream
takes these where nothing but them stands between it and a subscriber.
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

    def make(then: Next) -> Next:
        return lambda element: then(function(element))

    return make


def filter_(function: Callable[[Any], Any]) -> Operator:
    """The elements for which a function holds."""

    def make(then: Next) -> Next:
        def on_next(element: Any) -> None:
            if function(element):
                then(element)

        return on_next

    return make


def where(keys: Iterable[str], conditions: Mapping[str, Any]) -> Operator:
    """The dictionaries that have keys, have not ``"!key"``, and hold values that equal others or pass a plain function."""
    tests = {k: c if isinstance(c, FunctionType) else (lambda value, wanted=c: wanted == value) for k, c in conditions.items()}
    excluded = [key.lstrip("!") for key in keys if key.startswith("!")]
    wanted = [*(key for key in keys if not key.startswith("!")), *tests]
    if len(wanted) == 1 and not tests and not excluded:
        (only,) = wanted
        return filter_(lambda element: isinstance(element, dict) and only in element)

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

    def make(then: Next) -> Next:
        def strictly(element: Any) -> None:
            then(get(element))

        def laxly(element: Any) -> None:
            for key in keys:
                if key not in element:
                    return
            then(get(element))

        return strictly if strict else laxly

    return make


def wmap(name: Any, function: Any = None, pass_keys: bool = True) -> Operator:
    """For each pair of ``$wrap`` events what a generator function returns that runs from the begin to the end.

    Raises:
        TypeError: It is no generator function.
    """
    if function is None and not isinstance(name, str):
        name, function = None, name
    if not inspect.isgeneratorfunction(function):
        raise TypeError("wmap() must take a generator function")
    start = lax_function(function) if pass_keys else function

    def make(then: Next) -> Next:
        running: dict[Any, Any] = {}

        def on_next(element: Any) -> None:
            wrap = element.get("$wrap")
            if wrap is None or (name is not None and wrap["name"] != name):
                return
            if wrap["step"] == "begin":
                running[wrap["id"]] = generator = start(**element) if pass_keys else start()
                generator.send(None)
                return
            try:
                running.pop(wrap["id"]).send(element)
            except StopIteration as stop:
                result = stop.value
            else:
                raise RuntimeError("the function in wmap() should yield exactly once")
            then(result)

        return on_next

    return make
