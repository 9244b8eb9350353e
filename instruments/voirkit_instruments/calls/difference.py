"""Where the calls of two runs part, as people and programs read it.

Compared are the calls of the thread that trains, one after the other, as numbers that mean the same in both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.errors import RunDirectoryError
from voirkit.runs.opened import Run
from voirkit.runs.parquet import quoted
from voirkit_instruments.calls.analyse import short
from voirkit_instruments.calls.analyse_records import KIND, TASKS, Calls, Recorded, When, joined, ranks_of, unknown, when

_TRAIN = TASKS.index("train")
# What asks workers for batches is called as often as it has to wait, and what takes tensors from them is given numbers of files: both,
# and all inside of them, are no part of what a program does.
_WAITS, _TAKES = "_MultiProcessingDataLoaderIter.", "torch.multiprocessing."
_ON_OBJECTS = (".__call__", ".step", ".zero_grad")  # methods of what lives as long as the training: modules, optimizers, schedulers


class Codes:
    """Numbers for functions, and for sets of arguments and results; the same for both runs."""

    def __init__(self) -> None:
        self.functions: list[tuple[str, str]] = []
        self.sets: list[Mapping[str, Any]] = []
        self._numbers: dict[object, int] = {}

    def function(self, name: tuple[str, str]) -> int:
        return self._number(self.functions, name, name)

    def set(self, values: Mapping[str, Any]) -> int:
        return self._number(self.sets, values, json.dumps(values, sort_keys=True))

    def _number(self, known: list[Any], one: object, key: object) -> int:
        found = self._numbers.setdefault(key, len(known))
        if found == len(known):
            known.append(one)
        return found


@dataclass(frozen=True)
class Thread:
    """The calls of one thread by their start; arrays of shape (n,). Numbers are of ``Codes``, or as of ``Calls``."""

    start_ns: Array
    end_ns: Array
    function: Array
    given: Array  # with what it was called
    result: Array  # what came of it: a value or an exception
    object: Array  # where in the sequence its object was first used in the same step; -1 where that says nothing
    task: Array
    step: Array
    depth: Array

    def __len__(self) -> int:
        return len(self.start_ns)


def thread_of(run: Run, rank: int, when: When, codes: Codes) -> Thread:
    """What the thread that trains has called; where none is known to train, the one that has called most."""
    found = Recorded(run, rank, when, _trains(run, rank, when))
    calls = joined([*found.chunks()])
    calls = calls.select(np.lexsort((-calls.duration_ns, calls.start_ns)))
    waits = np.array([name.startswith(_WAITS) or module.startswith(_TAKES) for module, name in found.functions], dtype=bool)[calls.function]
    calls = calls.select(~within(calls.start_ns + calls.duration_ns, waits))
    functions = np.array([codes.function(name) for name in found.functions], dtype=np.int64)
    given = [codes.set({key: value for key, value in one.items() if key not in ("returns", "error")}) for one in found.arguments]
    results = [codes.set({key: one[key] for key in ("returns", "error") if key in one}) for one in found.arguments]
    given_of, result_of = np.array(given, dtype=np.int64)[calls.args], np.array(results, dtype=np.int64)[calls.args]
    of_methods = np.array([name.endswith(_ON_OBJECTS) for _, name in found.functions], dtype=bool)[calls.function]
    return Thread(
        calls.start_ns, calls.start_ns + calls.duration_ns, functions[calls.function], given_of, result_of,
        _first_use(calls, of_methods), calls.task, calls.step, calls.depth,
    )  # fmt: skip


def within(end_ns: Array, chosen: Array) -> Array:
    """Which of the calls of one thread are chosen, or lie in one that is; ascending by start, the longer first. Shape (n,) each."""
    last = np.maximum.accumulate(np.where(chosen, end_ns, np.iinfo(np.int64).min))
    return chosen | (end_ns <= last)


def _trains(run: Run, rank: int, when: When) -> tuple[str, int, int] | None:
    rows: list[Any] = run.connection().execute(
        f"SELECT host, pid, tid, count(*) AS n FROM spans WHERE kind = {quoted(KIND)} AND rank = {rank} GROUP BY ALL ORDER BY n DESC, tid"
    ).fetchall()  # fmt: skip
    threads = [(host, pid, tid) for host, pid, tid, _ in rows]
    return when.thread if when.thread in threads else threads[0]


def _first_use(calls: Calls, of_methods: Array) -> Array:
    """By call, where its object was first used in the same step of training. Ids are given again when an object is gone, so that only those
    count that are used in most of the steps."""
    found = np.full(len(calls), -1)
    chosen = np.flatnonzero(of_methods & (calls.object != 0) & (calls.task == _TRAIN))
    if not len(chosen):
        return found
    pairs = np.stack([calls.object[chosen], calls.step[chosen]])
    _, first, place = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
    objects, steps = np.unique(pairs[0][first], return_counts=True)
    lasting = objects[2 * steps > len(np.unique(calls.step[chosen]))]
    found[chosen] = np.where(np.isin(pairs[0], lasting), chosen[first[place.reshape(-1)]], -1)
    return found


LIKE = 5  # calls that must be the same again after those that only one run makes
_FURTHEST = 200  # of them
_NUMBERS = ("float", "int")  # the types that stand for numbers which vary without end


@dataclass(frozen=True)
class Divergence:
    """Where two runs part; numbers of calls are places in the sequence of the thread that trains."""

    kind: str  # "function", "given", "object", "result", "end" (one of them calls no more)
    at: int  # the first call that differs; the same in both runs
    extra: tuple[int, int] = (0, 0)  # how many calls only the first and only the second run makes here; (0, 0) if that is not known


def first_divergence(first: Thread, second: Thread, codes: Codes) -> Divergence | None:
    """Where two sequences of calls begin to differ; None if they do not. Compared are entries and ends of calls, in their order in time."""
    n = min(len(first), len(second))
    same = _Same(codes.sets)
    of_kind = {
        "function": first.function[:n] != second.function[:n],
        "given": same.differ(first.given[:n], second.given[:n]),
        "object": (first.object[:n] != second.object[:n]) & (first.object[:n] >= 0) & (second.object[:n] >= 0),
    }
    entered = np.logical_or.reduce(list(of_kind.values())) if n else np.zeros(0, dtype=bool)
    at = int(np.argmax(entered)) if entered.any() else n
    ended = _first_end(first, same.differ(first.result[:at], second.result[:at]), at)
    if ended is not None:
        return Divergence("result", ended)
    if at < n:
        kind = next(name for name, differs in of_kind.items() if differs[at])
        return Divergence(kind, at, _extra(first, second, at) if kind == "function" else (0, 0))
    if len(first) != len(second):
        return Divergence("end", n, (len(first) - n, len(second) - n))
    return None


def _first_end(thread: Thread, differs: Array, index: int) -> int | None:
    """Of the calls whose results differ the one that ended first, if that was before the call ``at`` began."""
    which = np.flatnonzero(differs)
    if index < len(thread):
        which = which[thread.end_ns[which] <= thread.start_ns[index]]
    return int(which[np.argmin(thread.end_ns[which])]) if len(which) else None


def _extra(first: Thread, second: Thread, index: int) -> tuple[int, int]:
    """How many calls only one of them makes, before both go on alike."""
    a, b = first.function[index : index + _FURTHEST + LIKE], second.function[index : index + _FURTHEST + LIKE]
    for more in range(1, _FURTHEST + 1):
        if _goes_on(a[more:], b):
            return more, 0
        if _goes_on(b[more:], a):
            return 0, more
    return 0, 0


def _goes_on(longer: Array, other: Array) -> bool:
    like = min(LIKE, len(longer), len(other))
    return bool(like and np.array_equal(longer[:like], other[:like]))


class _Same:
    """Whether sets are the same, though some of their numbers may have been left out."""

    def __init__(self, sets: Sequence[Mapping[str, Any]]) -> None:
        self._sets = sets

    def differ(self, first: Array, second: Array) -> Array:
        """Where two sequences of sets are not the same."""
        found: Array = first != second
        which = np.flatnonzero(found)
        if len(which):
            pairs, place = np.unique(np.stack([first[which], second[which]]), axis=1, return_inverse=True)
            apart = np.array([not same(self._sets[a], self._sets[b]) for a, b in pairs.T.tolist()], dtype=bool)
            found[which] = apart[place.reshape(-1)]
        return found


def same(first: Any, second: Any) -> bool:
    """Whether two summaries are; one of a number that was left out (``{"type": "float"}``) is like any such number."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    return (first == second and type(first) is type(second)) or _left_out(first, second) or _left_out(second, first)


def _left_out(one: Any, other: Any) -> bool:
    return isinstance(one, dict) and one.get("type") in _NUMBERS and len(one) == 1 and type(other).__name__ == one["type"]


def counts(first: Thread, second: Thread, codes: Codes) -> dict[tuple[str, str], tuple[int, int]]:
    """Of the functions that are not called equally often: how often in each; the greatest difference first."""
    size = len(codes.functions)
    a, b = (np.bincount(thread.function, minlength=size) for thread in (first, second))
    order = np.argsort(-np.abs(a - b), kind="stable")
    return {codes.functions[at]: (int(a[at]), int(b[at])) for at in order.tolist() if a[at] != b[at]}


@dataclass(frozen=True)
class Compared:
    """One rank of two runs: what the thread that trains has called in each."""

    rank: int
    first: Thread
    second: Thread
    codes: Codes
    divergence: Divergence | None  # where they part
    counts: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # of functions not called equally often


def compare(first: Run, second: Run) -> tuple[list[Compared], tuple[Sequence[int], Sequence[int]]]:
    """The ranks that both have, and those that only the first and only the second has. Raises RunDirectoryError: one of them has no
    calls."""
    runs = (first, second)
    ranks = [ranks_of(run) for run in runs]
    for run, found in zip(runs, ranks, strict=True):
        if not found:
            raise RunDirectoryError("no calls are recorded there.", where=run.where, next="Record them: voirkit --calls SCRIPT")
    places = [when(run) for run in runs]
    both = [rank for rank in ranks[0] if rank in ranks[1]]
    made = []
    for rank in both:
        codes = Codes()
        threads = [thread_of(run, rank, place.get(rank) or unknown(), codes) for run, place in zip(runs, places, strict=True)]
        divergence = first_divergence(threads[0], threads[1], codes)
        made.append(Compared(rank, threads[0], threads[1], codes, divergence, counts(threads[0], threads[1], codes)))
    alone = [[rank for rank in found if rank not in both] for found in ranks]
    return made, (alone[0], alone[1])


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
