"""Reads a syntax tree into scopes: which names each module, class and function binds, reads, loops over.

The first half of the catalogue; knows nothing of probes.
"""

from __future__ import annotations

import ast

from voirkit.probes.source import FunctionNode, arguments, body_of, dotted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any


class ScopeReading:
    """What is being read: module, class, function, or an expression with names of its own (comprehension, lambda)."""

    def __init__(self, kind: str, path: tuple[str, ...], node: ast.AST, parent: ScopeReading | None) -> None:
        self.kind, self.path, self.node, self.parent = kind, path, node, parent
        self.parameters: list[ast.arg] = []
        self.bound: dict[str, Binding] = {}  # every name that gets a value here, in order
        self.comprehension: dict[str, Binding] = {}
        self.attributes: dict[str, Binding] = {}
        self.declared: dict[str, int] = {}
        self.reads: dict[str, None] = {}
        self.loops: list[tuple[tuple[str, ...], int]] = []
        self.returns: list[int] = []
        self.yields: list[int] = []
        self.globals: dict[str, None] = {}
        self.nonlocals: dict[str, None] = {}
        self.star_imports: list[str] = []

    def bind(self, name: str, line: int, form: str, origin: tuple[str, str] | None = None) -> None:
        """The name gets a value here."""
        found = self.bound.get(name)
        if found is None:
            self.bound[name] = found = Binding(line)
        found.forms[form] = None
        found.origin = origin

    def local(self, name: str) -> bool:
        """Whether the name is this scope's own."""
        return (name in self.bound or name in self.declared) and name not in self.globals and name not in self.nonlocals

    def enclosing(self) -> Iterator[ScopeReading]:
        """The scopes around this one, the nearest first."""
        scope = self.parent
        while scope is not None:
            yield scope
            scope = scope.parent

    def is_free(self, name: str) -> bool:
        """Whether a name that is not local belongs to a function around this one."""
        return name not in self.globals and any(s.local(name) for s in self.enclosing() if s.kind not in ("module", "class"))

    def is_conditional(self) -> bool:
        """Whether it stands in an ``if``, ``try``, ``for`` ... of the scope around it, and not directly in it."""
        if self.parent is None:
            return False
        body = getattr(self.parent.node, "body", None)
        statements = body if isinstance(body, list) else []
        return not any(self.node in (statement, getattr(statement, "value", None)) for statement in statements)


class Binding:
    """How a name gets its values: line of the first, forms in order, and where from if it is imported."""

    __slots__ = ("forms", "line", "origin")

    def __init__(self, line: int) -> None:
        self.line = line
        self.forms: dict[str, None] = {}
        self.origin: tuple[str, str] | None = None


class Reader:
    """Walks statements in the order in which they bind names.

    An explicit stack, and a recursion for each scope only: chains of a thousand ``elif`` or ``+`` are deep trees.
    Entries of the stack are nodes, or ``(form, target)`` for what is to be bound.
    """

    def __init__(self) -> None:
        self.functions: list[ScopeReading] = []
        self.classes: list[ScopeReading] = []
        self.handlers: dict[type, Callable[[ScopeReading, Any, list[Any]], None]] = {tuple: self.bind}
        for kind in vars(ast).values():
            if isinstance(kind, type):
                read = getattr(self, f"read_{_READ_AS.get(kind.__name__, kind.__name__)}", None)
                if read is not None:
                    self.handlers[kind] = read

    def scan(self, scope: ScopeReading, nodes: Iterable[ast.AST]) -> None:
        stack: list[Any] = list(nodes)[::-1]
        handlers, children = self.handlers, _CHILDREN
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
                fields = children[cls] = tuple(name for name in cls._fields[::-1] if name not in _NO_CHILDREN)
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
                found = scope.attributes.setdefault(name, Binding(target.lineno))
                found.forms[form] = None
            stack.append(target)

    def read_Name(self, scope: ScopeReading, node: ast.Name, stack: list[Any]) -> None:
        scope.reads[node.id] = None

    def read_Constant(self, scope: ScopeReading, node: ast.Constant, stack: list[Any]) -> None:
        pass

    def read_MatchSingleton(self, scope: ScopeReading, node: ast.MatchSingleton, stack: list[Any]) -> None:
        pass  # its value is True, False or None, and no node

    def read_Assign(self, scope: ScopeReading, node: ast.Assign, stack: list[Any]) -> None:
        stack += [("assignment", target) for target in node.targets[::-1]]
        if not self.is_named_lambda(scope, node.value, node.targets, stack):
            stack.append(node.value)

    def is_named_lambda(self, scope: ScopeReading, value: ast.expr, targets: list[ast.expr], stack: list[Any]) -> bool:
        """Whether a value is a lambda that gets a name; then it has been read, under each."""
        names = [target.id for target in targets if isinstance(target, ast.Name)] if isinstance(value, ast.Lambda) else []
        for name in names:
            self.function(scope, name, value, stack)  # type: ignore[arg-type]  # just tested
        return bool(names)

    def read_AnnAssign(self, scope: ScopeReading, node: ast.AnnAssign, stack: list[Any]) -> None:
        if scope.kind in ("module", "class"):
            stack.append(node.annotation)  # evaluated there, and not in a function
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
        names = tuple(n.id for n in ast.walk(node.target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        scope.loops.append((names, node.lineno))
        stack += [*node.orelse[::-1], *node.body[::-1], ("for", node.target), node.iter]

    def read_withitem(self, scope: ScopeReading, node: ast.withitem, stack: list[Any]) -> None:
        if node.optional_vars is not None:
            stack.append(("with", node.optional_vars))
        stack.append(node.context_expr)

    def read_ExceptHandler(self, scope: ScopeReading, node: ast.ExceptHandler, stack: list[Any]) -> None:
        stack += [*node.body[::-1], node.type]
        if node.name is not None:
            scope.bind(node.name, node.lineno, "except")

    def read_Import(self, scope: ScopeReading, node: ast.Import, stack: list[Any]) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            scope.bind(name, node.lineno, "import", (alias.name if alias.asname else name, ""))

    def read_ImportFrom(self, scope: ScopeReading, node: ast.ImportFrom, stack: list[Any]) -> None:
        for alias in node.names:
            module = "." * node.level + (node.module or "")
            if alias.name == "*":
                scope.star_imports.append(module)
            else:
                scope.bind(alias.asname or alias.name, node.lineno, "import", (module, alias.name))

    def read_Delete(self, scope: ScopeReading, node: ast.Delete, stack: list[Any]) -> None:
        stack += [("del", target) for target in node.targets[::-1]]

    def read_MatchAs(self, scope: ScopeReading, node: ast.MatchAs | ast.MatchStar, stack: list[Any]) -> None:
        if node.name is not None:
            scope.bind(node.name, node.lineno, "match")
        stack.append(getattr(node, "pattern", None))

    def read_MatchMapping(self, scope: ScopeReading, node: ast.MatchMapping, stack: list[Any]) -> None:
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

    def read_Yield(self, scope: ScopeReading, node: ast.Yield | ast.YieldFrom, stack: list[Any]) -> None:
        scope.yields.append(node.lineno)
        stack.append(node.value)

    def read_FunctionDef(self, scope: ScopeReading, node: ast.FunctionDef | ast.AsyncFunctionDef, stack: list[Any]) -> None:
        scope.bind(node.name, node.lineno, "def")
        stack += [node.returns, *(a.annotation for a in arguments(node.args)), *node.decorator_list]
        self.function(scope, node.name, node, stack)

    def function(self, scope: ScopeReading, name: str, node: FunctionNode, stack: list[Any]) -> None:
        stack += [*node.args.defaults, *node.args.kw_defaults]  # evaluated outside
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
        self.classes.append(inner)
        self.scan(inner, node.body)

    def read_Lambda(self, scope: ScopeReading, node: ast.Lambda, stack: list[Any]) -> None:
        stack += [*node.args.defaults, *node.args.kw_defaults]
        inner = ScopeReading("lambda", scope.path, node, scope)
        for argument in arguments(node.args):
            inner.bind(argument.arg, argument.lineno, "parameter")
        self.scan(inner, [node.body])
        self.leave(inner)

    def read_ListComp(self, scope: ScopeReading, node: ast.ListComp | ast.DictComp, stack: list[Any]) -> None:
        self.scan(scope, [node.generators[0].iter])  # evaluated outside, and first
        inner = ScopeReading("comprehension", scope.path, node, scope)
        entries: list[Any] = []
        for n, generator in enumerate(node.generators):
            entries += [generator.iter] if n else []
            entries += [("comprehension", generator.target), *generator.ifs]
        entries += [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.scan(inner, entries)
        self.leave(inner)

    def leave(self, inner: ScopeReading) -> None:
        """What an expression's own scope leaves to the scope around it."""
        outer = inner.parent
        assert outer is not None  # only the module has none
        outer.reads.update(dict.fromkeys(name for name in inner.reads if name not in inner.bound))
        if outer.kind != "lambda":
            own = inner.bound if inner.kind == "comprehension" else {}
            for name, found in (own | inner.comprehension).items():
                outer.comprehension.setdefault(name, found)
        if inner.kind == "comprehension":
            for name, found in inner.attributes.items():
                outer.attributes.setdefault(name, found)


# Fields without an expression or statement in them. A table of fields, and not ast.iter_child_nodes, halves the time.
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
