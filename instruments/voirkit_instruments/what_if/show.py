"""What a change would win, as a person reads it: the pairs of runs, the verdict, whether the results were equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from voirkit.report.figure import duration

Document = Mapping[str, Any]
HEAD = f"{'pair':>7}{'plain':>12}{'changed':>12}{'ratio':>9}{'first':>10}"
_INDENT = (0, 0, 0, 2)
_MOST = 12  # pairs that are shown
_STYLES = {"win": "bold green", "loss": "bold red"}


def table(summary: Mapping[str, Any], width: int) -> Iterator[tuple[int, RenderableType]]:
    """The part of the table in a terminal; see ``voirkit.instrument.Instrument``."""
    if summary.get("what_if"):
        yield 20, what_if_part(summary["what_if"])


def what_if_part(found: Document) -> RenderableType:
    """All of the key ``what_if`` of a summary."""
    lines: list[RenderableType] = [Text(f"what if {name_of(found)}", style="bold"), Padding(Text(ceiling(found)), _INDENT)]
    pairs = found["pairs"]
    if pairs:
        lines += [Text(HEAD, style="dim"), *(Text(row(at, pair)) for at, pair in enumerate(pairs[:_MOST], 1))]
        if len(pairs) > _MOST:
            lines.append(Text(f"{len(pairs) - _MOST} more pairs: voirkit report --json", style="dim"))
    said = list(sentences(found))
    lines.append(Text(said[0], style=_STYLES.get(str(found.get("verdict")), "bold")))
    return Group(*lines, *(Padding(Text(line), _INDENT) for line in said[1:]))


def name_of(found: Document) -> str:
    """The change as it is asked for."""
    return f"{found['name']}={found['argument']}" if found.get("argument") else str(found["name"])


def ceiling(found: Document) -> str:
    """What could be won at most, and why."""
    share, because = found["ceiling"]["share"], found["ceiling"]["because"]
    if share is None:
        return f"What it could win at most cannot be told: {because}"
    if share == 0:
        return f"It can win nothing: {because}"
    return f"It could win at most {_percent(share)} of the run's time: {because}"


def row(at: int, pair: Document) -> str:
    """The line of a pair under ``HEAD``."""
    times = f"{duration(pair['plain_s']):>12}{duration(pair['changed_s']):>12}"
    return f"{at:>7}{times}{pair['ratio']:>9.3f}{'plain' if at % 2 else 'changed':>10}"


def sentences(found: Document) -> Iterator[str]:
    """What came out: first the verdict, then what belongs to it."""
    n, verdict = len(found["pairs"]), found.get("verdict")
    if not n:
        yield f"{verdict or 'not told'}: {found.get('because') or 'nothing was measured.'}"
    elif verdict is None:
        yield f"not told: {found.get('because')} So far {_times(found)}."
    else:
        yield f"{verdict}: with {name_of(found)} the run takes {_times(found)}."
        if found.get("because"):
            yield found["because"]
    if n:
        chance = " By chance alone so many pairs say such a thing in less than 4 of 100 cases." if verdict in _STYLES else ""
        yield f"Two successive plain runs differ by {_percent(found['spread'])}.{chance}"
    step = found.get("step")
    if step:
        yield f"A step takes {step['ratio']:.3g} times as long ({duration(step['plain_s'])} plain, {duration(step['changed_s'])} changed)."
    equal = found.get("equal")
    if equal:
        yield "results: " + ", ".join(f"{key} {_EQUAL[equal.get(key)]}" for key in ("losses", "checkpoints", "output") if key in equal)
        yield from (equal.get("because") or "").splitlines()


_EQUAL = {True: "equal", False: "DIFFER", None: "not told"}


def _times(found: Document) -> str:
    n = len(found["pairs"])
    return f"{found['median']:.3g} times as long ({found['low']:.3g} .. {found['high']:.3g} in {n} pair{'s' if n > 1 else ''})"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share * 100:.2g}%"
