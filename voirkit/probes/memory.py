"""Taps that remember: for selectors across calls, and for totals.

Each call of a function that a selector names gets a record, under the identity of its frame, from its first statement
to its last. Which calls are around another is read off the stack of frames when that one begins. So threads and tasks
do not see each other's calls, and who consumes a generator is not inside it.
"""

from __future__ import annotations

import sys
from itertools import count
from typing import Any

from voirkit.probes.selector.grammar import Element, Node, Rule, plain_names
from voirkit.probes.tap_emitter import FixedTap
from voirkit.probes.taps import Capture, Outlet, owner_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType

    from voirkit.probes.tap_emitter import Site


_numbers = count(1)
Caught = tuple[Element, list[str], list[Any]]


class Record:
    """What has been captured in one call; it shares what the calls around it have captured.

    Attributes:
        parent: The record of the call around it.
        children: Of a total: the records within, one for each value of the focus.
        is_leaf: Whether it is that of one value of the focus.
        caught: Element, names and values under each name of a capture.
        tested: The values of each element with a condition: another call's capture may have the same name.
        number: Tells the pairs of ``!`` and ``!!`` apart.
    """

    __slots__ = ("caught", "children", "is_leaf", "number", "parent", "tested")

    def __init__(self, parent: Record | None, keeps: bool = False, is_leaf: bool = False) -> None:
        self.parent, self.is_leaf, self.number = parent, is_leaf, 0
        self.caught: dict[str, Caught] = {}
        self.tested: dict[Element, list[Any]] = {}
        self.children: list[Record] = []
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
                root.number = next(_numbers)
            event["$wrap"] = {
                "id": root.number,
                "name": self.rule.wrap,
                "step": "begin" if element.focus == 1 else "end",
            }
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
