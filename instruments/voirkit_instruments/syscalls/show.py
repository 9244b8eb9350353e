"""System calls as people read them: by phase and kind of thread, over time, which are the most, files, and what of it can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

from voirkit.live.frame import printable
from voirkit.report import duration, figure, size
from voirkit.report.sections import (
    Amounts,
    AnyCell,
    Bars,
    Block,
    Cell,
    Column,
    Details,
    Grid,
    Group,
    InText,
    OnPage,
    Section,
    Stacked,
    Table,
    Text,
    Timeline,
    written,
)
from voirkit_instruments.syscalls.analyse import Difference, merge, total, working_and_waiting_s

_ROWS = 16  # of the table of a terminal
_BARS = 18  # kinds of thread and phases in a picture
_NAMED = 9  # calls in a picture that have a colour of their own
_LISTED = 12  # calls in a cell
_MANY_WORKERS = 6
_TOP = 10
_FILES, _FILES_IN_TEXT, _LONGEST_PATH = 20, 3, 60
_MANY_FILES = 20
_OTHERS = "others"
_OUTSIDE = ("import", "other", "worker")
_PHASES = ("wait", "fetch", "transfer", "forward", "backward", "optimizer", "zero_grad", "checkpoint", "communication", *_OUTSIDE)
_TRAINING = (("forward", "a forward"), ("backward", "a backward"), ("optimizer", "a step of the optimizer"))
_SHADES = " ░▒▓█"
_MAP_LABEL = 26  # columns before the map of time
_URING = "io_uring_enter was called {n:,} times: what is read and written through a ring is seen by no tracer of calls."

Document = Mapping[str, Any]
Calls = Mapping[str, Mapping[str, Any]]
Row = tuple[str, str, Calls]  # kind of thread, phase, calls
Value = Callable[[str, Mapping[str, Any]], float]


def sections(part: Document, summary: Mapping[str, Any]) -> Iterator[Section]:
    """Everything of a run."""
    tool = part.get("tool")
    note = "; ".join([f"{part['calls']:,} calls"] if part.get("calls") is not None else [])
    note += f"{'; ' if note else ''}taken by {tool}" if tool else ""
    yield Section("syscalls", "System calls", list(_blocks(part)), note, least=8, measured_by=str(tool or ""))


def _blocks(part: Document) -> Iterator[Block]:
    rows = _rows(part)
    trusted = "; ".join(f"{column}: {word}" for column, word in (part.get("trusted") or {}).items())
    yield OnPage([Text(trusted, mood="note")] if trusted else [])
    yield from _notes([*_headlines(part), *doubts(part)])
    if rows:
        table = _table(rows, part)
        yield InText([table])
        yield OnPage([*_by_phase(rows, part), Details("the same as a table", [table]), *_over_time(part), _most_frequent(part)])
    yield InText([*_notes(remarks(part)), *_busiest_files(part)])
    yield from _file_tables(part)
    yield OnPage([Details("what can be trusted, and what it cost", [*_notes(remarks(part))])])
    by_name = {f"{phase} · {name}": call for phase, calls in (part.get("phases") or {}).items() for name, call in calls.items()}
    for title, unit, column in (("calls", "", "calls"), ("time", "s", "seconds"), ("bytes", "bytes", "bytes")):
        yield Amounts(title, {name: call[column] or 0 for name, call in by_name.items()}, unit)


def _notes(lines: Sequence[str] | Iterator[str]) -> Iterator[Text]:
    yield from (Text(line, mood="note") for line in lines)


def _rows(part: Document) -> list[Row]:
    """Kinds of threads and phases with their calls, those with the most first; many workers as one kind."""
    threads = dict(part.get("threads") or {})
    workers = [kind for kind in threads if kind.startswith("worker ")]
    if len(workers) > _MANY_WORKERS:
        threads[f"{len(workers)} workers"] = merge([threads.pop(kind) for kind in workers])
    rows = [(kind, phase, calls) for kind, phases in threads.items() for phase, calls in phases.items()]
    return sorted((row for row in rows if _sum(row[2], "calls")), key=lambda row: -_sum(row[2], "calls"))


def _sum(calls: Calls, key: str) -> float:
    return sum(call.get(key) or 0 for call in calls.values())


def _seconds(waits: Sequence[str], waiting: bool) -> Value:
    """Of a call, its time of waiting, or that of work."""
    return lambda name, call: working_and_waiting_s(name, call, waits)[waiting]


def _entries(part: Document, kind: str, phase: str) -> int:
    entered = part.get("entered") or {}
    kinds = [one for one in entered if one.startswith("worker ")] if kind.endswith(" workers") else [kind]
    return sum(entered.get(one, {}).get(phase, 0) for one in kinds)


def _table(rows: Sequence[Row], part: Document) -> Table:
    heads = (
        Column("syscalls of", left=True), Column("phase", left=True), "calls", Column("each", narrowest=40),
        Column("errors", narrowest=100), Column("bytes", narrowest=76), Column("works", narrowest=52), Column("waits", narrowest=60),
        Column("most calls", left=True, cut=True),
    )  # fmt: skip
    waits = part.get("waits") or ()
    cells = []
    for kind, phase, calls in rows:
        count, entries = _sum(calls, "calls"), _entries(part, kind, phase)
        works, waited = (sum(map(_seconds(waits, waiting), calls, calls.values())) for waiting in (False, True))
        most = ", ".join(f"{call['calls']:,} {name}" for name, call in list(calls.items())[:_LISTED] if call["calls"])
        cells.append((
            kind, phase, f"{count:,}", figure(count / entries) if entries else "", _if_any(_sum(calls, "errors"), "{:,}".format),
            _if_any(_sum(calls, "bytes"), size), _if_any(works, duration), _if_any(waited, duration), most,
        ))  # fmt: skip
    return Table(heads, cells, most=_ROWS)


def _if_any(value: float | None, format_value: Callable[[float], str]) -> str:
    return format_value(value) if value else ""


def _by_phase(rows: Sequence[Row], part: Document) -> Iterator[Block]:
    waits = part.get("waits") or ()
    drawn = sorted(rows[:_BARS], key=lambda row: (_PHASES.index(row[1]) if row[1] in _PHASES else len(_PHASES), row[0]))

    def end_of_calls(kind: str, phase: str, calls: float) -> str:
        entries = _entries(part, kind, phase) if phase not in _OUTSIDE else 0
        return f"{calls:,.0f}" + (f", {figure(calls / entries)} each" if entries else "")

    def end_of_time(kind: str, phase: str, seconds: float) -> str:
        return duration(seconds)

    for title, is_outside in (
        ("Within phases of training and loading, by kind of thread", False),
        ("Elsewhere: start-up, imports, between phases, workers that wait for work", True),
    ):
        chosen = [row for row in drawn if (row[1] in _OUTSIDE) is is_outside]
        waiting = "time in calls that wait: they last as long as somebody else takes"
        pictures: list[Block] = [
            _stacked(chosen, lambda name, call: call["calls"], end_of_calls, "", "calls"),
            _stacked(chosen, _seconds(waits, False), end_of_time, "s", "time in calls that work"),
            _stacked(chosen, _seconds(waits, True), end_of_time, "s", waiting),
        ]
        yield Group(title, pictures if chosen else [])
    if len(rows) > _BARS:
        yield Text(f"{len(rows) - _BARS} rows with fewer calls are left out of the pictures.", mood="note")


def _stacked(rows: Sequence[Row], value: Value, end: Callable[[str, str, float], str], unit: str, caption: str) -> Stacked:
    sums: Counter[str] = Counter()
    for _, _, calls in rows:
        for name, call in calls.items():
            sums[name] += value(name, call)  # type: ignore[assignment]  # seconds, too
    named = [name for name, amount in sums.most_common(_NAMED) if amount > 0]
    bars = []
    for kind, phase, calls in rows:
        values = {name: value(name, calls[name]) for name in named if name in calls}
        values[_OTHERS] = sum(value(name, call) for name, call in calls.items() if name not in named)
        whole = sum(values.values())
        if whole > 0:
            bars.append((f"{phase} · {kind}", values, end(kind, phase, whole)))
    return Stacked(bars, unit, caption, order=(*named, _OTHERS))


def _over_time(part: Document) -> Iterator[Block]:
    bins = part.get("over_time")
    if not bins or not bins.get("calls"):
        return
    timeline = partial(Timeline, begin_s=bins["begin_s"], bin_s=bins["bin_s"])
    blocks: list[Block] = [timeline(list(bins["calls"].items()), caption="calls")]
    if bins.get("phases"):
        blocks.append(timeline(list(bins["phases"].items()), unit="share", caption="phases: share of the time", whole=1.0, mean=True))
    if bins.get("seconds"):
        blocks.append(Details("time in calls", [timeline(list(bins["seconds"].items()), unit="s", caption="time in calls")]))
    yield Group("Over time", blocks)


def _totals(part: Document) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Of each call how often it was made, and the seconds of work and of waiting; of all phases and threads."""
    sums: tuple[dict[str, float], ...] = {}, {}, {}
    for calls in (part.get("phases") or {}).values():
        for name, call in calls.items():
            for table, amount in zip(sums, (call["calls"], *working_and_waiting_s(name, call, part.get("waits") or ())), strict=True):
                if amount:
                    table[name] = table.get(name, 0) + amount
    return sums  # type: ignore[return-value]  # three of them


def _top(amounts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(amounts.items(), key=lambda item: (-item[1], item[0]))[:_TOP]


def _most_frequent(part: Document) -> Block:
    """The ten calls with the largest shares: of all calls, of the time of work, and of waiting."""
    bars: list[Block] = []
    for amounts, unit, what in zip(
        _totals(part), ("", "s", "s"), ("of all calls", "of the time in calls that work", "of the time in calls that wait"), strict=True
    ):
        whole, top = sum(amounts.values()), _top(amounts)
        rows = [(name, amount, f"{amount / whole:.1%}  {written(amount, unit)}") for name, amount in top]
        if rows:
            bars.append(Bars(rows, f"share {what}; these together {sum(amount for _, amount in top) / whole:.1%}"))
    return Group("The ten most", [Grid(bars, wide=True)] if bars else [])


def _by_bytes(rows: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    return sorted(rows or (), key=lambda row: -(row["read"] + row["written"]))


def _busiest_files(part: Document) -> Iterator[Text]:
    for key, label in (("folders", "folder"), ("files", "file")):
        for row in _by_bytes(part.get(key))[:_FILES_IN_TEXT]:
            path = row["path"] if len(row["path"]) <= _LONGEST_PATH else "…" + row["path"][1 - _LONGEST_PATH :]
            deeds = [_if_any(row["opens"], "{:,} opens".format), *(f"{size(row[key])} {key}" for key in ("read", "written") if row[key])]
            yield Text(f"{path}  {', '.join(deed for deed in deeds if deed)}", label, mood="note", one_line=True)


def _file_tables(part: Document) -> Iterator[Block]:
    for key in ("folders", "files"):
        rows = [
            (row["path"], *(_if_any(row[name], "{:,}".format) for name in (("files",) if key == "folders" else ()) + ("opens",)),
             *(_if_any(row[name], size) for name in ("read", "written")))
            for row in _by_bytes(part.get(key))[:_FILES]
        ]  # fmt: skip
        heads = (key[:-1], *(("files",) if key == "folders" else ()), "opens", "read", "written")
        if rows:
            yield Details(f"{key.capitalize()} with the most bytes", [Table(heads, rows)])


def _headlines(part: Document) -> Iterator[str]:
    """How many calls training itself makes, a handful where nothing is wrong; how many a file takes where batches are fetched."""
    entered, waits = (part.get("entered") or {}).get("main", {}), part.get("waits") or ()
    if part.get("tool") != "counters" and part.get("mode") != "files":
        threads = [phases for kind, phases in (part.get("threads") or {}).items() if not kind.startswith(("worker", "child"))]
        each = []
        for phase, words in _TRAINING:
            if entered.get(phase):
                calls = sum(call["calls"] for one in threads for name, call in one.get(phase, {}).items() if name not in waits)
                each.append(f"{figure(calls / entered[phase])} in {words}")
        if each:
            yield f"system calls that work: {', '.join(each)}"
    fetch = (part.get("phases") or {}).get("fetch", {})
    shared = (part.get("shared_memory") or {}).get("fetch", 0)
    opened = sum(fetch[name]["calls"] - (fetch[name]["errors"] or 0) for name in ("open", "openat", "openat2") if name in fetch) - shared
    if shared:
        yield f"{shared:,} pieces of shared memory opened in fetch: what workers hand over"
    if opened >= _MANY_FILES:
        working = {name: call["calls"] for name, call in fetch.items() if name not in waits}
        per_file = ", ".join(f"{figure(n / opened)} {name}" for name, n in list(working.items())[:8] if n >= opened / 2)
        yield f"{opened:,} files opened in fetch, {figure(sum(working.values()) / opened)} calls a file: {per_file}"


def doubts(part: Document) -> Iterator[str]:
    """What makes the figures doubtful or less than all: strace's stops, a tracer that ended early, events without room."""
    if part.get("tool") == "strace":
        which = "calls on files alone, " if part.get("mode") == "files" else ""
        yield f"{which}seen by strace: counts are exact, times far too long, since each call stops for it"
    if part.get("cut"):
        yield f"the tracer ended before the run did: {part['cut']}"
    if part.get("lost"):
        yield f"the kernel had no room for {part['lost']:,} events: there were more calls than these"


def remarks(part: Document) -> Iterator[str]:
    """What is to be known of the figures: who took them, which can be trusted, what they cost, what is not seen."""
    tool, cost, own, log = part.get("tool"), part.get("cost"), part.get("own") or {}, part.get("log") or {}
    if tool:
        yield f"taken by {tool}: " + "; ".join(f"{column}: {word}" for column, word in (part.get("trusted") or {}).items())
    if cost:
        yield cost_line(str(tool), cost)
    if own.get("calls") or part.get("markers"):
        yield f"not counted: {part.get('markers', 0):,} markers, {own.get('calls', 0):,} calls of voirkit itself"
    if part.get("uring"):
        yield _URING.format(n=part["uring"])
    if log.get("unread"):
        example = log["examples"][0]
        yield f"{log['unread']:,} lines were not understood, the first is line {example['line']}: {printable(example['text'], 60)}"
    if log.get("torn"):
        yield "the log is cut in its last line, which is left out"


def cost_line(tool: str, cost: Mapping[str, Any]) -> str:
    """What tracing cost."""
    spent = f"{duration(cost['program_s'])} for {cost['events']:,}"
    if cost["call_s"] is None:
        return f"cost: an edge of a phase took {duration(cost['edge_s'])}, {spent}"
    # The kernel counts a process's time in steps of 10 ms: none of them is not nothing.
    took = "less than 10 ms" if cost["tracer_s"] == 0 else duration(cost["tracer_s"] or 0.0)
    tracer = "" if cost["tracer_s"] is None else f"{tool} took {took} of a processor, "
    return f"cost: {tracer}a call {duration(cost['call_s'])} longer than the {duration(cost['plain_call_s'])} without, {spent}"


# of `voirkit syscalls`


def whole_log(document: Document, path: str, most: int) -> Section:
    """Everything of a log: a table for each kind of thread and phase, the most frequent calls, then files and what is to be known.
    ``most``: calls of each phase that are shown."""
    heads = ("thread", Column("phase", left=True), Column("syscall", left=True, cut=True), "calls", "errors", "time", "a call", "bytes",
             Column("waits", left=True))  # fmt: skip
    rows: list[Sequence[AnyCell]] = []
    for kind, phases in document["threads"].items():
        for phase, calls in phases.items():
            rows += _call_rows(kind, phase, calls, document["waits"], most)
    blocks: list[Block] = [Table(heads, rows, most=len(rows)), *_most_frequent_tables(document)]
    blocks += _notes([*_headlines(document), *doubts(document), *remarks(document)])
    blocks += _busiest_files(document)
    return Section("syscalls", f"System calls of {path}", blocks)


def _call_rows(kind: str, phase: str, calls: Calls, waits: Sequence[str], most: int) -> Iterator[Sequence[AnyCell]]:
    timed = [(name, call) for name, call in calls.items() if call["seconds"] is not None and name not in waits]
    working = [working_and_waiting_s(name, call, waits)[0] for name, call in timed]
    has_waits = any(name in waits or "waited" in call for name, call in calls.items())
    yield (
        Cell(kind, "strong"), Cell(phase, "strong"), Cell("all", "strong"), f"{_sum(calls, 'calls'):,}",
        _if_any(_sum(calls, "errors"), "{:,}".format), duration(sum(working)) if working else "", "", _if_any(_sum(calls, "bytes"), size),
        Cell("working" if has_waits else "", "dim"),
    )  # fmt: skip
    for name, call in list(calls.items())[:most]:
        seconds, waited = call["seconds"], call.get("waited", 0.0)
        share = f"{waited / seconds:.0%}" if waited > 0.005 * (seconds or 0.0) else ""
        yield (
            "", "", name, f"{call['calls']:,}", _if_any(call["errors"], "{:,}".format), _if_any(seconds, duration),
            duration(seconds / call["calls"]) if seconds and call["calls"] else "", _if_any(call["bytes"], size),
            Cell("waits" if name in waits else share, "dim"),
        )  # fmt: skip
    if len(calls) > most:
        rest = sum(call["calls"] for call in list(calls.values())[most:])
        yield "", "", Cell(f"{len(calls) - most} others", "dim"), f"{rest:,}", "", "", "", "", ""


def _most_frequent_tables(document: Document) -> list[Block]:
    """The ten calls that are made most often and those that work the longest, beside each other; those that wait the longest."""
    calls, working, waiting = _totals(document)
    tables = [[("most calls", calls, ""), ("works longest", working, "s")], [("waits longest", waiting, "s")]]
    return [_top_table([one for one in table if one[1]]) for table in tables if any(one[1] for one in table)]


def _top_table(groups: Sequence[tuple[str, Mapping[str, float], str]]) -> Table:
    heads: list[Column] = []
    columns: list[list[tuple[str, str, str]]] = []
    for head, amounts, unit in groups:
        whole, top = sum(amounts.values()), _top(amounts)
        if len(amounts) > _TOP:
            top.append((f"{len(amounts) - _TOP} others", whole - sum(amount for _, amount in top)))
        columns.append([(name, written(amount, unit) if unit else f"{amount:,.0f}", f"{amount / whole:.1%}") for name, amount in top])
        heads += [Column(head, left=True, cut=True), Column(""), Column("share")]
    rows = [[cell for cells in row for cell in cells] for row in zip_longest(*columns, fillvalue=("", "", ""))]
    return Table(heads, rows)


def over_time_map(document: Document, width: int) -> Iterator[str]:
    """A map: a line for each call, time from left to right, dark where it was made most; above it the phase that had most of the time."""
    bins = document.get("over_time")
    if not bins:
        yield "When they were made is not known: this has no times."
        return
    n = max((len(row) for row in bins["calls"].values()), default=1)
    each = -(-n // max(width - _MAP_LABEL - 1, 1))  # bins in a column
    columns = -(-n // each)
    begin, end = duration(bins["begin_s"]), duration(bins["begin_s"] + n * bins["bin_s"])
    yield f"{'':{_MAP_LABEL}}{begin}" + (f"{end:>{columns - len(begin)}}" if len(begin) + len(end) < columns else "")
    phases = {phase: _columns(row, each) for phase, row in bins["phases"].items()}
    letters = [_letter(phases, i) for i in range(columns)]
    if phases:
        yield f"{'phase':{_MAP_LABEL}}{''.join(letters)}"
    for name, row in sorted(bins["calls"].items(), key=lambda item: (item[0] == _OTHERS, -sum(item[1]))):
        cells = _columns(row, each)
        shades = "".join(_SHADES[0 if not cell else max(1, round(cell / max(cells) * (len(_SHADES) - 1)))] for cell in cells)
        yield f"{name[:14]:14} {sum(row):>10,} {shades}"
    legend = ""
    for letter in sorted({*letters} - {" ", "."}):
        legend += f" · {letter} {' or '.join(sorted(phase for phase in phases if phase[0] == letter and phase != 'other'))}"
    yield f"each row is as dark as its own most; a column is {duration(each * bins['bin_s'])}{legend}"


def _columns(row: Sequence[float], each: int) -> list[float]:
    return [sum(row[begin : begin + each]) for begin in range(0, len(row), each)]


def _letter(phases: Mapping[str, Sequence[float]], column: int) -> str:
    phase = max(phases, key=lambda phase: phases[phase][column], default="")
    return " " if not phase or not phases[phase][column] else "." if phase == "other" else phase[0]


def two_logs(rows: Sequence[Difference], documents: Mapping[str, Document], most: int) -> Section:
    """What two logs differ in: ``+`` is more in the second, ``-`` less. ``rows``: of ``analyse.difference``."""
    numbers = ("A", "B", "B - A", "errors", "time", "bytes")
    heads = (Column("phase", left=True), Column("syscall", left=True, cut=True), *numbers, Column("", left=True))
    changed = [row for row in rows if row.more_calls or row.more_errors or row.bytes[0] != row.bytes[1]]
    cells: list[Sequence[AnyCell]] = []
    for row in changed[:most]:
        only = "in A alone" if not row.calls[1] else "in B alone" if not row.calls[0] else ""
        changes = _changes(row.calls, row.more_errors, row.more_seconds, row.bytes)
        cells.append((row.phase, row.name, *changes, Cell(only, "dim")))
    calls, moved = ([sum(getattr(row, column)[side] for row in rows) for side in (0, 1)] for column in ("calls", "bytes"))
    errors, seconds = (total(getattr(row, column) for row in rows) for column in ("more_errors", "more_seconds"))
    cells.append(("", Cell("all", "strong"), *_changes(calls, errors, seconds, moved), ""))
    notes = [f"{len(changed) - most} more differ"] if len(changed) > most else []
    notes += [f"{len(rows) - len(changed)} rows are alike"] if len(rows) > len(changed) else []
    blocks: list[Block] = [Table(heads, cells, most=len(cells)), *_notes([", ".join(notes)] if notes else [])]
    if all(row.more_seconds is None for row in rows):
        blocks += _notes(["times are not compared: not both logs have them of the same tracer"])
    blocks += [Text(f"{path}: {line}") for path, document in documents.items() for line in (*doubts(document), *remarks(document))]
    return Section("syscalls", "System calls of two logs", blocks)


def _changes(calls: Sequence[int], errors: float | None, seconds: float | None, moved: Sequence[int]) -> tuple[str, ...]:
    return (
        f"{calls[0]:,}", f"{calls[1]:,}", f"{calls[1] - calls[0]:+,}", _signed(errors, "{:,}".format), _signed(seconds, duration),
        _signed(moved[1] - moved[0], size),
    )  # fmt: skip


def _signed(value: float | None, format_value: Callable[[float], str]) -> str:
    return f"{'+' if value > 0 else '-'}{format_value(abs(value))}" if value else ""
