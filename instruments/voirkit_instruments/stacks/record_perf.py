"""perf as the sampler: what it can count here, and how it is told to sample a process and all that it starts. Checked with perf 6.1.

Must never change the program: perf is attached from outside, before the script's work begins, and reads the processor's clock alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile

from voirkit_instruments.detached import Attached, CannotAttach, DetachedProcess, run_to_end, start_detached, wait_until_ready

TIME = "cpu-clock"  # always counted: its numbers are nanoseconds on a processor
_COUNTERS = ("cycles", "instructions", "cache-misses")
_PARANOID = "/proc/sys/kernel/perf_event_paranoid"
_INSTALL = """Install it (Debian: apt-get install linux-perf; Ubuntu: linux-tools-generic; Fedora: dnf install perf), or,
with less precision, py-spy: pip install 'voirkit[native]'."""
_PAGES = "32"  # 128 kB for each processor, 5 s of samples; what a user may lock is 516 kB in all


def attach(pid: int, stem: str, rate_hz: int, most_bytes: int) -> Attached:
    """Have perf sample a process, its threads, and whatever it starts from now on; when this returns it does.

    Args:
        pid: The process.
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
        try:
            process = start_detached(command, f"{stem}.log", environment)
        except OSError as exc:
            raise CannotAttach(f"{exc}.") from None
        _enable(process, control, answer)
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


def _enable(process: DetachedProcess, control: str, answer: str) -> None:
    """Tell perf to begin, and wait until it has."""
    reader, writer = os.open(answer, os.O_RDONLY | os.O_NONBLOCK), os.open(control, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(writer, b"enable\n")
        wait_until_ready(process, lambda: _answered(reader), lambda output: CannotAttach(_why(output)), every_s=0.005)
    finally:
        os.close(reader)
        os.close(writer)


def _answered(reader: int) -> bool:
    try:
        return os.read(reader, 64).startswith(b"ack")
    except BlockingIOError:
        return False


def _why(output: str) -> str:
    """Why perf ended, from what it printed, and what to do."""
    level = _paranoid()
    if "max-size" in output or "control" in output or "Usage:" in output:
        return f"this perf is too old; 5.10 or newer is needed.\n{_first(output)}"
    if "mmap_pages" in output or "mlock" in output:
        return "this user may not lock the memory that perf needs.\nsysctl kernel.perf_event_mlock_kb=65536 (as root), or run as root."
    if os.geteuid() and level is not None and level > 2:
        return (
            f"only root may sample here (kernel.perf_event_paranoid is {level}).\n"
            "sysctl kernel.perf_event_paranoid=1 (as root; 2 leaves the kernel's functions out), or run as root."
        )
    return (
        f"perf could not begin: {_first(output)}\n"
        "In a container it needs the capability PERFMON and a seccomp profile that lets perf_event_open pass\n"
        "(docker run --cap-add PERFMON, or --security-opt seccomp=unconfined)."
    )


def _first(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("Events ")]
    return lines[0][:200] if lines else "it printed nothing."


def _paranoid() -> int | None:
    try:
        with open(_PARANOID, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
