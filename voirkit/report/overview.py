"""The sections that every report has besides those of instruments: verdict, alerts, phases of a
step, ranks, rates, machine.

The head of a report (command and end of the run) is drawn by each report itself, with the strings
of this module.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from voirkit.phase_table import PHASES, shown_phases
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
    evaluation_name,
    has_losses_of_evaluation,
    loss_note,
    saving,
    throughput,
    training_counts,
)

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

Summary = Mapping[str, Any]
Part: TypeAlias = Callable[[Summary], Iterator[Section]]

_LEAST = 0.005  # smaller shares of the wall time or of a step are not shown
_MANY_RANKS = 8  # maximum number of ranks in a table outside the HTML page
_ROWS = 200  # maximum number of rows of a table on the HTML page
_DRAWN_RANKS = 128  # maximum number of ranks on the HTML page
_WARNINGS = 12  # maximum number of warnings that the HTML page does not collapse
_PLACES = 3  # maximum number of places named for training outside of steps
# number of lines that verdict and advice keep when a report is shortened; at a width of 80 columns
# they take about ten
_VERDICT = 16
# number of lines of the table of phases: the head, the phases, the parts of "other", the whole step
BREAKDOWN = 1 + len(PHASES) + 4 + 1
_HOW = {
    "running": "is still running",
    "killed": "was killed: it did not end by itself",
    "signal": "was ended by a signal",
    "exception": "ended by an exception",
}


# Short strings about a run


def command_of(summary: Summary) -> str:
    """Return the command line of a run."""
    words = summary.get("command")
    return " ".join(map(str, words)) if isinstance(words, list) and words else "(unknown command)"


def how_it_went(summary: Summary) -> list[str]:
    """Return short strings about a run: its duration, exit code, number of ranks, and how it
    ended. If a check (``--verify``, ``--require``) failed, this includes voirkit's own exit
    code."""
    words = []
    if summary.get("duration_s") is not None:
        words.append(duration(summary["duration_s"]))
    code = summary.get("exit_code")
    if code is not None:
        script_code = summary.get("script_exit_code", code)
        words.append(f"exit code {script_code}")
        if script_code != code:
            words.append(f"a check failed: exit code {code}")
    if _has_several_ranks(summary):
        words.append(f"{summary['world_size']} ranks")
    end = _HOW.get(str(summary.get("ended")))
    if end is not None:
        words.append(end)
    return words


def _has_several_ranks(summary: Summary) -> bool:
    return (summary.get("world_size") or 1) > 1


def wall_line(wall: Mapping[str, Any], evaluation: Mapping[str, Any] | None = None) -> str:
    """Return the parts of the wall time as one line, the largest first: ``import 41% (1.6 s) ·
    training 30% (1.2 s) · …``."""
    names = {"evaluation": evaluation_name(evaluation)}
    always = ("training", "evaluation")
    texts = []
    for name, part in sorted(wall["parts"].items(), key=lambda item: -item[1]["total_s"]):
        if part["share"] >= _LEAST or name in always:
            time = duration(part["total_s"])
            texts.append(f"{names.get(name, name)} {part['share']:.0%} ({time})")
    return " · ".join(texts)


def spread(of: Mapping[str, float] | None) -> tuple[str, str]:
    """Return the median of a duration, and ``p10 .. p90``, as strings; empty where unknown."""
    if not of:
        return "", ""
    range_ = f"{duration(of['p10'])} .. {duration(of['p90'])}" if "p10" in of else ""
    return duration(of["median"]), range_


def number(value: float | None) -> str:
    """Return a number as text; ``nan`` for None, by which JSON represents a number that is not
    finite."""
    return "nan" if value is None else figure(value, 4)


def _name_of_row(row: Mapping[str, Any]) -> str:
    """Return the name of a row: ``rank 3``, or ``process 4711`` for a process that has no rank, or
    ``process 4711, thread 4713`` for a thread of that."""
    if row["rank"] is not None:
        return f"rank {row['rank']}"
    name = f"process {row['pid']}"
    if row.get("thread"):
        name += f", thread {row['thread']}"
    return name


# The parts of a report: functions from a summary to the sections of the part


def _wall(summary: Summary) -> Iterator[Section]:
    wall = summary.get("wall")
    if not wall:
        return
    shares: dict[str, float] = {}
    legend: dict[str, str] = {}
    for name in PARTS:
        if name in wall["parts"]:
            part = wall["parts"][name]
            if name == "evaluation":
                name = evaluation_name(summary.get("evaluation"))
            shares[name] = part["share"]
            legend[name] = f"{duration(part['total_s'])}, {part['share']:.1%}"
    rows = [("wall time", shares, duration(wall["total_s"]))]
    bar = Stacked(rows, "share", whole=1.0, legend=legend, high=True)
    line = Text(wall_line(wall, summary.get("evaluation")), "wall time")
    yield Section("wall", "", [InText([line]), OnPage([bar])], least=2)


def _goodput(summary: Summary) -> Iterator[Section]:
    """Yield the section with the goodput of a job that was restarted."""
    goodput = summary.get("goodput")
    if not goodput:
        return
    attempts, n_lost = goodput["by_attempt"], goodput["steps_lost"]
    total = duration(goodput["total_s"])
    steps = f"{n_lost:,} step{'s' if n_lost != 1 else ''} lost since the last checkpoint"
    line = f"{len(attempts)} attempts in {total}, {steps}: {wall_line(goodput)}"
    shares = {name: part["share"] for name, part in goodput["parts"].items()}
    legend = {name: f"{share:.1%}" for name, share in shares.items()}
    bar = Stacked([("all attempts", shares, total)], "share", whole=1.0, legend=legend)
    heads = ("attempt", "steps", "steps lost", "lasted", "hung", "time lost", "until the next")
    rows = []
    for number, attempt in enumerate(attempts, 1):
        counts = [f"{attempt['steps']:,}", f"{attempt['steps_lost']:,}"]
        times = [duration(attempt[key]) for key in ("lasted_s", "hang_s", "lost_s", "restart_s")]
        rows.append([f"{number}", *counts, *times])
    page = OnPage([Text(line), bar, Table(heads, rows)])
    yield Section("goodput", "", [InText([Text(line, "goodput")]), page], least=4)


def _uncounted(summary: Summary) -> Iterator[Section]:
    """Yield a warning about optimizer steps and backward passes that belong to no counted step."""
    rows = (summary.get("steps") or {}).get("uncounted") or ()
    # A single backward pass without an optimizer step deserves no warning: a training loop was left
    # or interrupted after it.
    rows = [row for row in rows if row["optimizer_steps"] or row["backward_passes"] > 1]
    if not rows:
        return
    n_optimizer_steps = sum(row["optimizer_steps"] for row in rows)
    n_backward_passes = sum(row["backward_passes"] for row in rows)
    counts = training_counts(n_optimizer_steps, n_backward_passes)
    names_process = len({row.get("pid") for row in rows}) > 1
    places = []
    for row in rows[:_PLACES]:
        place = _uncounted_place(row, summary, names_process)
        if len(rows) > 1:
            row_counts = training_counts(row["optimizer_steps"], row["backward_passes"])
            place = f"{row_counts} in {place}"
        places.append(place)
    if len(rows) > _PLACES:
        places.append(f"and in {len(rows) - _PLACES:,} more places")
    line = f"{counts} lie in no counted step: {'; '.join(places)}."
    yield Section("uncounted", "", [Text(line, "warning", mood="warning")], fixed=True)


def _uncounted_place(row: Mapping[str, Any], summary: Summary, names_process: bool) -> str:
    """Return the place of training outside of steps: ``process 4711, thread 4713, from 3.2 s
    on``."""
    words = []
    if _has_several_ranks(summary) and row.get("rank") is not None:
        words.append(f"rank {row['rank']}")
    if names_process and row.get("pid") is not None:
        words.append(f"process {row['pid']}")
    if row.get("thread") is not None:
        words.append(f"thread {row['thread']}")
    if row.get("first_s") is not None:
        words.append(f"from {duration(row['first_s'])} on")
    return ", ".join(words)


def _verdict(summary: Summary) -> Iterator[Section]:
    verdict = summary.get("verdict")
    if not verdict:
        return
    every_advice = summary.get("advice") or ()
    more = [_following(advice) for advice in every_advice if advice["do"] not in verdict["next"]]
    mood = "good" if verdict["kind"] in ("balanced", "unknown") else "bad"
    block = Finding(verdict["kind"], verdict["because"], verdict["next"], more, mood)
    yield Section("verdict", "", [block], least=_VERDICT)


def _following(advice: Mapping[str, Any]) -> str:
    """Return a piece of advice as text: what to do, the measured value behind it, and the estimated
    saving."""
    grounds = filter(None, (advice["because"], saving(advice.get("win"))))
    return f"{advice['do'].removesuffix('.')} ({', '.join(grounds)})"


def _findings(summary: Summary) -> Iterator[Section]:
    """Yield a section for each finding, except those that only cost time, which the verdict's
    advice covers. If the verdict is that the run hung, a finding of a hang leaves out what to do,
    since the verdict says it."""
    is_hung = (summary.get("verdict") or {}).get("kind") == "hung"
    for number, finding in enumerate(summary.get("findings") or ()):
        kind, severity = finding["kind"], finding["severity"]
        if severity != "time":
            next_ = "" if is_hung and kind == "hang" else finding["next"]
            mood = "bad" if severity == "bug" else "warning"
            block = Finding(kind, finding["because"], next_, mood=mood)
            yield Section(f"finding-{number}", "", [block], fixed=True)


def _alerts(summary: Summary) -> Iterator[Section]:
    """Yield a section for each alert that is not also a finding, as in run directories of earlier
    releases."""
    elsewhere = {finding["kind"] for finding in summary.get("findings") or ()}
    alerts = [alert for alert in summary.get("alerts") or () if alert["kind"] not in elsewhere]
    for number, alert in enumerate(alerts):
        block = Finding(alert["kind"], alert["because"], alert["next"], mood="warning")
        yield Section(f"alert-{number}", "", [block], least=2 if number < 3 else 1)


def _steps(summary: Summary) -> Iterator[Section]:
    steps = summary.get("steps")
    if not steps or not steps["n"]:
        has_training = {"optimizer_steps", "backward_passes"} & set(
            summary.get("recorded_work") or ()
        )
        words = (
            "What was recorded of a training lies in no step."
            if has_training
            else "No step of a training was seen."
        )
        yield Section("step", "", [OnPage([Text(words, mood="note")])])
        return
    device = " on the device" if steps.get("time_of") == "device" else ""
    median, _ = spread(steps.get("time_s"))
    shares = _known_shares(steps)
    legend = {phase: f"{share:.1%}" for phase, share in shares.items()}
    rows = [(f"a step{device}", shares, median)]
    bar = Stacked(rows, "share", whole=1.0, legend=legend, high=True)
    heads: list[str | Column] = [
        "phase",
        Column("", narrowest=64),
        "share",
        Column("total", narrowest=32),
        Column("a step", narrowest=42),
        Column("p10 .. p90", narrowest=62),
    ]
    phase_rows = list(_phase_rows(steps, device))
    table = Table(heads, phase_rows, most=len(phase_rows))
    picture = OnPage([bar, Details("the same as a table", [table])])
    yield Section("step", "", [picture, InText([table])], least=BREAKDOWN)


def _known_shares(steps: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of each phase in a step, without the data loader wait if that is
    unknown."""
    phases = steps["phases"]
    names = shown_phases(phases)
    if not steps.get("wait_known", True):
        names = [phase for phase in names if phase != "wait"]
    return {phase: phases[phase]["share"] for phase in names}


def _phase_rows(steps: Mapping[str, Any], device: str) -> Iterator[Sequence[AnyCell]]:
    for phase in shown_phases(steps["phases"]):
        row = steps["phases"][phase]
        if phase == "wait" and not steps.get("wait_known", True):
            yield "wait", Cell("of no data loader", "dim"), "unknown", "", "", ""
            continue
        bar = Bar(row["share"], phase)
        share, total = f"{row['share']:.1%}", duration(row["total_s"])
        yield phase, bar, share, total, *spread(row.get("step_s"))
        for name, part in (row.get("parts") or {}).items():
            if part["share"] >= _LEAST:
                share, total = f"{part['share']:.1%}", duration(part["total_s"])
                yield Cell(name, "dim", indent=1), "", share, total, "", ""
    total_s = sum(phase["total_s"] for phase in steps["phases"].values())
    head = Cell(f"step{device}", "strong")
    yield head, "", "", duration(total_s), *spread(steps.get("time_s"))


def _ranks(summary: Summary) -> Iterator[Section]:
    rows: list[Mapping[str, Any]] = list(summary.get("processes") or summary.get("ranks") or ())
    if not rows:
        return
    drawn_rows = rows[:_DRAWN_RANKS]
    phases = shown_phases(rows[0]["phases"])
    straggler = ((summary.get("verdict") or {}).get("evidence") or {}).get("rank")
    bars = [_rank_bar(row, phases, straggler) for row in drawn_rows]
    kind = "process" if "pid" in rows[0] else "rank"
    heads: list[str | Column] = [
        kind,
        Column("host", left=True),
        "steps",
        "a step",
        Column("p10 .. p90", narrowest=110),
    ]
    heads += [Column(phase, narrowest=76) for phase in phases]
    cells = []
    for row in drawn_rows:
        name = _name_of_row(row).removeprefix(f"{kind} ")
        shares = [f"{row['phases'][phase]['share']:.0%}" for phase in phases]
        cells.append([name, row["host"], f"{row['steps']:,}", *spread(row["time_s"]), *shares])
    table = Table(heads, cells, left=(), most=_MANY_RANKS, total=len(rows))
    picture = OnPage([Stacked(bars, "s", order=phases), Details("the same as a table", [table])])
    note = OnPage([Text("A median step of each, divided as its steps are in all.", mood="note")])
    yield Section("ranks", "Ranks", [note, picture, InText([table])], least=3)


def _rank_bar(
    row: Mapping[str, Any], phases: Sequence[str], straggler: int | None
) -> tuple[str, Mapping[str, float], str]:
    """Return the bar of a rank: its median step time, divided by the phases' shares in all of its
    steps."""
    name = _name_of_row(row)
    if straggler is not None and row["rank"] == straggler:
        name += " (the straggler)"
    median_s = row["time_s"]["median"]
    times_s = {phase: row["phases"][phase]["share"] * median_s for phase in phases}
    return name, times_s, duration(median_s)


def _facts(summary: Summary) -> Iterator[Section]:
    steps = summary.get("steps") or {}
    blocks: list[Block] = []
    if steps.get("unlike"):
        blocks.append(Text(_unlike_steps(steps), "unlike steps"))
    checkpoints = steps.get("checkpoints_between")
    if checkpoints and checkpoints["share"] >= _LEAST:
        words = (
            f"{duration(checkpoints['total_s'])}, {checkpoints['share']:.1%} of the steps and these"
            " together"
        )
        blocks.append(Text(words, "checkpoints between steps"))
    monitor = summary.get("monitor") or {}
    work, overhead = summary.get("recorded_work"), summary.get("overhead")
    labelled = [
        ("", _counts(summary)),
        ("seen", _recorded_work(work)),
        ("memory", _memory(summary)),
        ("used", _resources(monitor)),
        ("GPU", _gpus(monitor)),
        ("overhead", _overhead(overhead)),
    ]
    lines = [(label, list(facts)) for label, facts in labelled]
    blocks.append(Facts([line for line in lines if line[1]]))
    yield Section("facts", "", blocks)


def _unlike_steps(steps: Mapping[str, Any]) -> str:
    mean, median = steps["mean_s"], steps["time_s"]["median"]
    time = "most of the time" if mean > median else "hardly any time"
    return (
        f"a step takes {duration(mean)} on average and {duration(median)} at the median:"
        f" a few steps take {time}. The rates are items over time."
    )


def _rates(summary: Summary) -> Iterator[Section]:
    yield Section("rates", "", [Figures([*_each_rate(summary)])])


def _each_rate(summary: Summary) -> Iterator[Figure]:
    for name, rate in (summary.get("rates") or {}).items():
        note = ""
        if rate["n"] > 1 and "p10" in rate:
            range_ = f"{figure(rate['p10'])} .. {figure(rate['p90'])}"
            note = f"typically {figure(rate['median'])}, {range_}"
        yield Figure(name, throughput(rate), rate["units"], note=note)


_Facts = Iterator[tuple[str, str]]


def _counts(summary: Summary) -> _Facts:
    steps, evaluation, loss = (summary.get(key) or {} for key in ("steps", "evaluation", "loss"))
    if steps.get("n"):
        items = f", {steps['items']:,} items" if steps.get("items") else ""
        yield f"{{}} step{'s' if steps['n'] != 1 else ''}{items}", f"{steps['n']:,}"
    if evaluation:
        yield _evaluation_batches(evaluation, bool(steps.get("n"))), f"{evaluation['n']:,}"
    if loss:
        words = f"{number(loss['first'])} -> {number(loss['last'])}{loss_note(loss)}"
        if has_losses_of_evaluation(summary):
            words += " with those of the evaluation"
        yield "loss", words
    workers = (summary.get("loader") or steps.get("loader") or {}).get("workers")
    if workers is not None:
        yield f"{{}} loader worker{'s' if workers != 1 else ''}", f"{workers}"


def _evaluation_batches(evaluation: Mapping[str, Any], has_steps: bool) -> str:
    """Return the name of the fact with the number of evaluation batches; in a run without steps it
    includes their median time."""
    words = f"{{}} {evaluation_name(evaluation)} batch{'es' if evaluation['n'] != 1 else ''}"
    if evaluation.get("time_s") and not has_steps:
        words += f" of {duration(evaluation['time_s']['median'])}"
    return words


def _recorded_work(work: Mapping[str, Any] | None) -> _Facts:
    """Yield the recorded work of a run without steps, such as backward passes: number and time."""
    for name, amount in (work or {}).items():
        yield name.replace("_", " "), f"{amount['n']:,} ({duration(amount['total_s'])})"


def _memory(summary: Summary) -> _Facts:
    memory, monitor = summary.get("memory") or {}, summary.get("monitor") or {}
    if memory.get("peak"):
        yield "peak", size(memory["peak"])
    if "rss" in monitor:
        yield (
            f"all processes {{}}, at most {size(monitor['rss']['max'])}",
            size(monitor["rss"]["mean"]),
        )
    for name, device in (memory.get("devices") or {}).items():
        yield f"{name} peak", size(device["peak"])


def _resources(monitor: Mapping[str, Any]) -> _Facts:
    """Yield the use of processors, files and network that ``--monitor`` recorded."""
    if "cpu" in monitor:
        yield f"{{}} cores, at most {figure(monitor['cpu']['max'])}", figure(monitor["cpu"]["mean"])
    if "host_cpu" in monitor:
        yield "the machine's processors", f"{monitor['host_cpu']['mean']:.0%}"
    for key, participle in (
        ("read", "read"),
        ("write", "written"),
        ("net_received", "received"),
        ("net_sent", "sent"),
    ):
        if (monitor.get(key) or {}).get("total"):
            yield f"{{}} {participle}", size(monitor[key]["total"])


def _gpus(monitor: Mapping[str, Any]) -> _Facts:
    for name in monitor:
        if name.startswith("gpu") and name.endswith("_load"):
            words = f"{monitor[name]['mean']:.0%} busy"
            power = monitor.get(name.replace("_load", "_power"))
            if power:
                words += f", {power['mean']:.0f} W"
            yield f"{name[3:-5]}:", words


def _overhead(overhead: Mapping[str, Any] | None) -> _Facts:
    if not overhead:
        return
    parts = overhead.get("parts", {})
    costs = ""
    for name, when in (("start", "at its start"), ("completing", "after it")):
        seconds = parts.get(name, {}).get("seconds")
        if seconds:
            costs += f", {duration(seconds)} {when}"
    for name, part in parts.items():
        if part.get("unmeasured"):
            costs += f", without what {name} costs"
    words = f"{{}} of the run{costs}, for {overhead['events']:,} records"
    yield words, f"{overhead['share']:.2%}"


def _warnings(summary: Summary) -> Iterator[Section]:
    dropped = summary.get("dropped") or {}
    lines = [str(line) for line in summary.get("warnings") or ()]
    if dropped:
        names = ", ".join(f"{name} ({n:,})" for name, n in list(dropped.items())[:4])
        lines.insert(0, f"{sum(dropped.values()):,} records were dropped: {names}")
    warnings = [Text(line, "warning", mood="warning") for line in lines]
    on_page: list[Block] = [*warnings[:_WARNINGS]]
    if len(warnings) > _WARNINGS:
        title = f"{len(warnings) - _WARNINGS} more warnings"
        on_page.append(Details(title, warnings[_WARNINGS:_ROWS]))
    blocks: list[Block] = [OnPage(on_page), InText(warnings)]
    silent = [
        f"{probe['selector']} ({probe['where']})"
        for probe in summary.get("probes") or []
        if not probe["events"]
    ]
    if silent:
        blocks.append(Text(", ".join(silent), "probes that never fired", mood="warning"))
    yield Section("warnings", "", blocks, least=2)


def _machine(summary: Summary) -> Iterator[Section]:
    yield Section(
        "machine", "Machine and cost", [OnPage(lambda run: _machine_blocks(run, summary))]
    )


def _machine_blocks(run: Run, summary: Summary) -> Iterator[Block]:
    yield Table(("", ""), list(_machine_rows(run, summary)), left=(0, 1))
    packages = [
        (str(name), str(version)) for name, version in (run.manifest.get("packages") or {}).items()
    ]
    if packages:
        table = Table(("package", "version"), packages[:_ROWS], left=(0, 1))
        yield Details(f"{len(packages)} packages", [table])
    dropped = [(name, f"{n:,}") for name, n in (summary.get("dropped") or {}).items()]
    yield Table(("dropped", "records"), dropped[:_ROWS])
    probes = [
        (probe["selector"], probe["where"], f"{probe['events']:,}")
        for probe in summary.get("probes") or ()
    ]
    if probes:
        table = Table(("probe", "where", "events"), probes[:_ROWS], left=(0, 1))
        yield Details(f"{len(probes)} probes", [table])
    names = [(key, f"{n:,}") for key, n in (summary.get("given") or {}).items()]
    if names:
        yield Details(f"{len(names)} names given", [Table(("name", "times"), names[:_ROWS])])


_MANIFEST_ROWS = {
    "voirkit_options": "voirkit's options",
    "voirkit": "voirkit",
    "started": "started",
    "cwd": "folder",
    "git_revision": "git revision",
    "host": "host",
    "platform": "platform",
    "cpus": "processors",
    "world_size": "ranks",
}


def _machine_rows(run: Run, summary: Summary) -> Iterator[tuple[str, str]]:
    yield "command", shlex.join(map(str, summary.get("command") or []))
    for key, name in _MANIFEST_ROWS.items():
        value = run.manifest.get(key)
        if value:
            yield name, shlex.join(map(str, value)) if isinstance(value, list) else str(value)
    python = run.manifest.get("python")
    if isinstance(python, dict):
        words = (str(python[key]) for key in ("version", "executable") if python.get(key))
        yield "python", " ".join(words)
    yield from _overhead_rows(summary.get("overhead"))
    yield "dropped records", f"{sum((summary.get('dropped') or {}).values()):,}"
    processors = summary.get("processors") or {}
    if processors.get("others_share") is not None:
        yield "other programs", f"{processors['others_share']:.0%} of the processors"
    yield "run directory", run.where


def _overhead_rows(overhead: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if not overhead:
        return
    words = (
        f"{overhead['share']:.2%} of the run: {duration(overhead['seconds'])} for"
        f" {overhead['events']:,} records"
    )
    if overhead.get("completing_s") is not None:
        words += f"; {duration(overhead['completing_s'])} of a processor after it"
    yield "overhead", words
    for name, part in (overhead.get("parts") or {}).items():
        estimated = ", estimated" if part.get("estimated") else ""
        yield f"of it {name}", f"{duration(part['seconds'])}{estimated}"


# The parts of a report from top to bottom. ``parts_of_report`` adds the sections of leading
# instruments (``Instrument.leads``): the errors that they found (``Section.fixed``) after ABOVE,
# their other sections (findings, experiments) after VERDICT.
ABOVE: dict[str, Part] = {"wall": _wall, "goodput": _goodput, "uncounted": _uncounted}
VERDICT: dict[str, Part] = {"findings": _findings, "verdict": _verdict}
BELOW: dict[str, Part] = {"alerts": _alerts, "steps": _steps}
LAST: dict[str, Part] = {
    "ranks": _ranks,
    "rates": _rates,
    "facts": _facts,
    "warnings": _warnings,
    "machine": _machine,
}


def instrument_parts(leads: bool) -> dict[str, Part]:
    """Return the report parts of instruments: those of leading instruments, or all others.

    They are named after the instrument's key in the summary if it has one, since its own name, such
    as ``steps``, may be that of a report's own part. The others include the sections of voirfiles.
    """
    parts: dict[str, Part] = {}
    for instrument in installed_instruments():
        if instrument.sections and instrument.leads is leads:
            name = next(iter(instrument.parts), instrument.name)
            parts[name.replace("_", " ")] = partial(sections_of, instrument)
    return parts if leads else {**parts, "voirfile": stored_sections}


def parts_of_report() -> dict[str, Part]:
    """Return all parts of a report from top to bottom: by name, a function from a summary to the
    part's sections."""
    leading = instrument_parts(True)
    wrong = {f"found by {name}": partial(_fixed_sections, part) for name, part in leading.items()}
    not_wrong = {name: partial(_other_sections, part) for name, part in leading.items()}
    return {**ABOVE, **wrong, **VERDICT, **not_wrong, **BELOW, **instrument_parts(False), **LAST}


def _fixed_sections(part: Part, summary: Summary) -> Iterator[Section]:
    """Yield the sections of a part that are never shortened; none if the part fails."""
    try:
        fixed = [section for section in part(summary) if section.fixed]
    except Exception:
        # an instrument's own code, or a damaged summary; the error is reported in place of the
        # part's other sections
        return
    yield from fixed


def _other_sections(part: Part, summary: Summary) -> Iterator[Section]:
    return (section for section in part(summary) if not section.fixed)
