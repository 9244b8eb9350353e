"""Report sections on system calls: by phase and kind of thread, over time, the most frequent calls,
files, and how far the figures can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

from voirkit import phase_names
from voirkit.live.frame import printable
from voirkit.phase_table import COLUMNS
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

_ROWS = 16  # rows of the table in a terminal
_BARS = 18  # bars in a picture, one for each kind of thread and phase
_NAMED = 9  # calls that have their own colour in a picture
_LISTED = 12  # calls listed in a cell
_MANY_WORKERS = 6
_TOP = 10
_FILES = 20
_FILES_IN_TEXT = 3
_LONGEST_PATH = 60
_MANY_FILES = 20
_REMAINDER = "others"
_OUTSIDE = ("import", "other", "worker")
# order of rows: the phases of a step, with the workers' fetch after the wait for it
_STEP_PHASES = [name for name in COLUMNS[1:] if name not in _OUTSIDE]
_PHASES = (phase_names.WAIT, "fetch", *_STEP_PHASES, *_OUTSIDE)
_TRAINING = (
    (phase_names.FORWARD, "a forward"),
    (phase_names.BACKWARD, "a backward"),
    (phase_names.OPTIMIZER, "a step of the optimizer"),
)
_SHADES = " ░▒▓█"
_MAP_LABEL = 26  # characters before the map over time
_URING = (
    "io_uring_enter was called {n:,} times: what is read and written through a ring is seen by no"
    " tracer of calls."
)

Document = Mapping[str, Any]
Calls = Mapping[str, Mapping[str, Any]]


class Row(NamedTuple):
    """The calls of a kind of thread in a phase."""

    kind: str
    phase: str
    calls: Calls


Value = Callable[[str, Mapping[str, Any]], float]


def sections(part: Document, summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the section on the system calls of a run."""
    tool = part.get("tool")
    notes = []
    if part.get("calls") is not None:
        notes.append(f"{part['calls']:,} calls")
    if tool:
        notes.append(f"taken by {tool}")
    yield Section(
        "syscalls",
        "System calls",
        list(_blocks(part)),
        "; ".join(notes),
        least=8,
        measured_by=str(tool or ""),
    )


def _blocks(part: Document) -> Iterator[Block]:
    trusted = _trusted(part)
    yield OnPage([Text(trusted, mood="note")] if trusted else [])
    yield from _notes([*_headlines(part), *doubts(part)])
    rows = _rows(part)
    if rows:
        table = _table(rows, part)
        yield InText([table])
        yield OnPage(
            [
                *_by_phase(rows, part),
                Details("the same as a table", [table]),
                *_over_time(part),
                _most_frequent(part),
            ]
        )
    yield InText([*_notes(remarks(part)), *_busiest_files(part)])
    yield from _file_tables(part)
    yield OnPage([Details("what can be trusted, and what it cost", [*_notes(remarks(part))])])
    yield from _amounts(part)


def _trusted(part: Document) -> str:
    trusted = part.get("trusted") or {}
    return "; ".join(f"{column}: {word}" for column, word in trusted.items())


def _amounts(part: Document) -> Iterator[Amounts]:
    """Yield the numbers of each call in each phase, for comparisons of runs."""
    by_name = {}
    for phase, calls in (part.get("phases") or {}).items():
        for name, call in calls.items():
            by_name[f"{phase} · {name}"] = call
    for title, unit, column in (
        ("calls", "", "calls"),
        ("time", "s", "seconds"),
        ("bytes", "bytes", "bytes"),
    ):
        yield Amounts(title, {name: call[column] or 0 for name, call in by_name.items()}, unit)


def _notes(lines: Iterable[str]) -> Iterator[Text]:
    for line in lines:
        yield Text(line, mood="note")


def _rows(part: Document) -> list[Row]:
    """Return the calls by kind of thread and phase, rows with the most calls first. If there are
    many workers, they are merged into one kind."""
    threads = dict(part.get("threads") or {})
    workers = [kind for kind in threads if kind.startswith("worker ")]
    if len(workers) > _MANY_WORKERS:
        threads[f"{len(workers)} workers"] = merge([threads.pop(kind) for kind in workers])
    rows = []
    for kind, phases in threads.items():
        for phase, calls in phases.items():
            if _sum(calls, "calls"):
                rows.append(Row(kind, phase, calls))
    return sorted(rows, key=lambda row: -_sum(row.calls, "calls"))


def _sum(calls: Calls, key: str) -> float:
    return sum(call.get(key) or 0 for call in calls.values())


def _seconds(waits: Sequence[str], waiting: bool) -> Value:
    """Return a function for the time that a call waited, or for the time that it worked."""
    return lambda name, call: working_and_waiting_s(name, call, waits)[waiting]


def _entries(part: Document, kind: str, phase: str) -> int:
    entered = part.get("entered") or {}
    kinds = [kind]
    if kind.endswith(" workers"):
        kinds = [worker for worker in entered if worker.startswith("worker ")]
    return sum(entered.get(kind, {}).get(phase, 0) for kind in kinds)


def _table(rows: Sequence[Row], part: Document) -> Table:
    heads: Sequence[str | Column] = (
        Column("syscalls of", left=True),
        Column("phase", left=True),
        "calls",
        Column("each", narrowest=40),
        Column("errors", narrowest=100),
        Column("bytes", narrowest=76),
        Column("works", narrowest=52),
        Column("waits", narrowest=60),
        Column("most calls", left=True, cut=True),
    )
    return Table(heads, [_table_row(row, part) for row in rows], most=_ROWS)


def _table_row(row: Row, part: Document) -> tuple[str, ...]:
    kind, phase, calls = row
    waits = part.get("waits") or ()
    count = _sum(calls, "calls")
    entries = _entries(part, kind, phase)
    working_s = sum(map(_seconds(waits, False), calls, calls.values()))
    waiting_s = sum(map(_seconds(waits, True), calls, calls.values()))
    each = figure(count / entries) if entries else ""
    times = _if_any(working_s, duration), _if_any(waiting_s, duration)
    listed = list(calls.items())[:_LISTED]
    most = ", ".join(f"{call['calls']:,} {name}" for name, call in listed if call["calls"])
    return (kind, phase, f"{count:,}", each, *_errors_and_bytes(calls), *times, most)


def _errors_and_bytes(calls: Calls) -> tuple[str, str]:
    errors = _if_any(_sum(calls, "errors"), "{:,}".format)
    return errors, _if_any(_sum(calls, "bytes"), size)


def _if_any(value: float | None, format_value: Callable[[float], str]) -> str:
    return format_value(value) if value else ""


def _by_phase(rows: Sequence[Row], part: Document) -> Iterator[Block]:
    waits = part.get("waits") or ()

    def end_of_calls(kind: str, phase: str, calls: float) -> str:
        entries = _entries(part, kind, phase) if phase not in _OUTSIDE else 0
        each = f", {figure(calls / entries)} each" if entries else ""
        return f"{calls:,.0f}{each}"

    def end_of_time(kind: str, phase: str, seconds: float) -> str:
        return duration(seconds)

    largest = sorted(rows[:_BARS], key=_row_order)
    waiting = "time in calls that wait: they last as long as somebody else takes"
    for title, is_outside in (
        ("Within phases of training and loading, by kind of thread", False),
        ("Elsewhere: start-up, imports, between phases, workers that wait for work", True),
    ):
        bars = [row for row in largest if (row.phase in _OUTSIDE) is is_outside]
        pictures: list[Block] = [
            _stacked(bars, lambda name, call: call["calls"], end_of_calls, "", "calls"),
            _stacked(bars, _seconds(waits, False), end_of_time, "s", "time in calls that work"),
            _stacked(bars, _seconds(waits, True), end_of_time, "s", waiting),
        ]
        yield Group(title, pictures if bars else [])
    if len(rows) > _BARS:
        yield Text(
            f"{len(rows) - _BARS} rows with fewer calls are left out of the pictures.", mood="note"
        )


def _row_order(row: Row) -> tuple[int, str]:
    rank = _PHASES.index(row.phase) if row.phase in _PHASES else len(_PHASES)
    return rank, row.kind


def _stacked(
    rows: Sequence[Row],
    value: Value,
    end: Callable[[str, str, float], str],
    unit: str,
    caption: str,
) -> Stacked:
    sums: Counter[str] = Counter()
    for row in rows:
        for name, call in row.calls.items():
            sums[name] += value(name, call)  # type: ignore[assignment]  # float if seconds
    named = [name for name, amount in sums.most_common(_NAMED) if amount > 0]
    bars = []
    for kind, phase, calls in rows:
        values = {name: value(name, calls[name]) for name in named if name in calls}
        values[_REMAINDER] = sum(
            value(name, call) for name, call in calls.items() if name not in named
        )
        whole = sum(values.values())
        if whole > 0:
            bars.append((f"{phase} · {kind}", values, end(kind, phase, whole)))
    return Stacked(bars, unit, caption, order=(*named, _REMAINDER))


def _over_time(part: Document) -> Iterator[Block]:
    bins = part.get("over_time")
    if not bins or not bins.get("calls"):
        return
    timeline = partial(Timeline, begin_s=bins["begin_s"], bin_s=bins["bin_s"])
    blocks: list[Block] = [timeline(list(bins["calls"].items()), caption="calls")]
    if bins.get("phases"):
        blocks.append(
            timeline(
                list(bins["phases"].items()),
                unit="share",
                caption="phases: share of the time",
                whole=1.0,
                mean=True,
            )
        )
    if bins.get("seconds"):
        seconds = timeline(list(bins["seconds"].items()), unit="s", caption="time in calls")
        blocks.append(Details("time in calls", [seconds]))
    yield Group("Over time", blocks)


class _Totals(NamedTuple):
    """Totals by system call over all phases and threads: number of calls, seconds of work and
    seconds of waiting."""

    calls: dict[str, float]
    working_s: dict[str, float]
    waiting_s: dict[str, float]


def _totals(part: Document) -> _Totals:
    totals = _Totals({}, {}, {})
    waits = part.get("waits") or ()
    for calls in (part.get("phases") or {}).values():
        for name, call in calls.items():
            amounts = call["calls"], *working_and_waiting_s(name, call, waits)
            for sums, amount in zip(totals, amounts, strict=True):
                if amount:
                    sums[name] = sums.get(name, 0) + amount
    return totals


def _top(amounts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(amounts.items(), key=lambda item: (-item[1], item[0]))[:_TOP]


def _most_frequent(part: Document) -> Block:
    """Return pictures of the ten calls with the largest shares: of all calls, of working time and
    of waiting time."""
    totals = _totals(part)
    bars: list[Block] = []
    for amounts, unit, whole_words in (
        (totals.calls, "", "of all calls"),
        (totals.working_s, "s", "of the time in calls that work"),
        (totals.waiting_s, "s", "of the time in calls that wait"),
    ):
        if not amounts:
            continue
        whole = sum(amounts.values())
        top = _top(amounts)
        rows = [
            (name, amount, f"{amount / whole:.1%}  {written(amount, unit)}") for name, amount in top
        ]
        together = sum(amount for _, amount in top) / whole
        bars.append(Bars(rows, f"share {whole_words}; these together {together:.1%}"))
    return Group("The ten most", [Grid(bars, wide=True)] if bars else [])


def _by_bytes(rows: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    return sorted(rows or (), key=lambda row: -(row["read"] + row["written"]))


def _busiest_files(part: Document) -> Iterator[Text]:
    for key, label in (("folders", "folder"), ("files", "file")):
        for row in _by_bytes(part.get(key))[:_FILES_IN_TEXT]:
            path = row["path"]
            if len(path) > _LONGEST_PATH:
                path = "…" + path[1 - _LONGEST_PATH :]
            figures = []
            if row["opens"]:
                figures.append(f"{row['opens']:,} opens")
            for column in ("read", "written"):
                if row[column]:
                    figures.append(f"{size(row[column])} {column}")
            yield Text(f"{path}  {', '.join(figures)}", label, mood="note", one_line=True)


def _file_tables(part: Document) -> Iterator[Block]:
    for key, count_columns in (("folders", ("files", "opens")), ("files", ("opens",))):
        rows = []
        for row in _by_bytes(part.get(key))[:_FILES]:
            counts = [_if_any(row[column], "{:,}".format) for column in count_columns]
            sizes = [_if_any(row[column], size) for column in ("read", "written")]
            rows.append((row["path"], *counts, *sizes))
        if rows:
            heads = (key[:-1], *count_columns, "read", "written")
            yield Details(f"{key.capitalize()} with the most bytes", [Table(heads, rows)])


def _headlines(part: Document) -> Iterator[str]:
    """Yield notes on three counts: calls made by training itself, a handful if all is well; shared
    memory opened where batches are fetched; and calls for each file there."""
    if part.get("tool") != "counters" and part.get("mode") != "files":
        each = list(_calls_of_training(part))
        if each:
            yield f"system calls that work: {', '.join(each)}"
    shared = (part.get("shared_memory") or {}).get("fetch", 0)
    if shared:
        yield f"{shared:,} pieces of shared memory opened in fetch: what workers hand over"
    fetch = (part.get("phases") or {}).get("fetch", {})
    n_files = _opened_files(fetch) - shared
    if n_files >= _MANY_FILES:
        waits = part.get("waits") or ()
        working = {name: call["calls"] for name, call in fetch.items() if name not in waits}
        all_calls = figure(sum(working.values()) / n_files)
        most = list(working.items())[:8]
        per_file = [f"{figure(n / n_files)} {name}" for name, n in most if n >= n_files / 2]
        yield f"{n_files:,} files opened in fetch, {all_calls} calls a file: {', '.join(per_file)}"


def _calls_of_training(part: Document) -> Iterator[str]:
    """Yield strings like ``3 in a forward``: working calls per entry, for each phase of training
    that was entered."""
    entered = (part.get("entered") or {}).get("main", {})
    waits = part.get("waits") or ()
    threads = part.get("threads") or {}
    training = [
        phases for kind, phases in threads.items() if not kind.startswith(("worker", "child"))
    ]
    for phase, words in _TRAINING:
        if not entered.get(phase):
            continue
        n_calls = 0
        for phases in training:
            for name, call in phases.get(phase, {}).items():
                if name not in waits:
                    n_calls += call["calls"]
        yield f"{figure(n_calls / entered[phase])} in {words}"


def _opened_files(calls: Calls) -> int:
    opens = [calls[name] for name in ("open", "openat", "openat2") if name in calls]
    return sum(call["calls"] - (call["errors"] or 0) for call in opens)


def doubts(part: Document) -> Iterator[str]:
    """Yield the reasons why figures are doubtful or incomplete: stops by strace, a tracer that
    ended early, dropped events."""
    if part.get("tool") == "strace":
        scope = "calls on files alone, " if part.get("mode") == "files" else ""
        yield (
            f"{scope}seen by strace: counts are exact, times far too long, since each call stops"
            " for it"
        )
    if part.get("cut"):
        yield f"the tracer ended before the run did: {part['cut']}"
    if part.get("lost"):
        yield (
            f"the kernel had no room for {part['lost']:,} events: there were more calls than these"
        )


def remarks(part: Document) -> Iterator[str]:
    """Yield remarks about the figures: the tool that took them, how far they can be trusted, the
    cost, and what is not seen."""
    tool = part.get("tool")
    cost = part.get("cost")
    if tool:
        yield f"taken by {tool}: {_trusted(part)}"
    if cost:
        yield cost_line(str(tool), cost)
    own_calls = (part.get("own") or {}).get("calls", 0)
    if own_calls or part.get("markers"):
        yield (
            f"not counted: {part.get('markers', 0):,} markers, {own_calls:,} calls of"
            " voirkit itself"
        )
    if part.get("uring"):
        yield _URING.format(n=part["uring"])
    log = part.get("log") or {}
    if log.get("unread"):
        example = log["examples"][0]
        yield (
            f"{log['unread']:,} lines were not understood, the first is line {example['line']}:"
            f" {printable(example['text'], 60)}"
        )
    if log.get("torn"):
        yield "the log is cut in its last line, which is left out"


def cost_line(tool: str, cost: Mapping[str, Any]) -> str:
    """Return the cost of tracing in one line."""
    program = f"{duration(cost['program_s'])} for {cost['events']:,}"
    if cost["call_s"] is None:
        return f"cost: an edge of a phase took {duration(cost['edge_s'])}, {program}"
    tracer = ""
    if cost["tracer_s"] is not None:
        # The kernel counts CPU time in steps of 10 ms: a time of 0 means less than one step.
        took = "less than 10 ms" if cost["tracer_s"] == 0 else duration(cost["tracer_s"])
        tracer = f"{tool} took {took} of a processor, "
    return (
        f"cost: {tracer}a call {duration(cost['call_s'])} longer than the"
        f" {duration(cost['plain_call_s'])} without, {program}"
    )


# sections of the command `voirkit syscalls`


def whole_log(document: Document, path: str, most: int) -> Section:
    """Return the section on a whole log: a table for each kind of thread and phase, the most
    frequent calls, notes and files. ``most``: number of calls shown for each phase."""
    heads = (
        "thread",
        Column("phase", left=True),
        Column("syscall", left=True, cut=True),
        "calls",
        "errors",
        "time",
        "a call",
        "bytes",
        Column("waits", left=True),
    )
    rows: list[Sequence[AnyCell]] = []
    for kind, phases in document["threads"].items():
        for phase, calls in phases.items():
            rows += _call_rows(kind, phase, calls, document["waits"], most)
    blocks: list[Block] = [Table(heads, rows, most=len(rows)), *_most_frequent_tables(document)]
    blocks += _notes([*_headlines(document), *doubts(document), *remarks(document)])
    blocks += _busiest_files(document)
    return Section("syscalls", f"System calls of {path}", blocks)


def _call_rows(
    kind: str, phase: str, calls: Calls, waits: Sequence[str], most: int
) -> Iterator[Sequence[AnyCell]]:
    yield _sum_row(kind, phase, calls, waits)
    for name, call in list(calls.items())[:most]:
        yield _call_row(name, call, name in waits)
    if len(calls) > most:
        n_others = sum(call["calls"] for call in list(calls.values())[most:])
        name_of_others = Cell(f"{len(calls) - most} others", "dim")
        yield "", "", name_of_others, f"{n_others:,}", "", "", "", "", ""


def _sum_row(kind: str, phase: str, calls: Calls, waits: Sequence[str]) -> Sequence[AnyCell]:
    working_s = []
    has_waits = False
    for name, call in calls.items():
        if name in waits or "waited" in call:
            has_waits = True
        if call["seconds"] is not None and name not in waits:
            working_s.append(working_and_waiting_s(name, call, waits)[0])
    labels = [Cell(text, "strong") for text in (kind, phase, "all")]
    errors, n_bytes = _errors_and_bytes(calls)
    time = duration(sum(working_s)) if working_s else ""
    waits_cell = Cell("working" if has_waits else "", "dim")
    return [*labels, f"{_sum(calls, 'calls'):,}", errors, time, "", n_bytes, waits_cell]


def _call_row(name: str, call: Mapping[str, Any], is_wait: bool) -> Sequence[AnyCell]:
    count, seconds = call["calls"], call["seconds"]
    waited_s = call.get("waited", 0.0)
    if is_wait:
        waits = "waits"
    elif waited_s > 0.005 * (seconds or 0.0):
        waits = f"{waited_s / seconds:.0%}"
    else:
        waits = ""
    each = duration(seconds / count) if seconds and count else ""
    errors, n_bytes = _if_any(call["errors"], "{:,}".format), _if_any(call["bytes"], size)
    time = _if_any(seconds, duration)
    return ("", "", name, f"{count:,}", errors, time, each, n_bytes, Cell(waits, "dim"))


def _most_frequent_tables(document: Document) -> list[Block]:
    """Return two tables: the ten most frequent calls beside the ten that work longest, and the ten
    that wait longest."""
    totals = _totals(document)
    left_and_right = [("most calls", totals.calls, ""), ("works longest", totals.working_s, "s")]
    below = [("waits longest", totals.waiting_s, "s")]
    tables: list[Block] = []
    for groups in (left_and_right, below):
        with_calls = [group for group in groups if group[1]]
        if with_calls:
            tables.append(_top_table(with_calls))
    return tables


def _top_table(groups: Sequence[tuple[str, Mapping[str, float], str]]) -> Table:
    heads: list[Column] = []
    columns: list[list[tuple[str, str, str]]] = []
    for head, amounts, unit in groups:
        heads += [Column(head, left=True, cut=True), Column(""), Column("share")]
        whole = sum(amounts.values())
        top = _top(amounts)
        if len(amounts) > _TOP:
            remainder = whole - sum(amount for _, amount in top)
            top.append((f"{len(amounts) - _TOP} others", remainder))
        cells = []
        for name, amount in top:
            text = written(amount, unit) if unit else f"{amount:,.0f}"
            cells.append((name, text, f"{amount / whole:.1%}"))
        columns.append(cells)
    rows = []
    for row in zip_longest(*columns, fillvalue=("", "", "")):
        rows.append([text for cells in row for text in cells])
    return Table(heads, rows)


def over_time_map(document: Document, width: int) -> Iterator[str]:
    """Yield the lines of a map over time. It has a line for each call, darkest where the call is
    most frequent. A line above shows the phase with the most time."""
    bins = document.get("over_time")
    if not bins:
        yield "When they were made is not known: this has no times."
        return
    n_bins = max((len(row) for row in bins["calls"].values()), default=1)
    each = -(-n_bins // max(width - _MAP_LABEL - 1, 1))  # number of time bins in one column
    n_columns = -(-n_bins // each)
    start = duration(bins["begin_s"])
    end = duration(bins["begin_s"] + n_bins * bins["bin_s"])
    if len(start) + len(end) < n_columns:
        end = f"{end:>{n_columns - len(start)}}"
    else:
        end = ""
    yield f"{'':{_MAP_LABEL}}{start}{end}"
    phases = {phase: _columns(row, each) for phase, row in bins["phases"].items()}
    letters = [_letter(phases, i) for i in range(n_columns)]
    if phases:
        yield f"{'phase':{_MAP_LABEL}}{''.join(letters)}"
    rows = sorted(bins["calls"].items(), key=lambda item: -sum(item[1]))
    rows.sort(key=lambda item: item[0] == _REMAINDER)
    for name, row in rows:
        yield f"{name[:14]:14} {sum(row):>10,} {_shades(_columns(row, each))}"
    legend = _legend(letters, phases)
    yield (
        f"each row is as dark as its own most; a column is {duration(each * bins['bin_s'])}{legend}"
    )


def _shades(columns: Sequence[float]) -> str:
    darkest = len(_SHADES) - 1
    shades = ""
    for amount in columns:
        level = max(1, round(amount / max(columns) * darkest)) if amount else 0
        shades += _SHADES[level]
    return shades


def _legend(letters: Sequence[str], phases: Iterable[str]) -> str:
    legend = ""
    named = sorted(phase for phase in phases if phase != "other")
    for letter in sorted({*letters} - {" ", "."}):
        meanings = [phase for phase in named if phase[0] == letter]
        legend += f" · {letter} {' or '.join(meanings)}"
    return legend


def _columns(row: Sequence[float], each: int) -> list[float]:
    return [sum(row[first : first + each]) for first in range(0, len(row), each)]


def _letter(phases: Mapping[str, Sequence[float]], column: int) -> str:
    """Return the letter of the phase with the most time in a column of the map."""
    longest = max(phases, key=lambda phase: phases[phase][column], default="")
    if not longest or not phases[longest][column]:
        return " "
    return "." if longest == "other" else longest[0]


def two_logs(rows: Sequence[Difference], documents: Mapping[str, Document], most: int) -> Section:
    """Return the section on the differences of two logs: ``+`` is more in the second, ``-`` less.
    ``rows``: the result of ``analyse.difference``."""
    numbers = ("A", "B", "B - A", "errors", "time", "bytes")
    heads = (
        Column("phase", left=True),
        Column("syscall", left=True, cut=True),
        *numbers,
        Column("", left=True),
    )
    changed = [row for row in rows if _is_changed(row)]
    cells = [_difference_row(row) for row in changed[:most]]
    cells.append(("", Cell("all", "strong"), *_sum_of_changes(rows), ""))
    notes = []
    if len(changed) > most:
        notes.append(f"{len(changed) - most} more differ")
    if len(rows) > len(changed):
        notes.append(f"{len(rows) - len(changed)} rows are alike")
    blocks: list[Block] = [
        Table(heads, cells, most=len(cells)),
        *_notes([", ".join(notes)] if notes else []),
    ]
    if all(row.more_seconds is None for row in rows):
        blocks += _notes(["times are not compared: not both logs have them of the same tracer"])
    for path, document in documents.items():
        for line in (*doubts(document), *remarks(document)):
            blocks.append(Text(f"{path}: {line}"))
    return Section("syscalls", "System calls of two logs", blocks)


def _is_changed(row: Difference) -> bool:
    return bool(row.more_calls or row.more_errors or row.bytes[0] != row.bytes[1])


def _difference_row(row: Difference) -> Sequence[AnyCell]:
    if not row.calls[1]:
        only = "in A alone"
    elif not row.calls[0]:
        only = "in B alone"
    else:
        only = ""
    changes = _changes(row.calls, row.more_errors, row.more_seconds, row.bytes)
    return row.phase, row.name, *changes, Cell(only, "dim")


def _sum_of_changes(rows: Sequence[Difference]) -> tuple[str, ...]:
    calls = sum(row.calls[0] for row in rows), sum(row.calls[1] for row in rows)
    n_bytes = sum(row.bytes[0] for row in rows), sum(row.bytes[1] for row in rows)
    more_errors = total(row.more_errors for row in rows)
    more_seconds = total(row.more_seconds for row in rows)
    return _changes(calls, more_errors, more_seconds, n_bytes)


def _changes(
    calls: Sequence[int],
    more_errors: float | None,
    more_seconds: float | None,
    n_bytes: Sequence[int],
) -> tuple[str, ...]:
    first, second = calls
    errors, seconds = _signed(more_errors, "{:,}".format), _signed(more_seconds, duration)
    more_bytes = _signed(n_bytes[1] - n_bytes[0], size)
    return f"{first:,}", f"{second:,}", f"{second - first:+,}", errors, seconds, more_bytes


def _signed(value: float | None, format_value: Callable[[float], str]) -> str:
    if not value:
        return ""
    sign = "+" if value > 0 else "-"
    return f"{sign}{format_value(abs(value))}"
