"""``--native[=HERTZ]``: which C functions and libraries each loader operation and each phase of training spends its time in.

A profiler beside the program samples it from outside; what it took is joined with the trace when the run has ended (docs/native.md).

perf is attached from outside, before the script's work begins, and reads the processor's clock alone; where it cannot, py-spy is. Checked
with perf 6.1.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from voirkit.instrument import instrument_definition, once
from voirkit.runs.directory import write_json
from voirkit.runs.manifest import rank_and_world_size
from voirkit.trace import recorder
from voirkit_instruments.detached import Attached, CannotAttach, attach_program, first_line, refusal, run_to_end
from voirkit_instruments.stacks import NATIVE_FOLDER, NATIVE_HZ, record_py_spy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer

TIME = "cpu-clock"  # always counted: its numbers are nanoseconds on a processor
_COUNTERS = ("cycles", "instructions", "cache-misses")
_PARANOID = "/proc/sys/kernel/perf_event_paranoid"
_INSTALL = """Install it (Debian: apt-get install linux-perf; Ubuntu: linux-tools-generic; Fedora: dnf install perf), or,
with less precision, py-spy: pip install 'voirkit[native]'."""
_PAGES = "32"  # 128 kB for each processor, 5 s of samples; what a user may lock is 516 kB in all


def attach_perf(pid: int, stem: str, rate_hz: int, most_bytes: int) -> Attached:
    """Have perf sample a process, its threads, and whatever it starts from now on; when this returns it does.

    Args:
        stem: The path of the files that it writes, without their endings.
        rate_hz: Samples a second of processor time.
        most_bytes: What the file may take; perf stops there.

    Raises:
        CannotAttach: With what to do.
    """
    perf = shutil.which("perf")
    if perf is None:
        raise CannotAttach("perf is not installed.\n" + _INSTALL)
    environment = {**os.environ, "LC_ALL": "C", "PERF_CONFIG": os.devnull}
    version, events = _probe(perf, environment)
    with tempfile.TemporaryDirectory(prefix="voirkit-") as folder:
        control, answer = os.path.join(folder, "control"), os.path.join(folder, "answer")
        os.mkfifo(control)
        os.mkfifo(answer)
        most = f"{max(most_bytes >> 10, 1)}K"
        command = [
            perf, "record", "--no-buildid", "--no-buildid-cache", "--clockid", "mono", "--freq", str(rate_hz),
            *(word for event in events for word in ("--event", event)), "--mmap-pages", _PAGES, "--max-size", most,
            "--delay", "-1", "--control", f"fifo:{control},{answer}", "--output", f"{stem}.data", "--pid", str(pid),
        ]  # fmt: skip
        reader, writer = os.open(answer, os.O_RDONLY | os.O_NONBLOCK), os.open(control, os.O_RDWR | os.O_NONBLOCK)
        try:
            os.write(writer, b"enable\n")  # it begins when it reads this, and answers when it has begun
            process = attach_program(command, f"{stem}.log", environment, lambda _: _has_answered(reader), _refuse, every_s=0.005)
        finally:
            os.close(reader)
            os.close(writer)
    return Attached("perf", process, version, perf, rate_hz)


def _probe(perf: str, environment: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    """(version, events): the clock, and those of the hardware counters that there are."""
    words = [perf, "stat", "--field-separator", ",", *(word for event in _COUNTERS for word in ("--event", event)), "--", "true"]
    try:
        version = run_to_end([perf, "--version"], environment).stdout.decode(errors="replace").strip().removeprefix("perf version ")
        output = run_to_end(words, environment).stdout.decode(errors="replace")
    except OSError as exc:
        raise CannotAttach(f"perf cannot be run ({exc.strerror}).") from None
    rows = [line.split(",") for line in output.splitlines()]
    counted = {row[2].partition(":")[0] for row in rows if len(row) > 2 and row[0].isdigit() and int(row[0])}
    return version, (TIME, *(event for event in _COUNTERS if event in counted))


def _has_answered(reader: int) -> bool:
    try:
        return os.read(reader, 64).startswith(b"ack")
    except BlockingIOError:
        return False


def _refuse(output: str) -> CannotAttach:
    level = _paranoid()
    first = first_line("\n".join(line for line in output.splitlines() if not line.startswith("Events ")))
    if "max-size" in output or "control" in output or "Usage:" in output:
        why = f"this perf is too old; 5.10 or newer is needed.\n{first}"
    elif "mmap_pages" in output or "mlock" in output:
        why = "this user may not lock the memory that perf needs.\nsysctl kernel.perf_event_mlock_kb=65536 (as root), or run as root."
    elif os.geteuid() and level is not None and level > 2:
        why = (
            f"only root may sample here (kernel.perf_event_paranoid is {level}).\n"
            "sysctl kernel.perf_event_paranoid=1 (as root; 2 leaves the kernel's functions out), or run as root."
        )
    else:
        why = (
            f"perf could not begin: {first}\n"
            "In a container it needs the capability PERFMON and a seccomp profile that lets perf_event_open pass\n"
            "(docker run --cap-add PERFMON, or --security-opt seccomp=unconfined)."
        )
    return CannotAttach(why)


def _paranoid() -> int | None:
    try:
        with open(_PARANOID, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


_ENDS_S = 60.0

# The kernel takes a sample inside of the program: 28 us on hardware, 130 in a virtual machine, 230 in one whose processors have other work.
_SAMPLE_NS = 130_000


class NativeSampler:
    """A profiler on this process.

    Args:
        run_dir: The run directory; its folder ``native`` gets the profiler's files.
        rate_hz: Samples a second of processor time.
        most_bytes: What they may take.
    """

    def __init__(self, run_dir: str, rate_hz: int, most_bytes: int, warn: Callable[[str], None]) -> None:
        self._folder, self._rate_hz, self._most_bytes, self._warn = os.path.join(run_dir, NATIVE_FOLDER), rate_hz, most_bytes, warn
        self._sampling: Attached | None = None
        self._stem = ""
        self._record: dict[str, Any] = {}
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin; if that is not possible a warning says why, and the run goes on."""
        if not sys.platform.startswith("linux"):
            self._warn("--native: it works on Linux alone.\n  The run goes on without it.")
            return
        rank, host = rank_and_world_size()[0], os.uname().nodename
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
        self._sampling, self._stem = sampling, stem
        self._record = {
            "schema": 1, "tool": sampling.tool, "version": sampling.version,
            "frequency_hz": sampling.rate_hz, "rank": rank, "host": host, "pid": self._pid, "profiler_pid": sampling.process.pid,
            "began_ns": recorder.now(), "began_time_ns": time.time_ns(), "ended_ns": None, "ended": False,
        }  # fmt: skip
        # Something of the run is in its trace, also of one that trains nothing: it is completed like any other.
        recorder.mark(recorder.name("native", "sampling", kind="mark"), self._record["began_ns"])
        self._write()

    def _attach(self, stem: str) -> Attached:
        try:
            return attach_perf(self._pid, stem, self._rate_hz, self._most_bytes)
        except CannotAttach as exc:
            if record_py_spy.program() is None:
                raise
            sampling = record_py_spy.attach_native(self._pid, stem, self._rate_hz, exc)
            instead = "py-spy samples instead: without the kernel, without times, and it stops the program for each sample."
            self._warn(refusal("--native: ", exc, instead))
            return sampling

    def stop(self) -> None:
        """The program has ended: sample no more. What the profiler itself took is part of the overhead."""
        if self._sampling is None or os.getpid() != self._pid:
            return
        profiler = self._sampling.process
        self._record.update(ended=True, ended_ns=recorder.now())
        if profiler.has_ended(0):
            self._record["ended_ns"] = None  # its last sample tells
            self._warn(f"--native: sampling ended before the run did ({_why_ended(profiler.read_output())}).")
        took_s = profiler.cpu_s()
        recorder.timed(0, int(took_s * 1e9), "processes")
        if self._sampling.tool == "perf":
            recorder.timed(0, int(sum(os.times()[:4]) * self._rate_hz * _SAMPLE_NS), "sampling")
        self._record["took_s"] = took_s
        profiler.interrupt()

    def wait(self) -> None:
        """Wait until the profiler's file is whole."""
        if self._sampling is None or os.getpid() != self._pid:
            return
        if not self._sampling.process.has_ended(_ENDS_S):
            self._warn(f"--native: {self._sampling.tool} does not end; voirkit report reads what it sampled when it has.")
        self._write()

    def _write(self) -> None:
        try:
            write_json(f"{self._stem}.json", self._record)
        except OSError as exc:
            self._warn(f"--native: {self._stem}.json cannot be written ({exc.strerror}).")


def _why_ended(output: str) -> str:
    lines = [line.strip("[] ") for line in output.splitlines()]
    at_limit = [line for line in lines if "limit" in line]
    return f"{at_limit[0]}; --trace-limit" if at_limit else (lines or ["it printed nothing"])[-1]


@instrument_definition
@once("--native")
def native(ov: Overseer, rate_hz: int = NATIVE_HZ) -> Iterator[Phase | PhaseWithPriority]:
    """Sample what the processor does, from the beginning of the script's work to its end. ``rate_hz``: samples a second of processor
    time."""
    yield ov.phases.load_script
    if ov.run_dir is None:
        return  # a warning has named the reason
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
