"""Makes a function that does what another does, within a span: plain functions, coroutines,
generators, asynchronous generators.

What is made stays what it was made from, to whoever asks (`inspect`, asyncio, help, pickle), and
passes everything on: values sent and thrown in, return values, exceptions.  A span lasts as long as
the work: that of a coroutine or generator from its first step to its end.
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

# Bits of co_flags; `inspect`, which has names for them, takes 20 ms to import.
_GENERATOR, _COROUTINE, _ITERABLE_COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x100, 0x200


def timed(fn: Any, span: Span, choose: Choose | None = None) -> Any:
    """A function like ``fn`` whose calls are recorded as this span.

    Args:
        fn: A function or any other callable. A ``staticmethod``, ``classmethod`` or property stays
            one, a class itself: each of its objects is recorded while it is made, that is, during
            its ``__init__``.
        span: What is recorded.
        choose: Finds the span of a call by its arguments, instead.

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


_of_properties: set[Any] = set()  # functions of theirs that are timed


def _property(fn: property, span: Span) -> property:
    """A property whose reading, setting and deleting are recorded; what is already, of
    ``@x.setter`` above ``@node``, is not again."""
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
    # A class without one gets none: `dataclass` would then make none, and `__new__` alone be called
    # otherwise than before.
    init = vars(fn).get("__init__")
    if not isinstance(init, types.FunctionType):
        raise TypeError(
            "an annotation decorates a function, or a class with an __init__ of its own, which"
            f" {fn.__name__} has not: decorate the method that is to be recorded"
        )
    fn.__init__ = timed(init, span)  # type: ignore[misc]  # of this class alone
    return fn


def _flags(fn: Any) -> int:
    while isinstance(fn, partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    marks = getattr(fn, "__dict__", {})
    # inspect.markcoroutinefunction, and asyncio's own before
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
        # There is no asynchronous `yield from`. An item is released as soon as it has been yielded:
        # it may be a large batch.
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
                except BaseException as exc:  # goes to the wrapped generator
                    step = inner.athrow(exc)
                else:
                    step = inner.asend(sent)
                    del sent

    return wrapper
