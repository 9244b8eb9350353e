"""What taps could see in a function, found in its syntax tree by the very code that puts them in: so a check before the
run says what the run would say."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from voirkit.probes.comprehensions import apart
from voirkit.probes.names import FunctionNode, bound_in, outer_expressions, used_in
from voirkit.probes.sites import CanNot, Site
from voirkit.probes.tapper import tapper_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from voirkit.probes.sites import Tap
    from voirkit.probes.tapper import Tapper

# Kinds of sites (``sites.Site``)
HAPPENS_NOT = frozenset({"declared", "unset"})
REPLACEABLE = frozenset({"set", "value", "yield", "receive", "attribute"})


class Looker:
    """A listener that wants no taps, and notes what there is (``sites.Listener``)."""

    overridable = is_awake = is_total = False
    names: Sequence[str] = ()
    wanted: Sequence[str] = ()
    foci: Sequence[str] = ()

    def __init__(self) -> None:
        self.kinds: dict[str, set[str]] = {}

    def taps(self, site: Site) -> Sequence[Tap]:
        """None; notes the site."""
        self.kinds.setdefault(site.name, set()).add(site.kind)
        return ()


class Seen:
    """What can be seen in a function.

    Attributes:
        kinds: The kinds of sites (``sites.Site``) of each name.
        sights: What no tap can see, and what none can replace.
    """

    def __init__(self, node: FunctionNode) -> None:
        looker = Looker()
        self.sights = tapper_of(node, [looker], outside_of(node), None, {})
        self.sights.put()
        self.kinds = looker.kinds

    def happens(self, name: str) -> bool:
        """Whether it ever has a value."""
        return bool(self.kinds.get(name, set()) - HAPPENS_NOT)

    def is_replaceable(self, name: str) -> bool:
        """Whether a tap may replace the value."""
        return bool(self.kinds.get(name, set()) & REPLACEABLE)


_seen: WeakKeyDictionary[ast.AST, Seen] = WeakKeyDictionary()


def seen_in(node: FunctionNode) -> Seen:
    """What can be seen in a function; the tree stays as it is."""
    found = _seen.get(node)
    if found is None:
        found = _seen[node] = Seen(node)
    return found


def outside_of(node: FunctionNode) -> list[str]:
    """Names from outside that a function uses, or a scope inside it."""
    own = bound_in(node)
    body = [*outer_expressions(node), *([node.body] if isinstance(node, ast.Lambda) else node.body)]
    return [name for name in dict.fromkeys(name for part in body for name in used_in(part)) if name not in own]


def refusal(tapped: Tapper, wanted: Iterable[str], foci: Sequence[str], is_total: bool, is_replaced: bool) -> str:
    """Why what is wanted in a function can not be seen (or replaced), to follow the function's name; empty if it can.

    Args:
        tapped: That has put in taps.
        wanted: The names of captures.
        foci: Those of them that make an event.
        is_total: Whether the event comes at the end of the call.
        is_replaced: Whether the foci are to be replaced.
    """
    for name in wanted:
        if name in tapped.unseen:
            return f"can not be probed for '{name}': {tapped.unseen[name]}"
        if is_replaced and name in tapped.fixed:
            return f"can not be probed for '{name}' to replace it: {tapped.fixed[name]}"
    if is_total and "#exit" in tapped.unseen:
        return f"can not be probed without a focus: that is an event at the end of the call, and {tapped.unseen['#exit']}"
    return apart(tapped, wanted, foci)


def check(tapped: Tapper) -> None:
    """Make sure that taps which have been put in see all that their listeners want.

    Raises:
        CanNot: They do not.
    """
    for listener in tapped.listeners:
        problem = refusal(tapped, listener.wanted, listener.foci, listener.is_total, listener.overridable)
        if problem:
            raise CanNot(problem)


__all__ = ["Seen", "check", "outside_of", "refusal", "seen_in"]
