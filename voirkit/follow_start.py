"""Start-up code, run by ``follow.pth`` in each Python process if ``$VOIRKIT_FOLLOW`` is set.

It runs before anything else in the process. The variable has one of two values:

- A folder that ``voirkit --follow`` made. The process replaces itself by ``python -m voirkit``,
  with the same process id, working directory, open files and interpreter options.
- Data that a program under voirkit hands to the Python processes that it starts (see
  ``subprocesses``). The process takes part in that run as soon as it imports torch.

The variable is removed before the program itself runs, so that the program's own child processes
do not get it. Only a launcher keeps the folder, for the processes that it starts, and the
set-up program of Ray keeps the data, for the worker that it becomes. This module must never keep
Python from starting, and imports nothing that Python has not loaded by then.
"""

from __future__ import annotations

import os
import sys

from voirkit.processes.subprocesses import BECOMES_RAY_WORKER, how, read
from voirkit.trust import is_own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

FOLDER = "VOIRKIT_FOLLOW"
# names of files in the folder: one holds voirkit's options for each run, the other the directory of
# the first run, if the user gave one
OPTIONS, RUN_DIR = "options", "run-dir"
NOTE = "python-"  # prefix of the files that each describe a Python process
END = "\0"  # terminates each word in a file; no command line can contain it


def follow(folder: str) -> None:
    """Record this Python process in the folder. Run it under voirkit if it may train (``how``)."""
    python = read(sys.orig_argv)
    becomes = how(python, sys.stdlib_module_names)
    if becomes == "run" and python.kind == "script" and not os.path.exists(python.name):
        becomes = "plain"  # the file is missing: Python's own message is best
    try:
        options = words_in(os.path.join(folder, OPTIONS)) if becomes == "run" else []
        run_dir_words = words_in(os.path.join(folder, RUN_DIR)) if becomes == "run" else []
        run_dir = _place(folder, run_dir_words[0]) if run_dir_words else ""
        facts = [
            str(os.getpid()),
            str(os.getppid()),
            becomes,
            os.environ.get("RANK", ""),
            os.getcwd(),
            run_dir,
            python.kind,
        ]
        _note(folder, [*facts, python.name, *python.arguments])
    finally:
        if becomes != "launcher":
            del os.environ[FOLDER]
    if becomes == "run":
        options += ["--run-dir", run_dir] if run_dir else []
        target = ["-m", python.name] if python.kind == "module" else ["--", python.name]
        os.execv(
            sys.executable,
            [
                sys.orig_argv[0],
                *python.options,
                "-m",
                "voirkit",
                *options,
                *target,
                *python.arguments,
            ],
        )


def words_in(path: str) -> list[str]:
    """Return the words in a file, or an empty list if the file does not exist."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read().split(END)[:-1]
    except FileNotFoundError:
        return []


def write_words(path: str, words: Sequence[str]) -> None:
    """Create a file that holds the given words."""
    file = os.open(path, os.O_WRONLY | os.O_EXCL | os.O_CREAT, 0o600)
    try:
        os.write(file, "".join(f"{word}{END}" for word in words).encode(errors="surrogateescape"))
    finally:
        os.close(file)


def _place(folder: str, run_dir: str) -> str:
    """Return the directory of this run: the requested one, with a number appended from the second
    run on. Ranks with the same parent process share one directory."""
    suffix = f"of-{os.getppid()}" if "RANK" in os.environ else str(os.getpid())
    number = 1
    while True:
        slot = os.path.join(folder, f"slot-{number}")
        try:
            os.symlink(suffix, slot)
        except FileExistsError:
            if os.readlink(slot) != suffix or suffix == str(os.getpid()):
                number += 1
                continue
        return run_dir if number == 1 else f"{run_dir}-{number}"


def _note(folder: str, words: Sequence[str]) -> None:
    number = 0
    while True:  # a process may replace itself by another Python several times
        try:
            return write_words(os.path.join(folder, f"{NOTE}{os.getpid()}-{number}"), words)
        except FileExistsError:
            number += 1


class TakingPart:
    """Import finder that joins a run when the program first imports a module such as torch.

    It is first in ``sys.meta_path`` until then. A program that never imports such a module has no
    other overhead.

    Args:
        offers: Data that the process which started this one has handed over.
    """

    def __init__(self, offers: str) -> None:
        self._offers = offers

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Join the run if the module is an awaited one, and let the other finders find it."""
        if name not in _AWAITED or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        try:
            from base64 import urlsafe_b64decode
            from pickle import loads

            loads(urlsafe_b64decode(self._offers))  # unpickling joins the run: see inherit
        except Exception as exc:  # the program must start in any case
            if sys.stderr is not None:
                print(
                    "voirkit: sees nothing in a process that the program has started"
                    f" ({type(exc).__name__}: {exc}).",
                    file=sys.stderr,
                )
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None


_AWAITED = ("torch", "dftracer", "voir")
_value = os.environ.get(FOLDER, "")
if os.path.isdir(_value):
    if is_own(_value):  # not another user's, which could choose voirkit's options
        follow(_value)
    else:
        del os.environ[FOLDER]
elif _value and (_python := read(sys.orig_argv)).program != BECOMES_RAY_WORKER:
    del os.environ[FOLDER]
    # a "plain" Python process, such as an installer or voirkit itself, does not take part
    if how(_python, sys.stdlib_module_names) != "plain":
        sys.meta_path.insert(0, TakingPart(_value))
