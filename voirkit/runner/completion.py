"""Completes the record of a run that ends, in another process: what that imports has no place in
the program's.

What is interrupted loses nothing: the segments stay, and whoever opens the run reads them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Not `-m`: the script's folder, where python would look first, may hold a numpy.py of its own.
_PYTHON = (
    "import sys; sys.path[0] = sys.argv.pop(1); from {} import main; sys.exit(main(sys.argv[1:]))"
)
# The user waits for this one: it neither looks for cycles in what it is about to drop, nor takes
# its modules apart at the end (15 %).
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
    """True if a run directory holds segments of other processes than this one."""
    own_pid = str(os.getpid())
    for name in _segments(path):
        stem = name.rpartition("-")[0]
        pid = stem.rpartition("-")[2].partition(".")[0]
        if pid != own_pid:
            return True
    return False


def records_of_others(path: str) -> dict[str, int]:
    """The number of records in each segment of other processes than this one, by its file."""
    suffix = f"-{os.getpid()}"
    counts = {}
    for name in _segments(path):
        stem = name.rpartition("-")[0].partition(".")[0]
        if not stem.endswith(suffix):
            counts[name] = _count_records(os.path.join(path, "trace", name))
    return counts


def _count_records(path: str) -> int:
    """The number of records in a segment, which is longer than what has been written."""
    from voirkit.trace.layout import HEADER_BYTES, RECORD_BYTES

    try:
        with open(path, "rb") as segment:
            fewest = 0
            most = max(0, os.fstat(segment.fileno()).st_size - HEADER_BYTES) // RECORD_BYTES
            while fewest < most:
                middle = (fewest + most) // 2
                # the record's last four bytes are 0 until it is there
                segment.seek(HEADER_BYTES + (middle + 1) * RECORD_BYTES - 4)
                if any(segment.read(4)):
                    fewest = middle + 1
                else:
                    most = middle
            return fewest
    except OSError:
        return 0


def has_records(path: str) -> bool:
    """Whether a run directory holds records, in segments or, if somebody has read it meanwhile,
    compacted."""
    return any(name.endswith(".seg") or name.startswith("kind=") for name in _trace_files(path))


def finish(
    path: str,
    rank: int,
    warn: Callable[[str], None],
    draw: tuple[int, bool, str] | None = None,
    compacts: bool = False,
) -> tuple[dict[str, Any] | None, str]:
    """Have the record of a rank completed by another process, and wait for it: steps and verdict.

    Args:
        path: The run directory, its summary written as far as the run itself knows it.
        warn: Told if that fails; the segments are still there then.
        draw: Columns, whether with colours, and the name of the run directory to be shown, if a
            table is wanted.
        compacts: Whether Parquet files take the place of segments now, and not when somebody first
            reads the run.

    Returns:
        The completed summary (None if that failed), and the table (empty if none is wanted).
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
    """Have what this process has recorded after the run compacted as well; if that fails, whoever
    opens the run does it."""
    _run("voirkit.runs.compaction", path, "--rank", str(rank), "--ended", str(os.getpid()))


def export(path: str, target: str) -> str:
    """Write the trace of a run to a file in DFTracer's form; returns why that failed, or
    nothing."""
    return _run("voirkit.cli", "export", path, "--format", "pfw", "--output", target)[0]


def page(path: str) -> str:
    """Write a run's HTML report into its directory; returns why that failed, or nothing."""
    return _run("voirkit.cli", "report", "--html=", path)[0]


def markdown(path: str) -> tuple[str, str]:
    """A run's report as Markdown: why that failed, or nothing, and the text."""
    return _run("voirkit.cli", "report", "--markdown", path)


def _run(module: str, *words: str, program: str = _PYTHON) -> tuple[str, str]:
    """Run the main function of one of voirkit's modules in another process; why it failed, or
    nothing, and what it printed."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("VOIRKIT_RUN_DIR", "DATA_FD")
    }
    # Nothing is multiplied there: numpy's library would start a thread for each processor.
    environment.update(
        dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    )
    command = [sys.executable, "-c", program.format(module), _PACKAGE, *words]
    is_ours = False
    try:
        import signal
        import subprocess
        import threading

        # A handler of the program's would be called for a child that is not its own.
        handler = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
        is_ours = callable(handler) and threading.current_thread() is threading.main_thread()
        if is_ours:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A session of its own: Ctrl-C in the terminal is for the program.
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
    except Exception as exc:  # the program has taken away what this needs, has an audit hook, or its own in place of subprocess.run
        return f"{type(exc).__name__}: {exc}", ""
    except KeyboardInterrupt:  # the user will not wait; the program has ended as it has
        return "interrupted", ""
    finally:
        if is_ours:
            signal.signal(signal.SIGCHLD, handler)
    if code:
        return (err.strip().splitlines() or [f"exit code {code}"])[-1], out
    return "", out


def discard(path: str) -> None:
    """Delete a run directory, of which nothing is wanted any more; what is not voirkit's stays."""
    from voirkit.runs import directory

    try:
        directory.clear(path)
        os.rmdir(path)
    except OSError:
        pass  # somebody has put something there


def describe_dropped(dropped: dict[str, int]) -> list[str]:
    """What to say of spans that were not recorded."""
    if not dropped:
        return []
    n = sum(dropped.values())
    most = max(dropped, key=lambda name: dropped[name])
    return [
        f"{n} spans were not recorded, most of them {most}: the trace is at its limit"
        " (--trace-limit), or cannot be written."
    ]
