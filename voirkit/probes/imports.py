"""Weaves modules as they are compiled: for functions that are named before they exist, and again when a module is
reloaded.

So even what a decorator calls at once is seen.  The program's modules look as ever: same loader, same ``__spec__``,
and no woven code gets into ``__pycache__``.
"""

from __future__ import annotations

import ast
import copy
from typing import TYPE_CHECKING, Any

from voirkit import imports
from voirkit.probes import source, weave, woven
from voirkit.probes.sites import CanNot, Listener
from voirkit.probes.taps import NeedsMemory

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
    left = [o for o in _orders.get(order.module, ()) if o is not order]
    if left:
        _orders[order.module] = left
    elif _orders.pop(order.module, None):
        imports.unwatch(order.module, _weaver)


def woven_script(statements: list[ast.stmt], code: CodeType) -> CodeType:
    """Code of a part of the script, with the taps that are wished for."""
    orders = _orders.get("__main__")
    try:
        return _woven(ast.Module(copy.deepcopy(statements), []), code, orders, is_script=True) if orders else code
    except RecursionError:  # a tree that is too deep to copy
        return code


def _woven(tree: ast.Module, code: CodeType, orders: Sequence[Order], is_script: bool = False) -> CodeType:
    """A module's code with taps, those that can be put in.

    Who wished for the others is told now if it is the script, else when the module has been executed.
    """
    table: dict[str, Any] = {}
    with weave.lock:
        where = woven.placed(tree, [(order.path, order.listener) for order in orders])
        for path in dict.fromkeys(order.path for order in orders):
            wishes = [order for order in orders if order.path == path]
            for node in woven.definitions(tree, path):
                possible = [order for order in wishes if _can(node, order, is_script)]
                if possible:
                    woven.put(node, [order.listener for order in possible], None, table, code)
                for order in possible:
                    order.made = True
                others = [order.listener for order in wishes if order not in possible]
                where = [(at, rest, listener) for at, rest, listener in where if at is not node or rest or listener not in others]
        if not table:
            return code
        try:
            return woven.patched(source.compiled(tree, code), code, table, where)
        except SyntaxError:
            return code


def _can(node: FunctionNode, order: Order, tell: bool) -> bool:
    """Whether a wish can be fulfilled; tried on a copy."""
    try:
        woven.put(copy.deepcopy(node), [order.listener], None, {}, None)
    except (CanNot, NeedsMemory) as exc:
        if tell:
            order.complain(exc)
        return False
    return True


class _Weaver(imports.Watcher):
    """Weaves a module that is executed."""

    def code(self, loader: Any, name: str) -> CodeType | None:
        """Woven code, for loaders that run a module's code as it is."""
        orders = _orders.get(name)
        from importlib import _bootstrap_external

        plain = getattr(type(loader), "exec_module", None) is _bootstrap_external._LoaderBasics.exec_module  # type: ignore[attr-defined]
        if not orders or not plain:
            return None
        code: CodeType | None = loader.get_code(name)
        text = loader.get_source(name) if code is not None else None
        if code is None or text is None:
            return None
        woven = _woven(source.parsed(text, code), code, orders)
        return woven if woven is not code else None

    def ran(self, module: ModuleType) -> None:
        """Take over what was woven, and put on what could not be."""
        for order in list(_orders.get(module.__name__, ())):
            order.defined()


_weaver = _Weaver()
