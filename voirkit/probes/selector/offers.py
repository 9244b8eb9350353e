"""What each function of a source file offers to probe: its variables, loops, returns and yields,
with selectors that are ready to paste.

Each selector has passed the check that every run makes.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from voirkit.errors import SelectorError
from voirkit.probes.selector import parse
from voirkit.probes.selector.check import check_all
from voirkit.probes.selector.training_loops import batch_name, only_counts
from voirkit.probes.source import is_top as is_top_level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Literal, TypeAlias

    from voirkit.probes.selector.catalogue import Catalogue, Function, Loop, Variable

    Kind: TypeAlias = Literal["parameter", "variable", "loop", "return", "yield"]

# what a module's names are mostly set to, and nobody means to watch
_DEFINITIONS = frozenset({"import", "def", "class", "type"})
# the words in front of the reason, in the message of a refused selector
_FUNCTION_AND_PLACE = r"^(?:[\w.]+ \(.*?:\d+\)|the top level of \S+) "
_CANNOT_BE_PROBED = r"cannot be probed(?: for '.*?')?: "


@dataclass(frozen=True, slots=True)
class Offer:
    """One thing in a function."""

    kind: Kind  # what it is
    # the variable; all names of a loop's target; nothing for returns and yields
    names: tuple[str, ...]
    # where: the first value of a variable, the ``for``, each ``return`` or ``yield``
    lines: tuple[int, ...]
    # ready to paste, the most useful first; empty if it cannot be probed
    selectors: tuple[str, ...]
    refused: str  # why not; empty if it can


@dataclass(frozen=True, slots=True)
class FunctionOffers:
    """A function, how selectors begin that name it, why nothing in it can be probed (empty if it
    can), and what is in it."""

    function: Function
    prefix: str
    refused: str
    offers: tuple[Offer, ...]


def reference(function: Function, module: str = "") -> str:
    """The text by which a selector names a function: ``//Trainer/run``, ``/pkg.module/f``."""
    return "/".join(["", module, *function.path])


def refusal(selector: str, catalogue: Catalogue) -> str:
    """Why a selector of this file cannot be used, without the function's name and place in front;
    empty if it can."""
    script = None if catalogue.module else catalogue

    def catalogue_of(module: str) -> Catalogue | None:
        return catalogue if module == catalogue.module else None

    try:
        check_all(parse(selector, ""), script, catalogue.filename, modules=catalogue_of)
    except SelectorError as error:
        reason = error.what.removeprefix(f"selector {selector!r}: ").rstrip(".")
        return re.sub(f"{_FUNCTION_AND_PLACE}|{_CANNOT_BE_PROBED}", "", reason)
    return ""


def offers(catalogue: Catalogue) -> list[FunctionOffers]:
    """The top level, and all functions of a file in source order, lambdas and redefined ones
    too."""
    top = _offers_of(catalogue.top, catalogue)
    functions = [_offers_of(function, catalogue) for function in catalogue.functions]
    return [top, *functions] if top.offers else functions


def _offers_of(function: Function, catalogue: Catalogue) -> FunctionOffers:
    prefix = reference(function, catalogue.module)
    refused = ""
    if function is not catalogue.top:
        not_live = _not_live(function, catalogue)
        refused = not_live or refusal(f"{prefix} > #enter", catalogue)
    usable = [
        _usable_offer(offer, refused, catalogue) for offer in _possible_offers(function, prefix)
    ]
    return FunctionOffers(function, prefix, refused, tuple(usable))


def _not_live(function: Function, catalogue: Catalogue) -> str:
    """Why a selector that names this function means another definition."""
    live = catalogue.candidates(function.path)
    if function in live:
        return ""
    if any(decorator.endswith((".setter", ".deleter")) for decorator in function.decorators):
        return "it is the setter or deleter of a property, whose name means its getter"
    if live:
        return f"it is defined again in line {live[-1].line}"
    return "its name means something else"


def _usable_offer(offer: Offer, refused: str, catalogue: Catalogue) -> Offer:
    """The offer with those of its selectors that can be used."""
    if refused:
        return Offer(offer.kind, offer.names, offer.lines, (), refused)
    reasons = {selector: refusal(selector, catalogue) for selector in offer.selectors}
    usable = tuple(selector for selector, reason in reasons.items() if not reason)
    if usable:
        return Offer(offer.kind, offer.names, offer.lines, usable, "")
    reason = next(filter(None, reasons.values()), offer.refused)
    return Offer(offer.kind, offer.names, offer.lines, (), reason)


def _possible_offers(function: Function, prefix: str) -> Iterator[Offer]:
    """Everything in the function, with the selectors that one would like to use."""
    in_comprehensions = {
        name: variable
        for name, variable in function.comprehension_variables.items()
        if not function.knows(name)
    }
    is_top = is_top_level(function.node)
    parameters = list(function.parameters.values())
    variables = list((function.variables | function.attributes | in_comprehensions).values())
    if is_top:
        parameters = _without_definitions(parameters)
        variables = _without_definitions(variables)
    yield from _offer_variables("parameter", parameters, prefix)
    yield from _offer_variables("variable", variables, prefix)
    for loop in function.loops:
        selectors = loop_selectors(function, loop, prefix)
        yield Offer("loop", loop.names, (loop.line,), selectors, "its target is no variable")
    if is_top:
        return
    if function.is_generator:
        yield Offer("yield", (), function.yields, (f"{prefix} > #yield as item",), "")
    else:
        yield Offer("return", (), function.returns, (f"{prefix}() as result",), "")


def _without_definitions(variables: Iterable[Variable]) -> list[Variable]:
    return [variable for variable in variables if not _DEFINITIONS.issuperset(variable.forms)]


def _offer_variables(kind: Kind, variables: Iterable[Variable], prefix: str) -> Iterator[Offer]:
    for variable in variables:
        selector = f"{prefix} > {variable.name}"
        yield Offer(kind, (variable.name,), (variable.line,), (selector,), "")


def loop_selectors(function: Function, loop: Loop, prefix: str) -> tuple[str, ...]:
    """One event a turn, and the pair of events around each turn, under the names that the rates
    expect. A loop that only counts (``for epoch in range(3)``) has no batches, so it keeps the
    names of the script."""
    node = _for_statement(function, loop.line)
    batch = batch_name(node) if node is not None else None
    if node is None or batch is None:
        return ()
    if only_counts(node.iter):
        return (
            f"{prefix}({batch}) > #endloop_{batch} as turn",
            f"{prefix}({batch}, !#loop_{batch} as begin, !!#endloop_{batch} as end)",
        )
    captured = batch if batch == "batch" else f"{batch} as batch"
    return (
        f"{prefix}({captured}) > #endloop_{batch} as step",
        f"{prefix}({captured}, !#loop_{batch} as compute_start, !!#endloop_{batch} as compute_end)",
    )


def _for_statement(function: Function, line: int) -> ast.For | ast.AsyncFor | None:
    for node in ast.walk(function.node):
        if isinstance(node, ast.For | ast.AsyncFor) and node.lineno == line:
            return node
    return None
