"""Live view of a run from another process, which reads the run directory.

Nothing is written to the directory, and no clock of another host is trusted.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from voirkit.instrument import resolve
from voirkit.live import Number, Picture, Progress, Workers, ended, of_summary, title_of
from voirkit.live.steps import LiveSteps, devices
from voirkit.plugins import installed_instruments
from voirkit.runs import directory
from voirkit.runs.other_processes import goes_on, is_alive, is_here
from voirkit.runs.summary import Moments
from voirkit.trace.reader import Process

NEWEST = 1 << 18  # bytes read from the end of a file that is read for the first time
REMEMBERED = 64  # how many of the last values are kept for each key


@dataclass
class Logged:
    """The logged values of one key of one task."""

    task: str
    key: str
    units: str = ""
    first: float = 0.0  # the first value read; in a long run, not the run's first value
    n: int = 0  # number of values read
    values: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))  # last values


class Log:
    """The log streams of a run.

    Args:
        path: The run directory; it need not exist yet.
    """

    def __init__(self, path: str) -> None:
        self._folder = os.path.join(path, "stream")
        self._at: dict[str, int] = {}
        self.rows: dict[tuple[str, str], Logged] = {}  # values by task and key
        # (i, n) logged as ``progress=(i, n)`` or ``progress=i, total=n``, by task and description
        self.progress: dict[tuple[str, str], tuple[float, float]] = {}

    def update(self) -> None:
        """Read the events logged since the last update. Raises OSError if the folder cannot be
        read."""
        try:
            names = sorted(os.listdir(self._folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            if name.endswith(".jsonl"):
                self._read(os.path.join(self._folder, name))

    def bars(self) -> list[Progress]:
        """Return the logged progress of each task and description, in order of first appearance."""
        return [
            Progress(" ".join(word for word in key if word), *pair, None)
            for key, pair in self.progress.items()
        ]

    def _read(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                start = self._at.get(path, max(size - NEWEST, 0))
                if size <= start:
                    return
                file.seek(start)
                text = file.read(size - start)
        except FileNotFoundError:
            return
        length = text.rfind(b"\n") + 1
        self._at[path] = start + length
        for line in text[:length].splitlines():
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):  # damaged, or the first line, which may be cut
                continue
            if isinstance(event, dict) and "$event" not in event:
                self._add(event)

    def _add(self, event: dict[str, Any]) -> None:
        task = event.get("task")
        task = task if isinstance(task, str) else ""
        units = event.get("units")
        progress, total = event.get("progress"), event.get("total")
        if isinstance(progress, list) and len(progress) == 2:
            progress, total = progress
        if _is_number(progress) and _is_number(total):
            descr = event.get("descr")
            self.progress[task, descr if isinstance(descr, str) else ""] = progress, total
        for key, value in event.items():
            if not _is_number(value) or key[:1] in "$#" or key in ("progress", "total"):
                continue
            row = self.rows.get((task, key))
            if row is None:
                row = self.rows[task, key] = Logged(task, key, first=value)
            row.n += 1
            row.units = units if isinstance(units, str) else row.units
            row.values.append(value)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(row: Logged) -> Number:
    name = " ".join(word for word in (row.task, row.key) if word)
    return Number(name, row.values[-1], row.units, list(row.values))


def _may_run(process: Process) -> bool:
    """True if a process runs, or may run: on another host this cannot be known."""
    if not is_here(process.host):
        return True
    return is_alive(process.pid, process.perf_counter_ns, process.time_ns)


SILENT_S = 30.0  # a warning is shown if nothing has been recorded for longer than this
COMPLETED_WITHIN_S = 60.0  # maximum time to wait for the summary after the end of a run


class LiveRun:
    """The state of a run, updated from its directory.

    Args:
        path: The run directory.
        now: Function that returns the seconds of a monotonic clock.
    """

    def __init__(self, path: str, now: Any = time.monotonic) -> None:
        self.path, self._now = path, now
        self._reset({})

    def _reset(self, manifest: dict[str, Any]) -> None:
        """Start over with a manifest, and forget everything seen of the run."""
        self._manifest = manifest
        self._steps, self._log = LiveSteps(self.path), Log(self.path)
        self._workers: Workers | None = None
        self._seen_s = self._now()  # time at which the last new record was seen
        self._over_s: float | None = None

    def update(self) -> Picture:
        """Read the data recorded since the last update, and return the current picture of the run.

        Raises:
            OSError: The directory no longer exists, or cannot be read.
        """
        os.stat(self.path)
        manifest = directory.read_manifest(self.path)
        if manifest and self._manifest and manifest.get("clocks") != self._manifest.get("clocks"):
            self._reset(manifest)  # another run has replaced this one (--force)
        self._manifest = manifest or self._manifest
        if self._is_complete():
            return of_summary(directory.read_summary(self.path) or {})
        is_local = is_here(self._manifest.get("host"))
        if self._steps.update(os.cpu_count() if is_local else None):
            self._seen_s = self._now()
        self._log.update()
        return self._picture(is_local)

    def _is_complete(self) -> bool:
        """True if the summary is complete, or nothing more is expected to be added to it.

        The steps are added after the end of a run.
        """
        if self._manifest.get("ended", "running") == "running":
            self._over_s = None
            return False
        summary = directory.read_summary(self.path)
        if summary is None:
            return False
        if summary.get("steps") is not None:
            return True
        # The run has ended, but its summary has no steps: another process is still computing them,
        # or there are none.
        self._over_s = self._over_s if self._over_s is not None else self._now()
        manifest = {**self._manifest, "ended": "running"}
        is_at_it = goes_on(manifest) if is_here(manifest.get("host")) else True
        return not is_at_it or self._now() - self._over_s > COMPLETED_WITHIN_S

    def _picture(self, is_local: bool) -> Picture:
        manifest = self._manifest
        picture = Picture(title=title_of(manifest.get("command") or []))
        is_running = self._goes_on()
        self._steps.fill(picture)
        picture.elapsed_s = self._elapsed_s(is_local and is_running)
        rate_names = {rate.name for rate in picture.rates}
        picture.numbers = [
            _number(row) for row in self._log.rows.values() if row.key not in rate_names
        ]
        picture.progress = [*picture.progress, *self._log.bars()]
        picture.devices = list(devices(self._steps.window.counters))
        if is_running and is_local and picture.workers:
            self._workers = self._workers or Workers(int(manifest["pid"]))
            picture.worker_shares = self._workers.sample()
        picture.state, picture.is_over = self._state(is_running)
        picture.warnings = list(self._warnings(is_running))
        return picture

    def _goes_on(self) -> bool:
        """True if the run is still running.

        A script that records without voirkit's runner has no manifest. It counts as running if one
        of its processes runs, as far as this host can know.
        """
        if self._manifest:
            return goes_on(self._manifest)
        processes = self._steps.processes()
        return not processes or any(map(_may_run, processes))

    def _state(self, is_running: bool) -> tuple[str, bool]:
        how = self._manifest.get("ended", "running")
        if how != "running":
            return (
                f"{ended(how, self._manifest.get('exit_code'))}; its summary is being made",
                False,
            )
        return ("running", False) if is_running else (ended("killed", None), True)

    def _elapsed_s(self, is_local: bool) -> float | None:
        """Return the seconds since the run began; None if unknown.

        With ``is_local``, this host's clock is used. Otherwise it is the time of the last record
        plus, while the run is running, the time since that record was seen.
        """
        start_ns = Moments(self._manifest).begun
        if not isinstance(start_ns, int):
            return None
        if is_local:
            return max((time.perf_counter_ns() - start_ns) * 1e-9, 0.0)
        last_ns = self._steps.last_ns(str(self._manifest.get("host")))
        since_s = self._now() - self._seen_s if self._goes_on() else 0.0
        return None if last_ns is None else max((last_ns - start_ns) * 1e-9 + since_s, 0.0)

    def _warnings(self, is_running: bool) -> list[str]:
        warnings: list[str] = []
        for instrument in installed_instruments():
            if instrument.live and any(
                os.path.isdir(os.path.join(self.path, folder)) for folder in instrument.folders
            ):
                warnings += resolve(instrument.live)(self.path)
        silent = self._now() - self._seen_s
        if is_running and silent > SILENT_S:
            doubt = ""
            if not is_here(self._manifest.get("host")):
                doubt = "; whether it still runs is not known here"
            warnings.append(f"nothing has been recorded for {silent:.0f} s{doubt}")
        for logged in self._log.rows.values():
            if logged.key == "loss" and logged.values and logged.values[-1] != logged.values[-1]:
                warnings.append("the loss is nan")
        if self._steps.has_dropped():
            warnings.append(
                "records were dropped: the trace is at its limit (--trace-limit), or cannot be"
                " written"
            )
        return warnings
