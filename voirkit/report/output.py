"""Files that reports and exports write: whole or not at all, under a temporary name until they are complete. ``-`` is the standard output.

Also what exports call the processes, threads and loader workers of a run, and which arrows lead from a batch to its use.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

from voirkit.errors import CommandLineError, VoirkitError

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from voirkit.runs.opened import Run

    Key = tuple[str, int, int]  # (host, rank, pid): which process


STDOUT = "-"
STDOUT_NAMES = (STDOUT, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
# Of gzip, 1 to 9. An export takes a fifth less time with 3 than with 6, and a fifth more bytes.
LEVEL = 3

_number = count()  # a format may have several files open


@contextmanager
def complete(path: str) -> Iterator[str]:
    """Yield a name to write under; the file gets its own when the block has ended well, and is removed if not.

    Raises:
        OSError: The disk is full, or the folder is gone.
        VoirkitError: There is no room for what is to go to the standard output.
    """
    folder = tempfile.gettempdir() if path == STDOUT else os.path.dirname(path)
    # Short and in ASCII, whatever the file is called: its name may be as long as the file system allows, and not even text.
    temporary = os.path.join(folder, f".voirkit-{os.getpid()}-{next(_number)}.tmp")
    try:
        try:
            with open(temporary, "wb"):
                pass  # what cannot be made is told by python, whoever writes to it then
            yield temporary
        except OSError as exc:
            if path == STDOUT:
                from voirkit.runs.parquet import no_room

                raise no_room(exc, folder) from None
            raise
        if path == STDOUT:
            with open(temporary, "rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
            sys.stdout.flush()
        else:
            os.replace(temporary, path)
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


@contextmanager
def text(path: str) -> Iterator[Callable[[str], object]]:
    """Yield what writes text to a file in UTF-8, compressed with gzip (one member) if its name ends in ``.gz``.

    Raises:
        OSError: The disk is full, or the folder is gone.
    """
    with complete(path) as temporary, open(temporary, "wb", buffering=1 << 20) as file:
        if not path.endswith(".gz"):
            yield lambda text: file.write(text.encode())
        else:
            gzip = zlib.compressobj(LEVEL, wbits=31)
            yield lambda text: file.write(gzip.compress(text.encode()))
            file.write(gzip.flush())
        file.flush()


def copy(run: Run, query: str, path: str, options: str) -> None:
    """Have DuckDB write what a query gives, to its end.

    Args:
        run: The run that the query is for.
        query: Of SQL.
        path: The file; ``-`` for the standard output.
        options: Of ``COPY``: the format and how.

    Raises:
        OSError: The disk is full, for instance.
        RunDirectoryError: The trace is damaged where it could not be seen before.
    """
    import duckdb

    from voirkit.runs.parquet import file, system_error

    with complete(path) as temporary:
        try:
            run.connection().execute(f"COPY ({query}) TO {file(temporary)} ({options}, USE_TMP_FILE false)").fetchall()
        except duckdb.Error as exc:
            raise system_error(exc, temporary) or run.damaged(exc) from None


# an HTML page: it replaces nothing but a page that voirkit made


MARK = "<!-- made by voirkit -->"  # by which a page is known as one that may be replaced
NAME = "report.html"  # of a run's, in its directory
_ENDS = (".html", ".htm")


def with_file(words: Sequence[str]) -> list[str]:
    """The words of a command line in which the word after ``--html`` is its file only if it is called like one.

    ``voirkit report --html RUN`` names a run; any file can be given as ``--html=FILE``.
    """
    made: list[str] = []
    at = 0
    while at < len(words):
        word, following = words[at], words[at + 1] if at + 1 < len(words) else ""
        if word == "--":
            return [*made, *words[at:]]
        if word == "--html":
            taken = following == STDOUT or following.lower().endswith(_ENDS)
            made.append(f"--html={following if taken else ''}")
            at += taken
        else:
            made.append(word)
        at += 1
    return made


def may_write(target: str) -> str:
    """Where a page may be written: that file, or ``report.html`` in that folder.

    Raises:
        CommandLineError: Something is there that voirkit did not make.
    """
    if target in STDOUT_NAMES:
        if sys.stdout is None:
            raise VoirkitError("it is closed.", where="stdout")
        return STDOUT
    if os.path.isdir(target) or target.endswith(os.sep):
        target = os.path.join(target, NAME)
    if os.path.lexists(target) and not _is_own(target):
        raise CommandLineError("it is there already, and is no page of voirkit's.", where=target, next="Give another name: --html=FILE.")
    return target


def _is_own(path: str) -> bool:
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            begin = file.read(200)
    except OSError:
        return False
    return not begin or MARK.encode() in begin


def write(page: str, target: str) -> None:
    """Write a page to where ``may_write`` said that it may go.

    Raises:
        VoirkitError: It cannot be written.
    """
    try:
        folder = os.path.dirname(target)
        if target != STDOUT and folder:
            os.makedirs(folder, exist_ok=True)
        with complete(target) as temporary, open(temporary, "wb") as file:
            file.write(page.encode())
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise VoirkitError(f"it cannot be written: {exc.strerror or exc}.", where="stdout" if target == STDOUT else target) from None


def printable(path: str) -> str:
    """A path as this terminal can show it."""
    try:
        path.encode(getattr(sys.stdout, "encoding", None) or "utf-8")  # a closed stdout is None
    except UnicodeEncodeError:  # a name that is no text, or none in this encoding
        return ascii(path)[1:-1]
    return path


# names of processes and threads, arrows from a batch to its use


LOADER = "loader"
_MADE, _USED = ("data", "preprocess"), ("batch", "consumed")
MOMENTS = ("queued", "arrived", "consumed")  # of batches: without a duration

# In SQL, over the columns of `events`: the rows that an arrow connects, what is the same of them, and where it touches them: the last
# nanosecond of the making, since at its end it is over for a viewer, and the mark where the batch was given to the program.
ARROWS = f"(kind = '{LOADER}' AND ((category = 'data' AND name = 'preprocess') OR (category = 'batch' AND name = 'consumed')))"
ARROW = "concat('batch ', rank, ' ', json_extract_string(args, '$.loader'), ' ', json_extract_string(args, '$.episode'), ' ', value)"
ARROW_AT = "since_ns + greatest(duration_ns - 1, 0)"
IS_MOMENT = f"(kind = '{LOADER}' AND category = 'batch' AND name IN {MOMENTS})"


def arrow(rank: int, category: str, name: str, arguments: Mapping[str, Any]) -> tuple[object, ...] | None:
    """What the two ends of an arrow have in common; None for what is no end of one. It begins where a worker begins with a batch."""
    if (category, name) == _MADE and arguments.get("worker", -1) < 0:
        return None
    if (category, name) not in (_MADE, _USED):
        return None
    return ("batch", rank, arguments.get("loader"), arguments.get("episode"), arguments.get("batch"))


def workers(run: Run) -> dict[tuple[str, int, int], str]:
    """Names of the processes that load, by (host, rank, pid); with the loader's number where there are several."""
    query = (
        f"SELECT DISTINCT host, rank, pid, args FROM spans WHERE kind = '{LOADER}' AND category = 'data' AND name = 'preprocess' "
        "AND args IS NOT NULL ORDER BY ALL"
    )
    found = [(key, json.loads(text)) for batch in run.fetch(query) for *key, text in batch]
    several = len({known.get("loader") for _, known in found}) > 1
    named = {}
    for (host, rank, pid), known in found:
        if known.get("worker", -1) >= 0:
            named[host, rank, pid] = f"worker {known['worker']}" + (f" of loader {known.get('loader')}" if several else " of the loader")
    return named


class Labels:
    """Names for people: ``main.py``, ``main.py (rank 1)``, ``main.py (rank 1, node7)``."""

    def __init__(self, run: Run) -> None:
        self.processes = {(process.host, process.rank, process.pid): process for process in run.processes()}
        self._ranks = len({rank for _, rank, _ in self.processes}) > 1
        self._workers = workers(run)
        self._hosts = len({host for host, _, _ in self.processes}) > 1

    def process(self, key: Key) -> str:
        """The name of a process, with its rank and host where there are several."""
        host, rank, pid = key
        process = self.processes.get(key)
        place = ([f"rank {rank}"] if self._ranks else []) + ([host] if self._hosts else [])
        name = self._workers.get(key) or (process.name if process is not None else "") or f"process {pid}"
        return f"{name} ({', '.join(place)})" if place else name

    def thread(self, key: Key, tid: int) -> str:
        """The name of a thread."""
        process = self.processes.get(key)
        name = process.threads.get(tid) if process is not None else None
        return name or ("MainThread" if tid == key[2] else f"thread {tid}")
