"""List of what can be probed in each function of a source file, with selectors ready to paste.

It has variables, loops, returns and yields. Each selector has passed the check that every run
makes.
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

# ways in which most names of a module get their value; the names that get a value in no other way
# are not offered, since nobody wants to watch them
_DEFINITIONS = frozenset({"import", "def", "class", "type"})
# patterns for the text before the reason in the error message of a refused selector
_FUNCTION_AND_PLACE = r"^(?:[\w.]+ \(.*?:\d+\)|the top level of \S+) "
_CANNOT_BE_PROBED = r"cannot be probed(?: for '.*?')?: "


@dataclass(frozen=True, slots=True)
class Offer:
    """A parameter, variable, loop, return or yield of a function, with its selectors."""

    kind: Kind
    # name of the variable, or all names of a loop's target; empty for returns and yields
    names: tuple[str, ...]
    # line where the variable first gets a value, line of the ``for``, or lines of all ``return`` or
    # ``yield``
    lines: tuple[int, ...]
    # selectors ready to paste, the most useful first; empty if this cannot be probed
    selectors: tuple[str, ...]
    refused: str  # reason why this cannot be probed; empty if it can be


@dataclass(frozen=True, slots=True)
class FunctionOffers:
    """A function with its offers.

    ``prefix`` is the beginning of all selectors that name the function. ``refused`` is the reason
    why nothing in the function can be probed; it is empty if it can.
    """

    function: Function
    prefix: str
    refused: str
    offers: tuple[Offer, ...]


def reference(function: Function, module: str = "") -> str:
    """Return a function's name in a selector: ``//Trainer/run``, ``/pkg.module/f``."""
    return "/".join(["", module, *function.path])


def refusal(selector: str, catalogue: Catalogue) -> str:
    """Return the reason why a selector for this file cannot be used; empty if it can.

    The reason does not begin with the function's name and place.
    """
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
    """Return the offers of a file's top level, if it has any, and of all its functions.

    Functions are in source order, and include lambdas and redefined functions.
    """
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
    """Return the reason why a selector with this function's name refers to another definition;
    empty if it refers to this one."""
    live = catalogue.candidates(function.path)
    if function in live:
        return ""
    if any(decorator.endswith((".setter", ".deleter")) for decorator in function.decorators):
        return "it is the setter or deleter of a property, whose name means its getter"
    if live:
        return f"it is defined again in line {live[-1].line}"
    return "its name means something else"


def _usable_offer(offer: Offer, refused: str, catalogue: Catalogue) -> Offer:
    """Return the offer with only those of its selectors that can be used."""
    if refused:
        return Offer(offer.kind, offer.names, offer.lines, (), refused)
    reasons = {selector: refusal(selector, catalogue) for selector in offer.selectors}
    usable = tuple(selector for selector, reason in reasons.items() if not reason)
    if usable:
        return Offer(offer.kind, offer.names, offer.lines, usable, "")
    reason = next(filter(None, reasons.values()), offer.refused)
    return Offer(offer.kind, offer.names, offer.lines, (), reason)


def _possible_offers(function: Function, prefix: str) -> Iterator[Offer]:
    """Yield everything in the function, with the selectors that would be useful for it."""
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
    """Return a selector for one event in each iteration of a loop, and one for a pair of events
    around each iteration.

    They use the names that the rates expect. A loop that only counts (``for epoch in range(3)``)
    has no batches, so its selectors keep the names of the script.
    """
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
