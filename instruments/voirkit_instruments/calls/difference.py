"""The first call that differs between two runs, as text for people and as JSON for programs.

The calls of the training thread are compared in order: by function, then by arguments and results.
Apart from the first difference, only the number of calls of each function is compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    Recorded,
    When,
    joined,
    ranks_of,
    unknown,
    when,
)

# Calls that depend on timing, not on the program: the multi-process loader iterator calls its
# methods as often as it has to wait, and receiving tensors from workers passes numbers of file
# descriptors. These calls, and all calls inside them, are left out.
_WAITS, _TAKES = "_MultiProcessingDataLoaderIter.", "torch.multiprocessing."
_OUTCOMES = ("returns", "error")  # keys of the results of a call

Values = Mapping[str, Any]


class Codes:
    """Numbers for function names, and for summaries of arguments and results; shared by both
    runs."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: Any) -> int:
        number = self._numbers.setdefault(json.dumps(value, sort_keys=True), len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number

    def numbers(self, values: Iterable[Any]) -> Array:
        return np.array([self.number(value) for value in values], dtype=np.int64)


@dataclass(frozen=True)
class Thread:
    """The calls of one thread in order of start, as arrays of shape (n,). ``function``,
    ``arguments`` and ``result`` are numbers of ``Codes``; the other fields are as in ``Calls``."""

    start_ns: Array
    end_ns: Array
    function: Array
    arguments: Array
    result: Array  # the returned value, or the exception
    task: Array
    step: Array
    depth: Array

    def __len__(self) -> int:
        return len(self.start_ns)


def read_thread(run: Run, rank: int, steps: When, codes: Codes) -> Thread:
    """Read the calls of the training thread or, if it is unknown, of the thread with most calls."""
    recorded = Recorded(run, rank, steps, _training_thread(run, rank, steps))
    calls = joined([*recorded.chunks()])
    calls = calls.select(np.lexsort((-calls.duration_ns, calls.start_ns)))
    waits = [
        name.startswith(_WAITS) or module.startswith(_TAKES) for module, name in recorded.functions
    ]
    waiting = np.array(waits, dtype=bool)[calls.function]
    calls = calls.select(~within(calls.start_ns + calls.duration_ns, waiting))
    arguments, results = [], []
    for values in recorded.arguments:
        arguments.append({key: item for key, item in values.items() if key not in _OUTCOMES})
        results.append({key: values[key] for key in _OUTCOMES if key in values})
    functions = codes.numbers(map(".".join, recorded.functions))
    return Thread(
        calls.start_ns,
        calls.start_ns + calls.duration_ns,
        functions[calls.function],
        codes.numbers(arguments)[calls.args],
        codes.numbers(results)[calls.args],
        calls.task,
        calls.step,
        calls.depth,
    )


def within(end_ns: Array, selected: Array) -> Array:
    """True for each call that is selected, or lies inside a selected call. The calls are of one
    thread, ascending by start, of the same start the longer first. Shape (n,) each."""
    selected_ends = np.where(selected, end_ns, np.iinfo(np.int64).min)
    return selected | (end_ns <= np.maximum.accumulate(selected_ends))


def _training_thread(run: Run, rank: int, steps: When) -> tuple[str, int, int] | None:
    cursor = run.connection().execute(
        f"SELECT host, pid, tid FROM spans WHERE kind = {quoted(KIND)} AND rank = {rank}"
        " GROUP BY ALL ORDER BY count(*) DESC, tid"
    )
    threads: list[Any] = cursor.fetchall()
    return steps.thread if steps.thread in threads else threads[0]


# after calls that only one run makes, this many calls must be the same in both runs for a match
LIKE = 5
_FURTHEST = 200  # most calls of one run that are skipped in the search for the next match
_NUMBERS = ("float", "int")  # types of numbers whose value may be left out


@dataclass(frozen=True)
class Divergence:
    """The first difference between two runs. Calls are numbered by their position in the training
    thread."""

    kind: str  # "function", "given" (arguments), "result" or "end" (one run has no more calls)
    index: int  # position of the first call that differs; the same position in both runs
    # number of calls that only the first and only the second run makes here; (0, 0) if unknown
    extra: tuple[int, int] = (0, 0)


def first_divergence(first: Thread, second: Thread, codes: Codes) -> Divergence | None:
    """Return the first difference between two sequences of calls; None if they are equal. Starts
    and ends of calls are compared in the order in which they happened."""
    n = min(len(first), len(second))
    is_other = first.function[:n] != second.function[:n]
    differs = is_other | _differ(codes.values, first.arguments[:n], second.arguments[:n])
    index = int(np.argmax(differs)) if differs.any() else n
    results = np.flatnonzero(_differ(codes.values, first.result[:index], second.result[:index]))
    # Only results of calls that ended before the differing call began: later results may differ
    # only because of that call.
    if index < len(first):
        results = results[first.end_ns[results] <= first.start_ns[index]]
    if len(results):
        return Divergence("result", int(results[np.argmin(first.end_ns[results])]))
    if index < n:
        if is_other[index]:
            return Divergence("function", index, _extra(first, second, index))
        return Divergence("given", index)
    if len(first) != len(second):
        return Divergence("end", n, (len(first) - n, len(second) - n))
    return None


def _extra(first: Thread, second: Thread, index: int) -> tuple[int, int]:
    """Return the number of calls that only the first, and only the second run makes before the
    sequences match again; (0, 0) if unknown."""
    a, b = first.function[index:], second.function[index:]
    for n in range(1, _FURTHEST + 1):
        if _begin_alike(a[n:], b):
            return n, 0
        if _begin_alike(b[n:], a):
            return 0, n
    return 0, 0


def _begin_alike(first: Array, second: Array) -> bool:
    n = min(LIKE, len(first), len(second))
    return bool(n and np.array_equal(first[:n], second[:n]))


def _differ(values: Sequence[Any], first: Array, second: Array) -> Array:
    """True where the values behind two sequences of numbers differ."""
    differs: Array = first != second
    verdicts: dict[tuple[int, int], bool] = {}
    for index in np.flatnonzero(differs).tolist():
        pair = int(first[index]), int(second[index])
        if pair not in verdicts:
            verdicts[pair] = any(differences(*(values[number] for number in pair)))
        differs[index] = verdicts[pair]
    return differs


def differences(first: Any, second: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each difference between two summaries as (path, first value, second value); a missing
    value is None. A number that was left out (``{"type": "float"}``) equals any number of its
    type."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in {**first, **second}:
            inner = f"{path}.{key}" if path else str(key)
            yield from differences(first.get(key), second.get(key), inner)
    elif _have_items(first) and _have_items(second) and len(first) == len(second):
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            yield from differences(a, b, f"{path}.{i}")
    elif not (
        repr(first) == repr(second) or _is_left_out(first, second) or _is_left_out(second, first)
    ):
        yield path, first, second


def _have_items(summary: Any) -> bool:
    """True for a list that holds dictionaries or lists, not only plain values."""
    return isinstance(summary, list) and any(isinstance(item, (dict, list)) for item in summary)


def _is_left_out(summary: Any, number: Any) -> bool:
    """True if ``summary`` gives only the type of a number, and ``number`` has this type."""
    kind = type(number).__name__
    return kind in _NUMBERS and summary == {"type": kind}


@dataclass(frozen=True)
class RankComparison:
    """Comparison of one rank of two runs, with the calls of the training thread of each."""

    rank: int
    first: Thread
    second: Thread
    codes: Codes
    divergence: Divergence | None  # the first difference; None if the runs are equal

    def name(self, thread: Thread, index: int) -> str:
        return short(self.codes.values[thread.function[index]])

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return, for the functions that are not called equally often, the number of calls in each
        run; the greatest difference first."""
        names = self.codes.values
        a = np.bincount(self.first.function, minlength=len(names))
        b = np.bincount(self.second.function, minlength=len(names))
        order = np.argsort(-np.abs(a - b), kind="stable")
        unequal = order[a[order] != b[order]].tolist()
        return {names[i]: (int(a[i]), int(b[i])) for i in unequal}


def compare(
    first: Run, second: Run
) -> tuple[list[RankComparison], tuple[Sequence[int], Sequence[int]]]:
    """Compare the ranks that both runs have. Also return the ranks that only the first, and only
    the second run has. Raises RunDirectoryError: a run has no calls."""
    ranks = _ranks_with_calls(first), _ranks_with_calls(second)
    steps = when(first), when(second)
    comparisons = []
    for rank in ranks[0]:
        if rank not in ranks[1]:
            continue
        codes = Codes()
        a = read_thread(first, rank, steps[0].get(rank) or unknown(), codes)
        b = read_thread(second, rank, steps[1].get(rank) or unknown(), codes)
        comparisons.append(RankComparison(rank, a, b, codes, first_divergence(a, b, codes)))
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


BEFORE, AFTER = 6, 4  # calls shown before the differing call, and from the differing call on
_FUNCTIONS = 20


def because(comparison: RankComparison) -> str:
    """Return a sentence about the difference, without its place; ``the same calls`` if there is
    none."""
    divergence = comparison.divergence
    if divergence is None:
        return "the same calls"
    index, n_more = divergence.index, sum(divergence.extra) - 1
    if divergence.kind == "end":
        if divergence.extra[0]:
            name = comparison.name(comparison.first, index)
            text = f"the other run calls no more, this one goes on: {name}"
        else:
            name = comparison.name(comparison.second, index)
            text = f"this run calls no more, the other one goes on: {name}"
        return f"{text} and {n_more:,} more calls"
    name = comparison.name(comparison.first, index)
    if divergence.kind == "given":
        first, second = comparison.first.arguments, comparison.second.arguments
        return (
            f"{name} was called {_first_difference(comparison.codes, first[index], second[index])}"
        )
    if divergence.kind == "result":
        first, second = comparison.first.result, comparison.second.result
        return f"{name} ended {_first_difference(comparison.codes, first[index], second[index])}"
    other_name = comparison.name(comparison.second, index)
    more = f" and {n_more} more calls" if n_more > 0 else ""
    if divergence.extra[0]:
        return f"the other run does not call {name}{more} here"
    if divergence.extra[1]:
        return f"the other run calls {other_name}{more} here"
    return f"{name} is called, in the other run {other_name}"


def _first_difference(codes: Codes, first: int, second: int) -> str:
    """Return the first difference as text: ``with p=0.5, in the other run with p=0.1``."""
    path, a, b = next(differences(codes.values[first], codes.values[second]))
    name = path.removeprefix("kwargs.")
    return f"with {name}={_cut(repr(a))}, in the other run with {name}={_cut(repr(b))}"


def place(comparison: RankComparison, divergence: Divergence) -> tuple[str, int | None]:
    """Return task and step of the first call that differs, from a run that makes this call."""
    index = divergence.index
    thread = comparison.first if index < len(comparison.first) else comparison.second
    step = int(thread.step[index])
    return TASKS[int(thread.task[index])], None if step < 0 else step


def where(comparison: RankComparison, divergence: Divergence) -> str:
    """Return the place as text: ``step 3``, ``evaluation batch 2`` or ``outside of the steps``."""
    task, step = place(comparison, divergence)
    if task == "train":
        return f"step {step}"
    return f"evaluation batch {step}" if task else "outside of the steps"


def context(comparison: RankComparison, divergence: Divergence) -> Iterator[tuple[str, str]]:
    """Yield the calls before the divergence, then the calls of each run from it on, as (" ", "<" or
    ">", call). Calls are indented by their depth."""
    first, second = comparison.first, comparison.second
    index = divergence.index
    start = max(index - BEFORE, 0)
    depths = [thread.depth[start : index + AFTER] for thread in (first, second)]
    least_depth = int(np.concatenate(depths).min())

    def line(thread: Thread, i: int) -> str:
        values = comparison.codes.values
        indentation = "  " * max(int(thread.depth[i]) - least_depth, 0)
        name = comparison.name(thread, i)
        return indentation + call(name, values[thread.arguments[i]], values[thread.result[i]])

    for i in range(start, index):
        yield " ", line(first, i)
    n_first, n_second = divergence.extra
    if not n_first and not n_second:
        n_first = n_second = 1
    for sign, thread, n in (("<", first, n_first), (">", second, n_second)):
        for i in range(index, index + min(n, AFTER)):
            yield sign, line(thread, i)


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
        yield from _count_lines(comparison.counts())


def _count_lines(counts: Mapping[str, tuple[int, int]]) -> Iterator[str]:
    if not counts:
        return
    rows = [("not called equally often", "<", ">", "")]
    for name, (a, b) in list(counts.items())[:_FUNCTIONS]:
        rows.append((short(name), f"{a:,}", f"{b:,}", f"{b - a:+,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for title, *numbers in rows:
        cells = [f"{number:>{width}}" for number, width in zip(numbers, widths[1:], strict=True)]
        yield f"  {title:{widths[0]}}  {'  '.join(cells)}".rstrip()
    if len(counts) > _FUNCTIONS:
        yield f"  {len(counts) - _FUNCTIONS} more functions: --json"


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
    return {
        "rank": comparison.rank,
        "calls": [len(comparison.first), len(comparison.second)],
        "divergence": part,
        "by_function": {name: list(pair) for name, pair in comparison.counts().items()},
    }


def difference(
    first: Run, second: Run, names: tuple[str, str]
) -> tuple[dict[str, Any], Iterable[str]]:
    """Find the first call that differs between two runs; see ``voirkit.instrument.Instrument``."""
    comparisons, unpaired = compare(first, second)
    return document(comparisons, unpaired), lines(comparisons, unpaired, names)


_LONGEST = 100  # most characters that are shown of the arguments of a call


def call(name: str, arguments: Values, result: Values) -> str:
    """Return a call as text: ``F.dropout(float32 [4, 8], p=0.1) -> float32 [4, 8]``."""
    positional = arguments.get("args", [])
    if arguments.get("bound"):
        positional = positional[1:]
    words = [value(argument) for argument in positional]
    keywords = arguments.get("kwargs", {})
    words += [f"{key}={value(argument)}" for key, argument in keywords.items()]
    text = f"{name}({_cut(', '.join(words))})"
    if "error" in result:
        return f"{text} raised {result['error']}"
    if result.get("returns") is not None:
        return f"{text} -> {value(result['returns'])}"
    return text


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def value(summary: Any) -> str:
    """Return the summary of a value as text, as short as possible."""
    if not isinstance(summary, dict):
        return repr(summary)
    if "tensor" in summary:
        device = summary.get("device", "cpu")
        on_device = f" on {device}" if device != "cpu" else ""
        return f"{summary.get('dtype')} {summary.get('shape')}{on_device}"
    kind = str(summary.get("type", "?")).rpartition(".")[2]
    n, items = summary.get("n"), summary.get("items")
    if isinstance(items, dict) and len(items) == n:
        return "{" + ", ".join(f"{key}: {value(item)}" for key, item in items.items()) + "}"
    if isinstance(items, list) and len(items) == n:
        words = ", ".join(map(value, items))
        return f"[{words}]" if kind == "list" else f"{kind}({words})"
    return f"a {kind}" if n is None else f"{kind} of {n}"
