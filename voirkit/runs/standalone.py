"""A run directory without the runner: a script that annotates itself makes it, or takes part in the run that is recorded there.

Several processes may name the same folder; the first makes the manifest, and says how the run ended.
"""

from __future__ import annotations

import json
import os
import sys
import time

from voirkit import __version__
from voirkit.errors import RunDirectoryError
from voirkit.runs import directory, manifest, summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class StandaloneRun:
    """This process's part in a run.

    Attributes:
        path: The run directory.
        host: The host's name.
        rank: The rank of this process.
        world_size: Of how many.
        leads: Whether this process made the manifest.
    """

    def __init__(self, path: str, begun: dict[str, Any], leads: bool) -> None:
        self.path, self.leads, self._begun = path, leads, begun
        self.host: str = begun["host"]
        self.rank: int = begun["rank"]
        self.world_size: int = begun["world_size"]
        self._start = time.perf_counter()

    def end(self, totals: Any) -> None:
        """The process ends: write how, and what came to be recorded."""
        if not self.leads:
            return
        failed = getattr(sys, "last_type", None) is not None  # the exit code itself cannot be known from inside
        self._begun.update(ended="exception" if failed else "normal")
        found = summary.empty(__version__)
        duration_s = time.perf_counter() - self._start
        found.update(
            command=self._begun["command"], world_size=self._begun["world_size"], ended=self._begun["ended"], duration_s=duration_s
        )
        if totals is not None:
            summary.add_trace(found, totals, duration_s)
        try:
            directory.write_json(os.path.join(self.path, directory.MANIFEST), self._begun)
            directory.write_json(os.path.join(self.path, directory.SUMMARY), found)
        except OSError:
            pass  # the trace is there; the folder can be opened without


def join(path: str, where: str) -> StandaloneRun:
    """Make a run directory, or take part in the run that goes on there.

    Args:
        path: Absolute path.
        where: What named it, for messages.

    Raises:
        RunDirectoryError: It holds a run that has ended, or what is not voirkit's, or cannot be made.
    """
    try:
        begun = manifest.begin(__version__, sys.argv[:] or [""], [], os.getcwd())
        os.makedirs(path, exist_ok=True)
        directory.refuse_foreign(path, where)
        there = directory.read_manifest(path)
        again = there is not None and directory.goes_on(there)  # it executed itself anew, or its ranks were started again
        with_it = there is not None and (there.get("ended") == "running" or (begun["rank"] > 0 and there.get("job") == begun["job"]))
        if there is not None and not again and not with_it:
            raise RunDirectoryError(
                f"this folder holds another run (of {there.get('started', 'unknown time')}).", where=where, next="Give another folder."
            )
        if again and begun["rank"] == 0:
            directory.write_json(os.path.join(path, directory.MANIFEST), begun)
            return StandaloneRun(path, begun, leads=True)
        return StandaloneRun(path, begun, leads=begun["rank"] == 0 and there is None and _make(path, begun))
    except OSError as exc:
        raise RunDirectoryError(f"cannot be used: {exc.strerror}.", where=where) from None


def _make(path: str, begun: dict[str, Any]) -> bool:
    """Write the manifest, unless another process has just done so; whether it was written."""
    temporary = os.path.join(path, f"{directory.MANIFEST}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(begun, file, indent=1)
    try:
        os.link(temporary, os.path.join(path, directory.MANIFEST))  # fails if it is there
        return True
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        os.replace(temporary, os.path.join(path, directory.MANIFEST))
        return True
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


__all__ = ["StandaloneRun", "join"]
