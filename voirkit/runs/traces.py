"""Brings the trace of a run that ends into the form that is kept: in a process of its own, since what that takes has no place in the program's.

What is interrupted loses nothing: the segments stay, and whoever opens the run does it then.
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
_SETTLE = "import sys; sys.path[0] = sys.argv.pop(1); from voirkit.runs.at_rest import main; sys.exit(main(sys.argv[1:]))"


def are_there(path: str) -> bool:
    """Whether a run directory holds segments."""
    try:
        return any(name.endswith(".seg") for name in os.listdir(os.path.join(path, "trace")))
    except OSError:
        return False


def settle(path: str, rank: int, warn: Callable[[str], None]) -> None:
    """Turn the segments of a rank into Parquet files, and wait for it.

    Args:
        path: The run directory.
        rank: Whose segments.
        warn: Told if that fails; the segments are still there then.
    """
    if not are_there(path):
        return
    import subprocess

    environment = {key: value for key, value in os.environ.items() if key not in ("VOIRKIT_RUN_DIR", "DATA_FD")}
    command = [sys.executable, "-c", _SETTLE, _PACKAGE, path, "--rank", str(rank)]
    why = ""
    try:
        # A session of its own: Ctrl-C in the terminal is for the program.
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True, env=environment, cwd=path, text=True, errors="replace", check=False,
        )  # fmt: skip
        if done.returncode:
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    except (OSError, ValueError, subprocess.SubprocessError) as exc:
        why = f"{type(exc).__name__}: {exc}"
    except KeyboardInterrupt:  # the user will not wait; the program has ended as it has
        why = "interrupted"
    if why:
        warn(f"the trace is kept as it was written ({why}); it is made smaller when it is first opened.")


def lost(totals: Any) -> list[str]:
    """What to say of spans that were not recorded."""
    if not totals.dropped:
        return []
    n = sum(totals.dropped.values())
    most = max(totals.dropped, key=totals.dropped.get)
    return [f"{n} spans were not recorded, most of them {most}: the trace is at its limit (--trace-limit), or can not be written."]
