"""Files that reports and exports write: whole or not at all, under a temporary name until they are
complete. ``-`` is the stdout."""

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
# Of gzip, 1 to 9. An export takes a fifth less time with 3 than with 6, and a fifth more bytes.
LEVEL = 3

_number = count()  # a format may have several files open
_unfinished: set[str] = set()


def remove_unfinished() -> None:
    """Remove what is under a temporary name: a signal may come between ``complete`` and the block
    that it is for."""
    for path in list(_unfinished):
        if os.path.lexists(path):
            os.unlink(path)


@contextmanager
def complete(path: str) -> Iterator[str]:
    """Yield a name to write under; the file gets its own when the block has ended well, and is
    removed if not. Raises OSError: the disk is full, or the folder is gone; VoirkitError: there is
    no room for what is to go to the standard output."""
    folder = tempfile.gettempdir() if path == STDOUT else os.path.dirname(path)
    # Short and in ASCII, whatever the file is called: its name may be as long as the file system
    # allows, and not even text.
    temporary = ""
    try:
        try:
            # what cannot be made is told here, whoever writes to it then
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
    """An empty file that was not there before: in a folder of everybody's, such as /tmp, others may
    have guessed its name."""
    while True:
        path = os.path.join(folder, f".voirkit-{os.getpid()}-{next(_number)}.tmp")
        _unfinished.add(path)  # before it is made: see remove_unfinished
        try:
            os.close(
                os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), mode
                )
            )
            return path
        except FileExistsError:
            _unfinished.discard(path)  # another's
        except OSError:  # and no other: where a signal comes now, the file may be there
            _unfinished.discard(path)
            raise


@contextmanager
def text(path: str) -> Iterator[Callable[[str], object]]:
    """Yield what writes text to a file in UTF-8, compressed with gzip (one member) if its name ends
    in ``.gz``. Raises OSError: the disk is full, or the folder is gone."""
    with complete(path) as temporary, open(temporary, "wb", buffering=1 << 20) as file:
        if not path.endswith(".gz"):
            yield lambda text: file.write(text.encode())
        else:
            gzip = zlib.compressobj(LEVEL, wbits=31)
            yield lambda text: file.write(gzip.compress(text.encode()))
            file.write(gzip.flush())
        file.flush()


def copy(run: Run, query: str, path: str, options: str) -> None:
    """Have DuckDB write what a query of a run gives, to its end, into a file (``-``: standard
    output), with options of ``COPY``. Raises OSError: the disk is full, for instance;
    RunDirectoryError: the trace is damaged where it could not be seen before."""
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
    """A path as this terminal can show it."""
    path = visible(path, in_line=True)
    try:
        path.encode(getattr(sys.stdout, "encoding", None) or "utf-8")  # a closed stdout is None
    except UnicodeEncodeError:  # a name that is not text, or none in this encoding
        return ascii(path)[1:-1]
    return path
