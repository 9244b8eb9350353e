"""The functions that a name in a selector refers to: existing, later defined or redefined ones.

A name in scope refers to one function. An absolute reference refers to every live function that was
created at that place in the source. A module that is imported later, or reloaded, is woven: taps
are inserted when it is compiled, so that even a call by a decorator at the definition is seen. The
program's modules look unchanged: same loader, same ``__spec__``, and no woven code in
``__pycache__``.
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
    """The names in scope in a frame.

    Locals have their values from when this object was created; globals and builtins are looked up
    when they are read.
    """

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
    """The function of an absolute reference does not exist yet: its import or ``def`` has not
    run."""

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.module = module


MOST_WRAPPERS = 50  # maximum number of objects inspected inside a decorated function


class Target:
    """The functions that a name refers to.

    Attributes:
        functions: The functions; if there are several, the first that has the selected variables is
            meant.
        host: The function whose calls create the functions, if the name is inside a function; or
            None.
        path: Path of the name inside ``host``.
        owner: For a bound method, the object it is bound to.
        is_shown: True if ``owner`` belongs in the events. False if the name refers to ``owner``, an
            object with ``__call__``.
    """

    def __init__(
        self,
        functions: list[FunctionType],
        host: FunctionType | None = None,
        path: tuple[str, ...] = (),
        *,
        owner: Any = None,
        is_bound: bool = False,
        is_shown: bool = True,
    ) -> None:
        self.functions = functions
        self.host = host
        self.path = path
        self.owner = owner
        self.is_bound = is_bound
        self.is_shown = is_shown


def find_in_scope(function: ParsedFunction, scope: Mapping[str, Any]) -> Target:
    """Return the target of a plain name: the function and those that it wraps, innermost first.

    Raises KeyError or AttributeError if the name does not exist.
    """
    first, *attributes = function.path
    thing = scope[first]
    for attribute in attributes:
        thing = getattr(thing, attribute)
    owner = None
    is_bound = False
    chain: list[FunctionType] = []
    for _ in range(MOST_WRAPPERS):
        if isinstance(thing, type):
            break
        if isinstance(thing, MethodType):
            owner = thing.__self__
            is_bound = True
            thing = thing.__func__
            continue
        if isinstance(thing, FunctionType):
            chain.append(thing)
        inner = unwrapped_once(thing)
        if inner is None:
            call = getattr(type(thing), "__call__", None)  # noqa: B004 -- to see if it is Python
            if not chain and isinstance(call, FunctionType):
                return Target([call], owner=thing, is_bound=True, is_shown=False)
            break
        thing = inner
    return Target(chain[::-1], owner=owner, is_bound=is_bound)


def find_absolute(function: ParsedFunction, is_done: bool = False) -> Target:
    """Return the target of an absolute reference.

    Args:
        is_done: True if the module has run, though its import may not have ended.

    Raises:
        NotDefinedYet: The function does not exist yet.
        AttributeError: The name exists, but there is no function behind it.
    """
    module_name = function.module or "__main__"
    module = sys.modules.get(module_name)
    if module is None or (not is_done and _is_being_imported(module)):
        raise NotDefinedYet(module_name if function.module else "")
    thing: Any = module
    for depth, part in enumerate(function.path):
        names = _namespace(thing)
        part = _mangled_part(part, thing, names)
        if part not in names:
            host = None
            if depth:
                host = _innermost_function(thing, function.path[:depth], module_name)
            if host is None:
                raise NotDefinedYet(function.module or "")
            return Target([], host, function.path[depth:])
        thing = names[part]
    target = _innermost_function(thing, function.path, module_name)
    if target is None:
        raise AttributeError(function.reference)
    return Target([target])


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def function_at(module: str, path: tuple[str, ...]) -> FunctionType | None:
    """Return the function that is at a path in a module now; None if no function defined under that
    path is there."""
    thing: Any = sys.modules.get(module)
    for part in path:
        names = _namespace(thing)
        thing = names.get(_mangled_part(part, thing, names))
    if thing is None:
        return None
    function = _innermost_function(thing, path, module)
    return function if function is not None and _is_at(function, path) else None


def _mangled_part(part: str, thing: Any, names: dict[str, Any]) -> str:
    """Return ``_K__m`` for the private method ``__m`` of a class ``K`` or of one of its bases.

    Any other name is returned unchanged.
    """
    if part not in names and part.startswith("__") and isinstance(thing, type):
        for base in thing.__mro__:
            private = f"_{base.__name__.lstrip('_')}{part}"
            if private in names:
                return private
    return part


def _namespace(thing: Any) -> dict[str, Any]:
    if isinstance(thing, type):
        names: dict[str, Any] = {}
        for base in thing.__mro__[::-1]:
            names.update(vars(base))
        return names
    return dict(vars(thing)) if isinstance(thing, ModuleType) else {}


def _innermost_function(thing: Any, path: tuple[str, ...], module: str) -> FunctionType | None:
    """Return the function inside a decorated function, a static method, a class method etc."""
    first: FunctionType | None = None
    visited: set[int] = set()
    queue = [thing]
    while queue and len(visited) < MOST_WRAPPERS:
        item = queue.pop(0)
        if id(item) in visited:
            continue
        visited.add(id(item))
        if isinstance(item, FunctionType):
            first = first or item
            if _is_at(item, path):
                return item
            queue += _functions_in_closure(item)
        inner = unwrapped_once(item)
        if inner is not None:
            queue.insert(0, inner)
        elif type(item) is not FunctionType and not isinstance(item, type):
            queue += _functions_in_attributes(item)
    if first is None or first.__code__.co_name in (path[-1], "<lambda>"):
        return first
    if first.__module__ != module:
        return first
    return _find_anywhere(path, module) or first


def _functions_in_attributes(thing: Any) -> list[Any]:
    if not hasattr(thing, "__dict__"):
        return []
    return [value for value in vars(thing).values() if isinstance(value, FunctionType | MethodType)]


def _find_anywhere(path: tuple[str, ...], module: str) -> FunctionType | None:
    """Return a live function of a module that was defined at a path, or None.

    This finds a function that its decorator keeps where ``_innermost_function`` does not look.
    """
    for item in gc.get_objects():
        # Not isinstance(): it would read each object's __class__, which may run code of the
        # program.
        if type(item) is FunctionType and item.__module__ == module and _is_at(item, path):
            return item
    return None


def _is_at(function: FunctionType, path: tuple[str, ...]) -> bool:
    code = function.__code__
    if code.co_name != path[-1]:
        return False
    # Python 3.10 has no co_qualname; there, only the names are compared. The function's
    # __qualname__ would not do, since functools.wraps changes it.
    qualname = getattr(code, "co_qualname", "")
    return not qualname or tuple(part for part in qualname.split(".") if part != "<locals>") == path


def _functions_in_closure(function: FunctionType) -> list[Any]:
    values = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # the cell is empty
            continue
    return [value for value in values if callable(value) and not isinstance(value, type)]


def unwrapped_once(thing: Any) -> Any:
    """Return the object inside a method, property or wrapper; None for any other object."""
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
    """Return the innermost object inside bound methods, properties and decorators with
    functools.wraps."""
    for _ in range(MOST_WRAPPERS):  # a chain of __wrapped__ may be circular
        inner = None if isinstance(thing, type) else unwrapped_once(thing)
        if inner is None:
            break
        thing = inner
    return thing


# Redefined functions. Python has no event for a name that gets another value. But the name's old
# function is freed at that moment, unless something else refers to it. So the name is checked when
# the old function is freed, and once more when the probe ends.


class RedefinitionWatch:
    """Reports when a name in a module refers to another function than before.

    Args:
        path: Path of the function in the module.
        function: The function that the name refers to now.
        renewed: Called with the new function; must not raise.
    """

    def __init__(
        self,
        module: str,
        path: tuple[str, ...],
        function: FunctionType,
        renewed: Callable[[FunctionType], None],
    ) -> None:
        self.module = module
        self.path = path
        self._renewed = renewed
        self.is_on = True
        self._function = ref(function, self._on_freed)

    def _on_freed(self, _: Any) -> None:
        """Check for a new function when the old one is freed: usually its name has just been given
        to the new one."""
        # when Python exits, it also removes the globals of this module: ``sys`` may be None
        if sys is not None and not sys.is_finalizing():
            self.check()

    def redefined(self) -> FunctionType | None:
        """Return the function that the name refers to now, if it is another than the last one
        reported; otherwise None."""
        now = function_at(self.module, self.path) if self.is_on else None
        return now if now is not self._function() else None

    def check(self) -> None:
        """Report the function that the name refers to now, if it is another than before."""
        now = self.redefined()
        if now is not None:
            self._function = ref(now, self._on_freed)
            self._renewed(now)


def is_named_at(module: str, path: tuple[str, ...], function: FunctionType) -> bool:
    """True if a path in a module refers to the function.

    A function may also be alive without a name, if only other objects hold it.
    """
    names = getattr(sys.modules.get(module), "__dict__", None)
    return names is function.__globals__ and function_at(module, path) is function


# Taps in functions that a module will define: they are inserted when the module is compiled.


class ModuleRequest:
    """A request for taps in a function of a module.

    Args:
        module: The module's name, ``"__main__"`` for the script.
        path: Path of the function in the module.
        defined: Called when the module has been executed.
        complain: Called with the reason why the taps cannot be inserted.
    """

    def __init__(
        self,
        module: str,
        path: tuple[str, ...],
        listener: Any,
        defined: Callable[[], None],
        complain: Callable[[Exception], None],
    ) -> None:
        self.module = module
        self.path = path
        self.listener = listener
        self.defined = defined
        self.complain = complain
        self.unreported: Exception | None = None
        self.is_woven = False  # True if the module was compiled with these taps

    @property
    def is_top(self) -> bool:
        """True if the taps are requested for the top level of the module."""
        return self.path == (TOP,)


_requests: dict[str, list[ModuleRequest]] = {}


def add_request(request: ModuleRequest) -> None:
    """Register a request: its taps are inserted when the module is compiled."""
    if request.module not in _requests:
        imports.watch(request.module, _weaver)
    weave.expect(request.listener)
    _requests.setdefault(request.module, []).append(request)


def remove_request(request: ModuleRequest) -> None:
    if request.unreported is not None:
        request.complain(request.unreported)
        request.unreported = None
    remaining = [other for other in _requests.get(request.module, ()) if other is not request]
    if remaining:
        _requests[request.module] = remaining
    elif _requests.pop(request.module, None):
        imports.unwatch(request.module, _weaver)


def woven_script(statements: list[ast.stmt] | None, code: CodeType, text: bytes | None) -> CodeType:
    """Return the code of a part of the script, with the requested taps.

    Args:
        statements: The part; None for the whole script, if it is nested too deep for one tree.
        text: The script's source.
    """
    requests = _requests.get("__main__")
    if not requests or (statements is None and text is None):
        return code
    try:
        if statements is None:
            assert text is not None
            statements = source.parse_like("".join(source.lines_of(text)), code).body
        return _woven_module(statements, code, requests, is_script=True)
    except Exception as exc:  # the script runs in any case, without the taps
        if is_from_handler(exc):
            raise
        for request in requests:
            if statements is None or request.is_top or _defines(statements, request):
                _report(request, exc)
        return code


def _woven_module(
    statements: list[ast.stmt],
    code: CodeType,
    requests: Sequence[ModuleRequest],
    is_script: bool = False,
) -> CodeType:
    """Return a module's code with all requested taps that can be inserted.

    Each request that cannot be fulfilled is reported: now for the script, otherwise after the
    module has been executed.

    Raises:
        NoSource, RecursionError: No taps can be inserted.
    """
    table: dict[str, Any] = {}
    with weave.lock:
        if any(request.is_top for request in requests):
            return _woven_top_level(statements, code, requests, is_script)
        defining = [
            statement
            for statement in statements
            if any(_defines([statement], request) for request in requests)
        ]
        if not defining:
            return code
        selected = [
            statement
            for statement in statements
            if any(_share_a_line(statement, other) for other in defining)
        ]
        part, places = _smallest_part(statements, selected, code)
        # the statements that get taps are copied, since the original trees belong to the program
        # or are requested again
        part.body[:] = [
            source.copy_tree(statement) if statement in selected else statement
            for statement in part.body
        ]
        woven, where = _instrument_functions(part, requests, table, code, is_script)
        if not table:
            return code
        new = weave.graft_functions(weave.compile_with_taps(part, code), code, places, table, where)
        for request in woven:
            request.is_woven = True
        return new


def _defines(statements: list[ast.stmt], request: ModuleRequest) -> bool:
    return bool(weave.definitions(ast.Module(statements, []), request.path))


def _share_a_line(first: ast.stmt, second: ast.stmt) -> bool:
    first_end = first.end_lineno or first.lineno
    second_end = second.end_lineno or second.lineno
    return first.lineno <= second_end and second.lineno <= first_end


def _woven_top_level(
    statements: list[ast.stmt], code: CodeType, requests: Sequence[ModuleRequest], is_script: bool
) -> CodeType:
    """Return a module's code with taps, like ``_woven_module``, also in its top-level statements.

    Raises NoSource or RecursionError if no taps can be inserted.
    """
    table: dict[str, Any] = {}
    part = ast.Module([source.copy_tree(statement) for statement in statements], [])
    in_functions = [request for request in requests if not request.is_top]
    woven, where = _instrument_functions(part, in_functions, table, code, is_script)
    top = as_function(part.body)
    possible = [
        request for request in requests if request.is_top and _is_possible(top, request, is_script)
    ]
    weave.instrument_tree(top, [request.listener for request in possible], None, table, None)
    part.body = top.body
    for request in [*woven, *possible]:
        request.is_woven = True
    if not table:
        return code
    return weave.replace_markers(weave.compile_with_taps(part, code), code, table, where)


def _instrument_functions(
    part: ast.Module,
    requests: Sequence[ModuleRequest],
    table: dict[str, Any],
    code: CodeType,
    is_script: bool,
) -> tuple[list[ModuleRequest], list[weave.Placed]]:
    """Insert taps into the requested functions in a part of a module. Return the requests that are
    fulfilled, and the places of their taps."""
    woven: list[ModuleRequest] = []
    where = weave.placed(part, [(request.path, request.listener) for request in requests])
    for path in dict.fromkeys(request.path for request in requests):
        at_path = [request for request in requests if request.path == path]
        for node in weave.definitions(part, path):
            possible = [request for request in at_path if _is_possible(node, request, is_script)]
            if possible:
                listeners = [request.listener for request in possible]
                weave.instrument_tree(node, listeners, None, table, code)
            woven += possible
            impossible = [request.listener for request in at_path if request not in possible]
            where = [place for place in where if not _is_for(place, node, impossible)]
    return woven, where


def _is_for(place: weave.Placed, node: FunctionNode, listeners: list[Any]) -> bool:
    """True if a place is the function itself, and belongs to one of the listeners."""
    function, path, listener = place
    return function is node and not path and listener in listeners


def _smallest_part(
    statements: list[ast.stmt], selected: list[ast.stmt], code: CodeType
) -> tuple[ast.Module, list[CodeType]]:
    """Return the smallest part of a module in which the selected statements compile to the same
    code.

    The second value is the code objects of the part's functions and classes, taken from the
    module's own code. Raises NoSource if the code does not come from these statements.
    """
    whole = ast.Module(statements, [])
    part = source.part_of(whole, selected)
    try:
        return part, weave.matches(source.compile_like(part, code), code)
    except source.NoSource:
        # The part alone compiles to other code, for instance if `super` is also a name in the
        # module.
        places = weave.matches(source.compile_like(whole, code), code)
        return ast.Module([*statements], []), places


def _is_possible(node: FunctionNode, request: ModuleRequest, reports: bool) -> bool:
    """True if a request can be fulfilled, which is tried on a copy of the function.

    With ``reports``, the reason is reported if it cannot.
    """
    try:
        weave.instrument_tree(source.copy_tree(node), [request.listener], None, {}, None)
    except (Unobservable, NeedsMemory, RecursionError) as exc:
        if reports:
            _report(request, exc)
        return False
    return True


def _report(request: ModuleRequest, exc: Exception) -> None:
    """Report an error; keep it for later if the call stack is too deep to report it now."""
    if isinstance(exc, RecursionError):
        exc = source.NoSource(source.TOO_DEEP)
    try:
        request.complain(exc)
    except RecursionError:
        request.unreported = exc


class _Weaver(imports.Watcher):
    """Watcher that inserts taps into a module before it is executed."""

    def code(self, loader: Any, name: str) -> CodeType | None:
        """Return the code with taps if the loader runs a module's code unchanged, else None."""
        requests = _requests.get(name)
        from importlib import _bootstrap_external

        loader_basics: Any = _bootstrap_external._LoaderBasics  # type: ignore[attr-defined]
        is_plain = getattr(type(loader), "exec_module", None) is loader_basics.exec_module
        if not requests or not is_plain:
            return None
        code: CodeType | None = None
        try:
            code = loader.get_code(name)
            text = loader.get_source(name) if code is not None else None
            if code is None or text is None:
                return code
            source.remember_lines(code.co_filename, io.StringIO(text).readlines())
            return _woven_module(source.parse_like(text, code).body, code, requests)
        except Exception as exc:  # after the module has run, ``ran`` tries again and reports errors
            if is_from_handler(exc):
                raise
            return code

    def ran(self, module: ModuleType) -> None:
        """Take over the woven functions, and insert taps into those that could not be woven."""
        for request in list(_requests.get(module.__name__, ())):
            try:
                request.defined()
            except Exception as exc:  # the program's import must not raise an error of voirkit
                if is_from_handler(exc):
                    raise
                _report(request, exc)


_weaver = _Weaver()
