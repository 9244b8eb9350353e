"""From a live function's code back to its syntax tree, in just as much of a module as it takes to compile it again the
same.

Only the function's own lines are parsed.  Around them stand the functions and classes that its qualified name tells
of, empty but for the variables that it takes from them, so that closures, ``super()`` and private names come out as
they were.
"""

from __future__ import annotations
import __future__

import ast
import linecache
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from voirkit.probes.names import FunctionNode

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag
MARK = "\0voirkit "  # begins the constants that are replaced by taps
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class NoSource(Exception):
    """The source is not there, or is not that of the code; says why, to follow the function's name."""


def compiled(tree: ast.Module, code: CodeType) -> CodeType:
    """Compile a tree under the name and ``__future__`` imports of some code."""
    made: CodeType = compile(tree, code.co_filename, "exec", code.co_flags & _FUTURE, dont_inherit=True)
    return made


def parsed(text: str, code: CodeType) -> ast.Module:
    """Parse a text under the name and ``__future__`` imports of some code."""
    flags = code.co_flags & _FUTURE | ast.PyCF_ONLY_AST
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes and the like: said when the program itself was compiled
        tree: ast.Module = compile(text, code.co_filename, "exec", flags, dont_inherit=True)
    return tree


def trees_of(code: CodeType, qualname: str, names: Mapping[str, Any]) -> Iterator[tuple[ast.Module, FunctionNode]]:
    """A module to compile, and the function in it; the next if the first does not compile to the same.

    Args:
        code: The function's code, as it was compiled.
        qualname: Its qualified name, for python 3.10, whose code does not tell.
        names: The function's globals, which may know how to find the source.

    Raises:
        NoSource: There is none.
    """
    lines = linecache.getlines(code.co_filename, dict(names))
    if not lines:
        raise NoSource("can not be probed: its source is not there to read.")
    qualname = getattr(code, "co_qualname", qualname)
    if qualname.rpartition(".")[2] == code.co_name != "<lambda>":
        found = _alone(code, lines, qualname)
        if found is not None:
            found[0].body[:0] = _imports(found[1], names)
            yield found
    found = _in_module(code, lines)
    if found is not None:
        yield found


def _imports(node: ast.AST, names: Mapping[str, Any]) -> list[ast.stmt]:
    """Imports at the top: since 3.11 a call of ``module.f()`` compiles otherwise if ``module`` is imported there."""
    called = {n.func.value.id for n in ast.walk(node)
              if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and isinstance(n.func.value, ast.Name)}  # fmt: skip
    home = names.get("__name__")
    foreign = [n for n in called if n in names and getattr(names[n], "__module__", None) != home]
    foreign = [n for n in foreign if isinstance(names[n], ModuleType) or hasattr(names[n], "__qualname__")]
    if not foreign:
        return []
    return [ast.fix_missing_locations(ast.Import([ast.alias(n, None) for n in foreign]))]


CHANGED = "can not be probed: what runs is not what its source says. The file has changed, or the code is made by a tool."


def _alone(code: CodeType, lines: list[str], qualname: str) -> tuple[ast.Module, FunctionNode] | None:
    start = code.co_firstlineno - 1
    if start >= len(lines):
        return None
    indent = lines[start][: len(lines[start]) - len(lines[start].lstrip())]
    end = max(last_line(code), start + 1)
    for n in range(end, len(lines)):
        if lines[n].strip() and not lines[n].lstrip().startswith("#"):
            if not (lines[n].startswith(indent) and lines[n][len(indent) : len(indent) + 1].isspace()):
                break
            end = n + 1
    text = "".join(lines[start:end])
    try:
        # Empty lines before it are quicker than ast.increment_lineno.
        tree = parsed("\n" * (start - bool(indent)) + ("if 1:\n" if indent else "") + text, code)
    except SyntaxError:
        return None
    body = tree.body[0].body if indent and isinstance(tree.body[0], ast.If) else tree.body
    node = body[0] if len(body) == 1 else None
    if not isinstance(node, _DEFINITIONS) or node.name != code.co_name:
        return None
    around = _around(qualname)
    free = [name for name in code.co_freevars if name != "__class__"]
    kinds = [kind for kind, _ in around]
    if (free and "def" not in kinds) or (len(free) < len(code.co_freevars) and "class" not in kinds):
        return None
    inner: list[ast.stmt] = [node]
    for kind, name in reversed(around):
        outer: Any = ast.parse(f"{kind} x{'()' if kind == 'def' else ''}: pass").body[0]
        outer.name, outer.body = name, inner
        if kind == "def":
            assigned = [ast.Assign([ast.Name(n, ast.Store())], ast.Constant(None)) for n in free]
            outer.body, free = [*assigned, *inner], []
        for made in outer.body[:-1]:
            ast.fix_missing_locations(ast.copy_location(made, node))
        inner = [ast.copy_location(outer, node)]
    return ast.Module(inner, []), node


def _around(qualname: str) -> list[tuple[str, str]]:
    """What is around a function, the outermost first."""
    parts = qualname.split(".")
    found = []
    for n, part in enumerate(parts[:-1]):
        if part != "<locals>":
            found.append(("def" if parts[n + 1] == "<locals>" else "class", part))
    return found


def _in_module(code: CodeType, lines: list[str]) -> tuple[ast.Module, FunctionNode] | None:
    try:
        tree = parsed("".join(lines), code)
    except SyntaxError:
        return None
    if code.co_name != "<lambda>":
        for node in ast.walk(tree):
            if isinstance(node, _DEFINITIONS) and node.name == code.co_name and first_line(node) == code.co_firstlineno:
                return tree, node
        return None
    lambdas = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno]
    for node in lambdas:
        if len(lambdas) == 1 or _is_lambda(node, code):
            return tree, node
    return None


def _is_lambda(node: ast.Lambda, code: CodeType) -> bool:
    body = node.body
    if hasattr(code, "co_positions"):
        return (body.lineno, body.end_lineno, body.col_offset, body.end_col_offset) in set(code.co_positions())
    used = {n.id for n in ast.walk(body) if isinstance(n, ast.Name)} | {n.attr for n in ast.walk(body) if isinstance(n, ast.Attribute)}
    a = node.args
    arguments = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if x is not None]
    return tuple(arguments) == code.co_varnames[: len(arguments)] and used >= {*code.co_names, *code.co_freevars}


def first_line(node: ast.AST) -> int:
    """Where the code of a definition begins: at its first decorator."""
    decorators = getattr(node, "decorator_list", None)
    return decorators[0].lineno if decorators else getattr(node, "lineno", 0)


def last_line(code: CodeType) -> int:
    """The last line that the code or code in it tells of."""
    if hasattr(code, "co_positions"):
        last = max((end for _, end, _, _ in code.co_positions() if end is not None), default=0)
    else:
        last = max((line for _, _, line in code.co_lines() if line is not None), default=0)
    return max([last, *(last_line(inner) for inner in inner_codes(code))])


def inner_codes(code: CodeType) -> list[CodeType]:
    """The code of functions, classes, comprehensions directly in some code."""
    return [c for c in code.co_consts if isinstance(c, CodeType)]


def all_codes(code: CodeType) -> Iterator[CodeType]:
    """Some code, and all in it."""
    yield code
    for inner in inner_codes(code):
        yield from all_codes(inner)


def code_in(module: CodeType, code: CodeType) -> CodeType | None:
    """The code in a module's that stands where some code stood."""
    alike = [c for c in all_codes(module) if c.co_name == code.co_name and c.co_firstlineno == code.co_firstlineno]
    if len(alike) > 1:  # lambdas in a line
        same = [c for c in alike if c.co_varnames == code.co_varnames and c.co_names == code.co_names and c.co_freevars == code.co_freevars]
        marked = [c for c in alike if any(isinstance(k, str) and k.startswith(MARK) for k in c.co_consts)]
        alike = marked or same or alike
    return alike[0] if alike else None


def is_same(found: CodeType | None, code: CodeType) -> bool:
    """Whether the source compiles to the code that runs."""
    frame = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_freevars")
    if found is None or any(getattr(found, a) != getattr(code, a) for a in frame):
        return False
    if any(name.startswith("@py_") for name in (*code.co_varnames, *code.co_names)):  # pytest rewrites assert statements
        return True
    return found.co_code == code.co_code and found.co_names == code.co_names and found.co_varnames == code.co_varnames
