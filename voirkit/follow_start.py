"""Loaded by each python that starts while ``voirkit --follow`` follows a shell script, before anything else: has it run under voirkit.

``follow.pth``, installed with voirkit, imports this if ``$VOIRKIT_FOLLOW`` is set: a folder that ``voirkit.follow`` made. The process then
executes ``python -m voirkit`` in its own place, with the same id, folder, files and interpreter options; the variable is gone there, so
that what the program itself starts is part of its run and none of its own. Must never keep a python from starting, and imports nothing
that python has not loaded by then.
"""

from __future__ import annotations

import os
import sys

from voirkit.follow_words import how, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = "VOIRKIT_FOLLOW"
OPTIONS, RUN_DIR = "options", "run-dir"  # files: voirkit's options for each run; the directory of the first run, if it was given
NOTE = "python-"  # what the names of notes begin with
END = "\0"  # of each word in a file: no command line has it


def begin(folder: str) -> None:
    """Note this python, and run it under voirkit if that is to be."""
    python = read(sys.orig_argv)
    becomes = how(python, sys.stdlib_module_names)
    if becomes == "run" and python.kind == "script" and not os.path.exists(python.name):
        becomes = "plain"  # python tells that best
    try:
        options = words_in(os.path.join(folder, OPTIONS)) if becomes == "run" else []
        wanted = words_in(os.path.join(folder, RUN_DIR)) if becomes == "run" else []
        run_dir = _place(folder, wanted[0]) if wanted else ""
        facts = [str(os.getpid()), str(os.getppid()), becomes, os.environ.get("RANK", ""), os.getcwd(), run_dir, python.kind]
        _note(folder, [*facts, python.name, *python.arguments])
    finally:
        if becomes != "launcher":
            del os.environ[FOLDER]
    if becomes == "run":
        options += ["--run-dir", run_dir] if run_dir else []
        target = ["-m", python.name] if python.kind == "module" else ["--", python.name]
        os.execv(sys.executable, [sys.orig_argv[0], *python.options, "-m", "voirkit", *options, *target, *python.arguments])


def words_in(path: str) -> list[str]:
    """The words in a file; none if it is not there."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read().split(END)[:-1]
    except FileNotFoundError:
        return []


def write_words(path: str, words: Sequence[str]) -> None:
    """Make a file of words.

    Raises:
        FileExistsError: There is one.
    """
    file = os.open(path, os.O_WRONLY | os.O_EXCL | os.O_CREAT, 0o600)
    try:
        os.write(file, "".join(f"{word}{END}" for word in words).encode(errors="surrogateescape"))
    finally:
        os.close(file)


def _place(folder: str, wanted: str) -> str:
    """The directory of this run: the one that was asked for, or, for a second run and later ones, with a number; ranks share theirs."""
    own = f"of-{os.getppid()}" if "RANK" in os.environ else str(os.getpid())
    number = 1
    while True:
        slot = os.path.join(folder, f"slot-{number}")
        try:
            os.symlink(own, slot)
        except FileExistsError:
            if os.readlink(slot) != own or own == str(os.getpid()):
                number += 1
                continue
        return wanted if number == 1 else f"{wanted}-{number}"


def _note(folder: str, words: Sequence[str]) -> None:
    number = 0
    while True:  # a process may become one python after the other
        try:
            return write_words(os.path.join(folder, f"{NOTE}{os.getpid()}-{number}"), words)
        except FileExistsError:
            number += 1


if os.path.isdir(os.environ.get(FOLDER, "")):
    begin(os.environ[FOLDER])
