"""Output files of reports and exports, which are written completely or not at all.

A file has a temporary name until it is complete. ``-`` stands for stdout.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from voirkit.errors import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runs.opened import Run


STDOUT = "-"
STDOUT_NAMES = (STDOUT, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
# The compression level of gzip, 1 to 9. With 3 an export takes a fifth less time than with 6, and
# has a fifth more bytes.
LEVEL = 3

_number = count()  # makes temporary names unique: an export may have several files open at once
_unfinished: set[str] = set()


def remove_unfinished() -> None:
    """Remove the files that still have a temporary name. ``complete`` cannot remove its file if a
    signal arrives just before its ``with`` block begins."""
    for path in list(_unfinished):
        if os.path.lexists(path):
            os.unlink(path)


@contextmanager
def complete(path: str) -> Iterator[str]:
    """Yield the name of a temporary file to write, which becomes ``path`` at the end of the block.
    If the block raises, the file is removed.

    Raises:
        OSError: For instance, the disk is full or the folder does not exist.
        VoirkitError: ``path`` is stdout, and the temporary file cannot be written.
    """
    folder = tempfile.gettempdir() if path == STDOUT else os.path.dirname(path)
    # The temporary name is short and ASCII: the file's own name may have the maximum length that
    # the file system allows, or may not be valid text.
    temporary = ""
    try:
        try:
            # create the file here, so that an error is raised before anything writes to it
            temporary = _make_new(folder, 0o600 if path == STDOUT else 0o666)
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
        if temporary and os.path.lexists(temporary):
            os.unlink(temporary)
        _unfinished.discard(temporary)


def _make_new(folder: str, mode: int) -> str:
    """Create a new empty file and return its path. It never opens an existing file: in a shared
    folder such as /tmp, other users may have guessed the name."""
    while True:
        path = os.path.join(folder, f".voirkit-{os.getpid()}-{next(_number)}.tmp")
        _unfinished.add(path)  # noted before the file is created: a signal may arrive right after
        try:
            os.close(
                os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), mode
                )
            )
            return path
        except FileExistsError:
            _unfinished.discard(path)  # the existing file belongs to another process
        except OSError:
            # Only for OSError: if a signal handler raises, the file may have been created.
            _unfinished.discard(path)
            raise


@contextmanager
def text(path: str) -> Iterator[Callable[[str], object]]:
    """Yield a function that writes text to a file in UTF-8, compressed with gzip (one member) if
    the name ends in ``.gz``. Raises the exceptions of ``complete``."""
    with complete(path) as temporary, open(temporary, "wb", buffering=1 << 20) as file:
        if not path.endswith(".gz"):
            yield lambda text: file.write(text.encode())
        else:
            gzip = zlib.compressobj(LEVEL, wbits=31)
            yield lambda text: file.write(gzip.compress(text.encode()))
            file.write(gzip.flush())
        file.flush()


def copy(run: Run, query: str, path: str, options: str) -> None:
    """Have DuckDB write the result of a query into a file.

    Args:
        run: The run that is queried.
        path: The file, or ``-`` for stdout.
        options: Options of DuckDB's ``COPY``.

    Raises:
        OSError: For instance, the disk is full.
        RunDirectoryError: The trace is damaged in a part that was not read before.
    """
    import duckdb

    from voirkit.runs.parquet import file, system_error

    with complete(path) as temporary:
        try:
            run.connection().execute(
                f"COPY ({query}) TO {file(temporary)} ({options}, USE_TMP_FILE false)"
            ).fetchall()
        except duckdb.Error as exc:
            raise system_error(exc, temporary) or run.damaged(exc) from None


def printable(path: str) -> str:
    """Return a path in a form that stdout can show."""
    path = visible(path, in_line=True)
    try:
        # ``sys.stdout`` is None if stdout is closed
        path.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # the name is not valid text, or not in this encoding
        return ascii(path)[1:-1]
    return path
