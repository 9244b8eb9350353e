"""Completes the record of a run at its end, in another process, so that the program's process does
not import the modules needed for that.

An interruption loses nothing: the trace segments stay, and are read when the run is opened.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Program text for `python -c`. Not `-m`, with which Python looks for modules in the current folder
# first, where the program may have a numpy.py.
_PYTHON = (
    "import sys; sys.path[0] = sys.argv.pop(1); from {} import main; sys.exit(main(sys.argv[1:]))"
)
# The same for a process that the user waits for. Without garbage collection and Python's cleanup at
# exit, the process takes 15 % less time.
_SHORT = (
    "import gc, os, sys; gc.disable(); sys.path[0] = sys.argv.pop(1); from {} import main; "
    "code = main(sys.argv[1:]); sys.stdout.flush(); os._exit(code)"
)


def _trace_files(path: str) -> list[str]:
    try:
        return os.listdir(os.path.join(path, "trace"))
    except OSError:
        return []


def _segments(path: str) -> list[str]:
    return [name for name in _trace_files(path) if name.endswith(".seg")]


def has_segments_of_others(path: str) -> bool:
    """True if a run directory contains trace segments of processes other than this one."""
    own_pid = str(os.getpid())
    for name in _segments(path):
        stem = name.rpartition("-")[0]
        pid = stem.rpartition("-")[2].partition(".")[0]
        if pid != own_pid:
            return True
    return False


def records_of_others(path: str) -> dict[str, int]:
    """Return a dict from file name to the number of records, for each segment of processes other
    than this one."""
    suffix = f"-{os.getpid()}"
    counts = {}
    for name in _segments(path):
        stem = name.rpartition("-")[0].partition(".")[0]
        if not stem.endswith(suffix):
            counts[name] = _count_records(os.path.join(path, "trace", name))
    return counts


def _count_records(path: str) -> int:
    """Return the number of records in a segment, whose file is longer than the written part."""
    from voirkit.trace.layout import HEADER_BYTES, RECORD_BYTES

    try:
        with open(path, "rb") as segment:
            fewest = 0
            most = max(0, os.fstat(segment.fileno()).st_size - HEADER_BYTES) // RECORD_BYTES
            while fewest < most:
                middle = (fewest + most) // 2
                # the last four bytes of a record are 0 until it is written
                segment.seek(HEADER_BYTES + (middle + 1) * RECORD_BYTES - 4)
                if any(segment.read(4)):
                    fewest = middle + 1
                else:
                    most = middle
            return fewest
    except OSError:
        return 0


def has_records(path: str) -> bool:
    """True if a run directory contains records: in segments or, if the run has been read already,
    in compacted files."""
    return any(name.endswith(".seg") or name.startswith("kind=") for name in _trace_files(path))


def finish(
    path: str,
    rank: int,
    warn: Callable[[str], None],
    draw: tuple[int, bool, str] | None = None,
    compacts: bool = False,
) -> tuple[dict[str, Any] | None, str]:
    """Have another process add steps and verdict to the record of a rank, and wait for it.

    Args:
        path: The run directory. Its summary must contain all that this process knows.
        rank: The rank of this process.
        warn: Called with a message if that fails; the segments are still there then.
        draw: If a report for the terminal is wanted: its width, whether it has colours, and the
            path of the run directory to show in it.
        compacts: Whether to compact the segments into Parquet files now, instead of when the run is
            first read.

    Returns:
        The completed summary (None if that failed), and the report as text (empty if not wanted).
    """
    words = ["--rank", str(rank), "--pid", str(os.getpid())]
    if compacts:
        words.append("--compact")
    if draw is not None:
        words += ["--draw", str(draw[0]), *(["--colour"] if draw[1] else []), "--shown", draw[2]]
    why, table = _run("voirkit.report.finish", path, *words, program=_SHORT)
    if why:
        warn(f"the trace is kept as it was written ({why}); voirkit report {path} reads it.")
    from voirkit.runs.directory import read_summary

    return read_summary(path), table


def compact(path: str, rank: int) -> None:
    """Have another process compact what this process has recorded after the run. If that fails, it
    is done when the run is opened."""
    _run("voirkit.runs.compaction", path, "--rank", str(rank), "--ended", str(os.getpid()))


def export(path: str, target: str) -> str:
    """Write the trace of a run to a file in DFTracer's format. Returns an error message; empty if
    it succeeded."""
    return _run("voirkit.cli", "export", path, "--format", "pfw", "--output", target)[0]


def page(path: str) -> str:
    """Write a run's HTML report into its directory. Returns an error message; empty if it
    succeeded."""
    return _run("voirkit.cli", "report", "--html=", path)[0]


def markdown(path: str) -> tuple[str, str]:
    """Return an error message, empty on success, and the run's report as Markdown."""
    return _run("voirkit.cli", "report", "--markdown", path)


def _run(module: str, *words: str, program: str = _PYTHON) -> tuple[str, str]:
    """Run the main function of a module of voirkit in another process. Returns an error message,
    empty on success, and what the process printed."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("VOIRKIT_RUN_DIR", "DATA_FD")
    }
    # Limit numpy's BLAS library to one thread: by default it starts one for each processor, though
    # the process multiplies no matrices.
    environment.update(
        dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    )
    command = [sys.executable, "-c", program.format(module), _PACKAGE, *words]
    is_ours = False
    try:
        import signal
        import subprocess
        import threading

        # The program's SIGCHLD handler must not be called for a child that the program did not
        # start.
        handler = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
        is_ours = callable(handler) and threading.current_thread() is threading.main_thread()
        if is_ours:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # start_new_session: Ctrl-C in the terminal then reaches the program, but not this child.
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,
            env=environment,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        code, out, err = process.returncode, process.stdout, process.stderr
    except Exception as exc:
        # any exception: the program may have removed files, installed an audit hook, or replaced
        # subprocess.run
        return f"{type(exc).__name__}: {exc}", ""
    except KeyboardInterrupt:  # the user does not want to wait; the program's result stays the same
        return "interrupted", ""
    finally:
        if is_ours:
            signal.signal(signal.SIGCHLD, handler)
    if code:
        return (err.strip().splitlines() or [f"exit code {code}"])[-1], out
    return "", out


def discard(path: str) -> None:
    """Delete a run directory; files in it that are not voirkit's stay."""
    from voirkit.runs import directory

    try:
        directory.clear(path)
        os.rmdir(path)
    except OSError:
        pass  # the directory still contains files that are not voirkit's


def describe_dropped(dropped: dict[str, int]) -> list[str]:
    """Return a warning about spans that were not recorded; an empty list if all were."""
    if not dropped:
        return []
    n = sum(dropped.values())
    most = max(dropped, key=lambda name: dropped[name])
    return [
        f"{n} spans were not recorded, most of them {most}: the trace is at its limit"
        " (--trace-limit), or cannot be written."
    ]
