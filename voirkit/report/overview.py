"""What every report shows of a run besides its instruments, as sections: verdict, alerts, phases of a step, ranks, rates, machine.

A report draws how the run ended in a form of its own, with the words of this module.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from voirkit.plugins import installed_instruments
from voirkit.report import duration, figure, size
from voirkit.report.sections import (
    AnyCell,
    Bar,
    Block,
    Cell,
    Column,
    Details,
    Facts,
    Figure,
    Figures,
    Finding,
    InText,
    OnPage,
    Section,
    Stacked,
    Table,
    Text,
    sections_of,
    stored_sections,
)
from voirkit.runs.summary import (
    PARTS,
    PHASES,
    evaluation_name,
    has_losses_of_evaluation,
    loss_note,
    saving,
    shown_phases,
    throughput,
    training_counts,
)

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

Summary = Mapping[str, Any]
Part: TypeAlias = Callable[[Summary], Iterator[Section]]

_LEAST = 0.005  # of the run's wall time, or of a step: what is less is not shown
_MANY_RANKS = 8
_ROWS = 200  # of tables on the page
_DRAWN = 128  # ranks
_WARNINGS = 12
_PLACES = 3  # of optimizer steps that lie in no step
_VERDICT = 16  # lines of verdict and advice, which are never cut: at a width of 80 they are some ten
BREAKDOWN = 1 + len(PHASES) + 4 + 1  # lines: the head, the phases, the parts of other, the step
_HOW = {
    "running": "is still running",
    "killed": "was killed: it did not end by itself",
    "signal": "was ended by a signal",
    "exception": "ended by an exception",
}


# words


def command_of(summary: Summary) -> str:
    """The command line."""
    words = summary.get("command")
    return " ".join(map(str, words)) if isinstance(words, list) and words else "(unknown command)"


def how_it_went(summary: Summary) -> list[str]:
    """How long a run took, its exit code and end, its ranks; also how voirkit ended where a check (``--verify``, ``--require``) failed."""
    words = [duration(summary["duration_s"])] if summary.get("duration_s") is not None else []
    code = summary.get("exit_code")
    if code is not None:
        own = summary.get("script_exit_code", code)
        words += [f"exit code {own}", *([f"a check failed: exit code {code}"] if own != code else [])]
    words += [f"{summary['world_size']} ranks"] if (summary.get("world_size") or 1) > 1 else []
    return words + ([_HOW[str(summary["ended"])]] if str(summary.get("ended")) in _HOW else [])


def wall_line(wall: Mapping[str, Any], evaluation: Mapping[str, Any] | None = None) -> str:
    """The parts of the wall time, the largest first, in one line: ``import 41% (1.6 s) · training 30% (1.2 s) · …``."""
    names = {"evaluation": evaluation_name(evaluation)}
    always = ("training", "evaluation")
    shown = [(names.get(name, name), part) for name, part in wall["parts"].items() if part["share"] >= _LEAST or name in always]
    shown.sort(key=lambda item: -item[1]["total_s"])
    return " · ".join(f"{name} {part['share']:.0%} ({duration(part['total_s'])})" for name, part in shown)


def spread(of: Mapping[str, float] | None) -> tuple[str, str]:
    """Median, and p10 .. p90; nothing of what is not known."""
    if not of:
        return "", ""
    return duration(of["median"]), f"{duration(of['p10'])} .. {duration(of['p90'])}" if "p10" in of else ""


def number(value: float | None) -> str:
    """A number of which JSON has null if it was not finite."""
    return "nan" if value is None else figure(value, 4)


def _name_of_row(row: Mapping[str, Any]) -> str:
    """``rank 3``, or ``process 4711`` of one that is in no group of ranks; of one of its threads ``process 4711, thread 4713``."""
    if row["rank"] is not None:
        return f"rank {row['rank']}"
    return f"process {row['pid']}" + (f", thread {row['thread']}" if row.get("thread") else "")


# parts


def _wall(summary: Summary) -> Iterator[Section]:
    wall = summary.get("wall")
    if not wall:
        return
    evaluation = evaluation_name(summary.get("evaluation"))
    parts = {evaluation if name == "evaluation" else name: wall["parts"][name] for name in PARTS if name in wall["parts"]}
    shares = {name: part["share"] for name, part in parts.items()}
    legend = {name: f"{duration(part['total_s'])}, {part['share']:.1%}" for name, part in parts.items()}
    bar = Stacked([("wall time", shares, duration(wall["total_s"]))], "share", whole=1.0, legend=legend, high=True)
    yield Section("wall", "", [InText([Text(wall_line(wall, summary.get("evaluation")), "wall time")]), OnPage([bar])], least=2)


def _goodput(summary: Summary) -> Iterator[Section]:
    """Of a job that was restarted."""
    goodput = summary.get("goodput")
    if not goodput:
        return
    attempts, lost, total = goodput["by_attempt"], goodput["steps_lost"], duration(goodput["total_s"])
    steps = f"{lost:,} step{'s' if lost != 1 else ''} lost since the last checkpoint"
    line = f"{len(attempts)} attempts in {total}, {steps}: {wall_line(goodput)}"
    shares = {name: part["share"] for name, part in goodput["parts"].items()}
    bar = Stacked([("all attempts", shares, total)], "share", whole=1.0, legend={name: f"{share:.1%}" for name, share in shares.items()})
    rows = [
        (
            f"{at}",
            f"{one['steps']:,}",
            f"{one['steps_lost']:,}",
            *(duration(one[key]) for key in ("lasted_s", "hang_s", "lost_s", "restart_s")),
        )
        for at, one in enumerate(attempts, 1)
    ]
    table = Table(("attempt", "steps", "steps lost", "lasted", "hung", "time lost", "until the next"), rows)
    yield Section("goodput", "", [InText([Text(line, "goodput")]), OnPage([Text(line), bar, table])], least=4)


def _uncounted(summary: Summary) -> Iterator[Section]:
    """What of the training was recorded, but lies in no step."""
    rows = (summary.get("steps") or {}).get("uncounted") or ()
    # A pass whose step was not done, as of a loop that was left or interrupted there, is nothing to warn of.
    rows = [row for row in rows if row["optimizer_steps"] or row["backward_passes"] > 1]
    if not rows:
        return
    counted = training_counts(sum(row["optimizer_steps"] for row in rows), sum(row["backward_passes"] for row in rows))
    n_processes = len({row.get("pid") for row in rows})
    places = [_uncounted_place(row, summary, n_processes > 1, len(rows) > 1) for row in rows[:_PLACES]]
    if len(rows) > _PLACES:
        places.append(f"and in {len(rows) - _PLACES:,} more places")
    line = f"{counted} lie in no counted step: {'; '.join(places)}."
    yield Section("uncounted", "", [Text(line, "warning", mood="warning")], fixed=True)


def _uncounted_place(row: Mapping[str, Any], summary: Summary, names_process: bool, names_counts: bool) -> str:
    """Where optimizer steps lie that are in no step: ``12 optimizer steps in process 4711, thread 4713, from 3.2 s on``."""
    rank = f"rank {row['rank']}" if (summary.get("world_size") or 1) > 1 and row.get("rank") is not None else ""
    process = f"process {row['pid']}" if names_process and row.get("pid") is not None else ""
    thread = f"thread {row['thread']}" if row.get("thread") is not None else ""
    since = f"from {duration(row['first_s'])} on" if row.get("first_s") is not None else ""
    counts = f"{training_counts(row['optimizer_steps'], row['backward_passes'])} in " if names_counts else ""
    return counts + ", ".join(filter(None, (rank, process, thread, since)))


def _verdict(summary: Summary) -> Iterator[Section]:
    verdict = summary.get("verdict")
    if verdict:
        calm = verdict["kind"] in ("balanced", "unknown")
        more = [_following(one) for one in summary.get("advice") or () if one["do"] not in verdict["next"]]
        yield Section(
            "verdict", "", [Finding(verdict["kind"], verdict["because"], verdict["next"], more, "good" if calm else "bad")], least=_VERDICT
        )


def _following(advice: Mapping[str, Any]) -> str:
    """What to do, the figure that it rests on, and about what it saves."""
    grounds = filter(None, (advice["because"], saving(advice.get("win"))))
    return f"{advice['do'].removesuffix('.')} ({', '.join(grounds)})"


def _findings(summary: Summary) -> Iterator[Section]:
    """What rules have found to be wrong, but for what only costs time: that is advice of the verdict."""
    for at, finding in enumerate(summary.get("findings") or ()):
        if finding["severity"] != "time":
            block = Finding(finding["kind"], finding["because"], finding["next"], mood="bad" if finding["severity"] == "bug" else "warning")
            yield Section(f"finding-{at}", "", [block], fixed=True)


def _alerts(summary: Summary) -> Iterator[Section]:
    """Alerts that are no findings, as in run directories of earlier releases."""
    elsewhere = {finding["kind"] for finding in summary.get("findings") or ()}
    others = [alert for alert in summary.get("alerts") or () if alert["kind"] not in elsewhere]
    for at, alert in enumerate(others):
        block = Finding(alert["kind"], alert["because"], alert["next"], mood="warning")
        yield Section(f"alert-{at}", "", [block], least=2 if at < 3 else 1)


def _steps(summary: Summary) -> Iterator[Section]:
    steps = summary.get("steps")
    if not steps or not steps["n"]:
        training = {"optimizer_steps", "backward_passes"} & set(summary.get("recorded_work") or ())
        words = "What was recorded of a training lies in no step." if training else "No step of a training was seen."
        yield Section("step", "", [OnPage([Text(words, mood="note")])])
        return
    known, phases = steps.get("wait_known", True), steps["phases"]
    device = " on the device" if steps.get("time_of") == "device" else ""
    shares = {phase: phases[phase]["share"] for phase in shown_phases(phases) if phase != "wait" or known}
    legend = {phase: f"{share:.1%}" for phase, share in shares.items()}
    median, _ = spread(steps.get("time_s"))
    bar = Stacked([(f"a step{device}", shares, median)], "share", whole=1.0, legend=legend, high=True)
    more = [Column(name, narrowest=at) for name, at in (("total", 32), ("a step", 42), ("p10 .. p90", 62))]
    heads: list[str | Column] = ["phase", Column("", narrowest=64), "share", *more]
    rows = list(_phase_rows(steps, device))
    table = Table(heads, rows, most=len(rows))
    yield Section("step", "", [OnPage([bar, Details("the same as a table", [table])]), InText([table])], least=BREAKDOWN)


def _phase_rows(steps: Mapping[str, Any], device: str) -> Iterator[Sequence[AnyCell]]:
    for phase in shown_phases(steps["phases"]):
        row = steps["phases"][phase]
        if phase == "wait" and not steps.get("wait_known", True):
            yield "wait", Cell("of no data loader", "dim"), "unknown", "", "", ""
            continue
        yield phase, Bar(row["share"], phase), f"{row['share']:.1%}", duration(row["total_s"]), *spread(row.get("step_s"))
        for part, one in (row.get("parts") or {}).items():
            if one["share"] >= _LEAST:
                yield Cell(part, "dim", indent=1), "", f"{one['share']:.1%}", duration(one["total_s"]), "", ""
    total = sum(phase["total_s"] for phase in steps["phases"].values())
    yield Cell(f"step{device}", "strong"), "", "", duration(total), *spread(steps.get("time_s"))


def _ranks(summary: Summary) -> Iterator[Section]:
    rows: list[Mapping[str, Any]] = list(summary.get("processes") or summary.get("ranks") or ())
    if not rows:
        return
    slow = ((summary.get("verdict") or {}).get("evidence") or {}).get("rank")
    phases, bars = shown_phases(rows[0]["phases"]), []
    for row in rows[:_DRAWN]:
        median = row["time_s"]["median"]
        name = _name_of_row(row) + (" (the straggler)" if row["rank"] == slow and slow is not None else "")
        bars.append((name, {phase: row["phases"][phase]["share"] * median for phase in phases}, duration(median)))
    kind = "process" if "pid" in rows[0] else "rank"
    heads: list[str | Column] = [kind, Column("host", left=True), "steps", "a step", Column("p10 .. p90", narrowest=110)]
    heads += [Column(phase, narrowest=76) for phase in phases]
    cells = [
        (
            _name_of_row(row).removeprefix(f"{kind} "), row["host"], f"{row['steps']:,}", *spread(row["time_s"]),
            *(f"{row['phases'][phase]['share']:.0%}" for phase in phases),
        )
        for row in rows[:_DRAWN]
    ]  # fmt: skip
    table = Table(heads, cells, left=(), most=_MANY_RANKS, total=len(rows))
    picture = OnPage([Stacked(bars, "s", order=phases), Details("the same as a table", [table])])
    note = OnPage([Text("A median step of each, divided as its steps are in all.", mood="note")])
    yield Section("ranks", "Ranks", [note, picture, InText([table])], least=3)


def _facts(summary: Summary) -> Iterator[Section]:
    steps = summary.get("steps") or {}
    blocks: list[Block] = []
    if steps.get("unlike"):
        mean, median = steps["mean_s"], steps["time_s"]["median"]
        rare = "a few steps take most of the time" if mean > median else "a few steps take hardly any time"
        words = f"a step takes {duration(mean)} on average and {duration(median)} at the median: {rare}. The rates are items over time."
        blocks.append(Text(words, "unlike steps"))
    saving = steps.get("checkpoints_between")
    if saving and saving["share"] >= _LEAST:
        words = f"{duration(saving['total_s'])}, {saving['share']:.1%} of the steps and these together"
        blocks.append(Text(words, "checkpoints between steps"))
    monitor = summary.get("monitor") or {}
    lines = [
        ("", [*_counts(summary)]), ("seen", [*_seen(summary.get("recorded_work"))]), ("memory", [*_memory(summary)]),
        ("used", [*_used(monitor)]), ("GPU", [*_gpus(monitor)]),
        ("overhead", [*_overhead(summary.get("overhead"))]),
    ]  # fmt: skip
    blocks.append(Facts([(label, facts) for label, facts in lines if facts]))
    yield Section("facts", "", blocks)


def _rates(summary: Summary) -> Iterator[Section]:
    yield Section("rates", "", [Figures([*_each_rate(summary)])])


def _each_rate(summary: Summary) -> Iterator[Figure]:
    for name, rate in (summary.get("rates") or {}).items():
        note = (
            f"typically {figure(rate['median'])}, {figure(rate['p10'])} .. {figure(rate['p90'])}" if rate["n"] > 1 and "p10" in rate else ""
        )
        yield Figure(name, throughput(rate), rate["units"], note=note)


_Facts = Iterator[tuple[str, str]]


def _counts(summary: Summary) -> _Facts:
    steps, evaluation, loss = (summary.get(key) or {} for key in ("steps", "evaluation", "loss"))
    if steps.get("n"):
        items = f", {steps['items']:,} items" if steps.get("items") else ""
        yield f"{{}} step{'s' if steps['n'] != 1 else ''}{items}", f"{steps['n']:,}"
    if evaluation:
        each = f" of {duration(evaluation['time_s']['median'])}" if evaluation.get("time_s") and not steps.get("n") else ""
        yield f"{{}} {evaluation_name(evaluation)} batch{'es' if evaluation['n'] != 1 else ''}{each}", f"{evaluation['n']:,}"
    if loss:
        of_evaluation = " with those of the evaluation" if has_losses_of_evaluation(summary) else ""
        yield "loss", f"{number(loss['first'])} -> {number(loss['last'])}{loss_note(loss)}{of_evaluation}"
    workers = (summary.get("loader") or steps.get("loader") or {}).get("workers")
    if workers is not None:
        yield f"{{}} loader worker{'s' if workers != 1 else ''}", f"{workers}"


def _seen(seen: Mapping[str, Any] | None) -> _Facts:
    """What was recorded of a run that has no steps."""
    for name, one in (seen or {}).items():
        yield name.replace("_", " "), f"{one['n']:,} ({duration(one['total_s'])})"


def _memory(summary: Summary) -> _Facts:
    memory, monitor = summary.get("memory") or {}, summary.get("monitor") or {}
    if memory.get("peak"):
        yield "peak", size(memory["peak"])
    if "rss" in monitor:
        yield f"all processes {{}}, at most {size(monitor['rss']['max'])}", size(monitor["rss"]["mean"])
    for name, device in (memory.get("devices") or {}).items():
        yield f"{name} peak", size(device["peak"])


def _used(monitor: Mapping[str, Any]) -> _Facts:
    """What --monitor saw of processors, files and network."""
    if "cpu" in monitor:
        yield f"{{}} cores, at most {figure(monitor['cpu']['max'])}", figure(monitor["cpu"]["mean"])
    if "host_cpu" in monitor:
        yield "the machine's processors", f"{monitor['host_cpu']['mean']:.0%}"
    for name, done in (("read", "read"), ("write", "written"), ("net_received", "received"), ("net_sent", "sent")):
        if (monitor.get(name) or {}).get("total"):
            yield f"{{}} {done}", size(monitor[name]["total"])


def _gpus(monitor: Mapping[str, Any]) -> _Facts:
    for name in monitor:
        if name.startswith("gpu") and name.endswith("_load"):
            power = monitor.get(name.replace("_load", "_power"))
            yield f"{name[3:-5]}:", f"{monitor[name]['mean']:.0%} busy" + (f", {power['mean']:.0f} W" if power else "")


def _overhead(overhead: Mapping[str, Any] | None) -> _Facts:
    if overhead:
        once = {"start": "at its start", "completing": "after it"}
        parts = overhead.get("parts", {})
        after = "".join(f", {duration(parts[name]['seconds'])} {when}" for name, when in once.items() if parts.get(name, {}).get("seconds"))
        after += "".join(f", without what {name} costs" for name, part in parts.items() if part.get("unmeasured"))
        yield f"{{}} of the run{after}, for {overhead['events']:,} records", f"{overhead['share']:.2%}"


def _warnings(summary: Summary) -> Iterator[Section]:
    dropped = summary.get("dropped") or {}
    lines = [str(one) for one in summary.get("warnings") or ()]
    if dropped:
        most = ", ".join(f"{name} ({n:,})" for name, n in list(dropped.items())[:4])
        lines.insert(0, f"{sum(dropped.values()):,} records were dropped: {most}")
    shown = [Text(line, "warning", mood="warning") for line in lines]
    rest = [Details(f"{len(shown) - _WARNINGS} more warnings", shown[_WARNINGS:_ROWS])] if len(shown) > _WARNINGS else []
    blocks: list[Block] = [OnPage([*shown[:_WARNINGS], *rest]), InText(shown)]
    silent = [f"{one['selector']} ({one['where']})" for one in summary.get("probes") or [] if not one["events"]]
    if silent:
        blocks.append(Text(", ".join(silent), "probes that never fired", mood="warning"))
    yield Section("warnings", "", blocks, least=2)


def _machine(summary: Summary) -> Iterator[Section]:
    yield Section("machine", "Machine and cost", [OnPage(lambda run: _machine_blocks(run, summary))])


def _machine_blocks(run: Run, summary: Summary) -> Iterator[Block]:
    yield Table(("", ""), list(_machine_rows(run, summary)), left=(0, 1))
    packages = [(str(name), str(version)) for name, version in (run.manifest.get("packages") or {}).items()]
    if packages:
        yield Details(f"{len(packages)} packages", [Table(("package", "version"), packages[:_ROWS], left=(0, 1))])
    dropped = summary.get("dropped") or {}
    yield Table(("dropped", "records"), [(name, f"{n:,}") for name, n in list(dropped.items())[:_ROWS]])
    probes = [(one["selector"], one["where"], f"{one['events']:,}") for one in summary.get("probes") or ()]
    if probes:
        yield Details(f"{len(probes)} probes", [Table(("probe", "where", "events"), probes[:_ROWS], left=(0, 1))])
    given = [(key, f"{n:,}") for key, n in (summary.get("given") or {}).items()]
    if given:
        yield Details(f"{len(given)} names given", [Table(("name", "times"), given[:_ROWS])])


def _machine_rows(run: Run, summary: Summary) -> Iterator[tuple[str, str]]:
    manifest = run.manifest
    yield "command", shlex.join(map(str, summary.get("command") or []))
    for key, name in (("voirkit_options", "voirkit's options"), ("voirkit", "voirkit"), ("started", "started"), ("cwd", "folder"),
                      ("git_revision", "git revision"), ("host", "host"), ("platform", "platform"), ("cpus", "processors"),
                      ("world_size", "ranks")):  # fmt: skip
        value = manifest.get(key)
        if value:
            yield name, shlex.join(map(str, value)) if isinstance(value, list) else str(value)
    python = manifest.get("python")
    if isinstance(python, dict):
        yield "python", " ".join(str(python[key]) for key in ("version", "executable") if python.get(key))
    overhead = summary.get("overhead")
    if overhead:
        after = f"; {duration(overhead['completing_s'])} of a processor after it" if overhead.get("completing_s") is not None else ""
        yield "overhead", f"{overhead['share']:.2%} of the run: {duration(overhead['seconds'])} for {overhead['events']:,} records{after}"
        for name, part in (overhead.get("parts") or {}).items():
            yield f"of it {name}", f"{duration(part['seconds'])}{', estimated' if part.get('estimated') else ''}"
    yield "dropped records", f"{sum((summary.get('dropped') or {}).values()):,}"
    processors = summary.get("processors") or {}
    if processors.get("others_share") is not None:
        yield "other programs", f"{processors['others_share']:.0%} of the processors"
    yield "run directory", run.where


# From top to bottom. What was found to be wrong stands between the first two, the rest of what leads (findings, experiments) behind them.
ABOVE: dict[str, Part] = {"wall": _wall, "goodput": _goodput, "uncounted": _uncounted}
VERDICT: dict[str, Part] = {"findings": _findings, "verdict": _verdict}
BELOW: dict[str, Part] = {"alerts": _alerts, "steps": _steps}
LAST: dict[str, Part] = {"ranks": _ranks, "rates": _rates, "facts": _facts, "warnings": _warnings, "machine": _machine}


def instrument_parts(leads: bool) -> dict[str, Part]:
    """What instruments show, of those that lead or of the others, by the part of the summary: ``steps``, say, is a report's own."""
    shown = [one for one in installed_instruments() if one.sections and one.leads is leads]
    parts: dict[str, Part] = {next(iter(one.parts), one.name).replace("_", " "): partial(sections_of, one) for one in shown}
    return parts if leads else {**parts, "voirfile": stored_sections}


def parts_of_report() -> dict[str, Part]:
    """All parts of a report from top to bottom: a function of each that makes its sections of a summary."""
    leading = instrument_parts(True)
    wrong = {f"found by {name}": partial(_fixed_sections, part) for name, part in leading.items()}
    others = {name: partial(_other_sections, part) for name, part in leading.items()}
    return {**ABOVE, **wrong, **VERDICT, **others, **BELOW, **instrument_parts(False), **LAST}


def _fixed_sections(part: Part, summary: Summary) -> Iterator[Section]:
    """The sections of which nothing may be cut; none of a part that fails, which is said in the place of its other sections."""
    try:
        shown = [section for section in part(summary) if section.fixed]
    except Exception:
        return
    yield from shown


def _other_sections(part: Part, summary: Summary) -> Iterator[Section]:
    return (section for section in part(summary) if not section.fixed)
