"""Report section on waiting between ranks: the collectives and the rank that comes last, as a table
and over the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from voirkit.analysis.run_steps import read_steps
from voirkit.report import duration, figure, size
from voirkit.report.sections import (
    Block,
    Figure,
    Figures,
    OnPage,
    Section,
    Table,
    Text,
    Timeline,
)
from voirkit.runs.opened import Run
from voirkit_instruments.ranks.analyse import only_called, shares, whom

_LEAST = 0.02  # waiting is shown if it takes at least this share of a step
# A kind of collective is listed if there are at least so many in a step: with gradient accumulation
# they come only every few steps.
_OFTEN = 0.2
_MOST = 128  # maximum number of ranks that are drawn


def sections(part: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the section on waiting between ranks."""
    waited = part["waited"]
    n_steps = max((summary.get("steps") or {}).get("n") or 0, 1)
    blocks: list[Block] = [
        *_wait_texts(part),
        *_kind_texts(part, n_steps),
        *_warnings(part),
        Figures([Figure("waiting for the last rank", waited["time_s"], "s", "lower")]),
    ]
    if waited["share"] >= _LEAST or part["late"] is not None:
        blocks.append(_table(part))
    if part["over_time"]:
        blocks += _timelines(part)
    yield Section("collectives", "Waiting between ranks", blocks, least=3)


def _wait_texts(part: Mapping[str, Any]) -> Iterator[Text]:
    waited, in_backward = part["waited"], part["in_backward"]
    if waited["share"] >= _LEAST:
        text = (
            f"{duration(waited['time_s'])} of a step ({waited['share']:.0%}) the ranks wait for the"
            " one that comes last"
        )
        if part["late"] is None:
            text += f": {whom(part)}"
        yield Text(text, "waiting for each other")
    if in_backward["share"] >= _LEAST:
        of_step = f"{duration(in_backward['time_s'])} of a step ({in_backward['share']:.0%})"
        yield Text(f"{of_step} is waited at the end of backward", "of backward")


def _kind_texts(part: Mapping[str, Any], n_steps: int) -> Iterator[Text]:
    least_n = _OFTEN * n_steps
    kinds = [_describe_kind(row, n_steps) for row in part["kinds"][:4] if row["n"] >= least_n]
    if kinds:
        yield Text(", ".join(kinds), "collectives a step")


def _describe_kind(row: Mapping[str, Any], n_steps: int) -> str:
    """Describe the collectives of one kind in a step: ``2 all_reduce (1 MB, 3 ms waited)``."""
    waited = duration(row.get("waited_s", 0.0) / n_steps)
    amount = f"{size(row['bytes'] / n_steps)}, {waited} waited"
    return f"{figure(row['n'] / n_steps)} {row['name']} ({amount})"


def _warnings(part: Mapping[str, Any]) -> Iterator[Text]:
    if only_called(part):
        text = (
            "missing or off (--ranks=timing switches it on): only what the script calls itself is"
            " known, not what DDP exchanges"
        )
        yield Text(text, "flight recorder", mood="warning")
    error_s = part["clock_error_s"]
    if error_s is None:
        text = "the clocks of the hosts cannot be held against each other: no rank is named"
        yield Text(text, "clocks", mood="warning")
    elif error_s:
        yield Text(f"of several hosts, held against each other to {duration(error_s)}", "clocks")


def _table(part: Mapping[str, Any]) -> Table:
    rows = []
    for row in part["ranks"]:
        delay = duration(row["late_s"])
        rows.append((str(row["rank"]), row["host"], f"{row['last']:.0%}", delay))
    heads = ("rank", "host", "last in steps", "makes the others wait, a step")
    return Table(heads, rows, left=(1,), most=8)


def _timelines(part: Mapping[str, Any]) -> Iterator[Block]:
    over_time = part["over_time"]
    begin_s, bin_s = over_time["begin_s"], over_time["bin_s"]
    lines = [
        (f"rank {row['rank']}", waited)
        for row, waited in zip(part["ranks"], over_time["waited"], strict=True)
    ]
    n_bins = len(lines[0][1])
    caption = "Share of the time that the others wait for a rank"
    yield OnPage([_share_timeline(lines[:_MOST], begin_s, bin_s, caption)])
    yield OnPage(partial(_phases_of_ranks, begin_s=begin_s, bin_s=bin_s, bins=n_bins))


def _share_timeline(
    lines: Sequence[tuple[str, Sequence[float]]], begin_s: float, bin_s: float, caption: str
) -> Timeline:
    return Timeline(lines, begin_s, bin_s, "share", caption, whole=1.0, mean=True)


def _phases_of_ranks(run: Run, begin_s: float, bin_s: float, bins: int) -> Iterator[Block]:
    """Yield timelines of the share of its time that each rank waits for input, and that it
    communicates. The time axis is that of the first rank."""
    ranks = [rank for rank in read_steps(run) if not rank.alone and len(rank.steps.train)][:_MOST]
    n_steps = min((len(rank.steps.train) for rank in ranks), default=0)
    if not n_steps:
        return
    first = ranks[0].steps.train.chosen(slice(0, n_steps))
    for phase, caption in (("wait", "waits for input"), ("communication", "communicates")):
        lines = []
        for rank in ranks:
            phase_ns = rank.steps.train.phase_ns(phase)[:n_steps]
            lines.append((f"rank {rank.rank}", shares(first, phase_ns, bins).tolist()))
        if any(any(values) for _, values in lines):
            caption = f"Share of its time that a rank {caption}"
            yield _share_timeline(lines, begin_s, bin_s, caption)
