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
from voirkit.probes.sites import Listener, Site, Tap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MARK = "\0voirkit "
LADDER = 2  # so many names that may be unbound are tried one by one; 2**n calls


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

    def taps(self, site: Site) -> list[Tap]:
        """All that the listeners want at a site."""
        site.loops = frozenset(self.loops) | site.loops
        site.is_deep = site.is_deep or bool(self.deep)
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
                function = tap.slow() if unsure else tap.make(tap.reads)
                made: ast.expr = ast.Call(self.mark(function), names(shown), [])
                if site.kind == "read":
                    made = ast.IfExp(ast.Call(self.mark(asker(site.name)), [], []), made, ast.Constant(None))
                found.append(at_place(ast.Expr(made), at))
                continue
            values = names([value]) if value else []
            if site.kind == "stored":
                values = [ast.Call(self.mark(reader(site.name)), names([site.name.partition(".")[0]]), [])]
            call = self.ladder(tap, values, list(tap.reads), unsure, target)
            if site.kind in ("read", "stored"):  # there may be no such global; the attribute may not be kept in the object
                missing = NameError if site.kind == "read" else (NotStored, NameError)
                call = ast.Try([call], [ast.ExceptHandler(self.mark(missing), None, [ast.Pass()])], [], [])
            found.append(at_place(call, at))
        return found

    def ladder(self, tap: Tap, values: list[ast.expr], reads: list[str], unsure: list[str], target: str | None) -> ast.stmt:
        """The call of a tap; with a way out for each name that may be unbound."""
        call = self.call(tap, values, reads, target)
        if not unsure:
            return call
        if len(unsure) > LADDER:
            handler = statement(ast.Call(self.mark(tap.slow()), list(values), []), target)
        else:
            first, *others = unsure
            without = self.ladder(tap, values, [n for n in reads if n != first], others, target)
            # The first may be bound, and only the others not.
            handler = self.only_first(tap, values, reads, first, others, target) if others else without
        return ast.Try([call], [ast.ExceptHandler(self.mark(NameError), None, [handler])], [], [])

    def only_first(
        self, tap: Tap, values: list[ast.expr], reads: list[str], first: str, others: list[str], target: str | None
    ) -> ast.stmt:  # fmt: skip
        """The call with the first of several names, else without it."""
        kept = [n for n in reads if n not in others]
        call = self.call(tap, values, kept, target)
        without = self.ladder(tap, values, [n for n in reads if n != first], others, target)
        return ast.Try([call], [ast.ExceptHandler(self.mark(NameError), None, [without])], [], [])

    def call(self, tap: Tap, values: list[ast.expr], reads: list[str], target: str | None) -> ast.stmt:
        """The call of a tap with the value, if there is one, and variables."""
        return statement(ast.Call(self.mark(tap.make(reads)), [*values, *names(reads)], []), target)

    def wrap(self, site: Site, value: ast.expr) -> ast.expr:
        """An expression in the calls of all the taps of a site."""
        for tap in self.taps(site):
            direct = not self.deep and all(name in self.sure for name in tap.reads)
            function = tap.make(tap.reads) if direct else tap.slow()
            reads = names(tap.reads) if direct else []
            value = at_place(ast.Call(self.mark(function), [value, *reads], []), value)
        return value

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
                call = ast.Call(self.mark(tap.make(tap.reads) if direct else tap.slow()), shown, [])
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
            return key in frame.f_locals
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
        if "lineno" in node._attributes and not hasattr(node, "lineno"):
            node.lineno, node.col_offset, node.end_lineno, node.end_col_offset = line, column, end, last
            stack += ast.iter_child_nodes(node)
    return new
