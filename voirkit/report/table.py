"""A run's summary as a person reads it in a terminal: verdict, breakdown of a step, rates, warnings. It measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

PHASES = ("wait", "transfer", "forward", "backward", "optimizer", "other")
_COLOURS = {"wait": "red", "transfer": "magenta", "forward": "green", "backward": "cyan", "optimizer": "blue", "other": "yellow"}
_BAR = 20  # characters for a whole step
_MANY_WARNINGS = 6

Summary = Mapping[str, Any]


def draw(summary: Summary, console: Console, run_dir: str | None = None) -> None:
    """Draw a summary on a console.

    Args:
        summary: A document of DESIGN 3.8; what it lacks is left out.
        console: Where to.
        run_dir: Where the run is recorded, as the user may type it.
    """
    for part in _parts(summary, run_dir):
        console.print(part)


def _parts(summary: Summary, run_dir: str | None) -> Iterator[RenderableType]:
    yield _title(summary)
    if summary.get("verdict"):
        yield _verdict(summary["verdict"])
    steps = summary.get("steps")
    if steps and steps["n"]:
        yield _breakdown(steps)
    ranks = summary.get("ranks")
    if ranks:
        yield _ranks(ranks)
    facts = list(_facts(summary))
    if facts:
        yield Group(*facts)
    yield from _warnings(summary)
    if run_dir is not None:
        yield Text.assemble(("run directory  ", "dim"), run_dir)
        if steps and steps["n"]:
            yield Text.assemble(("see it as a timeline  ", "dim"), f"voirkit export {run_dir} --format chrome")


def _title(summary: Summary) -> Text:
    words = " ".join(summary.get("command") or ["(unknown command)"])
    ended, code = summary.get("ended"), summary.get("exit_code")
    how = {
        "running": "is still running",
        "killed": "was killed: it did not end by itself",
        "signal": "was ended by a signal",
        "exception": "ended by an exception",
    }.get(str(ended), "")
    said = [f"exit code {code}"] if code is not None else []
    if summary.get("duration_s") is not None:
        said.insert(0, duration(summary["duration_s"]))
    if summary.get("world_size", 1) > 1:
        said.append(f"{summary['world_size']} ranks")
    return Text.assemble((words, "bold"), (f"   {', '.join([*said, *([how] if how else [])])}", "dim"))


def _verdict(verdict: Mapping[str, Any]) -> RenderableType:
    style = "bold" if verdict["kind"] in ("balanced", "unknown") else "bold red"
    kind = Text.assemble((f"{verdict['kind']}  ", style), verdict["because"])
    return Padding(Group(kind, Text.assemble(("try  ", "bold"), verdict["next"])), (0, 0, 0, 2))


def _breakdown(steps: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name, options in (
        ("phase", {}),
        ("", {"width": _BAR}),
        ("share", _RIGHT),
        ("total", _RIGHT),
        ("a step", _RIGHT),
        ("p10 .. p90", _RIGHT),
    ):
        table.add_column(name, no_wrap=True, **options)
    known = steps.get("wait_known", True)
    for phase in PHASES:
        row = steps["phases"][phase]
        if phase == "wait" and not known:
            table.add_row("wait", Text("unknown: no loader was seen", style="dim"), "", "", "", "")
            continue
        bar = Text("█" * round(row["share"] * _BAR), style=_COLOURS[phase])
        table.add_row(phase, bar, f"{row['share']:.1%}", duration(row["total_s"]), *_spread(row.get("step_s")))
        for part, known_part in row.get("parts", {}).items():
            if known_part["share"] >= 0.005:
                table.add_row(Text(f"  {part}", style="dim"), "", f"{known_part['share']:.1%}", duration(known_part["total_s"]), "", "")
    total = sum(steps["phases"][p]["total_s"] for p in PHASES)
    table.add_row(Text("step", style="bold"), "", "", duration(total), *_spread(steps["time_s"]))
    return table


_RIGHT = {"justify": "right"}


def _spread(spread: Mapping[str, float] | None) -> tuple[str, str]:
    if not spread:
        return "", ""
    return duration(spread["median"]), f"{duration(spread['p10'])} .. {duration(spread['p90'])}"


def _ranks(ranks: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in ("rank", "host", "steps", "a step", *PHASES):
        table.add_column(name, justify="left" if name == "host" else "right", no_wrap=True)
    for rank in ranks[:8]:
        shares = (f"{rank['phases'][p]['share']:.0%}" for p in PHASES)
        table.add_row(str(rank["rank"]), rank["host"], str(rank["steps"]), duration(rank["time_s"]["median"]), *shares)
    if len(ranks) > 8:
        table.add_row(Text("…", style="dim"), Text(f"{len(ranks) - 8} more", style="dim"))
    return table


def _facts(summary: Summary) -> Iterator[Text]:
    for name, rate in (summary.get("rates") or {}).items():
        spread = f"   {figure(rate['p10'])} .. {figure(rate['p90'])}" if rate["n"] > 1 else ""
        yield Text.assemble((f"{name}  ", "dim"), f"{figure(rate['median'])} {rate['units']}", (spread, "dim"))
    steps, evaluation, loss = summary.get("steps"), summary.get("evaluation"), summary.get("loss")
    said = []
    if steps and steps["n"]:
        said.append(f"{steps['n']:,} steps" + (f", {steps['items']:,} items" if steps.get("items") else ""))
    if evaluation:
        said.append(f"{evaluation['n']:,} evaluation batches")
    if loss:
        said.append(f"loss {loss['first']:.4g} -> {loss['last']:.4g}")
    workers = (summary.get("loader") or {}).get("workers")
    if workers is not None:
        said.append(f"{workers} loader workers")
    if said:
        yield Text(" · ".join(said))
    overhead = summary.get("overhead")
    if overhead:
        yield Text.assemble(("voirkit's own cost  ", "dim"), f"{overhead['share']:.2%}", (f"   {overhead['events']:,} records", "dim"))


def _warnings(summary: Summary) -> Iterator[Text]:
    dropped = summary.get("dropped") or {}
    said = (
        [f"{sum(dropped.values()):,} records were dropped: {', '.join(f'{k} ({n:,})' for k, n in list(dropped.items())[:4])}"]
        if dropped
        else []
    )
    said += summary.get("warnings") or []
    for text in said[:_MANY_WARNINGS]:
        yield Text.assemble(("warning  ", "bold yellow"), str(text).split("\n")[0])
    if len(said) > _MANY_WARNINGS:
        yield Text(f"{len(said) - _MANY_WARNINGS} more warnings in summary.json", style="yellow")
    silent = [f"{p['selector']} ({p['where']})" for p in summary.get("probes") or [] if not p["events"]]
    if silent:
        yield Text.assemble(("probes that never fired  ", "bold yellow"), ", ".join(silent))


def figure(value: float) -> str:
    """A number as people read it: three digits that count, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Seconds as people read them, from microseconds to days."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (120, 1, "s"), (7200, 1 / 60, "min"), (172800, 1 / 3600, "h")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 86400:.3g} d"
