"""Finds the syntax tree of a live function's code, and the names that a tree binds and uses.

Only the function's own lines are parsed. Its tree is nested in the functions and classes of its
qualified name. These are empty except for the variables that the function takes from them, so that
closures, ``super()`` and private names compile as they did.
"""

from __future__ import annotations
import __future__

import ast
import io
import linecache
import tokenize
from itertools import pairwise
from types import CodeType, ModuleType
from typing import Any

from voirkit.imports import quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import CodeType


# the top level of the script ('//<module>', or '//' alone) or of a module
# ('/package.module/<module>')
TOP = "<module>"
_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class NoSource(Exception):
    """The source is missing, or differs from the code. The message is worded to follow the
    function's name."""


def compile_like(tree: ast.Module, code: CodeType) -> CodeType:
    """Compile a tree with the file name and ``__future__`` imports of a code object."""
    flags = code.co_flags & _FUTURE
    with quiet(code.co_filename):  # Python showed the warnings when it compiled the program
        compiled: CodeType = compile(tree, code.co_filename, "exec", flags, dont_inherit=True)
    return compiled


def parse_like(text: str, code: CodeType) -> ast.Module:
    """Parse a text with the file name and ``__future__`` imports of a code object."""
    flags = code.co_flags & _FUTURE | ast.PyCF_ONLY_AST
    with quiet(code.co_filename):
        tree: ast.Module = compile(text, code.co_filename, "exec", flags, dont_inherit=True)
    return tree


# by file name: the lines from which code is known to have been compiled, one list for each version
# of the file, the newest first
_known_lines: dict[str, list[list[str]]] = {}
VERSIONS = 4  # number of versions kept of a file that is edited and reloaded
PICKLED = "<dynamic-code>"  # file name that cloudpickle since 3.1.3 gives to code it has unpickled


def lines_of(source: bytes) -> list[str]:
    """Return the lines of a source file's bytes, as the compiler reads them. Raises SyntaxError or
    UnicodeDecodeError if the bytes cannot be decoded."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return io.TextIOWrapper(io.BytesIO(source), encoding).readlines()


def remember_lines(filename: str, lines: list[str]) -> None:
    """Remember the lines of a file from which code was compiled: the file may be edited while the
    program runs."""
    versions = _known_lines.setdefault(filename, [])
    older = [version for version in versions if version != lines]
    versions[:] = [lines, *older][:VERSIONS]


def texts_of(code: CodeType, names: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the lines from which a code object may have been compiled.

    ``names`` are its globals, which may know how to find the source. Raises NoSource if there are
    no lines.
    """
    versions = list(_known_lines.get(code.co_filename, ()))
    if code.co_filename == PICKLED:
        # The code may be from any known file. The caller compiles the lines and compares the code.
        versions = [lines for of_file in _known_lines.values() for lines in of_file]
    yield from versions
    lines = linecache.getlines(code.co_filename, dict(names))
    if lines and lines not in versions:
        yield lines
    if not lines and not versions:
        raise NoSource("cannot be probed: its source is not there to read.")


def trees_in(
    lines: list[str], code: CodeType, qualname: str, names: Mapping[str, Any]
) -> Iterator[tuple[ast.Module, FunctionNode]]:
    """Yield a module to compile, and the function in it.

    Further pairs follow, to try if the first does not compile to the same code. ``qualname`` is the
    qualified name, for Python 3.10, whose code objects do not have it.
    """
    qualname = getattr(code, "co_qualname", qualname)
    if qualname.rpartition(".")[2] == code.co_name != "<lambda>":
        found_alone = _function_alone(code, lines, qualname)
        if found_alone is not None:
            module, function = found_alone
            imports = _imports(function, names)
            module.body[:0] = imports
            yield module, function
            # Try it without the imports too: a script is compiled in parts, and its imports may be
            # in another part.
            without_imports = _function_alone(code, lines, qualname) if imports else None
            if without_imports is not None:
                yield without_imports
    yield from _in_module(code, lines)


def _imports(node: ast.AST, names: Mapping[str, Any]) -> list[ast.stmt]:
    """Return the imports to put at the top of the module.

    Since Python 3.11 a call of ``module.f()`` compiles differently if ``module`` is imported there.
    """
    home = names.get("__name__")
    imported = [
        name
        for name in _owners_of_called_attributes(node)
        if name in names and _may_be_imported(names[name], home)
    ]
    if not imported:
        return []
    statement = ast.Import([ast.alias(name, None) for name in imported])
    return [ast.fix_missing_locations(statement)]


def _owners_of_called_attributes(node: ast.AST) -> set[str]:
    """Return the names ``x`` of all calls ``x.f()``."""
    functions = [inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    owners = [function.value for function in functions if isinstance(function, ast.Attribute)]
    return {owner.id for owner in owners if isinstance(owner, ast.Name)}


def _may_be_imported(value: Any, home: Any) -> bool:
    if getattr(value, "__module__", None) == home:
        return False
    return isinstance(value, ModuleType) or hasattr(value, "__qualname__")


TOO_DEEP = (
    "cannot be probed: it stands too deep in its source, or the program in its calls, for Python to"
    " compile it with taps."
)
CHANGED = (
    "cannot be probed: what runs is not what its source says. The file has changed, or the code is"
    " made by a tool."
)
PYTEST = (
    "cannot be probed: pytest has rewritten its assert statements. Run pytest with --assert=plain,"
    " or assert elsewhere."
)


def why_other(code: CodeType) -> str:
    """Return the reason why code differs from its source, worded to follow the function's name."""
    names = (*code.co_varnames, *code.co_names)
    return PYTEST if any(name.startswith("@py") for name in names) else CHANGED


def _function_alone(
    code: CodeType, lines: list[str], qualname: str
) -> tuple[ast.Module, FunctionNode] | None:
    """Return a module that holds only the function, nested in empty outer definitions, and the
    function's node; None if the lines do not define the function."""
    node = _parse_definition(code, lines)
    if node is None:
        return None
    outer_definitions = _definitions_around(qualname)
    kinds = [kind for kind, _ in outer_definitions]
    free = [name for name in code.co_freevars if name != "__class__"]
    if free and "def" not in kinds:
        return None
    if "__class__" in code.co_freevars and "class" not in kinds:
        return None
    statement = _wrap(node, outer_definitions, free)
    return ast.fix_missing_locations(ast.Module([statement], [])), node


def _parse_definition(
    code: CodeType, lines: list[str]
) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the definition in the lines of a function; None if they hold anything else or more."""
    start = code.co_firstlineno - 1
    if start >= len(lines):
        return None
    first = lines[start]
    indent = first[: len(first) - len(first.lstrip())]
    end = _end_of_block(lines, max(last_line(code), start + 1), indent)
    text = "".join(lines[start:end])
    try:
        tree = parse_like(("if 1:\n" if indent else "") + text, code)
    except SyntaxError:
        return None
    body = tree.body
    if indent and isinstance(body[0], ast.If):
        body = body[0].body
    node = body[0] if len(body) == 1 else None
    if not isinstance(node, _DEFINITIONS) or node.name != code.co_name:
        return None
    ast.increment_lineno(node, start - bool(indent))
    return node


def _end_of_block(lines: list[str], end: int, indent: str) -> int:
    """Return the end of a block: ``end``, extended by the lines that follow it and are indented
    deeper."""
    for number in range(end, len(lines)):
        line = lines[number]
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        following = line[len(indent) : len(indent) + 1]
        if not line.startswith(indent) or not following.isspace():
            break
        end = number + 1
    return end


def _definitions_around(qualname: str) -> list[tuple[str, str]]:
    """Return the definitions around a function, outermost first: ``("class" or "def", name)``."""
    parts = qualname.split(".")
    definitions = []
    for name, following in pairwise(parts):
        if name != "<locals>":
            definitions.append(("def" if following == "<locals>" else "class", name))
    return definitions


def _wrap(node: ast.stmt, outer_definitions: list[tuple[str, str]], free: list[str]) -> ast.stmt:
    """Return the definition nested in empty definitions. The innermost function around it has the
    free variables."""
    statement = node
    for kind, name in reversed(outer_definitions):
        outer: Any = ast.parse(f"{kind} x{'()' if kind == 'def' else ''}: pass").body[0]
        outer.name = name
        outer.body = [statement]
        if kind == "def":
            outer.body[:0] = [
                ast.Assign([ast.Name(variable, ast.Store())], ast.Constant(None))
                for variable in free
            ]
            free = []
        statement = outer
    return statement


def _in_module(code: CodeType, lines: list[str]) -> Iterator[tuple[ast.Module, FunctionNode]]:
    try:
        tree = parse_like("".join(lines), code)
    except SyntaxError:
        return
    for statement in tree.body:
        functions = [
            node
            for node in ast.walk(statement)
            if isinstance(node, FunctionNode) and is_code_of(code, node)
        ]
        for function in functions:
            yield part_of(tree, [statement]), function
            # needed if the function compiles to other code when the rest of the module is there,
            # for instance if `super` is also a name in the module
            yield tree, function
            yield ast.Module([statement], []), function


def copy_tree(node: Any) -> Any:
    """Return a copy of a tree of any depth.

    ``copy.deepcopy`` would need seven nested calls for each level of the tree.
    """
    root: Any = ast.AST.__new__(type(node))
    stack = [(node, root)]
    while stack:
        original, twin = stack.pop()

        def copy(value: Any) -> Any:
            if not isinstance(value, ast.AST):
                return value
            inner = ast.AST.__new__(type(value))
            stack.append((value, inner))
            return inner

        for name, value in vars(original).items():
            twin.__dict__[name] = [*map(copy, value)] if isinstance(value, list) else copy(value)
    return root


def part_of(tree: ast.Module, statements: list[ast.stmt]) -> ast.Module:
    """Return a module with some of its statements, whose functions compile as in the whole module.

    The other statements may be nested too deep for Python to compile them from a tree: this takes
    three nested calls for each level of the tree.
    """
    return ast.Module([*_imported(tree), *statements], [])


def _imported(tree: ast.Module) -> list[ast.stmt]:
    """Return all imports of the module's top level.

    Since Python 3.11 ``module.f()`` compiles differently if ``module`` is imported there.
    """
    imports: list[ast.stmt] = []
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import | ast.ImportFrom) and _names_are_listed(node):
            imports.append(node)
        elif isinstance(node, (*_DEFINITIONS, ast.ClassDef)):
            continue
        elif isinstance(node, ast.stmt | ast.Module | ast.ExceptHandler | ast.match_case):
            stack += ast.iter_child_nodes(node)
    # imports from __future__ are left out, since their flags are passed to the compiler
    return [node for node in imports if getattr(node, "module", None) != "__future__"]


def _names_are_listed(node: ast.Import | ast.ImportFrom) -> bool:
    return all(alias.name != "*" for alias in node.names)


def is_code_of(code: CodeType, node: FunctionNode) -> bool:
    """True if a code object is that of a definition."""
    if code.co_firstlineno != first_line(node):
        return False
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and _is_lambda(node, code)
    return code.co_name == node.name


def _is_lambda(node: ast.Lambda, code: CodeType) -> bool:
    places = []
    if hasattr(code, "co_positions"):
        # An instruction at column 0 with a width of 0 is the compiler's own.
        places = [
            place for place in code.co_positions() if None not in place and place[2:] != (0, 0)
        ]
    if not places:
        return _has_names_of(node, code)
    around = [
        inner
        for inner in ast.walk(node)
        if isinstance(inner, ast.Lambda) and all(_is_within(place, inner.body) for place in places)
    ]
    return around[-1:] == [node]  # True if ``node`` is the innermost of these lambdas


def _has_names_of(node: ast.Lambda, code: CodeType) -> bool:
    """True if a code object has the parameters of a lambda, and no name that the lambda lacks."""
    parameters = tuple(argument.arg for argument in variables_passed(node.args))
    if parameters != code.co_varnames[: len(parameters)]:
        return False
    attributes = {inner.attr for inner in ast.walk(node.body) if isinstance(inner, ast.Attribute)}
    in_source = names_in(node.body) | attributes
    # a name with "__" may be a mangled private name, which the source has in another form
    return all(name in in_source or "__" in name for name in (*code.co_names, *code.co_freevars))


def _is_within(place: tuple[Any, ...], node: ast.expr) -> bool:
    line, end_line, column, end_column = place
    node_end = (node.end_lineno or 0, node.end_col_offset or 0)
    return (node.lineno, node.col_offset) <= (line, column) and (end_line, end_column) <= node_end


def first_line(node: ast.AST) -> int:
    """Return the line in which the code of a definition begins: the line of its first decorator, if
    it has any."""
    decorators = getattr(node, "decorator_list", None)
    return decorators[0].lineno if decorators else getattr(node, "lineno", 0)


def last_line(code: CodeType) -> int:
    """Return the last line of a code object and the code objects inside it."""
    if hasattr(code, "co_positions"):
        lines = [end_line for _, end_line, _, _ in code.co_positions() if end_line is not None]
    else:
        lines = [line for _, _, line in code.co_lines() if line is not None]
    lines += [last_line(inner) for inner in inner_codes(code)]
    return max(lines, default=0)


def sets(code: CodeType, name: str) -> bool:
    """True if a code object, or a closure inside it, sets or deletes the variable ``name``."""
    import dis  # imported here, since no other function needs it

    closures = [
        closure
        for inner in inner_codes(code)
        for closure in all_codes(inner)
        if name in closure.co_freevars
    ]
    for part in (code, *closures):
        for instruction in dis.get_instructions(part):
            operation, variable = instruction.opname, instruction.argval
            if "ATTR" in operation or not operation.startswith(("STORE_", "DELETE_")):
                continue
            # Since 3.13 an instruction may store two variables, or store one and load another.
            if type(variable) is not tuple:
                variables = (variable,)
            elif operation.endswith("_LOAD_FAST"):
                variables = variable[:1]
            else:
                variables = variable
            if name in variables:
                return True
    return False


def inner_codes(code: CodeType) -> list[CodeType]:
    """Return the code objects directly in another: of functions, classes and comprehensions."""
    return [c for c in code.co_consts if isinstance(c, CodeType)]


def all_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all code objects inside it."""
    yield code
    for inner in inner_codes(code):
        yield from all_codes(inner)


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def arguments(args: ast.arguments) -> list[ast.arg]:
    """Return all parameters, in the order of the signature."""
    every = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    return [argument for argument in every if argument is not None]


def variables_passed(args: ast.arguments) -> list[ast.arg]:
    """Return all parameters, in the order of the variables in a code object: ``*args`` and
    ``**kwargs`` come last."""
    starred = [args.vararg, args.kwarg]
    return [
        *args.posonlyargs,
        *args.args,
        *args.kwonlyargs,
        *(argument for argument in starred if argument is not None),
    ]


def body_of(node: FunctionNode | ast.ClassDef) -> list[Any]:
    """Return the statements of a function or class, or a lambda's expression."""
    return [node.body] if isinstance(node, ast.Lambda) else node.body


def outer_fields(node: ast.AST) -> list[tuple[ast.AST, str]]:
    """Return the fields of a nested definition whose expressions the enclosing scope evaluates.

    They are (node, field) pairs: decorators, defaults, bases ...
    """
    fields: list[tuple[ast.AST, str]] = [
        (node, "decorator_list"),
        (node, "bases"),
        (node, "keywords"),
    ]
    if isinstance(node, FunctionNode):
        signature = node.args
        fields += [(signature, "defaults"), (signature, "kw_defaults")]
        fields += [(argument, "annotation") for argument in arguments(signature)]
        fields.append((node, "returns"))
    return [(owner, field) for owner, field in fields if getattr(owner, field, None)]


def outer_expressions(node: ast.AST) -> list[ast.AST]:
    """Return the expressions of ``outer_fields``, in the order in which they are evaluated."""
    expressions: list[ast.AST | None] = []
    for owner, field in outer_fields(node):
        value = getattr(owner, field)
        expressions += value if isinstance(value, list) else [value]
    return [expression for expression in expressions if expression is not None]


def inside(node: ast.AST, also: bool = False) -> Iterable[ast.AST]:
    """Yield all nodes in a function's or expression's own scope, without nested scopes. With
    ``also``, yield the node itself too."""
    stack = [node] if also else list(ast.iter_child_nodes(node))
    while stack:
        inner = stack.pop()
        if isinstance(inner, SCOPES):
            stack += outer_expressions(inner)
            continue
        yield inner
        stack += ast.iter_child_nodes(inner)


def names_in(node: ast.AST) -> set[str]:
    """Return all names that a tree reads, sets or deletes."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def stored_names(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the names that the nodes set."""
    return [
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


def bound_in(node: FunctionNode) -> set[str]:
    """Return the names that a function's parameters and own statements bind."""
    names = {argument.arg for argument in arguments(node.args)}
    stack: list[tuple[ast.AST, bool]] = [(child, False) for child in body_of(node)]
    while stack:
        inner, in_comprehension = stack.pop()
        if not in_comprehension or not isinstance(inner, ast.Name):
            names.update(_bound_by(inner))
        in_comprehension = in_comprehension or isinstance(inner, COMPREHENSIONS)
        if isinstance(inner, SCOPES):
            children: Iterable[ast.AST] = outer_expressions(inner)
        else:
            children = ast.iter_child_nodes(inner)
        stack += [(child, in_comprehension) for child in children]
    return names


def _bound_by(node: ast.AST) -> list[str]:
    """Return the names that a node itself binds, without the nodes inside it."""
    if isinstance(node, ast.NamedExpr):
        return [node.target.id]
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.pattern | ast.ExceptHandler):
        names = (getattr(node, "name", None), getattr(node, "rest", None))
        return [name for name in names if name]
    if isinstance(node, (*_DEFINITIONS, ast.ClassDef)):
        return [node.name]
    return []


def used_in(node: ast.AST, hidden: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the names that a function's statements use.

    Names that an inner scope (function, class, comprehension) binds for itself are left out there.
    ``hidden`` has the names that inner scopes around this node bind.
    """
    if isinstance(node, ast.Name):
        if node.id not in hidden:
            yield node.id
        return
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, SCOPES):
        for outer in outer_expressions(node):
            yield from used_in(outer, hidden)
        if isinstance(node, FunctionNode):
            hidden |= bound_in(node)
        else:
            hidden |= set(stored_names(inside(node)))
        children = body_of(node)
    elif isinstance(node, COMPREHENSIONS):
        yield from used_in(node.generators[0].iter, hidden)
        hidden |= {name for generator in node.generators for name in bound(generator.target)}
    for child in children:
        yield from used_in(child, hidden)


def bound(*targets: ast.expr) -> list[str]:
    """Return the names that targets bind, in order."""
    names: list[str] = []
    for target in targets:
        if isinstance(target, ast.Name):
            names.append(target.id)
        elif isinstance(target, ast.Tuple | ast.List):
            names += bound(*target.elts)
        elif isinstance(target, ast.Starred):
            names += bound(target.value)
    return list(dict.fromkeys(names))  # v, v = 1, 2 sets v once, as far as can be seen afterwards


def leaves(*targets: ast.expr) -> Iterator[ast.expr]:
    """Yield the names, attributes and items that targets set, in the order of setting."""
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from leaves(*target.elts)
        elif isinstance(target, ast.Starred):
            yield from leaves(target.value)
        else:
            yield target


def dotted(node: ast.AST) -> str:
    """Return the text of ``a.b.c``; ``""`` for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *parts[::-1]]) if isinstance(node, ast.Name) else ""


def mangled(name: str, code: CodeType) -> str:
    """Return ``_K__x`` for ``__x`` in the code of a method of class ``K``, others unchanged."""
    if not name.startswith("__") or name.endswith("__"):
        return name
    for other in (*code.co_varnames, *code.co_cellvars, *code.co_freevars, *code.co_names):
        if other.startswith("_") and other != name and other.endswith(name):
            return other
    return name


def pattern_names(pattern: ast.AST) -> list[str]:
    """Return the names that a pattern of a ``case`` binds."""
    names: list[Any] = []
    for child in ast.iter_child_nodes(pattern):
        names += pattern_names(child)
    names += [getattr(pattern, "name", None), getattr(pattern, "rest", None)]
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def deleted_in(node: ast.AST) -> frozenset[str]:
    """Return the names that may become unbound, in the function or in one inside it."""
    names = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Del):
            names.add(inner.id)
        elif isinstance(inner, ast.ExceptHandler) and inner.name:
            names.add(inner.name)
    return frozenset(names)


def as_function(statements: list[ast.stmt]) -> ast.FunctionDef:
    """Return a function with the statements as its body.

    It stands for the top level of a module, which can then be inspected or get taps like a
    function.
    """
    no_arguments = ast.arguments(
        posonlyargs=[], args=[], vararg=None, kwonlyargs=[], kw_defaults=[], kwarg=None, defaults=[]
    )
    function = ast.FunctionDef(
        name=TOP, args=no_arguments, body=statements, decorator_list=[], returns=None
    )
    function.lineno, function.col_offset = 1, 0
    function.end_lineno = max((statement.end_lineno or 1 for statement in statements), default=1)
    return function


def is_top(node: ast.AST) -> bool:
    """True if a function stands for the top level of a module."""
    return isinstance(node, ast.FunctionDef) and node.name == TOP


def is_future(statement: ast.stmt) -> bool:
    """True if a statement is an import from ``__future__``."""
    return (
        isinstance(statement, ast.ImportFrom)
        and statement.module == "__future__"
        and not statement.level
    )
