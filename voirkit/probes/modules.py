"""Weaves modules as they are compiled: for functions that are named before they exist, and again when a module is reloaded.

So even what a decorator calls at once is seen. The program's modules look as ever: same loader, same ``__spec__``,
and no woven code gets into ``__pycache__``.
"""

from __future__ import annotations

import ast
import io
from typing import Any

from voirkit import imports
from voirkit.probes import source, weave
from voirkit.probes.source import TOP, as_function
from voirkit.probes.tap_emitter import Unobservable
from voirkit.probes.taps import NeedsMemory
from voirkit.streams import is_from_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, ModuleType

    from voirkit.probes.source import FunctionNode


class ModuleRequest:
    """Taps that are wanted in a function of a module.

    Args:
        module: The module's name, ``"__main__"`` for the script.
        path: Of the function in it.
        listener: Who wants the taps.
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


def add(request: ModuleRequest) -> None:
    """Have taps woven into a module when it is compiled."""
    if request.module not in _requests:
        imports.watch(request.module, _weaver)
    weave.expect(request.listener)
    _requests.setdefault(request.module, []).append(request)


def remove(request: ModuleRequest) -> None:
    if request.untold is not None:
        request.complain(request.untold)
        request.untold = None
    left = [o for o in _requests.get(request.module, ()) if o is not request]
    if left:
        _requests[request.module] = left
    elif _requests.pop(request.module, None):
        imports.unwatch(request.module, _weaver)


def woven_script(statements: list[ast.stmt] | None, code: CodeType, text: bytes | None) -> CodeType:
    """Code of a part of the script, with the taps that are wanted.

    Args:
        statements: The part, or None: the whole, too deep for a tree of it all.
        code: Its code.
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
    """As ``_woven_module``, where the module's own statements get taps too.

    Raises:
        NoSource, RecursionError: None can.
    """
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
    """As little of a module as compiles to the same, and where its functions and classes stand in the module's code.

    Raises:
        NoSource: The code does not come from these statements.
    """
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
