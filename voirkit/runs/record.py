"""Records a run in its directory: the manifest, the log stream, and the summary when it ends; with the runner, or of a script without it.

Whatever happens to the disk, the program goes on: what cannot be written is told once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType

from voirkit import __version__
from voirkit.errors import RunDirectoryError
from voirkit.runs import directory, manifest, summary
from voirkit.runs.lines import LineFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Record:
    """The files of a run, as this process writes them.

    Args:
        path: The run directory.
        warn: Told what cannot be written.
        manifest: As it was begun.

    Attributes:
        is_whole: Whether all that there is one of could be written.
    """

    def __init__(self, path: str, warn: Callable[[str], None], manifest: dict[str, Any]) -> None:
        self.path, self._warn, self.manifest = path, warn, manifest
        self._leads = manifest["rank"] == 0  # one rank writes what there is one of
        self._lines = LineFile(self._stream_path, warn)
        self.is_whole = True
        self._write({directory.MANIFEST: manifest})

    def _stream_path(self, pid: int) -> str:
        return os.path.join(self.path, "stream", f"{self.manifest['host']}-r{self.manifest['rank']}-{pid}.jsonl")

    def log(self, line: str) -> None:
        """Append a line of JSON to the log stream."""
        self._lines.write(line)

    @property
    def duration_s(self) -> float:
        """Seconds since the run began."""
        return (time.perf_counter_ns() - int(self.manifest["moments"]["begun_ns"])) * 1e-9

    def script_ended(self, at_ns: int) -> None:
        """Note when the script has come to its end; it is written with the rest."""
        self.manifest["moments"]["script_ended_ns"] = at_ns

    def end(self, ended: str, exit_code: int | None, summary: dict[str, Any]) -> None:
        """Write how the run ended, and its summary."""
        self._lines.close()
        if self._lines.lost:
            summary["dropped"]["log lines"] = self._lines.lost
        self.manifest.update(ended=ended, exit_code=exit_code)
        if "packages" not in self.manifest:
            self.manifest["packages"] = packages()
        self._write({directory.MANIFEST: self.manifest, directory.SUMMARY: summary})

    def _write(self, documents: dict[str, dict[str, Any]]) -> None:
        if not self._leads:
            return
        failed: dict[str, str] = {}
        for name, document in documents.items():
            try:
                directory.write_json(os.path.join(self.path, name), document)
            except OSError as exc:
                failed[name] = str(exc.strerror)
        if failed:
            self.is_whole = False
            self._warn(f"{self.path}: {' and '.join(failed)} cannot be written ({'; '.join(dict.fromkeys(failed.values()))}).")


def packages() -> dict[str, str]:
    """The versions of what the program has imported, of packages that say theirs; no code of theirs is run to ask."""
    found = {}
    for name, module in list(sys.modules.items()):
        if "." not in name and not name.startswith("_") and name not in sys.stdlib_module_names and isinstance(module, ModuleType):
            version = object.__getattribute__(module, "__dict__").get("__version__")
            if isinstance(version, str):
                found[name] = str.__str__(version)  # torch's is of a class of its own
    return dict(sorted(found.items()))


class StandaloneRun:
    """This process's part in a run without the runner: a script annotates itself. Of several in a folder the first makes the manifest.

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
        again = there is not None and directory.is_continued(there)  # it executed itself anew, or its ranks were started again
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
    temporary, place = os.path.join(path, f"{directory.MANIFEST}.{os.getpid()}.tmp"), os.path.join(path, directory.MANIFEST)
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(begun, file, indent=1)
        try:
            os.link(temporary, place)  # fails if it is there
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            os.replace(temporary, place)
        return True
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
