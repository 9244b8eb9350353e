"""The result of a ``--what-if`` experiment in sentences and tables: the pairs of runs, the verdict,
and whether the results are equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from voirkit.report import duration, figure
from voirkit.report.sections import Bars, Block, Details, Section, Table, Text

Document = Mapping[str, Any]
HEAD = f"{'pair':>7}{'plain':>12}{'changed':>12}{'ratio':>9}{'first':>10}"
VALUE_HEAD = ("value", "run", "items/s", "wait", "times as long", "verdict")
_MOODS = {"win": "good", "loss": "bad"}


def sections(outcome: Document, summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the section: the ceiling, the verdict with remarks, and the pairs of runs."""
    pairs = outcome["pairs"]
    verdict, *more = sentences(outcome)
    blocks: list[Block] = [
        Text(ceiling(outcome)),
        Text(verdict, strong=True, mood=_MOODS.get(str(outcome.get("verdict")), "")),
    ]
    blocks += [Text(line) for line in more]
    if outcome.get("values"):
        blocks.append(Table(VALUE_HEAD, value_rows(outcome), left=(0, 5)))
    if pairs:
        rows = []
        times = []
        for number, pair in enumerate(pairs, 1):
            plain_s = pair["plain_s"]
            changed_s = pair["changed_s"]
            plain = duration(plain_s)
            changed = duration(changed_s)
            first = "plain" if number % 2 else "changed"
            rows.append((f"{number}", plain, changed, f"{pair['ratio']:.3f}", first))
            times.append((f"{number} plain", plain_s, plain))
            times.append((f"{number} changed", changed_s, changed))
        blocks.append(Table(("pair", "plain", "changed", "ratio", "first"), rows))
        blocks.append(Details("Time of the work of each run, in pairs", [Bars(times)]))
    yield Section("what-if", f"What if: {name_of(outcome)}", blocks, least=20)


def name_of(outcome: Document) -> str:
    return (
        f"{outcome['name']}={outcome['argument']}"
        if outcome.get("argument")
        else str(outcome["name"])
    )


def ceiling(outcome: Document) -> str:
    """Return the sentence about the most that the change could win, and why."""
    share, because = outcome["ceiling"]["share"], outcome["ceiling"]["because"]
    if share is None:
        return f"What it could win at most cannot be told: {because}"
    if share == 0:
        return f"It can win nothing: {because}"
    return f"It could win at most {_percent(share)} of the run's time: {because}"


def row(n: int, pair: Document) -> str:
    """Return the line of a pair, with the columns of ``HEAD``."""
    times = f"{duration(pair['plain_s']):>12}{duration(pair['changed_s']):>12}"
    return f"{n:>7}{times}{pair['ratio']:>9.3f}{'plain' if n % 2 else 'changed':>10}"


def value_rows(outcome: Document) -> list[tuple[str, ...]]:
    """Return a row for the plain runs and a row for each value of the change, with the columns of
    ``VALUE_HEAD``."""
    rows: list[tuple[str, ...]] = []
    for value in outcome.get("values") or ():
        times_s = value["times_s"]
        verdict = value["verdict"] if times_s else ""
        rows.append(
            (
                value["argument"] or "as it is",
                duration(median(times_s)) if times_s else "",
                "" if value["rate"] is None else figure(value["rate"]),
                "" if value["wait"] is None else f"{value['wait']:.0%}",
                "" if value["median"] is None else _ratio(value),
                verdict or value["because"],
            )
        )
    return rows


def value_lines(outcome: Document) -> Iterator[str]:
    """Yield the rows of ``value_rows`` as lines for a terminal; none if the change has one
    value."""
    rows = value_rows(outcome)
    for value, run, rate, wait, ratio, verdict in [VALUE_HEAD, *rows] if rows else ():
        yield f"{value:>10}{run:>12}{rate:>12}{wait:>7}   {ratio:<24}{verdict}".rstrip()


def _ratio(judgement: Document) -> str:
    """Return the median ratio with its interval as text."""
    return f"{figure(judgement['median'])} ({_interval(judgement)})"


def _interval(judgement: Document) -> str:
    return f"{figure(judgement['low'])} .. {figure(judgement['high'])}"


def sentences(outcome: Document) -> Iterator[str]:
    n, verdict = len(outcome["pairs"]), outcome.get("verdict")
    if not n:
        yield f"{verdict or 'not told'}: {outcome.get('because') or 'nothing was measured.'}"
    elif verdict is None:
        yield f"not told: {outcome.get('because')} So far {_times(outcome)}."
    else:
        yield f"{verdict}: with {name_of(outcome)} the run takes {_times(outcome)}."
        if outcome.get("because"):
            yield outcome["because"]
    if n:
        n_values = max(len(outcome.get("values") or ()) - 1, 1)
        chance = (
            " By chance alone so many pairs say such a thing in less than"
            f" {4 * n_values} of 100 cases."
            if verdict in _MOODS
            else ""
        )
        yield f"Two successive plain runs differ by {_percent(outcome['spread'])}.{chance}"
    yield from _held_up(outcome.get("contention"))
    yield from _once(outcome)
    step = outcome.get("step")
    if step:
        medians = f"{duration(step['plain_s'])} plain, {duration(step['changed_s'])} changed"
        yield f"A step takes {figure(step['ratio'])} times as long ({medians})."
    equal = outcome.get("equal")
    if equal:
        yield "results: " + ", ".join(
            f"{key} {_EQUAL[equal.get(key)]}"
            for key in ("losses", "checkpoints", "output")
            if key in equal
        )
        yield from (equal.get("because") or "").splitlines()


def _held_up(contention: Document | None) -> Iterator[str]:
    if contention:
        runs = f"{contention['runs']} of {contention['of']} runs"
        waited = f"which waited for them up to {_percent(contention['most'])} of their work"
        yield (
            f"Other programs had the processors in {runs}, {waited}: the interval is as much wider."
            " Measure again on an idle machine."
        )


def _once(outcome: Document) -> Iterator[str]:
    """Yield a sentence about the one-time cost of the change, if it has one. This cost does not
    depend on the length of the run, and is not in the ratios."""
    once_s = outcome.get("once_s")
    if once_s and outcome["pairs"]:
        share = once_s / median(pair["plain_s"] for pair in outcome["pairs"])
        yield (
            f"The change itself takes {duration(once_s)} once, however long the run is:"
            f" {_percent(share)} of this one, in no figure here."
        )


_EQUAL = {True: "equal", False: "DIFFER", None: "not told"}


def _times(outcome: Document) -> str:
    n = len(outcome["pairs"])
    pairs = f"{n} pair{'s' if n > 1 else ''}"
    return f"{figure(outcome['median'])} times as long ({_interval(outcome)} in {pairs})"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share * 100:.2g}%"
