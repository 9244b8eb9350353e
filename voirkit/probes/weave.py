"""Puts taps into live functions, and takes them out again.

A function's tree gets its taps (``sites.py``) and is compiled; the new code takes the place of the function's own,
with each marker among its constants replaced by the tap.  When the last tap goes the function gets its own code back,
the very object.
"""

from __future__ import annotations

import ast
import gc
import threading
import weakref
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from voirkit.probes import origins, source
from voirkit.probes.compiled import watch as watch_compiler
from voirkit.probes.names import FunctionNode, bound_in, bound_inside
from voirkit.probes.sites import Listener, Tapper
from voirkit.probes.source import MARK, NoSource, code_in, compiled, inner_codes, is_same

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Path = tuple[str, ...]
Want = tuple[Path, Listener]  # where in the function (itself: an empty path), and who

lock = threading.RLock()  # held while functions get and lose taps
_patches: dict[int, Patch] = {}


class Patch:
    """A function that has taps, or will have when somebody listens."""

    def __init__(self, function: FunctionType) -> None:
        key = id(function)
        self.function = weakref.ref(function, origins.forget(_patches, key))
        self.keep: FunctionType | None = None
        self.original, self.before = origins.original(function.__code__), function.__code__
        self.wants: list[Want] = []
        self._made: tuple[list[Want], CodeType] = ([], self.original)

    def made(self, wants: list[Want]) -> CodeType:
        """The function's code with taps."""
        if wants != self._made[0]:
            function = self.function()
            assert function is not None  # the caller holds it
            code = woven(self.original, function.__qualname__, function.__globals__, wants)
            self._made = (list(wants), code)
        return self._made[1]

    def apply(self) -> None:
        """Make the function run with the taps that are wanted now."""
        function = self.function()
        if function is None:
            return
        if not self.wants:
            function.__code__ = self.before if origins.stays(self.before) else self.original
            _patches.pop(id(function), None)
            return
        awake = [want for want in self.wants if want[1].is_awake]
        function.__code__ = self.made(awake) if awake else self.original.replace()


def tried(function: FunctionType, path: Path, listener: Listener) -> Patch:
    """Make a function's code with the taps of one more listener, without putting it in place.

    Raises:
        NoSource: It can not be made.
    """
    patch = _patches.get(id(function)) or Patch(function)
    patch.keep = function  # until it is attached
    patch.made([*patch.wants, (path, listener)])
    return patch


def attach(patch: Patch, path: Path, listener: Listener) -> weakref.ref[FunctionType]:
    """Put the taps of a listener that has been tried into the function; returns a reference to the function.

    Raises:
        NoSource: They can not be had together with those of others.
    """
    function = patch.keep or patch.function()
    assert function is not None  # kept since it was tried
    patch = _patches.setdefault(id(function), patch)
    patch.wants.append((path, listener))
    origins.live.add(id(listener))
    patch.apply()
    patch.keep = None
    return patch.function


def adopt(function: FunctionType, listener: Listener) -> bool:
    """Take over a function that was compiled with taps; whether it was."""
    with lock:
        if id(function.__code__) not in origins.made:
            return False
        patch = _patches.get(id(function)) or Patch(function)
        _patches[id(function)] = patch
        if all(other is not listener for _, other in patch.wants):
            patch.wants.append(((), listener))
        origins.live.add(id(listener))
        return True


def detach(function: FunctionType | None, listener: Listener) -> None:
    """Take a listener's taps out of a function, if that is still there."""
    with lock:
        origins.live.discard(id(listener))
        patch = _patches.get(id(function))
        if patch is not None:
            patch.wants = [want for want in patch.wants if want[1] is not listener]
            patch.apply()


def refresh(functions: Iterable[FunctionType | None]) -> None:
    """Look again at who listens."""
    with lock:
        for function in functions:
            patch = _patches.get(id(function))
            if patch is not None:
                patch.apply()


def woven(code: CodeType, qualname: str, names: dict[str, Any], wants: Sequence[Want]) -> CodeType:
    """New code for a function.

    Raises:
        NoSource: It can not be made.
    """
    for plain, node in source.trees_of(code, qualname, names):
        if is_same(code_in(compiled(plain, code), code), code):
            tree, function = plain, node
            break
    else:
        raise NoSource(source.CHANGED)
    table: dict[str, Any] = {}
    for path in dict.fromkeys(path for path, _ in wants):
        listeners = [listener for at, listener in wants if at == path]
        for inner in definitions(function, path):
            put(inner, listeners, names, table)
    try:
        new = code_in(compiled(tree, code), code)
    except SyntaxError as exc:  # such as too many blocks in blocks
        raise NoSource(f"can not be probed: with its taps it does not compile ({exc.msg}).") from None
    assert new is not None  # it was there before
    return patched(new, code, table, frozenset(id(listener) for _, listener in wants))


def put(node: FunctionNode, listeners: Sequence[Listener], names: dict[str, Any] | None, table: dict[str, Any]) -> None:
    """Put the taps of listeners into a tree; ``names`` are the module's, if it has run."""
    wanted = [name for listener in listeners for name in listener.names]
    own = bound_in(node)
    outside = [name for name in dict.fromkeys(wanted) if name not in own]
    used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - bound_inside(node)
    Tapper(node, listeners, [name for name in outside if name in used], names, table).put()


def definitions(node: ast.AST, path: Path) -> list[FunctionNode]:
    """The functions at a path inside a function, class or module; the thing itself for an empty path."""
    if not path:
        return [node] if isinstance(node, FunctionNode) else []
    found: list[FunctionNode] = []
    stack: list[ast.AST] = list(getattr(node, "body", []))[::-1] if isinstance(getattr(node, "body", None), list) else []
    while stack:
        at = stack.pop()
        if isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if at.name == path[0]:
                found += definitions(at, path[1:])
        elif isinstance(at, ast.Assign) and isinstance(at.value, ast.Lambda) and len(path) == 1:
            if any(isinstance(t, ast.Name) and t.id == path[0] for t in at.targets):
                found.append(at.value)
        elif isinstance(at, ast.stmt | ast.ExceptHandler | getattr(ast, "match_case", ())):
            stack += [c for c in ast.iter_child_nodes(at) if not isinstance(c, ast.expr)][::-1]
    return found


def patched(new: CodeType, old: CodeType | None, table: dict[str, Any], listeners: frozenset[int]) -> CodeType:
    """Code with the markers replaced; what in it has none is the old code, the very object."""
    inner_old = inner_codes(old) if old is not None else []
    inner_new = inner_codes(new)
    pairs = dict(zip(map(id, inner_new), inner_old, strict=False)) if len(inner_new) == len(inner_old) else {}
    consts: list[Any] = []
    changed = False
    for const in new.co_consts:
        if isinstance(const, str) and const.startswith(MARK):
            const, changed = table[const], True
        elif isinstance(const, CodeType):
            before = pairs.get(id(const))
            const = patched(const, before, table, listeners)
            changed = changed or const is not before
        consts.append(const)
    if not changed and old is not None:
        return old
    code = new.replace(co_consts=tuple(consts))
    watch_compiler()
    if old is not None:
        origins.note(code, old, listeners)
    return code


def codes_at(code: CodeType, path: Path) -> list[CodeType]:
    """The code of the functions at a path inside some code."""
    found = [c for c in inner_codes(code) if c.co_name == path[0]]
    found += [d for c in inner_codes(code) if c.co_name.startswith("<generic parameters") for d in codes_at(c, path)]
    return found if len(path) == 1 else [d for c in found for d in codes_at(c, path[1:])]


def restore_made(listeners: Iterable[Listener]) -> None:
    """Give their own code to functions made with the taps of listeners that are gone.  Looks through all objects."""
    with lock:
        origins.live.difference_update(map(id, listeners))
        for reference, old, wanted in list(origins.made.values()):
            code = reference()
            if code is not None and not wanted & origins.live:
                for function in made_from(code):
                    if id(function) not in _patches:
                        function.__code__ = old


def made_from(code: CodeType) -> list[FunctionType]:
    """The live functions that run some code: looks through all objects, 10 ms beside torch."""
    return [f for f in gc.get_referrers(code) if isinstance(f, FunctionType) and f.__code__ is code]
