"""Puts taps into a function's syntax tree: one call at each place where a variable is set, and nothing else.

The tree calls a marker, a constant string that ``weave.py`` replaces by the tap in the compiled code.  A tap never
raises unless a subscriber means to, so that the program can not tell.  Each new node stands where its neighbour stands.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Protocol

from voirkit.probes.language import tag_names
from voirkit.probes.names import COMPREHENSIONS, SCOPES, FunctionNode, bound, captures, deleted_in, dotted, inside
from voirkit.probes.source import MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

LADDER = 2  # so many names that may be unbound are tried one by one; 2**n calls


class Site:
    """A place in a function where something happens.

    Attributes:
        kind: ``set`` (a variable), ``declared`` (``x: int``; nothing happens), ``read`` (a name from outside, at entry), ``attribute``,
            ``unset``, ``enter``, ``exit``, ``value``, ``error``, ``yield``, ``receive``, ``loop``, ``endloop``.
        name: The variable, or the hash variable such as ``#loop_i``.
        tags: Names of the tags that the assignment has.
        unset: Names that count as not set yet, whatever their variables hold.
        is_expression: The tap is called with the value, and returns it.
        loops: Names of the loops around it.
        is_deep: It is in the code of a comprehension, where the function's variables can not be named.
    """

    __slots__ = ("is_deep", "is_expression", "kind", "loops", "name", "tags", "unset")

    def __init__(
        self, kind: str, name: str, unset: Iterable[str] = (), tags: frozenset[str] = frozenset(), is_expression: bool
        = False,
        loops: Iterable[str] = (), is_deep: bool = False,
    ) -> None:  # fmt: skip
        self.kind, self.name, self.tags, self.is_expression, self.is_deep = kind, name, tags, is_expression, is_deep
        self.unset, self.loops = frozenset(unset), frozenset(loops)

    @property
    def has_value(self) -> bool:
        """Whether the tap is called with a value first."""
        return self.is_expression or self.kind in ("set", "read")


class CanNot(Exception):
    """A selector asks for what can not be seen in this function; says what, to follow the function's name."""


class Tap(Protocol):
    """What a listener wants called at a site.

    Attributes:
        reads: Names of the variables that it is to be called with.
        replaces: Whether what it returns is to be the variable's value.
    """

    reads: tuple[str, ...]
    replaces: bool

    def make(self, reads: Sequence[str]) -> Callable[..., Any]:
        """The function to call with those of the variables that are bound (after the value, if the site has one)."""
        ...

    def slow(self) -> Callable[..., Any]:
        """The function to call without the variables; it looks for them in the calling frame."""
        ...


class Listener(Protocol):
    """One who wants taps in a function.

    Attributes:
        overridable: Whether its taps may replace values.
        is_awake: Whether it wants them now; they can wait until somebody listens.
        names: The variables that it is about.
        wanted: All that it captures by name.
    """

    overridable: bool
    is_awake: bool
    names: Sequence[str]
    wanted: Sequence[str]

    def taps(self, site: Site) -> Sequence[Tap]:
        """What it wants called at a site, in order."""
        ...


class Tapper:
    """Puts the taps of some listeners into one function.

    Args:
        node: The function; it is changed.
        listeners: Who wants taps; those that replace values come first.
        outside: Names from outside that the function only reads.
        names: What annotations can mean: the function's globals.
        table: Gets each marker's function.
    """

    def __init__(
        self,
        node: FunctionNode,
        listeners: Sequence[Listener],
        outside: Sequence[str],
        names: Any,
        table: dict[str, Any],
    ) -> None:
        self.node, self.names, self.table = node, names, table
        self.listeners = sorted(listeners, key=lambda listener: not listener.overridable)
        self.outside = outside
        a = node.args
        rest = [x for x in (a.vararg, a.kwarg) if x is not None]
        self.parameters = [*a.posonlyargs, *a.args, *a.kwonlyargs, *rest]
        self.deleted = deleted_in(node)
        self.sure = frozenset(p.arg for p in self.parameters) - self.deleted
        self.loops: list[str] = []
        self.deep = 0
        self.is_generator = any(isinstance(n, ast.Yield | ast.YieldFrom) for n in inside(node))
        self.hoisted: set[str] = set()
        self.is_async_generator = self.is_generator and isinstance(node, ast.AsyncFunctionDef)

    def put(self) -> None:
        """Do it."""
        entry = self.entry()
        declarations = self.declarations() if entry else []
        if isinstance(self.node, ast.Lambda):
            value = self.wrap(Site("value", "#value", is_expression=True), self.expression(self.node.body))
            self.node.body = _after([s.value for s in entry], value)
            return
        body = self.node.body
        docstring = body[:1] if _is_text(body[0]) else []
        body = self.block(body[len(docstring) :])
        last = self.node.body[-1]
        end = self.value_taps(None, last)
        body = [*body, *end] or [_at(ast.Pass(), last)]
        errors = self.statements(Site("error", "#error"), None, last)
        exits = self.statements(Site("exit", "#exit"), None, last)
        if errors or exits:
            handlers = [ast.ExceptHandler(None, None, [*errors, ast.Raise()])] if errors else []
            body = [_at(ast.Try(body, handlers, [], exits), body[0])]
        self.node.body = [*docstring, *declarations, *entry, *body]

    def entry(self) -> list[Any]:
        """The taps at the beginning: ``#enter``, what comes from outside, the parameters."""
        node = self.node
        first = node.body if isinstance(node, ast.Lambda) else node.body[0]
        names = [p.arg for p in self.parameters]
        calls = self.statements(Site("enter", "#enter", names), None, first)
        for name in self.outside:
            calls += self.statements(Site("read", name, names), name, first)
        for n, parameter in enumerate(self.parameters):
            site = Site("set", parameter.arg, names[n + 1 :], self.tags(parameter.annotation))
            calls += self.statements(site, parameter.arg, first, {parameter.arg})
        return calls

    def declarations(self) -> list[ast.stmt]:
        """Take out the ``global`` and ``nonlocal`` statements: they must come before the taps that use the names."""
        moved: list[ast.stmt] = []
        for statement in [self.node, *inside(self.node)]:
            for field in ("body", "orelse", "finalbody"):
                block = getattr(statement, field, None)
                if not isinstance(block, list):
                    continue
                for n, inner in enumerate(block):
                    if isinstance(inner, ast.Global | ast.Nonlocal):
                        moved.append(inner)
                        block[n] = _at(ast.Pass(), inner)
        return moved

    def unseen(self, kind: str, name: str, at: Any, why: str) -> None:
        """Refuse if somebody wants what a tap can not see here."""
        for listener in self.listeners:
            if any(name == other for other in listener.wanted):
                raise CanNot(f"can not be probed for '{name}': {why} (line {at.lineno}), where no tap can see it.")

    def unseen_attributes(self, *targets: ast.expr) -> None:
        """Refuse attributes that are set otherwise than by a plain assignment: reading them could run code."""
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and (name := dotted(node)):
                    self.unseen("attribute", name, node, "it is set otherwise than by a plain '='")

    # making calls

    def taps(self, site: Site) -> list[Tap]:
        site.loops = frozenset(self.loops) | site.loops
        site.is_deep = site.is_deep or bool(self.deep)
        return [tap for listener in self.listeners for tap in listener.taps(site)]

    def mark(self, value: Any) -> ast.expr:
        """An expression that stands for any object; the compiler has no warning for it, and leaves nothing of its form."""
        marker = f"{MARK}{len(self.table)}"
        self.table[marker] = value
        return ast.IfExp(ast.Constant(True), ast.Constant(marker), ast.Constant(None))

    def statements(self, site: Site, value: str | None, at: ast.AST, sure: set[str] | None = None) -> list[Any]:
        """Statements that call all the taps of a site."""
        found: list[Any] = []
        for tap in self.taps(site):
            target = value if tap.replaces and site.kind == "set" else None
            unsure = [name for name in tap.reads if name not in self.sure and name not in (sure or ())]
            if isinstance(self.node, ast.Lambda):
                if site.kind != "read":  # which may not be there, and an expression can not ask
                    shown = [*([value] if value else []), *(() if unsure else tap.reads)]
                    function = tap.slow() if unsure else tap.make(tap.reads)
                    args: list[ast.expr] = [ast.Name(n, ast.Load()) for n in shown]
                    found.append(_at(ast.Expr(ast.Call(self.mark(function), args, [])), at))
            else:
                call = self.ladder(tap, value, list(tap.reads), unsure, target)
                if site.kind == "read":  # there may be no such global
                    call = ast.Try([call], [ast.ExceptHandler(self.mark(NameError), None, [ast.Pass()])], [], [])
                found.append(_at(call, at))
        return found

    def ladder(self, tap: Tap, value: str | None, reads: list[str], unsure: list[str], target: str | None) -> ast.stmt:
        """The call of a tap; with a way out for each name that may be unbound."""
        call = self.call(tap, value, reads, target)
        if not unsure:
            return call
        if len(unsure) > LADDER:
            slow = ast.Call(self.mark(tap.slow()), [ast.Name(value, ast.Load())] if value else [], [])
            out = self.statement(slow, target)
            handler: list[ast.stmt] = [out]
        else:
            first, *others = unsure
            without = self.ladder(tap, value, [n for n in reads if n != first], others, target)
            if others:  # the first may be bound, and only the others not
                others_only = self.only_first(tap, value, reads, first, others, target)
                handler = [others_only]
            else:
                handler = [without]
        return ast.Try([call], [ast.ExceptHandler(self.mark(NameError), None, handler)], [], [])

    def only_first(self, tap: Tap, value: str | None, reads: list[str], first: str, others: list[str], target: str | None) -> ast.stmt:
        kept = [n for n in reads if n not in others]
        call = self.call(tap, value, kept, target)
        without = self.ladder(tap, value, [n for n in reads if n != first], others, target)
        return ast.Try([call], [ast.ExceptHandler(self.mark(NameError), None, [without])], [], [])

    def call(self, tap: Tap, value: str | None, reads: list[str], target: str | None) -> ast.stmt:
        values: list[ast.expr] = [ast.Name(name, ast.Load()) for name in ([value] if value else []) + reads]
        return self.statement(ast.Call(self.mark(tap.make(reads)), values, []), target)

    def statement(self, call: ast.Call, target: str | None) -> ast.stmt:
        return ast.Expr(call) if target is None else ast.Assign([ast.Name(target, ast.Store())], call)

    def wrap(self, site: Site, value: ast.expr) -> ast.expr:
        """An expression in the calls of all the taps of a site."""
        for tap in self.taps(site):
            direct = not self.deep and all(name in self.sure for name in tap.reads)
            function = tap.make(tap.reads) if direct else tap.slow()
            reads: list[ast.expr] = [ast.Name(n, ast.Load()) for n in tap.reads] if direct else []
            value = _at(ast.Call(self.mark(function), [value, *reads], []), value)
        return value

    def set_names(self, names: Sequence[str], at: ast.AST, tags: frozenset[str] = frozenset()) -> list[ast.stmt]:
        """The taps after a statement that sets names, in their order."""
        found: list[ast.stmt] = []
        for n, name in enumerate(names):
            later = [other for other in names[n + 1 :] if other != name]
            found += self.statements(Site("set", name, later, tags), name, at, set(names) - self.deleted | {name})
        return found

    def tags(self, annotation: ast.expr | None) -> frozenset[str]:
        """The tags that an annotation names; only attributes and ``&`` are evaluated."""
        if self.names is None:  # the module has not run: what is called `tag` is taken for it
            path = dotted(annotation) if annotation is not None else ""
            if path.startswith(("tag.", "ptera.tag.", "voirkit.tag.")):
                return frozenset([path.rpartition(".")[2]])
        if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitAnd):
            return self.tags(annotation.left) | self.tags(annotation.right)
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            words = [word.strip() for word in annotation.value.split("&")]
            if all(word.startswith("@") for word in words):
                return frozenset(word[1:] for word in words)
            try:
                return self.tags(ast.parse(annotation.value, mode="eval").body)
            except SyntaxError:
                return frozenset()
        first, *rest = (dotted(annotation) if annotation is not None else "").split(".")
        if not first or self.names is None or first not in self.names:
            return frozenset()
        found = self.names[first]
        if rest and not (type(found).__name__ == "_TagFactory" or hasattr(found, "__path__") or hasattr(found, "__spec__")):
            return frozenset()
        for part in rest:
            found = getattr(found, part, None)
        return tag_names(found)

    # statements

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [new for statement in statements for new in self.visit(statement)]

    def visit(self, node: ast.stmt) -> list[ast.stmt]:
        special = getattr(self, f"visit_{type(node).__name__}", None)
        if special is not None:
            found: list[ast.stmt] = special(node)
            return found
        self.expressions(node)
        for field in ("body", "orelse", "finalbody"):
            if isinstance(block := getattr(node, field, None), list):
                setattr(node, field, self.block(block))
        return [node]

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        at: ast.If | None = node
        while at is not None:  # a chain of elif is deep
            self.expressions(at)
            at.body = self.block(at.body)
            if len(at.orelse) == 1 and isinstance(at.orelse[0], ast.If):
                at = at.orelse[0]
            else:
                at.orelse, at = self.block(at.orelse), None
        return [node]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:
        node.decorator_list = [self.expression(d) for d in node.decorator_list]
        if not isinstance(node, ast.ClassDef):
            node.args.defaults = [self.expression(d) for d in node.args.defaults]
            node.args.kw_defaults = [d and self.expression(d) for d in node.args.kw_defaults]
        return [node, *self.set_names([node.name], node)]

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        if node.value is not None:
            node.value = self.expression(node.value)
        return self.value_taps(node, node) or [node]

    def value_taps(self, node: ast.Return | None, at: ast.AST) -> list[ast.stmt]:
        """A ``return``, or the end of the body, with the taps of ``#value``."""
        site = Site("value", "#value", is_expression=True)
        value = node.value if node is not None and node.value is not None else _at(ast.Constant(None), at)
        wrapped = self.wrap(site, value)
        if wrapped is value:
            return []
        if self.is_async_generator:  # which can not return a value
            return [_at(ast.Expr(wrapped), at), *([node] if node is not None else [])]
        return [_at(ast.Return(wrapped), at)]

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        node.value = self.expression(node.value)
        for target in node.targets:
            if isinstance(target, ast.Attribute) and (name := dotted(target)):
                node.value = self.wrap(Site("attribute", name, is_expression=True), node.value)
            else:
                self.unseen_attributes(target)
            self.expressions(target)
        return [node, *self.set_names(bound(*node.targets), node)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        if node.value is None:
            if isinstance(node.target, ast.Name):
                self.taps(Site("declared", node.target.id))  # known, though it may never be set
            return [node]
        node.value = self.expression(node.value)
        tags = self.tags(node.annotation)
        if isinstance(node.target, ast.Attribute) and (name := dotted(node.target)):
            node.value = self.wrap(Site("attribute", name, tags=tags, is_expression=True), node.value)
        return [node, *self.set_names(bound(node.target), node, tags)]

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        self.expressions(node)
        self.unseen_attributes(node.target)
        return [node, *self.set_names(bound(node.target), node)]

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        node.iter = self.expression(node.iter)
        self.expressions(node.target)
        self.unseen_attributes(node.target)
        names = bound(node.target)
        before = [s for n in names for s in self.statements(Site("loop", f"#loop_{n}", names), None, node.target)]
        taps = self.set_names(names, node.target)
        self.loops += names
        body = self.block(node.body)
        sure = set(names) - self.deleted
        after = [s for n in names for s in self.statements(Site("endloop", f"#endloop_{n}"), None, node.target, sure)]
        del self.loops[len(self.loops) - len(names) :]
        body = [*taps, *body]
        node.body = [*before, *([_at(ast.Try(body, [], [], after), body[0])] if after else body)]
        node.orelse = self.block(node.orelse)
        return [node]

    visit_AsyncFor = visit_For

    def visit_With(self, node: ast.With) -> list[ast.stmt]:
        for item in node.items:
            item.context_expr = self.expression(item.context_expr)
            if item.optional_vars is not None:
                self.expressions(item.optional_vars)
                self.unseen_attributes(item.optional_vars)
        body = self.block(node.body)
        items = node.items
        while True:  # a tap between two items needs a `with` in a `with`, which means the same
            taps: list[ast.stmt] = []
            for n in range(len(items) - 1, -1, -1):
                target = items[n].optional_vars
                if target is not None and (taps := self.set_names(bound(target), target)):
                    break
            else:
                n = -1
            if n == -1:
                node.items, node.body = items, body
                return [node]
            inner = items[n + 1 :]
            body = [*taps, *([_at(type(node)(inner, body), node)] if inner else body)]
            items = items[: n + 1]
            last = items[-1]
            before = items[:-1]
            if not any(i.optional_vars is not None for i in before):
                node.items, node.body = items, body
                return [node]
            body = [_at(type(node)([last], body), node)]
            items = before

    visit_AsyncWith = visit_With

    def visit_Try(self, node: ast.Try) -> list[ast.stmt]:
        node.body = self.block(node.body)
        for handler in node.handlers:
            if handler.type is not None:
                handler.type = self.expression(handler.type)
            body = self.block(handler.body)
            if handler.name is not None:
                site = Site("set", handler.name)
                body = [*self.statements(site, handler.name, handler, {handler.name}), *body]
                gone = self.statements(Site("unset", handler.name), None, handler)
                body = [_at(ast.Try(body, [], [], gone), handler)] if gone else body
            handler.body = body
        node.orelse = self.block(node.orelse)
        node.finalbody = self.block(node.finalbody)
        return [node]

    visit_TryStar = visit_Try

    def visit_Match(self, node: ast.Match) -> list[ast.stmt]:
        node.subject = self.expression(node.subject)
        for case in node.cases:
            names = captures(case.pattern)
            if case.guard is None:
                taps = self.set_names(names, case.pattern)
            else:
                taps = self.set_names(names, case.pattern)
                guard = self.expression(case.guard)
                calls = [s.value for s in taps if isinstance(s, ast.Expr)]
                if calls and len(calls) == len(taps):  # else one that may replace the value, or that needs a way out
                    guard, taps = _after(calls, guard), []
                case.guard = guard
            case.body = [*taps, *self.block(case.body)]
        return [node]

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> list[ast.stmt]:
        return [node, *self.set_names([a.asname or a.name.split(".")[0] for a in node.names if a.name != "*"], node)]

    visit_ImportFrom = visit_Import

    def visit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        self.expressions(node)
        names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Del)]
        return [node, *(s for name in names for s in self.statements(Site("unset", name), None, node))]

    def visit_TypeAlias(self, node: Any) -> list[ast.stmt]:
        return [node, *self.set_names([node.name.id], node)]

    # expressions

    def expressions(self, node: ast.AST) -> None:
        """Put the taps into a statement's own expressions, not into the statements in it."""
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, field, self.expression(value))
            elif isinstance(value, list) and value and isinstance(value[0], ast.expr):
                setattr(node, field, [self.expression(v) for v in value])

    def expression(self, node: ast.expr) -> ast.expr:
        """The expression with taps at ``:=`` and ``yield``."""
        if isinstance(node, ast.Name | ast.Constant):
            return node
        if not any(isinstance(n, ast.NamedExpr | ast.Yield | ast.YieldFrom) for n in inside(node, also=True)):
            return node
        return self.inner(node)  # type: ignore[no-any-return]  # an expression, as it got one

    def inner(self, node: Any) -> Any:
        if isinstance(node, SCOPES):
            return node
        deep = isinstance(node, COMPREHENSIONS)
        self.deep += deep
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                setattr(node, field, self.inner(value))
            elif isinstance(value, list):
                setattr(node, field, [self.inner(v) if isinstance(v, ast.AST) else v for v in value])
        self.deep -= deep
        if isinstance(node, ast.NamedExpr):
            node.value = self.wrap(Site("set", node.target.id, is_expression=True), node.value)
        elif isinstance(node, ast.YieldFrom):
            for name in ("#yield", "#receive"):
                self.unseen("yield", name, node, "'yield from' hands values through")
        elif isinstance(node, ast.Yield):
            value = node.value if node.value is not None else _at(ast.Constant(None), node)
            wrapped = self.wrap(Site("yield", "#yield", is_expression=True), value)
            if wrapped is not value:
                node.value = wrapped
            return self.wrap(Site("receive", "#receive", is_expression=True), node)
        return node


def _after(first: Sequence[ast.expr], value: ast.expr) -> ast.expr:
    """An expression that evaluates others and then is the last."""
    if not first:
        return value
    all_of_them = ast.Tuple([*first, value], ast.Load())
    return _at(ast.Subscript(all_of_them, ast.Constant(-1), ast.Load()), value)  # type: ignore[no-any-return]


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _at(new: Any, old: ast.AST) -> Any:
    """Give new nodes the place of an old one; what has a place keeps it, with all that is in it."""
    line, column = getattr(old, "lineno", 1), getattr(old, "col_offset", 0)
    end, last = getattr(old, "end_lineno", line), getattr(old, "end_col_offset", column)
    stack = [new]
    while stack:
        node = stack.pop()
        if "lineno" in node._attributes and not hasattr(node, "lineno"):
            node.lineno, node.col_offset, node.end_lineno, node.end_col_offset = line, column, end, last
            stack += ast.iter_child_nodes(node)
    return new
