"""Which names the statements and targets of a function set, read off its syntax tree."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def outer_fields(node: ast.AST) -> list[tuple[ast.AST, str]]:
    """Where the expressions of a nested definition stand that the scope around it evaluates: decorators, defaults, bases ..."""
    found: list[tuple[ast.AST, str]] = [(node, field) for field in ("decorator_list", "bases", "keywords")]
    if isinstance(node, FunctionNode):
        a = node.args
        every = [*a.posonlyargs, *a.args, a.vararg, *a.kwonlyargs, a.kwarg]
        found += [(a, "defaults"), (a, "kw_defaults"), *((x, "annotation") for x in every if x is not None), (node, "returns")]
    return [(at, field) for at, field in found if getattr(at, field, None)]


def outer_expressions(node: ast.AST) -> list[ast.AST]:
    """Those expressions, in the order in which they are evaluated."""
    values = [getattr(at, field) for at, field in outer_fields(node)]
    return [v for value in values for v in (value if isinstance(value, list) else [value]) if v is not None]


def inside(node: ast.AST, also: bool = False) -> Iterable[ast.AST]:
    """What is in a function's or expression's own scope, nested scopes left out (``also`` the node itself)."""
    stack = [node] if also else list(ast.iter_child_nodes(node))
    while stack:
        at = stack.pop()
        if isinstance(at, SCOPES):
            stack += outer_expressions(at)
            continue
        yield at
        stack += ast.iter_child_nodes(at)


def bound_in(node: FunctionNode) -> set[str]:
    """The names that a function's own statements bind."""
    a = node.args
    found = {x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if x is not None}
    stack: list[tuple[ast.AST, bool]] = [(child, False) for child in ([node.body] if isinstance(node, ast.Lambda) else node.body)]
    while stack:
        at, deep = stack.pop()
        if isinstance(at, ast.NamedExpr):
            found.add(at.target.id)
        elif isinstance(at, ast.Name) and not isinstance(at.ctx, ast.Load) and not deep:
            found.add(at.id)
        elif isinstance(at, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.split(".")[0] for alias in at.names}
        elif isinstance(at, ast.pattern | ast.ExceptHandler):
            found |= {n for n in (getattr(at, "name", None), getattr(at, "rest", None)) if n}
        elif isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(at.name)
        deep = deep or isinstance(at, COMPREHENSIONS)
        stack += [(child, deep) for child in (outer_expressions(at) if isinstance(at, SCOPES) else ast.iter_child_nodes(at))]
    return found


def used_in(at: ast.AST, hidden: frozenset[str] = frozenset()) -> Iterator[str]:
    """The names that a function's statements use, but for what scopes inside it (functions, classes, comprehensions) bind for themselves.

    ``hidden``: names that have another meaning there.
    """
    rest: Iterable[ast.AST] = ast.iter_child_nodes(at)
    if isinstance(at, ast.Name):
        if at.id not in hidden:
            yield at.id
        return
    if isinstance(at, SCOPES):
        for outer in outer_expressions(at):
            yield from used_in(outer, hidden)
        if isinstance(at, FunctionNode):
            hidden |= bound_in(at)
        else:
            hidden |= {n.id for n in inside(at) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        rest = [at.body] if isinstance(at, ast.Lambda) else at.body
    elif isinstance(at, COMPREHENSIONS):
        yield from used_in(at.generators[0].iter, hidden)
        hidden |= {name for generator in at.generators for name in bound(generator.target)}
    for child in rest:
        yield from used_in(child, hidden)


def bound(*targets: ast.expr) -> list[str]:
    """The names that targets bind, in order."""
    found: list[str] = []
    for target in targets:
        if isinstance(target, ast.Name):
            found.append(target.id)
        elif isinstance(target, ast.Tuple | ast.List):
            found += bound(*target.elts)
        elif isinstance(target, ast.Starred):
            found += bound(target.value)
    return list(dict.fromkeys(found))  # v, v = 1, 2 sets v once, as far as can be told afterwards


def leaves(*targets: ast.expr) -> Iterator[ast.expr]:
    """The names, attributes and items that targets set, in the order in which that is done."""
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from leaves(*target.elts)
        elif isinstance(target, ast.Starred):
            yield from leaves(target.value)
        else:
            yield target


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of an attribute; nothing for other expressions."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    return ".".join([node.id, *path]) if isinstance(node, ast.Name) else ""


def mangled(name: str, code: CodeType) -> str:
    """``_K__x`` for ``__x`` in the code of a class's method."""
    if not name.startswith("__") or name.endswith("__"):
        return name
    known = (*code.co_varnames, *code.co_cellvars, *code.co_freevars, *code.co_names)
    return next((n for n in known if n.startswith("_") and n != name and n.endswith(name)), name)


def captures(pattern: ast.AST) -> list[str]:
    found: list[str] = []
    name = getattr(pattern, "name", None)
    for child in ast.iter_child_nodes(pattern):
        found += captures(child)
    rest = getattr(pattern, "rest", None)
    return list(dict.fromkeys([*found, *(n for n in (name, rest) if isinstance(n, str))]))


def deleted_in(node: ast.AST) -> frozenset[str]:
    """Names that may be unbound again, in the function or in one inside it."""
    gone = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Del)}
    return frozenset(gone | {n.name for n in ast.walk(node) if isinstance(n, ast.ExceptHandler) and n.name})
