"""The steps of a run directory: from its trace, or from the rollup that its end left in ``steps/`` (DESIGN 3.7)."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.document import Rank
from voirkit.analysis.phases import DEVICE, KIND, Records, ranks
from voirkit.analysis.steps import PARTS, PHASES, DeviceTable, Steps, Table
from voirkit.runs.parquet import file, quoted

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

FOLDER = "steps"
_TIMES = [f"{name}_ns" for name in (*PHASES[:-1], *PARTS)]


def of_run(run: Run) -> list[Rank]:
    """What each rank of a run did; empty if nothing of it is known.

    A rank's rollup is used if it is there: it holds the same figures at a thousandth of the size.
    """
    rolled = {rank.rank: rank for rank in _rolled_up(run)}
    cpus = run.manifest.get("cpus")
    device = records(run, DEVICE) if _uses_device(run) else None
    traced = {rank.rank: rank for rank in ranks(records(run), cpus, device)} if _is_traced(run, set(rolled)) else {}
    return [rank for _, rank in sorted({**traced, **rolled}.items())]


def _is_traced(run: Run, known: set[int]) -> bool:
    """Whether the trace has phases of ranks that have no rollup."""
    found = run.connection().execute(f"SELECT DISTINCT rank FROM spans WHERE kind = {quoted(KIND)}").fetchall()
    return bool({rank for (rank,) in found} - known)


def _uses_device(run: Run) -> bool:
    """Whether tensors lay on a GPU: a program that trains on the CPU may use CUDA for something else. Of a killed run it is not known."""
    memory = (run.summary or {}).get("memory")
    return not isinstance(memory, dict) or bool(memory.get("devices"))


def records(run: Run, kind: str = KIND) -> Records:
    """The phases that a run's trace holds, or what they did on GPUs."""
    connection = run.connection()
    connection.execute(f"CREATE OR REPLACE TEMP VIEW phases AS SELECT * FROM spans WHERE kind = {quoted(kind)}")
    names = connection.execute("SELECT DISTINCT category, name FROM phases ORDER BY ALL").fetchall()
    arguments = [row[0] for row in connection.execute("SELECT DISTINCT coalesce(args, '{}') FROM phases ORDER BY ALL").fetchall()]
    processes = connection.execute("SELECT DISTINCT rank, host, pid FROM phases ORDER BY ALL").fetchall()
    connection.register("known_names", numbered(category=[c for c, _ in names], name=[n for _, n in names]))
    connection.register("known_arguments", numbered(text=arguments))
    connection.register(
        "known_processes", numbered(rank=[r for r, _, _ in processes], host=[h for _, h, _ in processes], pid=[p for _, _, p in processes])
    )
    columns = connection.execute(
        "SELECT start_ns, duration_ns, n.code AS name, a.code AS args, coalesce(value, -1) AS value, p.code AS process, tid FROM phases s "
        "JOIN known_names n USING (category, name) JOIN known_arguments a ON a.text = coalesce(s.args, '{}') "
        "JOIN known_processes p ON p.rank = s.rank AND p.host = s.host AND p.pid = s.pid"
    ).fetchnumpy()
    plain = {key: np.asarray(values) for key, values in columns.items()}
    return Records(**plain, names=names, arguments=[json.loads(text) for text in arguments], processes=processes)


def numbered(**columns: Sequence[Any]) -> dict[str, Any]:
    """A table with a column ``code`` that counts its rows."""
    found: dict[str, Any] = {}
    for key, values in columns.items():
        texts = not values or isinstance(values[0], str)
        found[key] = np.array(values, dtype=object if texts else np.int64)
    found["code"] = np.arange(len(next(iter(columns.values()))), dtype=np.int64)
    return found


# the rollup


def roll_up(run: Run, rank: Rank) -> str:
    """Write a rank's steps into ``steps/rank=<r>.parquet``, a row a step; in one step, so that no reader sees half of it.

    Columns: ``task`` (train, evaluation, or device: those of training on a GPU's clock), ``start_ns``, ``time_ns``, ``items`` (-1:
    unknown), the time by phase and part, which sum to ``time_ns``, and ``launching_ns``. The file's metadata hold, under ``voirkit``, what
    else is known of the rank.

    Returns:
        The path.

    Raises:
        OSError, duckdb.Error: It can not be written.
    """
    folder = os.path.join(run.path, FOLDER)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"rank={rank.rank}.parquet")
    columns: dict[str, Any] = {}
    device = rank.steps.device
    tables = {"train": rank.steps.train, "evaluation": rank.steps.evaluation, **({"device": device.table} if device else {})}
    columns["which"] = np.concatenate([np.full(len(t), i) for i, t in enumerate(tables.values())])
    launching = [np.zeros(len(t), np.int64) if task != "device" or device is None else device.launching_ns for task, t in tables.items()]
    columns["launching_ns"] = np.concatenate(launching)
    for key in ("start_ns", "time_ns", "items"):
        columns[key] = np.concatenate([getattr(t, key) for t in tables.values()])
    for i, key in enumerate(_TIMES):
        columns[key] = np.ascontiguousarray(np.concatenate([t.own_ns[:, i] for t in tables.values()]))
    facts = json.dumps({
        "schema": 1, "rank": rank.rank, "host": rank.host, "wait_known": rank.steps.wait_known,
        "saving_between_ns": rank.steps.saving_between_ns, "facts": dict(rank.facts),
    })  # fmt: skip
    connection = run.connection()
    connection.register("rollup", columns)
    task = "CASE which WHEN 0 THEN 'train' WHEN 1 THEN 'evaluation' ELSE 'device' END AS task"
    chosen = f"{task}, start_ns, time_ns, items, {', '.join(_TIMES)}, launching_ns"
    options = f"FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, KV_METADATA {{voirkit: {quoted(facts)}}}"
    connection.execute(f"COPY (SELECT {chosen} FROM rollup) TO {file(path + '.tmp')} ({options})").fetchall()
    connection.unregister("rollup")
    os.replace(path + ".tmp", path)
    return path


def _rolled_up(run: Run) -> list[Rank]:
    import duckdb

    folder = os.path.join(run.path, FOLDER)
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if not name.endswith(".parquet"):
            continue
        path = os.path.join(folder, name)
        try:
            found.append(_read(run, path))
        except (duckdb.Error, OSError, ValueError, KeyError, TypeError):
            run.warnings.append(f"{path} can not be read; it is damaged.")
    return found


def _read(run: Run, path: str) -> Rank:
    connection = run.connection()
    (text,) = connection.execute(f"SELECT value FROM parquet_kv_metadata({file(path)}) WHERE key = 'voirkit'").fetchone() or (b"{}",)
    known = json.loads(bytes(text))
    tables, launching = {}, np.zeros(0)
    for task in ("train", "evaluation", "device"):
        query = f"SELECT * FROM read_parquet({file(path)}) WHERE task = {quoted(task)} ORDER BY start_ns"
        columns = {key: np.asarray(values) for key, values in connection.execute(query).fetchnumpy().items()}
        none = np.zeros(len(columns["time_ns"]), np.int64)  # of a part that the run's voirkit did not know
        own = np.stack([columns.get(key, none) for key in _TIMES], axis=1)
        tables[task], launching = Table(columns["start_ns"], columns["time_ns"], columns["items"], own), columns["launching_ns"]
    device = DeviceTable(tables["device"], launching) if len(tables["device"]) else None
    steps = Steps(tables["train"], tables["evaluation"], known["wait_known"], device, saving_between_ns=known.get("saving_between_ns", 0))
    return Rank(known["rank"], known["host"], steps, known["facts"])
