"""Catalogue of a source file's functions with their variables, loops, returns and yields.

It is read from the syntax tree: the source is never run or imported. Error messages, selector
checks and lists of probes all use this one catalogue.
"""

from __future__ import annotations

import ast
import os
import sys
from dataclasses import dataclass

from voirkit.errors import SelectorError, did_you_mean
from voirkit.imports import quiet
from voirkit.probes.source import (
    TOP,
    FunctionNode,
    arguments,
    as_function,
    body_of,
    dotted,
    stored_names,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FunctionType
    from typing import Any, Literal, TypeAlias

    Kind: TypeAlias = Literal["function", "method", "nested function"]


@dataclass(frozen=True, slots=True)
class Variable:
    """A name that gets a value in the source."""

    # as written in the source (private names are not mangled); ``self.x`` for an attribute target
    name: str
    line: int  # line where the name first gets a value
    # the ways in which the name gets values, each once, in order: parameter, assignment, augmented,
    # annotated, walrus, for, with, except, import, def, class, type, match, comprehension, del
    forms: tuple[str, ...]
    # for an imported name: the module, with leading dots if it is relative, and the name in the
    # module (empty for ``import module``)
    origin: tuple[str, str] | None = None

    def bound_again(self, form: str, origin: tuple[str, str] | None = None) -> Variable:
        """Return the variable after it gets another value, in the given way."""
        forms = self.forms if form in self.forms else (*self.forms, form)
        return Variable(self.name, self.line, forms, origin)


@dataclass(frozen=True, slots=True)
class Loop:
    """A ``for`` loop: all the names of its target, in order, and the line of the ``for``."""

    names: tuple[str, ...]
    line: int


class Function:
    """One definition of a function: ``def``, ``async def``, or a lambda that is assigned to a name.

    Attributes:
        path: ``("Trainer", "run")``, ``("outer", "inner")``.
        line: Line of the ``def`` or lambda.
        kind: Its kind, from its place: at the top, in a class body, in a function.
        is_generator: True if calling it makes a generator.
        is_conditional: True if the definition is inside an ``if``, ``try`` ..., and so may not be
            executed.
        decorators: The dotted names of its decorators, without arguments; ``""`` for other
            expressions.
        variables: All names other than parameters that the body binds, in order of the first
            binding; includes names declared global.
        comprehension_variables: Variables of its comprehensions, which exist only inside those.
        attributes: Attribute targets by their text, such as ``self.x``.
        declared: Names with a bare annotation (``x: int``), each with its line.
        loops: Its ``for`` loops, in source order.
        returns, yields: Lines of explicit ``return`` and ``yield``.
        globals_read: Names it reads that neither it nor an enclosing function binds, builtins
            included.
        free_read: Names it reads that an enclosing function binds.
        globals_declared, nonlocals_declared: Names of its ``global`` and ``nonlocal`` statements.
    """

    def __init__(self, scope: ScopeReading, filename: str) -> None:
        node = scope.node
        assert isinstance(node, FunctionNode)
        self.path = scope.path
        self.filename = filename
        self.node = node
        self.line = node.lineno
        self.last_line = node.end_lineno or node.lineno
        self.kind = _kind_of(scope)
        self.is_generator = bool(scope.yields)
        self.is_conditional = scope.is_conditional()
        self.decorators = _names(getattr(node, "decorator_list", ()))
        # in the order of the signature
        self.parameters = {
            parameter.arg: scope.bound[parameter.arg] for parameter in scope.parameters
        }
        self.variables = {
            name: variable for name, variable in scope.bound.items() if name not in self.parameters
        }
        self.comprehension_variables = scope.comprehension
        self.attributes = scope.attributes
        self.declared = scope.declared
        self.loops = tuple(scope.loops)
        self.returns = tuple(scope.returns)
        self.yields = tuple(scope.yields)
        reads = [name for name in scope.reads if not scope.local(name)]
        free = [name for name in reads if scope.is_free(name)]
        self.free_read = tuple(free)
        self.globals_read = tuple(name for name in reads if name not in free)
        self.globals_declared = tuple(scope.globals)
        self.nonlocals_declared = tuple(scope.nonlocals)

    @property
    def name(self) -> str:
        """The path as Python writes it, ``Trainer.run``."""
        return ".".join(self.path)

    @property
    def own_names(self) -> list[str]:
        """The names of the parameters, then of the variables."""
        return list(dict.fromkeys([*self.parameters, *self.variables]))

    def knows(self, name: str) -> bool:
        """True if the name has a meaning in the body: own, declared, free, global or builtin."""
        bound: tuple[Iterable[str], ...] = (self.parameters, self.variables, self.declared)
        read = (self.globals_read, self.free_read)
        declared = (self.globals_declared, self.nonlocals_declared)
        return any(name in names for names in (*bound, *read, *declared))


def _kind_of(scope: ScopeReading) -> Kind:
    if scope.parent is None or scope.parent.kind == "module":
        return "function"
    return "method" if scope.parent.kind == "class" else "nested function"


@dataclass(frozen=True, slots=True)
class ClassDefinition:
    """A class: its path and line, the dotted names of its bases (without ``[T]``), and the names
    that its body binds."""

    path: tuple[str, ...]
    line: int
    bases: tuple[str, ...]
    names: dict[str, Variable]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All definitions in a source file."""

    filename: str  # name of the file, as given by the caller
    # every definition in source order, redefined ones too; a function comes before the functions
    # inside it
    functions: tuple[Function, ...]
    classes: tuple[ClassDefinition, ...]  # every class, in the same order
    # the names that the top level binds (functions, classes and imports too)
    names: dict[str, Variable]
    loops: tuple[Loop, ...]  # the ``for`` loops of the top level
    star_imports: tuple[str, ...]  # modules of ``from module import *``, with their leading dots
    top: Function  # the top level, as a function named ``TOP`` without parameters
    module: str = ""  # name of the module that the file was read for; empty for a script

    def find(self, path: tuple[str, ...]) -> Function | None:
        """Return the last definition of a function, or None if the path has none.

        It is the live function after the file has run from top to bottom.
        """
        candidates = self.candidates(path)
        return candidates[-1] if candidates else None

    def definitions(self, path: tuple[str, ...]) -> list[Function]:
        """Return every definition of a path in source order: redefinitions, definitions in
        branches, a property and its setter."""
        return [function for function in self.functions if function.path == path]

    def candidates(self, path: tuple[str, ...]) -> list[Function]:
        """Return the definitions of a path that may be the live one after the file has run.

        They are the last unconditional definition, and the conditional ones after it. For a
        property it is the getter.
        """
        if path == self.top.path:
            return [self.top]
        accessors = {f"{path[-1]}.setter", f"{path[-1]}.deleter"} if path else set()
        definitions = [
            function
            for function in self.definitions(path)
            if accessors.isdisjoint(function.decorators)
        ]
        first = 0
        for index, function in enumerate(definitions):
            if not function.is_conditional:
                first = index
        return definitions[first:]

    def find_class(self, path: tuple[str, ...]) -> ClassDefinition | None:
        """Return the last definition of a class, or None if the path has none."""
        definitions = [definition for definition in self.classes if definition.path == path]
        return definitions[-1] if definitions else None

    def inside(self, path: tuple[str, ...]) -> list[str]:
        """Return the names of the functions directly inside a class or function, or at the top
        level for an empty path."""
        inner = [function.path for function in self.functions if function.path[:-1] == path]
        return list(dict.fromkeys(inner_path[-1] for inner_path in inner))


def catalogue(
    source: str | bytes, filename: str, *, first_line: int = 1, module: str = ""
) -> Catalogue:
    """Return the catalogue of a source file.

    Args:
        source: The source as text, or as bytes with their encoding declaration.
        first_line: Number of the source's first line in the file.
        module: The module's name, for ``Catalogue.module``.

    Raises:
        SyntaxError: The source does not parse.
    """
    with quiet(filename):  # warnings (invalid escapes ...) come when the program itself is compiled
        try:
            tree = ast.parse(source, filename)
        except ValueError as error:  # a null byte, before Python 3.11.4
            raise SyntaxError(str(error), (filename, None, None, None)) from None
    if first_line != 1:
        ast.increment_lineno(tree, first_line - 1)
    reader = Reader()
    top = ScopeReading("module", (), tree, None)
    reader.scan(top, tree.body)
    top.path = (TOP,)
    top.node = as_function(tree.body)
    functions = tuple(Function(scope, filename) for scope in reader.functions)
    return Catalogue(
        filename,
        functions,
        tuple(reader.classes),
        top.bound,
        tuple(top.loops),
        tuple(top.star_imports),
        Function(top, filename),
        module,
    )


def catalogue_of_function(function: FunctionType) -> Function | None:
    """Return the catalogue entry of a live function, from its source; None if the source does not
    exist or cannot be read."""
    import inspect
    import textwrap

    try:
        lines, first_line = inspect.getsourcelines(function)
        source = textwrap.dedent("".join(lines))
        functions = catalogue(
            source, function.__code__.co_filename, first_line=first_line
        ).functions
    except (OSError, TypeError, SyntaxError):
        return None
    if not functions:
        return None
    live = functions[0]
    free = function.__code__.co_freevars
    parts = function.__qualname__.split(".")
    live.path = tuple(part for part in parts if part != "<locals>")
    if len(live.path) == 1:
        live.kind = "function"
    elif parts[-2] == "<locals>":
        live.kind = "nested function"
    else:
        live.kind = "method"
    live.free_read = tuple(name for name in live.globals_read if name in free)
    live.globals_read = tuple(name for name in live.globals_read if name not in free)
    return live


def catalogue_of_module(name: str) -> Catalogue | None:
    """Return the catalogue of an importable module, without importing it or its parents.

    The module is searched like an import would, with the current ``sys.path``.

    Returns:
        None for a module without Python source: C extension, builtin, namespace package.

    Raises:
        SelectorError: There is no such module; the message has the nearest names.
        SyntaxError: The module's source does not parse.
    """
    loaded = getattr(sys.modules.get(name), "__file__", None) or ""
    # ``__file__`` leads also to the source of frozen modules of the standard library (3.11 and
    # later)
    if loaded.endswith(".py") and os.path.isfile(loaded):
        with open(loaded, "rb") as file:
            return catalogue(file.read(), loaded, module=name)
    spec = _spec_without_import(name)
    if not spec.origin or not hasattr(spec.loader, "get_source"):
        return None
    source = spec.loader.get_source(name)
    return None if source is None else catalogue(source, spec.origin, module=name)


def _spec_without_import(name: str) -> Any:
    """Return the spec of a module without importing its parents. Raises SelectorError if there is
    no such module."""
    search: list[str] | None = None
    spec = None
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        prefix = ".".join(parts[:length])
        spec = _spec(prefix, search)
        if spec is None:
            raise _unknown_module(prefix, search)
        folders = spec.submodule_search_locations or []
        search = list(getattr(sys.modules.get(prefix), "__path__", folders))
    return spec


def _spec(name: str, search: list[str] | None) -> Any:
    for finder in sys.meta_path:  # not importlib.util.find_spec, which imports the parents
        spec = finder.find_spec(name, search)
        if spec is not None:
            return spec
    return None


def _unknown_module(name: str, search: list[str] | None) -> SelectorError:
    from pkgutil import iter_modules

    parent = name.rpartition(".")[0]
    modules = [module.name for module in iter_modules(search)]
    if not parent:
        modules += sorted(sys.stdlib_module_names)
    public = [module for module in modules if not module.startswith("_")]
    near = did_you_mean(name, [f"{parent}.{module}" if parent else module for module in public])
    return SelectorError(f"there is no module '{name}'.", next=near)


def _names(expressions: Iterable[ast.expr]) -> tuple[str, ...]:
    """Return the dotted names of expressions, without call arguments and subscripts."""
    names = []
    for expression in expressions:
        if isinstance(expression, ast.Call):
            names.append(dotted(expression.func))
        elif isinstance(expression, ast.Subscript):
            names.append(dotted(expression.value))
        else:
            names.append(dotted(expression))
    return tuple(names)


# Reading a syntax tree into scopes: the names that each module, class and function binds, reads and
# loops over.


class ScopeReading:
    """A scope while it is being read: a module, class, function, or an expression with its own
    names (comprehension, lambda)."""

    def __init__(
        self, kind: str, path: tuple[str, ...], node: ast.AST, parent: ScopeReading | None
    ) -> None:
        self.kind = kind
        self.path = path
        self.node = node
        self.parent = parent
        self.parameters: list[ast.arg] = []
        self.bound: dict[str, Variable] = {}  # every name that gets a value here, in order
        self.comprehension: dict[str, Variable] = {}
        self.attributes: dict[str, Variable] = {}
        self.declared: dict[str, int] = {}
        self.reads: dict[str, None] = {}
        self.loops: list[Loop] = []
        self.returns: list[int] = []
        self.yields: list[int] = []
        self.globals: dict[str, None] = {}
        self.nonlocals: dict[str, None] = {}
        self.star_imports: list[str] = []

    def bind(self, name: str, line: int, form: str, origin: tuple[str, str] | None = None) -> None:
        """Record that a name gets a value in this scope."""
        before = self.bound.get(name)
        if before is None:
            self.bound[name] = Variable(name, line, (form,), origin)
        else:
            self.bound[name] = before.bound_again(form, origin)

    def local(self, name: str) -> bool:
        """True if the name is local to this scope."""
        if name not in self.bound and name not in self.declared:
            return False
        return name not in self.globals and name not in self.nonlocals

    def enclosing(self) -> Iterator[ScopeReading]:
        """Yield the scopes around this one, the nearest first."""
        scope = self.parent
        while scope is not None:
            yield scope
            scope = scope.parent

    def is_free(self, name: str) -> bool:
        """True if a name that is not local belongs to an enclosing function."""
        if name in self.globals:
            return False
        functions = (scope for scope in self.enclosing() if scope.kind not in ("module", "class"))
        return any(scope.local(name) for scope in functions)

    def is_conditional(self) -> bool:
        """True if the scope is inside an ``if``, ``try``, ``for`` ... of the enclosing scope, and
        not directly in the enclosing scope."""
        if self.parent is None:
            return False
        statements = getattr(self.parent.node, "body", None)
        if not isinstance(statements, list):
            return True
        values = [getattr(statement, "value", None) for statement in statements]
        return self.node not in statements and self.node not in values


class Reader:
    """Visitor of statements in the order in which they bind names.

    It uses an explicit stack, and recursion only for a nested scope, since chains of a thousand
    ``elif`` or ``+`` are deep trees. Entries of the stack are nodes, or ``(form, target)`` for a
    target to bind.
    """

    def __init__(self) -> None:
        self.functions: list[ScopeReading] = []
        self.classes: list[ClassDefinition] = []
        self.handlers: dict[type, Callable[[ScopeReading, Any, list[Any]], None]] = {
            tuple: self.bind
        }
        for kind in vars(ast).values():
            if isinstance(kind, type):
                name = _READ_AS.get(kind.__name__, kind.__name__)
                read = getattr(self, f"read_{name}", None)
                if read is not None:
                    self.handlers[kind] = read

    def scan(self, scope: ScopeReading, nodes: Iterable[ast.AST]) -> None:
        stack: list[Any] = list(nodes)[::-1]
        handlers = self.handlers
        children = _CHILDREN
        while stack:
            node = stack.pop()
            if node is None:
                continue
            cls = node.__class__
            handler = handlers.get(cls)
            if handler is not None:
                handler(scope, node, stack)
                continue
            fields = children.get(cls)
            if fields is None:
                fields = children[cls] = tuple(
                    name for name in cls._fields[::-1] if name not in _NO_CHILDREN
                )
            for name in fields:
                value = getattr(node, name, None)
                if value.__class__ is list:
                    stack.extend(value[::-1])
                elif value is not None:
                    stack.append(value)

    def bind(self, scope: ScopeReading, item: tuple[str, ast.expr], stack: list[Any]) -> None:
        form, target = item
        if isinstance(target, ast.Name):
            scope.bind(target.id, target.lineno, form)
        elif isinstance(target, ast.Tuple | ast.List):
            stack += [(form, element) for element in target.elts[::-1]]
        elif isinstance(target, ast.Starred):
            stack.append((form, target.value))
        else:
            name = dotted(target)
            if name:
                before = scope.attributes.get(name)
                if before is None:
                    scope.attributes[name] = Variable(name, target.lineno, (form,))
                else:
                    scope.attributes[name] = before.bound_again(form)
            stack.append(target)

    def read_Name(self, scope: ScopeReading, node: ast.Name, stack: list[Any]) -> None:
        scope.reads[node.id] = None

    def read_Constant(self, scope: ScopeReading, node: ast.Constant, stack: list[Any]) -> None:
        pass

    def read_MatchSingleton(
        self, scope: ScopeReading, node: ast.MatchSingleton, stack: list[Any]
    ) -> None:
        pass  # the pattern's value is True, False or None, not a node

    def read_Assign(self, scope: ScopeReading, node: ast.Assign, stack: list[Any]) -> None:
        stack += [("assignment", target) for target in node.targets[::-1]]
        if not self.is_named_lambda(scope, node.value, node.targets, stack):
            stack.append(node.value)

    def is_named_lambda(
        self, scope: ScopeReading, value: ast.expr, targets: list[ast.expr], stack: list[Any]
    ) -> bool:
        """Read a lambda that is assigned to names, as a function of each name. True if the value is
        one."""
        if not isinstance(value, ast.Lambda):
            return False
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        for name in names:
            self.function(scope, name, value, stack)
        return bool(names)

    def read_AnnAssign(self, scope: ScopeReading, node: ast.AnnAssign, stack: list[Any]) -> None:
        if scope.kind in ("module", "class"):
            stack.append(node.annotation)  # evaluated in modules and classes, but not in functions
        if node.value is not None:
            stack.append(("annotated", node.target))
            if not self.is_named_lambda(scope, node.value, [node.target], stack):
                stack.append(node.value)
        elif isinstance(node.target, ast.Name):
            scope.declared.setdefault(node.target.id, node.lineno)

    def read_AugAssign(self, scope: ScopeReading, node: ast.AugAssign, stack: list[Any]) -> None:
        stack += [("augmented", node.target), node.value]
        if isinstance(node.target, ast.Name):
            scope.reads[node.target.id] = None

    def read_NamedExpr(self, scope: ScopeReading, node: ast.NamedExpr, stack: list[Any]) -> None:
        owner = scope
        while owner.kind == "comprehension" and owner.parent is not None:
            owner = owner.parent
        self.scan(scope, [node.value])
        owner.bind(node.target.id, node.lineno, "walrus")

    def read_For(self, scope: ScopeReading, node: ast.For | ast.AsyncFor, stack: list[Any]) -> None:
        names = tuple(stored_names(ast.walk(node.target)))
        scope.loops.append(Loop(names, node.lineno))
        stack += [*node.orelse[::-1], *node.body[::-1], ("for", node.target), node.iter]

    def read_withitem(self, scope: ScopeReading, node: ast.withitem, stack: list[Any]) -> None:
        if node.optional_vars is not None:
            stack.append(("with", node.optional_vars))
        stack.append(node.context_expr)

    def read_ExceptHandler(
        self, scope: ScopeReading, node: ast.ExceptHandler, stack: list[Any]
    ) -> None:
        stack += [*node.body[::-1], node.type]
        if node.name is not None:
            scope.bind(node.name, node.lineno, "except")

    def read_Import(self, scope: ScopeReading, node: ast.Import, stack: list[Any]) -> None:
        for alias in node.names:
            module = alias.name
            if not alias.asname:
                module = module.split(".")[0]
            scope.bind(alias.asname or module, node.lineno, "import", (module, ""))

    def read_ImportFrom(self, scope: ScopeReading, node: ast.ImportFrom, stack: list[Any]) -> None:
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                scope.star_imports.append(module)
            else:
                scope.bind(alias.asname or alias.name, node.lineno, "import", (module, alias.name))

    def read_Delete(self, scope: ScopeReading, node: ast.Delete, stack: list[Any]) -> None:
        stack += [("del", target) for target in node.targets[::-1]]

    def read_MatchAs(
        self, scope: ScopeReading, node: ast.MatchAs | ast.MatchStar, stack: list[Any]
    ) -> None:
        if node.name is not None:
            scope.bind(node.name, node.lineno, "match")
        stack.append(getattr(node, "pattern", None))

    def read_MatchMapping(
        self, scope: ScopeReading, node: ast.MatchMapping, stack: list[Any]
    ) -> None:
        if node.rest is not None:
            scope.bind(node.rest, node.lineno, "match")
        stack += [*node.patterns[::-1], *node.keys[::-1]]

    def read_TypeAlias(self, scope: ScopeReading, node: Any, stack: list[Any]) -> None:
        scope.bind(node.name.id, node.lineno, "type")

    def read_Global(self, scope: ScopeReading, node: ast.Global, stack: list[Any]) -> None:
        scope.globals.update(dict.fromkeys(node.names))

    def read_Nonlocal(self, scope: ScopeReading, node: ast.Nonlocal, stack: list[Any]) -> None:
        scope.nonlocals.update(dict.fromkeys(node.names))

    def read_Return(self, scope: ScopeReading, node: ast.Return, stack: list[Any]) -> None:
        scope.returns.append(node.lineno)
        stack.append(node.value)

    def read_Yield(
        self, scope: ScopeReading, node: ast.Yield | ast.YieldFrom, stack: list[Any]
    ) -> None:
        scope.yields.append(node.lineno)
        stack.append(node.value)

    def read_FunctionDef(
        self, scope: ScopeReading, node: ast.FunctionDef | ast.AsyncFunctionDef, stack: list[Any]
    ) -> None:
        scope.bind(node.name, node.lineno, "def")
        annotations = [argument.annotation for argument in arguments(node.args)]
        stack += [node.returns, *annotations, *node.decorator_list]
        self.function(scope, node.name, node, stack)

    def function(
        self, scope: ScopeReading, name: str, node: FunctionNode, stack: list[Any]
    ) -> None:
        stack += [*node.args.defaults, *node.args.kw_defaults]  # evaluated outside of the function
        inner = ScopeReading("function", (*scope.path, name), node, scope)
        inner.parameters = arguments(node.args)
        for argument in inner.parameters:
            inner.bind(argument.arg, argument.lineno, "parameter")
        self.functions.append(inner)
        self.scan(inner, body_of(node))

    def read_ClassDef(self, scope: ScopeReading, node: ast.ClassDef, stack: list[Any]) -> None:
        scope.bind(node.name, node.lineno, "class")
        stack += [*node.decorator_list, *node.bases, *node.keywords]
        inner = ScopeReading("class", (*scope.path, node.name), node, scope)
        self.classes.append(
            ClassDefinition(inner.path, node.lineno, _names(node.bases), inner.bound)
        )
        self.scan(inner, node.body)

    def read_Lambda(self, scope: ScopeReading, node: ast.Lambda, stack: list[Any]) -> None:
        stack += [*node.args.defaults, *node.args.kw_defaults]
        inner = ScopeReading("lambda", scope.path, node, scope)
        for argument in arguments(node.args):
            inner.bind(argument.arg, argument.lineno, "parameter")
        self.scan(inner, [node.body])
        self.leave(inner)

    def read_ListComp(
        self, scope: ScopeReading, node: ast.ListComp | ast.DictComp, stack: list[Any]
    ) -> None:
        self.scan(scope, [node.generators[0].iter])  # evaluated first, in the enclosing scope
        inner = ScopeReading("comprehension", scope.path, node, scope)
        entries: list[Any] = []
        for generator in node.generators:
            if generator is not node.generators[0]:
                entries.append(generator.iter)
            entries += [("comprehension", generator.target), *generator.ifs]
        entries += [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.scan(inner, entries)
        self.leave(inner)

    def leave(self, inner: ScopeReading) -> None:
        """Copy the reads, comprehension variables and attributes of a lambda's or comprehension's
        scope to the enclosing scope."""
        outer = inner.parent
        assert outer is not None  # only the scope of the module has no parent
        outer.reads.update(dict.fromkeys(name for name in inner.reads if name not in inner.bound))
        is_comprehension = inner.kind == "comprehension"
        if outer.kind != "lambda":
            targets = inner.bound if is_comprehension else {}
            for name, variable in (targets | inner.comprehension).items():
                outer.comprehension.setdefault(name, variable)
        if is_comprehension:
            for name, variable in inner.attributes.items():
                outer.attributes.setdefault(name, variable)


# Fields of syntax nodes that contain no expression or statement. ``_CHILDREN`` stores the other
# fields of each class of nodes; with this table, a scan takes half the time of
# ast.iter_child_nodes.
_NO_CHILDREN = {"ctx", "op", "ops", "kind", "attr", "arg", "is_async", "type_params"}
_NO_CHILDREN |= {"type_comment", "conversion", "kwd_attrs"}
_CHILDREN: dict[type, tuple[str, ...]] = {}
_READ_AS = {
    "AsyncFor": "For",
    "AsyncFunctionDef": "FunctionDef",
    "DictComp": "ListComp",
    "GeneratorExp": "ListComp",
    "MatchStar": "MatchAs",
    "SetComp": "ListComp",
    "YieldFrom": "Yield",
}
