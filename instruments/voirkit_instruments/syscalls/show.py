"""System calls as a person reads them in a terminal: by phase and kind of thread, files, differences, and what can be trusted of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from voirkit.report.cells import printable
from voirkit.report.figure import duration, figure, size
from voirkit_instruments.syscalls.analyse_figures import working_and_waiting_s
from voirkit_instruments.syscalls.show_shares import top_calls

_MOST = 16  # rows of the short table
_FILES = 3
_MANY_FILES = 20
_NAMES = 16  # the least columns for names of calls
URING = "io_uring_enter was called {n:,} times: what is read and written through a ring is seen by no tracer of calls."

Document = Mapping[str, Any]


def table(summary: Mapping[str, Any], width: int) -> Iterator[tuple[int, RenderableType]]:
    """The part of the table in a terminal; see ``voirkit.instrument.Instrument``."""
    if summary.get("syscalls"):
        yield 8, syscall_part(summary["syscalls"], width)


def syscall_part(found: Document, width: int) -> RenderableType:
    """A row for each kind of thread and phase: calls, also each time that it is entered, errors, bytes, time, which.

    Args:
        found: The key ``syscalls`` of a summary.
        width: Columns of the terminal.
    """
    if not found.get("threads"):
        return Group(*(Text(f" {line}", style="dim") for line in said(found)))
    heads = ("syscalls of", "phase", "calls", "each", "errors", "bytes", "works", "waits", "most calls")
    rows = [(kind, phase, calls) for kind, phases in found["threads"].items() for phase, calls in phases.items()]
    rows = [row for row in rows if any(call["calls"] for call in row[2].values())]  # without those that others' calls only reach into
    rows.sort(key=lambda row: -sum(call["calls"] for call in row[2].values()))
    cells = [_cells(kind, phase, calls, found) for kind, phase, calls in rows[:_MOST]]
    at_least = (0, 0, 0, 40, 100, 76, 52, 60)
    shown = [at for at, least in enumerate(at_least) if width >= least and any(row[at] for row in cells)]
    table = Table(box=None, padding=(0, 1), header_style="dim")
    room = width - 2
    for at in shown:
        justify: Any = "left" if at in (0, 1) else "right"
        wide = max(len(row[at]) for row in [heads, *cells])
        room -= wide + 2
        table.add_column(heads[at], no_wrap=True, justify=justify, min_width=wide)
    if room >= _NAMES:
        table.add_column(heads[-1], no_wrap=True)
    for row, (_, _, calls) in zip(cells, rows, strict=False):
        table.add_row(*(Text(row[at]) for at in shown), *([Text(_most_calls(calls, room))] if room >= _NAMES else []))
    lines = [*said(found), *_most_used(found, width - 1)]
    if len(rows) > _MOST:
        lines.insert(0, f"{len(rows) - _MOST} more rows: voirkit report --json")
    return Group(*(Text(f" {line}", style="dim") for line in _first(found)), table, *(Text(f" {line}", style="dim") for line in lines))


def _first(found: Document) -> Iterator[str]:
    """What stands above the table, since what is below is cut at the end of a run: what the figures come to, and what is to be doubted."""
    yield from _a_step(found)
    yield from _a_file(found)
    yield from doubted(found)


def doubted(found: Document) -> Iterator[str]:
    """What makes the figures doubtful or less than all: strace's stops, a tracer that ended early, events without room."""
    if found.get("tool") == "strace":
        which = "calls on files alone, " if found.get("mode") == "files" else ""
        yield f"{which}seen by strace: counts are exact, times far too long, since each call stops for it"
    if found.get("cut"):
        yield f"the tracer ended before the run did: {found['cut']}"
    if found.get("lost"):
        yield f"the kernel had no room for {found['lost']:,} events: there were more calls than these"


def _most_calls(calls: Mapping[str, Any], room: int) -> str:
    """As many of the calls that are made most as there is room for."""
    words: list[str] = []
    made = [f"{call['calls']:,} {name}" for name, call in calls.items() if call["calls"]]
    for i, word in enumerate(made):
        more = 3 if i + 1 < len(made) else 0
        if len(", ".join([*words, word])) + more > room:
            return ", ".join([*words, "…"]) if words else ""
        words.append(word)
    return ", ".join(words)


def _cells(kind: str, phase: str, calls: Mapping[str, Any], found: Document) -> tuple[str, ...]:
    waits = found.get("waits", ())
    entered = (found.get("entered") or {}).get(kind, {}).get(phase, 0)
    parts = [working_and_waiting_s(name, call, waits) for name, call in calls.items()]
    working, waiting = (sum(part[at] for part in parts) for at in (0, 1))
    errors, moved = (sum(call[key] or 0 for call in calls.values()) for key in ("errors", "bytes"))
    count = sum(call["calls"] for call in calls.values())
    each = figure(count / entered) if entered else ""
    return (
        kind,
        phase,
        f"{count:,}",
        each,
        f"{errors:,}" if errors else "",
        size(moved) if moved else "",
        duration(working) if working else "",
        duration(waiting) if waiting else "",
    )


def _most_used(found: Document, width: int) -> Iterator[str]:
    for key, word in (("folders", "folder"), ("files", "file")):
        rows = sorted(found.get(key) or (), key=lambda row: -(row["read"] + row["written"]))[:_FILES]
        if rows:
            yield from (f"{word}  {_of_file(row, width - len(word) - 2)}" for row in rows)


def _of_file(row: Mapping[str, Any], width: int) -> str:
    read, written = (size(row[key]) if row[key] else "" for key in ("read", "written"))
    done = [f"{row['opens']:,} opens" if row["opens"] else "", f"{read} read" if read else "", f"{written} written" if written else ""]
    text, path = ", ".join(part for part in done if part), row["path"]
    room = max(width - len(text) - 2, 20)
    return f"{path if len(path) <= room else '…' + path[1 - room :]}  {text}"


def _a_step(found: Document) -> Iterator[str]:
    """How many calls training itself makes, which is a handful where nothing is wrong."""
    entered = (found.get("entered") or {}).get("main", {})
    waits = found.get("waits", ())
    words = []
    for phase, word in (("forward", "a forward"), ("backward", "a backward"), ("optimizer", "a step of the optimizer")):
        if entered.get(phase) and found.get("tool") != "counters" and found.get("mode") != "files":
            phases = [phases.get(phase, {}) for kind, phases in found["threads"].items() if not kind.startswith(("worker", "child"))]
            working = sum(call["calls"] for calls in phases for name, call in calls.items() if name not in waits)
            words.append(f"{figure(working / entered[phase])} in {word}")
    if words:
        yield f"system calls that work: {', '.join(words)}"


def _a_file(found: Document) -> Iterator[str]:
    """How many calls a file takes where batches are fetched: one file a sample is the rule there."""
    fetch = found["phases"].get("fetch", {})
    opened = sum(fetch[name]["calls"] - (fetch[name]["errors"] or 0) for name in ("open", "openat", "openat2") if name in fetch)
    if opened >= _MANY_FILES:
        working = {name: call["calls"] for name, call in fetch.items() if name not in found.get("waits", ())}
        per = ", ".join(f"{figure(n / opened)} {name}" for name, n in list(working.items())[:8] if n >= opened / 2)
        yield f"{opened:,} files opened in fetch, {figure(sum(working.values()) / opened)} calls a file: {per}"


def said(found: Document) -> Iterator[str]:
    """What is to be known of the figures: who took them, which can be trusted, what they cost, what is not seen."""
    tool = found.get("tool")
    if tool:
        yield f"taken by {tool}: " + "; ".join(f"{column}: {word}" for column, word in (found.get("trusted") or {}).items())
    cost = found.get("cost")
    if cost:
        yield _cost(tool, cost)
    own = found.get("own") or {}
    if own.get("calls") or found.get("markers"):
        yield f"not counted: {found.get('markers', 0):,} markers, {own.get('calls', 0):,} calls of voirkit itself"
    if found.get("uring"):
        yield URING.format(n=found["uring"])
    log = found.get("log") or {}
    if log.get("unread"):
        example = log["examples"][0]
        yield f"{log['unread']:,} lines were not understood, the first is line {example['line']}: {printable(example['text'], 60)}"
    if log.get("torn"):
        yield "the log is cut in its last line, which is left out"


def _cost(tool: object, cost: Mapping[str, Any]) -> str:
    spent = f"{duration(cost['program_s'])} for {cost['events']:,}"
    if cost["call_s"] is None:
        return f"cost: an edge of a phase took {duration(cost['edge_s'])}, {spent}"
    # The kernel counts a process's time in steps of 10 ms: none of them is not nothing.
    took = "less than 10 ms" if cost["tracer_s"] == 0 else duration(cost["tracer_s"] or 0.0)
    tracer = "" if cost["tracer_s"] is None else f"{tool} took {took} of a processor, "
    return f"cost: {tracer}a call {duration(cost['call_s'])} longer than the {duration(cost['plain_call_s'])} without, {spent}"


def whole(found: Document, console_width: int, most: int) -> Iterator[RenderableType]:
    """Everything of a log: a table for each kind of thread and phase, then files and what is to be known.

    Args:
        found: A document.
        console_width: Columns of the terminal.
        most: Calls of each that are shown.
    """
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in ("thread", "phase", "syscall"):
        table.add_column(name, no_wrap=True)
    for name in ("calls", "errors", "time", "a call", "bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("waits", no_wrap=True)
    for kind, phases in found["threads"].items():
        for phase, calls in phases.items():
            _add_calls(table, kind, phase, calls, found["waits"], most)
    yield table
    yield Text()
    yield top_calls(found)
    yield Text()
    for line in [*_first(found), *said(found), *_most_used(found, console_width)]:
        yield Text(line, style="dim")


def _share(call: Mapping[str, Any]) -> str:
    """Of the time of calls that work, what they waited."""
    return f"{call['waited'] / call['seconds']:.0%}" if call.get("waited", 0.0) > 0.005 * (call["seconds"] or 0.0) else ""


def _add_calls(table: Table, kind: str, phase: str, calls: Mapping[str, Any], waits: Sequence[str], most: int) -> None:
    total = {key: sum(call[key] or 0 for call in calls.values()) for key in ("calls", "errors", "bytes")}
    seconds = [
        working_and_waiting_s(name, call, waits)[0] for name, call in calls.items() if call["seconds"] is not None and name not in waits
    ]
    table.add_row(
        *(Text(word, style="bold") for word in (kind, phase, "all")), f"{total['calls']:,}",
        f"{total['errors']:,}" if total["errors"] else "", duration(sum(seconds)) if seconds else "",
        "", size(total["bytes"]) if total["bytes"] else "",
        Text("working", style="dim") if any(name in waits or "waited" in call for name, call in calls.items()) else "",
    )  # fmt: skip
    for name, call in list(calls.items())[:most]:
        took = call["seconds"]
        table.add_row(
            "", "", name, f"{call['calls']:,}", f"{call['errors']:,}" if call["errors"] else "", duration(took) if took else "",
            duration(took / call["calls"]) if took and call["calls"] else "", size(call["bytes"]) if call["bytes"] else "",
            Text("waits" if name in waits else _share(call), style="dim"),
        )  # fmt: skip
    if len(calls) > most:
        rest = sum(call["calls"] for call in list(calls.values())[most:])
        table.add_row("", "", Text(f"{len(calls) - most} others", style="dim"), f"{rest:,}", "", "", "", "", "")


def differences(rows: Sequence[Any], most: int) -> RenderableType:
    """What two logs differ in: ``+`` is more in the second, ``-`` less.

    Args:
        rows: Of ``voirkit_instruments.syscalls.analyse_figures.difference``.
        most: Rows that are shown.
    """
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in ("phase", "syscall"):
        table.add_column(name, no_wrap=True)
    for name in ("A", "B", "B - A", "errors", "time", "bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    changed = [row for row in rows if row.more_calls or row.more_errors or row.bytes[0] != row.bytes[1]]
    for row in changed[:most]:
        alone = "in A alone" if not row.calls[1] else "in B alone" if not row.calls[0] else ""
        table.add_row(row.phase, row.name, *_difference(row.calls, row.more_errors, row.more_seconds, row.bytes), Text(alone, style="dim"))
    sums = [tuple(sum(getattr(row, column)[at] for row in rows) for at in (0, 1)) for column in ("calls", "bytes")]
    errors, times = (_sum([getattr(row, f"more_{column}") for row in rows]) for column in ("errors", "seconds"))
    table.add_row("", Text("all", style="bold"), *_difference(sums[0], errors, times, sums[1]), "")
    same = len(rows) - len(changed)
    note = [f"{len(changed) - most} more differ"] if len(changed) > most else []
    note += [f"{same} rows are alike"] if same else []
    return Group(table, *([Text(f" {', '.join(note)}", style="dim")] if note else []))


def _difference(calls: Sequence[int], errors: float | None, seconds: float | None, moved: Sequence[int]) -> tuple[str, ...]:
    return (
        f"{calls[0]:,}", f"{calls[1]:,}", f"{calls[1] - calls[0]:+,}", _signed(errors or 0, "{:,}".format),
        _signed(seconds or 0, duration), _signed(moved[1] - moved[0], size),
    )  # fmt: skip


def _sum(values: Sequence[float | None]) -> float | None:
    return None if None in values else sum(value for value in values if value is not None)


def _signed(value: float, shown: Any) -> str:
    return "" if not value else f"{'+' if value > 0 else '-'}{shown(abs(value))}"
