"""What ranks exchange, and who came last, as a table and over the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from voirkit.analysis.run_steps import read_steps
from voirkit.report import duration, figure, size
from voirkit.report.sections import Block, Column, Figure, Figures, OnPage, Section, Table, Text, Timeline
from voirkit.runs.opened import Run
from voirkit_instruments.ranks.analyse import only_called, shares, whom

_LEAST = 0.02  # of a step: less waiting is not worth a line
_OFTEN = 0.2  # a step: fewer collectives are not worth a name; where gradients are accumulated they come every few steps
_MOST = 128  # ranks that are drawn


def sections(part: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Section]:
    """See ``voirkit.instrument.Instrument``."""
    waited, late = part["waited"], part["late"]
    blocks: list[Block] = []
    if waited["share"] >= _LEAST:
        said = f"{duration(waited['time_s'])} of a step ({waited['share']:.0%}) the ranks wait for the one that comes last"
        if late is None:
            said += f": {whom(part)}"
        blocks.append(Text(said, "waiting for each other"))
    n_steps = max((summary.get("steps") or {}).get("n") or 0, 1)
    if part["in_backward"]["share"] >= _LEAST:
        waits = f"{duration(part['in_backward']['time_s'])} of a step ({part['in_backward']['share']:.0%}) is waited at the end of backward"
        blocks.append(Text(waits, "of backward"))
    kinds = [_of_kind(row, n_steps) for row in part["kinds"][:4] if row["n"] >= _OFTEN * n_steps]
    if kinds:
        blocks.append(Text(", ".join(kinds), "collectives a step"))
    if only_called(part):
        said = "missing or off (--ranks=timing switches it on): only what the script calls itself is known, not what DDP exchanges"
        blocks.append(Text(said, "flight recorder", mood="warning"))
    if part["clock_error_s"] is None:
        blocks.append(Text("the clocks of the hosts cannot be held against each other: no rank is named", "clocks", mood="warning"))
    elif part["clock_error_s"]:
        blocks.append(Text(f"of several hosts, held against each other to {duration(part['clock_error_s'])}", "clocks"))
    blocks.append(Figures([Figure("waiting for the last rank", waited["time_s"], "s", "lower")]))
    rows = [(str(row["rank"]), row["host"], f"{row['last']:.0%}", duration(row["late_s"])) for row in part["ranks"]]
    if waited["share"] >= _LEAST or late is not None:
        heads = (Column("rank"), Column("host", left=True), "last in steps", "makes the others wait, a step")
        blocks.append(Table(heads, rows, left=(1,), most=8))
    over = part["over_time"]
    if over:
        lines = [(f"rank {row['rank']}", waited) for row, waited in zip(part["ranks"], over["waited"], strict=True)]
        caption = "Share of the time that the others wait for a rank"
        drawn = Timeline(lines[:_MOST], over["begin_s"], over["bin_s"], "share", caption, whole=1.0, mean=True)
        blocks.append(OnPage([drawn]))
        blocks.append(OnPage(partial(_phases_of_ranks, begin_s=over["begin_s"], bin_s=over["bin_s"], bins=len(lines[0][1]))))
    yield Section("collectives", "Waiting between ranks", blocks, least=3)


def _of_kind(row: Mapping[str, Any], n_steps: int) -> str:
    """What a step has of one kind of collective: ``2 all_reduce (1 MB, 3 ms waited)``."""
    amount = f"{size(row['bytes'] / n_steps)}, {duration(row.get('waited_s', 0.0) / n_steps)} waited"
    return f"{figure(row['n'] / n_steps)} {row['name']} ({amount})"


def _phases_of_ranks(run: Run, begin_s: float, bin_s: float, bins: int) -> Iterator[Block]:
    """Which share of its time each rank waits for input, and communicates; on the time axis of the first one."""
    ranks = [rank for rank in read_steps(run) if not rank.alone and len(rank.steps.train)][:_MOST]
    n = min((len(rank.steps.train) for rank in ranks), default=0)
    if n:
        first = ranks[0].steps.train.chosen(slice(0, n))
        for phase, caption in (("wait", "waits for input"), ("communication", "communicates")):
            rows = [(f"rank {rank.rank}", shares(first, rank.steps.train.phase_ns(phase)[:n], bins).tolist()) for rank in ranks]
            if any(any(values) for _, values in rows):
                yield Timeline(rows, begin_s, bin_s, "share", f"Share of its time that a rank {caption}", whole=1.0, mean=True)
