"""Weaves modules as they are compiled: for functions that are named before they exist, and again when a module is
reloaded.

So even what a decorator calls at once is seen.  The program's modules look as ever: same loader, same ``__spec__``,
and no woven code gets into ``__pycache__``.
"""

from __future__ import annotations

import ast
import copy
import sys
from typing import TYPE_CHECKING, Any

from voirkit.probes import source, weave
from voirkit.probes.sites import CanNot, Listener
from voirkit.probes.taps import NeedsMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
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
    _orders.setdefault(order.module, []).append(order)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def remove(order: Order) -> None:
    """Take a wish back."""
    left = [o for o in _orders.get(order.module, ()) if o is not order]
    if left:
        _orders[order.module] = left
    else:
        _orders.pop(order.module, None)
    if not _orders and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


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
        for path in dict.fromkeys(order.path for order in orders):
            wishes = [order for order in orders if order.path == path]
            for node in weave.definitions(tree, path):
                possible = [order for order in wishes if _can(node, order, is_script)]
                if possible:
                    weave.put(node, [order.listener for order in possible], None, table)
                for order in possible:
                    order.made = True
        if not table:
            return code
        try:
            return weave.patched(source.compiled(tree, code), code, table, frozenset(id(o.listener) for o in orders))
        except SyntaxError:
            return code


def _can(node: FunctionNode, order: Order, tell: bool) -> bool:
    """Whether a wish can be fulfilled; tried on a copy."""
    try:
        weave.put(copy.deepcopy(node), [order.listener], None, {})
    except (CanNot, NeedsMemory) as exc:
        if tell:
            order.complain(exc)
        return False
    return True


class _Loader:
    """A module's own loader, and the weaving between its reading and its running."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        # The module must look as if nothing had stood between: its loader is its own again before its code runs.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        name = module.__name__
        code = self._code(name)
        if code is None:
            self._loader.exec_module(module)
        else:
            exec(code, module.__dict__)
        for order in list(_orders.get(name, ())):
            order.defined()

    def _code(self, name: str) -> CodeType | None:
        """Woven code, for loaders that run a module's code as it is."""
        loader, orders = self._loader, _orders.get(name)
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


class _Finder:
    """First in ``sys.meta_path``; finds nothing itself, but puts the weaving behind what the others find."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _orders:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None:
                spec: ModuleSpec | None = find(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader)  # type: ignore[assignment]  # has a loader's methods
                    return spec
        return None


_finder: Any = _Finder()
