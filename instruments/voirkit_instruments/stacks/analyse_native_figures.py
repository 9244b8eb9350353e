"""What the counts of native code come to: ``native.json``, and what the summary says of it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from voirkit_instruments.stacks import NATIVE_FILE
from voirkit_instruments.stacks.analyse_native_join import ELSEWHERE, OTHERS
from voirkit_instruments.stacks.analyse_py_spy import EVENT
from voirkit_instruments.stacks.analyse_spans import OPERATION, PHASE

SCHEMA = 1
TIME = "cpu-clock"  # the event whose numbers are nanoseconds
_BY_PREFERENCE = ("cycles", TIME)  # what shares are shares of
_SHORT = 3  # functions of an operation that the summary names


def key_of(function: str | None, library: str) -> str:
    """``function|library``; ``library|?`` of a library that names no function there."""
    return f"{library}|?" if function is None else f"{function}|{library}"


def figures(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``native.json`` from the counts of one or more ranks."""
    events = sorted({event for counts in ranks for event in counts["events"]})
    event = next((wanted for wanted in _BY_PREFERENCE if wanted in events), events[0] if events else TIME)
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for counts in ranks:
        for row in counts["rows"]:
            rows.setdefault((row["group"], row["name"]), []).append(row)
    timed = TIME in events or not events
    made = {name: _row(parts, event, timed) for name, parts in rows.items()}
    first = ranks[0]
    operations = _ordered({name: row for (group, name), row in made.items() if group == OPERATION})
    phases = _ordered({name: row for (group, name), row in made.items() if group == PHASE})
    functions = {name: list(row["functions"]) for name, row in operations.items()}
    users: dict[str, list[str]] = {}
    for name, keys in functions.items():
        for key in keys:
            users.setdefault(key, []).append(name)
    return {
        "schema": SCHEMA, "tool": first["tool"], "version": first["version"], "event": event, "events": events,
        "frequency_hz": first["frequency_hz"], "kernel_seen": not any(counts["user_only"] for counts in ranks),
        **{key: sum(counts[key] for counts in ranks) for key in ("samples", "lost", "unread")},
        "operations": operations, "phases": phases,
        "elsewhere": made.get((ELSEWHERE, "")), "other_processes": made.get((OTHERS, "")),
        "op_to_func": functions, "common_funcs_to_op": {key: names for key, names in users.items() if len(names) > 1},
    }  # fmt: skip


def _ordered(rows: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(rows.items(), key=lambda row: (-row[1]["samples"], row[0])))


def _row(parts: Sequence[Mapping[str, Any]], event: str, timed: bool) -> dict[str, Any]:
    """One operation or phase, added over ranks."""
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
            "samples": _samples(own, event), "samples_of_other_threads": _samples(other, event), **_amounts(own, timed),
        }  # fmt: skip
    own = [entry for entry in entries if not entry["other_threads"]]
    other = [entry for entry in entries if entry["other_threads"]]
    elapsed = [part["elapsed_ns"] for part in parts if part["elapsed_ns"] is not None]
    return {
        "n": sum(part["n"] for part in parts if part["n"] is not None) if elapsed else None,
        "elapsed_s": sum(elapsed) / 1e9 if elapsed else None,
        "samples": _samples(own, event),
        **_amounts(own, timed),
        "other_threads": {"samples": _samples(other, event), **_amounts(other, timed)},
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


def _amounts(entries: Sequence[Mapping[str, Any]], timed: bool) -> dict[str, Any]:
    """``on_cpu_s``, and what hardware counters counted, each function's own."""
    counters = sorted({event for entry in entries for event in entry["events"]} - {TIME, EVENT, ""})
    made: dict[str, Any] = {"on_cpu_s": _sum(entries, TIME) / 1e9 if timed else None}
    if counters:
        made["counters"] = {event.replace("-", "_"): _sum(entries, event) for event in counters}
    return made


def short(document: Mapping[str, Any]) -> dict[str, Any]:
    """The key ``native`` of a summary."""
    made = {key: document[key] for key in ("tool", "event", "frequency_hz", "kernel_seen", "samples", "lost")}
    for group in ("operations", "phases"):
        made[group] = {name: _brief(row) for name, row in document[group].items() if row["samples"] or row["other_threads"]["samples"]}
    elsewhere = document["elsewhere"]
    return {**made, "elsewhere": _brief(elsewhere) if elsewhere else None, "file": NATIVE_FILE}


def _brief(row: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("samples", "on_cpu_s", "elapsed_s", "kernel_share")
    functions = {key: function["share"] for key, function in [*row["functions"].items()][:_SHORT]}
    return {**{key: row[key] for key in keys}, "other_threads_s": row["other_threads"]["on_cpu_s"], "functions": functions}
