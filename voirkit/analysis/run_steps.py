"""Reads the steps of a run directory, from its trace or from roll-ups in ``steps/``, and writes the
roll-ups."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from hashlib import sha256
from itertools import chain, pairwise
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
    from duckdb import DuckDBPyConnection

    from voirkit.runs.opened import Run

FOLDER, COLLECTIVES = "steps", "collectives"
T = TypeVar("T")
_TIMES = [f"{name}_ns" for name in COLUMNS]
# Number of roll-ups (files with the steps of a rank) that are read at once. The number is limited
# because the columns that DuckDB returns are copied, and need twice their memory.
_FILES_AT_ONCE = 128
_SHARED = ("kind", "number", "backward")  # columns of the collectives that are equal on most ranks
_COLUMNS = ("start_ns", "time_ns", "loops_ns", "items", "launching_ns", "task", *_TIMES)
_MOST = np.iinfo(np.int32).max
_TASKS = {"train": 0, "evaluation": 1, "device": 2}
_CODED = f"CASE task {' '.join(f'WHEN {name!r} THEN {code}' for name, code in _TASKS.items())} END"


def read_steps(run: Run) -> list[Rank]:
    """Return the ranks of a run with their steps and facts; a process that trained outside of a
    group has a ``Rank`` of its own. Empty if nothing is recorded.

    Roll-ups are used if they exist: they hold the same values at a thousandth of the size. Ranks
    without one whose records have been compacted get one.
    """
    rolled, covered = _from_roll_ups(run)
    if covered.issuperset(_processes(run, KIND)):
        return joined(_share_collectives(rolled))
    del rolled  # to free memory: the calls below read them again, a few ranks at a time
    n = sum(tally.n for *_, kind, tally in run.tallies() if kind in (KIND, COLLECTIVE))
    parts = run.map_ranks(_steps_of_ranks, records=n)
    return joined(_share_collectives(chain.from_iterable(parts)))


def _processes(run: Run, kind: str) -> set[tuple[str, int]]:
    """Return the (host, pid) of the processes that have records of a kind."""
    return {(host, pid) for _, host, pid in run.recorded(kind)}


def _share_collectives(ranks: Iterable[Rank]) -> list[Rank]:
    """Return the ranks with memory shared between consecutive ranks whose collectives are equal in
    all shared columns. With a thousand ranks these are most of the data."""
    sharing: list[Rank] = []
    before: Collectives | None = None
    for rank in ranks:
        collectives = rank.collectives
        if collectives is not None and before is not None and _is_alike(collectives, before):
            shared = {key: getattr(before, key) for key in _SHARED}
            collectives = replace(collectives, **shared)
        before = collectives or before
        sharing.append(replace(rank, collectives=collectives))
    return sharing


def _is_alike(first: Collectives, second: Collectives) -> bool:
    if first.kinds != second.kinds:
        return False
    return all(np.array_equal(getattr(first, key), getattr(second, key)) for key in _SHARED)


def _from_roll_ups(run: Run) -> tuple[list[Rank], set[tuple[str, int]]]:
    """Return the ranks that have been rolled up, and the processes (host, pid) that the roll-ups
    cover, whose records need not be read."""
    exchanging = _processes(run, COLLECTIVE)
    # Roll-ups of an older voirkit lack the collectives. They are not used for a rank that recorded
    # collectives.
    rolled = [
        rank
        for rank in _rolled_up(run)
        if rank.collectives is not None or exchanging.isdisjoint(rank.processes)
    ]
    if run.ranks is not None:
        # Only roll-ups of processes whose records are in files of these ranks are used. If a
        # process learned its rank late, its roll-up may be named for another rank than its files.
        processes = _processes(run, KIND)
        rolled = [rank for rank in rolled if not processes.isdisjoint(rank.processes)]
    covered = set(chain.from_iterable(rank.processes for rank in rolled))
    # a roll-up that lists no processes covers all processes of the rank
    whole = {rank.rank for rank in rolled if not rank.processes}
    covered |= {(host, pid) for rank, host, pid in run.recorded(KIND) if rank in whole}
    return rolled, covered


def _steps_of_ranks(run: Run) -> list[Rank]:
    rolled, covered = _from_roll_ups(run)
    if covered.issuperset(_processes(run, KIND)):
        return _share_collectives(joined(rolled))
    device = records(run, DEVICE) if _uses_device(run) and run.recorded(DEVICE) else None
    collectives = records(run, COLLECTIVE) if run.recorded(COLLECTIVE) else None
    new = ranks(records(run), run.manifest.get("cpus"), device, covered, collectives)
    whole = joined([*rolled, *new])
    if run.segments() is None and not run.is_live:
        _roll_up_new(run, whole, covered)
    return [_narrow(rank) for rank in _share_collectives(whole)]


def _narrow(rank: Rank) -> Rank:
    """Return the rank with the times of phases as 32-bit integers if they fit, as roll-ups are read
    too: with a thousand ranks these times are most of the data."""
    train, evaluation = map(_narrow_table, rank.steps.tables)
    return replace(rank, steps=replace(rank.steps, train=train, evaluation=evaluation))


def _narrow_table(table: Table) -> Table:
    if table.own_ns.max(initial=0) > _MOST:
        return table
    return replace(table, own_ns=np.asfortranarray(table.own_ns.astype(np.int32)))


def _roll_up_new(run: Run, ranks: Sequence[Rank], earlier: Collection[tuple[str, int]]) -> None:
    """Write the roll-ups of ranks that are not rolled up yet and whose records have all been
    compacted; stop if the folder cannot be written to. ``earlier``: the processes (host, pid) that
    roll-ups cover already."""
    import duckdb

    stems = (files.stem for files in layout(run.path, run.ranks).segments)
    living = {(host, pid) for host, _, pid in map(of_stem, stems)}
    for rank in ranks:
        if not set(rank.processes) <= set(earlier) and living.isdisjoint(rank.processes):
            try:
                roll_up(run, rank)
            except (OSError, duckdb.Error):
                return  # the folder cannot be written to


def _uses_device(run: Run) -> bool:
    """True if tensors lay on a GPU. A program that trains on the CPU may use CUDA for other things.
    True also for a killed run, where that is not known."""
    memory = (run.summary or {}).get("memory")
    return not isinstance(memory, dict) or bool(memory.get("devices"))


def records(run: Run, kind: str = KIND) -> Records:
    """Return the records of a kind in a run's trace: ``KIND`` for phases, ``DEVICE`` for their
    times on GPUs, ``COLLECTIVE`` for collectives."""
    segments = run.segments()
    columns = _tables(run, kind) if segments is None else _arrays(segments, kind)
    columns["arguments"] = [json.loads(text) for text in columns["arguments"]]
    manifest = run.manifest
    earlier = manifest.get("attempts")
    # the processes of all attempts of a restarted job: together they are one rank
    attempts = {attempt["pid"] for attempt in (*earlier, manifest)} if earlier else set()
    sizes = {
        (process.rank, process.host, process.pid): process.world_size for process in run.processes()
    }
    world_sizes = []
    for process in columns["processes"]:
        size = max(manifest.get("world_size", 1), sizes.get(process, 0))
        is_attempt = size == 1 and process[2] in attempts
        world_sizes.append(0 if is_attempt else size)
    return Records(**columns, world_sizes=world_sizes)


# The script's annotations of evaluation are read together with the phases. Their category is
# replaced by ``_ANNOTATED``, since loops over loaders have the same names.
_ANNOTATED, _ANNOTATIONS = "annotated", ("evaluate", "test")


def _arrays(segments: SegmentRecords, kind: str) -> dict[str, Any]:
    """Return the fields of ``Records``, read from segments, in the form of ``_tables``."""
    named: dict[int, tuple[str, str]] = {}
    for i, name in enumerate(segments.names):
        is_annotation = name.category == "pipeline" and name.name in _ANNOTATIONS
        if name.kind == kind != "span":
            named[i] = (name.category, name.name)
        elif name.kind == "span" and kind == KIND and is_annotation:
            named[i] = (_ANNOTATED, name.name)
    rows = segments.of_names(named)
    codes, owners = segments.columns["name"][rows], segments.columns["process"][rows]
    names = sorted({named[code] for code in distinct(codes)})
    processes = sorted({segments.owners[i] for i in distinct(owners)})
    new_codes = _places([named.get(i) for i in range(len(segments.names))], names)
    arguments, args = segments.arguments(rows)
    columns = {key: segments.columns[key][rows] for key in ("start_ns", "duration_ns", "tid")}
    return {
        **columns,
        "name": new_codes[codes],
        "args": args,
        "value": segments.values(rows),
        "process": _places(segments.owners, processes)[owners],
        "names": names,
        "arguments": arguments,
        "processes": processes,
    }


def _places(values: Iterable[Hashable], ordered: Sequence[Hashable]) -> Array:
    """Return the index of each value in ``ordered``; -1 for a value that is not in it."""
    place = {value: i for i, value in enumerate(ordered)}
    return np.array([place.get(value, -1) for value in values], np.int64)


def _tables(run: Run, kind: str) -> dict[str, Any]:
    """Return the fields of ``Records``, read from compacted tables with DuckDB."""
    from voirkit.runs.parquet import CodedSpans, quoted

    annotations = f"kind = 'span' AND category = 'pipeline' AND name IN {_ANNOTATIONS}"
    condition = f"kind = {quoted(kind)}"
    if kind == KIND:
        condition += f" OR ({annotations})"
    category = f"CASE WHEN kind = 'span' THEN '{_ANNOTATED}' ELSE category END AS category"
    query = f"SELECT * REPLACE ({category}) FROM spans WHERE {condition}"
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


# writing and reading roll-ups: the files with the steps and collectives of each rank


def roll_up(run: Run, rank: Rank) -> str:
    """Write a rank's steps into ``steps/rank=<r>.parquet``, one row per step. The file is replaced
    atomically, so that no reader sees half of it.

    Columns: ``task`` (train, evaluation, or device: the training steps on a GPU's clock),
    ``start_ns``, ``time_ns``, ``loops_ns``, ``items`` (-1: unknown), the times in ``COLUMNS`` (the
    phases, with the parts of ``other`` in its place), which add up to ``time_ns``, and
    ``launching_ns``. The file's metadata has, under the key ``voirkit``, the other facts of the
    rank.

    A process in no group of ranks that trains beside other processes has
    ``steps/process=<pid>.parquet``. If threads of such a process train at the same time, each
    training but the main one has ``steps/process=<pid>-thread=<tid>.parquet``. The collectives of a
    rank are in ``collectives/rank=<r>.parquet``, one row per collective: ``kind`` (an index into
    the metadata's ``kinds``), ``number``, ``backward`` and ``begun_ns``.

    Returns:
        The path of the file with the steps.

    Raises:
        OSError, duckdb.Error: A file cannot be written.
    """
    name = _file_name(rank)
    if rank.collectives is not None:
        _write_collectives(run, os.path.join(COLLECTIVES, name), rank.collectives)
    steps, device = rank.steps, rank.steps.device
    tables = list(steps.tables)
    launching_ns = [np.zeros(len(table), np.int64) for table in tables]
    if device:
        tables.append(device.table)
        launching_ns.append(device.launching_ns)
    columns = {
        "code": np.repeat(np.arange(len(tables)), [len(table) for table in tables]),
        "launching_ns": np.concatenate(launching_ns),
    }
    for key in ("start_ns", "time_ns", "loops_ns", "items"):
        columns[key] = np.concatenate([getattr(table, key) for table in tables])
    for i, key in enumerate(_TIMES):
        columns[key] = np.concatenate([table.own_ns[:, i] for table in tables])
    metadata = {
        "schema": 1,
        "rank": rank.rank,
        "host": rank.host,
        "wait_known": steps.wait_known,
        "saving_between_ns": steps.saving_between_ns,
        "aside_ns": dict(steps.aside_ns),
        "facts": dict(rank.facts),
        "processes": rank.processes,
        "alone": rank.alone,
        "thread": rank.thread,
        "uncounted": astuple(steps.uncounted),
        "workers_in_evaluation_ns": steps.workers_in_evaluation_ns,
    }
    task = "CASE code WHEN 0 THEN 'train' WHEN 1 THEN 'evaluation' ELSE 'device' END AS task"
    expressions = f"{task}, start_ns, time_ns, loops_ns, items, {', '.join(_TIMES)}, launching_ns"
    return _write(run, os.path.join(FOLDER, name), columns, expressions, metadata)


def _file_name(rank: Rank) -> str:
    """Return the name of the roll-up file of a rank or process."""
    if not rank.alone:
        return f"rank={rank.rank}.parquet"
    thread = f"-thread={rank.thread}" if rank.thread else ""
    return f"process={rank.processes[0][1]}{thread}.parquet"


def _write_collectives(run: Run, name: str, collectives: Collectives) -> None:
    columns = {key: getattr(collectives, key).astype(np.int64) for key in (*_SHARED, "begun_ns")}
    shared = b"".join(columns[key].tobytes() for key in _SHARED)
    metadata = {
        "schema": 1,
        "kinds": collectives.kinds,
        "shared": sha256(shared).hexdigest(),  # same hash: these columns are read once
    }
    for key in ("backward_ns", "starved", "until_ns", "exposed_ns", "ran"):
        metadata[key] = getattr(collectives, key)
    _write(run, name, columns, "*", metadata)


def _write(
    run: Run,
    name: str,
    columns: Mapping[str, Array],
    expressions: str,
    metadata: Mapping[str, Any],
) -> str:
    from voirkit.runs.parquet import file, quoted

    path = os.path.join(run.path, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    connection = run.database()
    connection.register("rollup", columns)
    options = (
        "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, KV_METADATA {voirkit:"
        f" {quoted(json.dumps(metadata))}}}"
    )
    draft = f"{path}.{os.getpid()}.tmp"  # with the pid: two readers may write at the same time
    query = f"COPY (SELECT {expressions} FROM rollup) TO {file(draft)} ({options})"
    connection.execute(query).fetchall()
    connection.unregister("rollup")
    os.replace(draft, path)
    return path


def _rolled_up(run: Run) -> list[Rank]:
    steps = _read(run, FOLDER, _read_ranks)
    collectives = _read(run, COLLECTIVES, _read_collectives) if steps else {}
    return [replace(rank, collectives=collectives.get(name)) for name, rank in steps.items()]


def _names(run: Run, folder: str) -> list[str]:
    """Return the names of the roll-up files in a folder, ascending; only for the ranks that the run
    was opened for."""
    path = os.path.join(run.path, folder)
    if not os.path.isdir(path):
        return []
    names = [name for name in sorted(os.listdir(path)) if name.endswith(".parquet")]
    if run.ranks is None:
        return names
    prefixes = [f"rank={rank}.parquet" for rank in run.ranks]
    if 0 in run.ranks:  # processes in no group have no rank, and are read with rank 0
        prefixes.append("process=")
    return [name for name in names if name.startswith(tuple(prefixes))]


def _read(run: Run, folder: str, read: Callable[[Run, Sequence[str]], list[T]]) -> dict[str, T]:
    """Return a dict from file name to the contents of each roll-up in a folder. Damaged files are
    left out, with a warning."""
    names = _names(run, folder)
    contents: dict[str, T] = {}
    for i in range(0, len(names), _FILES_AT_ONCE):
        contents |= _read_files(run, folder, names[i : i + _FILES_AT_ONCE], read)
    return contents


def _read_files(
    run: Run, folder: str, names: Sequence[str], read: Callable[[Run, Sequence[str]], list[T]]
) -> dict[str, T]:
    import duckdb

    paths = [os.path.join(run.path, folder, name) for name in names]
    try:
        return dict(zip(names, read(run, paths), strict=True))
    except (duckdb.Error, OSError, ValueError, KeyError, TypeError):
        if len(names) == 1:
            run.warn([f"{paths[0]} cannot be read; it is damaged."])
            return {}
    contents: dict[str, T] = {}
    for name in names:
        contents |= _read_files(run, folder, [name], read)
    return contents


def _metadata(run: Run, files: str, n: int) -> list[Any]:
    rows = run.database().execute(
        f"SELECT list_position({files}, file_name), value FROM parquet_kv_metadata({files}) WHERE"
        " key = 'voirkit'"
    )
    by_position = {position: json.loads(bytes(text)) for position, text in rows.fetchall()}
    return [by_position[i + 1] for i in range(n)]


def _listed(paths: Sequence[str]) -> str:
    from voirkit.runs.parquet import file

    return f"[{', '.join(map(file, paths))}]"


def read_columns(connection: DuckDBPyConnection, query: str) -> dict[str, Array]:
    """Return the columns of a query's result, with 0 in place of null."""
    columns = connection.execute(query).fetchnumpy()
    return {key: np.ma.filled(values, 0) for key, values in columns.items()}


def _read_rows(run: Run, files: str, expressions: Iterable[str]) -> dict[str, Array]:
    """Return columns of some Parquet files; rows are in the order of the files, which the
    connection preserves."""
    table = f"read_parquet({files}, union_by_name = true, hive_partitioning = false)"
    return read_columns(run.database(), f"SELECT {', '.join(expressions)} FROM {table}")


def _read_collectives(run: Run, paths: Sequence[str]) -> list[Collectives]:
    files, collectives = _listed(paths), []
    begun_ns = _read_rows(run, files, ["begun_ns"])["begun_ns"]
    start, shared = 0, ""
    for path, metadata in zip(paths, _metadata(run, files, len(paths)), strict=True):
        if metadata["shared"] != shared:
            shared = metadata["shared"]
            columns = _read_rows(run, _listed([path]), _SHARED)
        kinds = [(str(group), str(name), int(bytes_)) for group, name, bytes_ in metadata["kinds"]]
        end = start + len(columns["kind"])
        waits_ns, backward_ns = metadata["backward_ns"]
        exchanged = Collectives(
            kinds,
            **columns,
            begun_ns=begun_ns[start:end],
            backward_ns=(waits_ns, backward_ns),
            starved=metadata["starved"],
        )
        since_added = ("until_ns", "exposed_ns", "ran")
        further = {key: metadata[key] for key in since_added if key in metadata}
        collectives.append(replace(exchanged, **further))
        start = end
    return collectives


def _read_step_columns(run: Run, paths: Sequence[str]) -> tuple[dict[str, Array], Array]:
    """Return the columns of some roll-ups, file after file, and the number of rows of each file.

    A column is not read if the statistics in the files say that it has one value in all rows: most
    phases take no time in any row. A column that no file has is 0, since an older voirkit wrote the
    files. Numbers that fit into 32 bits are read as 32-bit integers.
    """
    files = _listed(paths)
    extremes = ", ".join(f"coalesce(stats_{end}_value, stats_{end})" for end in ("min", "max"))
    query = (
        f"SELECT list_position({files}, file_name) - 1, path_in_schema, row_group_num_rows,"
        f" {extremes} FROM parquet_metadata({files})"
    )
    counts = np.zeros(len(paths), np.int64)
    bounds: dict[str, list[str]] = {name: [] for name in _COLUMNS}
    n_bounds = 0  # number of bounds (least, most) of a column that is in all files
    for file, name, n, *least_and_most in run.database().execute(query).fetchall():
        if name == _COLUMNS[0]:
            counts[file] += n
            n_bounds += 2
        if name in bounds:
            bounds[name] += [text for text in least_and_most if text is not None]
    columns: dict[str, Array] = {}
    expressions = []
    for name, texts in bounds.items():
        least, most = 0, _MOST + 1
        if len(texts) in (0, n_bounds):  # the column is in all files, or in none
            numbers = [int(_TASKS.get(text, text)) for text in texts]
            least, most = min(numbers, default=0), max(numbers, default=0)
        is_narrow = name != "start_ns" and -_MOST <= least <= most <= _MOST
        if least == most:
            number = np.array(least, np.int32 if is_narrow else np.int64)
            columns[name] = np.broadcast_to(number, int(counts.sum()))  # in memory one number
        else:
            value = _CODED if name == "task" else name
            expressions.append(f"{value}::{'INTEGER' if is_narrow else 'BIGINT'} AS {name}")
    if expressions:
        columns |= _read_rows(run, files, expressions)
    return columns, counts


def _read_ranks(run: Run, paths: Sequence[str]) -> list[Rank]:
    columns, counts = _read_step_columns(run, paths)
    own_type = np.result_type(*(columns[key] for key in _TIMES))
    own_ns = np.zeros((len(_TIMES), int(counts.sum())), own_type)
    for row, key in zip(own_ns, _TIMES, strict=True):
        if columns[key].any():  # rows of zeros are not written, so that they take no memory
            row[:] = columns[key]
    start_ns, time_ns, loops_ns, items, launching_ns, task = (columns[key] for key in _COLUMNS[:6])
    whole = Table(start_ns, time_ns, items, own_ns.T, loops_ns)
    files = np.repeat(np.arange(len(paths)), counts)
    edges = np.searchsorted(files * 3 + task, range(3 * len(paths) + 1))
    slices = [slice(*pair) for pair in pairwise(edges.tolist())]
    tables = [whole.chosen(rows) for rows in slices]
    metadata = _metadata(run, _listed(paths), len(paths))
    rolled = []
    for i, of_rank in enumerate(metadata):
        train, evaluation, on_device = tables[3 * i : 3 * i + 3]
        device = None
        if len(on_device):
            device = DeviceTable(on_device, launching_ns[slices[3 * i + 2]])
        steps = Steps(train, evaluation, of_rank["wait_known"], device)
        rolled.append(_with_metadata(steps, of_rank))
    return rolled


def _with_metadata(steps: Steps, metadata: Mapping[str, Any]) -> Rank:
    """Return a rank from its steps and the metadata of its roll-up, which lacks some keys if an
    older voirkit wrote it."""
    defaults: dict[str, Any] = {
        "aside_ns": {"checkpoint": (0, metadata.get("saving_between_ns", 0))},
        "saving_between_ns": 0,
        "uncounted": astuple(ALL_COUNTED),
        "workers_in_evaluation_ns": 0,
        "processes": (),
        "alone": False,
        "thread": 0,
    }
    metadata = {**defaults, **metadata}
    aside_ns = metadata["aside_ns"].items()
    steps = replace(
        steps,
        saving_between_ns=metadata["saving_between_ns"],
        aside_ns={name: (before_ns, since_ns) for name, (before_ns, since_ns) in aside_ns},
        uncounted=Uncounted(*metadata["uncounted"]),
        workers_in_evaluation_ns=metadata["workers_in_evaluation_ns"],
    )
    processes = tuple((str(host), int(pid)) for host, pid in metadata["processes"])
    return Rank(
        metadata["rank"],
        metadata["host"],
        steps,
        metadata["facts"],
        processes,
        metadata["alone"],
        thread=metadata["thread"],
    )
