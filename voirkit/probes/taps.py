"""Taps: the functions that a woven function calls where something happens in it, and that make the events.

For a selector inside one function a tap reads all that it needs from the variables at the site. It is written as a few lines of Python for
its site, with a fixed number of arguments, compiled once for all sites of the same shape: an event costs one call, a dictionary, and the
subscriber (``benchmarks/probes.py``). The function that takes events sits in a cell that all taps of a probe share (``engine.Outlet``), so
that it can be changed under them. For selectors across calls, and for totals, taps remember (``Memory``).
"""

from __future__ import annotations

import ast
import builtins
import sys
from functools import cache
from itertools import count
from types import CodeType, FunctionType
from typing import Any

from voirkit.probes.selector import Element, Node, Rule, plain_names
from voirkit.probes.source import mangled
from voirkit.probes.tap_emitter import FixedTap, locals_of
from voirkit.streams import MEANT, in_turn, threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from voirkit.probes.engine import Outlet
    from voirkit.probes.tap_emitter import Site, Tap


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
        """The variable's name. Raises ValueError: None or several were captured."""
        named = getattr(self.element, "name", None)
        return str(named) if named is not None else str(self._only(self.names, "name"))

    @property
    def value(self) -> Any:
        """The value. Raises ValueError: None or several were captured."""
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
    """The selector asks for what cannot be read where the event is made: a ``Memory`` must keep it."""


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
    """Taps for a selector that names one function, whose captures are variables of it. Raises NeedsMemory: by ``taps``: it is not such a
    selector."""

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


@cache
def _tap_code(shape: tuple[Any, ...]) -> CodeType:
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
        send = ["if end is None:", f"    {number}", f"    {send[0]}", "else:", "    number = count", "    if threads():"]
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
    cells = {"emit": outlet.emit, "failed": outlet.failed, "count": outlet.count, "begin": outlet.begin, "end": outlet.end}
    return FunctionType(code, names, "tap", None, tuple(cells[name] for name in code.co_freevars))


def owner_of(frame: Any) -> Any:
    """The frame of the function around a comprehension's; None if it cannot be told which that is."""
    while frame is not None and frame.f_code.co_name in _COMPREHENSIONS:
        frame = _frame_around(frame)
    return frame


def _frame_around(frame: Any) -> Any:
    """The frame around a comprehension's; None if it cannot be told. Who consumes a generator expression may be another function, or
    another call of the same one."""
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
    """Those of a function's variables, and of its comprehensions' (``inner``), that are bound. ``deep``: the frame may be that of a
    comprehension, and the function's is around it (python before 3.12, generator expressions)."""
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


# Selectors across calls, and totals. Each call of a function that a selector names gets a record, under the identity of its frame, from its
# first statement to its last. Which calls are around another is read off the stack of frames when that one begins. So threads and tasks do
# not see each other's calls, and who consumes a generator is not inside it.

Caught = tuple[Element, list[str], list[Any]]


class Record:
    """What has been captured in one call; it shares what the calls around it have captured.

    Attributes:
        parent: The record of the call around it.
        is_leaf: Whether it is that of one value of the focus.
        tested: The values of each element with a condition: another call's capture may have the same name.
        number: Tells the pairs of ``!`` and ``!!`` apart.
    """

    __slots__ = ("caught", "children", "is_leaf", "number", "parent", "tested")

    def __init__(self, parent: Record | None, keeps: bool = False, is_leaf: bool = False) -> None:
        self.parent, self.is_leaf, self.number = parent, is_leaf, 0
        self.caught: dict[str, Caught] = {}  # element, names and values under each name of a capture
        self.tested: dict[Element, list[Any]] = {}
        self.children: list[Record] = []  # of a total: the records within, one for each value of the focus
        if keeps and parent is not None:
            parent.children.append(self)

    def all(self) -> dict[str, Caught]:
        """What it has and what is around it has; of two captures of a name the innermost."""
        found: dict[str, Caught] = {}
        at: Record | None = self
        while at is not None:
            for name, caught in at.caught.items():
                found.setdefault(name, caught)
            at = at.parent
        return found

    def values_of(self, element: Element) -> list[Any]:
        """What it or what is around it has caught for an element with a condition."""
        at: Record | None = self
        while at is not None:
            if element in at.tested:
                return at.tested[element]
            at = at.parent
        return []

    def leaves(self) -> list[Record]:
        return [self] if self.is_leaf else [leaf for child in self.children for leaf in child.leaves()]

    @property
    def root(self) -> Record:
        at = self
        while at.parent is not None:
            at = at.parent
        return at


class Memory:
    """The records of one rule: for each of its functions those of the running calls, by the identity of their frames."""

    def __init__(self, rule: Rule, outlet: Outlet) -> None:
        self.rule, self.outlet = rule, outlet
        self.is_on = True
        self.running: dict[Node, dict[int, list[Record]]] = {node: {} for node in rule.nodes}
        # The end of a lambda that raises is not seen, and another call's frame may get the identity of its frame.
        self.lambdas: dict[tuple[Node, int], CodeType] = {}
        self.checked = [e for node in rule.nodes for e in node.elements if e.check is not None]

    def end(self) -> None:
        """Forget everything."""
        self.is_on = False
        for running in self.running.values():
            running.clear()
        self.lambdas.clear()

    def enter_call(self, node: Node, frame: Any) -> None:
        """A call begins."""
        if not self.is_on:
            return
        if frame.f_code.co_name == "<lambda>":
            self.lambdas[node, id(frame)] = frame.f_code
        if node.parent is None:
            self.running[node][id(frame)] = [Record(None)]
            return
        outer = self.running[node.parent]
        left = len(outer)  # no need to look further when all have been found
        forks, keeps = node.has_focus, self.rule.total
        records: list[Record] = []
        at = frame.f_back
        while left and at is not None:
            found = outer.get(id(at))
            if found is not None and self.lambdas.get((node.parent, id(at)), at.f_code) is at.f_code:
                left -= 1
                records += [Record(r, keeps) for r in found] if forks else found
            at = at.f_back
        if records:
            self.running[node][id(frame)] = records

    def leave_call(self, node: Node, frame: Any) -> None:
        """A call ends."""
        records = self.running[node].pop(id(frame), ())
        self.lambdas.pop((node, id(frame)), None)
        if self.rule.total and node.parent is None:
            for record in records:
                for leaf in record.leaves() or [record]:
                    caught = leaf.all()
                    if {name for name in caught if not name.startswith("/")} >= self.rule.names:
                        self.fire(caught, leaf)

    def set(self, node: Node, frame: Any, elements: Sequence[Element], name: str, value: Any) -> Any:
        """A variable is set; returns its value, or what replaces it."""
        records = self.running[node].get(id(frame))
        if not records:
            return value
        if self.rule.overridable:
            value = self.fire_replacing(records, elements, name, value)
        total = self.rule.total
        for element in elements:
            for record in records:
                if not total:
                    record.caught[element.alias] = (element, [name], [value])
                    if element.check is not None:
                        record.tested[element] = [value]
                    continue
                at = Record(record, True, True) if element.focus else record
                if element.check is not None:
                    at.tested.setdefault(element, []).append(value)
                caught = at.caught.setdefault(element.alias, (element, [], []))
                caught[1].append(name)
                caught[2].append(value)
        if not total and not self.rule.overridable:
            for element in elements:
                if element.focus:
                    for record in records:
                        self.fire(self.of_pair(record, element) if self.rule.wrap else record.all(), record, element)
        return value

    def fire_replacing(self, records: list[Record], elements: Sequence[Element], name: str, value: Any) -> Any:
        new = value
        for element in elements:
            if element.focus:
                for record in records:
                    caught = {**record.all(), element.alias: (element, [name], [value])}
                    if element.check is not None:
                        record.tested[element] = [value]
                    event = self.event(caught, record)
                    if event is not None:
                        replaced = self.outlet.fire_replacing(event, value)
                        new = replaced if replaced is not value else new
        return new

    def of_pair(self, record: Record, element: Element) -> dict[str, Caught]:
        """The begin of a pair has nothing of an end in it."""
        return {name: c for name, c in record.all().items() if element.focus == 2 or c[0].focus != 2}

    def unset(self, node: Node, frame: Any, names: frozenset[str]) -> None:
        """Variables are deleted, or about to be set anew."""
        for record in () if self.rule.total else self.running[node].get(id(frame), ()):
            for alias in [a for a, c in record.caught.items() if c[1][0] in names and c[0] in node.elements]:
                element = record.caught.pop(alias)[0]
                record.tested.pop(element, None)
            for element in [e for e in record.tested if e.name in names and e in node.elements]:
                del record.tested[element]

    def fire(self, caught: dict[str, Caught], record: Record, element: Element | None = None) -> None:
        event = self.event(caught, record)
        if event is None:
            return
        if self.rule.wrap is not None and element is not None:
            root = record.root
            if element.focus == 1:
                root.number = next(_ids)
            event["$wrap"] = {"id": root.number, "name": self.rule.wrap, "step": "begin" if element.focus == 1 else "end"}
        self.outlet.fire(event)

    def event(self, caught: dict[str, Caught], record: Record) -> dict[str, Any] | None:
        """The event, or None if a condition does not hold."""
        for element in self.checked:
            values = record.values_of(element)
            if not self.outlet.passes([element.check] * len(values), values):
                return None
        if self.rule.raw:
            return {a: Capture(e.source, a, list(n), list(v)) for a, (e, n, v) in caught.items() if not a.startswith("/")}
        for alias, (_, _, values) in caught.items():
            if len(values) > 1 and not alias.startswith("/"):
                self.outlet.complain(ValueError(f"'{alias}' was set several times in a call; raw=True gives all the values"))
                return None
        return {alias: values[0] for alias, (_, _, values) in caught.items() if not alias.startswith("/")}


class MemoryListener:
    """Taps that keep a rule's memory, in one of its functions (``tap_emitter.Listener``)."""

    def __init__(self, memory: Memory, node: Node) -> None:
        self.memory, self.node, self.overridable = memory, node, memory.rule.overridable
        self.hit: dict[Element, set[str]] = {}
        self.is_awake = False
        self.names: Sequence[str] = plain_names(node)
        self.wanted: Sequence[str] = [e.name for e in node.elements if e.name is not None]
        self.foci: Sequence[str] = [] if memory.rule.total else [e.name or "" for e in node.elements if e.focus]
        self.is_total = memory.rule.total and node.parent is None

    def taps(self, site: Site) -> Sequence[FixedTap]:
        memory, node = self.memory, self.node
        found = tuple(e for e in node.elements if e.matches(site.name, site.tags, site.kind))
        for element in found:
            self.hit.setdefault(element, set()).add(site.kind)
        name, deep = site.name, site.is_deep
        _getframe, tell, unset = sys._getframe, memory.set, memory.unset

        def enter() -> None:
            frame = _getframe(1)
            memory.enter_call(node, frame)
            if found:
                tell(node, frame, found, name, True)

        def leave() -> None:
            frame = _getframe(1)
            if found:
                tell(node, frame, found, name, True)
            memory.leave_call(node, frame)

        def given(value: Any) -> Any:
            return tell(node, _getframe(1), found, name, value)

        def given_deep(value: Any) -> Any:
            frame = owner_of(_getframe(1))
            return tell(node, frame, found, name, value) if frame is not None else value

        def happens() -> None:
            tell(node, _getframe(1), found, name, True)

        def fails() -> None:
            tell(node, _getframe(1), found, name, sys.exc_info()[1])

        gone = frozenset(site.unset if site.kind == "loop" else {name})

        def forget() -> None:
            frame = _getframe(1)
            unset(node, frame, gone)
            if found:
                tell(node, frame, found, name, True)

        if site.kind == "enter":
            return [FixedTap(enter)]
        if site.kind == "exit":
            return [FixedTap(leave)]
        if site.kind in ("unset", "loop"):
            known = found or any(e.name in gone or e.name is None for e in node.elements)
            return [FixedTap(forget)] if known else []
        if not found or site.kind == "declared":
            return []
        if site.kind == "error":
            return [FixedTap(fails)]
        if not site.has_value:
            return [FixedTap(happens)]
        return [FixedTap(given_deep if deep else given, self.overridable and site.kind == "set")]
