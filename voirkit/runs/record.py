"""Writes the manifest, the log stream and the final summary of a run into its directory.

Used by the runner, and by scripts that record themselves without the runner. Disk errors never stop
the program: lost lines are counted, and the user is warned once. A log line has been written by the
time the call that logs it returns.
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
    """Return data as one line of JSON in voir's format, without the line break. Data that JSON
    cannot hold becomes ``{"$unserializable": repr}``; if ``repr`` fails too, the result is
    ``{"$unrepresentable": null}``."""
    try:
        return json.dumps(data)
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        return json.dumps({"$unserializable": repr(data)})
    except Exception:
        return json.dumps({"$unrepresentable": None})


class LineFile:
    """A text file to append lines to. A forked child that writes gets a file of its own.

    Args:
        path_of: Returns the path of the file for a process id.
        warn: Called once with a message, when a line cannot be written.
    """

    def __init__(self, path_of: Callable[[int], str], warn: Callable[[str], None]) -> None:
        self._path_of, self._warn = path_of, warn
        self._fd = -1
        self._pid = 0
        self._file: tuple[int, int] | None = None
        self.lost = 0  # number of lines that could not be written

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
                # the script has closed the descriptor, and its number may now stand for a file of
                # the script
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
        """Close the file that this process writes to."""
        if self._pid == os.getpid() and file_identity(self._fd) == self._file:
            os.close(self._fd)
        self._fd, self._pid = -1, 0


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            # the pipe is full, and the program that reads it has made it non-blocking
            import select

            select.select([], [fd], [])


class DataDescriptor:
    """The file descriptor through which data is sent to a harness, the program that started this
    process.

    Only the process that created this object writes. The harness would take lines from a forked
    child for lines of its parent.

    Args:
        fd: The descriptor. With 1 or 2 (standard output or error), lines are hidden in the script's
            own output as escape sequences.
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
        """Send a line. If the harness no longer reads, the line is silently discarded."""
        if self._fd is None or os.getpid() != self._pid:
            return
        try:
            if self._hidden is not None:
                self._hidden.write(line + "\n")
            elif file_identity(self._fd) != self._file:
                self._fd = None  # the script has closed the descriptor
            else:
                _write_all(self._fd, line.encode("utf-8", "backslashreplace") + b"\n")
        except (OSError, ValueError):
            self._fd = None

    def close(self) -> None:
        """Flush buffered lines. Then close the descriptor, unless it is the script's output: the
        harness reads it until end of file."""
        fd, self._fd = self._fd, None
        if fd is None or os.getpid() != self._pid:
            return
        try:
            if self._hidden is not None:
                self._hidden.flush()
            elif file_identity(fd) == self._file:
                os.close(fd)
        except (OSError, ValueError):
            pass  # the harness no longer reads


def listening() -> int | None:
    """Return the file descriptor on which a harness waits for data of this process, or None.

    It is ``$DATA_FD``, or 3 by default. It counts only if the parent process passed it on and it is
    writable. Descriptors that Python itself opened are recognized by not being inheritable.
    """
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
    """Writer of this process's share of a run directory: its log stream and, on rank 0, the
    manifest and the summary.

    Args:
        path: The run directory.
        warn: Called with a message about each failure to write.
        manifest: The manifest as the run starts; updated when the run ends.
    """

    def __init__(self, path: str, warn: Callable[[str], None], manifest: dict[str, Any]) -> None:
        self.path, self._warn, self.manifest = path, warn, manifest
        self._leads = manifest["rank"] == 0  # only rank 0 writes the manifest and the summary
        self._lines = LineFile(self._stream_path, warn)
        self.is_whole = True  # whether the manifest and the summary were written without errors
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
        """Store the time (``time.perf_counter_ns``) at which the script ended in the manifest,
        which ``end`` writes."""
        self.manifest["moments"]["script_ended_ns"] = at_ns

    def end(self, ended: str, exit_code: int | None, summary: dict[str, Any]) -> None:
        """Close the log stream, and write the manifest with the outcome of the run, and the
        summary."""
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
    """Return a dict from name to version, for the imported packages that have a ``__version__``. No
    code of the packages is executed."""
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
                versions[name] = str.__str__(version)  # torch's version is of a subclass of str
    return dict(sorted(versions.items()))


class StandaloneRun:
    """One process's part in a run without the runner, of a script that records itself.

    Of several processes that record into the same folder, the first one of rank 0 writes the
    manifest.

    Args:
        path: The run directory.
        manifest: The manifest of this process.
        leads: Whether this process wrote the manifest of the run.
    """

    def __init__(self, path: str, manifest: dict[str, Any], leads: bool) -> None:
        self.path, self.leads, self._manifest = path, leads, manifest
        self.host: str = manifest["host"]
        self.rank: int = manifest["rank"]
        self.world_size: int = manifest["world_size"]
        self._start = time.perf_counter()

    def end(self, totals: Any) -> None:
        """Write the outcome and a summary with the recorder's totals, if this process wrote the
        manifest.

        Args:
            totals: The return value of the recorder's ``end``; None if nothing was recorded.
        """
        if not self.leads:
            return
        # sys.last_type is set by an uncaught exception; the exit code is not known yet
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
            pass  # the trace is complete, and can be read without these files


def join(path: str, where: str) -> StandaloneRun:
    """Create a run directory, or join the run in progress in an existing one.

    Args:
        path: The absolute path of the directory.
        where: The option or variable that named the directory, for error messages.

    Raises:
        RunDirectoryError: The directory holds a run that has ended or files that are not voirkit's,
            or cannot be created.
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
            # the script re-executed itself, or its ranks were restarted
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
    """Write the manifest and return True; return False if another process has already written
    one."""
    place = os.path.join(path, directory.MANIFEST)
    temporary = f"{place}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
        try:
            os.link(temporary, place)  # raises FileExistsError if the manifest exists
        except FileExistsError:
            return False
        except OSError:  # the file system has no hard links
            os.replace(temporary, place)
        return True
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
