"""The live functions that a name in a selector stands for.

A name in scope stands for one function; an absolute reference for every live function that was made at that place in
the source.
"""

from __future__ import annotations

import functools
import gc
import sys
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from voirkit.probes.scope import NotDefinedYet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from voirkit.probes.grammar import ParsedFunction

LONGEST = 50  # objects looked at inside a decorated function


class Found:
    """What a name stands for.

    Attributes:
        functions: The functions; of several the first that has the variables is meant.
        host: A function that the place is inside of, whose calls make the functions; or None.
        path: Where in it.
        owner: Of a bound method, what it is bound to.
        is_bound: Whether it is a bound method.
        is_shown: Whether what it is bound to belongs in the events: not so for an object that is called itself.
    """

    def __init__(
        self,
        functions: list[FunctionType],
        host: FunctionType | None = None,
        path: tuple[str, ...] = (),
        owner: Any = None,
        is_bound: bool = False,
    ) -> None:
        self.functions, self.host, self.path, self.owner, self.is_bound = functions, host, path, owner, is_bound
        self.is_shown = True


def in_scope(function: ParsedFunction, scope: Mapping[str, Any]) -> Found:
    """What a plain name stands for: the function, and those that it wraps, the innermost first.

    Raises:
        KeyError, AttributeError: Nothing.
    """
    first, *rest = function.path
    thing = scope[first]
    for part in rest:
        thing = getattr(thing, part)
    owner, is_bound = None, False
    chain: list[FunctionType] = []
    for _ in range(LONGEST):
        if isinstance(thing, type):
            break
        if isinstance(thing, MethodType):
            owner, is_bound, thing = thing.__self__, True, thing.__func__
            continue
        if isinstance(thing, FunctionType):
            chain.append(thing)
        inner = _within(thing)
        if inner is None:
            call = getattr(type(thing), "__call__", None)  # noqa: B004 -- whether it is Python code
            if not chain and isinstance(call, FunctionType):
                found = Found([call], owner=thing, is_bound=True)
                found.is_shown = False
                return found
            break
        thing = inner
    return Found(chain[::-1], owner=owner, is_bound=is_bound)


def absolute(function: ParsedFunction, is_done: bool = False) -> Found:
    """What an absolute reference stands for.

    Args:
        function: With the reference.
        is_done: Whether its module has run, though its import may not have ended.

    Raises:
        NotDefinedYet: It is not there yet.
        AttributeError: There is no such thing, and will not be.
    """
    module_name = function.module or "__main__"
    module = sys.modules.get(module_name)
    if module is None or (not is_done and getattr(getattr(module, "__spec__", None), "_initializing", False)):
        raise NotDefinedYet(module_name if function.module else "")
    thing: Any = module
    for n, part in enumerate(function.path):
        names = _names(thing)
        part = _mangled(part, thing, names)
        if part not in names:
            host = _function(thing, function.path[:n], module_name) if n else None
            if host is not None:
                return Found([], host, function.path[n:])
            raise NotDefinedYet(function.module or "")
        thing = names[part]
    found = _function(thing, function.path, module_name)
    if found is None:
        raise AttributeError(function.reference)
    return Found([found])


def at(module: str, path: tuple[str, ...]) -> FunctionType | None:
    """The function that stands at a path in a module now; None if there is none that was defined under that name."""
    thing: Any = sys.modules.get(module)
    for part in path:
        names = _names(thing)
        thing = names.get(_mangled(part, thing, names))
    found = _function(thing, path, module) if thing is not None else None
    return found if found is not None and _is_at(found, path) else None


def _mangled(part: str, thing: Any, names: dict[str, Any]) -> str:
    """``_K__m`` for the private method ``__m`` of a class ``K`` or of one that it derives from."""
    if part not in names and part.startswith("__") and isinstance(thing, type):
        for base in thing.__mro__:
            if (private := f"_{base.__name__.lstrip('_')}{part}") in names:
                return private
    return part


def _names(thing: Any) -> dict[str, Any]:
    if isinstance(thing, type):
        found: dict[str, Any] = {}
        for base in thing.__mro__[::-1]:
            found.update(vars(base))
        return found
    return dict(vars(thing)) if isinstance(thing, ModuleType) else {}


def _function(thing: Any, path: tuple[str, ...], module: str) -> FunctionType | None:
    """The function that a decorated, static, class ... one is made from."""
    best: FunctionType | None = None
    seen: set[int] = set()
    queue = [thing]
    while queue and len(seen) < LONGEST:
        at = queue.pop(0)
        if id(at) in seen:
            continue
        seen.add(id(at))
        if isinstance(at, FunctionType):
            best = best or at
            if _is_at(at, path):
                return at
            queue += _cells(at)
        inner = _within(at)
        if inner is not None:
            queue.insert(0, inner)
        elif type(at) is not FunctionType and not isinstance(at, type) and hasattr(at, "__dict__"):
            queue += [v for v in vars(at).values() if isinstance(v, FunctionType | MethodType)]
    if best is not None and best.__code__.co_name not in (path[-1], "<lambda>") and best.__module__ == module:
        for at in gc.get_objects():  # behind a decorator that keeps it where this does not look
            # By its type: isinstance() would ask each object for its class, and so run code of the program.
            if type(at) is FunctionType and at.__module__ == module and at.__code__.co_name == path[-1] and _is_at(at, path):
                return at
    return best


def _is_at(function: FunctionType, path: tuple[str, ...]) -> bool:
    code = function.__code__
    if code.co_name != path[-1]:
        return False
    qualname = getattr(code, "co_qualname", "")  # 3.10: only the function's own, which functools.wraps changes
    return not qualname or tuple(part for part in qualname.split(".") if part != "<locals>") == path


def _cells(function: FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # empty
            continue
    return [v for v in found if callable(v) and not isinstance(v, type)]


def _within(thing: Any) -> Any:
    """What a method, property or wrapper is made from; None if it is not one."""
    if isinstance(thing, staticmethod | classmethod):
        return thing.__func__
    if isinstance(thing, MethodType):
        return thing.__func__
    if isinstance(thing, property):
        return thing.fget
    if isinstance(thing, functools.partial | functools.cached_property):
        return thing.func
    try:
        return thing.__wrapped__
    except Exception:  # the user's own __getattr__ may raise anything
        return None
