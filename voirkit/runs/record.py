"""Records a run in its directory: the manifest, the log stream, and the summary when it ends.

Whatever happens to the disk, the program goes on: what cannot be written is told once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import ModuleType

from voirkit.runs import directory
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
