"""System calls in a report: by phase and kind of thread, over time, which are the most, files, and what of it can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from voirkit.report.figure import duration, figure, size
from voirkit.report.html.components import (
    PALETTE,
    Html,
    bars,
    colour,
    differences,
    folded,
    heading,
    join,
    paragraph,
    section,
    stacked,
    strong,
    table,
)
from voirkit.report.html.differences import MOST, ROWS, Pair, signed
from voirkit.report.html.plots import heat_map
from voirkit_instruments.syscalls.analyse_figures import Difference, difference, working_and_waiting_s
from voirkit_instruments.syscalls.show import doubted, said
from voirkit_instruments.syscalls.show_shares import sums

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_ROWS = 18  # kinds of thread and phases
_NAMED = 9  # calls in a picture that are told apart
_MANY_WORKERS = 6
_TOP = 10
_FILES = 20
_TABLE = 200  # rows
_PHASES = ("wait", "fetch", "transfer", "forward", "backward", "optimizer", "zero_grad", "checkpoint", "communication", "other", "worker")

_ELSEWHERE = ("other", "worker")
_WITHIN = "Within phases of training and loading, by kind of thread"
_BESIDE = "Elsewhere: start-up, between phases, workers that wait for work"

_WAITING = "time in calls that wait: they last as long as somebody else takes"

Document = Mapping[str, Any]
Rows = Sequence[tuple[str, str, Mapping[str, Any]]]


def syscalls(run: Run, summary: Mapping[str, Any]) -> Html | None:
    """Of runs with --syscalls."""
    found = summary.get("syscalls")
    if not found:
        return None
    parts = [*_by_phase(found), *_over_time(found), *_most(found), *_files(found)]
    about = folded("what can be trusted, and what it cost", *(paragraph(line) for line in (*doubted(found), *said(found))))
    return section("syscalls", "System calls", *parts, about, note="; ".join(_note(found)))


def _note(found: Document) -> Iterator[str]:
    if found.get("calls") is not None:
        yield f"{found['calls']:,} calls"
    if found.get("tool"):
        yield f"taken by {found['tool']}"
    yield from (f"{column}: {word}" for column, word in (found.get("trusted") or {}).items())


def _by_phase(found: Document) -> Iterator[Html]:
    waits = set(found.get("waits") or ())
    rows = sorted(_rows(found), key=lambda row: (_PHASES.index(row[1]) if row[1] in _PHASES else len(_PHASES), row[0]))
    kept = sorted(rows, key=lambda row: -sum(call["calls"] for call in row[2].values()))[:_ROWS]
    entered = found.get("entered") or {}
    colours = {"others": "k-others"}

    def each(kind: str, phase: str, total: float) -> str:
        n = entered.get(kind, {}).get(phase, 0)
        return f"{total:,.0f}" + (f", {figure(total / n)} each" if n and phase not in _ELSEWHERE else "")

    def last(kind: str, phase: str, total: float) -> str:
        return duration(total)

    for title, is_within in ((_WITHIN, True), (_BESIDE, False)):
        chosen = [row for row in rows if row in kept and (row[1] not in _ELSEWHERE) is is_within]
        if chosen:
            yield heading(title)
            yield _stacked(chosen, lambda name, call: call["calls"], lambda n: f"{n:,.0f}", each, "calls", colours)
            yield _stacked(chosen, _seconds(waits, False), duration, last, "time in calls that work", colours)
            yield _stacked(chosen, _seconds(waits, True), duration, last, _WAITING, colours)
    if rows:
        yield folded("the same as a table", _table(rows, waits))
    if len(rows) > len(kept):
        yield paragraph(f"{len(rows) - len(kept)} rows with fewer calls are left out; voirkit report --json has all.", kind="note")


def _table(rows: Rows, waits: set[str]) -> Html:
    def total(calls: Mapping[str, Any], key: str) -> float:
        return sum(call.get(key) or 0 for call in calls.values())

    cells = []
    for kind, phase, calls in rows[:_TABLE]:
        works, waited = (sum(map(_seconds(waits, wanted), calls, calls.values())) for wanted in (False, True))
        counts = (f"{total(calls, key):,}" if total(calls, key) else "" for key in ("calls", "errors"))
        moved = size(total(calls, "bytes")) if total(calls, "bytes") else ""
        cells.append((phase, kind, *counts, moved, *(duration(took) if took else "" for took in (works, waited))))
    return table(("phase", "thread", "calls", "errors", "bytes", "works", "waits"), cells, left=(0, 1))


def _rows(found: Document) -> Rows:
    """Kind of thread, phase, calls; many workers as one kind."""
    threads = dict(found.get("threads") or {})
    workers = [kind for kind in threads if kind.startswith("worker ")]
    if len(workers) > _MANY_WORKERS:
        summed: dict[str, dict[str, dict[str, Any]]] = {}
        for kind in workers:
            for phase, calls in threads.pop(kind).items():
                for name, call in calls.items():
                    empty = {"calls": 0, "errors": 0, "bytes": 0, "seconds": None, "waited": 0.0}
                    row = summed.setdefault(phase, {}).setdefault(name, empty)
                    for key in ("calls", "errors", "bytes", "waited"):
                        row[key] += call.get(key) or 0
                    row["seconds"] = call["seconds"] if row["seconds"] is None else row["seconds"] + (call["seconds"] or 0.0)
        threads[f"{len(workers)} workers"] = summed
    rows = [(kind, phase, calls) for kind, phases in threads.items() for phase, calls in phases.items()]
    return [row for row in rows if any(call["calls"] for call in row[2].values())]


def _seconds(waits: set[str], wanted: bool) -> Callable[[str, Mapping[str, Any]], float]:
    """Of a call, the time of those that wait, or of those that work."""
    return lambda name, call: working_and_waiting_s(name, call, waits)[wanted]


def _stacked(
    rows: Rows,
    value: Callable[[str, Mapping[str, Any]], float],
    shown: Callable[[float], str],
    at_end: Callable[[str, str, float], str],
    caption: str,
    colours: dict[str, str],
) -> Html:
    """Bars of calls; a call that has no colour yet is given one."""
    totals: dict[str, float] = {}
    for _, _, calls in rows:
        for name, call in calls.items():
            totals[name] = totals.get(name, 0.0) + value(name, call)
    named = [name for name in sorted(totals, key=lambda name: -totals[name])[:_NAMED] if totals[name] > 0]
    for name in named:
        if name not in colours:
            # One that no call has; else, since there are more calls than colours, one that none of this picture has.
            taken, here = {*colours.values()}, {colours.get(other) for other in named}
            free = [made for made in (colour("", at) for at in range(PALETTE)) if made not in here]
            colours[name] = next((one for one in free if one not in taken), free[0])
    made = []
    for kind, phase, calls in rows:
        values = {name: value(name, calls[name]) for name in named if name in calls}
        values["others"] = sum(value(name, call) for name, call in calls.items() if name not in named)
        total = sum(values.values())
        if total > 0:
            made.append((f"{phase} · {kind}", values, at_end(kind, phase, total)))
    return stacked(made, shown, caption=caption, order=(*named, "others"), colours=colours) if made else Html("")


def _over_time(found: Document) -> Iterator[Html]:
    over = found.get("over_time")
    if not over or not over.get("calls"):
        return
    begin, width = over["begin_s"], over["bin_s"]
    yield heading("Over time")
    yield heat_map(list(over["calls"].items()), begin, width, lambda n: f"{n:,.0f}", caption="calls")
    if over.get("phases"):
        rows = list(over["phases"].items())
        yield heat_map(rows, begin, width, lambda share: f"{share:.0%}", caption="phases: share of the time", whole=1.0, sums=False)
    if over.get("seconds"):
        yield folded("time in calls", heat_map(list(over["seconds"].items()), begin, width, duration, caption="time in calls"))


def _most(found: Document) -> Iterator[Html]:
    """The ten calls with the largest shares: of all calls, of the time in those that work, and in those that wait."""
    calls, working, waiting = sums(found)
    made = [
        _top(calls, lambda n: f"{n:,.0f}", "of all calls"),
        _top(working, duration, "of the time in calls that work"),
        _top(waiting, duration, "of the time in calls that wait"),
    ]
    made = [one for one in made if one]
    if made:
        yield heading("The ten most")
        yield Html(f'<div class="small two">{join(made)}</div>')


def _top(of: Mapping[str, float], shown: Callable[[float], str], what: str) -> Html:
    total = sum(of.values())
    if not total:
        return Html("")
    ten = sorted(of.items(), key=lambda item: -item[1])[:_TOP]
    rows = [(name, value, f"{value / total:.1%}  {shown(value)}") for name, value in ten if value]
    return bars(rows, caption=f"share {what}; these together {sum(value for _, value in ten) / total:.1%}")


def _files(found: Document) -> Iterator[Html]:
    for key, word in (("folders", "Folders"), ("files", "Files")):
        counts = ("files", "opens") if key == "folders" else ("opens",)
        rows = sorted(found.get(key) or (), key=lambda row: -(row["read"] + row["written"]))[:_FILES]
        cells = [
            (row["path"], *(f"{row[name]:,}" if row.get(name) else "" for name in counts),
             *(size(row[name]) if row[name] else "" for name in ("read", "written")))
            for row in rows
        ]  # fmt: skip
        if rows:
            yield folded(f"{word} with the most bytes", table((word[:-1].lower(), *counts, "read", "written"), cells))


def compared(summaries: Pair) -> Html | None:
    """The section of the page of two runs."""
    ones = [summary.get("syscalls") or {} for summary in summaries]
    if not all(one.get("phases") for one in ones):
        return None
    rows = difference(*ones)
    changed = [row for row in rows if row.more_calls or row.bytes[0] != row.bytes[1]]
    parts: list[object] = []
    parts += [
        _largest(rows, "calls: the largest differences", lambda row: float(row.more_calls), lambda n: f"{n:,.0f}"),
        _largest(rows, "time: the largest differences", lambda row: row.more_seconds or 0.0, duration),
    ]
    sums = [sum(row.calls[at] for row in rows) for at in (0, 1)]
    cells: list[tuple[object, ...]] = [_of_call(row) for row in changed[:MOST]]
    cells.append((strong("all"), "", f"{sums[0]:,}", f"{sums[1]:,}", f"{sums[1] - sums[0]:+,}", "", ""))
    heads = ("phase", "syscall", "first", "second", "calls", "time", "bytes")
    parts.append(folded(f"{min(len(changed), MOST)} of {len(changed)} that differ", table(heads, cells, left=(0, 1))))
    note = "+ is what the second has more."
    if ones[0].get("tool") != ones[1].get("tool"):
        note += f" They were taken by {ones[0].get('tool')} and by {ones[1].get('tool')}: times are not alike."
    return section("syscalls", "System calls", *parts, note=note)


def _largest(rows: Sequence[Difference], caption: str, more: Callable[[Difference], float], shown: Callable[[float], str]) -> Html | None:
    largest = sorted((row for row in rows if more(row)), key=lambda row: -abs(more(row)))[:ROWS]
    drawn = [(f"{row.phase} · {row.name}", more(row), signed(more(row), shown)) for row in largest]
    return differences(drawn, caption) if drawn else None


def _of_call(row: Difference) -> tuple[object, ...]:
    time = "" if not row.more_seconds else signed(row.more_seconds, duration)
    moved = row.bytes[1] - row.bytes[0]
    return row.phase, row.name, f"{row.calls[0]:,}", f"{row.calls[1]:,}", f"{row.more_calls:+,}", time, signed(moved, size) if moved else ""
