"""Puts operators and kernels into the trace of a run, so that exports and queries have them beside the phases, on the same clock.

Kind ``operator`` (category ``operator``, ``annotation`` or ``runtime``; in the thread that called it) and kind ``kernel`` (in the thread
that started it, with ``device`` and ``stream`` among its arguments).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.runs.tables.parquet import OPTIONS, file
from voirkit.runs.tables.spans import COLUMNS, clean
from voirkit.trace.layout import folder_of
from voirkit_instruments.torch_profile.analyse_attribute import Attributed
from voirkit_instruments.torch_profile.analyse_events import CATEGORIES, KERNEL, Events

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

KIND = "operator"


def put_into_trace(
    run: Run, taken: Mapping[str, Any], recording: Mapping[str, Any], events: Events, found: Attributed, start_ns: Array, chosen: Array
) -> None:
    """Write the chosen events; a file of a name of its own, so that writing it again changes nothing.

    Raises:
        OSError: The disk is full, or the folder can not be written.
    """
    import duckdb

    rank, stem = int(taken["rank"]), recording["file"].partition(".")[0]
    for kind in (KIND, "kernel"):
        which = np.flatnonzero(chosen & ((events.category == KERNEL) == (kind == "kernel")))
        if not len(which):
            continue
        folder = os.path.join(folder_of(run.path), f"kind={kind}", f"rank={rank}")
        path = os.path.join(folder, f"profile-{stem}.parquet")
        try:
            os.makedirs(folder, exist_ok=True)
            _write(run, path, kind, taken, _columns(events, found, start_ns, which), events.names)
        except duckdb.Error as exc:
            raise OSError(f"{path} can not be written: {exc}".partition("\n")[0]) from None


def _columns(events: Events, found: Attributed, start_ns: Array, which: Array) -> dict[str, Array]:
    caller = np.where(found.parent[which] >= 0, found.parent[which], which)
    is_kernel = events.category[which] == KERNEL
    return {
        "start_ns": start_ns[which], "duration_ns": events.duration_ns[which],
        "name": events.name[which], "category": events.category[which],
        "tid": np.where(is_kernel, events.tid[caller], events.tid[which]), "stream": events.tid[which], "device": events.device[which],
    }  # fmt: skip


def _write(run: Run, path: str, kind: str, taken: Mapping[str, Any], columns: dict[str, Array], names: list[str]) -> None:
    connection = run.connection()
    texts, categories = (np.array(values, dtype=object) for values in ([clean(name) for name in names], CATEGORIES))
    connection.register("profile_rows", {key: np.ascontiguousarray(values) for key, values in columns.items()})
    connection.register("profile_names", {"code": np.arange(len(names)), "text": texts})
    connection.register("profile_categories", {"code": np.arange(len(CATEGORIES)), "text": categories})
    args = "concat('{\"device\":', r.device, ',\"stream\":', r.stream, '}')" if kind == "kernel" else "NULL"
    own = {
        "start_ns": "r.start_ns", "duration_ns": "r.duration_ns", "category": "c.text", "name": "n.text", "args": args, "host": "?",
        "pid": str(int(taken["pid"])), "tid": "r.tid", "kind": f"'{kind}'", "rank": str(int(taken["rank"])),
    }  # fmt: skip
    chosen = ", ".join(f"CAST({own.get(key, 'NULL')} AS {type_}) AS {key}" for key, type_ in COLUMNS.items())
    query = (
        f"SELECT {chosen} FROM profile_rows r JOIN profile_names n ON n.code = r.name "
        "JOIN profile_categories c ON c.code = r.category ORDER BY r.start_ns, r.duration_ns DESC"
    )
    connection.execute(f"COPY ({query}) TO {file(path + '.tmp')} ({OPTIONS})", [taken["host"]]).fetchall()
    for table in ("profile_rows", "profile_names", "profile_categories"):
        connection.unregister(table)
    os.replace(path + ".tmp", path)
