"""Records a run in its directory: the manifest, the log stream, and the summary when it ends; with
the runner, or of a script without it.

Whatever happens to the disk, the program goes on: what cannot be written is counted and told once.
A line is written when the call returns.
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
from voirkit.fork import file_identity
from voirkit.runs import directory, manifest, summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO


def to_json(data: Any) -> str:
    """One line of JSON, without the line break, in voir's format. What JSON cannot hold becomes
    ``{"$unserializable": repr}``, and what cannot even be represented ``{"$unrepresentable":
    null}``."""
    try:
        return json.dumps(data)
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return json.dumps({"$unserializable": repr(data)})
    except Exception:
        return json.dumps({"$unrepresentable": None})


class LineFile:
    """A file of lines, one for each process: a forked child that writes gets its own. ``path_of``:
    the path for a process id; ``warn``: told once if a line cannot be written."""

    def __init__(self, path_of: Callable[[int], str], warn: Callable[[str], None]) -> None:
        self._path_of, self._warn = path_of, warn
        self._fd = -1
        self._pid = 0
        self._file: tuple[int, int] | None = None
        self.lost = 0  # how many lines could not be written

    def write(self, line: str) -> None:
        """Append a line."""
        if self.lost:
            self.lost += 1
            return
        pid = os.getpid()
        try:
            if pid != self._pid:
                path = self._path_of(pid)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                self._fd = os.open(
                    path,
                    os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0),
                    0o666,
                )
                self._pid, self._file = pid, file_identity(self._fd)
            elif file_identity(self._fd) != self._file:
                # the script closed it, and its number may stand for a file of its own now
                self._pid = 0
                self.write(line)
                return
            _write_all(self._fd, line.encode("utf-8", "backslashreplace") + b"\n")
        except OSError as exc:
            self.lost += 1
            self._warn(
                f"{self._path_of(pid)} cannot be written ({exc.strerror}); the log stream of this"
                " run ends here."
            )

    def close(self) -> None:
        """Close the file of this process."""
        if self._pid == os.getpid() and file_identity(self._fd) == self._file:
            os.close(self._fd)
        self._fd, self._pid = -1, 0


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # the harness made the pipe so, and is slow
            import select

            select.select([], [fd], [])


class DataDescriptor:
    """Where a harness listens: a file descriptor, or standard output or error with the data hidden
    in it.

    Args:
        fd: The descriptor; 1 and 2 stand for the script's output, in which lines are hidden as
            escape sequences.

    Only the process that opened it writes: a forked child's lines would reach the harness as its
    parent's.
    """

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        self._pid = os.getpid()
        self._file = file_identity(fd)
        self._hidden: Any = None
        if fd in (1, 2):
            from voirkit.escape import SmuggleWriter

            stream: TextIO | None = sys.stdout if fd == 1 else sys.stderr
            if stream is None:
                self._fd = None
            else:
                self._hidden = SmuggleWriter(stream)

    def write(self, line: str) -> None:
        """Send a line; nobody listening any more is not an error."""
        if self._fd is None or os.getpid() != self._pid:
            return
        try:
            if self._hidden is not None:
                self._hidden.write(line + "\n")
            elif file_identity(self._fd) != self._file:
                self._fd = None  # the script closed it
            else:
                _write_all(self._fd, line.encode("utf-8", "backslashreplace") + b"\n")
        except (OSError, ValueError):
            self._fd = None

    def close(self) -> None:
        """Send what is buffered and, unless it is the script's output, close the descriptor: who
        reads it waits for its end."""
        fd, self._fd = self._fd, None
        if fd is None or os.getpid() != self._pid:
            return
        try:
            if self._hidden is not None:
                self._hidden.flush()
            elif file_identity(fd) == self._file:
                os.close(fd)
        except (OSError, ValueError):
            pass  # nobody listens any more


def listening() -> int | None:
    """The data descriptor of this process: ``$DATA_FD``, or 3, if it was handed down by the parent
    and can be written to. A descriptor that python opened for itself is not handed down to
    children, and so is told apart."""
    given = os.environ.get("DATA_FD", "3")
    try:
        fd = int(given)
    except ValueError:
        return None
    if fd in (1, 2):
        return fd
    try:
        if not os.get_inheritable(fd):
            return None
        import fcntl

        writable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except (OSError, ImportError, OverflowError, ValueError):
        return None
    return fd if writable else None


class Record:
    """The files of a run, as this process writes them. ``warn``: told what cannot be written;
    ``manifest``: as it was begun."""

    def __init__(self, path: str, warn: Callable[[str], None], manifest: dict[str, Any]) -> None:
        self.path, self._warn, self.manifest = path, warn, manifest
        self._leads = manifest["rank"] == 0  # one rank writes what there is one of
        self._lines = LineFile(self._stream_path, warn)
        self.is_whole = True  # whether all that there is one of could be written
        self._write({directory.MANIFEST: manifest})

    def _stream_path(self, pid: int) -> str:
        return os.path.join(
            self.path, "stream", f"{self.manifest['host']}-r{self.manifest['rank']}-{pid}.jsonl"
        )

    def log(self, line: str) -> None:
        """Append a line of JSON to the log stream."""
        self._lines.write(line)

    @property
    def duration_s(self) -> float:
        """Seconds since the run began."""
        return (time.perf_counter_ns() - int(self.manifest["moments"]["begun_ns"])) * 1e-9

    def script_ended(self, at_ns: int) -> None:
        """Note when the script has ended; it is written with the rest."""
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
            self._warn(
                f"{self.path}: {' and '.join(failed)} cannot be written"
                f" ({'; '.join(dict.fromkeys(failed.values()))})."
            )


def packages() -> dict[str, str]:
    """The versions of what the program has imported, of packages that say theirs; no code of theirs
    is run to ask."""
    versions = {}
    for name, module in list(sys.modules.items()):
        if (
            "." not in name
            and not name.startswith("_")
            and name not in sys.stdlib_module_names
            and isinstance(module, ModuleType)
        ):
            version = object.__getattribute__(module, "__dict__").get("__version__")
            if isinstance(version, str):
                versions[name] = str.__str__(version)  # torch's is of a class of its own
    return dict(sorted(versions.items()))


class StandaloneRun:
    """This process's part in a run without the runner: a script annotates itself. Of several in a
    folder the first makes the manifest. ``path``: the run directory; ``leads``: whether this
    process made the manifest."""

    def __init__(self, path: str, manifest: dict[str, Any], leads: bool) -> None:
        self.path, self.leads, self._manifest = path, leads, manifest
        self.host: str = manifest["host"]  # the host's name
        self.rank: int = manifest["rank"]  # the rank of this process
        self.world_size: int = manifest["world_size"]  # of how many
        self._start = time.perf_counter()

    def end(self, totals: Any) -> None:
        """The process ends: write how, and what came to be recorded."""
        if not self.leads:
            return
        # the exit code itself cannot be known from inside
        failed = getattr(sys, "last_type", None) is not None
        self._manifest.update(ended="exception" if failed else "normal")
        document = summary.empty(__version__)
        duration_s = time.perf_counter() - self._start
        document.update(
            command=self._manifest["command"],
            world_size=self._manifest["world_size"],
            ended=self._manifest["ended"],
            duration_s=duration_s,
        )
        if totals is not None:
            summary.add_trace(document, totals, duration_s)
        try:
            directory.write_json(os.path.join(self.path, directory.MANIFEST), self._manifest)
            directory.write_json(os.path.join(self.path, directory.SUMMARY), document)
        except OSError:
            pass  # the trace is there; the folder can be opened without


def join(path: str, where: str) -> StandaloneRun:
    """Make a run directory, or take part in the run that goes on there.

    Args:
        path: Absolute path.
        where: What named it, for messages.

    Raises:
        RunDirectoryError: It holds a run that has ended, or what is not voirkit's, or cannot be
            made.
    """
    try:
        words = sys.argv[:] or [""]
        new_manifest = manifest.create(__version__, words, [], os.getcwd())
        job = new_manifest["job"]
        os.makedirs(path, exist_ok=True)
        directory.refuse_foreign(path, where)
        there = directory.read_manifest(path)
        is_first = new_manifest["rank"] == 0
        leads = False
        if there is None:
            leads = is_first and _write_new_manifest(path, new_manifest)
        elif directory.is_continued(there):
            # it re-executed itself, or its ranks were started again
            leads = is_first
            if leads:
                directory.write_json(os.path.join(path, directory.MANIFEST), new_manifest)
        elif there.get("ended") != "running" and (is_first or there.get("job") != job):
            raise RunDirectoryError(
                f"this folder holds another run (of {there.get('started', 'unknown time')}).",
                where=where,
                next="Give another folder.",
            )
        return StandaloneRun(path, new_manifest, leads)
    except OSError as exc:
        raise RunDirectoryError(f"cannot be used: {exc.strerror}.", where=where) from None


def _write_new_manifest(path: str, document: dict[str, Any]) -> bool:
    """Write the manifest, unless another process has just done so; whether it was written."""
    place = os.path.join(path, directory.MANIFEST)
    temporary = f"{place}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
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
