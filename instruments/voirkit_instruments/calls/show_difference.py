"""Where the calls of two runs part, as people and programs read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from voirkit_instruments.calls.analysis.comparison import Compared
from voirkit_instruments.calls.analysis.sequence import Thread
from voirkit_instruments.calls.analysis.when import TASKS
from voirkit_instruments.calls.show import short
from voirkit_instruments.calls.show_words import call, given_differs, result_differs

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

BEFORE, AFTER = 6, 4  # calls that are shown around the one that differs
_FUNCTIONS = 20


def because(one: Compared) -> str:
    """What differs, in a sentence without its place; ``the same calls`` if nothing does."""
    if one.divergence is None:
        return "the same calls"
    at = one.divergence.at
    if one.divergence.kind == "end":
        more = f"and {sum(one.divergence.extra) - 1:,} more calls"
        if one.divergence.extra[0]:
            return f"the other run calls no more, this one goes on: {_name(one, one.first)} {more}"
        return f"this run calls no more, the other one goes on: {_name(one, one.second)} {more}"
    if one.divergence.kind == "function":
        return _other_function(one, _name(one, one.first), _name(one, one.second))
    sets = one.codes.sets
    if one.divergence.kind == "given":
        return f"{_name(one, one.first)} was called {given_differs(sets[one.first.given[at]], sets[one.second.given[at]])}"
    if one.divergence.kind == "result":
        return f"{_name(one, one.first)} {result_differs(sets[one.first.result[at]], sets[one.second.result[at]])}"
    return f"{_name(one, one.first)} was called on {_object(one.first, at)}, in the other run on {_object(one.second, at)}"


def _name(one: Compared, thread: Thread) -> str:
    """The function in which they part."""
    assert one.divergence is not None
    return short(".".join(one.codes.functions[thread.function[one.divergence.at]]))


def _other_function(one: Compared, first: str, second: str) -> str:
    assert one.divergence is not None
    more, other = one.divergence.extra
    if more:
        return f"the other run does not call {first} here" + (f", nor the {more - 1} calls after it" if more > 1 else "")
    if other:
        return f"the other run calls {second} here" + (f" and makes {other - 1} more calls" if other > 1 else "")
    return f"{first} is called, in the other run {second}"


def _object(thread: Thread, at: int) -> str:
    used = int(thread.object[at])
    return "an object that this step had not used before" if used == at else f"the object of {at - used:,} calls before"


def place(one: Compared) -> tuple[str, int | None]:
    """Task and step of the first call that differs, in the run that makes it."""
    assert one.divergence is not None
    thread = one.first if one.divergence.at < len(one.first) else one.second
    step = int(thread.step[one.divergence.at])
    return TASKS[int(thread.task[one.divergence.at])], None if step < 0 else step


def where(one: Compared) -> str:
    """``step 3``, ``evaluation batch 2`` or ``outside of the steps``."""
    task, step = place(one)
    return f"step {step}" if task == "train" else f"evaluation batch {step}" if task else "outside of the steps"


def context(one: Compared) -> Iterator[tuple[str, str]]:
    """The calls around the divergence: (" ", "<" or ">", call), those that are the same without a sign, indented as they were nested."""
    assert one.divergence is not None
    at, (more, other) = one.divergence.at, one.divergence.extra
    begin = max(at - BEFORE, 0)
    least = min(int(thread.depth[begin : at + AFTER].min(initial=1 << 30)) for thread in (one.first, one.second))
    for i in range(begin, at):
        yield " ", _line(one, one.first, i, least)
    if one.divergence.kind == "end":
        more, other = (min(n, AFTER) for n in (more, other))
    elif not more and not other:
        more = other = 1
    for sign, thread, n in (("<", one.first, more), (">", one.second, other)):
        for i in range(at, at + min(n, 2 * AFTER)):
            yield sign, _line(one, thread, i, least)
    for i in range(at + more, min(at + more + AFTER, len(one.first))):
        if at + other + i - at - more < len(one.second) and one.first.function[i] == one.second.function[i - more + other]:
            yield " ", _line(one, one.first, i, least)
        else:
            break


def _line(one: Compared, thread: Thread, at: int, least: int) -> str:
    module, name = one.codes.functions[thread.function[at]]
    said = call(module, name, one.codes.sets[thread.given[at]], one.codes.sets[thread.result[at]])
    return "  " * max(int(thread.depth[at]) - least, 0) + said


def lines(compared: list[Compared], alone: tuple[Any, Any], names: tuple[str, str]) -> Iterator[str]:
    """The comparison as text."""
    for sign, name, attribute in (("<", names[0], "first"), (">", names[1], "second")):
        yield f"{sign} {name}   {sum(len(getattr(one, attribute)) for one in compared):,} calls"
    for name, ranks in zip(names, alone, strict=True):
        if ranks:
            yield f"only {name} has calls of rank {', '.join(map(str, ranks))}"
    for one in compared:
        rank = f"rank {one.rank}: " if len(compared) > 1 else ""
        if one.divergence is None:
            yield f"{rank}{because(one)}"
            continue
        yield f"{rank}{where(one)}: {because(one)}"
        yield from (f"  {sign} {text}" for sign, text in context(one))
        yield from _more_and_less(one)


def _more_and_less(one: Compared) -> Iterator[str]:
    if not one.counts:
        return
    rows = [(short(".".join(name)), f"{a:,}", f"{b:,}", f"{b - a:+,}") for name, (a, b) in list(one.counts.items())[:_FUNCTIONS]]
    widths = [max(len(row[i]) for row in [("not called equally often", "<", ">", ""), *rows]) for i in range(4)]
    for row in [("not called equally often", "<", ">", ""), *rows]:
        yield f"  {row[0]:{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}".rstrip()
    if len(one.counts) > _FUNCTIONS:
        yield f"  {len(one.counts) - _FUNCTIONS} more functions: --json"


def document(compared: list[Compared], alone: tuple[Any, Any]) -> dict[str, Any]:
    """The comparison for programs."""
    return {
        "equal": not any(alone) and all(one.divergence is None for one in compared),
        "ranks": [_of_rank(one) for one in compared],
        "ranks_of_one": [list(ranks) for ranks in alone],
    }


def _of_rank(one: Compared) -> dict[str, Any]:
    found = None
    if one.divergence is not None:
        task, step = place(one)
        found = {
            "kind": one.divergence.kind, "task": task, "step": step, "call": one.divergence.at, "because": because(one),
            "context": [[sign, text] for sign, text in context(one)],
        }  # fmt: skip
    by_function = {".".join(name): list(pair) for name, pair in one.counts.items()}
    return {"rank": one.rank, "calls": [len(one.first), len(one.second)], "divergence": found, "by_function": by_function}


def difference(first: Run, second: Run, names: tuple[str, str]) -> tuple[dict[str, Any], Iterable[str]]:
    """Where two runs begin to call different things; see ``voirkit.instrument.Instrument``."""
    from voirkit_instruments.calls.analysis.comparison import compare

    compared, alone = compare(first, second)
    return document(compared, alone), lines(compared, alone, names)
