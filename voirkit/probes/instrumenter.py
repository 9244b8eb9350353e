"""Inserts taps into a function's syntax tree: one call at each place where a variable is set.

A tap passes the variable's value to the probes that listen to it. Nothing else is inserted. If no
tap can see a value, the reason is recorded instead: so a check before the run reports the same as
the run. ``tap_emitter.py`` makes the calls.
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
from voirkit.probes.tap_emitter import (
    REPLACEABLE,
    Listener,
    Site,
    TapEmitter,
    Unobservable,
    at_place,
    one_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import CodeType

    from voirkit.probes.tap_emitter import Tap


PLACES = (ast.NamedExpr, ast.Yield, ast.YieldFrom, *COMPREHENSIONS)


class Instrumenter(TapEmitter):
    """Inserts the taps of some listeners into one function.

    Args:
        node: The function's syntax tree; it is changed, unless no listener wants taps.
        outside: Names from outside that the function only reads.
        globals: The function's globals, to resolve annotations; None if the module has not run.
        table: A dictionary to which the function of each tap is added, by its marker in the tree.
        code: The function's code object without taps, which has the order of its variables; None if
            unknown.
    """

    def __init__(
        self,
        node: FunctionNode,
        listeners: Iterable[Listener],
        outside: Sequence[str],
        globals: Any,
        table: dict[str, Any],
        code: CodeType | None = None,
    ) -> None:
        super().__init__(node, listeners, table)
        self.outside = outside
        self.globals = globals
        self.code = code
        self.each = only_in_comprehensions(node, outside)
        # names of variables and events that no tap can see, each with the reason
        self.unseen: dict[str, str] = {}
        # names of variables that taps can see but not replace, each with the reason
        self.fixed = {name: FIXED.format(line=line) for name, line in self.each.items()}
        is_generator = any(
            isinstance(inner, ast.Yield | ast.YieldFrom)
            for part in body_of(node)
            for inner in inside(part, also=True)
        )
        self.is_async_generator = is_generator and isinstance(node, ast.AsyncFunctionDef)

    def instrument(self) -> None:
        entry = self.entry()
        declarations = self.declarations() if entry else []
        if isinstance(self.node, ast.Lambda):
            self.instrument_lambda(self.node, entry)
            return
        body = self.node.body
        mentions = self.mentions_in_order(body[0])
        docstring = body[:1] if is_text(body[0]) else []
        body = self.block(body[len(docstring) :])
        last = self.node.body[-1]
        end = self.value_taps(None, last)
        body = [*body, *end] or [at_place(ast.Pass(), last)]
        errors = self.statements(Site("error", "#error"), None, last)
        exits = self.statements(Site("exit", "#exit"), None, last)
        if errors or exits:
            handlers = []
            if errors:
                handlers.append(ast.ExceptHandler(None, None, [*errors, ast.Raise()]))
            body = [at_place(ast.Try(body, handlers, [], exits), body[0])]
        self.node.body = [*docstring, *declarations, *mentions, *entry, *body]

    def instrument_lambda(self, node: ast.Lambda, entry: list[Any]) -> None:
        site = Site("value", "#value", is_expression=True)
        value = self.wrap(site, self.expression(node.body))
        exits = [tap.value for tap in self.statements(Site("exit", "#exit"), None, value)]
        value = one_of([value, *exits], 0)
        node.body = one_of([*(tap.value for tap in entry), value], -1)
        why = (
            f"a lambda (line {node.lineno}) has no place for a tap that an exception cannot pass"
            " by."
        )
        self.unseen |= {"#exit": why, "#error": why}

    def entry(self) -> list[Any]:
        """Return the taps at the beginning: ``#enter``, names from outside, and parameters."""
        node = self.node
        first = node.body if isinstance(node, ast.Lambda) else node.body[0]
        names = [parameter.arg for parameter in self.parameters]
        calls = self.statements(Site("enter", "#enter", names), None, first)
        for name in self.outside:
            calls += self.statements(Site("read", name, names), name, first)
        for index, parameter in enumerate(self.parameters):
            name = parameter.arg
            tags = tags_of(parameter.annotation, self.globals)
            site = Site("set", name, names[index + 1 :], tags)
            calls += self.statements(site, name, first, {name})
        return calls

    def mentions_in_order(self, first: ast.stmt) -> list[ast.stmt]:
        """Return a statement that is never reached, and names the variables in the original order.

        The compiler makes no code for it, but numbers the variables in the order in which it meets
        them. ``locals()`` has that order, and so do the destructors of their values.
        """
        code = self.code
        if code is None:
            return []
        bound = bound_in(self.node)
        private = tuple(name for name in bound if name.startswith("__"))
        mentions: list[ast.stmt] = []
        for name in code.co_varnames[len(self.parameters) :]:
            mention: ast.expr = ast.Name(name, ast.Load())
            is_local = name in bound or name.endswith(private)
            # the variable of a comprehension is mentioned in a comprehension; Python 3.12 compiles
            # comprehensions into the function
            if not is_local or name in code.co_cellvars:
                variable = ast.Name(name, ast.Store())
                clause = ast.comprehension(variable, ast.Tuple([], ast.Load()), [], 0)
                mention = ast.ListComp(mention, [clause])
            mentions.append(ast.Expr(mention))
        if not mentions:
            return []
        # The compiler leaves a NOP for the statement, and tracers would see the NOP's line. Since
        # Python 3.11 tracers do not see the NOP if it has the line in which a call begins.
        place = first
        if sys.version_info >= (3, 11):
            place = ast.Pass(lineno=code.co_firstlineno, col_offset=0)
        return [at_place(ast.If(ast.Constant(False), mentions, []), place)]

    def declarations(self) -> list[ast.stmt]:
        """Remove the ``global`` and ``nonlocal`` statements, and return them: they must come before
        the taps that use the names."""
        declarations: list[ast.stmt] = []
        for statement in [self.node, *inside(self.node)]:
            for field in ("body", "orelse", "finalbody"):
                block = getattr(statement, field, None)
                if not isinstance(block, list):
                    continue
                for index, inner in enumerate(block):
                    if isinstance(inner, ast.Global | ast.Nonlocal):
                        declarations.append(inner)
                        block[index] = at_place(ast.Pass(), inner)
        return declarations

    def note_unseen(self, *targets: ast.expr) -> None:
        """Record attributes that a statement sets where no tap sees the value: ``self.x, y = z``.

        Reading the attribute afterwards could run code of the program.
        """
        for target in targets:
            for name, node in attributes_set(target):
                self.unseen[name] = (
                    f"line {node.lineno} sets it where no value shows. Assign to a variable first,"
                    " and that to the attribute."
                )

    # Inserting taps into statements

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [new for statement in statements for new in self.visit(statement)]

    def visit(self, node: ast.stmt) -> list[ast.stmt]:
        special = getattr(self, f"visit_{type(node).__name__}", None)
        if special is not None:
            instrumented: list[ast.stmt] = special(node)
            return instrumented
        self.expressions(node)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, self.block(block))
        return [node]

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        branch = node
        while True:  # a loop, not recursion, since a chain of elif is nested deeply
            self.expressions(branch)
            branch.body = self.block(branch.body)
            following = branch.orelse[0] if len(branch.orelse) == 1 else None
            if not isinstance(following, ast.If):
                branch.orelse = self.block(branch.orelse)
                return [node]
            branch = following

    def visit_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:
        self.outer(node, self.expression)
        return [node, *self.set_names([node.name], node)]

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        if node.value is not None:
            node.value = self.expression(node.value)
        return self.value_taps(node, node) or [node]

    def value_taps(self, node: ast.Return | None, place: ast.AST) -> list[ast.stmt]:
        """Return statements with the taps of ``#value``, for a ``return`` or the end of the body.

        The result is empty if there are no such taps.
        """
        site = Site("value", "#value", is_expression=True)
        if node is not None and node.value is not None:
            value = node.value
        else:
            value = at_place(ast.Constant(None), place)
        wrapped = self.wrap(site, value)
        if wrapped is value:
            return []
        if self.is_async_generator:  # an async generator cannot return a value
            statement = at_place(ast.Expr(wrapped), place)
            return [statement] if node is None else [statement, node]
        return [at_place(ast.Return(wrapped), place)]

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        node.value = self.expression(node.value)
        for target in node.targets:
            name = attribute_name(target)
            if name:
                node.value = self.wrap(Site("attribute", name, is_expression=True), node.value)
            self.expressions(target)
        self.note_unseen(*(part for part in node.targets if not isinstance(part, ast.Attribute)))
        return [node, *self.set_names(bound(*node.targets), node)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        if node.value is None:
            if isinstance(node.target, ast.Name):
                # a declaration makes the name a variable, even if it is never set
                self.taps(Site("declared", node.target.id))
            self.expressions(node.target)
            return [node]
        node.value = self.expression(node.value)
        tags = tags_of(node.annotation, self.globals)
        name = attribute_name(node.target)
        if name:
            site = Site("attribute", name, tags=tags, is_expression=True)
            node.value = self.wrap(site, node.value)
        self.expressions(node.target)
        return [node, *self.set_names(bound(node.target), node, tags)]

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        self.expressions(node)
        target = node.target
        name = attribute_name(target)
        if not isinstance(target, ast.Attribute) or not name:
            return [node, *self.set_names(bound(target), node)]
        if not self.is_steady(target.value, node.value):
            self.note_unseen(target)
            return [node]
        site = Site("attribute", name, is_expression=True)
        if not self.taps(site):
            return [node]
        before = ast.Attribute(target.value, target.attr, ast.Load())
        operation = self.mark(AUGMENTED[type(node.op).__name__])
        call = ast.Call(operation, [at_place(before, target), node.value], [])
        value = self.wrap(site, at_place(call, node))
        return [at_place(ast.Assign([target], value), node)]

    def is_steady(self, owner: ast.expr, value: ast.expr) -> bool:
        """True if the owner of an attribute is a local variable that evaluating the value cannot
        change. It may then be read twice."""
        if not isinstance(owner, ast.Name) or owner.id not in bound_in(self.node):
            return False
        for inner in ast.walk(self.node):
            if isinstance(inner, ast.Global | ast.Nonlocal) and owner.id in inner.names:
                return False
        walruses = [inner for inner in ast.walk(value) if isinstance(inner, ast.NamedExpr)]
        return all(walrus.target.id != owner.id for walrus in walruses)

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        node.iter = self.expression(node.iter)
        self.expressions(node.target)
        names = bound(node.target)
        before: list[ast.stmt] = []
        for name in names:
            before += self.statements(Site("loop", f"#loop_{name}", names), None, node.target)
        self.note_unseen(node.target)
        taps = self.set_names(names, node.target)
        self.loops += names
        body = self.block(node.body)
        sure = set(names) - self.deleted
        after: list[ast.stmt] = []
        for name in names:
            after += self.statements(Site("endloop", f"#endloop_{name}"), None, node.target, sure)
        del self.loops[len(self.loops) - len(names) :]
        body = [*taps, *body]
        if after:
            body = [at_place(ast.Try(body, [], [], after), body[0])]
        # Events for the beginning of an iteration come before those for setting its variables.
        node.body = [*before, *body]
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
        for index in range(len(items) - 1, -1, -1):
            target = items[index].optional_vars
            if target is None:
                continue
            self.note_unseen(target)
            taps = self.set_names(bound(target), target)
            if not taps:
                continue
            # For a tap between two items, the later items move to a nested `with`, which means the
            # same.
            later = items[index + 1 :]
            if later:
                body = [at_place(type(node)(later, body), node)]
            body = [*taps, *body]
            items = items[: index + 1]
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
                unset = self.statements(Site("unset", handler.name), None, handler)
                if unset:
                    body = [at_place(ast.Try(body, [], [], unset), handler)]
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
            else:  # the taps go into the guard: the names are set even if the guard is false
                calls = self.set_in_expression(names)
                guard = one_of([*calls, self.expression(case.guard)], -1)
                case.guard = at_place(guard, case.guard)
                taps = []
            case.body = [*taps, *self.block(case.body)]
        return [node]

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> list[ast.stmt]:
        names = [
            alias.asname or alias.name.split(".")[0] for alias in node.names if alias.name != "*"
        ]
        return [node, *self.set_names(names, node)]

    visit_ImportFrom = visit_Import

    def visit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        self.expressions(node)
        statements: list[ast.stmt] = [node]
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Del):
                statements += self.statements(Site("unset", inner.id), None, node)
        return statements

    def visit_TypeAlias(self, node: Any) -> list[ast.stmt]:
        return [node, *self.set_names([node.name.id], node)]

    # Inserting taps into expressions

    def expressions(self, node: ast.AST) -> None:
        """Insert the taps into a statement's own expressions, not into statements nested in it."""
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, field, self.expression(value))
            elif isinstance(value, list) and value and isinstance(value[0], ast.expr):
                setattr(node, field, [self.expression(part) for part in value])

    def expression(self, node: ast.expr) -> ast.expr:
        """Return the expression with taps at ``:=`` and ``yield``, and in comprehensions."""
        if isinstance(node, ast.Name | ast.Constant):
            return node
        if not any(isinstance(inner, PLACES) for inner in inside(node, also=True)):
            return node
        return self.inner(node)  # type: ignore[no-any-return]  # an expression, like ``node``

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
                parts = [self.inner(part) if isinstance(part, ast.AST) else part for part in value]
                setattr(node, field, parts)
        if isinstance(node, ast.NamedExpr):
            node.value = self.wrap(Site("set", node.target.id, is_expression=True), node.value)
        elif isinstance(node, ast.YieldFrom):
            why = (
                f"'yield from' hands values through (line {node.lineno}), where no tap can see it."
            )
            self.unseen |= {"#yield": why, "#receive": why}
        elif isinstance(node, ast.Yield):
            return self.yielded(node)
        return node

    def yielded(self, node: ast.Yield) -> ast.expr:
        """Return a ``yield`` with the taps of ``#yield`` and ``#receive``."""
        value = node.value
        if value is None:
            value = at_place(ast.Constant(None), node)
        wrapped = self.wrap(Site("yield", "#yield", is_expression=True), value)
        if wrapped is not value:
            node.value = wrapped
        return self.wrap(Site("receive", "#receive", is_expression=True), node)

    def comprehension(self, node: Any) -> Any:
        """Insert the taps into a comprehension.

        The taps of the variables that a ``for`` sets come before the expression that is evaluated
        next: an ``if``, the iterable of the next ``for``, or the element. Until Python 3.11 each
        comprehension had a code object of its own, as a generator expression still has. Since
        Python 3.12 other comprehensions are part of the code of their function. Selectors can name
        the variables of comprehensions in all versions. If the function itself uses a name, the
        comprehension's variable of that name gets no taps.
        """
        first = node.generators[0]
        first.iter = self.inner(first.iter)  # evaluated first, outside of the comprehension
        around = self.around
        self.around = around.union(*(bound(generator.target) for generator in node.generators))
        self.deep += 1
        sure: set[str] = set()
        calls: list[ast.expr] = []
        for generator in node.generators:
            if generator is not first:
                generator.iter = one_of([*calls, self.inner(generator.iter)], -1)
            generator.target = self.inner(generator.target)
            for name, attribute in attributes_set(generator.target):
                self.unseen[name] = (
                    f"a comprehension sets it (line {attribute.lineno}), where no tap can see it."
                )
            set_here = bound(generator.target)
            sure |= self.each.keys() & set_here
            calls = self.calls_of_each(set_here, sure)
            for index, test in enumerate(generator.ifs):
                generator.ifs[index] = one_of([*calls, self.inner(test)], -1)
                calls = []
        for field in ("key", "value", "elt"):
            if hasattr(node, field):
                setattr(node, field, one_of([*calls, self.inner(getattr(node, field))], -1))
                calls = []
        self.deep -= 1
        self.around = around
        return node

    def calls_of_each(self, set_here: Sequence[str], sure: set[str]) -> list[ast.expr]:
        """Return the taps of the variables that a ``for`` of a comprehension has set, in order."""
        calls: list[ast.expr] = []
        for index, name in enumerate(set_here):
            if name in self.each:
                later = [other for other in set_here[index + 1 :] if other != name]
                site = Site("each", name, later)
                calls += [self.call_expression(tap, site, sure) for tap in self.taps(site)]
        return calls

    def outer(self, node: ast.AST, change: Callable[[Any], Any]) -> None:
        """Apply ``change``, which inserts taps, to the expressions of a nested definition that are
        evaluated outside of it."""
        for owner, field in outer_fields(node):
            value = getattr(owner, field)
            if isinstance(value, list):
                setattr(owner, field, [part and change(part) for part in value])
            else:
                setattr(owner, field, change(value))

    # Checking that the taps can see all that their listeners want

    def check(self) -> None:
        """Raise Unobservable if the inserted taps cannot see all that their listeners want."""
        for listener in self.listeners:
            problem = self.why_unobservable(
                listener.captured, listener.foci, listener.is_total, listener.overridable
            )
            if problem:
                raise Unobservable(problem)

    def why_unobservable(
        self, captured: Iterable[str], foci: Sequence[str], is_total: bool, is_replaced: bool
    ) -> str:
        """Return the reason why the taps cannot see (or replace) what a listener wants in the
        function, worded to follow the function's name; empty if they can.

        Args:
            captured: Names of the listener's captures.
            foci: Names of the captures for which an event is made whenever they are set.
            is_total: True if the event is made at the end of the call.
            is_replaced: True if the values of the foci are to be replaced.
        """
        for name in captured:
            if name in self.unseen:
                return f"cannot be probed for '{name}': {self.unseen[name]}"
            if is_replaced and name in self.fixed:
                return f"cannot be probed for '{name}' to replace it: {self.fixed[name]}"
        if is_total and "#exit" in self.unseen:
            return (
                "cannot be probed without a focus: that is an event at the end of the call, and"
                f" {self.unseen['#exit']}"
            )
        for name in captured:
            if name in foci:
                continue
            for focus in foci:
                problem = self.why_not_together(name, focus)
                if problem:
                    return f"cannot be probed for '{focus}' together with '{name}': {problem}"
        return ""

    def why_not_together(self, name: str, focus: str) -> str:
        """Return the reason why a variable of a comprehension cannot be captured together with a
        focus; empty if it can."""
        if name in self.each and name not in self.inner_at.get(focus, ()):
            return (
                f"that is a variable of a comprehension (line {self.each[name]}), and has no value"
                " there."
            )
        if name in self.hidden_at.get(focus, ()):
            return "in the comprehension there that name means another variable."
        return ""


def attribute_name(target: ast.expr) -> str:
    """Return the text of an attribute target such as ``self.x``; empty for any other target."""
    return dotted(target) if isinstance(target, ast.Attribute) else ""


def attributes_set(target: ast.expr) -> Iterator[tuple[str, ast.Attribute]]:
    """Yield (text, node) for each attribute such as ``self.x`` that a target sets."""
    for node in ast.walk(target):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = dotted(node)
            if name:
                yield name, node


def is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def instrumenter_of(
    node: FunctionNode,
    listeners: Sequence[Listener],
    outside: Sequence[str],
    names: Any,
    table: dict[str, Any],
    code: CodeType | None = None,
) -> Instrumenter:
    """Return an ``Instrumenter`` for a function, or for the top level of a module."""
    if is_top(node):
        return TopLevelInstrumenter(node, listeners, (), names, table)
    return Instrumenter(node, listeners, outside, names, table, code)


class TopLevelInstrumenter(Instrumenter):
    """Inserts taps between the statements of a module.

    Nothing is inserted before the docstring and ``__future__`` imports, which must come first.
    """

    def instrument(self) -> None:
        body: list[ast.stmt] = self.node.body  # type: ignore[assignment]  # the node is no lambda
        first = 0
        for statement in body:
            if not is_text(statement) and not is_future(statement):
                break
            first += 1
        self.node.body = [*body[:first], *self.block(body[first:])]


FIXED = "a comprehension (line {line}) sets it, and allows no other value."


def only_in_comprehensions(node: FunctionNode, outside: Iterable[str]) -> dict[str, int]:
    """Return the names that are variables of a function's comprehensions and nothing else in it.

    Each has the line of the first such comprehension. ``outside`` are names from outside that the
    function reads.
    """
    lines: dict[str, int] = {}
    for part in body_of(node):
        for inner in inside(part, also=True):
            if isinstance(inner, COMPREHENSIONS):
                for generator in inner.generators:
                    for name in bound(generator.target):
                        lines.setdefault(name, generator.target.lineno)
    if not lines:
        return {}
    other_names = {*bound_in(node), *outside}
    return {name: line for name, line in lines.items() if name not in other_names}


def tags_of(annotation: ast.expr | None, names: Any) -> frozenset[str]:
    """Return the names of the tags in an annotation.

    Args:
        annotation: ``tag.Weight & tag.Loss``, ``"@Weight"``; None has no tags.
        names: The globals of the function, to resolve the annotation; None if the module has not
            run.
    """
    if annotation is None:
        return frozenset()
    path = dotted(annotation)
    # without globals, any object named `tag` is taken for ptera's
    if names is None and path.startswith(("tag.", "ptera.tag.", "voirkit.tag.")):
        return frozenset([path.rpartition(".")[2]])
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitAnd):
        return tags_of(annotation.left, names) | tags_of(annotation.right, names)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return _tags_of_text(annotation.value, names)
    return _tags_of_variable(path, names)


def _tags_of_variable(path: str, names: Any) -> frozenset[str]:
    first, *attributes = path.split(".")
    if not first or names is None or first not in names:
        return frozenset()
    value = names[first]
    if attributes and not _may_contain_tags(value):
        return frozenset()
    for attribute in attributes:
        value = getattr(value, attribute, None)
    # imported here, only if a function may have tags, since this imports ptera
    from voirkit.probes.selector import tag_names

    return tag_names(value)


def _tags_of_text(text: str, names: Any) -> frozenset[str]:
    words = [word.strip() for word in text.split("&")]
    if all(word.startswith("@") for word in words):
        return frozenset(word[1:] for word in words)
    try:
        annotation = ast.parse(text, mode="eval").body
    except SyntaxError:
        return frozenset()
    return tags_of(annotation, names)


def _may_contain_tags(value: Any) -> bool:
    """True for the object ``tag`` itself, and for modules, which may contain it."""
    if type(value).__name__ == "_TagFactory":
        return True
    return hasattr(value, "__path__") or hasattr(value, "__spec__")


# kinds of sites (``tap_emitter.Site``) where a variable gets no value
NEVER_ASSIGNED = frozenset({"declared", "unset"})


class SiteCollector:
    """A listener (``tap_emitter.Listener``) that records all sites, and wants no taps."""

    overridable = is_awake = is_total = False
    names: Sequence[str] = ()
    captured: Sequence[str] = ()
    foci: Sequence[str] = ()

    def __init__(self) -> None:
        self.kinds: dict[str, set[str]] = {}

    def taps(self, site: Site) -> Sequence[Tap]:
        """Record the site, and return no taps."""
        self.kinds.setdefault(site.name, set()).add(site.kind)
        return ()


class Visibility:
    """The variables and events of a function that taps can see."""

    def __init__(self, node: FunctionNode) -> None:
        collector = SiteCollector()
        # kept for its attributes ``unseen`` and ``fixed``: the names that no tap can see or replace
        self.instrumenter = instrumenter_of(node, [collector], outer_names(node), None, {})
        self.instrumenter.instrument()
        self.kinds = collector.kinds  # the kinds of sites (``tap_emitter.Site``) of each name

    def is_assigned(self, name: str) -> bool:
        """True if the variable ever has a value."""
        return bool(self.kinds.get(name, set()) - NEVER_ASSIGNED)

    def is_replaceable(self, name: str) -> bool:
        """True if a tap may replace the variable's value."""
        return bool(self.kinds.get(name, set()) & REPLACEABLE)


_visibilities: WeakKeyDictionary[ast.AST, Visibility] = WeakKeyDictionary()


def visibility_of(node: FunctionNode) -> Visibility:
    """Return the ``Visibility`` of a function, computed once; the tree is not changed."""
    visibility = _visibilities.get(node)
    if visibility is None:
        visibility = Visibility(node)
        _visibilities[node] = visibility
    return visibility


def outer_names(node: FunctionNode) -> list[str]:
    """Return the names from outside that a function, or a scope inside it, uses."""
    bound_names = bound_in(node)
    parts = [*outer_expressions(node), *body_of(node)]
    used_names = dict.fromkeys(name for part in parts for name in used_in(part))
    return [name for name in used_names if name not in bound_names]
