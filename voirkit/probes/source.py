"""From a live function's code back to its syntax tree, in just as much of a module as it takes to compile it again the
same.

Only the function's own lines are parsed.  Around them stand the functions and classes that its qualified name tells
of, empty but for the variables that it takes from them, so that closures, ``super()`` and private names come out as
they were.
"""

from __future__ import annotations
import __future__

import ast
import io
import linecache
import tokenize
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from voirkit.probes import rewritten
from voirkit.quiet import quiet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from voirkit.probes.names import FunctionNode

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class NoSource(Exception):
    """The source is not there, or is not that of the code; says why, to follow the function's name."""


def compiled(tree: ast.Module, code: CodeType) -> CodeType:
    """Compile a tree under the name and ``__future__`` imports of some code."""
    with quiet(code.co_filename):  # they were given when the program itself was compiled
        made: CodeType = compile(tree, code.co_filename, "exec", code.co_flags & _FUTURE, dont_inherit=True)
    return made


def parsed(text: str, code: CodeType) -> ast.Module:
    """Parse a text under the name and ``__future__`` imports of some code."""
    flags = code.co_flags & _FUTURE | ast.PyCF_ONLY_AST
    with quiet(code.co_filename):
        tree: ast.Module = compile(text, code.co_filename, "exec", flags, dont_inherit=True)
    return tree


_kept: dict[str, list[list[str]]] = {}  # the lines of files as they were when their code was compiled, as far as that is known
VERSIONS = 4  # of a file that is edited and reloaded


def lines_of(source: bytes) -> list[str]:
    """The lines of a source file's bytes, as the compiler reads them.

    Raises:
        SyntaxError, UnicodeDecodeError: It can not be read.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return io.TextIOWrapper(io.BytesIO(source), encoding).readlines()


def keep(filename: str, lines: list[str]) -> None:
    """Remember the lines of a file that code was compiled from: it may be edited while the program runs."""
    kept = _kept.setdefault(filename, [])
    kept[:] = [lines, *(other for other in kept if other != lines)][:VERSIONS]


def texts_of(code: CodeType, names: Mapping[str, Any]) -> Iterator[list[str]]:
    """The lines that some code may have been compiled from.

    Args:
        code: The code.
        names: Its globals, which may know how to find the source.

    Raises:
        NoSource: There are none.
    """
    kept = list(_kept.get(code.co_filename, ()))
    yield from kept
    lines = linecache.getlines(code.co_filename, dict(names))
    if lines and lines not in kept:
        yield lines
    if not lines and not kept:
        raise NoSource("can not be probed: its source is not there to read.")


def trees_in(
    lines: list[str], code: CodeType, qualname: str, names: Mapping[str, Any]
) -> Iterator[tuple[ast.Module, FunctionNode]]:  # fmt: skip
    """A module to compile, and the function in it; the next if the first does not compile to the same.

    Args:
        lines: The lines of its file.
        code: The function's code, as it was compiled.
        qualname: Its qualified name, for python 3.10, whose code does not tell.
        names: The function's globals.
    """
    qualname = getattr(code, "co_qualname", qualname)
    if qualname.rpartition(".")[2] == code.co_name != "<lambda>":
        found = _alone(code, lines, qualname)
        if found is not None:
            imports = _imports(found[1], names)
            found[0].body[:0] = imports
            rewritten.rewrite(found[0], code, lines)
            yield found
            again = _alone(code, lines, qualname) if imports else None
            if again is not None:  # a script's statements are compiled in parts, of which its imports may be another
                rewritten.rewrite(again[0], code, lines)
                yield again
    for found in _in_module(code, lines):
        rewritten.rewrite(found[0], code, lines)
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


TOO_DEEP = "can not be probed: it stands too deep in its source, or the program in its calls, for Python to compile it with taps."
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
        tree = parsed(("if 1:\n" if indent else "") + text, code)
    except SyntaxError:
        return None
    body = tree.body[0].body if indent and isinstance(tree.body[0], ast.If) else tree.body
    node = body[0] if len(body) == 1 else None
    if not isinstance(node, _DEFINITIONS) or node.name != code.co_name:
        return None
    ast.increment_lineno(node, start - bool(indent))
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
        inner = [outer]
    return ast.fix_missing_locations(ast.Module(inner, [])), node


def _around(qualname: str) -> list[tuple[str, str]]:
    """What is around a function, the outermost first."""
    parts = qualname.split(".")
    found = []
    for n, part in enumerate(parts[:-1]):
        if part != "<locals>":
            found.append(("def" if parts[n + 1] == "<locals>" else "class", part))
    return found


def _in_module(code: CodeType, lines: list[str]) -> Iterator[tuple[ast.Module, FunctionNode]]:
    try:
        tree = parsed("".join(lines), code)
    except SyntaxError:
        return
    for statement in tree.body:
        found: list[FunctionNode] = []
        for node in ast.walk(statement):
            if isinstance(node, ast.Lambda):
                if code.co_name == "<lambda>" and node.lineno == code.co_firstlineno and _is_lambda(node, code):
                    found.append(node)
            elif isinstance(node, _DEFINITIONS) and node.name == code.co_name and first_line(node) == code.co_firstlineno:
                found.append(node)
        for node in found:
            yield part_of(tree, [statement]), node
            yield tree, node  # where the rest counts, such as where `super` is also a name of the module's
            yield ast.Module([statement], []), node


def copied(node: Any) -> Any:
    """A copy of a tree, however deep: ``copy.deepcopy`` takes seven calls a level."""
    made: Any = ast.AST.__new__(type(node))
    stack = [(node, made)]
    while stack:
        old, new = stack.pop()

        def copy(value: Any) -> Any:
            if not isinstance(value, ast.AST):
                return value
            twin = ast.AST.__new__(type(value))
            stack.append((value, twin))
            return twin

        new.__dict__.update({name: [*map(copy, v)] if isinstance(v, list) else copy(v) for name, v in vars(old).items()})
    return made


def part_of(tree: ast.Module, statements: list[ast.stmt]) -> ast.Module:
    """A module with some of its statements, in which the functions compile as in the whole.

    The rest of a module may be too deep for python to compile it from a tree: it takes three calls a level.
    """
    return ast.Module([*_imported(tree), *statements], [])


def _imported(tree: ast.Module) -> list[ast.stmt]:
    """All imports of the module itself: ``module.f()`` compiles otherwise since 3.11 if ``module`` is imported there."""
    found: list[ast.stmt] = []
    stack: list[ast.AST] = [tree]
    while stack:
        at = stack.pop()
        if isinstance(at, ast.Import) or (isinstance(at, ast.ImportFrom) and all(a.name != "*" for a in at.names)):
            found.append(at)
        elif isinstance(at, ast.stmt | ast.Module | ast.ExceptHandler | ast.match_case) and not isinstance(
            at, (*_DEFINITIONS, ast.ClassDef)
        ):
            stack += ast.iter_child_nodes(at)
    is_future = [isinstance(at, ast.ImportFrom) and at.module == "__future__" for at in found]
    return [at for at, future in zip(found, is_future, strict=True) if not future]  # whose flags the compiler is given


def is_code_of(code: CodeType, node: FunctionNode) -> bool:
    """Whether some code is that of a definition."""
    if code.co_firstlineno != first_line(node):
        return False
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and _is_lambda(node, code)
    return code.co_name == node.name


def _is_lambda(node: ast.Lambda, code: CodeType) -> bool:
    body = node.body
    # What stands at column 0 and is 0 wide is the compiler's own.
    places = [p for p in code.co_positions() if None not in p and p[2:] != (0, 0)] if hasattr(code, "co_positions") else []
    if places:
        around = [n for n in ast.walk(node) if isinstance(n, ast.Lambda) and all(_is_within(place, n.body) for place in places)]
        return around[-1:] == [node]  # the innermost
    used = {n.id for n in ast.walk(body) if isinstance(n, ast.Name)} | {n.attr for n in ast.walk(body) if isinstance(n, ast.Attribute)}
    a = node.args
    arguments = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if x is not None]
    others = [name for name in (*code.co_names, *code.co_freevars) if name not in used and "__" not in name]  # private ones are mangled
    return tuple(arguments) == code.co_varnames[: len(arguments)] and not others


def _is_within(place: tuple[Any, ...], node: ast.expr) -> bool:
    line, end, column, last = place
    return (node.lineno, node.col_offset) <= (line, column) and (end, last) <= (node.end_lineno or 0, node.end_col_offset or 0)


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


def sets(code: CodeType, name: str) -> bool:
    """Whether code, or code in it, gives a variable of its own another value, or deletes it."""
    import dis  # only who asks this needs it

    codes = [code, *(c for inner in inner_codes(code) for c in all_codes(inner) if name in c.co_freevars)]
    changes = [i for c in codes for i in dis.get_instructions(c) if i.opname.startswith(("STORE_", "DELETE_")) and "ATTR" not in i.opname]
    # Since 3.13 an instruction may store one variable, and store or load another.
    pairs = [i.argval[:1] if i.opname.endswith("_LOAD_FAST") else i.argval for i in changes if type(i.argval) is tuple]
    return any(name == i.argval for i in changes) or any(name in pair for pair in pairs)


def inner_codes(code: CodeType) -> list[CodeType]:
    """The code of functions, classes, comprehensions directly in some code."""
    return [c for c in code.co_consts if isinstance(c, CodeType)]


def all_codes(code: CodeType) -> Iterator[CodeType]:
    """Some code, and all in it."""
    yield code
    for inner in inner_codes(code):
        yield from all_codes(inner)
