"""``--format traincheck``: calls and parameters as a trace for TrainCheck's traincheck-infer and
traincheck-check (0.2.0).

Each process has a file of JSON lines: two lines for each call, and one for each recorded change of
a parameter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.run_steps import read_steps
from voirkit.analysis.steps import Steps
from voirkit.errors import CommandLineError, VoirkitError
from voirkit.export.trace_events import stem
from voirkit.report.output import STDOUT, text
from voirkit.runs.opened import Run
from voirkit.runs.parquet import quoted
from voirkit.runs.selection import Selection
from voirkit.runs.trace_files import Process
from voirkit_instruments.calls.analyse_records import TASKS, When, unknown, when
from voirkit_instruments.traincheck.export_sweep import (
    EVALUATION,
    INIT,
    KIND,
    TRAINING,
    Call,
    Coming,
    Spelling,
    Sweep,
    Variables,
    moments,
)

NAME, SUFFIX, IS_TEXT = "traincheck", "", True
PREFIX = "trace_"
_CALL = "kind = 'call'"
_PARAMETER = f"kind = {quoted(KIND)}"
_FLAGS = "voirkit --calls --parameters SCRIPT"


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write a file for each process into a folder.

    Raises:
        CommandLineError: The run does not have the selected steps or ranks.
        VoirkitError: The run has no record of calls, or ``target`` is standard output.
    """
    if target == STDOUT:
        raise VoirkitError(
            "it is a folder of files.",
            where="--format traincheck -o -",
            next="Give a folder's name with -o.",
        )
    export = _Export(run, selection)
    kinds = export.kinds()
    if not kinds.get("call"):
        _refuse(run, kinds)
    if not kinds.get(KIND):
        run.warnings.append(
            "this run has no record of parameters, and TrainCheck will see calls only. Record"
            f" them: {_FLAGS}"
        )
    return export.files(target)


def _refuse(run: Run, kinds: Mapping[str, int]) -> None:
    if run.connection().execute(f"SELECT 1 FROM spans WHERE {_CALL} LIMIT 1").fetchall():
        raise VoirkitError(
            "no call of this run lies in what is selected.", where="--format traincheck"
        )
    missing = "calls" if kinds.get(KIND) else "calls, nor of parameters"
    raise VoirkitError(
        f"this run has no record of {missing}.",
        where="--format traincheck",
        next=f"Record it: {_FLAGS}",
    )


class _Export:
    """Export of one run: writes a file for each process from shared queries and tables."""

    def __init__(self, run: Run, selection: Selection) -> None:
        self._run = run
        self._steps = {rank.rank: rank.steps for rank in read_steps(run)}
        self._stretches = (
            None if selection.steps is None else stretches(selection.steps, self._steps)
        )
        events = run.events(Selection(ranks=selection.ranks))
        if self._stretches is not None:
            events = (
                f"SELECT * FROM ({events}) WHERE rank IN ({', '.join(map(str, self._stretches))})"
            )
        self._chosen = (
            f"SELECT * FROM ({events}) WHERE {_PARAMETER} OR ({_CALL} AND {self._within()})"
        )

    def _within(self) -> str:
        """Return the SQL condition that selects calls in the chosen steps, and calls of optimizers'
        constructors."""
        if self._stretches is None:
            return "true"
        during = [
            f"(rank = {rank} AND start_ns >= {low} AND start_ns < {high})"
            for rank, (low, high) in self._stretches.items()
        ]
        return (
            f"({' OR '.join(during)} OR (category LIKE 'torch.optim.%' AND name LIKE"
            " '%.\\_\\_init\\_\\_' ESCAPE '\\'))"
        )

    def _rows(self, query: str) -> list[Any]:
        return [row for batch in self._run.fetch(query) for row in batch]

    def kinds(self) -> dict[str, int]:
        """Count the calls and the records of parameters."""
        return dict(self._rows(f"SELECT kind, count(*) FROM ({self._chosen}) GROUP BY kind"))

    def files(self, target: str) -> list[str]:
        self._when = when(self._run)
        self._spelling = Spelling(
            self._rows(f"SELECT DISTINCT category, name, args FROM ({self._chosen}) WHERE {_CALL}")
        )
        rows = self._rows(
            f"SELECT DISTINCT name FROM ({self._chosen}) WHERE {_PARAMETER} AND category = 'seen'"
        )
        self._names = [name for (name,) in rows]
        recorded = set(self._rows(f"SELECT DISTINCT host, rank, pid FROM ({self._chosen})"))
        self._ranks = {rank for _, rank, _ in recorded}
        processes = [extent.process for extent in self._run.extents()]
        paths: list[str] = []
        for process in processes:
            if (process.host, process.rank, process.pid) not in recorded:
                continue
            pid = len(paths) + 1
            path = os.path.join(target, f"{PREFIX}{stem(process)}.jsonl")
            with text(path) as write:
                for line in self._lines(process, pid, process.offset_ns - processes[0].offset_ns):
                    write(line)
            paths.append(path)
        return paths

    def _lines(self, process: Process, pid: int, shift_ns: int) -> Iterator[str]:
        of_process = (
            f"host = {quoted(process.host)} AND rank = {process.rank} AND pid = {process.pid}"
        )
        calls, parameters = (
            f"SELECT * FROM ({self._chosen}) WHERE {of_process} AND {kind}"
            for kind in (_CALL, _PARAMETER)
        )
        stages = Stages(self._when.get(process.rank) or unknown(), self._steps.get(process.rank))
        sweep = Sweep(
            pid,
            process.rank,
            shift_ns,
            self._coming(process, parameters),
            self._variables(parameters),
            parameters_by_optimizer(self._run, calls, parameters),
            stages.at_moment,
            self._begins(process),
        )
        spell = self._spelling.of
        columns = "start_ns, duration_ns, tid, coalesce(value, 0), category, name, args"
        query = f"SELECT {columns} FROM ({calls}) ORDER BY start_ns, duration_ns DESC, tid"
        for batch in self._run.fetch(query):
            times = np.array([row[:2] for row in batch], dtype=np.int64)
            places = stages.of(times[:, 0], times[:, 1])
            for row, (step, stage) in zip(batch, places, strict=True):
                start_ns, duration_ns, tid, object_id, *key = row
                end_ns = start_ns + duration_ns
                call = Call(start_ns, end_ns, tid, object_id, step, stage, spell(*key))
                yield from sweep.enter(call)
        yield from sweep.end()

    def _begins(self, process: Process) -> int:
        return -(1 << 62) if self._stretches is None else self._stretches[process.rank][0]

    def _coming(self, process: Process, parameters: str) -> Coming:
        condition = "true"
        if self._stretches is not None:
            _, end_ns = self._stretches[process.rank]
            condition = f"start_ns < {end_ns}"
        columns = "start_ns, start_ns + duration_ns, tid, category, name, value, number, args"
        order = "ORDER BY start_ns, category NOT IN ('step', 'zero_grad')"
        query = f"SELECT {columns} FROM ({parameters}) WHERE {condition} {order}"
        return Coming(moments(self._run.fetch(query)))

    def _variables(self, parameters: str) -> Variables:
        norms = self._rows(
            f"SELECT name, arg_min(number, start_ns) FROM ({parameters}) WHERE category = 'norm'"
            " GROUP BY name"
        )
        return Variables(self._names, dict(norms), len(self._ranks) > 1)


_TRAIN, _EVALUATION = TASKS.index("train"), TASKS.index("evaluation")


class Stages:
    """The step number and TrainCheck stage of any time in one rank.

    Steps are counted from 1, as TrainCheck does. Time before the first step is stage ``init``,
    step 0. Time after a step and in no step belongs to that step.
    """

    def __init__(self, when: When, steps: Steps | None) -> None:
        self._when = when
        self._starts: Array = (
            np.zeros(0, np.int64) if steps is None else np.sort(steps.train.start_ns)
        )

    def of(self, start_ns: Array, duration_ns: Array) -> list[tuple[int, str]]:
        """Return the step and stage of each call. An evaluation has the number of the training step
        before it."""
        task, number, _ = self._when.place(start_ns, duration_ns)
        before = np.searchsorted(self._starts, start_ns, side="right") - 1
        trains = task == _TRAIN
        step = np.where(trains, number, before) + 1
        stage = np.where(trains | (before >= 0), TRAINING, INIT)
        stage = np.where(task == _EVALUATION, EVALUATION, stage)
        return list(zip(step.tolist(), stage.tolist(), strict=True))

    def at_moment(self, moment_ns: int) -> tuple[int, str]:
        """Return the step and stage at a time."""
        return self.of(np.array([moment_ns]), np.zeros(1, np.int64))[0]


def stretches(
    selected: tuple[int | None, int | None], steps: Mapping[int, Steps]
) -> dict[int, tuple[int, int]]:
    """Return a dict from rank to the (start, end) of the selected steps in ns of the host's clock.
    The end is the start of the step after the last selected one.

    Args:
        selected: Step numbers (first, end), half open; None: no bound.
        steps: The steps of each rank.

    Raises:
        CommandLineError: No rank has the selected steps.
    """
    first, end = selected
    stretch_by_rank = {}
    for rank, rank_steps in steps.items():
        starts = np.sort(rank_steps.train.start_ns)
        if len(starts) > (first or 0):
            is_bounded = end is not None and end < len(starts)
            start_ns = int(starts[first]) if first else -(1 << 62)
            stretch_by_rank[rank] = start_ns, int(starts[end]) if is_bounded else 1 << 62
    if not stretch_by_rank:
        has = max((len(rank_steps.train) for rank_steps in steps.values()), default=0)
        where = f"--steps {'' if first is None else first}:{'' if end is None else end}"
        raise CommandLineError(
            "this run has no such steps.",
            where=where,
            next=f"It has {has}; the first is 0." if has else "",
        )
    return stretch_by_rank


_NUMBER = "CAST(json_extract_string({}, '$.optimizer') AS BIGINT) AS number"
# A `step` record of --parameters and a `step` call of --calls that overlap in one thread are the
# same optimizer step. A wrapper's own `step` call may enclose it. So calls that name the
# optimizer's class come first, then the shortest call.
_MET = """
WITH m AS (
    SELECT category AS what, tid, start_ns, start_ns + duration_ns AS end_ns, args
    FROM ({parameters}) WHERE category IN ('step', 'zero_grad')
), c AS (
    SELECT string_split(name, '.')[-1] AS what, string_split(name, '.')[-2] AS class,
        value, tid, start_ns, start_ns + duration_ns AS end_ns
    FROM ({calls}) WHERE value <> 0 AND string_split(name, '.')[-1] IN ('step', 'zero_grad')
)
SELECT {number}, value,
    bool_or(class IN ('Optimizer', json_extract_string(m.args, '$.class'))) AS is_named,
    min(c.end_ns - c.start_ns) AS shortest
FROM c ASOF JOIN m ON c.what = m.what AND c.tid = m.tid AND c.end_ns > m.start_ns
WHERE m.end_ns > c.start_ns GROUP BY number, value ORDER BY number, is_named DESC, shortest
"""


def parameters_by_optimizer(run: Run, calls: str, parameters: str) -> dict[int, Sequence[str]]:
    """Return the names of parameters by the object id of the optimizer that holds them."""
    names: dict[int, list[str]] = {}
    query = (
        f"SELECT DISTINCT {_NUMBER.format('args')}, name FROM ({parameters}) WHERE category ="
        " 'seen' ORDER BY ALL"
    )
    for batch in run.fetch(query):
        for number, name in batch:
            names.setdefault(number, []).append(name)
    by_object: dict[int, Sequence[str]] = {}
    numbers: set[int] = set()
    for batch in run.fetch(
        _MET.format(calls=calls, parameters=parameters, number=_NUMBER.format("m.args"))
    ):
        for number, object_id, *_ in batch:
            if number not in numbers:
                numbers.add(number)
                by_object[object_id] = sorted(
                    {*by_object.get(object_id, ()), *names.get(number, ())}
                )
    return by_object
