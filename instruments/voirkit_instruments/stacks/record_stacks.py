"""Takes the stacks of a run from its beginning to its end, and leaves beside them what is needed to read them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from voirkit.runs.directory import write_json
from voirkit.runs.ranks import rank_and_world_size
from voirkit.trace import recorder
from voirkit_instruments.detached import Beside, CanNotSample, refusal
from voirkit_instruments.stacks import FLAME_FOLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit_instruments.stacks.record_sampler import Sampler

_ENDS_S = 20.0


class Taker:
    """What takes the stacks of this process and of those below it.

    Args:
        run_dir: The run directory; its folder ``flame`` gets the files.
        rate_hz: Times a second.
        gil: Only of threads that hold the GIL.
        native: C's frames too.
        most_bytes: What the files may take.
        warn: Told what is not possible, and what to do.
    """

    def __init__(self, run_dir: str, rate_hz: int, gil: bool, native: bool, most_bytes: int, warn: Callable[[str], None]) -> None:
        self._folder, self._rate_hz, self._gil, self._native = os.path.join(run_dir, FLAME_FOLDER), rate_hz, gil, native
        self._most_bytes, self._warn = most_bytes, warn
        self._pid = os.getpid()
        self._stem = ""
        self._beside: Beside | None = None
        self._sampler: Sampler | None = None
        self._taken: dict[str, Any] = {}

    def start(self, strace_comes: bool) -> None:
        """Begin; if that is not possible it is said why, and the rest goes on.

        Args:
            strace_comes: strace is about to trace this process, so that py-spy can not.
        """
        rank, host = rank_and_world_size()[0], os.uname().nodename if hasattr(os, "uname") else "localhost"
        self._stem = os.path.join(self._folder, f"{host}-r{rank}-{self._pid}")
        self._taken = {
            "schema": 1, "rate_hz": self._rate_hz, "gil": self._gil, "native": self._native, "rank": rank, "host": host, "pid": self._pid,
            "began_ns": recorder.now(), "began_time_ns": time.time_ns(), "ended_ns": None, "ended": False, "took_s": None,
        }  # fmt: skip
        try:
            os.makedirs(self._folder, exist_ok=True)
            try:
                self._attach(strace_comes)
            except CanNotSample as exc:
                self._sample(exc)
        except OSError as exc:
            self._warn(f"--flame: {exc}.\n  The run goes on without it.")
            return
        self._taken["attached_ns"] = recorder.now()
        # Something of the run is in its trace, also of one that trains nothing: it is completed like any other.
        recorder.mark(recorder.name("flame", "taking", kind="mark"), self._taken["began_ns"])
        self._write()

    def _attach(self, strace_comes: bool) -> None:
        """Have py-spy take them."""
        if not sys.platform.startswith("linux"):
            raise CanNotSample("py-spy is attached on Linux alone.")
        if strace_comes:
            raise CanNotSample("strace, which --syscalls uses, traces this process, and there can be one tracer only.")
        from voirkit_instruments.stacks import record_native_spy as native_spy
        from voirkit_instruments.stacks import record_py_spy as flame_spy

        if self._pid in native_spy.attached:
            raise CanNotSample("py-spy samples for --native, as perf cannot, and there can be one tracer only.\nLeave --native out.")
        taking = flame_spy.attach(self._pid, self._stem, self._rate_hz, self._most_bytes, self._gil, self._native)
        self._beside = taking.beside
        self._taken.update(tool="py-spy", version=taking.version, by_clock=taking.by_clock, taker_pid=taking.beside.pid)

    def _sample(self, because: CanNotSample) -> None:
        """Have a thread take them."""
        from voirkit_instruments.stacks.record_sampler import Sampler

        self._sampler = Sampler(f"{self._stem}.sampled", self._rate_hz, self._most_bytes, self._warn)
        self._sampler.start()
        self._taken.update(tool="sampler", version=None, by_clock=True, taker_pid=None, gil=False, native=False)
        instead = "A thread of the program takes them instead: of this process alone, without loader workers and C."
        self._warn(refusal("--flame: ", because, instead))

    def stop(self) -> None:
        """The program has ended: take no more, and wait until the files are whole."""
        if os.getpid() != self._pid or "tool" not in self._taken:
            return
        self._taken.update(ended=True, ended_ns=recorder.now())
        if self._sampler is not None:
            self._sampler.stop()
            self._taken.update(cut=self._sampler.cut, late=self._sampler.late)
            self._took(self._sampler.took_s)
        if self._beside is None:
            return
        if self._beside.ended(0):
            said = [line for line in self._beside.words().splitlines() if line != "ready"]
            why = said[-1] if said else "what runs py-spy was killed"
            self._taken["cut"] = why
            self._warn(f"--flame: no stacks were taken from some time on, before the run ended ({why}).")
        self._beside.interrupt()
        if not self._beside.ended(_ENDS_S):
            self._warn("--flame: py-spy does not end; voirkit report reads what it took when it has.")
        self._took(_took_s(f"{self._stem}.chunks"))

    def _took(self, took_s: float | None) -> None:
        """What it cost is part of the overhead."""
        self._taken["took_s"] = took_s
        recorder.timed(0, int((took_s or 0.0) * 1e9), "processes")
        if self._beside is not None:  # py-spy stops the program for each stack, which costs that as much (0.8 times, measured)
            recorder.timed(0, int((took_s or 0.0) * 1e9), "sampling")
        self._write()

    def _write(self) -> None:
        try:
            write_json(f"{self._stem}.json", self._taken)
        except OSError as exc:
            self._warn(f"--flame: {self._stem}.json cannot be written ({exc.strerror}).")


def _took_s(path: str) -> float | None:
    """How long py-spy and what runs it were on a processor, as the last note says."""
    try:
        with open(path, encoding="utf-8") as notes:
            return float(json.loads(notes.readlines()[-1])["took_s"])
    except (OSError, ValueError, LookupError):
        return None
