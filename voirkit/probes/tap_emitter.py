"""What happens where in a function (sites), who wants a call there (listeners), and the syntax tree of such a call.

The tree calls a marker, a constant string that ``weave.py`` replaces by the tap in the compiled code. A tap never
raises unless a subscriber means to, so that the program cannot tell. Each new node stands where its neighbour stands.
"""

from __future__ import annotations

import ast
import sys
from typing import Any, Protocol

from voirkit.probes.source import FunctionNode, deleted_in, mangled, variables_passed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType


class Site:
    """A place in a function where something happens.

    Attributes:
        kind: ``set`` (a variable), ``declared`` (``x: int``; nothing happens), ``read`` (a name from outside, at entry), ``attribute``,
            ``each`` (a comprehension's variable gets its next value), ``unset``, ``enter``, ``exit``, ``value``, ``error``, ``yield``,
            ``receive``, ``loop``, ``endloop``.
        name: The variable, or the hash variable such as ``#loop_i``.
        tags: Names of the tags that the assignment has.
        is_expression: The tap is called with the value, and returns it.
        loops: Names of the loops around it.
        inner: Variables of the comprehensions around it.
    """

    __slots__ = ("inner", "is_deep", "is_expression", "kind", "loops", "name", "tags", "unset")

    def __init__(
        self, kind: str, name: str, unset: Iterable[str] = (), tags: frozenset[str] = frozenset(), is_expression: bool = False
    ) -> None:
        self.kind, self.name, self.tags, self.is_expression = kind, name, tags, is_expression
        self.unset = frozenset(unset)  # names that count as not set yet, whatever their variables hold
        self.is_deep = False  # it is in a comprehension, before python 3.12 code of its own, where the function's variables cannot be named
        self.loops = self.inner = frozenset[str]()

    @property
    def has_value(self) -> bool:
        """Whether the tap is called with a value first."""
        return self.is_expression or self.kind in ("set", "read", "each")


class Unobservable(Exception):
    """A selector asks for what cannot be seen in this function; says what, to follow the function's name."""


class Tap(Protocol):
    """What a listener wants called at a site."""

    reads: tuple[str, ...]  # names of the variables that it is to be called with
    replaces: bool  # whether what it returns is to be the variable's value

    def bind(self, reads: Sequence[str]) -> Callable[..., Any]:
        """The function to call with those of the variables that are bound (after the value, if the site has one)."""
        ...

    def bind_to_frame(self) -> Callable[..., Any]:
        """The function to call without the variables; it looks for them in the calling frame."""
        ...


class FixedTap:
    """A tap that reads no variables: one function (``Tap``)."""

    reads: tuple[str, ...] = ()

    def __init__(self, function: Callable[..., Any], replaces: bool = False) -> None:
        self.function, self.replaces = function, replaces

    def bind(self, reads: Sequence[str] = ()) -> Callable[..., Any]:
        return self.function

    bind_to_frame = bind


class Listener(Protocol):
    """One who wants taps in a function."""

    overridable: bool  # whether its taps may replace values
    is_awake: bool  # whether it wants them now; they can wait until somebody listens
    names: Sequence[str]  # the variables that it is about
    wanted: Sequence[str]  # all that it captures by name
    foci: Sequence[str]  # those whose setting makes an event; ``""`` for any variable
    is_total: bool  # whether its event comes at the end of a call of this function

    def taps(self, site: Site) -> Sequence[Tap]:
        """What it wants called at a site, in order."""
        ...


MARK = "\0voirkit "
MOST_LADDER_NAMES = 3  # so many names that may be unbound have a call for each case, 2**n calls; for more the tap looks into the frame
# What shows a function the dictionary of its variables, which before python 3.13 is made anew by whoever looks at it.
SEE_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec", "f_locals"})


class TapEmitter:
    """Makes the calls of some listeners' taps.

    Args:
        node: The function that they will stand in.
        listeners: Who wants taps; those that replace values come first.
        table: Gets each marker's function.
    """

    def __init__(self, node: FunctionNode, listeners: Iterable[Listener], table: dict[str, Any]) -> None:
        self.node, self.table = node, table
        self.listeners = sorted(listeners, key=lambda listener: not listener.overridable)
        self.parameters = variables_passed(node.args)  # the function's
        self.deleted = deleted_in(node)  # names that may be unbound again
        self.sure = frozenset(p.arg for p in self.parameters) - self.deleted  # names that are always bound
        self.loops: list[str] = []  # names of the loops around the statement that is being made
        self.deep = 0  # how many comprehensions are around it
        self.each: dict[str, int] = {}  # names that only comprehensions of the function bind, and the line of the first
        self.around: frozenset[str] = frozenset()  # what the comprehensions around it bind
        # for each name of a site those variables of comprehensions that can be read at all its sites
        self.inner_at: dict[str, frozenset[str]] = {}
        # for each name of a site those variables of the function that a comprehension hides at one of its sites
        self.hidden_at: dict[str, frozenset[str]] = {}

    def taps(self, site: Site) -> list[Tap]:
        """All that the listeners want at a site."""
        inner = self.around & self.each.keys()
        site.loops, site.is_deep, site.inner = frozenset(self.loops), bool(self.deep), inner
        self.inner_at[site.name] = self.inner_at.get(site.name, inner) & inner
        self.hidden_at[site.name] = self.hidden_at.get(site.name, frozenset()) | self.around - inner
        return [tap for listener in self.listeners for tap in listener.taps(site)]

    def mark(self, value: Any) -> ast.expr:
        """An expression that stands for any object."""
        marker = f"{MARK}{len(self.table)}"
        self.table[marker] = value
        return standing_for(marker)

    def statements(self, site: Site, value: str | None, place: ast.AST, sure: set[str] | None = None) -> list[Any]:
        """Statements that call all the taps of a site; ``value`` is the variable that has it."""
        found: list[Any] = []
        for tap in self.taps(site):
            target = value if tap.replaces and site.kind == "set" else None
            unsure = [name for name in tap.reads if name not in self.sure and name not in (sure or ())]
            if isinstance(self.node, ast.Lambda):
                shown = [*([value] if value else []), *(() if unsure else tap.reads)]
                function = self.frame_tap(tap, site) if unsure else tap.bind(tap.reads)
                made: ast.expr = ast.Call(self.mark(function), loads(shown), [])
                if site.kind == "read":
                    made = ast.IfExp(ast.Call(self.mark(presence_test(site.name)), [], []), made, ast.Constant(None))
                found.append(at_place(ast.Expr(made), place))
                continue
            values = loads([value]) if value else []
            call = self.ladder(tap, site, values, unsure, target)
            if site.kind == "read":  # there may be no such global
                call = self.unless(NameError, ast.Expr(values[0]), otherwise=[call])
            found.append(at_place(call, place))
        return found

    def ladder(self, tap: Tap, site: Site, values: list[ast.expr], unsure: list[str], target: str | None) -> ast.stmt:
        """The call of a tap, with those of the unsure names that are bound. No call stands in a handler: what comes out of it would be
        shown as raised while a NameError was handled."""
        if not unsure:
            return self.call(tap, values, list(tap.reads), target)
        if len(unsure) <= MOST_LADDER_NAMES:
            return ast.While(ast.Constant(True), self.rungs(tap, values, list(tap.reads), unsure, target), [])
        return call_statement(ast.Call(self.mark(self.frame_tap(tap, site)), values, []), target)

    def rungs(self, tap: Tap, values: list[ast.expr], reads: list[str], unsure: list[str], target: str | None) -> list[ast.stmt]:
        """What leaves the loop after the call with those names that are bound."""
        if not unsure:
            return [self.call(tap, values, reads, target), ast.Break()]
        first, *others = unsure
        with_it = self.rungs(tap, values, reads, others, target)
        return [
            self.unless(NameError, *map(ast.Expr, loads([first])), otherwise=with_it),
            *self.rungs(tap, values, [n for n in reads if n != first], others, target),
        ]

    def unless(self, raised: Any, *body: ast.stmt, otherwise: Sequence[ast.stmt] = ()) -> ast.stmt:
        """Statements that may raise, and what follows if they do not."""
        return ast.Try(list(body), [ast.ExceptHandler(self.mark(raised), None, [ast.Pass()])], list(otherwise), [])

    def call(self, tap: Tap, values: list[ast.expr], reads: list[str], target: str | None) -> ast.stmt:
        """The call of a tap with the value, if there is one, and variables."""
        return call_statement(ast.Call(self.mark(tap.bind(reads)), [*values, *loads(reads)], []), target)

    def wrap(self, site: Site, value: ast.expr) -> ast.expr:
        """An expression in the calls of all the taps of a site."""
        for tap in self.taps(site):
            direct = not self.deep and all(name in self.sure for name in tap.reads)
            function = tap.bind(tap.reads) if direct else self.frame_tap(tap, site)
            reads = loads(tap.reads) if direct else []
            value = at_place(ast.Call(self.mark(function), [value, *reads], []), value)
        return value

    def frame_tap(self, tap: Tap, site: Site) -> Callable[..., Any]:
        """A tap that looks for the variables itself: inside an expression, or where many of them may be unbound. Raises Unobservable: the
        function would see that it does."""
        if sys.version_info < (3, 13) and tap.reads:
            uses = [n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(self.node) if isinstance(n, ast.Name | ast.Attribute)]
            seeing = next((name for name in uses if name in SEE_LOCALS), None)
            if seeing is not None:
                captured = ", ".join(tap.reads)
                raise Unobservable(
                    f"cannot be probed for '{site.name}' together with {captured}: before Python 3.13 its {seeing} would show it."
                )
        return tap.bind_to_frame()

    def set_names(self, set_here: Sequence[str], place: ast.AST, tags: frozenset[str] = frozenset()) -> list[ast.stmt]:
        """The taps after a statement that sets names, in their order."""
        found: list[ast.stmt] = []
        for n, name in enumerate(set_here):
            later = [other for other in set_here[n + 1 :] if other != name]
            found += self.statements(Site("set", name, later, tags), name, place, set(set_here) - self.deleted | {name})
        return found

    def set_in_expression(self, set_here: Sequence[str]) -> list[ast.expr]:
        """The taps of names that have been set, as expressions."""
        found: list[ast.expr] = []
        for n, name in enumerate(set_here):
            site = Site("set", name, [other for other in set_here[n + 1 :] if other != name])
            sure = {*self.sure, *set_here} - self.deleted | {name}
            for tap in self.taps(site):
                call = self.call_expression(tap, site, sure)
                found.append(ast.NamedExpr(ast.Name(name, ast.Store()), call) if tap.replaces else call)
        return found

    def call_expression(self, tap: Tap, site: Site, sure: set[str]) -> ast.expr:
        """The call of a tap of a variable that has been set, with those that it reads; it looks for them itself if they may be unbound."""
        direct = sure.issuperset(tap.reads)
        function = tap.bind(tap.reads) if direct else self.frame_tap(tap, site)
        return ast.Call(self.mark(function), loads([site.name, *(tap.reads if direct else ())]), [])


def standing_for(marker: str) -> ast.expr:
    """An expression with a marker that stands for any object; the compiler has no warning for it, and leaves nothing of its form."""
    return ast.IfExp(ast.Constant(True), ast.Constant(marker), ast.Constant(None))


def loads(of: Iterable[str]) -> list[ast.expr]:
    """The values of variables."""
    return [ast.Name(name, ast.Load()) for name in of]


OPTIMIZED = 1  # inspect.CO_OPTIMIZED: a function's code, not a class's


def locals_of(frame: FrameType, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Those of a function's or class's variables that are set (only some ``names``); at the top of a module none."""
    there = frame.f_locals
    if there is frame.f_globals:
        return {}
    found = dict(there) if names is None else {name: there[name] for name in names if name in there}
    # Before 3.13 a function's dictionary stays with the frame and would keep the values alive; unless the program holds it too,
    # take them out, but for what the program or a debugger has put there itself.
    code = frame.f_code
    if type(there) is dict and code.co_flags & OPTIMIZED and sys.getrefcount(there) <= 3:
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            there.pop(name, None)
    return found


def presence_test(name: str) -> Callable[[], bool]:
    """A function that says whether a name from outside means something where it is called: an expression cannot try."""

    def is_there() -> bool:
        frame = sys._getframe(1)
        key = mangled(name, frame.f_code)
        if key in frame.f_code.co_freevars:
            return bool(locals_of(frame, (key,)))
        return key in frame.f_globals or key in frame.f_builtins

    return is_there


def call_statement(call: ast.Call, target: str | None) -> ast.stmt:
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
