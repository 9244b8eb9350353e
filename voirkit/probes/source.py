"""From a live function's code back to its syntax tree, and the names that a tree binds and uses.

Only the function's own lines are parsed. Around them stand the functions and classes that its qualified name names, empty but for the
variables that it takes from them, so that closures, ``super()`` and private names come out as they were.
"""

from __future__ import annotations
import __future__

import ast
import io
import linecache
import tokenize
from types import CodeType, ModuleType
from typing import Any

from voirkit.imports import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import CodeType


TOP = "<module>"  # the top level of the script ('//<module>', or '//' alone) or of a module ('/package.module/<module>')
_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class NoSource(Exception):
    """The source is not there, or is not that of the code; says why, to follow the function's name."""


def compile_like(tree: ast.Module, code: CodeType) -> CodeType:
    """Compile a tree under the name and ``__future__`` imports of some code."""
    with quiet(code.co_filename):  # they were given when the program itself was compiled
        made: CodeType = compile(tree, code.co_filename, "exec", code.co_flags & _FUTURE, dont_inherit=True)
    return made


def parse_like(text: str, code: CodeType) -> ast.Module:
    """Parse a text under the name and ``__future__`` imports of some code."""
    flags = code.co_flags & _FUTURE | ast.PyCF_ONLY_AST
    with quiet(code.co_filename):
        tree: ast.Module = compile(text, code.co_filename, "exec", flags, dont_inherit=True)
    return tree


_known_lines: dict[str, list[list[str]]] = {}  # the lines of files as they were when their code was compiled, as far as that is known
VERSIONS = 4  # of a file that is edited and reloaded
PICKLED = "<dynamic-code>"  # what cloudpickle since 3.1.3 calls the file of code that it has read


def lines_of(source: bytes) -> list[str]:
    """The lines of a source file's bytes, as the compiler reads them. Raises SyntaxError, UnicodeDecodeError: it cannot be read."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return io.TextIOWrapper(io.BytesIO(source), encoding).readlines()


def remember_lines(filename: str, lines: list[str]) -> None:
    """Remember the lines of a file that code was compiled from: it may be edited while the program runs."""
    kept = _known_lines.setdefault(filename, [])
    kept[:] = [lines, *(other for other in kept if other != lines)][:VERSIONS]


def texts_of(code: CodeType, names: Mapping[str, Any]) -> Iterator[list[str]]:
    """The lines that some code may have been compiled from; its globals may know how to find the source. Raises NoSource: there are
    none."""
    kept = list(_known_lines.get(code.co_filename, ()))
    if code.co_filename == PICKLED:  # of any file that is known: what its lines compile to decides
        kept = [lines for versions in _known_lines.values() for lines in versions]
    yield from kept
    lines = linecache.getlines(code.co_filename, dict(names))
    if lines and lines not in kept:
        yield lines
    if not lines and not kept:
        raise NoSource("cannot be probed: its source is not there to read.")


def trees_in(
    lines: list[str], code: CodeType, qualname: str, names: Mapping[str, Any]
) -> Iterator[tuple[ast.Module, FunctionNode]]:  # fmt: skip
    """A module to compile, and the function in it; the next if the first does not compile to the same. ``qualname``: its qualified name,
    for python 3.10, whose code does not tell."""
    qualname = getattr(code, "co_qualname", qualname)
    if qualname.rpartition(".")[2] == code.co_name != "<lambda>":
        found = _function_only(code, lines, qualname)
        if found is not None:
            imports = _imports(found[1], names)
            found[0].body[:0] = imports
            yield found
            again = _function_only(code, lines, qualname) if imports else None
            if again is not None:  # a script's statements are compiled in parts, of which its imports may be another
                yield again
    yield from _in_module(code, lines)


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


TOO_DEEP = "cannot be probed: it stands too deep in its source, or the program in its calls, for Python to compile it with taps."
CHANGED = "cannot be probed: what runs is not what its source says. The file has changed, or the code is made by a tool."
PYTEST = "cannot be probed: pytest has rewritten its assert statements. Run pytest with --assert=plain, or assert elsewhere."


def why_other(code: CodeType) -> str:
    """Why some code is not what its source says, to follow the function's name."""
    return PYTEST if any(name.startswith("@py") for name in (*code.co_varnames, *code.co_names)) else CHANGED


def _function_only(code: CodeType, lines: list[str], qualname: str) -> tuple[ast.Module, FunctionNode] | None:
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
        tree = parse_like(("if 1:\n" if indent else "") + text, code)
    except SyntaxError:
        return None
    body = tree.body[0].body if indent and isinstance(tree.body[0], ast.If) else tree.body
    node = body[0] if len(body) == 1 else None
    if not isinstance(node, _DEFINITIONS) or node.name != code.co_name:
        return None
    ast.increment_lineno(node, start - bool(indent))
    around = _definitions_around(qualname)
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


def _definitions_around(qualname: str) -> list[tuple[str, str]]:
    """What is around a function, the outermost first."""
    parts = qualname.split(".")
    found = []
    for n, part in enumerate(parts[:-1]):
        if part != "<locals>":
            found.append(("def" if parts[n + 1] == "<locals>" else "class", part))
    return found


def _in_module(code: CodeType, lines: list[str]) -> Iterator[tuple[ast.Module, FunctionNode]]:
    try:
        tree = parse_like("".join(lines), code)
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


def copy_tree(node: Any) -> Any:
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
    """A module with some of its statements, in which the functions compile as in the whole. The rest of a module may be too deep for python
    to compile it from a tree: it takes three calls a level."""
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
    passed = tuple(argument.arg for argument in variables_passed(node.args))
    others = [name for name in (*code.co_names, *code.co_freevars) if name not in used and "__" not in name]  # private ones are mangled
    return passed == code.co_varnames[: len(passed)] and not others


def _is_within(place: tuple[Any, ...], node: ast.expr) -> bool:
    line, end, column, last = place
    return (node.lineno, node.col_offset) <= (line, column) and (end, last) <= (node.end_lineno or 0, node.end_col_offset or 0)


def first_line(node: ast.AST) -> int:
    """Where the code of a definition begins: at its first decorator."""
    decorators = getattr(node, "decorator_list", None)
    return decorators[0].lineno if decorators else getattr(node, "lineno", 0)


def last_line(code: CodeType) -> int:
    """The last line that the code, or code in it, has."""
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


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def arguments(args: ast.arguments) -> list[ast.arg]:
    """All parameters, in the order of the signature."""
    every = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    return [argument for argument in every if argument is not None]


def variables_passed(args: ast.arguments) -> list[ast.arg]:
    """All parameters, in the order in which code has them as variables: those of ``*args`` and ``**kwargs`` last."""
    rest = [args.vararg, args.kwarg]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *(argument for argument in rest if argument is not None)]


def body_of(node: FunctionNode) -> list[Any]:
    """The statements of a function, or a lambda's expression."""
    return [node.body] if isinstance(node, ast.Lambda) else node.body


def outer_fields(node: ast.AST) -> list[tuple[ast.AST, str]]:
    """Where the expressions of a nested definition stand that the scope around it evaluates: decorators, defaults, bases ..."""
    found: list[tuple[ast.AST, str]] = [(node, field) for field in ("decorator_list", "bases", "keywords")]
    if isinstance(node, FunctionNode):
        a = node.args
        found += [(a, "defaults"), (a, "kw_defaults"), *((argument, "annotation") for argument in arguments(a)), (node, "returns")]
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
    found = {argument.arg for argument in arguments(node.args)}
    stack: list[tuple[ast.AST, bool]] = [(child, False) for child in body_of(node)]
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


def used_in(node: ast.AST, hidden: frozenset[str] = frozenset()) -> Iterator[str]:
    """The names that a function's statements use, but for what scopes inside it (functions, classes, comprehensions) bind for themselves.
    ``hidden``: names that have another meaning there."""
    rest: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.Name):
        if node.id not in hidden:
            yield node.id
        return
    if isinstance(node, SCOPES):
        for outer in outer_expressions(node):
            yield from used_in(outer, hidden)
        if isinstance(node, FunctionNode):
            hidden |= bound_in(node)
        else:
            hidden |= {n.id for n in inside(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        rest = body_of(node) if isinstance(node, FunctionNode) else node.body
    elif isinstance(node, COMPREHENSIONS):
        yield from used_in(node.generators[0].iter, hidden)
        hidden |= {name for generator in node.generators for name in bound(generator.target)}
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


def dotted(node: ast.AST) -> str:
    """The text of ``a.b.c``; ``""`` for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *parts[::-1]]) if isinstance(node, ast.Name) else ""


def mangled(name: str, code: CodeType) -> str:
    """``_K__x`` for ``__x`` in the code of a class's method."""
    if not name.startswith("__") or name.endswith("__"):
        return name
    known = (*code.co_varnames, *code.co_cellvars, *code.co_freevars, *code.co_names)
    return next((n for n in known if n.startswith("_") and n != name and n.endswith(name)), name)


def pattern_names(pattern: ast.AST) -> list[str]:
    found: list[str] = []
    name = getattr(pattern, "name", None)
    for child in ast.iter_child_nodes(pattern):
        found += pattern_names(child)
    rest = getattr(pattern, "rest", None)
    return list(dict.fromkeys([*found, *(n for n in (name, rest) if isinstance(n, str))]))


def deleted_in(node: ast.AST) -> frozenset[str]:
    """Names that may be unbound again, in the function or in one inside it."""
    gone = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Del)}
    return frozenset(gone | {n.name for n in ast.walk(node) if isinstance(n, ast.ExceptHandler) and n.name})


def as_function(statements: list[ast.stmt]) -> ast.FunctionDef:
    """A function with these statements for its body, to be looked at or tapped in the module's stead."""
    nothing = ast.arguments(posonlyargs=[], args=[], vararg=None, kwonlyargs=[], kw_defaults=[], kwarg=None, defaults=[])
    function = ast.FunctionDef(name=TOP, args=nothing, body=statements, decorator_list=[], returns=None)
    function.lineno, function.col_offset = 1, 0
    function.end_lineno = max((statement.end_lineno or 1 for statement in statements), default=1)
    return function


def is_top(node: ast.AST) -> bool:
    """Whether a function only stands for a module."""
    return isinstance(node, ast.FunctionDef) and node.name == TOP


def is_future(statement: ast.stmt) -> bool:
    """Whether it is an import from ``__future__``."""
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__" and not statement.level
