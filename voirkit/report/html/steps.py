"""Steps over time in a report: how long each took and where its time went, with evaluation, epochs and checkpoints; and the loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.run_steps import read_steps
from voirkit.analysis.steps import Table
from voirkit.report.figure import duration, figure
from voirkit.report.html.components import Html, folded, section, table
from voirkit.report.html.plots import TIME, columns, lines, seconds
from voirkit.report.overview import number, spread
from voirkit.runs.summary import PHASES, evaluation_name

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run

MOST = 400  # columns
_COLUMNS = 150  # of other ranks
_PICTURES = 8  # ranks whose steps are drawn over time
_EDGES = 200  # epochs and checkpoints that are marked
_BANDS = 200

Summary = Mapping[str, Any]


def steps(run: Run, summary: Summary) -> Html | None:
    """The steps of the first rank, and the loss."""
    ranks = [rank for rank in read_steps(run) if len(_timed_steps(rank))]
    parts: list[object] = []
    note = ""
    if ranks:
        made = _timed_steps(ranks[0])
        parts.append(picture(run, ranks[0]))
        a_column = -(-len(made) // MOST)
        note = f"{len(made):,} steps" + (f", {a_column:,} in a column, which is as high as their mean" if a_column > 1 else "")
        note += f" of rank {ranks[0].rank}." if len(ranks) > 1 else "."
    others = ranks[1:_PICTURES]
    if others:
        parts.append(folded("steps of the others over time", *(_of_other(run, rank) for rank in others)))
    parts += [*_loss(summary.get("loss")), *_evaluation(summary.get("evaluation"))]
    if not parts:
        return None
    hint = Html('<p class="note hint">Drag over a picture to zoom in, double click to see all of it.</p>')
    return section("steps", "Steps over time", *parts, hint, note=note)


def _of_other(run: Run, rank: Rank) -> Html:
    name = f"process {rank.processes[0][1]}" if rank.alone else f"rank {rank.rank}"
    return picture(run, rank, _COLUMNS, f"{name} on {rank.host}: time of a step")


def _timed_steps(rank: Rank) -> Table:
    """On the clock of the device where there is one, as in the summary."""
    return rank.steps.device.table if rank.steps.device is not None else rank.steps.train


def begin_ns(run: Run, otherwise: int) -> int:
    """When the run began, on the clock of its spans."""
    clocks = run.manifest.get("clocks")
    found = clocks.get("perf_counter_ns") if isinstance(clocks, dict) else None
    return found if isinstance(found, int) else otherwise


def picture(run: Run, rank: Rank, most: int = MOST, caption: str = "time of a step", group: str = TIME) -> Html:
    """The steps of a rank as columns over the time since the run began."""
    made = _timed_steps(rank)
    zero = _zero(run, rank, made)
    edges = list(range(0, len(made), -(-len(made) // most)))
    ends = [*edges[1:], len(made)]
    phases = {phase: made.phase_ns(phase) / 1e9 for phase in PHASES}
    start, time = (made.start_ns - zero) / 1e9, made.time_ns / 1e9
    caption += " on the device" if rank.steps.device is not None else ""
    boxes, peaks = [], []
    for a, b in zip(edges, ends, strict=True):
        means = {phase: float(own[a:b].mean()) for phase, own in phases.items()}
        which = f"step {a:,}" if b == a + 1 else f"steps {a:,} to {b - 1:,}, mean {duration(float(time[a:b].mean()))}, longest"
        said = "\n".join([f"{which} {duration(float(time[a:b].max()))}", f"at {seconds(float(start[a]))}", *_in_words(means)])
        boxes.append((float(start[a]), float(start[b - 1] + time[b - 1]), means, said))
        peaks.append(float(time[a:b].max()))
    return columns(boxes, peaks, _bands(rank.steps.evaluation, zero), _edges(run, rank, zero), caption=caption, group=group, order=PHASES)


def _zero(run: Run, rank: Rank, steps: Table) -> int:
    """Zero of the axis; of a rank on another host, whose clock is its own, its first step."""
    first = int(steps.start_ns[0])
    zero = begin_ns(run, first)
    return zero if run.manifest.get("host") in (None, rank.host) and zero <= first else first


def _in_words(means: Mapping[str, float]) -> Iterator[str]:
    total = sum(means.values()) or 1.0
    yield from (f"{phase} {duration(value)}, {value / total:.0%}" for phase, value in means.items() if value)


def _bands(evaluation: Table, zero: int) -> list[tuple[float, float, str]]:
    """Where batches of evaluation follow upon each other."""
    if not len(evaluation):
        return []
    start, end = (evaluation.start_ns - zero) / 1e9, (evaluation.start_ns + evaluation.time_ns - zero) / 1e9
    gap = max(float(end[-1] - start[0]) / _BANDS, 1e-3)
    first = np.flatnonzero(np.concatenate(([True], start[1:] - end[:-1] > gap)))
    last = [*(first[1:] - 1), len(start) - 1]
    return [
        (float(start[a]), float(end[b]), f"evaluation, {b - a + 1:,} batches, {duration(float(end[b] - start[a]))}")
        for a, b in zip(first.tolist(), map(int, last), strict=True)
    ]


def _edges(run: Run, rank: Rank, zero: int) -> list[tuple[float, str, str]]:
    """When epochs began, and when checkpoints were written or read."""
    found = []
    for where, what, kind in (
        ("category = 'pipeline' AND name = 'epoch'", "a loop over the training's loader begins", "epoch"),
        ("category = 'checkpoint'", "checkpoint", "checkpoint"),
    ):
        query = f"SELECT start_ns, duration_ns FROM spans WHERE kind = 'phase' AND {where} AND rank = ? AND host = ? ORDER BY start_ns"
        rows = run.connection().execute(f"{query} LIMIT {_EDGES}", [rank.rank, rank.host]).fetchall()
        found += [((start - zero) / 1e9, f"{what}, {duration(lasted / 1e9)}" if lasted else what, kind) for start, lasted in rows]
    return found


def _loss(loss: Mapping[str, Any] | None) -> Iterator[Html]:
    curve = (loss or {}).get("curve") or []
    if loss and len(curve) > 1:
        caption = f"loss: {number(loss['first'])} → {number(loss['last'])}, {loss['n']:,} values"
        yield lines({"loss": [(x, y) for x, y in curve]}, format_value=lambda y: f"{y:.4g}", caption=caption, low=None, axis=_whole)


def _whole(x: float) -> str:
    return figure(round(x))


def _evaluation(evaluation: Mapping[str, Any] | None) -> Iterator[Html]:
    if evaluation:
        yield table(
            ("", "n", "a batch", "p10 .. p90"),
            [(f"{evaluation_name(evaluation)} batches", f"{evaluation['n']:,}", *spread(evaluation["time_s"]))],
        )
