"""``native.json``: which C functions and libraries each operation of the loaders and each phase of training used (docs/native.md).

Also of runs that were killed, if what their profiler recorded can be read here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from voirkit.runs.alive import has_settled
from voirkit.runs.directory import read_json, write_json
from voirkit.runs.ranks import rank_and_world_size
from voirkit_instruments.stacks import NATIVE_FILE, NATIVE_FOLDER
from voirkit_instruments.stacks.analyse_native_figures import SCHEMA, figures, short
from voirkit_instruments.stacks.analyse_native_join import Joined
from voirkit_instruments.stacks.analyse_perf_samples import Reading, printed
from voirkit_instruments.stacks.analyse_py_spy import EVENT, counted
from voirkit_instruments.stacks.analyse_spans import OPERATION, Recorded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run


def native_of(run: Run) -> dict[str, Any] | None:
    """What the summary says of native code, ``native.json`` made or brought up to date; None if it was not sampled."""
    folder = os.path.join(run.path, NATIVE_FOLDER)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    ranks = []
    for stem in [name.removesuffix(".json") for name in names if name.endswith(".json") and not name.endswith(".counts.json")]:
        counts = read_json(os.path.join(folder, f"{stem}.counts.json"), SCHEMA) or _count(run, folder, stem)
        if counts is not None:
            ranks.append(counts)
    if not ranks:
        return None
    document = figures(ranks)
    if rank_and_world_size()[0] > 0:
        return short(document)  # the first rank writes what there is one of
    try:
        write_json(os.path.join(run.path, NATIVE_FILE), document)
    except OSError as exc:
        run.warnings.append(f"{NATIVE_FILE} can not be written ({exc.strerror}).")
    return short(document)


def _count(run: Run, folder: str, stem: str) -> dict[str, Any] | None:
    """Read what a profiler recorded, and keep the counts."""
    taken = read_json(os.path.join(folder, f"{stem}.json"), SCHEMA)
    data = os.path.join(folder, f"{stem}.data")
    if taken is None or not os.path.exists(data) or not has_settled(taken, "profiler_pid"):
        return None
    try:
        counts = count(run, taken, data)
    except (OSError, KeyError, TypeError) as exc:
        run.warnings.append(f"--native: {NATIVE_FOLDER}/{stem}.data can not be read ({exc}).")
        return None
    try:
        write_json(os.path.join(folder, f"{stem}.counts.json"), counts)
    except OSError:
        pass  # who opens the run next counts again
    return counts


def count(run: Run, taken: Mapping[str, Any], data: str) -> dict[str, Any]:
    """Join what perf, or py-spy, recorded of a process and those that it started with what the run recorded of them.

    Args:
        run: The run, opened.
        taken: What is known of the recording: ``tool``, ``rank``, ``host``, ``began_ns``, ``ended_ns``, ``program``.
        data: perf's file.

    Raises:
        OSError: perf is not there, or can not read the file.
    """
    known = {key: taken.get(key) for key in ("tool", "version", "frequency_hz", "rank", "host")}
    recorded = Recorded(run, taken["rank"], taken["host"])
    if taken.get("tool") == "py-spy":
        with open(data, encoding="utf-8", errors="replace") as lines:
            made = counted(lines, {name for group, name in recorded.names if group == OPERATION})
        return {"schema": SCHEMA, **known, "events": [EVENT], "user_only": True, "lost": 0, **made}
    reading = Reading()
    joined = Joined(recorded, reading, taken["began_ns"])
    joined.add(reading.batches(printed(data, taken.get("program") or "perf")), taken.get("ended_ns"))
    return {
        "schema": SCHEMA, **known, "events": sorted(reading.events), "user_only": reading.user_only,
        "samples": reading.samples, "lost": reading.lost, "unread": reading.unread, "rows": joined.document(),
    }  # fmt: skip


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``native`` of a summary; see ``voirkit.instrument.Instrument``."""
    if not os.path.isdir(os.path.join(runs[0].path, NATIVE_FOLDER)):
        return None
    part = native_of(runs[0])
    return {"native": part} if part else None
