"""Wraps functions, coroutines, generators and asynchronous generators so that each call is recorded
as a span.

A wrapper is of the same kind as the wrapped function to `inspect`, asyncio, help and pickle. It
passes everything on: values sent and exceptions thrown in, return values, exceptions.  A span lasts
as long as the work; the span of a coroutine or generator lasts from its first step to its end.
"""

from __future__ import annotations

import types
from functools import cached_property, partial, wraps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from typing import Any

    from voirkit.trace.recorder import Span

    Choose = Callable[[tuple[Any, ...], dict[str, Any]], Span]

# Bits of co_flags. `inspect` has names for them, but takes 20 ms to import.
_GENERATOR, _COROUTINE, _ITERABLE_COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x100, 0x200


def timed(fn: Any, span: Span, choose: Choose | None = None) -> Any:
    """Return a wrapper of ``fn`` whose calls are recorded as a span.

    Args:
        fn: A function or any other callable. The wrapper of a ``staticmethod``, ``classmethod`` or
            property has the same type. A class is changed in place: the ``__init__`` of its objects
            is recorded.
        span: The span that is recorded.
        choose: Returns the span of a call from the call's arguments; replaces ``span``.

    Raises:
        TypeError: ``fn`` cannot be called, or is a class without an ``__init__`` of its own.
    """
    if isinstance(fn, (staticmethod, classmethod)):
        return type(fn)(timed(fn.__func__, span, choose))
    if isinstance(fn, property):
        return _property(fn, span)
    if isinstance(fn, cached_property):
        return type(fn)(timed(fn.func, span, choose))
    if isinstance(fn, type):
        return _class(fn, span)
    if not callable(fn):
        raise TypeError(f"an annotation decorates a function, not {type(fn).__name__}")
    flags = _flags(fn)
    if flags & _COROUTINE:
        return _coroutine(fn, span, choose)
    if flags & _ASYNC_GENERATOR:
        return _async_generator(fn, span, choose)
    if flags & _ITERABLE_COROUTINE:
        return types.coroutine(_generator(fn, span, choose))
    if flags & _GENERATOR:
        return _generator(fn, span, choose)
    return _function(fn, span) if choose is None else _chosen(fn, choose)


_of_properties: set[Any] = set()  # wrappers of the functions of properties


def _property(fn: property, span: Span) -> property:
    """Return a property whose getter, setter and deleter are recorded. Functions that are recorded
    already (``@x.setter`` above ``@node``) are not wrapped again."""
    functions = [
        f if f is None or f in _of_properties else timed(f, span)
        for f in (fn.fget, fn.fset, fn.fdel)
    ]
    _of_properties.update(f for f in functions if f is not None)
    decorated = fn
    for method, f in zip(("getter", "setter", "deleter"), functions, strict=True):
        decorated = getattr(decorated, method)(f) if f is not None else decorated
    return decorated


def _class(fn: type, span: Span) -> type:
    # A class without its own `__init__` must not get one: `dataclass` would then not generate one,
    # and a class with only `__new__` would be called differently.
    init = vars(fn).get("__init__")
    if not isinstance(init, types.FunctionType):
        raise TypeError(
            "an annotation decorates a function, or a class with an __init__ of its own, which"
            f" {fn.__name__} has not: decorate the method that is to be recorded"
        )
    fn.__init__ = timed(init, span)  # type: ignore[misc]  # only in this class
    return fn


def _flags(fn: Any) -> int:
    while isinstance(fn, partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    marks = getattr(fn, "__dict__", {})
    # attributes that inspect.markcoroutinefunction sets, and asyncio in earlier Python versions
    if "_is_coroutine_marker" in marks or "_is_coroutine" in marks:
        return _COROUTINE
    return int(getattr(getattr(fn, "__code__", None), "co_flags", 0))


def _function(fn: Any, span: Span) -> Any:
    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with span:
            return fn(*args, **kwargs)

    return wrapper


def _chosen(fn: Any, choose: Choose) -> Any:
    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with choose(args, kwargs):
            return fn(*args, **kwargs)

    return wrapper


def _coroutine(fn: Any, span: Span, choose: Choose | None) -> Any:
    @wraps(fn)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with span if choose is None else choose(args, kwargs):
            return await fn(*args, **kwargs)

    return wrapper


def _generator(fn: Any, span: Span, choose: Choose | None) -> Any:
    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with span if choose is None else choose(args, kwargs):
            return (yield from fn(*args, **kwargs))

    return wrapper


def _async_generator(fn: Any, span: Span, choose: Choose | None) -> Any:
    @wraps(fn)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        # There is no asynchronous `yield from`. An item, which may be a large batch, is released as
        # soon as it has been yielded.
        with span if choose is None else choose(args, kwargs):
            inner = fn(*args, **kwargs)
            step = inner.__anext__()
            while True:
                try:
                    item = [await step]
                except StopAsyncIteration:
                    return
                try:
                    sent = yield item.pop()
                except GeneratorExit:
                    await inner.aclose()
                    raise
                except BaseException as exc:  # passed on to the wrapped generator
                    step = inner.athrow(exc)
                else:
                    step = inner.asend(sent)
                    del sent

    return wrapper
