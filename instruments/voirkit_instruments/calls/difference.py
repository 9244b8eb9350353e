"""The place at which the calls of two runs part, as people and programs read it.

Compared are the calls of the thread that trains, one after the other, as numbers that mean the same
in both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.errors import RunDirectoryError
from voirkit.runs.opened import Run
from voirkit.runs.parquet import quoted
from voirkit_instruments.calls.analyse import short
from voirkit_instruments.calls.analyse_records import (
    KIND,
    TASKS,
    Calls,
    Recorded,
    When,
    joined,
    ranks_of,
    unknown,
    when,
)

_TRAIN = TASKS.index("train")
# What asks workers for batches is called as often as it has to wait, and what takes tensors from
# them is given numbers of files: both, and all inside of them, are no part of what a program does.
_WAITS, _TAKES = "_MultiProcessingDataLoaderIter.", "torch.multiprocessing."
# methods of what lives as long as the training: modules, optimizers, schedulers
_ON_OBJECTS = (".__call__", ".step", ".zero_grad")
_OUTCOMES = ("returns", "error")  # keys of what came of a call


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

    def _number(self, numbered: list[Any], value: object, key: object) -> int:
        number = self._numbers.setdefault(key, len(numbered))
        if number == len(numbered):
            numbered.append(value)
        return number


@dataclass(frozen=True)
class Thread:
    """The calls of one thread by their start; arrays of shape (n,). Numbers are of ``Codes``, or as
    of ``Calls``."""

    start_ns: Array
    end_ns: Array
    function: Array
    given: Array  # with what it was called
    result: Array  # what came of it: a value or an exception
    # where in the sequence its object was first used in the same step; -1 where that says nothing
    object: Array
    task: Array
    step: Array
    depth: Array

    def __len__(self) -> int:
        return len(self.start_ns)


def thread_of(run: Run, rank: int, when: When, codes: Codes) -> Thread:
    """The calls of the thread that trains; where none is known to train, the one that has called
    most."""
    recorded = Recorded(run, rank, when, _training_thread(run, rank, when))
    calls = joined([*recorded.chunks()])
    calls = calls.select(np.lexsort((-calls.duration_ns, calls.start_ns)))
    waits = [
        name.startswith(_WAITS) or module.startswith(_TAKES) for module, name in recorded.functions
    ]
    waiting = np.array(waits, dtype=bool)[calls.function]
    calls = calls.select(~within(calls.start_ns + calls.duration_ns, waiting))
    functions = np.array([codes.function(name) for name in recorded.functions], dtype=np.int64)
    given, results = [], []
    for values in recorded.arguments:
        arguments = {key: values[key] for key in values if key not in _OUTCOMES}
        outcome = {key: values[key] for key in _OUTCOMES if key in values}
        given.append(codes.set(arguments))
        results.append(codes.set(outcome))
    methods = [name.endswith(_ON_OBJECTS) for _, name in recorded.functions]
    return Thread(
        calls.start_ns,
        calls.start_ns + calls.duration_ns,
        functions[calls.function],
        np.array(given, dtype=np.int64)[calls.args],
        np.array(results, dtype=np.int64)[calls.args],
        _first_use(calls, np.array(methods, dtype=bool)[calls.function]),
        calls.task,
        calls.step,
        calls.depth,
    )


def within(end_ns: Array, selected: Array) -> Array:
    """True for each call of one thread that is selected, or lies in one that is; ascending by
    start, the longer first. Shape (n,) each."""
    last = np.maximum.accumulate(np.where(selected, end_ns, np.iinfo(np.int64).min))
    return selected | (end_ns <= last)


def _training_thread(run: Run, rank: int, when: When) -> tuple[str, int, int] | None:
    cursor = run.connection().execute(
        f"SELECT host, pid, tid, count(*) AS n FROM spans WHERE kind = {quoted(KIND)} AND rank"
        f" = {rank} GROUP BY ALL ORDER BY n DESC, tid"
    )
    rows: list[Any] = cursor.fetchall()
    threads = [(host, pid, tid) for host, pid, tid, _ in rows]
    return when.thread if when.thread in threads else threads[0]


def _first_use(calls: Calls, of_methods: Array) -> Array:
    """By call, where its object was first used in the same step of training. Ids are given again
    when an object is gone, so that only those count that are used in most of the steps."""
    first_use = np.full(len(calls), -1)
    is_used = of_methods & (calls.object != 0) & (calls.task == _TRAIN)
    indices = np.flatnonzero(is_used)
    if not len(indices):
        return first_use
    pairs = np.stack([calls.object[indices], calls.step[indices]])
    _, first, group = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
    objects, n_steps = np.unique(pairs[0][first], return_counts=True)
    all_steps = len(np.unique(calls.step[indices]))
    lasting = np.isin(pairs[0], objects[2 * n_steps > all_steps])
    first_of_pair = first[group.reshape(-1)]
    first_use[indices] = np.where(lasting, indices[first_of_pair], -1)
    return first_use


LIKE = 5  # calls that must be the same again after those that only one run makes
_FURTHEST = 200  # of them
_NUMBERS = ("float", "int")  # the types that stand for numbers which vary without end


@dataclass(frozen=True)
class Divergence:
    """Where two runs part; numbers of calls are places in the sequence of the thread that
    trains."""

    kind: str  # "function", "given", "object", "result", "end" (one of them calls no more)
    index: int  # the first call that differs; the same in both runs
    # how many calls only the first and only the second run makes here; (0, 0) if that is not known
    extra: tuple[int, int] = (0, 0)


def first_divergence(first: Thread, second: Thread, codes: Codes) -> Divergence | None:
    """The place at which two sequences of calls begin to differ; None if they do not. Compared are
    entries and ends of calls, in their order in time."""
    n = min(len(first), len(second))
    sets = _SetComparison(codes.sets)
    a, b = first.object[:n], second.object[:n]
    by_kind = {
        "function": first.function[:n] != second.function[:n],
        "given": sets.differ(first.given[:n], second.given[:n]),
        "object": (a != b) & (a >= 0) & (b >= 0),
    }
    differs = np.logical_or.reduce(list(by_kind.values())) if n else np.zeros(0, dtype=bool)
    index = int(np.argmax(differs)) if differs.any() else n
    result_differs = sets.differ(first.result[:index], second.result[:index])
    ended = _first_end(first, result_differs, index)
    if ended is not None:
        return Divergence("result", ended)
    if index < n:
        kind = next(name for name, differs_so in by_kind.items() if differs_so[index])
        extra = _extra(first, second, index) if kind == "function" else (0, 0)
        return Divergence(kind, index, extra)
    if len(first) != len(second):
        return Divergence("end", n, (len(first) - n, len(second) - n))
    return None


def _first_end(thread: Thread, differs: Array, index: int) -> int | None:
    """Of the calls whose results differ the one that ended first, if that was before the call
    ``index`` began."""
    indices = np.flatnonzero(differs)
    if index < len(thread):
        indices = indices[thread.end_ns[indices] <= thread.start_ns[index]]
    if not len(indices):
        return None
    return int(indices[np.argmin(thread.end_ns[indices])])


def _extra(first: Thread, second: Thread, index: int) -> tuple[int, int]:
    """How many calls only one of them makes, before both go on alike."""
    end = index + _FURTHEST + LIKE
    a, b = first.function[index:end], second.function[index:end]
    for n in range(1, _FURTHEST + 1):
        if _begin_alike(a[n:], b):
            return n, 0
        if _begin_alike(b[n:], a):
            return 0, n
    return 0, 0


def _begin_alike(first: Array, second: Array) -> bool:
    n = min(LIKE, len(first), len(second))
    return bool(n and np.array_equal(first[:n], second[:n]))


class _SetComparison:
    """Compares sets by their numbers, though some of what is in them may have been left out."""

    def __init__(self, sets: Sequence[Mapping[str, Any]]) -> None:
        self._sets = sets

    def differ(self, first: Array, second: Array) -> Array:
        """True where two sequences of sets are not the same."""
        differs: Array = first != second
        indices = np.flatnonzero(differs)
        if len(indices):
            numbers = np.stack([first[indices], second[indices]])
            pairs, pair_of = np.unique(numbers, axis=1, return_inverse=True)
            apart = [not same(self._sets[a], self._sets[b]) for a, b in pairs.T.tolist()]
            differs[indices] = np.array(apart, dtype=bool)[pair_of.reshape(-1)]
        return differs


def same(first: Any, second: Any) -> bool:
    """True if two summaries are the same; one of a number that was left out (``{"type":
    "float"}``) is like any such number."""
    if isinstance(first, dict) and isinstance(second, dict):
        if first.keys() != second.keys():
            return False
        return all(same(item, second[key]) for key, item in first.items())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    if first == second and type(first) is type(second):
        return True
    return _is_left_out(first, second) or _is_left_out(second, first)


def _is_left_out(summary: Any, number: Any) -> bool:
    """True if a summary says no more of a value than its type, and that is this number's."""
    if not isinstance(summary, dict) or len(summary) != 1:
        return False
    kind = summary.get("type")
    return kind in _NUMBERS and type(number).__name__ == kind


def counts(first: Thread, second: Thread, codes: Codes) -> dict[tuple[str, str], tuple[int, int]]:
    """Of the functions that are not called equally often: how often in each; the greatest
    difference first."""
    size = len(codes.functions)
    a, b = (np.bincount(thread.function, minlength=size) for thread in (first, second))
    order = np.argsort(-np.abs(a - b), kind="stable")
    unequal = [i for i in order.tolist() if a[i] != b[i]]
    return {codes.functions[i]: (int(a[i]), int(b[i])) for i in unequal}


@dataclass(frozen=True)
class RankComparison:
    """One rank of two runs: the calls of the thread that trains in each."""

    rank: int
    first: Thread
    second: Thread
    codes: Codes
    divergence: Divergence | None  # where they part
    # of functions not called equally often
    counts: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)


def compare(
    first: Run, second: Run
) -> tuple[list[RankComparison], tuple[Sequence[int], Sequence[int]]]:
    """The ranks that both have, and those that only the first and only the second has. Raises
    RunDirectoryError: one of them has no calls."""
    ranks = _ranks_with_calls(first), _ranks_with_calls(second)
    steps = when(first), when(second)
    comparisons = []
    for rank in ranks[0]:
        if rank not in ranks[1]:
            continue
        codes = Codes()
        a = thread_of(first, rank, steps[0].get(rank) or unknown(), codes)
        b = thread_of(second, rank, steps[1].get(rank) or unknown(), codes)
        divergence = first_divergence(a, b, codes)
        comparisons.append(RankComparison(rank, a, b, codes, divergence, counts(a, b, codes)))
    only_first = [rank for rank in ranks[0] if rank not in ranks[1]]
    only_second = [rank for rank in ranks[1] if rank not in ranks[0]]
    return comparisons, (only_first, only_second)


def _ranks_with_calls(run: Run) -> list[int]:
    ranks = ranks_of(run)
    if not ranks:
        raise RunDirectoryError(
            "no calls are recorded there.",
            where=run.where,
            next="Record them: voirkit --calls SCRIPT",
        )
    return ranks


BEFORE, AFTER = 6, 4  # calls that are shown around the one that differs
_FUNCTIONS = 20


def because(comparison: RankComparison) -> str:
    """The difference, in a sentence without its place; ``the same calls`` if there is none."""
    divergence = comparison.divergence
    if divergence is None:
        return "the same calls"
    first, second = comparison.first, comparison.second
    index, sets = divergence.index, comparison.codes.sets
    if divergence.kind == "end":
        return _describe_end(comparison, divergence)
    if divergence.kind == "function":
        return _describe_other_function(comparison, divergence)
    name = _function_name(comparison, first, index)
    if divergence.kind == "given":
        differs = given_differs(sets[first.given[index]], sets[second.given[index]])
        return f"{name} was called {differs}"
    if divergence.kind == "result":
        differs = result_differs(sets[first.result[index]], sets[second.result[index]])
        return f"{name} {differs}"
    return (
        f"{name} was called on {_describe_object(first, index)}, in the other run on"
        f" {_describe_object(second, index)}"
    )


def _function_name(comparison: RankComparison, thread: Thread, index: int) -> str:
    return short(".".join(comparison.codes.functions[thread.function[index]]))


def _describe_end(comparison: RankComparison, divergence: Divergence) -> str:
    more = f"and {sum(divergence.extra) - 1:,} more calls"
    if divergence.extra[0]:
        name = _function_name(comparison, comparison.first, divergence.index)
        return f"the other run calls no more, this one goes on: {name} {more}"
    name = _function_name(comparison, comparison.second, divergence.index)
    return f"this run calls no more, the other one goes on: {name} {more}"


def _describe_other_function(comparison: RankComparison, divergence: Divergence) -> str:
    first = _function_name(comparison, comparison.first, divergence.index)
    second = _function_name(comparison, comparison.second, divergence.index)
    only_first, only_second = divergence.extra
    if only_first:
        more = f", nor the {only_first - 1} calls after it" if only_first > 1 else ""
        return f"the other run does not call {first} here{more}"
    if only_second:
        more = f" and makes {only_second - 1} more calls" if only_second > 1 else ""
        return f"the other run calls {second} here{more}"
    return f"{first} is called, in the other run {second}"


def _describe_object(thread: Thread, index: int) -> str:
    first_use = int(thread.object[index])
    if first_use == index:
        return "an object that this step had not used before"
    return f"the object of {index - first_use:,} calls before"


def place(comparison: RankComparison, divergence: Divergence) -> tuple[str, int | None]:
    """Task and step of the first call that differs, in the run that makes it."""
    index = divergence.index
    thread = comparison.first if index < len(comparison.first) else comparison.second
    step = int(thread.step[index])
    return TASKS[int(thread.task[index])], None if step < 0 else step


def where(comparison: RankComparison, divergence: Divergence) -> str:
    """``step 3``, ``evaluation batch 2`` or ``outside of the steps``."""
    task, step = place(comparison, divergence)
    if task == "train":
        return f"step {step}"
    return f"evaluation batch {step}" if task else "outside of the steps"


def context(comparison: RankComparison, divergence: Divergence) -> Iterator[tuple[str, str]]:
    """The calls around the divergence: (" ", "<" or ">", call), those that are the same without a
    sign, indented as they were nested."""
    first, second = comparison.first, comparison.second
    index = divergence.index
    start = max(index - BEFORE, 0)
    depths = [thread.depth[start : index + AFTER] for thread in (first, second)]
    least_depth = min(int(depth.min(initial=1 << 30)) for depth in depths)
    for i in range(start, index):
        yield " ", _line(comparison, first, i, least_depth)
    n_first, n_second = divergence.extra
    if divergence.kind == "end":
        n_first, n_second = min(n_first, AFTER), min(n_second, AFTER)
    elif not n_first and not n_second:
        n_first = n_second = 1
    for sign, thread, n in (("<", first, n_first), (">", second, n_second)):
        for i in range(index, index + min(n, 2 * AFTER)):
            yield sign, _line(comparison, thread, i, least_depth)
    first_alike, second_alike = index + n_first, index + n_second
    n_after = min(AFTER, len(first) - first_alike, len(second) - second_alike)
    for i in range(n_after):
        if first.function[first_alike + i] != second.function[second_alike + i]:
            break
        yield " ", _line(comparison, first, first_alike + i, least_depth)


def _line(comparison: RankComparison, thread: Thread, index: int, least_depth: int) -> str:
    codes = comparison.codes
    module, name = codes.functions[thread.function[index]]
    given, result = codes.sets[thread.given[index]], codes.sets[thread.result[index]]
    indentation = "  " * max(int(thread.depth[index]) - least_depth, 0)
    return indentation + call(module, name, given, result)


def lines(
    comparisons: list[RankComparison], unpaired: tuple[Any, Any], names: tuple[str, str]
) -> Iterator[str]:
    n_first = sum(len(comparison.first) for comparison in comparisons)
    n_second = sum(len(comparison.second) for comparison in comparisons)
    yield f"< {names[0]}   {n_first:,} calls"
    yield f"> {names[1]}   {n_second:,} calls"
    for name, ranks in zip(names, unpaired, strict=True):
        if ranks:
            yield f"only {name} has calls of rank {', '.join(map(str, ranks))}"
    for comparison in comparisons:
        rank = f"rank {comparison.rank}: " if len(comparisons) > 1 else ""
        divergence = comparison.divergence
        if divergence is None:
            yield f"{rank}{because(comparison)}"
            continue
        yield f"{rank}{where(comparison, divergence)}: {because(comparison)}"
        for sign, text in context(comparison, divergence):
            yield f"  {sign} {text}"
        yield from _count_lines(comparison)


def _count_lines(comparison: RankComparison) -> Iterator[str]:
    if not comparison.counts:
        return
    rows = [("not called equally often", "<", ">", "")]
    for name, (a, b) in list(comparison.counts.items())[:_FUNCTIONS]:
        rows.append((short(".".join(name)), f"{a:,}", f"{b:,}", f"{b - a:+,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for title, *numbers in rows:
        cells = [f"{number:>{width}}" for number, width in zip(numbers, widths[1:], strict=True)]
        yield f"  {title:{widths[0]}}  {'  '.join(cells)}".rstrip()
    if len(comparison.counts) > _FUNCTIONS:
        yield f"  {len(comparison.counts) - _FUNCTIONS} more functions: --json"


def document(comparisons: list[RankComparison], unpaired: tuple[Any, Any]) -> dict[str, Any]:
    are_equal = all(comparison.divergence is None for comparison in comparisons)
    return {
        "equal": not any(unpaired) and are_equal,
        "ranks": [_rank_part(comparison) for comparison in comparisons],
        "ranks_of_one": [list(ranks) for ranks in unpaired],
    }


def _rank_part(comparison: RankComparison) -> dict[str, Any]:
    part = None
    divergence = comparison.divergence
    if divergence is not None:
        task, step = place(comparison, divergence)
        part = {
            "kind": divergence.kind,
            "task": task,
            "step": step,
            "call": divergence.index,
            "because": because(comparison),
            "context": [[sign, text] for sign, text in context(comparison, divergence)],
        }
    by_function = {".".join(name): list(pair) for name, pair in comparison.counts.items()}
    return {
        "rank": comparison.rank,
        "calls": [len(comparison.first), len(comparison.second)],
        "divergence": part,
        "by_function": by_function,
    }


def difference(
    first: Run, second: Run, names: tuple[str, str]
) -> tuple[dict[str, Any], Iterable[str]]:
    """Where two runs begin to call different things; see ``voirkit.instrument.Instrument``."""
    comparisons, unpaired = compare(first, second)
    return document(comparisons, unpaired), lines(comparisons, unpaired, names)


_MISSING = object()
_LONGEST = 100  # characters of a call


def call(
    module: str, name: str, given: Mapping[str, Any], result: Mapping[str, Any] | None = None
) -> str:
    """``F.dropout(float32 [4, 8], p=0.1) -> float32 [4, 8]``; without the result if that is left
    out."""
    args = given.get("args", [])
    if given.get("bound"):
        args = args[1:]
    words = [value(argument) for argument in args]
    words += [f"{key}={value(argument)}" for key, argument in given.get("kwargs", {}).items()]
    text = f"{short(f'{module}.{name}')}({_cut(', '.join(words))})"
    if result and "error" in result:
        return f"{text} raised {result['error']}"
    if result and result.get("returns") is not None:
        return f"{text} -> {value(result['returns'])}"
    return text


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def value(summary: Any) -> str:
    """A summary of a value, as short as possible."""
    if not isinstance(summary, dict):
        return repr(summary)
    if "tensor" in summary:
        device = summary.get("device", "cpu")
        on_device = f" on {device}" if device != "cpu" else ""
        return f"{summary.get('dtype')} {summary.get('shape')}{on_device}"
    kind = str(summary.get("type", "?")).rpartition(".")[2]
    items = summary.get("items")
    if isinstance(items, (list, dict)) and len(items) == summary.get("n"):
        return _describe_items(kind, items)
    return f"{kind} of {summary['n']}" if "n" in summary else f"a {kind}"


def _describe_items(kind: str, items: list[Any] | dict[str, Any]) -> str:
    if isinstance(items, dict):
        return "{" + ", ".join(f"{key}: {value(item)}" for key, item in items.items()) + "}"
    words = ", ".join(map(value, items))
    if kind == "list":
        return f"[{words}]"
    return f"({words})" if kind == "tuple" else f"{kind}({words})"


def given_differs(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """``with p=0.5, in the other run with p=0.1``: what two calls of a function were given that is
    not the same; three things at most."""
    differences = [*_differences_given(first, second)]
    named = differences[:3]
    n_more = len(differences) - len(named)
    more = f" (and {n_more} more differences)" if n_more else ""
    of_first = " and ".join(a for a, _ in named)
    of_second = " and ".join(b for _, b in named)
    return f"{of_first}, in the other run {of_second}{more}"


def _differences_given(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    n_bound = 1 if first.get("bound") and second.get("bound") else 0
    pairs = zip_longest(first.get("args", []), second.get("args", []), fillvalue=_MISSING)
    for i, (a, b) in enumerate(pairs):
        where = f"argument {i + 1 - n_bound}" if i >= n_bound else "self"
        yield from _differences_of(a, b, ("with ", f" as {where}"), f"without {where}")
    of_first, of_second = first.get("kwargs", {}), second.get("kwargs", {})
    for key in dict.fromkeys([*of_first, *of_second]):
        a, b = of_first.get(key, _MISSING), of_second.get(key, _MISSING)
        yield from _differences_of(a, b, (f"with {key}=", ""), f"without {key}")


def _differences_of(
    a: Any, b: Any, around: tuple[str, str], without: str
) -> Iterator[tuple[str, str]]:
    """The words for one argument, if it is not the same; ``around``: those before and after its
    value."""
    before, after = around
    if a is _MISSING or b is _MISSING:
        of_first = without if a is _MISSING else f"{before}{value(a)}{after}"
        of_second = without if b is _MISSING else f"{before}{value(b)}{after}"
        yield of_first, of_second
    elif not same(a, b):
        of_first, of_second = apart(a, b)
        yield f"{before}{of_first}{after}", f"{before}{of_second}{after}"


def apart(first: Any, second: Any) -> tuple[str, str]:
    """Two values that are not the same, each in words that tell them apart."""
    a, b = value(first), value(second)
    if not (_is_tensor(first) and _is_tensor(second)):
        return (a, b) if a != b else (str(first), str(second))
    for key, name in (("grad", "requires_grad"), ("device", "device"), ("tensor", "type")):
        if first.get(key) == second.get(key) or (key == "device" and a != b):
            continue
        a, b = f"{a}, {name}={first.get(key)}", f"{b}, {name}={second.get(key)}"
    return a, b


def _is_tensor(summary: Any) -> bool:
    return isinstance(summary, dict) and "tensor" in summary


def result_differs(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """``returned float32 [4], in the other run float32 [8]``, or which exceptions were raised."""
    error, other_error = first.get("error"), second.get("error")
    if error and other_error:
        return f"raised {error}, in the other run {other_error}"
    if error:
        return f"raised {error}, in the other run it did not"
    if other_error:
        return f"returned, in the other run it raised {other_error}"
    a, b = apart(first.get("returns"), second.get("returns"))
    return f"returned {a}, in the other run {b}"
