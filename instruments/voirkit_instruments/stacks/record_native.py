"""``--native[=HERTZ]``: samples the C functions and libraries in which each loader operation and
each phase of training spends its time.

A profiler beside the program samples it from outside. The samples are joined with the trace when
the run has ended (docs/flame.md).

perf is attached before the script's work begins, and samples by the CPU clock and the available
hardware counters. If perf cannot be used, py-spy is. Checked with perf 6.1.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from voirkit.instrument import instrument_definition, once
from voirkit.runs.directory import write_json
from voirkit.runs.manifest import rank_and_world_size
from voirkit.trace import recorder
from voirkit_instruments.detached import (
    Attached,
    CannotAttach,
    attach_program,
    first_line,
    refusal,
    run_to_end,
)
from voirkit_instruments.stacks import NATIVE_FOLDER, NATIVE_HZ, record_py_spy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer

TIME = "cpu-clock"  # perf's event that is always counted: nanoseconds of CPU time
_COUNTERS = ("cycles", "instructions", "cache-misses")
_PARANOID = "/proc/sys/kernel/perf_event_paranoid"
_INSTALL = (
    "Install it (Debian: apt-get install linux-perf; Ubuntu: linux-tools-generic; Fedora: dnf"
    " install perf), or,\nwith less precision, py-spy: pip install 'voirkit[native]'."
)
_PAGES = "32"  # perf's buffer: 128 kB per processor, 5 s of samples; a user may lock 516 kB in all


def attach_perf(pid: int, stem: str, rate_hz: int, most_bytes: int) -> Attached:
    """Have perf sample a process, its threads, and all processes that it starts from now on.
    Sampling has begun when this returns.

    Args:
        stem: The path of perf's files, without their suffixes.
        rate_hz: Samples per second of CPU time.
        most_bytes: The largest size of the file; perf stops there.

    Raises:
        CannotAttach: perf cannot sample; the message says what to do.
    """
    perf = shutil.which("perf")
    if perf is None:
        raise CannotAttach("perf is not installed.\n" + _INSTALL)
    environment = {**os.environ, "LC_ALL": "C", "PERF_CONFIG": os.devnull}
    version, events = _probe(perf, environment)
    with tempfile.TemporaryDirectory(prefix="voirkit-") as folder:
        control = os.path.join(folder, "control")
        answer = os.path.join(folder, "answer")
        os.mkfifo(control)
        os.mkfifo(answer)
        command = [
            perf,
            "record",
            "--no-buildid",
            "--no-buildid-cache",
            "--clockid",
            "mono",
            "--freq",
            str(rate_hz),
            *_event_words(events),
            "--mmap-pages",
            _PAGES,
            "--max-size",
            f"{max(most_bytes >> 10, 1)}K",
            "--delay",
            "-1",
            "--control",
            f"fifo:{control},{answer}",
            "--output",
            f"{stem}.data",
            "--pid",
            str(pid),
        ]
        reader = os.open(answer, os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(control, os.O_RDWR | os.O_NONBLOCK)
        try:
            # perf begins to sample when it reads this, and then answers.
            os.write(writer, b"enable\n")
            process = attach_program(
                command,
                f"{stem}.log",
                environment,
                lambda _: _has_answered(reader),
                _refuse,
                every_s=0.005,
            )
        finally:
            os.close(reader)
            os.close(writer)
    return Attached("perf", process, version, perf, rate_hz)


def _event_words(events: Iterable[str]) -> list[str]:
    return [word for event in events for word in ("--event", event)]


def _probe(perf: str, environment: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return (version, events) of perf: the events are the CPU clock and the available hardware
    counters."""
    words = [perf, "stat", "--field-separator", ",", *_event_words(_COUNTERS), "--", "true"]
    try:
        version = run_to_end([perf, "--version"], environment).stdout.decode(errors="replace")
        output = run_to_end(words, environment).stdout.decode(errors="replace")
    except OSError as exc:
        raise CannotAttach(f"perf cannot be run ({exc.strerror}).") from None
    available = set()
    for line in output.splitlines():
        count, _, event, *_ = [*line.split(","), "", "", ""]
        if count.isdigit() and int(count):
            available.add(event.partition(":")[0])
    counters = [event for event in _COUNTERS if event in available]
    return version.strip().removeprefix("perf version "), (TIME, *counters)


def _has_answered(reader: int) -> bool:
    try:
        return os.read(reader, 64).startswith(b"ack")
    except BlockingIOError:
        return False


def _refuse(output: str) -> CannotAttach:
    level = _paranoid()
    lines = [line for line in output.splitlines() if not line.startswith("Events ")]
    first = first_line("\n".join(lines))
    if "max-size" in output or "control" in output or "Usage:" in output:
        why = f"this perf is too old; 5.10 or newer is needed.\n{first}"
    elif "mmap_pages" in output or "mlock" in output:
        why = (
            "this user may not lock the memory that perf needs.\nsysctl"
            " kernel.perf_event_mlock_kb=65536 (as root), or run as root."
        )
    elif os.geteuid() and level is not None and level > 2:
        why = (
            f"only root may sample here (kernel.perf_event_paranoid is {level}).\nsysctl"
            " kernel.perf_event_paranoid=1 (as root; 2 leaves the kernel's functions out), or run"
            " as root."
        )
    else:
        why = (
            f"perf could not begin: {first}\nIn a container it needs the capability PERFMON and a"
            " seccomp profile that lets perf_event_open pass\n(docker run --cap-add PERFMON, or"
            " --security-opt seccomp=unconfined)."
        )
    return CannotAttach(why)


def _paranoid() -> int | None:
    try:
        with open(_PARANOID, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


_ENDS_S = 60.0

# For each sample the kernel interrupts the program: for 28 us on hardware, 130 us in a virtual
# machine, 230 us in one whose processors have other work.
_SAMPLE_NS = 130_000


class NativeSampler:
    """Profiler that samples this process.

    Args:
        run_dir: The run directory; its folder ``native`` gets the profiler's files.
        rate_hz: Samples per second of CPU time.
        most_bytes: The largest size of the files.
    """

    def __init__(
        self, run_dir: str, rate_hz: int, most_bytes: int, warn: Callable[[str], None]
    ) -> None:
        self._folder = os.path.join(run_dir, NATIVE_FOLDER)
        self._rate_hz = rate_hz
        self._most_bytes = most_bytes
        self._warn = warn
        self._sampling: Attached | None = None
        self._stem = ""
        self._record: dict[str, Any] = {}
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin sampling. If that is not possible, a warning says why, and the run goes on."""
        if not sys.platform.startswith("linux"):
            self._warn("--native: it works on Linux alone.\n  The run goes on without it.")
            return
        rank = rank_and_world_size()[0]
        host = os.uname().nodename
        stem = os.path.join(self._folder, f"{host}-r{rank}-{self._pid}")
        try:
            os.makedirs(self._folder, exist_ok=True)
            sampling = self._attach(stem)
        except CannotAttach as exc:
            self._warn(refusal("--native: ", exc, "The run goes on without it."))
            return
        except OSError as exc:
            self._warn(f"--native: {exc}.\n  The run goes on without it.")
            return
        self._sampling = sampling
        self._stem = stem
        self._record = {
            "schema": 1,
            "tool": sampling.tool,
            "version": sampling.version,
            "frequency_hz": sampling.rate_hz,
            "rank": rank,
            "host": host,
            "pid": self._pid,
            "profiler_pid": sampling.process.pid,
            "began_ns": recorder.now(),
            "began_time_ns": time.time_ns(),
            "ended_ns": None,
            "ended": False,
        }
        # Without this record, the trace of a run that trains nothing would be empty, and would not
        # be completed like any other.
        recorder.mark(recorder.name("native", "sampling", kind="mark"), self._record["began_ns"])
        self._write()

    def _attach(self, stem: str) -> Attached:
        try:
            return attach_perf(self._pid, stem, self._rate_hz, self._most_bytes)
        except CannotAttach as exc:
            if record_py_spy.program() is None:
                raise
            sampling = record_py_spy.attach_native(self._pid, stem, self._rate_hz, exc)
            instead = (
                "py-spy samples instead: without the kernel, without times, and it stops the"
                " program for each sample."
            )
            self._warn(refusal("--native: ", exc, instead))
            return sampling

    def stop(self) -> None:
        """End sampling at the end of the program, and report the profiler's CPU time as
        overhead."""
        if self._sampling is None or os.getpid() != self._pid:
            return
        profiler = self._sampling.process
        self._record.update(ended=True, ended_ns=recorder.now())
        if profiler.has_ended(0):
            self._record["ended_ns"] = None  # unknown; the last sample shows when sampling ended
            why = _why_ended(profiler.read_output())
            self._warn(f"--native: sampling ended before the run did ({why}).")
        took_s = profiler.cpu_s()
        recorder.timed(0, int(took_s * 1e9), "processes")
        if self._sampling.tool == "perf":
            processor_s = sum(os.times()[:4])
            recorder.timed(0, int(processor_s * self._rate_hz * _SAMPLE_NS), "sampling")
        self._record["took_s"] = took_s
        profiler.interrupt()

    def wait(self) -> None:
        """Wait until the profiler's file is complete."""
        if self._sampling is None or os.getpid() != self._pid:
            return
        if not self._sampling.process.has_ended(_ENDS_S):
            self._warn(
                f"--native: {self._sampling.tool} does not end; voirkit report reads what it"
                " sampled when it has."
            )
        self._write()

    def _write(self) -> None:
        try:
            write_json(f"{self._stem}.json", self._record)
        except OSError as exc:
            self._warn(f"--native: {self._stem}.json cannot be written ({exc.strerror}).")


def _why_ended(output: str) -> str:
    lines = [line.strip("[] ") for line in output.splitlines()]
    for line in lines:
        if "limit" in line:
            return f"{line}; --trace-limit"
    return lines[-1] if lines else "it printed nothing"


@instrument_definition
@once("--native")
def native(ov: Overseer, rate_hz: int = NATIVE_HZ) -> Iterator[Phase | PhaseWithPriority]:
    """Sample the C functions that run, from the beginning of the script's work to its end.
    ``rate_hz`` is the number of samples per second of CPU time."""
    yield ov.phases.load_script
    if ov.run_dir is None:
        return  # there is no run directory, and a warning has said why
    sampler = NativeSampler(ov.run_dir, rate_hz, ov.options.trace_limit, ov.warn)
    sampler.start()
    try:
        yield ov.phases.run_script(throw=False)
    finally:
        sampler.stop()
    yield ov.phases.finalize
    sampler.wait()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    return native(options["native"])(ov)
