"""The places in a function where something happens (sites), who wants a call there (listeners), and
the syntax tree of such a call.

The tree calls a marker, a constant string that ``weave.py`` replaces by the tap in the compiled
code. A tap never raises unless a subscriber means to, so that the program cannot tell. Each new
node stands where its neighbour stands.
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
        kind: ``set`` (a variable), ``declared`` (``x: int``; nothing happens), ``read`` (a name
            from outside, at entry), ``attribute``, ``each`` (a comprehension's variable gets its
            next value), ``unset``, ``enter``, ``exit``, ``value``, ``error``, ``yield``,
            ``receive``, ``loop``, ``endloop``.
        name: The variable, or the hash variable such as ``#loop_i``.
        tags: Names of the tags that the assignment has.
        is_expression: The tap is called with the value, and returns it.
        loops: Names of the loops around it.
        inner: Variables of the comprehensions around it.
    """

    __slots__ = ("inner", "is_deep", "is_expression", "kind", "loops", "name", "tags", "unset")

    def __init__(
        self,
        kind: str,
        name: str,
        unset: Iterable[str] = (),
        tags: frozenset[str] = frozenset(),
        is_expression: bool = False,
    ) -> None:
        self.kind = kind
        self.name = name
        self.tags = tags
        self.is_expression = is_expression
        # names that count as not set yet, whatever their variables hold
        self.unset = frozenset(unset)
        # it is in a comprehension, before python 3.12 code of its own, where the function's
        # variables cannot be named
        self.is_deep = False
        self.loops = self.inner = frozenset[str]()

    @property
    def has_value(self) -> bool:
        """True if the tap is called with a value first."""
        return self.is_expression or self.kind in ("set", "read", "each")


# kinds of sites at which a tap may replace the value
REPLACEABLE = frozenset({"set", "value", "yield", "receive", "attribute"})


class Unobservable(Exception):
    """A selector asks for what cannot be seen in this function; says what, to follow the function's
    name."""


class Tap(Protocol):
    """A call that a listener wants at a site."""

    reads: tuple[str, ...]  # names of the variables that it is to be called with
    replaces: bool  # whether what it returns is to be the variable's value

    def bind(self, reads: Sequence[str]) -> Callable[..., Any]:
        """The function to call with those of the variables that are bound (after the value, if the
        site has one)."""
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
    captured: Sequence[str]  # all that it captures by name
    foci: Sequence[str]  # those whose setting makes an event; ``""`` for any variable
    is_total: bool  # whether its event comes at the end of a call of this function

    def taps(self, site: Site) -> Sequence[Tap]:
        """The calls that it wants at a site, in order."""
        ...


MARK = "\0voirkit "
# so many names that may be unbound have a call for each case, 2**n calls; for more the tap looks
# into the frame
MOST_LADDER_NAMES = 3
# What shows a function the dictionary of its variables, which before python 3.13 is made again by
# whoever looks at it.
SEE_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec", "f_locals"})


class TapEmitter:
    """Makes the calls of some listeners' taps.

    Args:
        node: The function that they will stand in.
        listeners: Who wants taps; those that replace values come first.
        table: Gets each marker's function.
    """

    def __init__(
        self, node: FunctionNode, listeners: Iterable[Listener], table: dict[str, Any]
    ) -> None:
        self.node, self.table = node, table
        self.listeners = sorted(listeners, key=lambda listener: not listener.overridable)
        self.parameters = variables_passed(node.args)  # the function's
        self.deleted = deleted_in(node)  # names that may be unbound again
        # names that are always bound
        self.sure = frozenset(each.arg for each in self.parameters) - self.deleted
        self.loops: list[str] = []  # names of the loops around the statement that is being made
        self.deep = 0  # how many comprehensions are around it
        # names that only comprehensions of the function bind, and the line of the first
        self.each: dict[str, int] = {}
        self.around: frozenset[str] = frozenset()  # what the comprehensions around it bind
        # for each name of a site those variables of comprehensions that can be read at all its
        # sites
        self.inner_at: dict[str, frozenset[str]] = {}
        # for each name of a site those variables of the function that a comprehension hides at one
        # of its sites
        self.hidden_at: dict[str, frozenset[str]] = {}

    def taps(self, site: Site) -> list[Tap]:
        """All that the listeners want at a site."""
        inner = self.around & self.each.keys()
        site.loops = frozenset(self.loops)
        site.is_deep = bool(self.deep)
        site.inner = inner
        name = site.name
        self.inner_at[name] = self.inner_at.get(name, inner) & inner
        self.hidden_at[name] = self.hidden_at.get(name, frozenset()) | self.around - inner
        return [tap for listener in self.listeners for tap in listener.taps(site)]

    def mark(self, value: Any) -> ast.expr:
        """An expression that stands for any object."""
        marker = f"{MARK}{len(self.table)}"
        self.table[marker] = value
        return standing_for(marker)

    def statements(
        self, site: Site, value: str | None, place: ast.AST, sure: set[str] | None = None
    ) -> list[Any]:
        """Statements that call all the taps of a site; ``value`` is the variable that has it."""
        calls: list[Any] = []
        sure_names = self.sure if sure is None else self.sure | sure
        for tap in self.taps(site):
            unsure = [name for name in tap.reads if name not in sure_names]
            if isinstance(self.node, ast.Lambda):
                expression = self.call_in_lambda(tap, site, value, is_sure=not unsure)
                calls.append(at_place(ast.Expr(expression), place))
                continue
            target = value if tap.replaces and site.kind == "set" else None
            values = loads([value]) if value else []
            call = self.ladder(tap, site, values, unsure, target)
            if site.kind == "read":  # there may be no such global
                call = self.unless(NameError, ast.Expr(values[0]), otherwise=[call])
            calls.append(at_place(call, place))
        return calls

    def call_in_lambda(self, tap: Tap, site: Site, value: str | None, is_sure: bool) -> ast.expr:
        """The call of a tap, as an expression; it looks for the variables itself if one of them may
        be unbound."""
        names = [value] if value else []
        if is_sure:
            names += tap.reads
        function = tap.bind(tap.reads) if is_sure else self.frame_tap(tap, site)
        call = ast.Call(self.mark(function), loads(names), [])
        if site.kind != "read":
            return call
        is_present = ast.Call(self.mark(presence_test(site.name)), [], [])
        return ast.IfExp(is_present, call, ast.Constant(None))

    def ladder(
        self, tap: Tap, site: Site, values: list[ast.expr], unsure: list[str], target: str | None
    ) -> ast.stmt:
        """The call of a tap, with those of the unsure names that are bound. No call stands in a
        handler: what comes out of it would be shown as raised while a NameError was handled."""
        if not unsure:
            return self.call(tap, values, list(tap.reads), target)
        if len(unsure) <= MOST_LADDER_NAMES:
            rungs = self.rungs(tap, values, list(tap.reads), unsure, target)
            return ast.While(ast.Constant(True), rungs, [])
        return call_statement(ast.Call(self.mark(self.frame_tap(tap, site)), values, []), target)

    def rungs(
        self,
        tap: Tap,
        values: list[ast.expr],
        reads: list[str],
        unsure: list[str],
        target: str | None,
    ) -> list[ast.stmt]:
        """Statements that leave the loop after the call with those names that are bound."""
        if not unsure:
            return [self.call(tap, values, reads, target), ast.Break()]
        first, *later = unsure
        without_first = [name for name in reads if name != first]
        with_it = self.rungs(tap, values, reads, later, target)
        return [
            self.unless(NameError, *map(ast.Expr, loads([first])), otherwise=with_it),
            *self.rungs(tap, values, without_first, later, target),
        ]

    def unless(self, raised: Any, *body: ast.stmt, otherwise: Sequence[ast.stmt] = ()) -> ast.stmt:
        """Statements that may raise, and what follows if they do not."""
        handler = ast.ExceptHandler(self.mark(raised), None, [ast.Pass()])
        return ast.Try(list(body), [handler], list(otherwise), [])

    def call(
        self, tap: Tap, values: list[ast.expr], reads: list[str], target: str | None
    ) -> ast.stmt:
        """The call of a tap with the value, if there is one, and variables."""
        call = ast.Call(self.mark(tap.bind(reads)), [*values, *loads(reads)], [])
        return call_statement(call, target)

    def wrap(self, site: Site, value: ast.expr) -> ast.expr:
        """An expression in the calls of all the taps of a site."""
        for tap in self.taps(site):
            if not self.deep and self.sure.issuperset(tap.reads):
                function = tap.bind(tap.reads)
                reads = loads(tap.reads)
            else:
                function = self.frame_tap(tap, site)
                reads = []
            value = at_place(ast.Call(self.mark(function), [value, *reads], []), value)
        return value

    def frame_tap(self, tap: Tap, site: Site) -> Callable[..., Any]:
        """A tap that looks for the variables itself: inside an expression, or where many of them
        may be unbound. Raises Unobservable: the function would see that it does."""
        if sys.version_info < (3, 13) and tap.reads:
            for node in ast.walk(self.node):
                if not isinstance(node, ast.Name | ast.Attribute):
                    continue
                name = node.id if isinstance(node, ast.Name) else node.attr
                if name in SEE_LOCALS:
                    captured = ", ".join(tap.reads)
                    raise Unobservable(
                        f"cannot be probed for '{site.name}' together with {captured}: before"
                        f" Python 3.13 its {name} would show it."
                    )
        return tap.bind_to_frame()

    def set_names(
        self, set_here: Sequence[str], place: ast.AST, tags: frozenset[str] = frozenset()
    ) -> list[ast.stmt]:
        """The taps after a statement that sets names, in their order."""
        calls: list[ast.stmt] = []
        for index, name in enumerate(set_here):
            later = [other for other in set_here[index + 1 :] if other != name]
            site = Site("set", name, later, tags)
            sure = set(set_here) - self.deleted | {name}
            calls += self.statements(site, name, place, sure)
        return calls

    def set_in_expression(self, set_here: Sequence[str]) -> list[ast.expr]:
        """The taps of names that have been set, as expressions."""
        calls: list[ast.expr] = []
        for index, name in enumerate(set_here):
            later = [other for other in set_here[index + 1 :] if other != name]
            site = Site("set", name, later)
            sure = {*self.sure, *set_here} - self.deleted | {name}
            for tap in self.taps(site):
                call = self.call_expression(tap, site, sure)
                if tap.replaces:
                    call = ast.NamedExpr(ast.Name(name, ast.Store()), call)
                calls.append(call)
        return calls

    def call_expression(self, tap: Tap, site: Site, sure: set[str]) -> ast.expr:
        """The call of a tap of a variable that has been set, with those that it reads; it looks for
        them itself if they may be unbound."""
        if sure.issuperset(tap.reads):
            function = tap.bind(tap.reads)
            names = [site.name, *tap.reads]
        else:
            function = self.frame_tap(tap, site)
            names = [site.name]
        return ast.Call(self.mark(function), loads(names), [])


def standing_for(marker: str) -> ast.expr:
    """An expression with a marker that stands for any object; the compiler has no warning for it,
    and leaves nothing of its form."""
    return ast.IfExp(ast.Constant(True), ast.Constant(marker), ast.Constant(None))


def loads(names: Iterable[str]) -> list[ast.expr]:
    """Expressions that give the values of variables."""
    return [ast.Name(name, ast.Load()) for name in names]


OPTIMIZED = 1  # inspect.CO_OPTIMIZED: a function's code, not a class's


def locals_of(frame: FrameType, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Those of a function's or class's variables that are set (only some ``names``); at the top of
    a module none."""
    variables = frame.f_locals
    if variables is frame.f_globals:
        return {}
    if names is None:
        values = dict(variables)
    else:
        values = {name: variables[name] for name in names if name in variables}
    # Before 3.13 a function's dictionary stays with the frame and would keep the values alive;
    # unless the program holds it too, take them out, but for what the program or a debugger has put
    # there itself.
    code = frame.f_code
    if type(variables) is dict and code.co_flags & OPTIMIZED and sys.getrefcount(variables) <= 3:
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            variables.pop(name, None)
    return values


def presence_test(name: str) -> Callable[[], bool]:
    """A function that is true if a name from outside means something where it is called: an
    expression cannot try."""

    def is_present() -> bool:
        frame = sys._getframe(1)
        key = mangled(name, frame.f_code)
        if key in frame.f_code.co_freevars:
            return bool(locals_of(frame, (key,)))
        return key in frame.f_globals or key in frame.f_builtins

    return is_present


def call_statement(call: ast.Call, target: str | None) -> ast.stmt:
    """A call as a statement; ``target`` takes what it returns."""
    return ast.Expr(call) if target is None else ast.Assign([ast.Name(target, ast.Store())], call)


def one_of(values: Sequence[ast.expr], place: int) -> ast.expr:
    """An expression that evaluates several and then is one of them."""
    if len(values) == 1:
        return values[0]
    every = ast.Tuple(list(values), ast.Load())
    item: ast.expr = ast.Subscript(every, ast.Constant(place), ast.Load())
    at_place(item, values[place])
    return item


def at_place(new: Any, old: ast.AST) -> Any:
    """Give new nodes the place of an old one; what has a place keeps it, with all that is in it."""
    line = getattr(old, "lineno", 1)
    column = getattr(old, "col_offset", 0)
    end_line = getattr(old, "end_lineno", line)
    end_column = getattr(old, "end_col_offset", column)
    stack = [new]
    while stack:
        node = stack.pop()
        if "lineno" not in node._attributes:
            stack += ast.iter_child_nodes(node)
        elif not hasattr(node, "lineno"):
            node.lineno = line
            node.col_offset = column
            node.end_lineno = end_line
            node.end_col_offset = end_column
            stack += ast.iter_child_nodes(node)
    return new
