"""Taps for the variables of comprehensions and generator expressions: a first ``if`` after each ``for``, which always holds.

Since python 3.12 a comprehension is compiled into its function, before that it is code of its own, as a generator expression still is:
here its variables can be named in either.  What a name means in the function itself comes first; a comprehension's variable of that name
is then left alone.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from voirkit.probes.calls import at_place, names
from voirkit.probes.names import COMPREHENSIONS, FunctionNode, bound, bound_in, inside
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
    """Put the taps into a comprehension."""
    first = node.generators[0]
    first.iter = tapper.inner(first.iter)  # evaluated outside, and first
    around, tapper.around = tapper.around, tapper.around.union(*(bound(g.target) for g in node.generators))
    tapper.deep += 1
    sure: set[str] = set()
    for generator in node.generators:
        if generator is not first:
            generator.iter = tapper.inner(generator.iter)
        generator.target = tapper.inner(generator.target)
        set_here = bound(generator.target)
        sure |= tapper.each.keys() & set_here
        taps = [test for n, name in enumerate(set_here) if name in tapper.each for test in _tests(tapper, name, set_here[n + 1 :], sure)]
        generator.ifs = [at_place(test, generator.target) for test in taps] + [tapper.inner(test) for test in generator.ifs]
    for field in ("key", "value", "elt"):
        if hasattr(node, field):
            setattr(node, field, tapper.inner(getattr(node, field)))
    tapper.deep -= 1
    tapper.around = around
    return node


def _tests(tapper: Tapper, name: str, later: list[str], sure: set[str]) -> list[ast.expr]:
    """Calls of the taps of a variable, as conditions that hold whatever they return."""
    site = Site("each", name, [other for other in later if other != name])
    found: list[ast.expr] = []
    for tap in tapper.taps(site):
        direct = sure.issuperset(tap.reads)
        function = tap.make(tap.reads) if direct else tapper.slow(tap, site)
        call = ast.Call(tapper.mark(function), names([name, *(tap.reads if direct else ())]), [])
        holds = ast.Compare(call, [ast.Is()], [ast.Constant(None)])  # by identity: what it returns is the program's
        found.append(ast.BoolOp(ast.Or(), [holds, ast.Constant(True)]))
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
