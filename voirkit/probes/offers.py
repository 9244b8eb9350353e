"""What a source file offers to probe: for each function its variables, loops and returns, with a selector to paste.

Each selector has passed the check that every run makes, so that none is offered which a voirfile could not use; what
fails is listed all the same, with the reason.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from voirkit.errors import SelectorError
from voirkit.probes.selectors import check_all, parse
from voirkit.probes.top_level import is_top as is_top_level
from voirkit.probes.training import batch_name, counts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal, TypeAlias

    from voirkit.probes.catalogue import Catalogue, Function, Loop

    Kind: TypeAlias = Literal["parameter", "variable", "loop", "return", "yield"]


_DEFINED = frozenset({"import", "def", "class", "type"})  # what a module's names are mostly set to, and nobody means to watch


@dataclass(frozen=True, slots=True)
class Offer:
    """One thing in a function.

    Attributes:
        kind: What it is.
        names: The variable; all names of a loop's target; nothing for returns and yields.
        lines: Where: the first value of a variable, the ``for``, each ``return`` or ``yield``.
        selectors: Ready to paste, the most useful first; empty if it can not be probed.
        refused: Why not; empty if it can.
    """

    kind: Kind
    names: tuple[str, ...]
    lines: tuple[int, ...]
    selectors: tuple[str, ...]
    refused: str


@dataclass(frozen=True, slots=True)
class FunctionOffers:
    """A function, how selectors begin that name it, why nothing in it can be probed (empty if it can), and what is in it."""

    function: Function
    prefix: str
    refused: str
    offers: tuple[Offer, ...]


def reference(function: Function, module: str = "") -> str:
    """How a selector names a function: ``//Trainer/run``, ``/pkg.module/f``."""
    return "/".join(["", module, *function.path])


def refusal(selector: str, catalogue: Catalogue) -> str:
    """Why a selector of this file can not be used, without the function's name and place in front; empty if it can."""
    script = None if catalogue.module else catalogue
    try:
        check_all(parse(selector, ""), script, catalogue.filename, modules=lambda name: catalogue if name == catalogue.module else None)
    except SelectorError as error:
        what = error.what.removeprefix(f"selector {selector!r}: ").rstrip(".")
        return re.sub(r"^(?:[\w.]+ \(.*?:\d+\)|the top level of \S+) |can not be probed(?: for '.*?')?: ", "", what)
    return ""


def offers(catalogue: Catalogue) -> list[FunctionOffers]:
    """The top level, and all functions of a file in source order, lambdas and redefined ones too."""
    every = [_of(function, catalogue) for function in (catalogue.top, *catalogue.functions)]
    return every if every[0].offers else every[1:]


def _of(function: Function, catalogue: Catalogue) -> FunctionOffers:
    name = reference(function, catalogue.module)
    refused = "" if function is catalogue.top else _not_live(function, catalogue) or refusal(f"{name} > #enter", catalogue)
    listed = tuple(_checked(offer, refused, function, catalogue) for offer in _wanted(function, name))
    return FunctionOffers(function, name, refused, listed)


def _not_live(function: Function, catalogue: Catalogue) -> str:
    """Why a selector that names this function means another definition."""
    live = catalogue.candidates(function.path)
    if function in live:
        return ""
    if any(decorator.endswith((".setter", ".deleter")) for decorator in function.decorators):
        return "it is the setter or deleter of a property, whose name means its getter"
    return f"it is defined again in line {live[-1].line}" if live else "its name means something else"


def _checked(offer: Offer, refused: str, function: Function, catalogue: Catalogue) -> Offer:
    """The offer with those of its selectors that can be used."""
    if refused:
        return Offer(offer.kind, offer.names, offer.lines, (), refused)
    reasons = {selector: refusal(selector, catalogue) for selector in offer.selectors}
    usable = tuple(selector for selector, reason in reasons.items() if not reason)
    reason = next(filter(None, reasons.values()), offer.refused)
    return Offer(offer.kind, offer.names, offer.lines, usable, "" if usable else reason)


def _wanted(function: Function, name: str) -> Iterator[Offer]:
    """Everything in the function, with the selectors that one would like to use."""
    inner = {name: variable for name, variable in function.comprehension_variables.items() if not function.knows(name)}
    is_top = is_top_level(function.node)
    for kind, found in (
        ("parameter", function.parameters),
        ("variable", function.variables | function.attributes | inner),
    ):
        for variable in found.values():
            if is_top and _DEFINED.issuperset(variable.forms):
                continue
            yield Offer(kind, (variable.name,), (variable.line,), (f"{name} > {variable.name}",), "")  # type: ignore[arg-type]
    for loop in function.loops:
        yield Offer("loop", loop.names, (loop.line,), loop_selectors(function, loop, name), "its target is no variable")
    if is_top:
        return
    if function.is_generator:
        yield Offer("yield", (), function.yields, (f"{name} > #yield as item",), "")
    else:
        yield Offer("return", (), function.returns, (f"{name}() as result",), "")


def loop_selectors(function: Function, loop: Loop, name: str) -> tuple[str, ...]:
    """One event a turn, and the pair of events around each turn, under the names that the rates expect.

    A loop that only counts (``for epoch in range(3)``) has no batches, so it keeps the names of the script.
    """
    node = next((n for n in ast.walk(function.node) if isinstance(n, ast.For | ast.AsyncFor) and n.lineno == loop.line), None)
    batch = batch_name(node) if node is not None else None
    if batch is None:
        return ()
    if node is not None and counts(node.iter):
        return f"{name}({batch}) > #endloop_{batch} as turn", f"{name}({batch}, !#loop_{batch} as begin, !!#endloop_{batch} as end)"
    captured = batch if batch == "batch" else f"{batch} as batch"
    return (
        f"{name}({captured}) > #endloop_{batch} as step",
        f"{name}({captured}, !#loop_{batch} as compute_start, !!#endloop_{batch} as compute_end)",
    )
