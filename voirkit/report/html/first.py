"""The first screen of a report: what ran and how it ended, the verdict, where the time of a step goes, rates, what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from voirkit.report.figure import duration, figure, size
from voirkit.report.html.components import Html, folded, join, paragraph, stacked, strong, table, text
from voirkit.report.phrases import exit_words, following, unlike_steps
from voirkit.runs.step_phases import shown_phases
from voirkit.runs.summary import throughput
from voirkit.runs.wall import PARTS, evaluation_name

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

_HOW = {
    "running": "still runs",
    "killed": "was killed: it did not end by itself",
    "signal": "was ended by a signal",
    "exception": "ended by an exception",
}
_WARNINGS = 12

Summary = Mapping[str, Any]


def first(run: Run, summary: Summary) -> Html:
    """Always there."""
    parts = [
        Html(f"<h1>{text(' '.join(map(str, summary.get('command') or [])) or run.name, 600)}</h1>"),
        Html(f'<p class="how">{text(" · ".join(_how(run, summary)))}</p>'),
        *_wall(summary.get("wall"), evaluation_name(summary.get("evaluation"))),
        *_verdict(summary.get("verdict"), summary.get("advice") or ()),
        *(_said("alert", alert["kind"], alert["because"], alert.get("next")) for alert in summary.get("alerts") or ()),
        *(_check(check) for check in summary.get("checks") or () if check.get("found")),
        *_breakdown(summary.get("steps")),
        tiles(_figures(summary)),
        *_warnings(summary),
    ]
    return Html(f'<section id="first">{join(parts, chr(10))}</section>')


def _how(run: Run, summary: Summary) -> Iterator[str]:
    if summary.get("duration_s") is not None:
        yield duration(summary["duration_s"])
    yield from exit_words(summary)
    if summary.get("ended") in _HOW:
        yield _HOW[summary["ended"]]
    if (summary.get("world_size") or 1) > 1:
        yield f"{summary['world_size']} ranks"
    for key, word in (("started", ""), ("host", "on ")):
        if run.manifest.get(key):
            yield f"{word}{run.manifest[key]}"


def _wall(wall: Mapping[str, Any] | None, evaluation: str) -> Iterator[Html]:
    """Where the whole wall time went, as a bar; with what its part ``evaluation`` is called."""
    if not wall:
        return
    names = {name: evaluation if name == "evaluation" else name for name in PARTS}
    parts = {names[name]: wall["parts"][name] for name in PARTS if name in wall["parts"]}
    shares = {name: part["share"] for name, part in parts.items()}
    figures = {name: f"{duration(part['total_s'])}, {part['share']:.1%}" for name, part in parts.items()}
    bar = stacked([("wall time", shares, duration(wall["total_s"]))], _percent, 1.0, figures=figures, order=list(names.values()))
    yield Html(f'<div class="big">{bar}</div>')


def _verdict(verdict: Mapping[str, Any] | None, advice: Sequence[Mapping[str, Any]]) -> Iterator[Html]:
    if verdict:
        calm = " calm" if verdict["kind"] in ("balanced", "unknown") else ""
        more = [following(one) for one in advice if one["do"] not in verdict["next"]]
        yield _said(f"verdict{calm}", verdict["kind"], verdict["because"], verdict.get("next"), more)


def _said(kind: str, name: str, because: str, next_: str | None, more: Sequence[str] = ()) -> Html:
    after = paragraph(strong("next "), text(next_, 1200)) if next_ else ""
    after += join(paragraph(strong("then "), text(one, 1200)) for one in more)
    return Html(f'<div class="{kind}"><span class="kind">{text(name)}</span>{paragraph(text(because, 1200))}{after}</div>')


def _check(check: Mapping[str, Any]) -> Html:
    at = [f"step {check['step']:,}"] if check.get("step") is not None else []
    at += [str(check["where"])] if check.get("where") else []
    return _said("verdict", check["name"], f"{', '.join(at)}{': ' if at else ''}{check['because']}", check.get("next"))


def _breakdown(steps: Mapping[str, Any] | None) -> Iterator[Html]:
    if not steps or not steps.get("n"):
        yield paragraph("No step of a training was seen.", kind="note")
        return
    phases, known = steps["phases"], steps.get("wait_known", True)
    shown = shown_phases(phases)
    device = " on the device" if steps.get("time_of") == "device" else ""
    shares = {phase: phases[phase]["share"] for phase in shown if phase != "wait" or known}
    figures = {phase: f"{share:.1%}" for phase, share in shares.items()}
    bar = stacked([(f"a step{device}", shares, duration(steps["time_s"]["median"]))], _percent, 1.0, figures=figures)
    yield Html(f'<div class="big">{bar}</div>')
    saving = steps.get("checkpoints_between")
    if saving:
        yield paragraph(
            f"Checkpoints between the steps, which no step above holds, took {duration(saving['total_s'])}: "
            f"{saving['share']:.1%} of the steps and these together.",
            kind="note",
        )
    if steps.get("unlike"):
        yield paragraph(strong("unlike steps "), unlike_steps(steps), kind="note")
    rows = []
    for phase in shown:
        row = phases[phase]
        if phase == "wait" and not known:
            rows.append(("wait", "unknown", "", "no loader was seen", ""))
            continue
        rows.append((phase, f"{row['share']:.1%}", duration(row["total_s"]), *spread(row.get("step_s"))))
        for part, one in (row.get("parts") or {}).items():
            if one["share"] >= 0.005:
                rows.append(
                    (Html(f'<span class="note">&nbsp;&nbsp;{text(part)}</span>'), f"{one['share']:.1%}", duration(one["total_s"]), "", "")
                )
    total = sum(phases[phase]["total_s"] for phase in shown)
    rows.append((strong(f"step{device}"), "", duration(total), *spread(steps["time_s"])))
    yield folded("the same as a table", table(("phase", "share", "total", "a step", "p10 .. p90"), rows))


def _percent(share: float) -> str:
    return f"{share:.1%}"


def spread(of: Mapping[str, float] | None) -> tuple[str, str]:
    """Median, and p10 .. p90."""
    return (duration(of["median"]), f"{duration(of['p10'])} .. {duration(of['p90'])}") if of else ("", "")


def tiles(figures: Iterator[tuple[str, str]]) -> Html:
    """Figures, each with its name: (name, figure)."""
    made = "".join(f'<div class="tile"><b>{text(value)}</b><span>{text(name)}</span></div>' for name, value in figures)
    return Html(f'<div class="tiles">{made}</div>' if made else "")


def _figures(summary: Summary) -> Iterator[tuple[str, str]]:
    steps, memory, monitor = (summary.get(key) or {} for key in ("steps", "memory", "monitor"))
    for name, rate in (summary.get("rates") or {}).items():
        around = f", a typical step {figure(rate['median'])} ({figure(rate['p10'])} .. {figure(rate['p90'])})" if rate["n"] > 1 else ""
        yield f"{name}{around}", f"{figure(throughput(rate))} {rate['units']}"
    if steps.get("n"):
        yield f"steps{', {:,} items'.format(steps['items']) if steps.get('items') else ''}", f"{steps['n']:,}"
    if summary.get("evaluation"):
        yield f"{evaluation_name(summary['evaluation'])} batches", f"{summary['evaluation']['n']:,}"
    loss = summary.get("loss")
    if loss:
        yield f"loss, {loss['n']:,} values", f"{number(loss['first'])} → {number(loss['last'])}"
    workers = (summary.get("loader") or steps.get("loader") or {}).get("workers")
    if workers is not None:
        yield "loader workers", f"{workers}"
    if memory.get("peak"):
        yield "peak memory", size(memory["peak"])
    for name, device in (memory.get("devices") or {}).items():
        yield f"peak memory of {name}", size(device["peak"])
    if "cpu" in monitor:
        yield "processor cores used", figure(monitor["cpu"]["mean"])
    if summary.get("overhead"):
        yield f"overhead, {summary['overhead']['events']:,} records", f"{summary['overhead']['share']:.2%}"


def number(value: float | None) -> str:
    """A number of which JSON has null if it was not finite."""
    return "nan" if value is None else f"{value:.4g}"


def _warnings(summary: Summary) -> Iterator[Html]:
    dropped = summary.get("dropped") or {}
    if dropped:
        most = ", ".join(f"{name} ({n:,})" for name, n in list(dropped.items())[:4])
        yield paragraph(strong("warning "), f"{sum(dropped.values()):,} records were dropped: {most}", kind="warning")
    warnings = [str(one) for one in summary.get("warnings") or ()]
    for said in warnings[:_WARNINGS]:
        yield paragraph(strong("warning "), text(said, 1200), kind="warning")
    if len(warnings) > _WARNINGS:
        yield folded(f"{len(warnings) - _WARNINGS} more warnings", *(paragraph(text(said, 1200)) for said in warnings[_WARNINGS:200]))
