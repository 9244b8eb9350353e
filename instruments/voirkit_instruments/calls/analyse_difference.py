"""The calls of the thread that trains, one after the other, as numbers that mean the same in two runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.errors import RunDirectoryError
from voirkit.runs.tables.parquet import quoted
from voirkit_instruments.calls.analyse_records import KIND, Calls, Recorded, joined, ranks_of
from voirkit_instruments.calls.analyse_when import TASKS, When, unknown, when

if TYPE_CHECKING:
    from voirkit.runs.opened import Run


_TRAIN = TASKS.index("train")
# What asks workers for batches is called as often as it has to wait, and what takes tensors from them is given numbers of files: both,
# and all inside of them, are no part of what a program does.
_WAITS, _TAKES = "_MultiProcessingDataLoaderIter.", "torch.multiprocessing."
_ON_OBJECTS = (".__call__", ".step", ".zero_grad")  # methods of what lives as long as the training: modules, optimizers, schedulers


class Codes:
    """Numbers for functions, sets of arguments and results; the same for both runs."""

    def __init__(self) -> None:
        self.functions: list[tuple[str, str]] = []
        self.sets: list[Mapping[str, Any]] = []
        self._functions: dict[tuple[str, str], int] = {}
        self._sets: dict[str, int] = {}

    def function(self, name: tuple[str, str]) -> int:
        """The number of a function."""
        found = self._functions.setdefault(name, len(self.functions))
        if found == len(self.functions):
            self.functions.append(name)
        return found

    def set(self, values: Mapping[str, Any]) -> int:
        """The number of a set."""
        found = self._sets.setdefault(json.dumps(values, sort_keys=True), len(self.sets))
        if found == len(self.sets):
            self.sets.append(values)
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
    """By call, where its object was first used in the same step of training.

    Ids are given again when an object is gone, so that only those count that are used in most of the steps.
    """
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
    """The ranks that both have, and those that only the first and only the second has.

    Raises:
        RunDirectoryError: One of them has no calls.
    """
    runs = (first, second)
    ranks = [ranks_of(run) for run in runs]
    for run, found in zip(runs, ranks, strict=True):
        if not found:
            raise RunDirectoryError("no calls are recorded there.", where=run.path, next="Record them: voirkit --calls SCRIPT")
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
