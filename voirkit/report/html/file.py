"""Where an HTML page goes: a file of its own, whole or not at all, that replaces nothing but a page that voirkit made; or stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from voirkit.errors import CommandLineError, VoirkitError
from voirkit.report.html.document import MARK
from voirkit.report.output import STDOUT, complete

NAME = "report.html"  # of a run's, in its directory
_ENDS = (".html", ".htm")
_STDOUT = (STDOUT, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


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
    if target in _STDOUT:
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
        path.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a name that is no text, or none in this encoding
        return ascii(path)[1:-1]
    return path
