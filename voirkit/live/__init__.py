"""A run in progress: its records so far, and the live view of it in a terminal.

This module defines ``Picture``, the state of a run that a view shows. It holds plain values, from
the records of a run in progress or from the summary of a run that is over.
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


HISTORY = 24  # maximum number of values in the history of a rate


class Number(NamedTuple):
    """A value with a name, such as a rate or a loss."""

    name: str  # for example ``train_rate``, ``loss``, ``train loss``
    value: float  # current value
    units: str  # may be empty
    history: Sequence[float]  # values up to now, evenly spaced


class Progress(NamedTuple):
    """Progress of a task. ``left_s``: the seconds that it will still take; None if unknown."""

    label: str
    n: float
    total: float
    left_s: float | None


class Worker(NamedTuple):
    """A worker process of a loader: its process id, and the share of a core that it used since the
    last sample."""

    pid: int
    share: float


@dataclass
class Picture:
    """The state of a run at one moment; unknown values are empty or None."""

    title: str = ""  # the command that was run
    state: str = ""  # ``running``, or how the run ended, in words
    is_over: bool = False  # True if nothing will change any more
    elapsed_s: float | None = None  # seconds since the run began
    # values for the steps that are shown: ``n``, ``time_s``, ``phases`` and maybe ``wait_known``,
    # as in ``summary.json``
    steps: Mapping[str, Any] | None = None
    # total time of the steps that are shown; None if all steps of the run are shown
    shown_s: float | None = None
    n_steps: int = 0  # number of training steps so far that have been counted
    is_counted: bool = True  # True if all training steps so far have been counted
    rates: Sequence[Number] = ()
    progress: Sequence[Progress] = ()
    numbers: Sequence[Number] = ()
    workers: int | None = None
    worker_shares: Sequence[Worker] = ()
    devices: Sequence[Number] = ()
    ranks: Sequence[Mapping[str, Any]] = ()
    verdict: Mapping[str, Any] | None = None
    # ``wall`` of the summary, the account of the whole wall time; only for a run that is over
    wall: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None  # ``evaluation`` of the summary
    warnings: Sequence[str] = field(default_factory=list)
    # rank -> when the rank's last step ended, in seconds since 1970, on its host's clock
    last_step_s: Mapping[int, float] = field(default_factory=dict)


def of_summary(summary: Mapping[str, Any]) -> Picture:
    """Return the final picture of a run that is over, from its summary."""
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
    """Return the first line of each alert and warning; before them, if records were dropped, their
    number."""
    texts = [alert["because"] for alert in summary.get("alerts") or []]
    texts += summary.get("warnings") or []
    warnings = [str(text).split("\n")[0] for text in texts]
    n_dropped = sum((summary.get("dropped") or {}).values())
    if n_dropped:
        warnings.insert(0, f"{n_dropped:,} records were dropped")
    return warnings


def title_of(command: Sequence[str]) -> str:
    """Return a command as one line."""
    return " ".join(command) or "(unknown command)"


def ended(how: str, exit_code: int | None) -> str:
    """Describe how a run ended, in words."""
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


# the worker processes of loaders, and how busy they are


_MOST = 64  # maximum number of workers to sample


class Workers:
    """Sampler of the loader worker processes that are children of a process. ``pid``: the process
    that trains."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        # process id -> (time of the last sample, CPU seconds used until then)
        self._before: dict[int, tuple[float, float]] = {}

    def sample(self) -> list[Worker]:
        """Return the workers that run now, and how busy each was since the last sample; a new
        worker since its start."""
        # imported here, because only a view needs psutil, and the program may not have imported it
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
    """Return the child processes that run the same program. A forked worker has the command line of
    its parent, a spawned worker has ``spawn_main`` in its own."""
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
