"""``native.json``: which C functions and libraries each operation of the loaders and each phase of training used (docs/native.md).

Also of runs that were killed, if what their profiler recorded can be read here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from voirkit.analysis.native_join import ELSEWHERE, OTHERS, Joined
from voirkit.analysis.native_spans import OPERATION, PHASE, Recorded
from voirkit.analysis.perf_samples import Reading, printed
from voirkit.runs.alive import is_alive, is_here
from voirkit.runs.directory import NATIVE, NATIVE_FOLDER, write_json

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

SCHEMA = 1
_ENDS_S = 20.0
TIME = "cpu-clock"  # the event whose numbers are nanoseconds
_BY_PREFERENCE = ("cycles", TIME)  # what shares are shares of
_SHORT = 3  # functions of an operation that the summary names


def native_of(run: Run) -> dict[str, Any] | None:
    """What the summary says of native code, ``native.json`` made or brought up to date; None if it was not sampled."""
    folder = os.path.join(run.path, NATIVE_FOLDER)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    counted = []
    for stem in [name.removesuffix(".json") for name in names if name.endswith(".json") and not name.endswith(".counts.json")]:
        counts = _read(os.path.join(folder, f"{stem}.counts.json")) or _count(run, folder, stem)
        if counts is not None:
            counted.append(counts)
    if not counted:
        return None
    document = figures(counted)
    try:
        write_json(os.path.join(run.path, NATIVE), document)
    except OSError as exc:
        run.warnings.append(f"{NATIVE} can not be written ({exc.strerror}).")
    return short(document)


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else None


def _count(run: Run, folder: str, stem: str) -> dict[str, Any] | None:
    """Read what a profiler recorded, and keep the counts."""
    taken = _read(os.path.join(folder, f"{stem}.json"))
    if taken is None or (run.is_live and taken.get("ended_ns") is None):
        return None  # it is damaged, or samples still
    data = os.path.join(folder, f"{stem}.data")
    if not os.path.exists(data) or not _is_whole(taken):
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


def _is_whole(taken: Mapping[str, Any]) -> bool:
    """Whether the profiler has ended; of a run that was killed it does soon after."""
    pid, clocks = taken.get("profiler_pid", 0), (taken["began_ns"], taken.get("began_time_ns", 0))
    until = time.monotonic() + _ENDS_S
    while is_here(taken["host"]) and is_alive(pid, *clocks):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def count(run: Run, taken: Mapping[str, Any], data: str) -> dict[str, Any]:
    """Join what perf recorded of a process and those that it started with what the run recorded of them.

    Args:
        run: The run, opened.
        taken: What is known of the recording: ``rank``, ``host``, ``began_ns``, ``ended_ns``, ``perf``.
        data: perf's file.

    Raises:
        OSError: perf is not there, or can not read the file.
    """
    reading = Reading()
    joined = Joined(Recorded(run, taken["rank"], taken["host"]), reading, taken["began_ns"])
    joined.add(reading.batches(printed(data, taken.get("perf") or "perf")), taken.get("ended_ns"))
    return {
        "schema": SCHEMA, "tool": "perf", "version": taken.get("version"), "frequency_hz": taken.get("frequency_hz"),
        "rank": taken["rank"], "host": taken["host"], "events": sorted(reading.events), "user_only": reading.user_only,
        "samples": reading.samples, "lost": reading.lost, "unread": reading.unread, "rows": joined.document(),
    }  # fmt: skip


# figures


def key_of(function: str | None, library: str) -> str:
    """``function|library``; ``library|?`` of a library that names no function there."""
    return f"{library}|?" if function is None else f"{function}|{library}"


def figures(counted: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``native.json`` from the counts of one or more ranks."""
    events = sorted({event for counts in counted for event in counts["events"]})
    event = next((wanted for wanted in _BY_PREFERENCE if wanted in events), events[0] if events else TIME)
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for counts in counted:
        for row in counts["rows"]:
            rows.setdefault((row["group"], row["name"]), []).append(row)
    made = {name: _row(parts, event) for name, parts in rows.items()}
    first = counted[0]
    operations = _ordered({name: row for (group, name), row in made.items() if group == OPERATION})
    phases = _ordered({name: row for (group, name), row in made.items() if group == PHASE})
    functions = {name: list(row["functions"]) for name, row in operations.items()}
    users: dict[str, list[str]] = {}
    for name, keys in functions.items():
        for key in keys:
            users.setdefault(key, []).append(name)
    return {
        "schema": SCHEMA, "tool": first["tool"], "version": first["version"], "event": event, "events": events,
        "frequency_hz": first["frequency_hz"], "kernel_seen": not any(counts["user_only"] for counts in counted),
        **{key: sum(counts[key] for counts in counted) for key in ("samples", "lost", "unread")},
        "operations": operations, "phases": phases,
        "elsewhere": made.get((ELSEWHERE, "")), "other_processes": made.get((OTHERS, "")),
        "op_to_func": functions, "common_funcs_to_op": {key: names for key, names in users.items() if len(names) > 1},
    }  # fmt: skip


def _ordered(rows: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(rows.items(), key=lambda row: (-row[1]["samples"], row[0])))


def _row(parts: Iterable[Mapping[str, Any]], event: str) -> dict[str, Any]:
    """One operation or phase, added over ranks."""
    parts = list(parts)
    entries = [entry for part in parts for entry in part["code"]]
    total = sum(_of(entry, event)[1] for entry in entries)
    by_function: dict[str, list[Mapping[str, Any]]] = {}
    by_library: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        by_function.setdefault(key_of(entry["function"], entry["library"]), []).append(entry)
        by_library.setdefault(entry["library"], []).append(entry)
    functions = {}
    for key, own in sorted(by_function.items(), key=lambda item: (-_sum(item[1], event), item[0])):
        other = [entry for entry in own if entry["other_threads"]]
        functions[key] = {
            "function": own[0]["function"], "library": own[0]["library"], "kernel": own[0]["kernel"], "share": _share(own, event, total),
            "samples": _samples(own, event), "samples_of_other_threads": _samples(other, event), **_amounts(own),
        }  # fmt: skip
    own = [entry for entry in entries if not entry["other_threads"]]
    other = [entry for entry in entries if entry["other_threads"]]
    elapsed = [part["elapsed_ns"] for part in parts if part["elapsed_ns"] is not None]
    return {
        "n": sum(part["n"] for part in parts if part["n"] is not None) if elapsed else None,
        "elapsed_s": sum(elapsed) / 1e9 if elapsed else None,
        "samples": _samples(own, event),
        **_amounts(own),
        "other_threads": {"samples": _samples(other, event), **_amounts(other)},
        "kernel_share": _share([entry for entry in entries if entry["kernel"]], event, total),
        "libraries": {
            library: _share(by_library[library], event, total)
            for library in sorted(by_library, key=lambda library: (-_sum(by_library[library], event), library))
        },
        "functions": functions,
    }


def _of(entry: Mapping[str, Any], event: str) -> tuple[int, int]:
    n, amount = entry["events"].get(event, (0, 0))
    return n, amount


def _sum(entries: Iterable[Mapping[str, Any]], event: str) -> int:
    return sum(_of(entry, event)[1] for entry in entries)


def _samples(entries: Iterable[Mapping[str, Any]], event: str) -> int:
    return sum(_of(entry, event)[0] for entry in entries)


def _share(entries: Iterable[Mapping[str, Any]], event: str, total: int) -> float:
    return _sum(entries, event) / total if total else 0.0


def _amounts(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``on_cpu_s``, and what hardware counters counted, each function's own."""
    counters = sorted({event for entry in entries for event in entry["events"]} - {TIME, ""})
    made: dict[str, Any] = {"on_cpu_s": _sum(entries, TIME) / 1e9}
    if counters:
        made["counters"] = {event.replace("-", "_"): _sum(entries, event) for event in counters}
    return made


def short(document: Mapping[str, Any]) -> dict[str, Any]:
    """The key ``native`` of a summary."""
    made = {key: document[key] for key in ("tool", "event", "frequency_hz", "kernel_seen", "samples", "lost")}
    for group in ("operations", "phases"):
        made[group] = {name: _brief(row) for name, row in document[group].items() if row["samples"] or row["other_threads"]["samples"]}
    return {**made, "file": NATIVE}


def _brief(row: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("samples", "on_cpu_s", "elapsed_s", "kernel_share")
    functions = {key: function["share"] for key, function in [*row["functions"].items()][:_SHORT]}
    return {**{key: row[key] for key in keys}, "other_threads_s": row["other_threads"]["on_cpu_s"], "functions": functions}
