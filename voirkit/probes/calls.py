"""Makes the calls of taps that are put into one function's tree.

The tree calls a marker, a constant string that ``weave.py`` replaces by the tap in the compiled code.  A tap never
raises unless a subscriber means to, so that the program can not tell.  Each new node stands where its neighbour stands.
"""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING, Any

from voirkit.probes.attributes import NotStored, reader
from voirkit.probes.names import FunctionNode, bound, deleted_in, leaves, mangled
from voirkit.probes.rewritten import OWN
from voirkit.probes.scope import locals_of
from voirkit.probes.sites import CanNot, Listener, Site, Tap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MARK = "\0voirkit "
LADDER = 2  # so many names that may be unbound have a call for each case; 2**n calls
# What shows a function the dictionary of its variables, which before python 3.13 is made anew by whoever looks at it.
SEE_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec", "f_locals"})


class Calls:
    """Makes the calls of some listeners' taps.

    Args:
        node: The function that they will stand in.
        listeners: Who wants taps; those that replace values come first.
        table: Gets each marker's function.

    Attributes:
        parameters: The function's.
        deleted: Names that may be unbound again.
        sure: Names that are always bound.
        loops: Names of the loops around the statement that is being made.
        deep: How many comprehensions are around it.
        each: Names that only comprehensions of the function bind, and the line of the first.
        around: What the comprehensions around it bind.
        inner_at: For each name of a site those variables of comprehensions that can be read at all its sites.
        hidden_at: For each name of a site those variables of the function that a comprehension hides at one of its sites.
    """

    def __init__(self, node: FunctionNode, listeners: Iterable[Listener], table: dict[str, Any]) -> None:
        self.node, self.table = node, table
        self.listeners = sorted(listeners, key=lambda listener: not listener.overridable)
        a = node.args
        rest = [x for x in (a.vararg, a.kwarg) if x is not None]
        self.parameters = [*a.posonlyargs, *a.args, *a.kwonlyargs, *rest]
        self.deleted = deleted_in(node)
        self.sure = frozenset(p.arg for p in self.parameters) - self.deleted
        self.loops: list[str] = []
        self.deep = 0
        self.each: dict[str, int] = {}
        self.around: frozenset[str] = frozenset()
        self.inner_at: dict[str, frozenset[str]] = {}
        self.hidden_at: dict[str, frozenset[str]] = {}

    def taps(self, site: Site) -> list[Tap]:
        """All that the listeners want at a site."""
        if site.name.startswith(OWN):
            return []
        site.loops = frozenset(self.loops) | site.loops
        inner = self.around & self.each.keys()
        site.is_deep, site.inner = site.is_deep or bool(self.deep), inner
        self.inner_at[site.name] = self.inner_at.get(site.name, inner) & inner
        self.hidden_at[site.name] = self.hidden_at.get(site.name, frozenset()) | self.around - inner
        return [tap for listener in self.listeners for tap in listener.taps(site)]

    def mark(self, value: Any) -> ast.expr:
        """An expression that stands for any object; the compiler has no warning for it, and leaves nothing of its form."""
        marker = f"{MARK}{len(self.table)}"
        self.table[marker] = value
        return ast.IfExp(ast.Constant(True), ast.Constant(marker), ast.Constant(None))

    def statements(self, site: Site, value: str | None, at: ast.AST, sure: set[str] | None = None) -> list[Any]:
        """Statements that call all the taps of a site; ``value`` is the variable that has it."""
        found: list[Any] = []
        for tap in self.taps(site):
            target = value if tap.replaces and site.kind == "set" else None
            unsure = [name for name in tap.reads if name not in self.sure and name not in (sure or ())]
            if isinstance(self.node, ast.Lambda):
                shown = [*([value] if value else []), *(() if unsure else tap.reads)]
                function = self.slow(tap, site) if unsure else tap.make(tap.reads)
                made: ast.expr = ast.Call(self.mark(function), names(shown), [])
                if site.kind == "read":
                    made = ast.IfExp(ast.Call(self.mark(asker(site.name)), [], []), made, ast.Constant(None))
                found.append(at_place(ast.Expr(made), at))
                continue
            values = names([value]) if value else []
            if site.kind == "stored":
                values = [ast.Call(self.mark(reader(site.name)), names([site.name.partition(".")[0]]), [])]
            call = self.ladder(tap, values, list(tap.reads), unsure, target)
            if site.kind == "read":  # there may be no such global
                call = self.unless(NameError, ast.Expr(values[0]), otherwise=[call])
            elif site.kind == "stored":  # the attribute may not be kept in the object
                call = self.unless((NotStored, NameError), call)
            found.append(at_place(call, at))
        return found

    def ladder(self, tap: Tap, values: list[ast.expr], reads: list[str], unsure: list[str], target: str | None) -> ast.stmt:
        """The call of a tap, with those of the unsure names that are bound.

        No call stands in a handler: what comes out of it would be shown as raised while a NameError was handled.
        """
        if not unsure:
            return self.call(tap, values, reads, target)
        if len(unsure) <= LADDER:
            return ast.While(ast.Constant(True), self.rungs(tap, values, reads, unsure, target), [])
        every: list[ast.stmt] = [ast.Expr(name) for name in names(unsure)]
        call = [self.call(tap, values, reads, target), ast.Break()]
        start, take, send = tap.one_by_one()
        body = [self.unless(NameError, *every, otherwise=call), ast.Expr(ast.Call(self.mark(start), [], []))]
        for name in reads:
            body.append(self.unless(NameError, ast.Expr(ast.Call(self.mark(take(name)), names([name]), []))))
        body += [statement(ast.Call(self.mark(send), list(values), []), target), ast.Break()]
        return ast.While(ast.Constant(True), body, [])

    def rungs(self, tap: Tap, values: list[ast.expr], reads: list[str], unsure: list[str], target: str | None) -> list[ast.stmt]:
        """What leaves the loop after the call with those names that are bound."""
        if not unsure:
            return [self.call(tap, values, reads, target), ast.Break()]
        first, *others = unsure
        with_it = self.rungs(tap, values, reads, others, target)
        return [
            self.unless(NameError, *map(ast.Expr, names([first])), otherwise=with_it),
            *self.rungs(tap, values, [n for n in reads if n != first], others, target),
        ]

    def unless(self, raised: Any, *body: ast.stmt, otherwise: Sequence[ast.stmt] = ()) -> ast.stmt:
        """Statements that may raise, and what follows if they do not."""
        return ast.Try(list(body), [ast.ExceptHandler(self.mark(raised), None, [ast.Pass()])], list(otherwise), [])

    def call(self, tap: Tap, values: list[ast.expr], reads: list[str], target: str | None) -> ast.stmt:
        """The call of a tap with the value, if there is one, and variables."""
        return statement(ast.Call(self.mark(tap.make(reads)), [*values, *names(reads)], []), target)

    def wrap(self, site: Site, value: ast.expr) -> ast.expr:
        """An expression in the calls of all the taps of a site."""
        for tap in self.taps(site):
            direct = not self.deep and all(name in self.sure for name in tap.reads)
            function = tap.make(tap.reads) if direct else self.slow(tap, site)
            reads = names(tap.reads) if direct else []
            value = at_place(ast.Call(self.mark(function), [value, *reads], []), value)
        return value

    def slow(self, tap: Tap, site: Site) -> Callable[..., Any]:
        """A tap for inside an expression, which must look for the variables itself.

        Raises:
            CanNot: The function would see that it does.
        """
        if sys.version_info < (3, 13) and tap.reads:
            uses = [n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(self.node) if isinstance(n, ast.Name | ast.Attribute)]
            seeing = next((name for name in uses if name in SEE_LOCALS), None)
            if seeing is not None:
                captured = ", ".join(tap.reads)
                raise CanNot(
                    f"can not be probed for '{site.name}' together with {captured}: before Python 3.13 its {seeing} would show it."
                )
        return tap.slow()

    def set_names(self, set_here: Sequence[str], at: ast.AST, tags: frozenset[str] = frozenset()) -> list[ast.stmt]:
        """The taps after a statement that sets names, in their order."""
        found: list[ast.stmt] = []
        for n, name in enumerate(set_here):
            later = [other for other in set_here[n + 1 :] if other != name]
            found += self.statements(Site("set", name, later, tags), name, at, set(set_here) - self.deleted | {name})
        return found

    def set_targets(self, targets: Sequence[ast.expr], at: ast.AST, tags: frozenset[str] = frozenset()) -> list[ast.stmt]:
        """The taps after a statement that sets targets.

        In ``a, o.x = ...`` setting ``o.x`` may raise when ``a`` has its value already: the taps of ``a`` come into the expression ``o``,
        which is evaluated between the two.
        """
        set_here = bound(*targets)
        parts = list(leaves(*targets))
        named = [part.id if isinstance(part, ast.Name) else "" for part in parts]
        early: list[str] = []
        for n, part in enumerate(parts):
            if not isinstance(part, ast.Attribute | ast.Subscript):
                continue
            calls: list[ast.expr] = []
            for name in dict.fromkeys(named[:n]):
                if name and name not in early and name not in named[n:]:
                    here = self.at_once(Site("set", name, set_here[set_here.index(name) + 1 :], tags), {*named[:n]} - self.deleted | {name})
                    if here is None:  # this one and what follows it comes after the statement
                        set_here = [other for other in set_here if other not in early]
                        part.value = one_of([*calls, part.value], -1)
                        return self.set_names(set_here, at, tags)
                    calls += here
                    early.append(name)
            part.value = one_of([*calls, part.value], -1)
        return self.set_names([name for name in set_here if name not in early], at, tags)

    def set_in_expression(self, set_here: Sequence[str]) -> list[ast.expr]:
        """The taps of names that have been set, as expressions."""
        found: list[ast.expr] = []
        for n, name in enumerate(set_here):
            site = Site("set", name, [other for other in set_here[n + 1 :] if other != name])
            sure = {*self.sure, *set_here} - self.deleted | {name}
            for tap in self.taps(site):
                direct = sure.issuperset(tap.reads)
                shown = names([name, *(tap.reads if direct else ())])
                call = ast.Call(self.mark(tap.make(tap.reads) if direct else self.slow(tap, site)), shown, [])
                found.append(ast.NamedExpr(ast.Name(name, ast.Store()), call) if tap.replaces else call)
        return found

    def at_once(self, site: Site, sure: set[str]) -> list[ast.expr] | None:
        """The calls of the taps of a variable that has been set, as expressions; None if they can not be such."""
        taps = self.taps(site)
        if any(tap.replaces or not self.sure.union(sure).issuperset(tap.reads) for tap in taps):
            return None
        return [ast.Call(self.mark(tap.make(tap.reads)), names([site.name, *tap.reads]), []) for tap in taps]


def names(of: Iterable[str]) -> list[ast.expr]:
    """The values of variables."""
    return [ast.Name(name, ast.Load()) for name in of]


def asker(name: str) -> Callable[[], bool]:
    """A function that says whether a name from outside means something where it is called: an expression can not try."""

    def is_there() -> bool:
        frame = sys._getframe(1)
        key = mangled(name, frame.f_code)
        if key in frame.f_code.co_freevars:
            return bool(locals_of(frame, (key,)))
        return key in frame.f_globals or key in frame.f_builtins

    return is_there


def statement(call: ast.Call, target: str | None) -> ast.stmt:
    """A call as a statement; ``target`` takes what it returns."""
    return ast.Expr(call) if target is None else ast.Assign([ast.Name(target, ast.Store())], call)


def one_of(values: Sequence[ast.expr], place: int) -> ast.expr:
    """An expression that evaluates several and then is one of them."""
    if len(values) == 1:
        return values[0]
    every = ast.Tuple(list(values), ast.Load())
    return at_place(ast.Subscript(every, ast.Constant(place), ast.Load()), values[place])  # type: ignore[no-any-return]


def at_place(new: Any, old: ast.AST) -> Any:
    """Give new nodes the place of an old one; what has a place keeps it, with all that is in it."""
    line, column = getattr(old, "lineno", 1), getattr(old, "col_offset", 0)
    end, last = getattr(old, "end_lineno", line), getattr(old, "end_col_offset", column)
    stack = [new]
    while stack:
        node = stack.pop()
        if "lineno" not in node._attributes:
            stack += ast.iter_child_nodes(node)
        elif not hasattr(node, "lineno"):
            node.lineno, node.col_offset, node.end_lineno, node.end_col_offset = line, column, end, last
            stack += ast.iter_child_nodes(node)
    return new
