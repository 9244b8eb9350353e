"""Taps for the variables of comprehensions and generator expressions.

Since python 3.12 a comprehension is compiled into its function, before that it is code of its own, as a generator expression still is:
here its variables can be named in either.  What a name means in the function itself comes first; a comprehension's variable of that name
is then left alone.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from voirkit.probes.calls import names, one_of
from voirkit.probes.names import COMPREHENSIONS, FunctionNode, bound, bound_in, dotted, inside
from voirkit.probes.sites import Site

if TYPE_CHECKING:
    from collections.abc import Iterable

    from voirkit.probes.tapper import Tapper

FIXED = "a comprehension (line {line}) sets it, and allows no other value."


def only_in_comprehensions(node: FunctionNode, outside: Iterable[str]) -> dict[str, int]:
    """The variables of a function's comprehensions that mean nothing else in it, and the line of the first.

    Args:
        node: The function.
        outside: Names from outside that it reads.
    """
    found: dict[str, int] = {}
    for part in [node.body] if isinstance(node, ast.Lambda) else node.body:
        for at in inside(part, also=True):
            for generator in at.generators if isinstance(at, COMPREHENSIONS) else ():
                for name in bound(generator.target):
                    found.setdefault(name, generator.target.lineno)
    if not found:
        return {}
    own = {*bound_in(node), *outside}
    return {name: line for name, line in found.items() if name not in own}


def put(tapper: Tapper, node: Any) -> Any:
    """Put the taps into a comprehension: before the expression that comes next when a ``for`` has set its variables."""
    first = node.generators[0]
    first.iter = tapper.inner(first.iter)  # evaluated outside, and first
    around, tapper.around = tapper.around, tapper.around.union(*(bound(g.target) for g in node.generators))
    tapper.deep += 1
    sure: set[str] = set()
    calls: list[ast.expr] = []
    for generator in node.generators:
        if generator is not first:
            generator.iter = one_of([*calls, tapper.inner(generator.iter)], -1)
            calls = []
        generator.target = tapper.inner(generator.target)
        for at in ast.walk(generator.target):
            if isinstance(at, ast.Attribute) and isinstance(at.ctx, ast.Store) and (attribute := dotted(at)):
                tapper.unseen[attribute] = f"a comprehension sets it (line {at.lineno}), where no tap can see it."
        set_here = bound(generator.target)
        sure |= tapper.each.keys() & set_here
        for n, name in enumerate(set_here):
            calls += _calls(tapper, name, set_here[n + 1 :], sure) if name in tapper.each else []
        for n, test in enumerate(generator.ifs):
            generator.ifs[n] = one_of([*calls, tapper.inner(test)], -1)
            calls = []
    for field in ("key", "value", "elt"):
        if hasattr(node, field):
            setattr(node, field, one_of([*calls, tapper.inner(getattr(node, field))], -1))
            calls = []
    tapper.deep -= 1
    tapper.around = around
    return node


def _calls(tapper: Tapper, name: str, later: list[str], sure: set[str]) -> list[ast.expr]:
    """Calls of the taps of a variable that has been set."""
    site = Site("each", name, [other for other in later if other != name])
    found: list[ast.expr] = []
    for tap in tapper.taps(site):
        direct = sure.issuperset(tap.reads)
        function = tap.make(tap.reads) if direct else tapper.slow(tap, site)
        found.append(ast.Call(tapper.mark(function), names([name, *(tap.reads if direct else ())]), []))
    return found


def apart(tapper: Tapper, wanted: Iterable[str], foci: Iterable[str]) -> str:
    """Why what is wanted can not be had together, to follow the function's name; empty if it can.

    Args:
        tapper: That has put in taps.
        wanted: The names of captures.
        foci: Those of them that make an event.
    """
    for name in wanted:
        for focus in foci if name not in foci else ():
            what = f"can not be probed for '{focus}' together with '{name}': "
            if name in tapper.each and name not in tapper.inner_at.get(focus, ()):
                return f"{what}that is a variable of a comprehension (line {tapper.each[name]}), and has no value there."
            if name in tapper.hidden_at.get(focus, ()):
                return f"{what}in the comprehension there that name means another variable."
    return ""
