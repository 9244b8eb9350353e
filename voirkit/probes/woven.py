"""Makes code with taps from a function's code: its tree gets the taps, is compiled, and each marker among the constants is replaced.

Remembers of all such code what the program's own is, and whose taps it has.
"""

from __future__ import annotations

import ast
import weakref
from types import CodeType
from typing import TYPE_CHECKING, Any

from voirkit.probes import seen, source
from voirkit.probes.calls import MARK
from voirkit.probes.compiled import watch as watch_compiler
from voirkit.probes.names import FunctionNode
from voirkit.probes.sites import Listener
from voirkit.probes.source import NoSource, all_codes, compiled, inner_codes
from voirkit.probes.tapper import Tapper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Path = tuple[str, ...]
Want = tuple[Path, Listener]  # where in the function (itself: an empty path), and who
Placed = tuple[FunctionNode, Path, Listener]  # a function, where in it, and who


class Origin:
    """Where code with taps comes from.

    Attributes:
        code: A reference to it.
        old: The program's own code.
        wants: Whose taps are in it, and where.
        everyone: Identities of all whose taps were put in together with them.
    """

    __slots__ = ("code", "everyone", "old", "wants")

    def __init__(self, code: CodeType, old: CodeType, wants: list[Want], everyone: frozenset[int]) -> None:
        self.code = weakref.ref(code, forget(_origins, id(code)))
        self.old, self.wants, self.everyone = old, wants, everyone


_origins: dict[int, Origin] = {}  # by identity of the new code


def forget(table: dict[int, Any], key: int) -> Callable[[Any], None]:
    """Drops an entry when what it is about is gone; holds the table itself, since a module's names are gone when python ends."""
    return lambda _: table.pop(key, None)


def origin(code: CodeType) -> Origin | None:
    """Where some code comes from, if it has taps."""
    return _origins.get(id(code))


def origins() -> list[Origin]:
    """Those of all code that there is."""
    return list(_origins.values())


def woven(code: CodeType, qualname: str, names: dict[str, Any], wants: Sequence[Want]) -> CodeType:
    """New code for a function.

    Raises:
        NoSource: It can not be made.
    """
    tree, function = tree_of(code, qualname, names)
    table: dict[str, Any] = {}
    where = placed(function, wants)
    for path in dict.fromkeys(path for path, _ in wants):
        listeners = [listener for at, listener in wants if at == path]
        for inner in definitions(function, path):
            put(inner, listeners, names, table)
    try:
        new = _code_in(compiled(tree, code), code)
    except SyntaxError as exc:  # such as too many blocks in blocks
        raise NoSource(f"can not be probed: with its taps it does not compile ({exc.msg}).") from None
    assert new is not None  # it was there before
    return patched(new, code, table, where)


def tree_of(code: CodeType, qualname: str, names: dict[str, Any]) -> tuple[ast.Module, FunctionNode]:
    for tree, function in source.trees_of(code, qualname, names):
        if _is_same(_code_in(compiled(tree, code), code), code):
            return tree, function
    raise NoSource(source.CHANGED)


def put(node: FunctionNode, listeners: Sequence[Listener], names: dict[str, Any] | None, table: dict[str, Any]) -> None:
    """Put the taps of listeners into a tree; ``names`` are the module's, if it has run.

    Raises:
        CanNot: They would not see all that is wanted.
    """
    wanted = dict.fromkeys(name for listener in listeners for name in listener.names)
    outside = seen.outside_of(node) if wanted else ()
    tapper = Tapper(node, listeners, [name for name in wanted if name in outside], names, table)
    tapper.put()
    seen.check(tapper)


def definitions(node: ast.AST, path: Path) -> list[FunctionNode]:
    """The functions at a path inside a function, class or module; the thing itself for an empty path."""
    if not path:
        return [node] if isinstance(node, FunctionNode) else []
    found: list[FunctionNode] = []
    stack: list[ast.AST] = list(getattr(node, "body", []))[::-1] if isinstance(getattr(node, "body", None), list) else []
    while stack:
        at = stack.pop()
        if isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if at.name == path[0] and not _is_setter(at):  # of a property the getter is meant
                found += definitions(at, path[1:])
        elif isinstance(at, ast.Assign) and isinstance(at.value, ast.Lambda) and len(path) == 1:
            if any(isinstance(t, ast.Name) and t.id == path[0] for t in at.targets):
                found.append(at.value)
        elif isinstance(at, ast.stmt | ast.ExceptHandler | getattr(ast, "match_case", ())):
            stack += [c for c in ast.iter_child_nodes(at) if not isinstance(c, ast.expr)][::-1]
    return found


def _is_setter(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    return any(isinstance(d, ast.Attribute) and d.attr in ("setter", "deleter") for d in node.decorator_list)


def placed(root: ast.AST, wants: Sequence[Want]) -> list[Placed]:
    """Whose taps come into which functions: those at the paths, and those around them."""
    ends = ((path, n, listener) for path, listener in wants for n in range(len(path) + 1))
    return [(node, path[n:], listener) for path, n, listener in ends for node in definitions(root, path[:n])]


def _code_in(module: CodeType, code: CodeType) -> CodeType | None:
    """The code in a module's that stands where some code stood."""
    alike = [c for c in all_codes(module) if c.co_name == code.co_name and c.co_firstlineno == code.co_firstlineno]
    if len(alike) > 1:  # lambdas in a line
        same = [c for c in alike if c.co_varnames == code.co_varnames and c.co_names == code.co_names and c.co_freevars == code.co_freevars]
        marked = [c for c in alike if any(isinstance(k, str) and k.startswith(MARK) for k in c.co_consts)]
        alike = marked or same or alike
    return alike[0] if alike else None


def _is_same(found: CodeType | None, code: CodeType) -> bool:
    """Whether the source compiles to the code that runs."""
    frame = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_freevars")
    if found is None or any(getattr(found, a) != getattr(code, a) for a in frame):
        return False
    if any(name.startswith("@py_") for name in (*code.co_varnames, *code.co_names)):  # pytest rewrites assert statements
        return True
    return found.co_code == code.co_code and found.co_names == code.co_names and found.co_varnames == code.co_varnames


def patched(new: CodeType, old: CodeType | None, table: dict[str, Any], where: Sequence[Placed]) -> CodeType:
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
            const = patched(const, before, table, where)
            changed = changed or const is not before
        consts.append(const)
    if not changed and old is not None:
        return old
    code = new.replace(co_consts=tuple(consts))
    watch_compiler()
    if old is not None:
        wants = [(path, listener) for node, path, listener in where if source.is_code_of(old, node)]
        _origins[id(code)] = Origin(code, old, wants, frozenset(id(listener) for _, _, listener in where))
    return code
