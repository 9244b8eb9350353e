"""``--format traincheck``: calls and parameters as TrainCheck records them, for its traincheck-infer and traincheck-check (0.2.0).

A file of JSON lines for each process: two for each call, one for each change that was seen of a parameter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.of_run import of_run
from voirkit.errors import VoirkitError
from voirkit.export.pfw import stem
from voirkit.report.output import STDOUT, text
from voirkit.runs.selection import Selection
from voirkit.runs.tables.parquet import quoted
from voirkit_instruments.calls.analysis.when import unknown, when
from voirkit_instruments.traincheck.export_moments import KIND, Coming, moments
from voirkit_instruments.traincheck.export_optimizers import held
from voirkit_instruments.traincheck.export_spelling import Spelling
from voirkit_instruments.traincheck.export_steps import Stages, stretches
from voirkit_instruments.traincheck.export_sweep import Call, Sweep
from voirkit_instruments.traincheck.export_variables import Variables

if TYPE_CHECKING:
    from voirkit.runs.opened import Run
    from voirkit.runs.tables.trace_tables import Process

NAME, SUFFIX, IS_TEXT = "traincheck", "", True
PREFIX = "trace_"
_CALL = "kind = 'call'"
_PARAMETER = f"kind = {quoted(KIND)}"
_FLAGS = "voirkit --calls --parameters SCRIPT"


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write a file for each process into a folder.

    Raises:
        CommandLineError: The run has no such steps or ranks.
        VoirkitError: The run has no record of calls; or one stream is asked for.
    """
    if target == STDOUT:
        raise VoirkitError("it is a folder of files.", where="--format traincheck -o -", next="Give a folder's name with -o.")
    export = _Export(run, selection)
    kinds = export.kinds()
    if not kinds.get("call"):
        _refuse(run, kinds)
    if not kinds.get(KIND):
        run.warnings.append(f"this run has no record of parameters, and TrainCheck will see calls only. Record them: {_FLAGS}")
    return export.files(target)


def _refuse(run: Run, kinds: Mapping[str, int]) -> None:
    if run.connection().execute(f"SELECT 1 FROM spans WHERE {_CALL} LIMIT 1").fetchall():
        raise VoirkitError("no call of this run lies in what is selected.", where="--format traincheck")
    missing = "calls" if kinds.get(KIND) else "calls, nor of parameters"
    raise VoirkitError(f"this run has no record of {missing}.", where="--format traincheck", next=f"Record it: {_FLAGS}")


class _Export:
    """What the files of one run share."""

    def __init__(self, run: Run, selection: Selection) -> None:
        self._run = run
        self._steps = {rank.rank: rank.steps for rank in of_run(run)}
        self._stretches = None if selection.steps is None else stretches(selection.steps, self._steps)
        events = run.events(Selection(ranks=selection.ranks))
        if self._stretches is not None:
            events = f"SELECT * FROM ({events}) WHERE rank IN ({', '.join(map(str, self._stretches))})"
        self._events = events
        self._chosen = f"SELECT * FROM ({events}) WHERE {_PARAMETER} OR ({_CALL} AND {self._within()})"

    def _within(self) -> str:
        """Of calls, those in the chosen steps; and how optimizers were made."""
        if self._stretches is None:
            return "true"
        during = [f"(rank = {rank} AND start_ns >= {low} AND start_ns < {high})" for rank, (low, high) in self._stretches.items()]
        return f"({' OR '.join(during)} OR (category LIKE 'torch.optim.%' AND name LIKE '%.\\_\\_init\\_\\_' ESCAPE '\\'))"

    def _rows(self, query: str) -> list[Any]:
        return [row for batch in self._run.fetch(query) for row in batch]

    def kinds(self) -> dict[str, int]:
        """How many calls and records of parameters there are."""
        return dict(self._rows(f"SELECT kind, count(*) FROM ({self._chosen}) GROUP BY kind"))

    def files(self, target: str) -> list[str]:
        """Write them; returns their names."""
        self._when = when(self._run)
        self._spelling = Spelling(self._rows(f"SELECT DISTINCT category, name, args FROM ({self._chosen}) WHERE {_CALL}"))
        seen = self._rows(f"SELECT DISTINCT name FROM ({self._chosen}) WHERE {_PARAMETER} AND category = 'seen'")
        self._names = [name for (name,) in seen]
        recorded = set(self._rows(f"SELECT DISTINCT host, rank, pid FROM ({self._chosen})"))
        self._ranks = {rank for _, rank, _ in recorded}
        processes = [one.process for one in self._run.extents()]
        written: list[str] = []
        for process in processes:
            if (process.host, process.rank, process.pid) not in recorded:
                continue
            pid = len(written) + 1
            path = os.path.join(target, f"{PREFIX}{stem(process)}.jsonl")
            with text(path) as put:
                for line in self._lines(process, pid, process.offset_ns - processes[0].offset_ns):
                    put(line)
            written.append(path)
        return written

    def _lines(self, process: Process, pid: int, shift_ns: int) -> Iterator[str]:
        own = f"host = {quoted(process.host)} AND rank = {process.rank} AND pid = {process.pid}"
        calls, parameters = (f"SELECT * FROM ({self._chosen}) WHERE {own} AND {kind}" for kind in (_CALL, _PARAMETER))
        stages = Stages(self._when.get(process.rank) or unknown(), self._steps.get(process.rank))
        sweep = Sweep(
            pid, process.rank, shift_ns, self._coming(process, parameters), self._variables(parameters),
            held(self._run, calls, parameters), stages.at, self._begins(process),
        )  # fmt: skip
        spelled = self._spelling.of
        columns = "start_ns, duration_ns, tid, coalesce(value, 0), category, name, args"
        for batch in self._run.fetch(f"SELECT {columns} FROM ({calls}) ORDER BY start_ns, duration_ns DESC, tid"):
            places = stages.of(*np.array([row[:2] for row in batch], dtype=np.int64).T)
            for (start, duration, tid, which, *what), (step, stage) in zip(batch, places, strict=True):
                yield from sweep.begin(Call(start, start + duration, tid, which, step, stage, spelled(*what)))
        yield from sweep.end()

    def _begins(self, process: Process) -> int:
        return -(1 << 62) if self._stretches is None else self._stretches[process.rank][0]

    def _coming(self, process: Process, parameters: str) -> Coming:
        until = "true" if self._stretches is None else f"start_ns < {self._stretches[process.rank][1]}"
        columns = "start_ns, start_ns + duration_ns, tid, category, name, value, number, args"
        ordered = "ORDER BY start_ns, category NOT IN ('step', 'zero_grad')"
        return Coming(moments(self._run.fetch(f"SELECT {columns} FROM ({parameters}) WHERE {until} {ordered}")))

    def _variables(self, parameters: str) -> Variables:
        norms = self._rows(f"SELECT name, arg_min(number, start_ns) FROM ({parameters}) WHERE category = 'norm' GROUP BY name")
        return Variables(self._names, dict(norms), len(self._ranks) > 1)
