"""Weaves modules as they are compiled: for functions that are named before they exist, and again when a module is
reloaded.

So even what a decorator calls at once is seen.  The program's modules look as ever: same loader, same ``__spec__``,
and no woven code gets into ``__pycache__``.
"""

from __future__ import annotations

import ast
import io
from typing import TYPE_CHECKING, Any

from voirkit import imports
from voirkit.interruptions import is_from_handler
from voirkit.probes import source, weave, woven
from voirkit.probes.grammar import TOP
from voirkit.probes.sites import CanNot, Listener
from voirkit.probes.taps import NeedsMemory
from voirkit.probes.top_level import as_function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, ModuleType

    from voirkit.probes.names import FunctionNode


class Order:
    """A wish for taps in a function of a module.

    Args:
        module: The module's name, ``"__main__"`` for the script.
        path: Of the function in it.
        listener: Who wants the taps.
        defined: Called when the module has been executed.
        complain: Told why the taps can not be had.
    """

    def __init__(
        self, module: str, path: tuple[str, ...], listener: Listener, defined: Callable[[], None], complain: Callable[[Exception], None]
    ) -> None:
        self.module, self.path, self.listener, self.defined, self.complain = module, path, listener, defined, complain
        self.untold: Exception | None = None
        self.made = False  # whether a module was compiled with its taps


_orders: dict[str, list[Order]] = {}


def add(order: Order) -> None:
    """Wish for taps."""
    if order.module not in _orders:
        imports.watch(order.module, _weaver)
    weave.expect(order.listener)
    _orders.setdefault(order.module, []).append(order)


def remove(order: Order) -> None:
    """Take a wish back."""
    if order.untold is not None:
        order.complain(order.untold)
        order.untold = None
    left = [o for o in _orders.get(order.module, ()) if o is not order]
    if left:
        _orders[order.module] = left
    elif _orders.pop(order.module, None):
        imports.unwatch(order.module, _weaver)


def woven_script(statements: list[ast.stmt] | None, code: CodeType, text: bytes | None) -> CodeType:
    """Code of a part of the script, with the taps that are wished for.

    Args:
        statements: The part, or None: the whole, too deep for a tree of it all.
        code: Its code.
        text: The script's source.
    """
    orders = _orders.get("__main__")
    if not orders or (statements is None and text is None):
        return code
    try:
        if statements is None:
            assert text is not None
            statements = source.parsed("".join(source.lines_of(text)), code).body
        return _woven(statements, code, orders, is_script=True)
    except Exception as exc:
        if is_from_handler(exc):
            raise
        for order in orders:
            if statements is None or order.path == (TOP,) or woven.definitions(ast.Module(statements, []), order.path):
                _tell(order, source.NoSource(source.TOO_DEEP) if isinstance(exc, RecursionError) else exc)
        return code


def _woven(statements: list[ast.stmt], code: CodeType, orders: Sequence[Order], is_script: bool = False) -> CodeType:
    """A module's code with taps, those that can be put in.

    Who wished for the others is told now if it is the script, else when the module has been executed.

    Raises:
        NoSource, RecursionError: None can.
    """
    table: dict[str, Any] = {}
    with weave.lock:
        if any(order.path == (TOP,) for order in orders):
            return _woven_whole(statements, code, orders, is_script)
        chosen = [s for s in statements if any(woven.definitions(ast.Module([s], []), order.path) for order in orders)]
        chosen = [
            s for s in statements if any(s.lineno <= (c.end_lineno or c.lineno) and c.lineno <= (s.end_lineno or s.lineno) for c in chosen)
        ]
        if not chosen:
            return code
        part, places = _enough(statements, chosen, code)
        part.body[:] = [source.copied(s) if s in chosen else s for s in part.body]  # they are the program's, or are asked for again
        made, where = _put(part, orders, table, code, is_script)
        if not table:
            return code
        try:
            new = woven.grafted(source.compiled(part, code), code, places, table, where)
        except SyntaxError as exc:
            raise source.NoSource(f"can not be probed: with its taps it does not compile ({exc.msg}).") from None
        for order in made:
            order.made = True
        return new


def _woven_whole(statements: list[ast.stmt], code: CodeType, orders: Sequence[Order], is_script: bool) -> CodeType:
    """As ``_woven``, where the module's own statements get taps too.

    Raises:
        NoSource, RecursionError: None can.
    """
    table: dict[str, Any] = {}
    part = ast.Module([source.copied(s) for s in statements], [])
    made, where = _put(part, [order for order in orders if order.path != (TOP,)], table, code, is_script)
    top = as_function(part.body)
    wishes = [order for order in orders if order.path == (TOP,)]
    possible = [order for order in wishes if _can(top, order, is_script)]
    woven.put(top, [order.listener for order in possible], None, table, None)
    part.body = top.body
    for order in [*made, *possible]:
        order.made = True
    try:
        return woven.patched(source.compiled(part, code), code, table, where) if table else code
    except SyntaxError as exc:
        raise source.NoSource(f"can not be probed: with its taps it does not compile ({exc.msg}).") from None


def _put(
    part: ast.Module, orders: Sequence[Order], table: dict[str, Any], code: CodeType, is_script: bool
) -> tuple[list[Order], list[woven.Placed]]:
    """Put taps into the functions of a part of a module; for whom, and where."""
    made: list[Order] = []
    where = woven.placed(part, [(order.path, order.listener) for order in orders])
    for path in dict.fromkeys(order.path for order in orders):
        wishes = [order for order in orders if order.path == path]
        for node in woven.definitions(part, path):
            possible = [order for order in wishes if _can(node, order, is_script)]
            if possible:
                woven.put(node, [order.listener for order in possible], None, table, code)
            made += possible
            others = [order.listener for order in wishes if order not in possible]
            where = [(at, rest, listener) for at, rest, listener in where if at is not node or rest or listener not in others]
    return made, where


def _enough(statements: list[ast.stmt], chosen: list[ast.stmt], code: CodeType) -> tuple[ast.Module, list[CodeType]]:
    """As little of a module as compiles to the same, and where its functions and classes stand in the module's code.

    Raises:
        NoSource: The code does not come from these statements.
    """
    whole = ast.Module(statements, [])
    part = source.part_of(whole, chosen)
    try:
        return part, woven.matches(source.compiled(part, code), code)
    except source.NoSource:  # such as where `super` is also a name of the module's
        return ast.Module([*statements], []), woven.matches(source.compiled(whole, code), code)


def _can(node: FunctionNode, order: Order, tell: bool) -> bool:
    """Whether a wish can be fulfilled; tried on a copy."""
    try:
        woven.put(source.copied(node), [order.listener], None, {}, None)
    except (CanNot, NeedsMemory, RecursionError) as exc:
        if tell:
            _tell(order, source.NoSource(source.TOO_DEEP) if isinstance(exc, RecursionError) else exc)
        return False
    return True


def _tell(order: Order, exc: Exception) -> None:
    """Say what is wrong; later, if the program is too deep in its calls for that."""
    try:
        order.complain(exc)
    except RecursionError:
        order.untold = exc


class _Weaver(imports.Watcher):
    """Weaves a module that is executed."""

    def code(self, loader: Any, name: str) -> CodeType | None:
        """Woven code, for loaders that run a module's code as it is."""
        orders = _orders.get(name)
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
            source.keep(code.co_filename, io.StringIO(text).readlines())
            return _woven(source.parsed(text, code).body, code, orders)
        except Exception as exc:  # when the module has been executed it is tried again, and told
            if is_from_handler(exc):
                raise
            return code

    def ran(self, module: ModuleType) -> None:
        """Take over what was woven, and put on what could not be."""
        for order in list(_orders.get(module.__name__, ())):
            try:
                order.defined()
            except Exception as exc:
                if is_from_handler(exc):
                    raise
                _tell(order, source.NoSource(source.TOO_DEEP) if isinstance(exc, RecursionError) else exc)


_weaver = _Weaver()
