"""Pythons that the program starts by ``subprocess`` and that may train: the ranks of a launcher, another script. They take part in its run.

Such a python has one variable more in its environment. The file of one line that is installed with voirkit (``follow.pth``) looks for it
when python starts, and it is gone before anything else runs there: neither ``os.environ`` of the program nor that of its child has it. A
child that is no python, or runs a tool or a module of the standard library, is started as ever. Not on Windows.
"""

from __future__ import annotations

import os
import sys

from voirkit.processes.python_words import LAUNCHERS, STARTS_RAY_WORKERS, how, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

VARIABLE = "VOIRKIT_FOLLOW"
HOOK = "voirkit_follow.pth"
_LONGEST = 100_000  # the kernel takes 128 KiB for one variable
_RANKS = (b"RANK=", b"LOCAL_RANK=", b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")

_replaced: list[tuple[Any, str, Any]] = []  # where what is changed in subprocess is, and what it was


def install(subprocess: ModuleType, offer: Callable[[], str | None], report: Callable[[str], None]) -> None:
    """From now on the program's pythons are handed something.

    Args:
        subprocess: The module.
        offer: What is handed to the next one, a text; None if there is nothing.
        report: Called, once, if a rank could not be reached.
    """
    global _replaced
    if _replaced or not hasattr(os, "putenv"):
        return
    owner, name = _where_fork_exec_is(subprocess)
    fork_exec = getattr(owner, name, None)
    if fork_exec is None:
        return
    reported: list[str] = []

    def started(*arguments: Any) -> Any:
        """As ``_posixsubprocess.fork_exec``: the words, what may be executed, whether to close files, which not, folder, environment."""
        try:
            chosen = arguments
            text = offer() if _may_train(arguments[0], arguments[1]) else None
            if text is not None and len(text) < _LONGEST:
                why = _why_not()
                if not why:
                    chosen = (*arguments[:5], _with(arguments[5], text), *arguments[6:])
                elif why not in reported and any(word.startswith(_RANKS) for word in arguments[5] or ()):
                    reported.append(why)
                    report(why)
        except Exception:  # the program's process is started, whatever becomes of this
            return fork_exec(*arguments)
        return fork_exec(*chosen)

    _replaced = [(owner, name, fork_exec)]
    setattr(owner, name, started)
    if getattr(subprocess, "_USE_POSIX_SPAWN", False) is True:
        _replaced.append((subprocess, "_USE_POSIX_SPAWN", True))
        subprocess._USE_POSIX_SPAWN = _ButForPythons()  # type: ignore[attr-defined]  # just asked for


def remove() -> None:
    """No more."""
    global _replaced
    for owner, name, original in _replaced:
        setattr(owner, name, original)
    _replaced = []


class _ButForPythons:
    """Stands for the True by which subprocess uses ``posix_spawn`` (with python 3.13, most often): not for what may train."""

    def __bool__(self) -> bool:
        try:
            names = sys._getframe(1).f_locals  # of subprocess.Popen._execute_child
            return not _may_train(names["args"], [os.fsencode(names["executable"])])
        except (KeyError, TypeError, ValueError):
            return True


class _Posix:
    """Stands for the module ``_posixsubprocess`` in python 3.10's subprocess; multiprocessing goes on with the module itself."""

    def __init__(self, module: Any) -> None:
        self.fork_exec = module.fork_exec


def _where_fork_exec_is(subprocess: Any) -> tuple[Any, str]:
    if hasattr(subprocess, "_fork_exec"):
        return subprocess, "_fork_exec"
    if hasattr(subprocess, "_posixsubprocess") and not isinstance(subprocess._posixsubprocess, _Posix):
        subprocess._posixsubprocess = _Posix(subprocess._posixsubprocess)
    return getattr(subprocess, "_posixsubprocess", None), "fork_exec"


def _with(environment: Sequence[bytes] | None, text: str) -> list[bytes]:
    """An environment with the variable."""
    return [*(_inherited() if environment is None else environment), f"{VARIABLE}={text}".encode()]


def _inherited() -> list[bytes]:
    """What a child would inherit: also what libraries have put there, which ``os.environ`` does not know."""
    try:
        from ctypes import CDLL, POINTER, c_char_p

        variables = POINTER(c_char_p).in_dll(CDLL(None), "environ")
        found: list[bytes] = []
        while variables[len(found)] is not None:
            found.append(variables[len(found)])
        return found
    except (ImportError, OSError, ValueError):
        return [name + b"=" + value for name, value in os.environb.items()]


def _may_train(words: Sequence[Any], executables: Sequence[bytes]) -> bool:
    """Whether a command runs a python program, or what starts such programs."""
    named = [os.fsdecode(word) for word in words]
    program = os.path.basename(os.fsdecode(executables[0])) if executables else ""
    if _is_python(program):
        return how(read(named), sys.stdlib_module_names) != "plain"
    if named[1:2] == ["-c"]:  # a shell, by whatever name
        return any(_is_python(word) or _name(word) in LAUNCHERS for word in " ".join(named[2:3]).split())
    return _name(program) in LAUNCHERS or program == STARTS_RAY_WORKERS


def _is_python(word: str) -> bool:
    return os.path.basename(word).startswith("python")


def _name(word: str) -> str:
    return os.path.basename(word).rstrip("0123456789.")


def _why_not() -> str:
    """Why this environment's pythons do not see the variable; empty if they do."""
    if any(os.path.exists(os.path.join(folder, HOOK)) for folder in sys.path):
        return ""
    return (
        f"the ranks that the script starts are not recorded: there is no {HOOK} in {sys.prefix}.\n"
        "  Install voirkit there (pip install voirkit), or have each rank run under it: torchrun -m voirkit SCRIPT"
    )
