"""Where the calls of two runs part, as people and programs read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from voirkit_instruments.calls.analyse_difference import Compared, Thread
from voirkit_instruments.calls.analyse_when import TASKS
from voirkit_instruments.calls.show import short

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


def _object(thread: Thread, index: int) -> str:
    used = int(thread.object[index])
    return "an object that this step had not used before" if used == index else f"the object of {index - used:,} calls before"


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


def _line(one: Compared, thread: Thread, index: int, least: int) -> str:
    module, name = one.codes.functions[thread.function[index]]
    said = call(module, name, one.codes.sets[thread.given[index]], one.codes.sets[thread.result[index]])
    return "  " * max(int(thread.depth[index]) - least, 0) + said


def lines(compared: list[Compared], unpaired: tuple[Any, Any], names: tuple[str, str]) -> Iterator[str]:
    """The comparison as text."""
    for sign, name, attribute in (("<", names[0], "first"), (">", names[1], "second")):
        yield f"{sign} {name}   {sum(len(getattr(one, attribute)) for one in compared):,} calls"
    for name, ranks in zip(names, unpaired, strict=True):
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


def document(compared: list[Compared], unpaired: tuple[Any, Any]) -> dict[str, Any]:
    """The comparison for programs."""
    return {
        "equal": not any(unpaired) and all(one.divergence is None for one in compared),
        "ranks": [_of_rank(one) for one in compared],
        "ranks_of_one": [list(ranks) for ranks in unpaired],
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
    from voirkit_instruments.calls.analyse_difference import compare

    compared, unpaired = compare(first, second)
    return document(compared, unpaired), lines(compared, unpaired, names)


_MISSING = object()
_LONGEST = 100  # characters of a call


def call(module: str, name: str, given: Mapping[str, Any], result: Mapping[str, Any] | None = None) -> str:
    """``F.dropout(float32 [4, 8], p=0.1) -> float32 [4, 8]``; without the result if that is left out."""
    args = given.get("args", [])
    words = [value(one) for one in (args[1:] if given.get("bound") else args)]
    words += [f"{key}={value(one)}" for key, one in given.get("kwargs", {}).items()]
    said = f"{short(f'{module}.{name}')}({_cut(', '.join(words))})"
    if result and "error" in result:
        return f"{said} raised {result['error']}"
    return f"{said} -> {value(result['returns'])}" if result and result.get("returns") is not None else said


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def value(one: Any) -> str:
    """A summary of a value, as short as possible."""
    if not isinstance(one, dict):
        return repr(one)
    if "tensor" in one:
        device = one.get("device", "cpu")
        return f"{one.get('dtype')} {one.get('shape')}" + (f" on {device}" if device != "cpu" else "")
    kind, items = str(one.get("type", "?")).rpartition(".")[2], one.get("items")
    if isinstance(items, list) and len(items) == one.get("n"):
        inner = ", ".join(map(value, items))
        return f"[{inner}]" if kind == "list" else f"({inner})" if kind == "tuple" else f"{kind}({inner})"
    if isinstance(items, dict) and len(items) == one.get("n"):
        return "{" + ", ".join(f"{key}: {value(inner)}" for key, inner in items.items()) + "}"
    return f"{kind} of {one['n']}" if "n" in one else f"a {kind}"


def given_differs(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """``with p=0.5, in the other run with p=0.1``: what two calls of a function were given that is not the same; three things at most."""
    differences = [*_given(first, second)]
    some = differences[:3]
    more = f" (and {len(differences) - len(some)} more differences)" if len(differences) > len(some) else ""
    return f"{' and '.join(a for a, _ in some)}, in the other run {' and '.join(b for _, b in some)}{more}"


def _given(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    skip = 1 if first.get("bound") and second.get("bound") else 0
    ones, others = first.get("args", []), second.get("args", [])
    for at in range(max(len(ones), len(others))):
        one, other = (args[at] if at < len(args) else _MISSING for args in (ones, others))
        where = f"argument {at + 1 - skip}" if at >= skip else "self"
        yield from _of_one(one, other, lambda text, where=where: f"with {text} as {where}", f"without {where}")
    ones, others = first.get("kwargs", {}), second.get("kwargs", {})
    for key in dict.fromkeys([*ones, *others]):
        one, other = ones.get(key, _MISSING), others.get(key, _MISSING)
        yield from _of_one(one, other, lambda text, key=key: f"with {key}={text}", f"without {key}")


def _of_one(one: Any, other: Any, phrase: Any, without: str) -> Iterator[tuple[str, str]]:
    from voirkit_instruments.calls.analyse_difference import same

    if one is _MISSING or other is _MISSING:
        yield tuple(without if value_ is _MISSING else phrase(value(value_)) for value_ in (one, other))  # type: ignore[misc]  # two
    elif not same(one, other):
        a, b = apart(one, other)
        yield phrase(a), phrase(b)


def apart(one: Any, other: Any) -> tuple[str, str]:
    """Two values that are not the same, each in words that tell them apart."""
    if isinstance(one, dict) and isinstance(other, dict) and "tensor" in one and "tensor" in other:
        a, b = value(one), value(other)
        for key, name in (("grad", "requires_grad"), ("device", "device"), ("tensor", "type")):
            if one.get(key) != other.get(key) and not (key == "device" and a != b):
                a, b = f"{a}, {name}={one.get(key)}", f"{b}, {name}={other.get(key)}"
        return a, b
    a, b = value(one), value(other)
    return (a, b) if a != b else (str(one), str(other))


def result_differs(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """``returned float32 [4], in the other run float32 [8]``, or which exceptions were raised."""
    errors = first.get("error"), second.get("error")
    if errors[0] and errors[1]:
        return f"raised {errors[0]}, in the other run {errors[1]}"
    if errors[0] or errors[1]:
        return f"raised {errors[0]}, in the other run it did not" if errors[0] else f"returned, in the other run it raised {errors[1]}"
    a, b = apart(first.get("returns"), second.get("returns"))
    return f"returned {a}, in the other run {b}"
