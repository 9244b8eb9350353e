"""A run that goes on: what its files tell so far, and the view of it that stays below a terminal's
lines.

This module has the picture that a view shows of a run at a moment: plain values, made from a run
that goes on or from the summary of one that is over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from voirkit.runs.other_processes import children_of
from voirkit.runs.summary import throughput
from voirkit.units import figure

if TYPE_CHECKING:
    import psutil


HISTORY = 24  # values of a rate's history


class Number(NamedTuple):
    """A figure with a name."""

    name: str  # such as ``train_rate``, ``loss``, ``train loss``
    value: float  # now
    units: str  # may be empty
    history: Sequence[float]  # values up to now, at even distances


class Progress(NamedTuple):
    """How far something is; ``left_s`` is the seconds that it will still take, or None if that is
    not known."""

    label: str
    n: float
    total: float
    left_s: float | None


class Worker(NamedTuple):
    """A loader's worker process: its id, and the share of a core that it used since the last
    look."""

    pid: int
    share: float


@dataclass
class Picture:
    """A run at a moment; what is not known is empty or None."""

    title: str = ""  # what was run
    state: str = ""  # how it goes: ``running``, or how it ended, in words
    is_over: bool = False  # whether nothing will change any more
    elapsed_s: float | None = None  # since it began
    # ``n``, ``time_s``, ``phases`` and maybe ``wait_known``, as in ``summary.json``, of the steps
    # that are shown
    steps: Mapping[str, Any] | None = None
    # how long these steps took together; None if they are the whole run's
    shown_s: float | None = None
    n_steps: int = 0  # steps of the training so far, as far as they have been counted
    is_counted: bool = True  # whether all have been
    rates: Sequence[Number] = ()
    progress: Sequence[Progress] = ()
    numbers: Sequence[Number] = ()
    workers: int | None = None
    worker_shares: Sequence[Worker] = ()
    devices: Sequence[Number] = ()
    ranks: Sequence[Mapping[str, Any]] = ()
    verdict: Mapping[str, Any] | None = None
    # the account of the whole wall time, of a run that is over
    wall: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None  # what is known of its evaluation
    warnings: Sequence[str] = field(default_factory=list)
    # when the last step of each rank ended, in seconds since the epoch by its host's clock
    last_step_s: Mapping[int, float] = field(default_factory=dict)


def of_summary(summary: Mapping[str, Any]) -> Picture:
    """The last picture of a run that is over."""
    picture = Picture(is_over=True)
    picture.title = title_of(summary.get("command") or [])
    picture.state = ended(str(summary.get("ended")), summary.get("exit_code"))
    picture.elapsed_s = summary.get("duration_s")
    steps = summary.get("steps") or {}
    if steps.get("n"):
        picture.steps = steps
        picture.n_steps = steps["n"]
    rates = summary.get("rates") or {}
    picture.rates = [
        Number(name, throughput(rate), rate["units"], ()) for name, rate in rates.items()
    ]
    loss = summary.get("loss") or {}
    if loss.get("last") is not None:
        first = f"(from {figure(loss['first'], 4)})"
        picture.numbers = [Number("loss", loss["last"], first, ())]
    loader = summary.get("loader") or steps.get("loader") or {}
    picture.workers = loader.get("workers")
    memory = summary.get("memory") or {}
    if memory.get("peak") is not None:
        picture.devices = [Number("memory peak", memory["peak"], "bytes", ())]
    picture.ranks = summary.get("ranks") or ()
    picture.verdict = summary.get("verdict")
    picture.wall = summary.get("wall")
    picture.evaluation = summary.get("evaluation")
    picture.warnings = _warnings(summary)
    return picture


def _warnings(summary: Mapping[str, Any]) -> list[str]:
    """The first lines of alerts and warnings, and what was dropped."""
    texts = [alert["because"] for alert in summary.get("alerts") or []]
    texts += summary.get("warnings") or []
    warnings = [str(text).split("\n")[0] for text in texts]
    n_dropped = sum((summary.get("dropped") or {}).values())
    if n_dropped:
        warnings.insert(0, f"{n_dropped:,} records were dropped")
    return warnings


def title_of(command: Sequence[str]) -> str:
    """A command as one line."""
    return " ".join(command) or "(unknown command)"


def ended(how: str, exit_code: int | None) -> str:
    """How a run ended, in words."""
    code = "" if exit_code is None else f", exit code {exit_code}"
    words = {
        "running": "is running",
        "normal": "ended",
        "exit": "ended",
        "exception": "ended by an exception",
        "signal": "ended by a signal",
        "killed": "was killed: it did not end by itself",
    }
    return words.get(how, "ended") + code


# a loader's workers while they work


_MOST = 64  # workers


class Workers:
    """The worker processes below a process. ``pid``: the process that trains."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        # by process: when it was sampled, seconds of a core that it had used
        self._before: dict[int, tuple[float, float]] = {}

    def sample(self) -> list[Worker]:
        """Those that run now, and how busy each was since the last sample; a new one, since its
        start."""
        # not before somebody looks: the program that voirkit runs has not imported it
        import psutil

        workers, before = [], {}
        for process in _workers_below(self._pid)[:_MOST]:
            try:
                with process.oneshot():
                    times, started_s = process.cpu_times(), process.create_time()
            except psutil.Error:
                continue
            now_s, used_s = time.time(), times.user + times.system
            before_s, used_before_s = self._before.get(process.pid, (started_s, 0.0))
            before[process.pid] = now_s, used_s
            if now_s > before_s:
                share = (used_s - used_before_s) / (now_s - before_s)
                workers.append(Worker(process.pid, min(max(share, 0.0), 9.99)))
        self._before = before
        return workers


def _workers_below(pid: int) -> list[psutil.Process]:
    """The children that run the same program: one that was forked has its parent's command, one
    that was spawned reports it."""
    import psutil

    try:
        parent = psutil.Process(pid)
        program, command = parent.exe(), parent.cmdline()
    except psutil.Error:
        return []
    workers = []
    for child in sorted(children_of(pid)):
        try:
            process = psutil.Process(child)
            words = process.cmdline()
            is_spawned = any("spawn_main" in word for word in words)
            if process.exe() == program and (is_spawned or words == command):
                workers.append(process)
        except psutil.Error:
            continue
    return workers
