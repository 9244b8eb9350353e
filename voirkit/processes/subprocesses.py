"""Pythons that the program starts by ``subprocess`` and that may train: the ranks of a launcher, another script. They take part in its run.

Such a python has one variable more in its environment. The file of one line that is installed with voirkit (``follow.pth``) looks for it
when python starts, and it is gone before anything else runs there: neither ``os.environ`` of the program nor that of its child has it. A
child that is no python, or runs a tool or a module of the standard library, is started as ever. Not on Windows.

Imports nothing: every python that a followed shell script starts loads this, to see by its own command line what it is.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

VARIABLE = "VOIRKIT_FOLLOW"
HOOK = "voirkit_follow.pth"
_LONGEST = 100_000  # the kernel takes 128 KiB for one variable
_RANKS = (b"RANK=", b"LOCAL_RANK=", b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")

# Programs that start the processes which train, each with its own name for the interpreter.
LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "colossalai", "composer", "horovodrun"})
LAUNCHER_MODULES = frozenset({
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner", "deepspeed.launcher.launch",
})  # fmt: skip
STARTS_RAY_WORKERS = "raylet"  # no python: it hands its environment to those that it starts
BECOMES_RAY_WORKER = "setup_worker.py"  # each of them executes a worker in its own place
# Programs that train nothing: installers, environments, and what shows or checks things. (The modules of the standard library are none.)
TOOLS = frozenset({
    "pip", "uv", "uvx", "pipx", "pipenv", "poetry", "hatch", "conda", "mamba", "virtualenv", "wheel", "build", "twine", "ninja", "cmake",
    "huggingface-cli", "hf", "gdown", "kaggle", "wandb", "mlflow", "tensorboard", "nvitop", "gpustat", "py-spy", "pre-commit", "black",
    "ruff", "mypy", "flake8", "isort", "jupyter", "ipython", "dvc", "aws", "gsutil",
})  # fmt: skip
SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "fish"})
# Programs that run another one, which may be a python: elsewhere, with other limits, or several times.
RUNNERS = frozenset({
    "mpirun", "mpiexec", "orterun", "srun", "sbatch", "docker", "podman", "singularity", "apptainer", "ssh", "sudo", "make", "env", "nohup",
    "time", "timeout", "nice", "taskset", "numactl", "xargs", "parallel", "conda", "mamba", "micromamba", "uv", "pixi", "poetry", "pipenv",
    "nsys", "ncu", "perf", "strace",
})  # fmt: skip
_MOST_UNRECORDED = 16  # commands that are kept

unrecorded: list[str] = []  # commands that may train, started from here and handed nothing, as they are shown
n_started = 0  # programs, of any kind, since there is something to hand over

_replaced: list[tuple[Any, str, Any]] = []  # where what is changed in subprocess is, and what it was


def install(subprocess: ModuleType, offer: Callable[[], str | None], report: Callable[[str], None]) -> None:
    """From now on the program's pythons are handed something.

    Args:
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
        global n_started
        n_started += 1
        chosen = arguments
        try:
            text = offer() if _may_train(arguments[0], arguments[1]) else None
            if text is not None and len(text) < _LONGEST:
                why = _why_not()
                if not why:
                    chosen = (*arguments[:5], _with(arguments[5], text), *arguments[6:])
                elif why not in reported and any(word.startswith(_RANKS) for word in arguments[5] or ()):
                    reported.append(why)
                    report(why)
            if chosen is arguments or not _sees_variable(arguments[1]):
                _note_unrecorded(arguments[0], arguments[1])
        except Exception:
            pass  # the program's process is started, whatever becomes of this
        return fork_exec(*chosen)

    unrecorded.clear()
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


def _note_unrecorded(words: Sequence[Any], executables: Sequence[bytes]) -> None:
    """Keep a command that may train, and that nothing was handed to."""
    shown = _shown_if_may_train([os.fsdecode(word) for word in words], os.fsdecode(executables[0]) if executables else "")
    if shown and shown not in unrecorded and len(unrecorded) < _MOST_UNRECORDED:
        unrecorded.append(shown)


def _shown_if_may_train(words: list[str], executable: str) -> str:
    """The beginning of a command that may run a training; empty for any other."""
    program = os.path.basename(executable)
    if _is_python(program):
        python = read(words)
        if python.kind in ("script", "module"):
            return "" if how(python, sys.stdlib_module_names) == "plain" else f"{program} {os.path.basename(python.name)}"
        return f"{program} -c" if python.kind == "command" and "voirkit" not in python.name else ""
    if _name(program) in SHELLS and words[1:2] == ["-c"]:
        inner = " ".join(words[2:3]).split()
        return next((os.path.basename(word) for word in inner if _may_lead_to_training(word)), "")
    if _name(program) in SHELLS:
        return " ".join([program, *map(os.path.basename, words[1:2])])
    return program if _may_lead_to_training(program) else ""


def _may_lead_to_training(word: str) -> bool:
    name = _name(word)
    return _is_python(word) or name in LAUNCHERS or name in RUNNERS or word.endswith((".sh", ".py"))


def _sees_variable(executables: Sequence[bytes]) -> bool:
    """Whether a python that is executed has voirkit, as far as is known here: one of another environment may have none."""
    path = next((os.fsdecode(one) for one in executables if os.path.exists(one)), "")
    prefix = os.path.dirname(os.path.dirname(path))
    if not _is_python(path) or prefix in (sys.prefix, sys.exec_prefix, os.path.dirname(os.path.dirname(sys.executable))):
        return True
    libraries = os.path.join(prefix, "lib")
    return any(
        os.path.exists(os.path.join(libraries, name, packages, HOOK))
        for name in (os.listdir(libraries) if os.path.isdir(libraries) else ())
        if _is_python(name)
        for packages in ("site-packages", "dist-packages")
    )


def _why_not() -> str:
    """Why this environment's pythons do not see the variable; empty if they do."""
    if any(os.path.exists(os.path.join(folder, HOOK)) for folder in sys.path):
        return ""
    return (
        f"the ranks that the script starts are not recorded: there is no {HOOK} in {sys.prefix}.\n"
        "  Install voirkit there (pip install voirkit), or have each rank run under it: torchrun -m voirkit SCRIPT"
    )


# a python's command line: the interpreter's own options, what it runs, and whether that is to be traced


class Python:
    """A command line of python.

    Attributes:
        options: The interpreter's own words, without its name.
        kind: ``script``, ``module``, ``command`` (``-c``), ``stdin``, or ``interactive``.
        name: Of the script or module.
        arguments: All that comes after it.
    """

    def __init__(self, options: Sequence[str], kind: str, name: str = "", arguments: Sequence[str] = ()) -> None:
        self.options, self.kind, self.name, self.arguments = list(options), kind, name, list(arguments)

    @property
    def program(self) -> str:
        """The command as people call it: ``pip`` of ``/usr/bin/pip3.11``."""
        if self.kind == "module":
            return self.name.removesuffix(".__main__")
        return self.name.rpartition("/")[2].removesuffix(".exe").rstrip("0123456789.")


def read(words: Sequence[str]) -> Python:
    """A python's command line (``sys.orig_argv``), its options as CPython 3.10 to 3.15 has them."""
    at = 1
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if word == "-" or not word.startswith("-"):
            break
        if word.startswith("--"):  # --check-hash-based-pycs MODE
            at += 2
            continue
        for i, letter in enumerate(word[1:], 1):
            if letter == "i":
                return Python(words[1:], "interactive")
            if letter in "cm":
                attached = word[i + 1 :]
                rest = [attached, *words[at + 1 :]] if attached else list(words[at + 1 :])
                options = [*words[1:at], *([word[:i]] if i > 1 else [])]
                return Python(options, "module" if letter == "m" else "command", rest[0] if rest else "", rest[1:])
            if letter in "WX":
                at += not word[i + 1 :]
                break
        at += 1
    if at >= len(words) or words[at] == "-":
        return Python(words[1:], "stdin")
    return Python([word for word in words[1:at] if word != "--"], "script", words[at], words[at + 1 :])


def how(python: Python, standard: frozenset[str] = frozenset()) -> str:
    """What becomes of it: ``run`` (under voirkit), ``launcher`` (what it starts is looked at), or ``plain``. Modules of the standard
    library train nothing."""
    if python.kind not in ("script", "module"):
        return "plain"
    program = python.program
    if program in (LAUNCHERS if python.kind == "script" else LAUNCHER_MODULES):
        return "launcher"
    root = program.partition(".")[0] if python.kind == "module" else program
    if root in TOOLS or root == "voirkit" or (python.kind == "module" and root in standard):
        return "plain"
    return "run"
