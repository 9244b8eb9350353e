"""Runs the script once, plain or with a change, in a process of its own that ends with the driver, and says what came of it."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field

from voirkit.runs.directory import SUMMARY, read_json
from voirkit.runs.summary import SCHEMA
from voirkit_instruments.child_run import started_with
from voirkit_instruments.what_if.record_child import PLAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_GRACE_S = 5.0  # for a run that is ended early
_LONGEST_ERROR = 20_000


@dataclass
class Ran:
    """What a run came to.

    Attributes:
        code: Its exit code, as the shell sees it.
        out: The file that holds what it printed on stdout.
        err: The end of what it printed on stderr.
        summary: Its summary; empty if there is none.
    """

    code: int
    out: str
    err: str
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def told(self) -> Mapping[str, Any]:
        """What ``what_if_child`` has seen of it."""
        found: Mapping[str, Any] = self.summary.get("what_if_run") or {}
        return found

    @property
    def work_s(self) -> float:
        """Seconds of its work."""
        return float(self.told["work_s"])

    @property
    def step_s(self) -> float | None:
        """Seconds of its median training step; None if none was seen."""
        time = (self.summary.get("steps") or {}).get("time_s")
        return float(time["median"]) if time else None

    @property
    def why_not(self) -> str:
        """Why its time tells nothing; empty if it does."""
        if "failed" in self.told:
            return str(self.told["failed"])
        if self.code:
            return f"it ended with exit code {self.code}"
        return "" if self.told.get("work_s") else "it ended without a record of its work (os._exit?)"


class Runs:
    """Runs a script.

    Args:
        folder: A folder for what is needed meanwhile; nothing else may write there.
        script: The script or ``-m MODULE``, and its arguments.
        steps: After how many steps of optimizers each run ends; None: when the script does.
    """

    def __init__(self, folder: str, script: Sequence[str], steps: int | None) -> None:
        self._folder, self._script = folder, list(script)
        self._stop = [] if steps is None else ["--stop", str(steps)]
        self._n = 0

    def run(self, setting: str = PLAIN, place: str | None = None) -> Ran:
        """Run it once.

        Args:
            setting: ``NAME[=ARG]`` of the change.
            place: The run directory, an empty folder; if left out nothing stays of it but what is returned.

        Raises:
            BaseException: The driver was interrupted; the run has been ended.
        """
        self._n += 1
        run_dir = place or os.path.join(self._folder, f"run-{self._n}")
        out, err = (os.path.join(self._folder, f"{name}-{self._n}") for name in ("out", "err"))
        words = ["--what-if-setting", setting, *self._stop, *self._script]
        with open(out, "wb") as printed, open(err, "wb") as complained:
            process = subprocess.Popen(**started_with(run_dir, words), stdout=printed, stderr=complained)
        try:
            code = process.wait()
        except BaseException:
            _end(process)
            raise
        with open(err, "rb") as file:
            file.seek(max(os.path.getsize(err) - _LONGEST_ERROR, 0))
            said = file.read().decode(errors="replace")
        os.unlink(err)
        ran = Ran(128 - code if code < 0 else code, out, said, read_json(os.path.join(run_dir, SUMMARY), SCHEMA) or {})
        if place is None:
            from shutil import rmtree

            rmtree(run_dir, ignore_errors=True)
        return ran


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run that has been told of the interruption already, or not: a terminal tells all, ``kill`` only the driver."""
    for signal_it, grace_s in ((process.poll, 2.0), (process.terminate, _GRACE_S), (process.kill, None)):
        with suppress(BaseException):  # interrupted once more: it is ended all the same
            signal_it()
            process.wait(grace_s)
            return
