"""The functions that a name in a selector stands for: those that are there, those that a module will define, those that take their place.

A name in scope stands for one function; an absolute reference for every live function that was made at that place in the source. A module
that is imported later, or reloaded, is woven as it is compiled, so that even what a decorator calls at once is seen. The program's modules
look as ever: same loader, same ``__spec__``, and no woven code gets into ``__pycache__``.
"""

from __future__ import annotations

import ast
import builtins
import functools
import gc
import io
import sys
from collections.abc import Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

from voirkit import imports
from voirkit.probes import source, weave
from voirkit.probes.source import TOP, as_function
from voirkit.probes.tap_emitter import Unobservable, locals_of
from voirkit.probes.taps import NeedsMemory
from voirkit.streams import is_from_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType, FrameType

    from voirkit.probes.selector import ParsedFunction
    from voirkit.probes.source import FunctionNode


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
        is_shown: Whether what it is bound to belongs in the events: not so for an object that is called itself.
    """

    def __init__(
        self, functions: list[FunctionType], host: FunctionType | None = None, path: tuple[str, ...] = (), *,
        owner: Any = None, is_bound: bool = False, is_shown: bool = True,
    ) -> None:  # fmt: skip
        self.functions, self.host, self.path = functions, host, path
        self.owner, self.is_bound, self.is_shown = owner, is_bound, is_shown


def find_in_scope(function: ParsedFunction, scope: Mapping[str, Any]) -> Target:
    """What a plain name stands for: the function, and those that it wraps, the innermost first. Raises KeyError, AttributeError:
    nothing."""
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
# unless something else holds it; and the end of a probe checks once more.


class RedefinitionWatch:
    """Looks whether a name of a module still stands for the same function.

    Args:
        path: Of the function in it.
        function: What it stands for now.
        renewed: Called with another function that it stands for; must not raise.
    """

    def __init__(self, module: str, path: tuple[str, ...], function: FunctionType, renewed: Callable[[FunctionType], None]) -> None:
        self.module, self.path, self._renewed = module, path, renewed
        self.is_on = True
        self._function = ref(function, self._on_freed)

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


# Functions that a module will define.


class ModuleRequest:
    """Taps that are wanted in a function of a module.

    Args:
        module: The module's name, ``"__main__"`` for the script.
        path: Of the function in it.
        defined: Called when the module has been executed.
        complain: Called with the reason why the taps cannot be had.
    """

    def __init__(
        self, module: str, path: tuple[str, ...], listener: Any, defined: Callable[[], None], complain: Callable[[Exception], None]
    ) -> None:
        self.module, self.path, self.listener, self.defined, self.complain = module, path, listener, defined, complain
        self.untold: Exception | None = None
        self.made = False  # whether a module was compiled with its taps


_requests: dict[str, list[ModuleRequest]] = {}


def add_request(request: ModuleRequest) -> None:
    """Have taps woven into a module when it is compiled."""
    if request.module not in _requests:
        imports.watch(request.module, _weaver)
    weave.expect(request.listener)
    _requests.setdefault(request.module, []).append(request)


def remove_request(request: ModuleRequest) -> None:
    if request.untold is not None:
        request.complain(request.untold)
        request.untold = None
    left = [o for o in _requests.get(request.module, ()) if o is not request]
    if left:
        _requests[request.module] = left
    elif _requests.pop(request.module, None):
        imports.unwatch(request.module, _weaver)


def woven_script(statements: list[ast.stmt] | None, code: CodeType, text: bytes | None) -> CodeType:
    """Code of a part of the script, with the taps that are wanted. ``statements``: the part, or None: the whole, too deep for a tree of it
    all; ``text``: the script's source."""
    requests = _requests.get("__main__")
    if not requests or (statements is None and text is None):
        return code
    try:
        if statements is None:
            assert text is not None
            statements = source.parse_like("".join(source.lines_of(text)), code).body
        return _woven_module(statements, code, requests, is_script=True)
    except Exception as exc:
        if is_from_handler(exc):
            raise
        for request in requests:
            if statements is None or request.path == (TOP,) or weave.definitions(ast.Module(statements, []), request.path):
                _report(request, exc)
        return code


def _woven_module(statements: list[ast.stmt], code: CodeType, requests: Sequence[ModuleRequest], is_script: bool = False) -> CodeType:
    """A module's code with taps, those that can be put in.

    Who asked for the others gets a report now if it is the script, else when the module has been executed.

    Raises:
        NoSource, RecursionError: None can.
    """
    table: dict[str, Any] = {}
    with weave.lock:
        if any(request.path == (TOP,) for request in requests):
            return _woven_top_level(statements, code, requests, is_script)
        chosen = [s for s in statements if any(weave.definitions(ast.Module([s], []), request.path) for request in requests)]
        chosen = [
            s for s in statements if any(s.lineno <= (c.end_lineno or c.lineno) and c.lineno <= (s.end_lineno or s.lineno) for c in chosen)
        ]
        if not chosen:
            return code
        part, places = _smallest_part(statements, chosen, code)
        part.body[:] = [source.copy_tree(s) if s in chosen else s for s in part.body]  # they are the program's, or are asked for again
        made, where = _instrument_functions(part, requests, table, code, is_script)
        if not table:
            return code
        new = weave.graft_functions(weave.compile_with_taps(part, code), code, places, table, where)
        for request in made:
            request.made = True
        return new


def _woven_top_level(statements: list[ast.stmt], code: CodeType, requests: Sequence[ModuleRequest], is_script: bool) -> CodeType:
    """As ``_woven_module``, where the module's own statements get taps too. Raises NoSource, RecursionError: None can."""
    table: dict[str, Any] = {}
    part = ast.Module([source.copy_tree(s) for s in statements], [])
    made, where = _instrument_functions(part, [request for request in requests if request.path != (TOP,)], table, code, is_script)
    top = as_function(part.body)
    wanted_here = [request for request in requests if request.path == (TOP,)]
    possible = [request for request in wanted_here if _is_possible(top, request, is_script)]
    weave.instrument_tree(top, [request.listener for request in possible], None, table, None)
    part.body = top.body
    for request in [*made, *possible]:
        request.made = True
    return weave.replace_markers(weave.compile_with_taps(part, code), code, table, where) if table else code


def _instrument_functions(
    part: ast.Module, requests: Sequence[ModuleRequest], table: dict[str, Any], code: CodeType, is_script: bool
) -> tuple[list[ModuleRequest], list[weave.Placed]]:
    """Put taps into the functions of a part of a module; for whom, and where."""
    made: list[ModuleRequest] = []
    where = weave.placed(part, [(request.path, request.listener) for request in requests])
    for path in dict.fromkeys(request.path for request in requests):
        wanted_here = [request for request in requests if request.path == path]
        for node in weave.definitions(part, path):
            possible = [request for request in wanted_here if _is_possible(node, request, is_script)]
            if possible:
                weave.instrument_tree(node, [request.listener for request in possible], None, table, code)
            made += possible
            others = [request.listener for request in wanted_here if request not in possible]
            where = [(at, rest, listener) for at, rest, listener in where if at is not node or rest or listener not in others]
    return made, where


def _smallest_part(statements: list[ast.stmt], chosen: list[ast.stmt], code: CodeType) -> tuple[ast.Module, list[CodeType]]:
    """As little of a module as compiles to the same, and where its functions and classes stand in the module's code. Raises NoSource: the
    code does not come from these statements."""
    whole = ast.Module(statements, [])
    part = source.part_of(whole, chosen)
    try:
        return part, weave.matches(source.compile_like(part, code), code)
    except source.NoSource:  # such as where `super` is also a name of the module's
        return ast.Module([*statements], []), weave.matches(source.compile_like(whole, code), code)


def _is_possible(node: FunctionNode, request: ModuleRequest, reports: bool) -> bool:
    """Whether a request can be fulfilled; tried on a copy."""
    try:
        weave.instrument_tree(source.copy_tree(node), [request.listener], None, {}, None)
    except (Unobservable, NeedsMemory, RecursionError) as exc:
        if reports:
            _report(request, exc)
        return False
    return True


def _report(request: ModuleRequest, exc: Exception) -> None:
    """Report what is wrong; later, if the program is too deep in its calls for that."""
    exc = source.NoSource(source.TOO_DEEP) if isinstance(exc, RecursionError) else exc
    try:
        request.complain(exc)
    except RecursionError:
        request.untold = exc


class _Weaver(imports.Watcher):
    """Weaves a module that is executed."""

    def code(self, loader: Any, name: str) -> CodeType | None:
        """Woven code, for loaders that run a module's code as it is."""
        requests = _requests.get(name)
        from importlib import _bootstrap_external

        plain = getattr(type(loader), "exec_module", None) is _bootstrap_external._LoaderBasics.exec_module  # type: ignore[attr-defined]
        if not requests or not plain:
            return None
        code: CodeType | None = None
        try:
            code = loader.get_code(name)
            text = loader.get_source(name) if code is not None else None
            if code is None or text is None:
                return code
            source.remember_lines(code.co_filename, io.StringIO(text).readlines())
            return _woven_module(source.parse_like(text, code).body, code, requests)
        except Exception as exc:  # when the module has been executed it is tried again, and told
            if is_from_handler(exc):
                raise
            return code

    def ran(self, module: ModuleType) -> None:
        """Take over what was woven, and put on what could not be."""
        for request in list(_requests.get(module.__name__, ())):
            try:
                request.defined()
            except Exception as exc:
                if is_from_handler(exc):
                    raise
                _report(request, exc)


_weaver = _Weaver()
