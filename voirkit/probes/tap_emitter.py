"""Sites (places in a function that can be probed), taps (calls inserted there), and the syntax tree
of a tap.

In the tree the called function is a marker: a constant string that ``weave.py`` replaces by the
function in the compiled code. A tap raises only what a subscriber raises on purpose, so the program
does not notice it. Each new node has the line and column of a neighbouring node of the program.
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
    """A place in a function that can be probed, such as the assignment of a variable.

    Attributes:
        kind: ``set`` (a variable is assigned), ``declared`` (``x: int`` without a value), ``read``
            (a global or closure variable, read at entry), ``attribute`` (an attribute is assigned),
            ``each`` (a comprehension's variable gets its next value), ``unset`` (a variable is
            deleted), ``enter``, ``exit``, ``value`` (the return value), ``error``, ``yield``,
            ``receive``, ``loop`` (an iteration begins), ``endloop`` (an iteration ends).
        name: The variable, or the hash variable such as ``#loop_i``.
        tags: Names of the tags in the assignment's annotation.
        is_expression: True if the tap wraps an expression: it is called with the value and returns
            it.
        loops: Names of the loops around the site.
        inner: Variables of the comprehensions around the site that can be probed.
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
        # variables that the event must leave out, even if they hold a value from before
        self.unset = frozenset(unset)
        # True inside a comprehension: before Python 3.12 a comprehension is a code object of its
        # own, in which the function's variables cannot be named
        self.is_deep = False
        self.loops = self.inner = frozenset[str]()

    @property
    def has_value(self) -> bool:
        """True if the first argument of the tap is the value at the site."""
        return self.is_expression or self.kind in ("set", "read", "each")


# Kinds of sites at which a tap may replace the value.
REPLACEABLE = frozenset({"set", "value", "yield", "receive", "attribute"})


class Unobservable(Exception):
    """Raised if a selector names something that cannot be observed in a function; the message
    continues a sentence that begins with the function's name."""


class Tap(Protocol):
    """A call that a listener inserts at a site."""

    reads: tuple[str, ...]  # names of the variables that are the call's arguments
    replaces: bool  # True if the variable is assigned the call's result

    def bind(self, reads: Sequence[str]) -> Callable[..., Any]:
        """Return the function to call with the variables ``reads``, those of ``self.reads`` that
        are bound. If the site has a value, it comes before them."""
        ...

    def bind_to_frame(self) -> Callable[..., Any]:
        """Return a function to call without the variables; it reads them from its caller's
        frame."""
        ...


class FixedTap:
    """A ``Tap`` that reads no variables and always calls the same function."""

    reads: tuple[str, ...] = ()

    def __init__(self, function: Callable[..., Any], replaces: bool = False) -> None:
        self.function, self.replaces = function, replaces

    def bind(self, reads: Sequence[str] = ()) -> Callable[..., Any]:
        return self.function

    bind_to_frame = bind


class Listener(Protocol):
    """An object that has taps inserted into a function, for one probe."""

    overridable: bool  # True if its taps may replace values
    is_awake: bool  # True if its taps are needed now: the probe has a subscriber
    names: Sequence[str]  # the plain variables that the selector names in the function
    captured: Sequence[str]  # all variables, hash variables too, that the selector names
    foci: Sequence[str]  # variables whose assignment makes an event; ``""`` for any variable
    is_total: bool  # True if its event comes at the end of a call of this function

    def taps(self, site: Site) -> Sequence[Tap]:
        """Return the listener's taps at a site, in order."""
        ...


MARK = "\0voirkit "
# If up to this number n of a tap's variables may be unbound, the code has one call for each
# combination of bound variables, 2**n calls. If more may be unbound, the tap reads the frame.
MOST_LADDER_NAMES = 3
# Names by which a function sees the dictionary of its variables. Before Python 3.13 that dictionary
# is updated whenever a tap reads the frame, which such a function would notice.
SEE_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec", "f_locals"})


class TapEmitter:
    """Builds the syntax trees of the tap calls in one function.

    Args:
        node: The function into which the calls will be inserted.
        listeners: The listeners whose taps are called, in any order. Taps of those that may replace
            values are called first.
        table: Filled with the object of each marker.
    """

    def __init__(
        self, node: FunctionNode, listeners: Iterable[Listener], table: dict[str, Any]
    ) -> None:
        self.node, self.table = node, table
        self.listeners = sorted(listeners, key=lambda listener: not listener.overridable)
        self.parameters = variables_passed(node.args)  # parameters of the function
        self.deleted = deleted_in(node)  # variables that may become unbound again
        # variables that are always bound
        self.sure = frozenset(each.arg for each in self.parameters) - self.deleted
        self.loops: list[str] = []  # variables of the loops around the current statement
        self.deep = 0  # number of comprehensions around the current expression
        # variables that only comprehensions of the function bind, and the line of the first binding
        self.each: dict[str, int] = {}
        # variables that the comprehensions around the current expression bind
        self.around: frozenset[str] = frozenset()
        # by site name: the comprehension variables that can be read at all sites of this name
        self.inner_at: dict[str, frozenset[str]] = {}
        # by site name: the function's variables that a comprehension hides at one of the sites of
        # this name
        self.hidden_at: dict[str, frozenset[str]] = {}

    def taps(self, site: Site) -> list[Tap]:
        """Complete a site with its loops and comprehensions, and return the taps of all listeners
        there."""
        inner = self.around & self.each.keys()
        site.loops = frozenset(self.loops)
        site.is_deep = bool(self.deep)
        site.inner = inner
        name = site.name
        self.inner_at[name] = self.inner_at.get(name, inner) & inner
        self.hidden_at[name] = self.hidden_at.get(name, frozenset()) | self.around - inner
        return [tap for listener in self.listeners for tap in listener.taps(site)]

    def mark(self, value: Any) -> ast.expr:
        """Return an expression whose value, in the compiled code, will be this object."""
        marker = f"{MARK}{len(self.table)}"
        self.table[marker] = value
        return standing_for(marker)

    def statements(
        self, site: Site, value: str | None, place: ast.AST, sure: set[str] | None = None
    ) -> list[Any]:
        """Return statements that call all taps of a site.

        Args:
            value: The variable that holds the site's value; None if the site has no value.
            place: The node whose position the statements get.
            sure: Variables that are bound here, besides those that always are.
        """
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
            if site.kind == "read":  # the tap is not called if the variable does not exist
                call = self.unless(NameError, ast.Expr(values[0]), otherwise=[call])
            calls.append(at_place(call, place))
        return calls

    def call_in_lambda(self, tap: Tap, site: Site, value: str | None, is_sure: bool) -> ast.expr:
        """Return the call of a tap as an expression. If one of its variables may be unbound
        (``is_sure`` is False), the tap reads them from the frame."""
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
        """Return a statement that calls a tap with those of the variables ``unsure`` that are
        bound.

        The call is never inside an ``except`` block: a traceback would show its exception as raised
        "during handling of" a NameError.
        """
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
        """Return the body of a loop that calls the tap once, with the variables that are bound, and
        then breaks."""
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
        """Return a ``try`` statement: ``body``, then ``otherwise`` unless the body raises
        ``raised``, which is ignored."""
        handler = ast.ExceptHandler(self.mark(raised), None, [ast.Pass()])
        return ast.Try(list(body), [handler], list(otherwise), [])

    def call(
        self, tap: Tap, values: list[ast.expr], reads: list[str], target: str | None
    ) -> ast.stmt:
        """Return a statement that calls a tap with ``values`` (the site's value, or empty) and the
        variables ``reads``; ``target`` is assigned the result."""
        call = ast.Call(self.mark(tap.bind(reads)), [*values, *loads(reads)], [])
        return call_statement(call, target)

    def wrap(self, site: Site, value: ast.expr) -> ast.expr:
        """Return an expression wrapped in the calls of all taps of a site: each gets the value and
        returns it."""
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
        """Return a tap's function that reads the variables from the frame: for expressions, or
        where many variables may be unbound. Raises Unobservable if the program would notice the
        read."""
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
        """Return the tap calls to insert after a statement that assigns the variables ``set_here``,
        in this order."""
        calls: list[ast.stmt] = []
        for index, name in enumerate(set_here):
            later = [other for other in set_here[index + 1 :] if other != name]
            site = Site("set", name, later, tags)
            sure = set(set_here) - self.deleted | {name}
            calls += self.statements(site, name, place, sure)
        return calls

    def set_in_expression(self, set_here: Sequence[str]) -> list[ast.expr]:
        """Return the tap calls for variables that an expression has just assigned, as
        expressions."""
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
        """Return the call of a tap with the variable that was set and those that the tap reads. If
        one of them may be unbound, the tap reads them from the frame."""
        if sure.issuperset(tap.reads):
            function = tap.bind(tap.reads)
            names = [site.name, *tap.reads]
        else:
            function = self.frame_tap(tap, site)
            names = [site.name]
        return ast.Call(self.mark(function), loads(names), [])


def standing_for(marker: str) -> ast.expr:
    """Return an expression for a marker, ``marker if True else None``. The compiler does not warn
    about it and reduces it to the constant."""
    return ast.IfExp(ast.Constant(True), ast.Constant(marker), ast.Constant(None))


def loads(names: Iterable[str]) -> list[ast.expr]:
    """Return expressions that load variables."""
    return [ast.Name(name, ast.Load()) for name in names]


OPTIMIZED = 1  # inspect.CO_OPTIMIZED: set for the code of a function, not of a class body


def locals_of(frame: FrameType, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the bound variables of a function's or class body's frame, with their values: only
    those in ``names``, if given. Returns an empty dictionary for the top level of a module."""
    variables = frame.f_locals
    if variables is frame.f_globals:
        return {}
    if names is None:
        values = dict(variables)
    else:
        values = {name: variables[name] for name in names if name in variables}
    # Before Python 3.13 the frame of a function keeps its dictionary ``f_locals``, which would keep
    # the values alive. So remove the function's variables from the dictionary, unless the program
    # refers to the dictionary too. Other keys, which the program or a debugger has added, stay.
    code = frame.f_code
    if type(variables) is dict and code.co_flags & OPTIMIZED and sys.getrefcount(variables) <= 3:
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            variables.pop(name, None)
    return values


def presence_test(name: str) -> Callable[[], bool]:
    """Return a function that is true if a global or closure variable exists in its caller; an
    expression cannot use ``try``."""

    def is_present() -> bool:
        frame = sys._getframe(1)
        key = mangled(name, frame.f_code)
        if key in frame.f_code.co_freevars:
            return bool(locals_of(frame, (key,)))
        return key in frame.f_globals or key in frame.f_builtins

    return is_present


def call_statement(call: ast.Call, target: str | None) -> ast.stmt:
    """Return a call as a statement; if given, ``target`` is assigned the result."""
    return ast.Expr(call) if target is None else ast.Assign([ast.Name(target, ast.Store())], call)


def one_of(values: Sequence[ast.expr], place: int) -> ast.expr:
    """Return an expression that evaluates all ``values`` and has the value of the one at index
    ``place``."""
    if len(values) == 1:
        return values[0]
    every = ast.Tuple(list(values), ast.Load())
    item: ast.expr = ast.Subscript(every, ast.Constant(place), ast.Load())
    at_place(item, values[place])
    return item


def at_place(new: Any, old: ast.AST) -> Any:
    """Give a new node, and its children, the source position of an old node. A node that has a
    position already is left alone, with its children."""
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
