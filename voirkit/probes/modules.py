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
from voirkit.probes.tap_emitter import Listener, Unobservable
from voirkit.probes.taps import NeedsMemory
from voirkit.streams import is_from_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, ModuleType

    from voirkit.probes.source import FunctionNode


class ModuleRequest:
    """A wish for taps in a function of a module.

    Args:
        module: The module's name, ``"__main__"`` for the script.
        path: Of the function in it.
        listener: Who wants the taps.
        defined: Called when the module has been executed.
        complain: Told why the taps cannot be had.
    """

    def __init__(
        self, module: str, path: tuple[str, ...], listener: Listener, defined: Callable[[], None], complain: Callable[[Exception], None]
    ) -> None:
        self.module, self.path, self.listener, self.defined, self.complain = module, path, listener, defined, complain
        self.untold: Exception | None = None
        self.made = False  # whether a module was compiled with its taps


_requests: dict[str, list[ModuleRequest]] = {}


def add(order: ModuleRequest) -> None:
    """Wish for taps."""
    if order.module not in _requests:
        imports.watch(order.module, _weaver)
    weave.expect(order.listener)
    _requests.setdefault(order.module, []).append(order)


def remove(order: ModuleRequest) -> None:
    """Take a wish back."""
    if order.untold is not None:
        order.complain(order.untold)
        order.untold = None
    left = [o for o in _requests.get(order.module, ()) if o is not order]
    if left:
        _requests[order.module] = left
    elif _requests.pop(order.module, None):
        imports.unwatch(order.module, _weaver)


def woven_script(statements: list[ast.stmt] | None, code: CodeType, text: bytes | None) -> CodeType:
    """Code of a part of the script, with the taps that are wished for.

    Args:
        statements: The part, or None: the whole, too deep for a tree of it all.
        code: Its code.
        text: The script's source.
    """
    orders = _requests.get("__main__")
    if not orders or (statements is None and text is None):
        return code
    try:
        if statements is None:
            assert text is not None
            statements = source.parse_like("".join(source.lines_of(text)), code).body
        return _woven_module(statements, code, orders, is_script=True)
    except Exception as exc:
        if is_from_handler(exc):
            raise
        for order in orders:
            if statements is None or order.path == (TOP,) or weave.definitions(ast.Module(statements, []), order.path):
                _report(order, source.NoSource(source.TOO_DEEP) if isinstance(exc, RecursionError) else exc)
        return code


def _woven_module(statements: list[ast.stmt], code: CodeType, orders: Sequence[ModuleRequest], is_script: bool = False) -> CodeType:
    """A module's code with taps, those that can be put in.

    Who wished for the others is told now if it is the script, else when the module has been executed.

    Raises:
        NoSource, RecursionError: None can.
    """
    table: dict[str, Any] = {}
    with weave.lock:
        if any(order.path == (TOP,) for order in orders):
            return _woven_top_level(statements, code, orders, is_script)
        chosen = [s for s in statements if any(weave.definitions(ast.Module([s], []), order.path) for order in orders)]
        chosen = [
            s for s in statements if any(s.lineno <= (c.end_lineno or c.lineno) and c.lineno <= (s.end_lineno or s.lineno) for c in chosen)
        ]
        if not chosen:
            return code
        part, places = _smallest_part(statements, chosen, code)
        part.body[:] = [source.copy_tree(s) if s in chosen else s for s in part.body]  # they are the program's, or are asked for again
        made, where = _instrument_functions(part, orders, table, code, is_script)
        if not table:
            return code
        try:
            new = weave.graft_functions(source.compile_like(part, code), code, places, table, where)
        except SyntaxError as exc:
            raise source.NoSource(f"cannot be probed: with its taps it does not compile ({exc.msg}).") from None
        for order in made:
            order.made = True
        return new


def _woven_top_level(statements: list[ast.stmt], code: CodeType, orders: Sequence[ModuleRequest], is_script: bool) -> CodeType:
    """As ``_woven``, where the module's own statements get taps too.

    Raises:
        NoSource, RecursionError: None can.
    """
    table: dict[str, Any] = {}
    part = ast.Module([source.copy_tree(s) for s in statements], [])
    made, where = _instrument_functions(part, [order for order in orders if order.path != (TOP,)], table, code, is_script)
    top = as_function(part.body)
    wishes = [order for order in orders if order.path == (TOP,)]
    possible = [order for order in wishes if _is_possible(top, order, is_script)]
    weave.instrument_tree(top, [order.listener for order in possible], None, table, None)
    part.body = top.body
    for order in [*made, *possible]:
        order.made = True
    try:
        return weave.replace_markers(source.compile_like(part, code), code, table, where) if table else code
    except SyntaxError as exc:
        raise source.NoSource(f"cannot be probed: with its taps it does not compile ({exc.msg}).") from None


def _instrument_functions(
    part: ast.Module, orders: Sequence[ModuleRequest], table: dict[str, Any], code: CodeType, is_script: bool
) -> tuple[list[ModuleRequest], list[weave.Placed]]:
    """Put taps into the functions of a part of a module; for whom, and where."""
    made: list[ModuleRequest] = []
    where = weave.placed(part, [(order.path, order.listener) for order in orders])
    for path in dict.fromkeys(order.path for order in orders):
        wishes = [order for order in orders if order.path == path]
        for node in weave.definitions(part, path):
            possible = [order for order in wishes if _is_possible(node, order, is_script)]
            if possible:
                weave.instrument_tree(node, [order.listener for order in possible], None, table, code)
            made += possible
            others = [order.listener for order in wishes if order not in possible]
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


def _is_possible(node: FunctionNode, order: ModuleRequest, reports: bool) -> bool:
    """Whether a wish can be fulfilled; tried on a copy."""
    try:
        weave.instrument_tree(source.copy_tree(node), [order.listener], None, {}, None)
    except (Unobservable, NeedsMemory, RecursionError) as exc:
        if reports:
            _report(order, source.NoSource(source.TOO_DEEP) if isinstance(exc, RecursionError) else exc)
        return False
    return True


def _report(order: ModuleRequest, exc: Exception) -> None:
    """Say what is wrong; later, if the program is too deep in its calls for that."""
    try:
        order.complain(exc)
    except RecursionError:
        order.untold = exc


class _Weaver(imports.Watcher):
    """Weaves a module that is executed."""

    def code(self, loader: Any, name: str) -> CodeType | None:
        """Woven code, for loaders that run a module's code as it is."""
        orders = _requests.get(name)
        from importlib import _bootstrap_external

        plain = getattr(type(loader), "exec_module", None) is _bootstrap_external._LoaderBasics.exec_module  # type: ignore[attr-defined]
        if not orders or not plain:
            return None
        code: CodeType | None = None
        try:
            code = loader.get_code(name)
            text = loader.get_source(name) if code is not None else None
            if code is None or text is None:
                return code
            source.remember_lines(code.co_filename, io.StringIO(text).readlines())
            return _woven_module(source.parse_like(text, code).body, code, orders)
        except Exception as exc:  # when the module has been executed it is tried again, and told
            if is_from_handler(exc):
                raise
            return code

    def ran(self, module: ModuleType) -> None:
        """Take over what was woven, and put on what could not be."""
        for order in list(_requests.get(module.__name__, ())):
            try:
                order.defined()
            except Exception as exc:
                if is_from_handler(exc):
                    raise
                _report(order, source.NoSource(source.TOO_DEEP) if isinstance(exc, RecursionError) else exc)


_weaver = _Weaver()
