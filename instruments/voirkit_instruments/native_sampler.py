"""Samples a run from its beginning to its end, and leaves beside what was sampled what is needed to read it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from voirkit.runs.directory import NATIVE_FOLDER, write_json
from voirkit.runs.ranks import rank_and_world_size
from voirkit.trace import recorder
from voirkit_instruments.native_perf import CanNotSample, Sampling, attach

_ENDED_S = 60.0


class Sampler:
    """A profiler on this process.

    Args:
        run_dir: The run directory; its folder ``native`` gets the profiler's files.
        rate_hz: Samples a second of processor time.
        most_bytes: What they may take.
        warn: Told what is not possible, and what to do.
    """

    def __init__(self, run_dir: str, rate_hz: int, most_bytes: int, warn: Callable[[str], None]) -> None:
        self._folder, self._rate_hz, self._most_bytes, self._warn = os.path.join(run_dir, NATIVE_FOLDER), rate_hz, most_bytes, warn
        self._sampling: Sampling | None = None
        self._stem = ""
        self._taken: dict[str, Any] = {}
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin; if that is not possible it is said why, and the rest goes on."""
        try:
            self._start()
        except CanNotSample as exc:
            what, _, todo = str(exc).partition("\n")
            self._warn("\n  ".join([f"--native: {what}", *todo.splitlines(), "The run goes on without it."]))
        except OSError as exc:
            self._warn(f"--native: {exc}.\n  The run goes on without it.")

    def _start(self) -> None:
        if not sys.platform.startswith("linux"):
            raise CanNotSample("there is no perf but on Linux.")
        rank, host = rank_and_world_size()[0], os.uname().nodename
        os.makedirs(self._folder, exist_ok=True)
        stem = os.path.join(self._folder, f"{host}-r{rank}-{self._pid}")
        sampling = attach(self._pid, stem, self._rate_hz, self._most_bytes)
        self._sampling, self._stem = sampling, stem
        self._taken = {
            "schema": 1, "tool": "perf", "version": sampling.version, "perf": sampling.perf, "events": list(sampling.events),
            "frequency_hz": self._rate_hz, "rank": rank, "host": host, "pid": self._pid, "profiler_pid": sampling.beside.pid,
            "began_ns": recorder.now(), "began_time_ns": time.time_ns(), "ended_ns": None,
        }  # fmt: skip
        # Something of the run is in its trace, also of one that trains nothing: it is completed like any other.
        recorder.mark(recorder.name("native", "sampling", kind="mark"), self._taken["began_ns"])
        self._write()

    def stop(self) -> None:
        """The program has ended: sample no more. What the profiler itself took is part of voirkit's own cost."""
        if self._sampling is None or os.getpid() != self._pid:
            return
        profiler = self._sampling.beside
        self._taken["ended_ns"] = recorder.now()
        if profiler.ended(0):
            self._taken["ended_ns"] = None  # its last sample tells
            self._warn(f"--native: sampling ended before the run did: {profiler.words()[-200:] or 'perf said nothing'}")
        took_s = profiler.took_s()
        recorder.timed(0, int(took_s * 1e9))
        self._taken["took_s"] = took_s
        profiler.interrupt()

    def wait(self) -> None:
        """Wait until the profiler's file is whole."""
        if self._sampling is None or os.getpid() != self._pid:
            return
        if not self._sampling.beside.ended(_ENDED_S):
            self._warn("--native: perf does not end; what it sampled is read by voirkit report when it has.")
        self._write()

    def _write(self) -> None:
        try:
            write_json(f"{self._stem}.json", self._taken)
        except OSError as exc:
            self._warn(f"--native: {self._stem}.json can not be written ({exc.strerror}).")
