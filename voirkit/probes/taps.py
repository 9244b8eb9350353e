"""Taps for selectors inside one function: functions that read all they need from the variables at the site; and where events go.

Each tap is written as a few lines of Python for its site, with a fixed number of arguments, compiled once for all sites of
the same shape: an event costs one call, a dictionary, and the subscriber (``benchmarks/probes.py``). The function that takes events sits
in a cell that all taps of a probe share, so that it can be changed under them. What a subscriber raises never gets into the program.
"""

from __future__ import annotations

import ast
import builtins
import sys
import threading
from functools import cache
from itertools import count
from types import CellType, CodeType, FunctionType
from typing import Any

from voirkit.probes.live_functions import locals_of
from voirkit.probes.selector.grammar import ABSENT, Element, Node, plain_names
from voirkit.probes.source import mangled
from voirkit.probes.tap_emitter import FixedTap
from voirkit.streams import MEANT, in_turn, is_from_handler, threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from voirkit.probes.tap_emitter import Site, Tap


class Off(Exception):
    """Raised to a tap that nobody wants: in a frame that was running when the probe left, or among many others."""


def off(event: Any) -> None:
    raise Off


class Outlet:
    """What the taps of one probe share.

    Attributes:
        emit: A cell with the function that takes an event.
        failed: A cell with the function that takes what it raised, and says whether that is for the program.
        count: A cell with the number of events.
        begin, end: Cells with what takes the begin and the end of a pair, if the begin needs no event; else with None.
        drop: What then takes that a begin will have no end, or None.
    """

    def __init__(self, failed: Callable[[BaseException], None], complain: Callable[[Exception], None]) -> None:
        self.emit, self.count = CellType(off), CellType(0)
        self.failed, self.begin, self.end = CellType(self._failed), CellType(None), CellType(None)
        self._told, self.complain = failed, complain
        self.drop: Callable[[Any], None] | None = None
        self._slot = threading.local()

    def _failed(self, exc: BaseException) -> bool:
        # At the recursion limit it is the program that is at fault, and will see so itself.
        if isinstance(exc, Off | RecursionError):
            return False
        if is_from_handler(exc):
            return True
        try:
            self._told(exc)
        except RecursionError:
            pass  # the next event that fails, with more room, tells it
        return False

    def open(self, emit: Callable[[Any], None], pair: Any) -> None:
        """Send events to a function."""
        self.emit.cell_contents = emit
        self.begin.cell_contents, self.end.cell_contents, self.drop = pair or (None, None, None)

    def close(self) -> None:
        """No more events, whatever still runs."""
        self.open(off, None)

    def fire(self, event: Any) -> None:
        """Send an event."""
        try:
            if threads():
                in_turn(self.emit.cell_contents, event)
            else:
                self.emit.cell_contents(event)
            self.count.cell_contents += 1
        except MEANT:
            raise
        except BaseException as exc:
            if self.failed.cell_contents(exc):
                raise

    def dropped(self, key: Any) -> None:
        """A pair that may have begun will have no end."""
        if self.drop is None:
            return
        try:
            in_turn(self.drop, key)
        except MEANT:
            raise
        except BaseException as exc:
            if self.failed.cell_contents(exc):
                raise

    def fire_replacing(self, event: Any, value: Any) -> Any:
        """Send an event whose subscribers may replace the value; returns the value, or what replaces it."""
        slot = self._slot
        before = getattr(slot, "value", ABSENT)
        slot.value = ABSENT
        try:
            self.fire(event)
            return value if slot.value is ABSENT else slot.value
        finally:
            slot.value = before

    def replace(self, value: Any) -> None:
        """Replace the value; called by a subscriber, while the event is being sent."""
        self._slot.value = value

    def passes(self, checks: Any, values: Any) -> bool:
        """Whether values pass their checks; one that raises is reported, and counts as not passed, as when nobody wants to know."""
        if self.emit.cell_contents is off:
            return False
        try:
            return all(check(value) for check, value in zip(checks, values, strict=True))
        except Exception as exc:
            if is_from_handler(exc):
                raise
            if not isinstance(exc, RecursionError):
                self.complain(exc)
            return False


class Capture:
    """What a raw event holds for each capture.

    Attributes:
        element: The part of the selector that captured (ptera's ``Element``).
        capture: Its name in the event.
        names: The names of the variables captured.
        values: Their values.
    """

    __slots__ = ("capture", "element", "names", "values")

    def __init__(self, element: Any, capture: str, names: list[str], values: list[Any]) -> None:
        self.element, self.capture, self.names, self.values = element, capture, names, values

    @property
    def name(self) -> str:
        """The variable's name.

        Raises:
            ValueError: None or several were captured.
        """
        named = getattr(self.element, "name", None)
        return str(named) if named is not None else str(self._only(self.names, "name"))

    @property
    def value(self) -> Any:
        """The value.

        Raises:
            ValueError: None or several were captured.
        """
        return self._only(self.values, "value")

    def _only(self, items: list[Any], what: str) -> Any:
        if len(items) != 1:
            raise ValueError(f"{'Several' if items else 'No'} {what}s for capture '{self.capture}'")
        return items[0]

    def __repr__(self) -> str:
        return f"Capture({self.capture}, names={self.names})"


_ids = count(1)
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_LINE = sys._getframe().f_lineno  # where tracebacks say that a tap is
TRUE = "True"  # what a hash variable without a value is in an event
VALUE = "value"


class NeedsMemory(Exception):
    """The selector asks for what cannot be read where the event is made: ``memory.py`` must keep it."""


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
        # A pair that has not ended with the call is none: another call may get a frame at the same place. (A lambda that raises does
        # not tell that it ends, but the next one does that it begins.)
        if site.kind not in ("enter", "exit"):
            return taps
        begun, drop, _getframe = self._open, self.outlet.dropped, sys._getframe

        def drop_pair() -> None:
            key = id(_getframe(1))
            begun.pop(key, None)
            drop(key)

        ending = FixedTap(drop_pair)
        return [ending, *taps] if site.kind == "enter" else [*taps, ending]

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
    """A tap at one site (``tap_emitter.Tap``)."""

    def __init__(self, listener: LocalListener, site: Site, focus: Element, sources: list[tuple[Element, str]]) -> None:
        self.listener, self.site, self.focus, self.sources = listener, site, focus, sources
        self.replaces = listener.overridable and site.kind in ("set", "value", "yield", "receive", "attribute")
        self.reads = tuple(dict.fromkeys(s for _, s in sources if s not in (TRUE, VALUE)))
        rule = listener.node.rule
        self.step = None if rule.wrap is None else "begin" if focus.focus == 1 else "end"

    def bind(self, reads: Sequence[str], depth: int = 1) -> Callable[..., Any]:
        listener, site = self.listener, self.site
        sources = [(e, s) for e, s in self.sources if s in (TRUE, VALUE) or s in reads]
        checks = [e.check for e, _ in sources if e.check is not None]
        raw = listener.node.rule.raw
        places = {name: f"a{n}" for n, name in enumerate(reads)}
        places |= {TRUE: "True", VALUE: VALUE if site.has_value else "exc_info()[1]"}
        shape = (
            len(reads), site.has_value, site.is_expression or self.replaces, self.replaces, self.step, listener.always_ends,
            listener.node.rule.wrap, raw,
            tuple((e.alias, places[s]) for e, s in sources if not e.alias.startswith("/")),
            tuple(places[s] for e, s in sources if e.check is not None), depth, site.is_deep,
        )  # fmt: skip
        names = {
            "__builtins__": builtins,
            "exc_info": sys.exc_info, "_getframe": sys._getframe, "ids": _ids, "open": listener._open, "checks": checks,
            "passes": listener.outlet.passes, "ask": listener.outlet.fire_replacing, "Capture": Capture,
            "threads": threads, "MEANT": MEANT, "owner_of": owner_of,
            "in_turn": in_turn,
        }  # fmt: skip
        if raw:
            names["elements"] = [(e.source, e.alias, e.name or site.name) for e, _ in sources if not e.alias.startswith("/")]
        return _tap_function(shape, names, listener.outlet)

    def bind_to_frame(self) -> Callable[..., Any]:
        reads, deep, inner = self.reads, self.site.is_deep, self.site.inner
        made: dict[tuple[str, ...], Callable[..., Any]] = {}

        def tap(*value: Any) -> Any:
            found = values_of(sys._getframe(1), reads, deep, inner)
            key = tuple(found)
            function = made.get(key)
            if function is None:
                function = made[key] = self.bind(key, 2)
            return function(*value, *found.values())

        return tap

    def one_by_one(self) -> tuple[Callable[[], None], Callable[[str], Callable[[Any], None]], Callable[..., Any]]:
        held: dict[int, dict[str, Any]] = {}  # by the identity of the frame
        made: dict[tuple[str, ...], Callable[..., Any]] = {}
        _getframe = sys._getframe

        def start() -> None:
            held[id(_getframe(1))] = {}

        def collector(name: str) -> Callable[[Any], None]:
            def tap(value: Any) -> None:
                held[id(_getframe(1))][name] = value

            return tap

        def tap(*value: Any) -> Any:
            found = held.pop(id(_getframe(1)))
            key = tuple(found)
            function = made.get(key)
            if function is None:
                function = made[key] = self.bind(key, 2)
            return function(*value, *found.values())

        return start, collector, tap


@cache
def _tap_code(shape: tuple[Any, ...]) -> CodeType:
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


def _tap_function(shape: tuple[Any, ...], names: dict[str, Any], outlet: Outlet) -> FunctionType:
    code = _tap_code(shape)
    cells = {
        "emit": outlet.emit,
        "failed": outlet.failed,
        "count": outlet.count,
        "begin": outlet.begin,
        "end": outlet.end,
    }
    return FunctionType(code, names, "tap", None, tuple(cells[name] for name in code.co_freevars))


def owner_of(frame: Any) -> Any:
    """The frame of the function around a comprehension's; None if it cannot be told which that is."""
    while frame is not None and frame.f_code.co_name in _COMPREHENSIONS:
        frame = _frame_around(frame)
    return frame


def _frame_around(frame: Any) -> Any:
    """The frame around a comprehension's; None if it cannot be told.

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
        frame = _frame_around(frame)
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
