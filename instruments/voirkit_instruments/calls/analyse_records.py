"""The calls of one rank as columns of numbers, in chunks, and as rows for those who write them out one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from voirkit.analysis.nesting import Array, parents
from voirkit.analysis.run_steps import numbered
from voirkit.runs.step_phases import PHASES
from voirkit.runs.tables.parquet import quoted
from voirkit_instruments.calls.analyse_when import TASKS, When

if TYPE_CHECKING:
    from voirkit.runs.opened import Run


KIND, OPERAND = "call", "operand"
CHUNK = 1_000_000  # calls at a time: 300 MB with what is made of them


class Call(NamedTuple):
    """One call."""

    rank: int
    host: str
    pid: int
    tid: int
    task: str  # "train" or "evaluation": in what kind of step; empty outside of both
    step: int | None  # its number, from 0; None outside
    phase: str  # "wait", "transfer", "forward", "backward", "optimizer" or "other"
    start_ns: int  # on the host's clock (time.perf_counter_ns)
    duration_ns: int
    self_ns: int  # without the recorded calls in it
    depth: int  # how many recorded calls it lies in
    module: str
    function: str
    object: int  # id of the object whose method it is; 0 of none
    arguments: Mapping[str, Any]  # args, kwargs, returns, error, bound as recorded; keys without content are left out
    operands: tuple[tuple[str, int], ...]  # the tensors among arguments and results, as (where, id)


def ranks_of(run: Run) -> list[int]:
    """The ranks that have recorded calls."""
    found = run.connection().execute(f"SELECT DISTINCT rank FROM spans WHERE kind = {quoted(KIND)} ORDER BY rank").fetchall()
    return [rank for (rank,) in found]


class Recorded:
    """The calls that one rank has recorded.

    Args:
        run: The opened run.
        rank: Which.
        when: The rank's steps and phases.
        thread: Only what this thread, (host, pid, tid), has recorded.
    """

    def __init__(self, run: Run, rank: int, when: When, thread: tuple[str, int, int] | None = None) -> None:
        self.rank, self._when = rank, when
        self._connection = run.connection()
        which = f"rank = {rank}"
        if thread is not None:
            which += f" AND host = {quoted(thread[0])} AND pid = {thread[1]} AND tid = {thread[2]}"
        for kind, view in ((KIND, "the_calls"), (OPERAND, "the_operands")):
            self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS SELECT * FROM spans WHERE kind = {quoted(kind)} AND {which}")
        self.functions: Sequence[tuple[str, str]] = self._rows("SELECT DISTINCT category, name FROM the_calls ORDER BY ALL")
        self.texts = [text for (text,) in self._rows("SELECT DISTINCT coalesce(args, '{}') FROM the_calls ORDER BY ALL")]
        self.arguments: Sequence[Mapping[str, Any]] = [json.loads(text) for text in self.texts]
        self.threads: Sequence[tuple[str, int, int]] = self._rows("SELECT DISTINCT host, pid, tid FROM the_calls ORDER BY ALL")
        tables = {
            "call_functions": {"category": [c for c, _ in self.functions], "name": [n for _, n in self.functions]},
            "call_arguments": {"text": self.texts},
            "call_threads": {key: [one[i] for one in self.threads] for i, key in enumerate(("host", "pid", "tid"))},
        }
        for name, columns in tables.items():
            self._connection.register(name, numbered(**columns))

    def _rows(self, query: str) -> list[Any]:
        return self._connection.execute(query).fetchall()

    @property
    def trains(self) -> tuple[str, int, int] | None:
        """The thread that trains; None: not known."""
        return self._when.thread

    @property
    def failed(self) -> Array:
        """By index of arguments, whether a call with them raised an exception."""
        return np.array([isinstance(one.get("error"), str) for one in self.arguments], dtype=bool)

    def chunks(self, chunk: int = CHUNK) -> Iterator[Calls]:
        """The calls, each once, in chunks by the time at which they began; memory does not grow with the run.

        A call that goes on when its chunk ends is in the one in which it ends.
        """
        going: list[Calls] = []
        edges = self._edges(chunk)
        for low, high in zip([None, *edges], [*edges, None], strict=True):
            new = self._between(low, high)
            calls = nested(_sorted(joined([*going, new])))
            over = np.ones(len(calls), dtype=bool) if high is None else calls.start_ns + calls.duration_ns <= high
            going = [calls.select(~over)]
            yield calls.select(over)

    def _edges(self, chunk: int) -> list[int]:
        (n,) = self._rows("SELECT count(*) FROM the_calls")[0]
        if n <= chunk:
            return []
        parts = -(-n // chunk)
        wanted = ", ".join(str(i / parts) for i in range(1, parts))
        (found,) = self._rows(f"SELECT approx_quantile(start_ns, [{wanted}]) FROM the_calls")[0]
        return sorted({int(edge) for edge in found})

    def _between(self, low: int | None, high: int | None) -> Calls:
        found = self._connection.execute(
            "SELECT start_ns, duration_ns, f.code AS function, a.code AS args, t.code AS thread, coalesce(value, 0) AS object "
            f"FROM (SELECT * FROM the_calls WHERE {_range(low, high)}) s JOIN call_functions f USING (category, name) "
            "JOIN call_arguments a ON a.text = coalesce(s.args, '{}') JOIN call_threads t USING (host, pid, tid)"
        ).fetchnumpy()
        columns = {key: np.asarray(values).astype(np.int64, copy=False) for key, values in found.items()}
        start, duration = columns["start_ns"], columns["duration_ns"]
        task, step, phase = self._when.place(start, duration)
        new = {"self_ns": duration, "depth": np.full(len(start), -1), "inside_itself": np.zeros(len(start), dtype=bool)}
        return Calls(**columns, **new, task=task, step=step, phase=phase)

    def operands(self, calls: Calls) -> list[tuple[tuple[str, int], ...]]:
        """The tensors of each of some calls, as (where, id); they are found by the time at which their call began, on its thread."""
        if not len(calls):
            return []
        low, high = int(calls.start_ns.min()), int(calls.start_ns.max()) + 1
        rows = self._rows(
            "SELECT t.code, start_ns, value, json_extract_string(args, '$.at') FROM "
            f"(SELECT * FROM the_operands WHERE {_range(low, high)}) JOIN call_threads t USING (host, pid, tid)"
        )
        known: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for thread, start, value, where in rows:
            known.setdefault((thread, start), []).append((where, value))
        return [tuple(known.get(key, ())) for key in zip(calls.thread.tolist(), calls.start_ns.tolist(), strict=True)]

    def rows(self, chunk: int = CHUNK // 4) -> Iterator[Call]:
        """The calls one by one, ordered as ``chunks`` orders them."""
        for calls in self.chunks(chunk):
            operands = self.operands(calls)
            columns = (calls.thread, calls.task, calls.step, calls.phase, calls.start_ns, calls.duration_ns, calls.self_ns, calls.depth)
            more = (calls.function, calls.object, calls.args)
            for at, row in enumerate(zip(*(column.tolist() for column in (*columns, *more)), strict=True)):
                thread, task, step, phase, start, duration, own, depth, function, its_object, args = row
                what = (*self.functions[function], its_object, self.arguments[args], operands[at])
                when = (TASKS[task], None if step < 0 else step, PHASES[phase])
                yield Call._make((self.rank, *self.threads[thread], *when, start, duration, own, depth, *what))


def _range(low: int | None, high: int | None) -> str:
    return " AND ".join([f"start_ns >= {low}"] * (low is not None) + [f"start_ns < {high}"] * (high is not None)) or "true"


def _sorted(calls: Calls) -> Calls:
    return calls.select(np.lexsort((-calls.duration_ns, calls.start_ns, calls.thread)))


@dataclass(frozen=True)
class Calls:
    """Calls of one rank; arrays of shape (n,). Ascending by thread, start, and of the same start the longer first."""

    thread: Array  # this, function and args are indices into the tables of ``Recorded``
    start_ns: Array
    duration_ns: Array
    function: Array
    args: Array
    object: Array  # id of the object whose method it is; 0 of none
    self_ns: Array  # time without the calls in it that were recorded
    depth: Array  # how many recorded calls it lies in
    inside_itself: Array  # whether one of those is of the same function: its time is counted by that one
    task: Array  # index into ``analyse_when.TASKS``
    step: Array  # its number, from 0; -1 outside
    phase: Array  # index into ``PHASES``

    def __len__(self) -> int:
        return len(self.start_ns)

    def select(self, chosen: Array) -> Calls:
        """Those of these indices, or where a mask is true."""
        return joined([self], chosen)


def joined(parts: list[Calls], chosen: Array | None = None) -> Calls:
    """Several one after the other; only the chosen ones."""
    whole = {field.name: np.concatenate([getattr(one, field.name) for one in parts]) for field in fields(Calls)}
    return Calls(**(whole if chosen is None else {key: values[chosen] for key, values in whole.items()}))


def nested(calls: Calls) -> Calls:
    """The same with ``self_ns``, ``depth`` and ``inside_itself``.

    A call that is new comes with ``self_ns`` = ``duration_ns`` and depth -1. One that went on when the chunk before ended comes again as
    this has left it.
    """
    edges = np.flatnonzero(np.diff(calls.thread)) + 1
    found = np.full(len(calls), -1)
    for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(calls)], strict=True):
        own = parents(calls.start_ns[low:high], calls.duration_ns[low:high])
        found[low:high] = np.where(own >= 0, own + low, -1)
    depth, again = np.zeros(len(calls), dtype=np.int64), calls.inside_itself.copy()
    outer, left = found, np.flatnonzero(found >= 0)
    while len(left):
        depth[left] += 1
        again[left] |= calls.function[left] == calls.function[outer[left]]
        outer = np.where(outer >= 0, found[outer], -1)
        left = left[outer[left] >= 0]
    return replace(calls, self_ns=_without_inner(calls, found), depth=depth, inside_itself=again)


def _without_inner(calls: Calls, outer: Array) -> Array:
    new = (outer >= 0) & (calls.depth < 0)  # those that come again were taken from their callers before
    inner = np.bincount(outer[new], weights=calls.duration_ns[new], minlength=len(calls)).astype(np.int64)
    return np.maximum(calls.self_ns - inner[: len(calls)], 0)
