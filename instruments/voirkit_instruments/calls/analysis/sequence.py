"""The calls of the thread that trains, one after the other, as numbers that mean the same in two runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.runs.tables.parquet import quoted
from voirkit_instruments.calls.analysis.nested import Calls, joined
from voirkit_instruments.calls.analysis.records import KIND, Recorded
from voirkit_instruments.calls.analysis.when import TASKS, When

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_TRAIN = TASKS.index("train")
# What asks workers for batches is called as often as it has to wait, and what takes tensors from them is given numbers of files: both,
# and all inside of them, are no part of what a program does.
_WAITS, _TAKES = "_MultiProcessingDataLoaderIter.", "torch.multiprocessing."
_ON_OBJECTS = (".__call__", ".step", ".zero_grad")  # methods of what lives as long as the training: modules, optimizers, schedulers


class Codes:
    """Numbers for functions, sets of arguments and results; the same for both runs.

    Attributes:
        functions: (module, name) by number.
        sets: By number.
    """

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
    """The calls of one thread by their start; arrays of shape (n,).

    Attributes:
        start_ns, end_ns: On the host's clock.
        function: What was called.
        given: With what.
        result: What came of it: a value or an exception.
        object: Where in the sequence its object was first used in the same step; -1 where that says nothing.
        task, step, depth: As of ``Calls``.
    """

    start_ns: Array
    end_ns: Array
    function: Array
    given: Array
    result: Array
    object: Array
    task: Array
    step: Array
    depth: Array

    def __len__(self) -> int:
        return len(self.start_ns)


def thread_of(run: Run, rank: int, when: When, codes: Codes) -> Thread:
    """What the thread that trains has called; where none is known to train, the one that has called most."""
    found = Recorded(run, rank, when, _trains(run, rank, when))
    calls = joined([*found.chunks()])
    calls = calls.take(np.lexsort((-calls.duration_ns, calls.start_ns)))
    waits = np.array([name.startswith(_WAITS) or module.startswith(_TAKES) for module, name in found.functions], dtype=bool)[calls.function]
    calls = calls.take(~within(calls.start_ns, calls.start_ns + calls.duration_ns, waits))
    functions = np.array([codes.function(name) for name in found.functions], dtype=np.int64)
    given = [codes.set({key: value for key, value in one.items() if key not in ("returns", "error")}) for one in found.arguments]
    results = [codes.set({key: one[key] for key in ("returns", "error") if key in one}) for one in found.arguments]
    given_of, result_of = np.array(given, dtype=np.int64)[calls.args], np.array(results, dtype=np.int64)[calls.args]
    of_methods = np.array([name.endswith(_ON_OBJECTS) for _, name in found.functions], dtype=bool)[calls.function]
    return Thread(
        calls.start_ns, calls.start_ns + calls.duration_ns, functions[calls.function], given_of, result_of,
        _first_use(calls, of_methods), calls.task, calls.step, calls.depth,
    )  # fmt: skip


def within(start_ns: Array, end_ns: Array, chosen: Array) -> Array:
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
