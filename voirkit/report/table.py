"""A run's summary as a person reads it in a terminal: verdict, breakdown of a step, rates, warnings. It measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment, SegmentLines
from rich.table import Table
from rich.text import Text

from voirkit.analysis.part_failures import left_out, reason
from voirkit.instrument import Instrument, resolve
from voirkit.plugins import installed_instruments
from voirkit.report.figure import duration, figure, size
from voirkit.report.labels import name_of_row, rows_of_processes
from voirkit.report.phrases import exit_words, following, unlike_steps, wall_line
from voirkit.report.section_terminal import PHASE_COLOURS, rendered_section
from voirkit.report.sections import sections_of
from voirkit.runs.step_phases import PHASES, shown_phases
from voirkit.runs.summary import throughput
from voirkit.runs.wall import evaluation_name

LINES = 40  # the most at the end of a run
_MANY_RANKS = 8
_ROWS = 4  # lines that a table keeps; of fewer than that less one it is left out
_VERDICT = 16  # lines of verdict and advice, which are never cut: at a width of 80 they are some ten
_BREAKDOWN = 1 + len(PHASES) + 4 + 1  # lines: the head, the phases, the parts of other, the step

Summary = Mapping[str, Any]
Lines = list[list[Segment]]


def draw(summary: Summary, console: Console, run_dir: str | None = None, lines: int | None = None) -> None:
    """Draw a summary on a console.

    Args:
        summary: What ``summary.json`` holds; what it lacks is left out.
        console: Where to.
        run_dir: Where the run is recorded, as the user may type it.
        lines: The most lines; the parts that are too long for it are cut, and it is said how to see the rest. No bound if left out.
    """
    parts = [*_parts(summary, run_dir, console)]
    hint = Text.assemble(("all of it  ", "dim"), f"voirkit report {run_dir}" if run_dir else "voirkit report")
    if lines is not None and sum(len(part) for _, part in parts) > lines:
        hints = rendered(console, hint)
        parts = [*_cut(parts, lines - len(hints)), (0, hints)]
    for _, part in parts:
        console.print(SegmentLines(part, new_lines=True), end="")


def rendered(console: Console, part: RenderableType) -> Lines:
    """The lines of a part, without the blanks at their ends."""
    return [_trimmed(line) for line in console.render_lines(part, pad=False)]


def _trimmed(line: list[Segment]) -> list[Segment]:
    """A line without the blanks at its end: it may be read in a file, or copied."""
    while line and not line[-1].text.strip():
        line = line[:-1]
    return [*line[:-1], line[-1]._replace(text=line[-1].text.rstrip())] if line else []


def _cut(parts: Sequence[tuple[int, Lines]], most: int) -> list[tuple[int, Lines]]:
    """Parts of at most so many lines in all: what is furthest above its least is cut first; then the longest but the breakdown."""
    left = [(least, list(part)) for least, part in parts]
    while sum(len(part) for _, part in left) > most:
        over = [i for i, (least, part) in enumerate(left) if len(part) > least]
        if over:
            i = max(over, key=lambda i: len(left[i][1]) - left[i][0])
        else:
            others = [i for i, (least, part) in enumerate(left) if least < _BREAKDOWN and part]
            i = max(others or range(len(left)), key=lambda i: len(left[i][1]))
        left[i][1].pop()
        if left[i][0] >= _ROWS and len(left[i][1]) < _ROWS - 1:  # a table's head without rows tells nothing
            left[i][1].clear()
    return left


Parts = Iterator[tuple[int, RenderableType]]


def _parts(summary: Summary, run_dir: str | None, console: Console) -> Iterator[tuple[int, Lines]]:
    """The parts from top to bottom, each with the lines that it should keep; one that fails is a line."""
    for name, part in _all_parts().items():
        try:
            made = [(least, rendered(console, drawn)) for least, drawn in part(summary, run_dir, console.width)]
        except Exception as exc:  # a summary of another version, or one that is damaged
            made = [(1, rendered(console, _warning(left_out(name, reason(exc)))))]
        yield from made


def _head_part(summary: Summary, run_dir: str | None, width: int) -> Parts:
    yield 1, _title(summary)
    if summary.get("wall"):
        yield 2, Text.assemble(("wall time  ", "dim"), wall_line(summary["wall"], summary.get("evaluation")))


def _verdict_part(summary: Summary, run_dir: str | None, width: int) -> Parts:
    if summary.get("verdict"):
        yield _VERDICT, _verdict(summary["verdict"], summary.get("advice") or ())


def _alerts_part(summary: Summary, run_dir: str | None, width: int) -> Parts:
    for at, alert in enumerate(summary.get("alerts") or ()):
        yield 2 if at < 3 else 1, _alert(alert)


def _steps_part(summary: Summary, run_dir: str | None, width: int) -> Parts:
    steps = summary.get("steps")
    if steps and steps["n"]:
        yield _BREAKDOWN, _breakdown(steps, width)


def _ranks_part(summary: Summary, run_dir: str | None, width: int) -> Parts:
    rows = rows_of_processes(summary)
    if rows:
        yield 3, _ranks(rows, width)


def _facts_part(summary: Summary, run_dir: str | None, width: int) -> Parts:
    facts = list(_facts(summary))
    if facts:
        yield 6, Group(*facts)


def _warnings_part(summary: Summary, run_dir: str | None, width: int) -> Parts:
    warnings = list(_warnings(summary))
    if warnings:
        yield 2, Group(*warnings)


def _directory_part(summary: Summary, run_dir: str | None, width: int) -> Parts:
    if run_dir is not None:
        yield 1, Text.assemble(("run directory  ", "dim"), run_dir, overflow="fold")
        if (summary.get("steps") or {}).get("n"):
            yield 0, Text.assemble(("see it as a timeline  ", "dim"), f"voirkit export {run_dir} --format chrome", overflow="fold")


Part = Callable[[Summary, "str | None", int], Parts]

# From top to bottom: what leads (findings, experiments) is after the first two, what else instruments show is after the third.
_FIRST: dict[str, Part] = {"head": _head_part, "verdict": _verdict_part}
_STEPS: dict[str, Part] = {"alerts": _alerts_part, "steps": _steps_part}
_LAST: dict[str, Part] = {"ranks": _ranks_part, "facts": _facts_part, "warnings": _warnings_part, "run directory": _directory_part}


def _all_parts() -> dict[str, Part]:
    shown = [instrument for instrument in installed_instruments() if instrument.table or instrument.sections]
    leading = {one.name.replace("_", " "): partial(_part_of, one) for one in shown if one.leads}
    others = {one.name.replace("_", " "): partial(_part_of, one) for one in shown if not one.leads}
    return {**_FIRST, **leading, **_STEPS, **others, **_LAST}


def _part_of(instrument: Instrument, summary: Summary, run_dir: str | None, width: int) -> Parts:
    if instrument.table:
        yield from resolve(instrument.table)(summary, width)
    for section in sections_of(instrument, summary):
        drawn = rendered_section(section, width)
        if drawn is not None:
            yield section.least, drawn


def shows(summary: Summary) -> bool:
    """Whether any instrument has a part of the table of this summary."""
    return any(True for one in installed_instruments() if one.table or one.sections for _ in _part_of(one, summary, None, LINES))


def _title(summary: Summary) -> Text:
    words = " ".join(summary.get("command") or ["(unknown command)"])
    ended = summary.get("ended")
    how = {
        "running": "is still running",
        "killed": "was killed: it did not end by itself",
        "signal": "was ended by a signal",
        "exception": "ended by an exception",
    }.get(str(ended), "")
    said = exit_words(summary)
    if summary.get("duration_s") is not None:
        said.insert(0, duration(summary["duration_s"]))
    if summary.get("world_size", 1) > 1:
        said.append(f"{summary['world_size']} ranks")
    return Text.assemble((words, "bold"), (f"   {', '.join([*said, *([how] if how else [])])}", "dim"))


def _verdict(verdict: Mapping[str, Any], advice: Sequence[Mapping[str, Any]]) -> RenderableType:
    style = "bold" if verdict["kind"] in ("balanced", "unknown") else "bold red"
    kind = Text.assemble((f"{verdict['kind']}  ", style), verdict["because"])
    more = (Text.assemble(("then  ", "bold"), following(one)) for one in advice if one["do"] not in verdict["next"])
    return Padding(Group(kind, Text.assemble(("next  ", "bold"), verdict["next"]), *more), (0, 0, 0, 2))


def _alert(alert: Mapping[str, Any]) -> RenderableType:
    said = Text.assemble((f"{alert['kind']}  ", "bold yellow"), alert["because"])
    return Padding(Group(said, Text.assemble(("next  ", "bold"), alert["next"])), (0, 0, 0, 2))


def _breakdown(steps: Mapping[str, Any], width: int) -> Table:
    """The phases, with as many columns as there is room for."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    bar = 20 if width >= 72 else 10
    columns = [
        ("phase", True),
        ("bar", width >= 64),
        ("share", True),
        ("total", width >= 32),
        ("a step", width >= 42),
        ("p10 .. p90", width >= 62),
    ]
    shown = [at for at, (_, fits) in enumerate(columns) if fits]
    for at in shown:
        name = columns[at][0]
        if name == "bar":
            table.add_column("", no_wrap=True, width=bar)
        else:
            table.add_column(name, no_wrap=True, justify="left" if name == "phase" else "right")

    def add(*cells: str | Text) -> None:
        table.add_row(*(cells[at] for at in shown))

    device = " on the device" if steps.get("time_of") == "device" else ""
    for phase in shown_phases(steps["phases"]):
        row = steps["phases"][phase]
        if phase == "wait" and not steps.get("wait_known", True):
            add("wait", Text("no loader was seen"[:bar], style="dim"), "unknown", "", "", "")
            continue
        drawn = Text("█" * round(row["share"] * bar), style=PHASE_COLOURS[phase])
        add(phase, drawn, f"{row['share']:.1%}", duration(row["total_s"]), *_spread(row.get("step_s")))
        for part, known in row.get("parts", {}).items():
            if known["share"] >= 0.005:
                add(Text(f"  {part}", style="dim"), "", f"{known['share']:.1%}", duration(known["total_s"]), "", "")
    total = sum(phase["total_s"] for phase in steps["phases"].values())
    add(Text(f"step{device}", style="bold"), "", "", duration(total), *_spread(steps["time_s"]))
    return table


def _spread(spread: Mapping[str, float] | None) -> tuple[str, str]:
    if not spread:
        return "", ""
    return duration(spread["median"]), f"{duration(spread['p10'])} .. {duration(spread['p90'])}"


def _ranks(ranks: Sequence[Mapping[str, Any]], width: int) -> RenderableType:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    phases = shown_phases(ranks[0]["phases"]) if width >= 76 else []
    kind = "process" if "pid" in ranks[0] else "rank"
    for name in (kind, "host", "steps", "a step", *phases):
        table.add_column(name, justify="left" if name == "host" else "right", no_wrap=True)
    for rank in ranks[:_MANY_RANKS]:
        shares = (f"{rank['phases'][p]['share']:.0%}" for p in phases)
        name = name_of_row(rank).removeprefix(f"{kind} ")
        table.add_row(name, rank["host"], str(rank["steps"]), duration(rank["time_s"]["median"]), *shares)
    if len(ranks) <= _MANY_RANKS:
        return table
    return Group(table, Text(f" {len(ranks) - _MANY_RANKS} more: voirkit report --json", style="dim"))


def _facts(summary: Summary) -> Iterator[Text]:
    rates = summary.get("rates") or {}
    values = {name: figure(throughput(rate)) for name, rate in rates.items()}
    names, numbers = max(map(len, values), default=0), max(map(len, values.values()), default=0)
    for name, rate in rates.items():
        spread = f"   typically {figure(rate['median'])}, {figure(rate['p10'])} .. {figure(rate['p90'])}" if rate["n"] > 1 else ""
        yield Text.assemble((f"{name:{names}}  ", "dim"), f"{values[name]:>{numbers}} {rate['units']}", (spread, "dim"))
    steps, evaluation, loss = summary.get("steps"), summary.get("evaluation"), summary.get("loss")
    if steps and steps.get("unlike"):
        yield Text.assemble(("unlike steps  ", "dim"), unlike_steps(steps))
    said = []
    if steps and steps["n"]:
        said.append(f"{steps['n']:,} steps" + (f", {steps['items']:,} items" if steps.get("items") else ""))
    if evaluation:
        said.append(f"{evaluation['n']:,} {evaluation_name(evaluation)} batches")
    if loss:
        said.append(f"loss {_number(loss['first'])} -> {_number(loss['last'])}")
    workers = (summary.get("loader") or (steps or {}).get("loader") or {}).get("workers")
    if workers is not None:
        said.append(f"{workers} loader workers")
    if said:
        yield Text(" · ".join(said))
    saving = (steps or {}).get("checkpoints_between")
    if saving and saving["share"] >= 0.005:
        yield Text.assemble(
            ("checkpoints between steps  ", "dim"), duration(saving["total_s"]), (f"   {saving['share']:.1%} of steps and these", "dim")
        )
    held = [*_held(summary)]
    if held:
        yield Text.assemble(("memory  ", "dim"), " · ".join(held))
    used = [*_used(summary.get("monitor") or {})]
    if used:
        yield Text.assemble(("used  ", "dim"), " · ".join(used))
    gpus = [*_gpus(summary.get("monitor") or {})]
    if gpus:
        yield Text.assemble(("GPU  ", "dim"), " · ".join(gpus))
    overhead = summary.get("overhead")
    if overhead:
        once = {"start": "at its start", "completing": "after it"}
        parts = overhead.get("parts", {})
        after = "".join(f", {duration(parts[name]['seconds'])} {when}" for name, when in once.items() if parts.get(name, {}).get("seconds"))
        after += "".join(f", without what {name} costs" for name, part in parts.items() if part.get("unmeasured"))
        yield Text.assemble(
            ("overhead  ", "dim"), f"{overhead['share']:.2%} of the run{after}", (f"   {overhead['events']:,} records", "dim")
        )


def _held(summary: Summary) -> Iterator[str]:
    memory, monitor = summary.get("memory") or {}, summary.get("monitor") or {}
    if memory.get("peak"):
        yield f"peak {size(memory['peak'])}"
    if "rss" in monitor:
        yield f"all processes {size(monitor['rss']['mean'])}, at most {size(monitor['rss']['max'])}"
    for name, device in (memory.get("devices") or {}).items():
        yield f"{name} peak {size(device['peak'])}"


def _used(monitor: Mapping[str, Any]) -> Iterator[str]:
    """What --monitor saw of processors, files and network."""
    if "cpu" in monitor:
        yield f"{figure(monitor['cpu']['mean'])} cores, at most {figure(monitor['cpu']['max'])}"
    if "host_cpu" in monitor:
        yield f"the machine's processors {monitor['host_cpu']['mean']:.0%}"
    for name, done in (("read", "read"), ("write", "written"), ("net_received", "received"), ("net_sent", "sent")):
        if (monitor.get(name) or {}).get("total"):
            yield f"{size(monitor[name]['total'])} {done}"


def _gpus(monitor: Mapping[str, Any]) -> Iterator[str]:
    for name in monitor:
        if name.startswith("gpu") and name.endswith("_load"):
            power = monitor.get(name.replace("_load", "_power"))
            yield f"{name[3:-5]}: {monitor[name]['mean']:.0%} busy" + (f", {power['mean']:.0f} W" if power else "")


def _warnings(summary: Summary) -> Iterator[Text]:
    dropped = summary.get("dropped") or {}
    if dropped:
        most = ", ".join(f"{name} ({n:,})" for name, n in list(dropped.items())[:4])
        yield _warning(f"{sum(dropped.values()):,} records were dropped: {most}")
    for text in summary.get("warnings") or []:
        yield _warning(str(text).split("\n")[0])
    silent = [f"{p['selector']} ({p['where']})" for p in summary.get("probes") or [] if not p["events"]]
    if silent:
        yield Text.assemble(("probes that never fired  ", "bold yellow"), ", ".join(silent))


def _warning(text: str) -> Text:
    return Text.assemble(("warning  ", "bold yellow"), text)


def _number(value: float | None) -> str:
    return "nan" if value is None else f"{value:.4g}"  # JSON has neither nan nor inf
