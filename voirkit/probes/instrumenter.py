"""Puts taps into a function's syntax tree: one call at each place where a variable is set, and nothing else.

What a tap cannot see there is noted instead, with the reason: so a check before the run says what the run would say.
``tap_emitter.py`` makes the calls.
"""

from __future__ import annotations

import ast
import sys
from typing import Any
from weakref import WeakKeyDictionary

from voirkit.probes.compatibility import AUGMENTED
from voirkit.probes.source import (
    COMPREHENSIONS,
    SCOPES,
    FunctionNode,
    body_of,
    bound,
    bound_in,
    dotted,
    inside,
    is_future,
    is_top,
    outer_expressions,
    outer_fields,
    pattern_names,
    used_in,
)
from voirkit.probes.tap_emitter import Listener, Site, TapEmitter, Unobservable, at_place, one_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import CodeType

    from voirkit.probes.tap_emitter import Tap


PLACES = (ast.NamedExpr, ast.Yield, ast.YieldFrom, *COMPREHENSIONS)


class Instrumenter(TapEmitter):
    """Puts the taps of some listeners into one function.

    Args:
        node: The function; it is changed, unless nobody wants taps.
        outside: Names from outside that the function only reads.
        globals: What annotations can mean: the function's globals; None if the module has not run.
        table: Gets each marker's function.
        own: The function's code without taps, which has the order of its variables; None: unknown.
    """

    def __init__(
        self, node: FunctionNode, listeners: Iterable[Listener], outside: Sequence[str], globals: Any, table: dict[str, Any],
        own: CodeType | None = None,
    ) -> None:  # fmt: skip
        super().__init__(node, listeners, table)
        self.outside, self.globals, self.own = outside, globals, own
        self.each = only_in_comprehensions(node, outside)
        self.unseen: dict[str, str] = {}  # what happens in the function, by name, and no tap can see; and why
        self.fixed = {name: FIXED.format(line=line) for name, line in self.each.items()}  # what can be seen, and not replaced; and why
        is_generator = any(isinstance(n, ast.Yield | ast.YieldFrom) for part in body_of(node) for n in inside(part, also=True))
        self.is_async_generator = is_generator and isinstance(node, ast.AsyncFunctionDef)

    def instrument(self) -> None:
        entry = self.entry()
        declarations = self.declarations() if entry else []
        if isinstance(self.node, ast.Lambda):
            value = self.wrap(Site("value", "#value", is_expression=True), self.expression(self.node.body))
            ends = [s.value for s in self.statements(Site("exit", "#exit"), None, value)]
            value = one_of([value, *ends], 0)
            self.node.body = one_of([*(s.value for s in entry), value], -1)
            why = f"a lambda (line {self.node.lineno}) has no place for a tap that an exception cannot pass by."
            self.unseen |= {"#exit": why, "#error": why}
            return
        body = self.node.body
        in_order = self.in_order(body[0])
        docstring = body[:1] if is_text(body[0]) else []
        body = self.block(body[len(docstring) :])
        last = self.node.body[-1]
        end = self.value_taps(None, last)
        body = [*body, *end] or [at_place(ast.Pass(), last)]
        errors = self.statements(Site("error", "#error"), None, last)
        exits = self.statements(Site("exit", "#exit"), None, last)
        if errors or exits:
            handlers = [ast.ExceptHandler(None, None, [*errors, ast.Raise()])] if errors else []
            body = [at_place(ast.Try(body, handlers, [], exits), body[0])]
        self.node.body = [*docstring, *declarations, *in_order, *entry, *body]

    def entry(self) -> list[Any]:
        """The taps at the beginning: ``#enter``, what comes from outside, the parameters."""
        node = self.node
        first = node.body if isinstance(node, ast.Lambda) else node.body[0]
        names = [p.arg for p in self.parameters]
        calls = self.statements(Site("enter", "#enter", names), None, first)
        for name in self.outside:
            calls += self.statements(Site("read", name, names), name, first)
        for n, parameter in enumerate(self.parameters):
            site = Site("set", parameter.arg, names[n + 1 :], tags_of(parameter.annotation, self.globals))
            calls += self.statements(site, parameter.arg, first, {parameter.arg})
        return calls

    def in_order(self, first: ast.stmt) -> list[ast.stmt]:
        """A statement that is never reached, for which the compiler makes no code: it only meets the names of the variables in their order.
        It numbers them as it meets them, and ``locals()`` and their destructors come in that order."""
        own, met = self.own, list[ast.stmt]()
        bound = bound_in(self.node)
        for name in own.co_varnames[len(self.parameters) :] if own is not None else ():
            meet: ast.expr = ast.Name(name, ast.Load())
            is_local = name in bound or any(n.startswith("__") and name.endswith(n) for n in bound)
            if own is None or not is_local or name in own.co_cellvars:  # a comprehension's, since 3.12 compiled into the function
                meet = ast.ListComp(meet, [ast.comprehension(ast.Name(name, ast.Store()), ast.Tuple([], ast.Load()), [], 0)])
            met.append(ast.Expr(meet))
        # The compiler leaves a NOP, whose line is shown to tracers, but for that in which a call begins since python 3.11.
        start = ast.Pass(lineno=own.co_firstlineno, col_offset=0) if own is not None and sys.version_info >= (3, 11) else first
        return [at_place(ast.If(ast.Constant(False), met, []), start)] if met else []

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
                        block[n] = at_place(ast.Pass(), inner)
        return moved

    def note_unseen(self, *targets: ast.expr) -> None:
        """Note attributes that a statement sets without showing their value: only code of the program could tell it."""
        for node in (n for target in targets for n in ast.walk(target)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and (name := dotted(node)):
                self.unseen[name] = (
                    f"line {node.lineno} sets it where no value shows. Assign to a variable first, and that to the attribute."
                )

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
        self.outer(node, self.expression)
        return [node, *self.set_names([node.name], node)]

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        if node.value is not None:
            node.value = self.expression(node.value)
        return self.value_taps(node, node) or [node]

    def value_taps(self, node: ast.Return | None, place: ast.AST) -> list[ast.stmt]:
        """A ``return``, or the end of the body, with the taps of ``#value``."""
        site = Site("value", "#value", is_expression=True)
        value = node.value if node is not None and node.value is not None else at_place(ast.Constant(None), place)
        wrapped = self.wrap(site, value)
        if wrapped is value:
            return []
        if self.is_async_generator:  # which cannot return a value
            return [at_place(ast.Expr(wrapped), place), *([node] if node is not None else [])]
        return [at_place(ast.Return(wrapped), place)]

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        node.value = self.expression(node.value)
        for target in node.targets:
            if isinstance(target, ast.Attribute) and (name := dotted(target)):
                node.value = self.wrap(Site("attribute", name, is_expression=True), node.value)
            self.expressions(target)
        self.note_unseen(*(t for t in node.targets if not isinstance(t, ast.Attribute)))
        return [node, *self.set_names(bound(*node.targets), node)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        if node.value is None:
            if isinstance(node.target, ast.Name):
                self.taps(Site("declared", node.target.id))  # known, though it may never be set
            self.expressions(node.target)
            return [node]
        node.value = self.expression(node.value)
        tags = tags_of(node.annotation, self.globals)
        if isinstance(node.target, ast.Attribute) and (name := dotted(node.target)):
            node.value = self.wrap(Site("attribute", name, tags=tags, is_expression=True), node.value)
        self.expressions(node.target)
        return [node, *self.set_names(bound(node.target), node, tags)]

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        self.expressions(node)
        target = node.target
        if not isinstance(target, ast.Attribute) or not (name := dotted(target)):
            return [node, *self.set_names(bound(target), node)]
        if not self.is_steady(target.value, node.value):
            self.note_unseen(target)
            return [node]
        site = Site("attribute", name, is_expression=True)
        if not self.taps(site):
            return [node]
        before = ast.Attribute(target.value, target.attr, ast.Load())
        value = ast.Call(self.mark(AUGMENTED[type(node.op).__name__]), [at_place(before, target), node.value], [])
        return [at_place(ast.Assign([target], self.wrap(site, at_place(value, node))), node)]

    def is_steady(self, owner: ast.expr, value: ast.expr) -> bool:
        """Whether the owner of an attribute is a variable that finding a value cannot set anew, so that it may be read twice."""
        if not isinstance(owner, ast.Name) or owner.id not in bound_in(self.node):
            return False
        elsewhere = any(isinstance(n, ast.Global | ast.Nonlocal) and owner.id in n.names for n in ast.walk(self.node))
        return not elsewhere and all(n.target.id != owner.id for n in ast.walk(value) if isinstance(n, ast.NamedExpr))

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        node.iter = self.expression(node.iter)
        self.expressions(node.target)
        names = bound(node.target)
        before = [s for n in names for s in self.statements(Site("loop", f"#loop_{n}", names), None, node.target)]
        self.note_unseen(node.target)
        taps = self.set_names(names, node.target)
        self.loops += names
        body = self.block(node.body)
        sure = set(names) - self.deleted
        after = [s for n in names for s in self.statements(Site("endloop", f"#endloop_{n}"), None, node.target, sure)]
        del self.loops[len(self.loops) - len(names) :]
        body = [*taps, *body]
        # What happens at the beginning of a turn happens before its variables are set.
        node.body = [*before, *([at_place(ast.Try(body, [], [], after), body[0])] if after else body)]
        node.orelse = self.block(node.orelse)
        return [node]

    visit_AsyncFor = visit_For

    def visit_With(self, node: ast.With) -> list[ast.stmt]:
        for item in node.items:
            item.context_expr = self.expression(item.context_expr)
            if item.optional_vars is not None:
                self.expressions(item.optional_vars)
        body = self.block(node.body)
        items = node.items
        for n in range(len(items) - 1, -1, -1):
            target = items[n].optional_vars
            if target is None:
                continue
            self.note_unseen(target)
            if taps := self.set_names(bound(target), target):  # a tap between two items needs a `with` in a `with`, which means the same
                inner = [at_place(type(node)(items[n + 1 :], body), node)] if items[n + 1 :] else body
                body, items = [*taps, *inner], items[: n + 1]
        node.items, node.body = items, body
        return [node]

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
                body = [at_place(ast.Try(body, [], [], gone), handler)] if gone else body
            handler.body = body
        node.orelse = self.block(node.orelse)
        node.finalbody = self.block(node.finalbody)
        return [node]

    visit_TryStar = visit_Try

    def visit_Match(self, node: ast.Match) -> list[ast.stmt]:
        node.subject = self.expression(node.subject)
        for case in node.cases:
            names = pattern_names(case.pattern)
            if case.guard is None:
                taps = self.set_names(names, case.pattern)
            else:  # the names are set whether it holds or not
                calls = self.set_in_expression(names)
                case.guard = at_place(one_of([*calls, self.expression(case.guard)], -1), case.guard)
                taps = []
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
        """The expression with taps at ``:=`` and ``yield``, and in comprehensions."""
        if isinstance(node, ast.Name | ast.Constant):
            return node
        if not any(isinstance(n, PLACES) for n in inside(node, also=True)):
            return node
        return self.inner(node)  # type: ignore[no-any-return]  # an expression, as it got one

    def inner(self, node: Any) -> Any:
        if isinstance(node, SCOPES):
            self.outer(node, self.inner)
            return node
        if isinstance(node, COMPREHENSIONS):
            return self.comprehension(node)
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                setattr(node, field, self.inner(value))
            elif isinstance(value, list):
                setattr(node, field, [self.inner(v) if isinstance(v, ast.AST) else v for v in value])
        if isinstance(node, ast.NamedExpr):
            node.value = self.wrap(Site("set", node.target.id, is_expression=True), node.value)
        elif isinstance(node, ast.YieldFrom):
            why = f"'yield from' hands values through (line {node.lineno}), where no tap can see it."
            self.unseen |= {"#yield": why, "#receive": why}
        elif isinstance(node, ast.Yield):
            value = node.value if node.value is not None else at_place(ast.Constant(None), node)
            wrapped = self.wrap(Site("yield", "#yield", is_expression=True), value)
            if wrapped is not value:
                node.value = wrapped
            return self.wrap(Site("receive", "#receive", is_expression=True), node)
        return node

    def comprehension(self, node: Any) -> Any:
        """Put the taps into a comprehension: before the expression that comes next when a ``for`` has set its variables.

        Since python 3.12 a comprehension is compiled into its function, before that it is code of its own, as a generator expression
        still is: here its variables can be named in either. What a name means in the function itself comes first; a comprehension's
        variable of that name is then left alone.
        """
        first = node.generators[0]
        first.iter = self.inner(first.iter)  # evaluated outside, and first
        around, self.around = self.around, self.around.union(*(bound(g.target) for g in node.generators))
        self.deep += 1
        sure: set[str] = set()
        calls: list[ast.expr] = []
        for generator in node.generators:
            if generator is not first:
                generator.iter = one_of([*calls, self.inner(generator.iter)], -1)
                calls = []
            generator.target = self.inner(generator.target)
            for part in ast.walk(generator.target):
                if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and (attribute := dotted(part)):
                    self.unseen[attribute] = f"a comprehension sets it (line {part.lineno}), where no tap can see it."
            set_here = bound(generator.target)
            sure |= self.each.keys() & set_here
            for n, name in enumerate(set_here):
                if name in self.each:
                    site = Site("each", name, [other for other in set_here[n + 1 :] if other != name])
                    calls += [self.call_expression(tap, site, sure) for tap in self.taps(site)]
            for n, test in enumerate(generator.ifs):
                generator.ifs[n] = one_of([*calls, self.inner(test)], -1)
                calls = []
        for field in ("key", "value", "elt"):
            if hasattr(node, field):
                setattr(node, field, one_of([*calls, self.inner(getattr(node, field))], -1))
                calls = []
        self.deep -= 1
        self.around = around
        return node

    def outer(self, node: ast.AST, change: Callable[[Any], Any]) -> None:
        """Put the taps into those expressions of a nested definition that are evaluated here."""
        for at, field in outer_fields(node):
            value = getattr(at, field)
            setattr(at, field, [v and change(v) for v in value] if isinstance(value, list) else change(value))

    # what the taps cannot see

    def check(self) -> None:
        """Make sure that the taps which have been put in see all that their listeners want. Raises Unobservable: they do not."""
        for listener in self.listeners:
            problem = self.why_unobservable(listener.wanted, listener.foci, listener.is_total, listener.overridable)
            if problem:
                raise Unobservable(problem)

    def why_unobservable(self, captured: Iterable[str], foci: Sequence[str], is_total: bool, is_replaced: bool) -> str:
        """Why what is wanted in the function cannot be seen (or replaced), to follow the function's name; empty if it can.

        Args:
            captured: The names of captures.
            foci: Those of them that make an event.
            is_total: Whether the event comes at the end of the call.
            is_replaced: Whether the foci are to be replaced.
        """
        for name in captured:
            if name in self.unseen:
                return f"cannot be probed for '{name}': {self.unseen[name]}"
            if is_replaced and name in self.fixed:
                return f"cannot be probed for '{name}' to replace it: {self.fixed[name]}"
        if is_total and "#exit" in self.unseen:
            return f"cannot be probed without a focus: that is an event at the end of the call, and {self.unseen['#exit']}"
        for name in captured:
            for focus in foci if name not in foci else ():
                what = f"cannot be probed for '{focus}' together with '{name}': "
                if name in self.each and name not in self.inner_at.get(focus, ()):
                    return f"{what}that is a variable of a comprehension (line {self.each[name]}), and has no value there."
                if name in self.hidden_at.get(focus, ()):
                    return f"{what}in the comprehension there that name means another variable."
        return ""


def is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def instrumenter_of(
    node: FunctionNode, listeners: Sequence[Listener], outside: Sequence[str], names: Any, table: dict[str, Any],
    own: CodeType | None = None,
) -> Instrumenter:  # fmt: skip
    """An ``Instrumenter`` for a function, or for the top level of a module."""
    if is_top(node):
        return TopLevelInstrumenter(node, listeners, (), names, table)
    return Instrumenter(node, listeners, outside, names, table, own)


class TopLevelInstrumenter(Instrumenter):
    """Puts taps between the statements of a module: nothing before its first, so that its ``__doc__`` and ``__future__`` imports stay."""

    def instrument(self) -> None:
        body: list[ast.stmt] = self.node.body  # type: ignore[assignment]  # no lambda
        first = 0
        while first < len(body) and (is_text(body[first]) or is_future(body[first])):
            first += 1
        self.node.body = [*body[:first], *self.block(body[first:])]


FIXED = "a comprehension (line {line}) sets it, and allows no other value."


def only_in_comprehensions(node: FunctionNode, outside: Iterable[str]) -> dict[str, int]:
    """The variables of a function's comprehensions that mean nothing else in it, and the line of the first. ``outside``: names from outside
    that it reads."""
    found: dict[str, int] = {}
    for part in body_of(node):
        for at in inside(part, also=True):
            for generator in at.generators if isinstance(at, COMPREHENSIONS) else ():
                for name in bound(generator.target):
                    found.setdefault(name, generator.target.lineno)
    if not found:
        return {}
    own = {*bound_in(node), *outside}
    return {name: line for name, line in found.items() if name not in own}


def tags_of(annotation: ast.expr | None, names: Any) -> frozenset[str]:
    """The names of the tags.

    Args:
        annotation: ``tag.Weight & tag.Loss``, ``"@Weight"``; None has none.
        names: What it can mean: the globals of the function; None if the module has not run.
    """
    if names is None:  # what is called `tag` is taken for it
        path = dotted(annotation) if annotation is not None else ""
        if path.startswith(("tag.", "ptera.tag.", "voirkit.tag.")):
            return frozenset([path.rpartition(".")[2]])
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitAnd):
        return tags_of(annotation.left, names) | tags_of(annotation.right, names)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        words = [word.strip() for word in annotation.value.split("&")]
        if all(word.startswith("@") for word in words):
            return frozenset(word[1:] for word in words)
        try:
            return tags_of(ast.parse(annotation.value, mode="eval").body, names)
        except SyntaxError:
            return frozenset()
    first, *rest = (dotted(annotation) if annotation is not None else "").split(".")
    if not first or names is None or first not in names:
        return frozenset()
    found = names[first]
    if rest and not (type(found).__name__ == "_TagFactory" or hasattr(found, "__path__") or hasattr(found, "__spec__")):
        return frozenset()
    for part in rest:
        found = getattr(found, part, None)
    from voirkit.probes.selector import tag_names  # loads ptera: only a function with tags pays

    return tag_names(found)


# Kinds of sites (``tap_emitter.Site``)
NEVER_ASSIGNED = frozenset({"declared", "unset"})
REPLACEABLE = frozenset({"set", "value", "yield", "receive", "attribute"})


class SiteCollector:
    """A listener that wants no taps, and notes what there is (``tap_emitter.Listener``)."""

    overridable = is_awake = is_total = False
    names: Sequence[str] = ()
    wanted: Sequence[str] = ()
    foci: Sequence[str] = ()

    def __init__(self) -> None:
        self.kinds: dict[str, set[str]] = {}

    def taps(self, site: Site) -> Sequence[Tap]:
        """None; notes the site."""
        self.kinds.setdefault(site.name, set()).add(site.kind)
        return ()


class Visibility:
    """What can be seen in a function."""

    def __init__(self, node: FunctionNode) -> None:
        collector = SiteCollector()
        # knows what no tap can see, and what none can replace
        self.instrumenter = instrumenter_of(node, [collector], outer_names(node), None, {})
        self.instrumenter.instrument()
        self.kinds = collector.kinds  # the kinds of sites (``tap_emitter.Site``) of each name

    def is_assigned(self, name: str) -> bool:
        """Whether it ever has a value."""
        return bool(self.kinds.get(name, set()) - NEVER_ASSIGNED)

    def is_replaceable(self, name: str) -> bool:
        """Whether a tap may replace the value."""
        return bool(self.kinds.get(name, set()) & REPLACEABLE)


_visibilities: WeakKeyDictionary[ast.AST, Visibility] = WeakKeyDictionary()


def visibility_of(node: FunctionNode) -> Visibility:
    """What can be seen in a function; the tree stays as it is."""
    found = _visibilities.get(node)
    if found is None:
        found = _visibilities[node] = Visibility(node)
    return found


def outer_names(node: FunctionNode) -> list[str]:
    """Names from outside that a function uses, or a scope inside it."""
    own = bound_in(node)
    parts = [*outer_expressions(node), *body_of(node)]
    return [name for name in dict.fromkeys(name for part in parts for name in used_in(part)) if name not in own]
