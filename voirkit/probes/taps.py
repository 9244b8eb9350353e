"""Taps: the functions that probed code calls at its sites, and that make the events of a probe.

For a selector within one function, a tap reads all captured variables at the site. Its code is
generated: a few lines of Python with a fixed number of arguments, compiled once for all sites of
the same shape. So an event costs one call, one dictionary and the subscriber
(``benchmarks/probes.py``). All taps of a probe share the cell that holds the function which
receives events (``engine.Outlet``), so that it can be exchanged. Selectors that span several calls,
and totals, keep the captures of running calls in a ``Memory``.
"""

from __future__ import annotations

import ast
import builtins
import sys
from dataclasses import dataclass
from functools import cache
from itertools import count
from types import CodeType, FunctionType
from typing import Any

from voirkit.probes.selector import Element, Node, Rule, plain_names
from voirkit.probes.source import mangled
from voirkit.probes.tap_emitter import REPLACEABLE, FixedTap, locals_of
from voirkit.streams import MEANT, in_turn, threads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from voirkit.probes.engine import Outlet
    from voirkit.probes.tap_emitter import Site, Tap


class Capture:
    """One capture of a raw event.

    Attributes:
        element: The part of the selector that made the capture (ptera's ``Element``).
        capture: The name of the capture in the event.
        names: The names of the captured variables.
        values: The values of these variables.
    """

    __slots__ = ("capture", "element", "names", "values")

    def __init__(self, element: Any, capture: str, names: list[str], values: list[Any]) -> None:
        self.element = element
        self.capture = capture
        self.names = names
        self.values = values

    @property
    def name(self) -> str:
        """The name of the variable. Raises ValueError if the capture has none or several."""
        name = getattr(self.element, "name", None)
        return str(self._only(self.names, "name") if name is None else name)

    @property
    def value(self) -> Any:
        """The captured value. Raises ValueError if the capture has none or several."""
        return self._only(self.values, "value")

    def _only(self, items: list[Any], kind: str) -> Any:
        if len(items) != 1:
            raise ValueError(f"{'Several' if items else 'No'} {kind}s for capture '{self.capture}'")
        return items[0]

    def __repr__(self) -> str:
        return f"Capture({self.capture}, names={self.names})"


_ids = count(1)
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_LINE = sys._getframe().f_lineno  # the line that tracebacks show for a tap
TRUE = "True"  # the source of a hash variable (#enter ...) without a value: events hold True
VALUE = "<value>"  # the source of the site's value; no variable can have this name
_PARAMETER = "value"  # the parameter of a tap's function that takes the site's value


class NeedsMemory(Exception):
    """Raised if a selector captures a value that cannot be read at the site of the event, so that a
    ``Memory`` must keep it."""


def may_need_memory(node: Node) -> bool:
    """True if a selector might need a ``Memory``; for a function that is not defined yet and cannot
    be inspected."""
    if node.rule.total or len(node.rule.nodes) > 1:
        return True
    if len(node.elements) == 1:
        return False
    loops = {element.loop for element in node.elements} - {None}
    return any(_may_be_unreadable(element, len(loops)) for element in node.elements)


def _may_be_unreadable(element: Element, loop_count: int) -> bool:
    name = element.name
    if name is None or "." in name or (element.tag is not None and not element.focus):
        return True
    if not name.startswith("#") or name == "#enter":
        return False
    return not (element.loop and element.focus and loop_count == 1)


class NodeListener:
    """The base class of listeners (``tap_emitter.Listener``) for one function of a selector;
    subclasses add the taps."""

    is_awake = False

    def __init__(self, node: Node) -> None:
        self.node = node
        self.overridable = node.rule.overridable
        # for each part of the selector (``Element``), the kinds of sites that match the part
        self.hit: dict[Element, set[str]] = {}
        self.names: Sequence[str] = plain_names(node)
        self.captured: Sequence[str] = [
            element.name for element in node.elements if element.name is not None
        ]
        self.foci: Sequence[str] = [
            element.name or "" for element in node.elements if element.focus
        ]
        self.is_total = False

    def elements_at(self, site: Site) -> tuple[Element, ...]:
        """Return the parts of the selector that match a site, and note the site's kind for each."""
        elements = tuple(
            element
            for element in self.node.elements
            if element.matches(site.name, site.tags, site.kind)
        )
        for element in elements:
            self.hit.setdefault(element, set()).add(site.kind)
        return elements


class LocalListener(NodeListener):
    """The taps for a selector within one function, which read all captures at the site.

    Raises:
        NeedsMemory: The selector is of another kind. Raised by the constructor or by ``taps``.
    """

    def __init__(self, node: Node, outlet: Outlet) -> None:
        super().__init__(node)
        self.outlet = outlet
        if node.rule.total or len(node.rule.nodes) > 1:
            raise NeedsMemory
        self._open: dict[int, int] = {}
        foci = [element for element in node.elements if element.focus]
        names = {element.name for element in foci}
        always = [{"#enter", "#exit"}]
        always += [{f"#loop_{element.loop}", f"#endloop_{element.loop}"} for element in foci]
        self.always_ends = len(names) == 2 and names in always

    def taps(self, site: Site) -> Sequence[Tap]:
        """Return one tap for each focus that matches the site; for pairs (``!`` and ``!!``) also
        those that drop an open pair."""
        if site.kind == "unset":
            return ()
        elements = self.elements_at(site)
        if site.kind == "declared":
            return ()
        taps: list[Tap] = [
            LocalTap(self, site, element, self._sources(site, element))
            for element in elements
            if element.focus
        ]
        if self.node.rule.wrap is None or self.always_ends:
            return taps
        # Drop a pair that is still open when the call ends: the frame of another call may get the
        # same address. (A lambda that raises has no exit tap; so open pairs are also dropped at
        # entry.)
        if site.kind not in ("enter", "exit"):
            return taps
        open_pairs = self._open
        drop = self.outlet.dropped
        _getframe = sys._getframe

        def drop_pair() -> None:
            key = id(_getframe(1))
            open_pairs.pop(key, None)
            drop(key)

        ending = FixedTap(drop_pair)
        return [ending, *taps] if site.kind == "enter" else [*taps, ending]

    def _sources(self, site: Site, focus: Element) -> list[tuple[Element, str]]:
        """Return the source of each capture of an event: the name of a variable, TRUE, or VALUE
        (the site's own value)."""
        sources: list[tuple[Element, str]] = []
        for element in self.node.elements:
            if element is focus:
                continue
            source = self._source(site, focus, element)
            if source:
                sources.append((element, source))
        has_value = site.has_value or site.kind == "error"
        sources.append((focus, VALUE if has_value else TRUE))
        return sources

    def _source(self, site: Site, focus: Element, element: Element) -> str:
        name = element.name
        if focus.focus == 1 and element.focus == 2:
            return ""  # the begin event of a pair has no captures of the end
        if name is None or element.tag is not None or "." in name:
            raise NeedsMemory
        if name.startswith("#"):
            return self._source_of_event(site, name, element.loop)
        if name in site.unset:
            return ""
        return VALUE if name == site.name and site.has_value else name

    def _source_of_event(self, site: Site, name: str, loop: str | None) -> str:
        if name == "#enter":
            return TRUE
        if name == "#exit" or (name in ("#value", "#error") and site.kind != "exit"):
            return ""
        if not loop or not name.startswith("#loop_"):
            raise NeedsMemory
        if loop in site.loops or site.name == f"#endloop_{loop}":
            return TRUE
        raise NeedsMemory


@dataclass(frozen=True)
class TapShape:
    """The properties that determine the code of a tap; taps of equal shape share one code
    object."""

    reads: int  # number of variables among the arguments, after the value
    has_value: bool  # the first argument is the site's value
    returns: bool  # the tap returns the value
    replaces: bool  # a subscriber may replace the value
    step: str | None  # ``begin`` or ``end`` of a pair; None if the selector has no pairs
    always_ends: bool  # each pair that begins also ends
    name: str | None  # the name of the pair in events; None without pairs
    raw: bool  # events hold ``Capture`` objects
    items: tuple[tuple[str, str], ...]  # items of the event: name, and source text of the value
    checked: tuple[str, ...]  # source text of each value that has a condition
    depth: int  # number of frames from the tap's frame up to that of the probed function
    is_deep: bool  # the tap's caller may be the frame of a comprehension


class LocalTap:
    """The ``tap_emitter.Tap`` of a ``LocalListener`` at one site."""

    def __init__(
        self,
        listener: LocalListener,
        site: Site,
        focus: Element,
        sources: list[tuple[Element, str]],
    ) -> None:
        self.listener = listener
        self.site = site
        self.sources = sources
        self.replaces = listener.overridable and site.kind in REPLACEABLE
        variables = [source for _, source in sources if source not in (TRUE, VALUE)]
        self.reads = tuple(dict.fromkeys(variables))
        self.step: str | None = None
        if listener.node.rule.wrap is not None:
            self.step = "begin" if focus.focus == 1 else "end"

    def bind(self, reads: Sequence[str], depth: int = 1) -> Callable[..., Any]:
        listener = self.listener
        site = self.site
        rule = listener.node.rule
        sources = self._readable_sources(reads)
        in_event = [(element, place) for element, place in sources if _is_in_events(element.alias)]
        checked = [(element, place) for element, place in sources if element.check is not None]
        shape = TapShape(
            reads=len(reads),
            has_value=site.has_value,
            returns=site.is_expression or self.replaces,
            replaces=self.replaces,
            step=self.step,
            always_ends=listener.always_ends,
            name=rule.wrap,
            raw=rule.raw,
            items=tuple((element.alias, place) for element, place in in_event),
            checked=tuple(place for _, place in checked),
            depth=depth,
            is_deep=site.is_deep,
        )
        names = {
            "__builtins__": builtins,
            "exc_info": sys.exc_info,
            "_getframe": sys._getframe,
            "ids": _ids,
            "open": listener._open,
            "checks": [element.check for element, _ in checked],
            "passes": listener.outlet.passes,
            "ask": listener.outlet.fire_replacing,
            "Capture": Capture,
            "threads": threads,
            "MEANT": MEANT,
            "owner_of": owner_of,
            "in_turn": in_turn,
        }
        if rule.raw:
            names["elements"] = [
                (element.source, element.alias, element.name or site.name)
                for element, _ in in_event
            ]
        return _tap_function(shape, names, listener.outlet)

    def _readable_sources(self, reads: Sequence[str]) -> list[tuple[Element, str]]:
        """Return the captures whose source can be read if the variables ``reads`` are bound, each
        with its source text in the tap's code."""
        expressions = {name: f"a{number}" for number, name in enumerate(reads)}
        expressions[TRUE] = "True"
        expressions[VALUE] = _PARAMETER if self.site.has_value else "exc_info()[1]"
        return [
            (element, expressions[source])
            for element, source in self.sources
            if source in expressions
        ]

    def bind_to_frame(self) -> Callable[..., Any]:
        reads = self.reads
        deep = self.site.is_deep
        inner = self.site.inner
        functions: dict[tuple[str, ...], Callable[..., Any]] = {}

        def tap(*value: Any) -> Any:
            values = values_of(sys._getframe(1), reads, deep, inner)
            bound_names = tuple(values)
            function = functions.get(bound_names)
            if function is None:
                function = functions[bound_names] = self.bind(bound_names, 2)
            return function(*value, *values.values())

        return tap


def _is_in_events(alias: str) -> bool:
    return not alias.startswith("/")


@cache
def _tap_code(shape: TapShape) -> CodeType:
    parameters = [_PARAMETER] if shape.has_value else []
    parameters += [f"a{number}" for number in range(shape.reads)]
    lines = ["def make(emit, failed, count, begin, end):"]
    lines.append(f"    def tap({', '.join(parameters)}):")
    lines.append("        nonlocal count")
    lines += [f"        {line}" for line in _tap_body(shape)]
    lines.append("    return tap\n")
    names: dict[str, Any] = {}
    tree = ast.parse("\n".join(lines))
    # Tracebacks show one fixed line of this file for all generated code.
    for node in ast.walk(tree):
        if "lineno" in node._attributes:
            node.lineno = node.end_lineno = _LINE  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = -1  # type: ignore[attr-defined]
    # compiled under the name of this file, since dynamo skips all files of this folder
    exec(compile(tree, __file__, "exec"), names)
    return names["make"](*[None] * 5).__code__  # type: ignore[no-any-return]


def _tap_body(shape: TapShape) -> list[str]:
    """Return the lines in the body of a tap's function."""
    give_back = f"return {_PARAMETER}" if shape.returns else "return"
    body: list[str] = []
    if shape.checked:
        body.append(f"if not passes(checks, ({', '.join(shape.checked)},)):")
        body.append(f"    {give_back}")
    frame = f"_getframe({shape.depth})"
    if shape.is_deep:
        frame = f"(owner_of({frame}) or {frame})"
    event = _event_text(shape)
    if shape.replaces:
        if shape.step:
            body.append(_number_pair(shape.step, frame))
        body.append(f"return ask({event}, {_PARAMETER})")
        return body
    body += [
        "try:",
        *(f"    {line}" for line in _send_event(shape, event, frame)),
        "    count += 1",
        "except MEANT:",
        "    raise",
        "except BaseException as exc:",
        "    if failed(exc):",
        "        raise",
    ]
    if shape.returns:
        body.append(give_back)
    return body


def _event_text(shape: TapShape) -> str:
    """Return the source text of the dictionary that a tap creates for an event."""
    items = []
    for number, (alias, place) in enumerate(shape.items):
        value = place
        if shape.raw:
            value = f"Capture(*elements[{number}][:2], [elements[{number}][2]], [{place}])"
        items.append(f"{alias!r}: {value}")
    if shape.step:
        items.append(f"'$wrap': {{'id': number, 'name': {shape.name!r}, 'step': {shape.step!r}}}")
    return f"{{{', '.join(items)}}}"


def _number_pair(step: str, frame: str) -> str:
    """Return the source line that sets ``number``, which identifies a pair."""
    if step == "begin":
        return f"number = open[id({frame})] = next(ids)"
    return f"number = open.pop(id({frame}), 0)"


def _send_event(shape: TapShape, event: str, frame: str) -> list[str]:
    """Return the source lines that send an event."""
    send = f"in_turn(emit, {event}) if threads() else emit({event})"
    if not shape.step:
        return [send]
    number = _number_pair(shape.step, frame)
    # The key of a pair is the frame, or only the frame's id if the pair may never end: the key
    # would keep the frame alive.
    key = frame if shape.always_ends else f"id({frame})"
    if shape.step == "begin":
        return [
            "if begin is None:",
            f"    {number}",
            f"    {send}",
            "elif threads():",
            f"    in_turn(begin, {key})",
            "else:",
            f"    begin({key})",
        ]
    return [
        "if end is None:",
        f"    {number}",
        f"    {send}",
        "else:",
        "    number = count",
        "    if threads():",
        f"        in_turn(end, {key}, {event})",
        "    else:",
        f"        end({key}, {event})",
    ]


def _tap_function(shape: TapShape, names: dict[str, Any], outlet: Outlet) -> FunctionType:
    code = _tap_code(shape)
    cells = {
        "emit": outlet.emit,
        "failed": outlet.failed,
        "count": outlet.count,
        "begin": outlet.begin,
        "end": outlet.end,
    }
    closure = tuple(cells[name] for name in code.co_freevars)
    return FunctionType(code, names, "tap", None, closure)


def owner_of(frame: Any) -> Any:
    """Return the frame of the function that a comprehension's frame belongs to, or the frame itself
    if it is no comprehension's; None if unknown."""
    while frame is not None and frame.f_code.co_name in _COMPREHENSIONS:
        frame = _frame_around(frame)
    return frame


def _frame_around(frame: Any) -> Any:
    """Return the frame whose code contains a comprehension; None if unknown.

    The consumer of a generator expression may be another function, or another call of the same one.
    If the caller's code does not contain the comprehension, the whole stack is searched, and a
    frame is returned only if exactly one matches.
    """
    code = frame.f_code
    caller = frame.f_back
    if caller is None or not _makes(caller.f_code, code):
        makers = []
        while caller is not None:
            if _makes(caller.f_code, code):
                makers.append(caller)
            caller = caller.f_back
        caller = makers[0] if len(makers) == 1 else None
    return caller


def _makes(code: CodeType, inner: CodeType) -> bool:
    return any(const is inner for const in code.co_consts)


def values_of(
    frame: Any, names: Sequence[str], deep: bool, inner: frozenset[str]
) -> dict[str, Any]:
    """Return the values of those of the named variables that are bound.

    Args:
        frame: The frame of a function or, if ``deep``, possibly of a comprehension in it (before
            Python 3.12, and for generator expressions).
        inner: The names that comprehension frames are searched for too.
    """
    values: dict[str, Any] = {}
    while deep and frame is not None and frame.f_code.co_name in _COMPREHENSIONS:
        missing = [name for name in names if name in inner and name not in values]
        values = _own_values(frame, missing, False) | values
        frame = _frame_around(frame)
    if frame is not None:
        missing = [name for name in names if name not in values]
        values |= _own_values(frame, missing, True)
    return {name: values[name] for name in names if name in values}


def _own_values(frame: Any, names: Sequence[str], also_global: bool) -> dict[str, Any]:
    code = frame.f_code
    variables = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    keys = {name: mangled(name, code) for name in names}
    values = locals_of(frame, [key for key in keys.values() if key in variables])
    if also_global:  # but a global never in place of an unbound local variable of the same name
        module = frame.f_globals
        for key in keys.values():
            if key not in variables and key in module:
                values[key] = module[key]
    return {name: values[key] for name, key in keys.items() if key in values}


# Selectors across calls, and totals. Each call of a function in such a selector has a record from
# the first to the last statement of the call, stored by the id of the call's frame. When a call
# begins, the calls around it are found by walking up the stack. So threads and tasks do not see
# each other's calls, and the consumer of a generator does not count as called by the generator.

Caught = tuple[Element, list[str], list[Any]]


class Record:
    """The captures of one call, linked to the captures of the calls around it.

    Attributes:
        parent: The record of the call around this one; None for the outermost.
        is_leaf: True if the record holds one value of the focus variable, in a total.
        tested: By element with a condition: its values. They are stored apart from ``caught``,
            since a capture of another call may have the same name.
        number: Identifies a pair of ``!`` and ``!!``.
    """

    __slots__ = ("caught", "children", "is_leaf", "number", "parent", "tested")

    def __init__(self, parent: Record | None, keeps: bool = False, is_leaf: bool = False) -> None:
        self.parent = parent
        self.is_leaf = is_leaf
        self.number = 0
        # by name of the capture: element of the selector, names and values of the variables
        self.caught: dict[str, Caught] = {}
        self.tested: dict[Element, list[Any]] = {}
        # only for totals: the records of calls inside this one, and the leaves (one for each value
        # of the focus variable)
        self.children: list[Record] = []
        if keeps and parent is not None:
            parent.children.append(self)

    def all(self) -> dict[str, Caught]:
        """Return the captures of this call and of the calls around it. If two have the same name,
        the innermost wins."""
        captures: dict[str, Caught] = {}
        record: Record | None = self
        while record is not None:
            for name, caught in record.caught.items():
                captures.setdefault(name, caught)
            record = record.parent
        return captures

    def values_of(self, element: Element) -> list[Any]:
        """Return the values that this record, or the nearest one around it, has for an element with
        a condition."""
        record: Record | None = self
        while record is not None:
            if element in record.tested:
                return record.tested[element]
            record = record.parent
        return []

    def leaves(self) -> list[Record]:
        if self.is_leaf:
            return [self]
        return [leaf for child in self.children for leaf in child.leaves()]

    @property
    def root(self) -> Record:
        record = self
        while record.parent is not None:
            record = record.parent
        return record


class Memory:
    """The records of the running calls of the functions in one rule, a selector's plan.

    They are stored by function and by the id of the call's frame.
    """

    def __init__(self, rule: Rule, outlet: Outlet) -> None:
        self.rule = rule
        self.outlet = outlet
        self.is_on = True
        self.running: dict[Node, dict[int, list[Record]]] = {node: {} for node in rule.nodes}
        # The code of each running lambda. The end of a lambda that raises is not seen, so the frame
        # of another function may later have the same id.
        self.lambdas: dict[tuple[Node, int], CodeType] = {}
        elements = [element for node in rule.nodes for element in node.elements]
        self.checked = [element for element in elements if element.check is not None]

    def end(self) -> None:
        """Forget all records and make no new ones."""
        self.is_on = False
        for running in self.running.values():
            running.clear()
        self.lambdas.clear()

    def enter_call(self, node: Node, frame: Any) -> None:
        """Create the records of a call of the function ``node``, if it is inside a call of the
        function around it in the selector."""
        if not self.is_on:
            return
        if frame.f_code.co_name == "<lambda>":
            self.lambdas[node, id(frame)] = frame.f_code
        if node.parent is None:
            self.running[node][id(frame)] = [Record(None)]
            return
        outer = self.running[node.parent]
        missing = len(outer)  # the search ends when all running outer calls have been found
        forks = node.has_focus
        keeps = self.rule.total
        records: list[Record] = []
        caller = frame.f_back
        while missing and caller is not None:
            around = outer.get(id(caller))
            if (
                around is not None
                and self.lambdas.get((node.parent, id(caller)), caller.f_code) is caller.f_code
            ):
                missing -= 1
                if forks:
                    records += [Record(record, keeps) for record in around]
                else:
                    records += around
            caller = caller.f_back
        if records:
            self.running[node][id(frame)] = records

    def leave_call(self, node: Node, frame: Any) -> None:
        """Remove the records of a call; at the end of the outermost call, fire the events of a
        total, one for each record in which all variables were caught."""
        records = self.running[node].pop(id(frame), ())
        self.lambdas.pop((node, id(frame)), None)
        if self.rule.total and node.parent is None:
            for record in records:
                for leaf in record.leaves() or [record]:
                    caught = leaf.all()
                    names = {name for name in caught if not name.startswith("/")}
                    if names >= self.rule.names:
                        self.fire(caught, leaf)

    def set(
        self, node: Node, frame: Any, elements: Sequence[Element], name: str, value: Any
    ) -> Any:
        """Record the new value of a variable, and fire events if it is the focus. Returns the
        value, or its replacement."""
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
                target = Record(record, True, True) if element.focus else record
                if element.check is not None:
                    target.tested.setdefault(element, []).append(value)
                _, names, values = target.caught.setdefault(element.alias, (element, [], []))
                names.append(name)
                values.append(value)
        if not total and not self.rule.overridable:
            for element in elements:
                if element.focus:
                    for record in records:
                        if self.rule.wrap:
                            captures = self.of_pair(record, element)
                        else:
                            captures = record.all()
                        self.fire(captures, record, element)
        return value

    def fire_replacing(
        self, records: list[Record], elements: Sequence[Element], name: str, value: Any
    ) -> Any:
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
                        if replaced is not value:
                            new = replaced
        return new

    def of_pair(self, record: Record, element: Element) -> dict[str, Caught]:
        """Return the captures for one event of a pair; the begin event has none of the end's."""
        is_end = element.focus == 2
        return {
            name: caught for name, caught in record.all().items() if is_end or caught[0].focus != 2
        }

    def unset(self, node: Node, frame: Any, names: frozenset[str]) -> None:
        """Remove the captures of variables that the program deletes or is about to set again."""
        if self.rule.total:
            return
        own_elements = node.elements
        for record in self.running[node].get(id(frame), ()):
            aliases = [
                alias
                for alias, (element, captured, _) in record.caught.items()
                if captured[0] in names and element in own_elements
            ]
            for alias in aliases:
                element = record.caught.pop(alias)[0]
                record.tested.pop(element, None)
            tested = [
                element
                for element in record.tested
                if element.name in names and element in own_elements
            ]
            for element in tested:
                del record.tested[element]

    def fire(
        self, caught: dict[str, Caught], record: Record, element: Element | None = None
    ) -> None:
        event = self.event(caught, record)
        if event is None:
            return
        if self.rule.wrap is not None and element is not None:
            root = record.root
            if element.focus == 1:
                root.number = next(_ids)
                step = "begin"
            else:
                step = "end"
            event["$wrap"] = {"id": root.number, "name": self.rule.wrap, "step": step}
        self.outlet.fire(event)

    def event(self, caught: dict[str, Caught], record: Record) -> dict[str, Any] | None:
        """Return the event with these captures; None if a condition is false, or if a capture has
        several values and the rule is not raw."""
        for element in self.checked:
            values = record.values_of(element)
            if not self.outlet.passes([element.check] * len(values), values):
                return None
        if self.rule.raw:
            return {
                alias: Capture(element.source, alias, list(names), list(values))
                for alias, (element, names, values) in caught.items()
                if not alias.startswith("/")
            }
        for alias, (_, _, values) in caught.items():
            if len(values) > 1 and not alias.startswith("/"):
                message = (
                    f"'{alias}' was set several times in a call; raw=True gives all the values"
                )
                self.outlet.complain(ValueError(message))
                return None
        return {
            alias: values[0]
            for alias, (_, _, values) in caught.items()
            if not alias.startswith("/")
        }


class MemoryListener(NodeListener):
    """The taps, in one function of a rule, that keep the rule's ``Memory`` up to date."""

    def __init__(self, memory: Memory, node: Node) -> None:
        super().__init__(node)
        self.memory = memory
        if memory.rule.total:
            self.foci = []
            self.is_total = node.parent is None

    def taps(self, site: Site) -> Sequence[FixedTap]:
        memory = self.memory
        node = self.node
        elements = self.elements_at(site)
        name = site.name
        unset_names = site.unset if site.kind == "loop" else frozenset({name})
        _getframe = sys._getframe
        set_value = memory.set
        unset = memory.unset

        def enter() -> None:
            frame = _getframe(1)
            memory.enter_call(node, frame)
            if elements:
                set_value(node, frame, elements, name, True)

        def leave() -> None:
            frame = _getframe(1)
            if elements:
                set_value(node, frame, elements, name, True)
            memory.leave_call(node, frame)

        def set_variable(value: Any) -> Any:
            return set_value(node, _getframe(1), elements, name, value)

        def set_in_comprehension(value: Any) -> Any:
            frame = owner_of(_getframe(1))
            return set_value(node, frame, elements, name, value) if frame is not None else value

        def happen() -> None:
            set_value(node, _getframe(1), elements, name, True)

        def fail() -> None:
            set_value(node, _getframe(1), elements, name, sys.exc_info()[1])

        def forget() -> None:
            frame = _getframe(1)
            unset(node, frame, unset_names)
            if elements:
                set_value(node, frame, elements, name, True)

        if site.kind == "enter":
            return [FixedTap(enter)]
        if site.kind == "exit":
            return [FixedTap(leave)]
        if site.kind in ("unset", "loop"):
            return [FixedTap(forget)] if elements or self._captures_any(unset_names) else []
        if not elements or site.kind == "declared":
            return []
        if site.kind == "error":
            return [FixedTap(fail)]
        if not site.has_value:
            return [FixedTap(happen)]
        function = set_in_comprehension if site.is_deep else set_variable
        return [FixedTap(function, self.overridable and site.kind == "set")]

    def _captures_any(self, names: frozenset[str]) -> bool:
        return any(element.name is None or element.name in names for element in self.node.elements)
