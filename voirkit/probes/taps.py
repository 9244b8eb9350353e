"""Taps for selectors inside one function: functions that read all they need from the variables at the site.

Each is written as a few lines of Python for its site, with a fixed number of arguments, compiled once for all sites of
the same
shape: the cost of an event is one call, a dictionary, and the subscriber (``benchmarks/probes.py``).
"""

from __future__ import annotations

import ast
import builtins
import sys
from functools import cache
from itertools import count
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from voirkit.probes.events import Capture, Outlet
from voirkit.probes.names import mangled
from voirkit.probes.plan import Element, Node, plain_names
from voirkit.probes.scope import locals_of
from voirkit.streams import MEANT, in_turn, threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from voirkit.probes.sites import Site, Tap

_ids = count(1)
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_LINE = sys._getframe().f_lineno  # where tracebacks say that a tap is
TRUE = "True"  # what a hash variable without a value is in an event
VALUE = "value"


class NeedsMemory(Exception):
    """The selector asks for what can not be read where the event is made: ``matching.py`` must keep it."""


def may_need_memory(node: Node) -> bool:
    """Whether that is so for some function that is not there yet to be looked at."""
    if node.rule.total or len(node.rule.nodes) > 1:
        return True
    loops = {e.loop for e in node.elements}
    for element in node.elements if len(node.elements) > 1 else ():
        name = element.name
        if name is None or "." in name or (element.tag is not None and not element.focus):
            return True
        if name.startswith("#") and name != "#enter" and not (element.loop and element.focus and len(loops - {None}) == 1):
            return True
    return False


class LocalListener:
    """Taps for a selector that names one function, whose captures are variables of it.

    Raises:
        NeedsMemory: By ``taps``: it is not such a selector.
    """

    def __init__(self, node: Node, outlet: Outlet) -> None:
        self.node, self.outlet, self.overridable = node, outlet, node.rule.overridable
        self.hit: dict[Element, set[str]] = {}
        self.is_awake = False
        self.names: Sequence[str] = plain_names(node)
        self.wanted: Sequence[str] = [e.name for e in node.elements if e.name is not None]
        self.foci: Sequence[str] = [e.name or "" for e in node.elements if e.focus]
        self.is_total = False
        if node.rule.total or len(node.rule.nodes) > 1:
            raise NeedsMemory
        self._open: dict[int, int] = {}
        names = {e.name for e in node.elements if e.focus}
        always = ({"#enter", "#exit"}, *({f"#loop_{e.loop}", f"#endloop_{e.loop}"} for e in node.elements if e.focus))
        self.always_ends = len(names) == 2 and names in always

    def taps(self, site: Site) -> Sequence[Tap]:
        """One for each focus that the site sets."""
        if site.kind == "unset":
            return ()
        found = [e for e in self.node.elements if e.matches(site.name, site.tags, site.kind)]
        for element in found:
            self.hit.setdefault(element, set()).add(site.kind)
        if site.kind == "declared":
            return ()
        taps: list[Tap] = [LocalTap(self, site, e, self._sources(site, e)) for e in found if e.focus]
        if self.node.rule.wrap is None or self.always_ends:
            return taps
        # A pair that has not ended with the call is none: another call may get a frame at the same place.  (A lambda that raises does
        # not tell that it ends, but the next one does that it begins.)
        return [EndTap(self), *taps] if site.kind == "enter" else [*taps, EndTap(self)] if site.kind == "exit" else taps

    def _sources(self, site: Site, focus: Element) -> list[tuple[Element, str]]:
        """Where each capture is read for an event: the name of a variable, TRUE, or VALUE (what is being set)."""
        found: list[tuple[Element, str]] = []
        for element in self.node.elements:
            if element is focus:
                continue
            source = self._source(site, focus, element)
            if source:
                found.append((element, source))
        return [*found, (focus, VALUE if site.has_value or site.kind == "error" else TRUE)]

    def _source(self, site: Site, focus: Element, element: Element) -> str:
        name = element.name
        if focus.focus == 1 and element.focus == 2:
            return ""  # the begin of a pair carries nothing of the end
        if name is None or element.tag is not None or "." in name:
            raise NeedsMemory
        if not name.startswith("#"):
            if name in site.unset:
                return ""
            return VALUE if name == site.name and site.has_value else name
        if name == "#enter":
            return TRUE
        if name == "#exit" or (name in ("#value", "#error") and site.kind != "exit"):
            return ""
        loop = element.loop
        if name.startswith("#loop_") and loop and (loop in site.loops or site.name == f"#endloop_{loop}"):
            return TRUE
        raise NeedsMemory


class LocalTap:
    """A tap at one site (``sites.Tap``)."""

    def __init__(self, listener: LocalListener, site: Site, focus: Element, sources: list[tuple[Element, str]]) -> None:
        self.listener, self.site, self.focus, self.sources = listener, site, focus, sources
        self.replaces = listener.overridable and site.kind in ("set", "value", "yield", "receive", "attribute")
        self.reads = tuple(dict.fromkeys(s for _, s in sources if s not in (TRUE, VALUE)))
        rule = listener.node.rule
        self.step = None if rule.wrap is None else "begin" if focus.focus == 1 else "end"

    def make(self, reads: Sequence[str], depth: int = 1) -> Callable[..., Any]:
        """See ``sites.Tap``; ``depth``: how many calls the function is below that of the site."""
        listener, site = self.listener, self.site
        sources = [(e, s) for e, s in self.sources if s in (TRUE, VALUE) or s in reads]
        checks = [e.check for e, _ in sources if e.check is not None]
        raw = listener.node.rule.raw
        places = {name: f"a{n}" for n, name in enumerate(reads)}
        places |= {TRUE: "True", VALUE: VALUE if site.has_value else "exc_info()[1]"}
        shape = Shape(
            len(reads), site.has_value, site.is_expression or self.replaces, self.replaces, self.step, listener.always_ends,
            listener.node.rule.wrap, raw,
            tuple((e.alias, places[s]) for e, s in sources if not e.alias.startswith("/")),
            tuple(places[s] for e, s in sources if e.check is not None), depth, site.is_deep,
        )  # fmt: skip
        names = {
            "__builtins__": builtins,
            "exc_info": sys.exc_info, "_getframe": sys._getframe, "ids": _ids, "open": listener._open, "checks": checks,
            "passes": listener.outlet.passes, "ask": listener.outlet.ask, "Capture": Capture,
            "threads": threads, "MEANT": MEANT, "owner_of": owner_of,
            "in_turn": in_turn,
        }  # fmt: skip
        if raw:
            names["elements"] = [(e.source, e.alias, e.name or site.name) for e, _ in sources if not e.alias.startswith("/")]
        return _function(shape, names, listener.outlet)

    def slow(self) -> Callable[..., Any]:
        """See ``sites.Tap``."""
        reads, deep, inner = self.reads, self.site.is_deep, self.site.inner
        made: dict[tuple[str, ...], Callable[..., Any]] = {}

        def tap(*value: Any) -> Any:
            found = values_of(sys._getframe(1), reads, deep, inner)
            key = tuple(found)
            function = made.get(key)
            if function is None:
                function = made[key] = self.make(key, 2)
            return function(*value, *found.values())

        return tap

    def one_by_one(self) -> tuple[Callable[[], None], Callable[[str], Callable[[Any], None]], Callable[..., Any]]:
        """See ``sites.Tap``."""
        held: dict[int, dict[str, Any]] = {}  # by the identity of the frame
        made: dict[tuple[str, ...], Callable[..., Any]] = {}
        _getframe = sys._getframe

        def start() -> None:
            held[id(_getframe(1))] = {}

        def take(name: str) -> Callable[[Any], None]:
            def tap(value: Any) -> None:
                held[id(_getframe(1))][name] = value

            return tap

        def tap(*value: Any) -> Any:
            found = held.pop(id(_getframe(1)))
            key = tuple(found)
            function = made.get(key)
            if function is None:
                function = made[key] = self.make(key, 2)
            return function(*value, *found.values())

        return start, take, tap


class EndTap:
    """Drops what a call has begun and not ended (``sites.Tap``)."""

    reads: tuple[str, ...] = ()
    replaces = False

    def __init__(self, listener: LocalListener) -> None:
        begun, drop, _getframe = listener._open, listener.outlet.dropped, sys._getframe

        def tap() -> None:
            key = id(_getframe(1))
            begun.pop(key, None)
            drop(key)

        self._function = tap

    def make(self, reads: Sequence[str]) -> Callable[..., Any]:
        """See ``sites.Tap``."""
        return self._function

    def slow(self) -> Callable[..., Any]:
        """See ``sites.Tap``."""
        return self._function

    def one_by_one(self) -> Any:
        """See ``sites.Tap``; it reads no variables."""
        raise NotImplementedError


class Shape(tuple[Any, ...]):
    """All that a tap's code depends on."""

    __slots__ = ()

    def __new__(cls, *parts: Any) -> Shape:
        return super().__new__(cls, parts)


@cache
def _code(shape: Shape) -> CodeType:
    """The code of a tap."""
    reads, has_value, returns, replaces, step, always_ends, name, raw, items, checked, depth, is_deep = shape
    arguments = ([VALUE] if has_value else []) + [f"a{n}" for n in range(reads)]
    made = [f"Capture(*elements[{n}][:2], [elements[{n}][2]], [{place}])" if raw else place for n, (_, place) in enumerate(items)]
    shown = [f"{alias!r}: {value}" for (alias, _), value in zip(items, made, strict=True)]
    if step:
        shown.append(f"'$wrap': {{'id': number, 'name': {name!r}, 'step': {step!r}}}")
    event = f"{{{', '.join(shown)}}}"
    back = f"return {VALUE}" if returns else "return"
    body = [f"if not passes(checks, ({', '.join(checked)},)):", f"    {back}"] if checked else []
    frame = f"_getframe({depth})"
    frame = f"(owner_of({frame}) or {frame})" if is_deep else frame
    key = frame if always_ends else f"id({frame})"  # a frame whose pair may stay open must not be kept
    send = [f"in_turn(emit, {event}) if threads() else emit({event})"]
    if step == "begin":
        number = f"number = open[id({frame})] = next(ids)"
        send = ["if begin is None:", f"    {number}", f"    {send[0]}", "elif threads():", f"    in_turn(begin, {key})"]
        send += ["else:", f"    begin({key})"]
    elif step == "end":
        number = f"number = open.pop(id({frame}), 0)"
        send = [
            "if end is None:",
            f"    {number}",
            f"    {send[0]}",
            "else:",
            "    number = count",
            "    if threads():",
        ]
        send += [f"        in_turn(end, {key}, {event})", "    else:", f"        end({key}, {event})"]
    if replaces:
        body += [number] if step else []
        body.append(f"return ask({event}, {VALUE})")
    else:
        body += [
            "try:",
            *(f"    {line}" for line in send),
            "    count += 1",
            "except MEANT:",
            "    raise",
            "except BaseException as exc:",
            "    if failed(exc):",
            "        raise",
        ]
        body += [back] if returns else []
    text = "def make(emit, failed, count, begin, end):\n    def tap(" + ", ".join(arguments) + "):\n        nonlocal count\n"
    text += "".join(f"        {line}\n" for line in body) + "    return tap\n"
    names: dict[str, Any] = {}
    tree = ast.parse(text)
    for node in ast.walk(tree):  # a traceback is to show one line of this file, whatever stands in it there
        if "lineno" in node._attributes:
            node.lineno = node.end_lineno = _LINE  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = -1  # type: ignore[attr-defined]
    exec(compile(tree, __file__, "exec"), names)  # this file: dynamo leaves out what is in this folder
    return names["make"](*[None] * 5).__code__  # type: ignore[no-any-return]


def _function(shape: Shape, names: dict[str, Any], outlet: Outlet) -> FunctionType:
    code = _code(shape)
    cells = {
        "emit": outlet.emit,
        "failed": outlet.failed,
        "count": outlet.count,
        "begin": outlet.begin,
        "end": outlet.end,
    }
    return FunctionType(code, names, "tap", None, tuple(cells[name] for name in code.co_freevars))


def owner_of(frame: Any) -> Any:
    """The frame of the function around a comprehension's; None if it can not be told which that is."""
    while frame is not None and frame.f_code.co_name in _COMPREHENSIONS:
        frame = _around(frame)
    return frame


def _around(frame: Any) -> Any:
    """The frame around a comprehension's; None if it can not be told.

    Who consumes a generator expression may be another function, or another call of the same one.
    """
    code, at = frame.f_code, frame.f_back
    if at is None or not _makes(at.f_code, code):
        callers = []
        while at is not None:
            callers += [at] if _makes(at.f_code, code) else []
            at = at.f_back
        at = callers[0] if len(callers) == 1 else None
    return at


def _makes(code: CodeType, inner: CodeType) -> bool:
    return any(const is inner for const in code.co_consts)


def values_of(frame: Any, names: Sequence[str], deep: bool, inner: frozenset[str]) -> dict[str, Any]:
    """Those of a function's variables, and of its comprehensions' (``inner``), that are bound.

    ``deep``: the frame may be that of a comprehension, and the function's is around it (python before 3.12, generator expressions).
    """
    found: dict[str, Any] = {}
    while deep and frame is not None and frame.f_code.co_name in _COMPREHENSIONS:
        found = _own_values(frame, [name for name in names if name in inner and name not in found], False) | found
        frame = _around(frame)
    if frame is not None:
        found |= _own_values(frame, [name for name in names if name not in found], True)
    return {name: found[name] for name in names if name in found}


def _own_values(frame: Any, names: Sequence[str], also_global: bool) -> dict[str, Any]:
    code = frame.f_code
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    known = {name: mangled(name, code) for name in names}
    found = locals_of(frame, [key for key in known.values() if key in own])
    if also_global:  # one of its own that is not set is not the module's of that name
        found |= {key: frame.f_globals[key] for key in known.values() if key not in own and key in frame.f_globals}
    return {name: found[key] for name, key in known.items() if key in found}
