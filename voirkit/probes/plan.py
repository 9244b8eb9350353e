"""A selector becomes a plan: for each function what is captured in it, what fires, and what must hold.

Names in conditions and tags are looked up here; the functions themselves are found in ``find.py``.  Nothing here
touches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any
from weakref import ref

from voirkit.errors import SelectorError, did_you_mean
from voirkit.probes import language
from voirkit.probes.grammar import LOOP, Parsed, ParsedFunction
from voirkit.probes.language import ABSENT

Check = Callable[[Any], bool]
HASHES_OF_TAG = {"enter": ("#enter", "#receive"), "exit": ("#yield", "#exit")}
GENERIC_HASHES = ("#enter", "#exit")


class Element:
    """One thing captured in a function.

    Attributes:
        name: ``x``, ``self.x``, ``#enter``, ``#loop_i``; None for a generic ``$x``.
        alias: Its name in events.
        focus: 1 if setting it makes an event (``>``, ``!``), 2 for ``!!``, else 0.
        tag: Name of the tag that the assignment must have, or None.
        check: Whether a value counts; None if any does.
    """

    __slots__ = ("alias", "check", "focus", "name", "source", "tag")

    def __init__(self, name: str | None, alias: str, focus: int, tag: str | None, check: Check | None, source: Any) -> None:
        self.name, self.alias, self.focus, self.tag, self.check = name, alias, focus, tag, check
        self.source = source  # ptera's element, shown by raw captures

    def matches(self, name: str, tags: frozenset[str], kind: str) -> bool:
        """Whether it captures a (hash) variable that is set with these tags; kinds are those of ``sites.Site``."""
        if kind == "unset":
            return False
        if self.tag is not None and self.tag not in tags and name not in HASHES_OF_TAG.get(self.tag, ()):
            return False
        if self.name is not None:
            return self.name == name
        if kind in ("read", "attribute", "stored", "each") or name.startswith("#"):
            return self.tag is not None or name in GENERIC_HASHES
        return True

    @property
    def loop(self) -> str | None:
        """``i`` for ``#loop_i`` and ``#endloop_i``."""
        found = LOOP.fullmatch(self.name or "")
        return found[1] if found else None


class Node:
    """One function in a selector: a call of it inside calls of its parent's.

    Attributes:
        function: As parsed.
        parent: The node of the enclosing call, or None.
        elements: What is captured in the function itself.
        children: The calls inside.
        has_focus: Whether it or a call inside has the focus.
    """

    def __init__(self, rule: Rule, function: ParsedFunction, parent: Node | None) -> None:
        self.rule, self.function, self.parent = rule, function, parent
        self.elements: list[Element] = []
        self.children: list[Node] = []

    @property
    def has_focus(self) -> bool:
        return any(e.focus for e in self.elements) or any(child.has_focus for child in self.children)

    def walk(self) -> Iterator[Node]:
        """The node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


class Rule:
    """A selector with its names looked up.

    Attributes:
        root: The outermost call.
        total: Whether there is one event at the end of the outer call, with all values, instead of one whenever the
        focus is set.
        raw: Whether events hold ``Capture`` objects.
        overridable: Whether the focus may be replaced.
        wrap: Name of the begin in a pair ``!a ... !!b``; None without a pair.
    """

    def __init__(self, parsed: Parsed, scope: Mapping[str, Any], *, raw: bool, total: bool | None, overridable: bool) -> None:
        self.parsed, self.raw, self.overridable = parsed, raw, overridable
        lookup = _Lookup(parsed, scope)
        self.root = self._node(parsed.tree, None, iter(parsed.functions), count(), lookup)
        self.nodes = list(self.root.walk())
        foci = [e for node in self.nodes for e in node.elements if e.focus]
        self.total = total if total is not None else not foci
        pair = {e.focus for e in foci} == {1, 2}
        self.wrap = next(e.alias for e in foci if e.focus == 1) if pair else None
        if overridable and self.total:
            raise parsed.focus.wrong("a probe that can override needs a variable to replace.",
                                     "Write FUNCTION > VARIABLE.")  # fmt: skip

    def _node(self, call: Any, parent: Node | None, functions: Iterator[ParsedFunction], numbers: Iterator[int], lookup: _Lookup) -> Node:
        # No function within a function: a cycle would keep the scope, and with it the program's objects, alive.
        node = Node(self, next(functions), parent)
        node.elements = [_element(e, lookup, f"/{next(numbers)}") for e in call.captures]
        node.children = [self._node(child, node, functions, numbers, lookup) for child in call.children]
        return node

    @property
    def names(self) -> set[str]:
        """What an event of a total has in it."""
        return {e.alias for node in self.nodes for e in node.elements if not e.alias.startswith("/")}


def plain_names(node: Node) -> list[str]:
    """The variables that a node captures by name."""
    return [e.name for e in node.elements if e.name is not None and not e.name.startswith("#")]


def _element(element: Any, lookup: _Lookup, number: str) -> Element:
    tag = None
    if element.category is not None:
        category = lookup.value(element.category)
        if not language.is_tag(category):
            raise lookup.parsed.focus.wrong(f"'{element.category}' is not a tag.", "A tag is written ':@Name'.")
        tag = str(category.name)
    check = None
    if element.value is not ABSENT:
        value = lookup.value(element.value)
        check = value.fn if isinstance(value, language.selector.MatchFunction) else equals(value)
        if not callable(check):
            raise lookup.parsed.focus.wrong(f"what follows '~' is a {type(check).__name__}, and can not be called.")
    return Element(element.name, element.capture or number, max(element.tags, default=0), tag, check, element)


def equals(expected: Any) -> Check:
    """A check by ``==``."""
    return lambda value: bool(expected == value)


def is_same(expected: Any) -> Check:
    """A check by identity, which keeps no object alive that the program lets go."""
    try:
        reference = ref(expected)
    except TypeError:  # of a class with slots: another object may get its identity when it is gone
        known = id(expected)
        return lambda value: id(value) == known
    return lambda value: value is reference()


class _Lookup:
    """The meaning of names in conditions and tags."""

    def __init__(self, parsed: Parsed, scope: Mapping[str, Any]) -> None:
        self.parsed, self.scope = parsed, scope

    def value(self, symbol: Any) -> Any:
        try:
            return symbol.eval(self)
        except SelectorError:
            raise
        except Exception as exc:  # a predicate factory of the user's may raise anything
            raise self.parsed.focus.wrong(f"a condition raised {type(exc).__name__}: {exc}.") from None

    def __call__(self, name: str) -> Any:
        if name.startswith("@"):
            return getattr(language.tag, name[1:])
        first, *rest = name.split(".")
        if first in self.scope:
            found = self.scope[first]
        elif not rest and hasattr(language.tools, first):
            return getattr(language.tools, first)  # every, between, lt ...: usable without an import
        else:
            raise self.parsed.focus.wrong(f"there is no '{first}' in scope.", did_you_mean(first, self.scope))
        for part in rest:
            found = getattr(found, part)
        return found
