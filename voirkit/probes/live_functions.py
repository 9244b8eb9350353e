"""The live functions that a name in a selector stands for, and those that take their place later.

A name in scope stands for one function; an absolute reference for every live function that was made at that place in the source.
"""

from __future__ import annotations

import builtins
import functools
import gc
import sys
from collections.abc import Iterable, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakSet, ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType, FunctionType

    from voirkit.probes.selector.grammar import ParsedFunction


OPTIMIZED = 1  # inspect.CO_OPTIMIZED: a function's code, not a class's


class Scope(Mapping[str, Any]):
    """The names that are in scope in a frame: its locals as they are now, its globals as they are when asked."""

    def __init__(self, frame: FrameType) -> None:
        self._locals = locals_of(frame)
        self._globals = frame.f_globals

    def __getitem__(self, name: str) -> Any:
        for names in (self._locals, self._globals, vars(builtins)):
            if name in names:
                return names[name]
        raise KeyError(name)

    def __iter__(self) -> Any:
        return iter({**self._globals, **self._locals})

    def __len__(self) -> int:
        return len({**self._globals, **self._locals})


def locals_of(frame: FrameType, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Those of a function's or class's variables that are set (only some ``names``); at the top of a module none."""
    there = frame.f_locals
    if there is frame.f_globals:
        return {}
    found = dict(there) if names is None else {name: there[name] for name in names if name in there}
    # Before 3.13 a function's dictionary stays with the frame and would keep the values alive; unless the program holds it too,
    # take them out, but for what the program or a debugger has put there itself.
    code = frame.f_code
    if type(there) is dict and code.co_flags & OPTIMIZED and sys.getrefcount(there) <= 3:
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            there.pop(name, None)
    return found


class NotDefinedYet(Exception):
    """A function that an absolute reference names is not there yet: no import, or no ``def``, has run."""

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.module = module


MOST_WRAPPERS = 50  # objects looked at inside a decorated function


class Target:
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
        self, functions: list[FunctionType], host: FunctionType | None = None, path: tuple[str, ...] = (), *,
        owner: Any = None, is_bound: bool = False, is_shown: bool = True,
    ) -> None:  # fmt: skip
        self.functions, self.host, self.path = functions, host, path
        self.owner, self.is_bound, self.is_shown = owner, is_bound, is_shown


def find_in_scope(function: ParsedFunction, scope: Mapping[str, Any]) -> Target:
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
    for _ in range(MOST_WRAPPERS):
        if isinstance(thing, type):
            break
        if isinstance(thing, MethodType):
            owner, is_bound, thing = thing.__self__, True, thing.__func__
            continue
        if isinstance(thing, FunctionType):
            chain.append(thing)
        inner = unwrapped_once(thing)
        if inner is None:
            call = getattr(type(thing), "__call__", None)  # noqa: B004 -- whether it is Python code
            if not chain and isinstance(call, FunctionType):
                return Target([call], owner=thing, is_bound=True, is_shown=False)
            break
        thing = inner
    return Target(chain[::-1], owner=owner, is_bound=is_bound)


def find_absolute(function: ParsedFunction, is_done: bool = False) -> Target:
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
        names = _namespace(thing)
        part = _mangled_part(part, thing, names)
        if part not in names:
            host = _innermost_function(thing, function.path[:n], module_name) if n else None
            if host is not None:
                return Target([], host, function.path[n:])
            raise NotDefinedYet(function.module or "")
        thing = names[part]
    found = _innermost_function(thing, function.path, module_name)
    if found is None:
        raise AttributeError(function.reference)
    return Target([found])


def function_at(module: str, path: tuple[str, ...]) -> FunctionType | None:
    """The function that stands at a path in a module now; None if there is none that was defined under that name."""
    thing: Any = sys.modules.get(module)
    for part in path:
        names = _namespace(thing)
        thing = names.get(_mangled_part(part, thing, names))
    found = _innermost_function(thing, path, module) if thing is not None else None
    return found if found is not None and _is_at(found, path) else None


def _mangled_part(part: str, thing: Any, names: dict[str, Any]) -> str:
    """``_K__m`` for the private method ``__m`` of a class ``K`` or of one that it derives from."""
    if part not in names and part.startswith("__") and isinstance(thing, type):
        for base in thing.__mro__:
            if (private := f"_{base.__name__.lstrip('_')}{part}") in names:
                return private
    return part


def _namespace(thing: Any) -> dict[str, Any]:
    if isinstance(thing, type):
        found: dict[str, Any] = {}
        for base in thing.__mro__[::-1]:
            found.update(vars(base))
        return found
    return dict(vars(thing)) if isinstance(thing, ModuleType) else {}


def _innermost_function(thing: Any, path: tuple[str, ...], module: str) -> FunctionType | None:
    """The function that a decorated, static, class ... one is made from."""
    best: FunctionType | None = None
    seen: set[int] = set()
    queue = [thing]
    while queue and len(seen) < MOST_WRAPPERS:
        at = queue.pop(0)
        if id(at) in seen:
            continue
        seen.add(id(at))
        if isinstance(at, FunctionType):
            best = best or at
            if _is_at(at, path):
                return at
            queue += _cells(at)
        inner = unwrapped_once(at)
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


def unwrapped_once(thing: Any) -> Any:
    """What a method, property or wrapper is made from; None if it is not one."""
    if isinstance(thing, staticmethod | classmethod | MethodType):
        return thing.__func__
    if isinstance(thing, property):
        return thing.fget
    if isinstance(thing, functools.partial | functools.cached_property):
        return thing.func
    try:
        return thing.__wrapped__
    except Exception:  # the user's own __getattr__ may raise anything
        return None


def innermost(thing: Any) -> Any:
    """What bound methods, properties and decorators with functools.wraps are made from."""
    for _ in range(MOST_WRAPPERS):  # a __wrapped__ may lead in a circle
        inner = None if isinstance(thing, type) else unwrapped_once(thing)
        if inner is None:
            break
        thing = inner
    return thing


# Redefined functions: python has no event for a name that gets another value. But the function that it had is freed at that moment,
# unless something else holds it; IPython (checked with 8) has an event when a cell has been run; and the end of a probe checks once more.

_watches: WeakSet[RedefinitionWatch] = WeakSet()
_hooked_shells: set[int] = set()


class RedefinitionWatch:
    """Looks whether a name of a module still stands for the same function.

    Args:
        module: The module's name.
        path: Of the function in it.
        function: What it stands for now.
        renewed: Called with another function that it stands for; must not raise.
    """

    def __init__(self, module: str, path: tuple[str, ...], function: FunctionType, renewed: Callable[[FunctionType], None]) -> None:
        self.module, self.path, self._renewed = module, path, renewed
        self.is_on = True
        self._function = ref(function, self._on_freed)
        _watches.add(self)
        _hook_notebook()

    def _on_freed(self, _: Any) -> None:
        """The function is no more: as a rule because its name has just been given to another."""
        if sys is not None and not sys.is_finalizing():  # at the end of python this module's own names go too
            self.check()

    def redefined(self) -> FunctionType | None:
        """Another function than the last one that was reported, if the name stands for one."""
        now = function_at(self.module, self.path) if self.is_on else None
        return now if now is not self._function() else None

    def check(self) -> None:
        """Tell of another function, if there is one."""
        now = self.redefined()
        if now is not None:
            self._function = ref(now, self._on_freed)
            self._renewed(now)


def is_named_at(module: str, path: tuple[str, ...], function: FunctionType) -> bool:
    """Whether a function is what a name of a module stands for, and not only held by somebody."""
    names = getattr(sys.modules.get(module), "__dict__", None)
    return names is function.__globals__ and function_at(module, path) is function


def _hook_notebook() -> None:
    """Look after each cell of a notebook."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get() if get is not None else None
    events = getattr(shell, "events", None)
    if events is not None and id(shell) not in _hooked_shells:
        _hooked_shells.add(id(shell))
        events.register("post_run_cell", _check_all)


def _check_all(*result: Any) -> None:
    for follower in list(_watches):
        follower.check()
