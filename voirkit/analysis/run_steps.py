"""The steps of a run directory: from its trace, or from the rollup that its end left in
``steps/``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from voirkit.analysis.document import Collectives, Rank
from voirkit.analysis.nesting import Array, distinct
from voirkit.analysis.phases import COLLECTIVE, DEVICE, KIND, Records, ranks
from voirkit.analysis.rank_processes import joined
from voirkit.analysis.steps import ALL_COUNTED, DeviceTable, Steps, Table, Uncounted
from voirkit.phase_table import COLUMNS
from voirkit.runs.trace_files import SegmentRecords, layout
from voirkit.trace.reader import of_stem

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

FOLDER, COLLECTIVES = "steps", "collectives"
T = TypeVar("T")
_TIMES = [f"{name}_ns" for name in COLUMNS]
# as many roll-ups are read together: what DuckDB gives is copied, and takes as much memory again
_FILES_AT_ONCE = 128
_SHARED = ("kind", "number", "backward")  # columns of collectives
_INSTANTS, _MOST = ("start_ns", "begun_ns"), np.iinfo(np.int32).max
_TASKS = {"train": 0, "evaluation": 1, "device": 2}
_CODED = f"CASE task {' '.join(f'WHEN {name!r} THEN {code}' for name, code in _TASKS.items())} END"


def read_steps(run: Run) -> list[Rank]:
    """What each rank of a run did, and each process that trained for itself; empty if nothing of it
    is known.

    The roll-ups are used that are there: they hold the same figures at a thousandth of the size. Of
    what has been compacted one is made.
    """
    rolled, seen = _from_roll_ups(run)
    if all((host, pid) in seen for _, host, pid in run.recorded(KIND)):
        return joined(_sharing(rolled))
    del rolled  # those who read the others read them again, a few at a time
    n = sum(tally.n for *_, kind, tally in run.tallies() if kind in (KIND, COLLECTIVE))
    return joined(
        _sharing(rank for part in run.map_ranks(_steps_of_ranks, records=n) for rank in part)
    )


def _sharing(ranks: Iterable[Rank]) -> list[Rank]:
    """The same, with one array for what is equal of the collectives of ranks that follow each
    other: of a thousand ranks it is most."""
    found: list[Rank] = []
    before: Collectives | None = None
    for rank in ranks:
        own = rank.collectives
        if own is not None and before is not None and _is_alike(own, before):
            own = replace(own, kind=before.kind, number=before.number, backward=before.backward)
        before = own or before
        found.append(replace(rank, collectives=own))
    return found


def _is_alike(one: Collectives, other: Collectives) -> bool:
    return one.kinds == other.kinds and all(
        np.array_equal(getattr(one, key), getattr(other, key)) for key in _SHARED
    )


def _from_roll_ups(run: Run) -> tuple[list[Rank], set[tuple[str, int]]]:
    """The ranks that have been rolled up, and the processes (host, pid) of which nothing else is to
    be read."""
    found = run.recorded(KIND)
    exchanging = {(host, pid) for _, host, pid in run.recorded(COLLECTIVE)}
    # What an older voirkit has rolled up lacks the collectives.
    rolled = [
        rank
        for rank in _rolled_up(run)
        if rank.collectives is not None or exchanging.isdisjoint(rank.processes)
    ]
    if run.ranks is not None:  # what a process learnt late may be a rank of other files too
        own = {(host, pid) for _, host, pid in found}
        rolled = [rank for rank in rolled if not own.isdisjoint(rank.processes)]
    seen = {process for rank in rolled for process in rank.processes}
    # a roll-up that does not say whose: it is of all that the rank had
    old = {rank.rank for rank in rolled if not rank.processes}
    return rolled, seen | {(host, pid) for rank, host, pid in found if rank in old}


def _steps_of_ranks(run: Run) -> list[Rank]:
    rolled, seen = _from_roll_ups(run)
    if all((host, pid) in seen for _, host, pid in run.recorded(KIND)):
        return _sharing(joined(rolled))
    device = records(run, DEVICE) if _uses_device(run) and run.recorded(DEVICE) else None
    exchanged = records(run, COLLECTIVE) if run.recorded(COLLECTIVE) else None
    whole = joined(
        [*rolled, *ranks(records(run), run.manifest.get("cpus"), device, seen, exchanged)]
    )
    if run.segments() is None and not run.is_live:
        _roll_up_new(run, whole, seen)
    steps = ((rank, rank.steps) for rank in _sharing(whole))
    return [
        replace(
            one, steps=replace(own, train=_narrow(own.train), evaluation=_narrow(own.evaluation))
        )
        for one, own in steps
    ]


def _narrow(table: Table) -> Table:
    """The same with times by part in 32 bits, if these hold them, as they are read of roll-ups: of
    a thousand ranks it is most."""
    fits = table.own_ns.max(initial=0) <= _MOST
    return (
        replace(table, own_ns=np.asfortranarray(table.own_ns.astype(np.int32))) if fits else table
    )


def _roll_up_new(run: Run, ranks: Sequence[Rank], earlier: Collection[tuple[str, int]]) -> None:
    """Write the roll-ups of ranks all of whose records have been compacted, where that is
    possible."""
    import duckdb

    living = {
        (host, pid)
        for host, _, pid in (of_stem(own.stem) for own in layout(run.path, run.ranks).segments)
    }
    for rank in ranks:
        if not set(rank.processes) <= set(earlier) and living.isdisjoint(rank.processes):
            try:
                roll_up(run, rank)
            except (OSError, duckdb.Error):
                return  # the folder cannot be written to


def _uses_device(run: Run) -> bool:
    """Whether tensors lay on a GPU: a program that trains on the CPU may use CUDA for something
    else. Of a killed run it is not known."""
    memory = (run.summary or {}).get("memory")
    return not isinstance(memory, dict) or bool(memory.get("devices"))


def records(run: Run, kind: str = KIND) -> Records:
    """The phases that a run's trace holds, what they did on GPUs, or the collectives."""
    segments = run.segments()
    columns = _tables(run, kind) if segments is None else _arrays(segments, kind)
    sizes = {(one.rank, one.host, one.pid): one.world_size for one in run.processes()}
    known, earlier = run.manifest.get("world_size", 1), run.manifest.get("attempts") or ()
    # of one rank, after each other
    attempts = {one["pid"] for one in (*earlier, run.manifest)} if earlier else set()
    columns["arguments"] = [json.loads(text) for text in columns["arguments"]]
    world_sizes = [max(known, sizes.get(one, 0)) for one in columns["processes"]]
    world_sizes = [
        0 if size == 1 and pid in attempts else size
        for size, (_, _, pid) in zip(world_sizes, columns["processes"], strict=True)
    ]
    return Records(**columns, world_sizes=world_sizes)


# Beside the phases, the script's annotations of evaluation, under another category: loops over
# loaders have their names too.
_ANNOTATED, _ANNOTATIONS = "annotated", ("evaluate", "test")


def _arrays(segments: SegmentRecords, kind: str) -> dict[str, Any]:
    """The fields of ``Records`` from segments, as ``_tables`` gives them."""
    chosen: dict[int, tuple[str, str]] = {}
    for i, name in enumerate(segments.names):
        if name.kind == kind and kind != "span":
            chosen[i] = (name.category, name.name)
        elif (
            name.kind == "span"
            and name.category == "pipeline"
            and name.name in _ANNOTATIONS
            and kind == KIND
        ):
            chosen[i] = (_ANNOTATED, name.name)
    found = segments.of_names(chosen)
    codes, owners = segments.columns["name"][found], segments.columns["process"][found]
    names = sorted({chosen[code] for code in distinct(codes)})
    processes = sorted({segments.owners[i] for i in distinct(owners)})
    name_of = np.array(
        [
            names.index(chosen[i]) if chosen.get(i) in names else -1
            for i in range(len(segments.names))
        ],
        np.int64,
    )
    process_of = np.array(
        [processes.index(owner) if owner in processes else -1 for owner in segments.owners],
        np.int64,
    )
    arguments, args = segments.arguments(found)
    return {
        **{key: segments.columns[key][found] for key in ("start_ns", "duration_ns", "tid")},
        "name": name_of[codes],
        "args": args,
        "value": segments.values(found),
        "process": process_of[owners],
        "names": names,
        "arguments": arguments,
        "processes": processes,
    }


def _tables(run: Run, kind: str) -> dict[str, Any]:
    """The fields of ``Records`` from tables."""
    from voirkit.runs.parquet import CodedSpans, quoted

    annotations = (
        f"kind = 'span' AND category = 'pipeline' AND name IN {_ANNOTATIONS}"
        if kind == KIND
        else "false"
    )
    category = f"CASE WHEN kind = 'span' THEN '{_ANNOTATED}' ELSE category END AS category"
    query = (
        f"SELECT * REPLACE ({category}) FROM spans WHERE kind = {quoted(kind)} OR ({annotations})"
    )
    spans = CodedSpans(run.connection(), "phases", query, "rank, host, pid")
    columns = spans.fetch(
        "start_ns, duration_ns, n.code AS name, a.code AS args, coalesce(value, -1) AS value,"
        " o.code AS process, tid"
    )
    return {
        **columns,
        "names": spans.names,
        "arguments": spans.arguments,
        "processes": spans.owners,
    }


# the rollup


def roll_up(run: Run, rank: Rank) -> str:
    """Write a rank's steps into ``steps/rank=<r>.parquet``, a row a step; in one step, so that no
    reader sees half of it.

    Columns: ``task`` (train, evaluation, or device: those of training on a GPU's clock),
    ``start_ns``, ``time_ns``, ``loops_ns``, ``items`` (-1: unknown), the time by phase and part,
    which sum to ``time_ns``, and ``launching_ns``. The file's metadata hold, under ``voirkit``,
    what else is known of the rank.

    A process that trains for itself beside others has ``steps/process=<pid>.parquet``, and one of
    several trainings that go on at once in threads of a process
    ``steps/process=<pid>-thread=<tid>.parquet``. What a rank began together with others is in
    ``collectives/rank=<r>.parquet``, a row a collective: ``kind`` (an index into the metadata's
    ``kinds``), ``number``, ``backward`` and ``begun_ns``.

    Returns:
        The path.

    Raises:
        OSError, duckdb.Error: It cannot be written.
    """
    thread = f"-thread={rank.thread}" if rank.thread else ""
    name = (
        f"process={rank.processes[0][1]}{thread}.parquet"
        if rank.alone
        else f"rank={rank.rank}.parquet"
    )
    columns: dict[str, Any] = {}
    if (own := rank.collectives) is not None:
        columns = {key: getattr(own, key).astype(np.int64) for key in (*_SHARED, "begun_ns")}
        # who has the same need not read them
        shared = sha256(b"".join(columns[key].tobytes() for key in _SHARED)).hexdigest()
        about = {
            "schema": 1,
            "kinds": own.kinds,
            "shared": shared,
            "backward_ns": own.backward_ns,
            "starved": own.starved,
        }
        about.update(until_ns=own.until_ns, exposed_ns=own.exposed_ns, ran=own.ran)
        _write(run, os.path.join(COLLECTIVES, name), columns, "*", about)
        columns = {}
    device = rank.steps.device
    tables = {
        "train": rank.steps.train,
        "evaluation": rank.steps.evaluation,
        **({"device": device.table} if device else {}),
    }
    columns["which"] = np.concatenate([np.full(len(t), i) for i, t in enumerate(tables.values())])
    launching = [
        np.zeros(len(t), np.int64) if task != "device" or device is None else device.launching_ns
        for task, t in tables.items()
    ]
    columns["launching_ns"] = np.concatenate(launching)
    for key in ("start_ns", "time_ns", "loops_ns", "items"):
        columns[key] = np.concatenate([getattr(t, key) for t in tables.values()])
    for i, key in enumerate(_TIMES):
        columns[key] = np.ascontiguousarray(
            np.concatenate([t.own_ns[:, i] for t in tables.values()])
        )
    facts = {
        "schema": 1,
        "rank": rank.rank,
        "host": rank.host,
        "wait_known": rank.steps.wait_known,
        "saving_between_ns": rank.steps.saving_between_ns,
        "aside_ns": dict(rank.steps.aside_ns),
        "facts": dict(rank.facts),
        "processes": rank.processes,
        "alone": rank.alone,
        "thread": rank.thread,
        "uncounted": astuple(rank.steps.uncounted),
        "workers_in_evaluation_ns": rank.steps.workers_in_evaluation_ns,
    }
    task = "CASE which WHEN 0 THEN 'train' WHEN 1 THEN 'evaluation' ELSE 'device' END AS task"
    chosen = f"{task}, start_ns, time_ns, loops_ns, items, {', '.join(_TIMES)}, launching_ns"
    return _write(run, os.path.join(FOLDER, name), columns, chosen, facts)


def _write(
    run: Run, name: str, columns: Mapping[str, Array], chosen: str, about: Mapping[str, Any]
) -> str:
    from voirkit.runs.parquet import file, quoted

    path = os.path.join(run.path, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    connection = run.database()
    connection.register("rollup", columns)
    options = (
        "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, KV_METADATA {voirkit:"
        f" {quoted(json.dumps(about))}}}"
    )
    draft = f"{path}.{os.getpid()}.tmp"  # two readers may make it at once
    connection.execute(
        f"COPY (SELECT {chosen} FROM rollup) TO {file(draft)} ({options})"
    ).fetchall()
    connection.unregister("rollup")
    os.replace(draft, path)
    return path


def _rolled_up(run: Run) -> list[Rank]:
    names = _names(run, FOLDER)
    found = _read(run, FOLDER, names, _steps) if names else {}
    exchanged = _read(run, COLLECTIVES, _names(run, COLLECTIVES), _collectives) if found else {}
    return [replace(rank, collectives=exchanged.get(name)) for name, rank in found.items()]


def _names(run: Run, folder: str) -> list[str]:
    where = os.path.join(run.path, folder)
    names = (
        [name for name in sorted(os.listdir(where)) if name.endswith(".parquet")]
        if os.path.isdir(where)
        else []
    )
    if run.ranks is not None:  # those without a group have no number, and the first is theirs
        own = {f"rank={rank}.parquet" for rank in run.ranks}
        names = [
            name
            for name in names
            if name in own or (name.startswith("process=") and 0 in run.ranks)
        ]
    return names


def _read(
    run: Run, folder: str, names: Sequence[str], read: Callable[[Run, Sequence[str]], list[T]]
) -> dict[str, T]:
    """What is in some files, by name; those that are damaged are said in the run's warnings."""
    import duckdb

    if len(names) > _FILES_AT_ONCE:
        parts = [names[i : i + _FILES_AT_ONCE] for i in range(0, len(names), _FILES_AT_ONCE)]
        return {name: one for part in parts for name, one in _read(run, folder, part, read).items()}
    paths = [os.path.join(run.path, folder, name) for name in names]
    try:
        return dict(zip(names, read(run, paths), strict=True)) if names else {}
    except (duckdb.Error, OSError, ValueError, KeyError, TypeError):
        if len(paths) > 1:
            return {
                name: one
                for single in names
                for name, one in _read(run, folder, [single], read).items()
            }
        run.warn([f"{paths[0]} cannot be read; it is damaged."])
        return {}


def _metadata(run: Run, files: str, n: int) -> list[Any]:
    rows = run.database().execute(
        f"SELECT list_position({files}, file_name), value FROM parquet_kv_metadata({files}) WHERE"
        " key = 'voirkit'"
    )
    known = {at - 1: json.loads(bytes(text)) for at, text in rows.fetchall()}
    return [known[i] for i in range(n)]


def _listed(paths: Sequence[str]) -> str:
    from voirkit.runs.parquet import file

    return f"[{', '.join(map(file, paths))}]"


def _read_rows(run: Run, files: str, chosen: Iterable[str]) -> dict[str, Array]:
    """Columns of some files, in the order of the files, which the connection preserves."""
    query = (
        f"SELECT {', '.join(chosen)} FROM read_parquet({files}, union_by_name = true,"
        " hive_partitioning = false)"
    )
    found = run.database().execute(query).fetchnumpy()
    return {
        key: np.asarray(values.filled(0) if isinstance(values, np.ma.MaskedArray) else values)
        for key, values in found.items()
    }


def _collectives(run: Run, paths: Sequence[str]) -> list[Collectives]:
    files, found = _listed(paths), []
    known = _metadata(run, files, len(paths))
    begun_ns = _read_rows(run, files, ["begun_ns"])["begun_ns"]
    at, before = 0, ""
    for path, about in zip(paths, known, strict=True):
        if about["shared"] != before:
            before = about["shared"]
            columns = _read_rows(run, _listed([path]), _SHARED)
        kinds = [(str(group), str(name), int(bytes_)) for group, name, bytes_ in about["kinds"]]
        kind, number, backward = (columns[key] for key in _SHARED)
        own, (waits, lasted) = begun_ns[at : at + len(kind)], about["backward_ns"]
        more = about.get("until_ns"), about.get("exposed_ns", ()), about.get("ran")
        found.append(
            Collectives(
                kinds, kind, number, backward, own, (waits, lasted), about["starved"], *more
            )
        )
        at += len(kind)
    return found


def _fetched(
    run: Run, paths: Sequence[str], names: Sequence[str]
) -> tuple[list[Any], dict[str, Array], Array]:
    """The metadata of some files, columns of their rows, file by file as they were written, and the
    edges between the files.

    A column that is the same in all rows, as the files' own statistics tell, is not read: of the
    parts of a step most have no time in any. One that no file has is 0: the voirkit that wrote them
    did not know it. Numbers that 32 bits hold have as many.
    """
    connection, files = run.database(), _listed(paths)
    extremes = ", ".join(f"coalesce(stats_{one}_value, stats_{one})" for one in ("min", "max"))
    pieces = connection.execute(
        f"SELECT list_position({files}, file_name) - 1, path_in_schema, row_group_num_rows,"
        f" {extremes} FROM parquet_metadata({files})"
    ).fetchall()
    counts = np.zeros(len(paths), np.int64)
    values: dict[str, list[str | None]] = {name: [] for name in names}
    for at, name, n, low, high in pieces:
        counts[at] += n if name == names[0] else 0
        values.get(name, []).extend((low, high))
    total, wanted = int(counts.sum()), []
    columns: dict[str, Array] = {}
    for name, texts in values.items():
        numbers = [_TASKS.get(text, text) for text in texts if text is not None]
        is_known = len(numbers) in (0, len(values[names[0]]))  # of all files, or of none
        least, most = (
            (one(map(int, numbers or [0])) for one in (min, max)) if is_known else (0, _MOST + 1)
        )
        kind = np.int32 if name not in _INSTANTS and -_MOST <= least <= most <= _MOST else np.int64
        if least == most:
            columns[name] = np.broadcast_to(np.array(least, kind), total)  # one number in memory
        else:
            wanted.append(
                f"{_CODED if name == 'task' else name}::{'INTEGER' if kind is np.int32 else 'BIGINT'}"
                f" AS {name}"
            )
    columns |= _read_rows(run, files, wanted) if wanted else {}
    return _metadata(run, files, len(paths)), columns, np.concatenate(([0], np.cumsum(counts)))


def _steps(run: Run, paths: Sequence[str]) -> list[Rank]:
    known, columns, edges = _fetched(
        run, paths, ("start_ns", "time_ns", "loops_ns", "items", "launching_ns", "task", *_TIMES)
    )
    own = np.zeros(
        (len(_TIMES), int(edges[-1])),
        max((columns[key].dtype for key in _TIMES), key=lambda one: one.itemsize),
    )
    for row, key in zip(own, _TIMES, strict=True):
        if columns[key].any():  # memory that nobody writes to is none
            row[:] = columns[key]
    whole = Table(
        columns["start_ns"], columns["time_ns"], columns["items"], own.T, columns["loops_ns"]
    )
    files = np.repeat(np.arange(len(paths)), np.diff(edges))
    tasks = np.searchsorted(files * 3 + columns["task"], range(3 * len(paths) + 1))
    slices = [slice(*pair) for pair in pairwise(tasks.tolist())]
    tables = [whole.chosen(which) for which in slices]
    return [
        _rank(known[i], tables[3 * i : 3 * i + 3], columns["launching_ns"][slices[3 * i + 2]])
        for i in range(len(paths))
    ]


def _rank(known: Mapping[str, Any], tables: Sequence[Table], launching: Array) -> Rank:
    train, evaluation, device = tables
    saving = known.get("saving_between_ns", 0)
    aside = {
        name: (before, since)
        for name, (before, since) in known.get("aside_ns", {"checkpoint": (0, saving)}).items()
    }
    on_device = DeviceTable(device, launching) if len(device) else None
    uncounted = Uncounted(*known.get("uncounted", astuple(ALL_COUNTED)))
    steps = Steps(
        train,
        evaluation,
        known["wait_known"],
        on_device,
        saving_between_ns=saving,
        aside_ns=aside,
        uncounted=uncounted,
        workers_in_evaluation_ns=known.get("workers_in_evaluation_ns", 0),
    )
    processes = tuple((str(host), int(pid)) for host, pid in known.get("processes", ()))
    return Rank(
        known["rank"],
        known["host"],
        steps,
        known["facts"],
        processes,
        known.get("alone", False),
        thread=known.get("thread", 0),
    )
