"""Makes code with taps from a function's code: its tree gets the taps, is compiled, and each marker among the constants is replaced.

Remembers of all such code what the program's own is, and whose taps it has.
"""

from __future__ import annotations

import ast
import operator
import weakref
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from voirkit.probes import seen, source
from voirkit.probes.calls import MARK
from voirkit.probes.compiled import watch as watch_compiler
from voirkit.probes.names import FunctionNode
from voirkit.probes.pickled import watch as watch_picklers
from voirkit.probes.same import AWAITABLE, is_same
from voirkit.probes.sites import Listener
from voirkit.probes.source import NoSource, all_codes, compiled, inner_codes
from voirkit.probes.tapper import tapper_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CO_GENERATOR = 0x20
FAR = 10**6  # a line that no file has
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
_by_tap: weakref.WeakKeyDictionary[FunctionType, Origin] = weakref.WeakKeyDictionary()  # of generators, by the taps in them


def forget(table: dict[int, Any], key: int) -> Callable[[Any], None]:
    """Drops an entry when what it is about is gone; holds the table itself, since a module's names are gone when python ends."""
    return lambda _: table.pop(key, None)


def origin(code: CodeType) -> Origin | None:
    """Where some code comes from, if it has taps."""
    known = _origins.get(id(code))
    if known is None and code.co_flags & AWAITABLE:  # types.coroutine has copied it
        twin = next((_by_tap[const] for const in code.co_consts if isinstance(const, FunctionType) and const in _by_tap), None)
        if twin is not None:
            own = twin.old.replace(co_flags=twin.old.co_flags | AWAITABLE)
            known = _origins[id(code)] = Origin(code, own, twin.wants, twin.everyone)
    return known


def own_code(code: CodeType) -> CodeType:
    """The program's own code, if some code has taps; else that code."""
    known = origin(code)
    return known.old if known is not None else code


def note(code: CodeType, old: CodeType, whose: frozenset[int]) -> None:
    """Remember that code without taps stands for the program's own, as long as there is such code.

    Args:
        code: The new code.
        old: What it was made from.
        whose: Identities of those for whom it was made.
    """
    _origins[id(code)] = Origin(code, own_code(old), [], whose)


def stands_for(code: CodeType, below: CodeType, whose: frozenset[int]) -> None:
    """As ``note``, of code that may stand over code with taps; and it is pickled as the program's own."""
    known = _origins.get(id(below))
    old, wants, everyone = (known.old, known.wants, known.everyone) if known is not None else (below, [], frozenset())
    _origins[id(code)] = Origin(code, old, wants, everyone | whose)
    watch_picklers(own_code)


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
            put(inner, listeners, names, table, code)
    try:
        codes = _codes_in(compiled(tree, code), code)
    except SyntaxError as exc:  # such as too many blocks in blocks
        raise NoSource(f"can not be probed: with its taps it does not compile ({exc.msg}).") from None
    except RecursionError:
        raise NoSource(source.TOO_DEEP) from None
    # Of lambdas in a line the innermost that all the marks are in.
    new = max(codes, key=lambda c: (_marks(c), codes.index(c)))
    return patched(new, code, table, where)


def tree_of(code: CodeType, qualname: str, names: dict[str, Any]) -> tuple[ast.Module, FunctionNode]:
    """A module to compile, and in it the function that some code was compiled from.

    Raises:
        NoSource: There is none that compiles to the same.
    """
    try:
        for lines in source.texts_of(code, names):
            for tree, function in source.trees_in(lines, code, qualname, names):
                if _compiles_to(tree, function, code):
                    source.keep(code.co_filename, lines)
                    return tree, function
    except RecursionError:
        raise NoSource(source.TOO_DEEP) from None
    raise NoSource(source.CHANGED)


def _compiles_to(tree: ast.Module, function: FunctionNode, code: CodeType) -> bool:
    if not isinstance(function, ast.Lambda) or hasattr(code, "co_positions"):
        return any(is_same(found, code) for found in _codes_in(compiled(tree, code), code))
    # Nothing in python 3.10 tells the code of two lambdas in a line apart; so this one gets a line of its own.
    line, function.lineno = function.lineno, FAR
    try:
        return any(is_same(c, code, same_start=False) for c in all_codes(compiled(tree, code)) if c.co_firstlineno == FAR)
    finally:
        function.lineno = line


def put(
    node: FunctionNode, listeners: Sequence[Listener], names: dict[str, Any] | None, table: dict[str, Any], old: CodeType | None
) -> None:  # fmt: skip
    """Put the taps of listeners into a tree.

    Args:
        node: A function in it.
        listeners: Who wants taps.
        names: The module's names, if it has run.
        table: Gets each marker's function.
        old: Code that the function's own stands in, or is; None: unknown.

    Raises:
        CanNot: They would not see all that is wanted.
    """
    wanted = dict.fromkeys(name for listener in listeners for name in listener.names)
    outside = seen.outside_of(node) if wanted else ()
    own = next((c for c in all_codes(old) if source.is_code_of(c, node)), None) if old is not None else None
    tapped = tapper_of(node, listeners, [name for name in wanted if name in outside], names, table, own)
    tapped.put()
    seen.check(tapped)


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
        elif isinstance(at, ast.Assign | ast.AnnAssign) and isinstance(at.value, ast.Lambda) and len(path) == 1:
            targets = at.targets if isinstance(at, ast.Assign) else [at.target]
            if any(isinstance(t, ast.Name) and t.id == path[0] for t in targets):
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


def _codes_in(module: CodeType, code: CodeType) -> list[CodeType]:
    """The code in a module's that stands where some code stood; several for lambdas in a line."""
    return [c for c in all_codes(module) if c.co_name == code.co_name and c.co_firstlineno == code.co_firstlineno]


def _marks(code: CodeType) -> int:
    """How many marks stand in some code."""
    return sum(isinstance(k, str) and k.startswith(MARK) for c in all_codes(code) for k in c.co_consts)


def matches(plain: CodeType, old: CodeType) -> list[CodeType]:
    """Where the functions and classes of a few statements of a module stand in the module's code.

    Raises:
        NoSource: The module's code does not come from these statements.
    """
    alike: dict[tuple[str, int], list[CodeType]] = {}
    for code in inner_codes(old):
        alike.setdefault((code.co_name, code.co_firstlineno), []).append(code)
    found = []
    for code in inner_codes(plain):
        same = alike.get((code.co_name, code.co_firstlineno))
        if not same or not is_same(same[0], code):
            raise NoSource(source.CHANGED)
        found.append(same.pop(0))
    return found


def grafted(new: CodeType, old: CodeType, places: Sequence[CodeType], table: dict[str, Any], where: Sequence[Placed]) -> CodeType:
    """A module's old code, in which the functions and classes that also stand in the new code have its taps.

    Args:
        new: Code of some of the module's statements, with taps.
        old: The module's.
        places: Where they stand in it.
        table: Each marker's function.
        where: Whose taps come into which functions.
    """
    inner = inner_codes(new)
    if len(inner) != len(places):  # python 3.10 makes one of two equal lambdas of a line
        raise NoSource(source.CHANGED)
    instead = {id(place): patched(made, place, table, where) for made, place in zip(inner, places, strict=True)}
    consts = tuple(instead.get(id(const), const) for const in old.co_consts)
    return old if all(map(operator.is_, consts, old.co_consts)) else old.replace(co_consts=consts)


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
    code = new.replace(co_consts=tuple(consts), co_flags=new.co_flags | (old.co_flags & AWAITABLE if old is not None else 0))
    watch_compiler()
    watch_picklers(own_code)
    if old is not None:
        wants = [(path, listener) for node, path, listener in where if source.is_code_of(old, node)]
        made = _origins[id(code)] = Origin(code, old, wants, frozenset(id(listener) for _, _, listener in where))
        if code.co_flags & CO_GENERATOR:  # of which types.coroutine may make a copy
            _by_tap.update({const: made for const in consts if isinstance(const, FunctionType)})
    return code
