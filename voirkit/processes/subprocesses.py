"""Pythons that the program starts by ``subprocess`` and that may train: the ranks of a launcher,
another script. They take part in its run.

Such a python has one variable more in its environment. The file of one line that is installed with
voirkit (``follow.pth``) looks for it when python starts, and it is gone before anything else runs
there: neither ``os.environ`` of the program nor that of its child has it. A child that is no
python, or runs a tool or a module of the standard library, is started as ever. Not on Windows.

Imports nothing: every python that a followed shell script starts loads this, to see by its own
command line what it is.
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
LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "colossalai", "composer", "horovodrun"}
)
LAUNCHER_MODULES = frozenset(
    {
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.launch",
        "accelerate.commands.accelerate_cli",
        "deepspeed.launcher.runner",
        "deepspeed.launcher.launch",
    }
)
STARTS_RAY_WORKERS = "raylet"  # no python: it hands its environment to those that it starts
BECOMES_RAY_WORKER = "setup_worker.py"  # each of them executes a worker in its own place
# Programs that train nothing: installers, environments, viewers and checkers. (The modules of the
# standard library are none.)
TOOLS = frozenset(
    {
        "pip",
        "uv",
        "uvx",
        "pipx",
        "pipenv",
        "poetry",
        "hatch",
        "conda",
        "mamba",
        "virtualenv",
        "wheel",
        "build",
        "twine",
        "ninja",
        "cmake",
        "huggingface-cli",
        "hf",
        "gdown",
        "kaggle",
        "wandb",
        "mlflow",
        "tensorboard",
        "nvitop",
        "gpustat",
        "py-spy",
        "pre-commit",
        "black",
        "ruff",
        "mypy",
        "flake8",
        "isort",
        "jupyter",
        "ipython",
        "dvc",
        "aws",
        "gsutil",
    }
)
SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "fish"})
# Programs that run another one, which may be a python: elsewhere, with other limits, or several
# times.
RUNNERS = frozenset(
    {
        "mpirun",
        "mpiexec",
        "orterun",
        "srun",
        "sbatch",
        "docker",
        "podman",
        "singularity",
        "apptainer",
        "ssh",
        "sudo",
        "make",
        "env",
        "nohup",
        "time",
        "timeout",
        "nice",
        "taskset",
        "numactl",
        "xargs",
        "parallel",
        "conda",
        "mamba",
        "micromamba",
        "uv",
        "pixi",
        "poetry",
        "pipenv",
        "nsys",
        "ncu",
        "perf",
        "strace",
    }
)
_MOST_UNRECORDED = 16  # commands that are kept


class StartedPrograms:
    """The programs that were started from here, of any kind, since there is something to hand
    over.

    Attributes:
        n_started: Their number.
        unrecorded: The commands of those that may train and were handed nothing, as they are shown.
    """

    def __init__(self) -> None:
        self.n_started = 0
        self.unrecorded: list[str] = []


programs = StartedPrograms()

# the changes in subprocess: owner, name, and the original
_replaced: list[tuple[Any, str, Any]] = []


def install(
    subprocess: ModuleType, offer: Callable[[], str | None], report: Callable[[str], None]
) -> None:
    """From now on the program's pythons are handed something.

    Args:
        offer: Called for the text that is handed to the next one; None if there is nothing.
        report: Called, once, if a rank could not be reached.
    """
    if _replaced or not hasattr(os, "putenv"):
        return
    owner, name = _where_fork_exec_is(subprocess)
    fork_exec = getattr(owner, name, None)
    if fork_exec is None:
        return
    reported: list[str] = []

    def text_for(arguments: tuple[Any, ...]) -> str | None:
        """The offer for a program, if it is to be handed one that it can take."""
        text = offer() if _may_train(arguments[0], arguments[1]) else None
        if text is None or len(text) >= _LONGEST:
            return None
        why = _why_not()
        if not why:
            return text
        if why not in reported and _is_rank(arguments[5]):
            reported.append(why)
            report(why)
        return None

    def start(*arguments: Any) -> Any:
        """As ``_posixsubprocess.fork_exec``: the words, what may be executed, whether to close
        files, which not, folder, environment."""
        programs.n_started += 1
        final_arguments = arguments
        try:
            text = text_for(arguments)
            if text is not None:
                environment = _with(arguments[5], text)
                final_arguments = (*arguments[:5], environment, *arguments[6:])
            if text is None or not _sees_variable(arguments[1]):
                _note_unrecorded(arguments[0], arguments[1])
        except Exception:
            pass  # the program's process is started, whatever becomes of this
        return fork_exec(*final_arguments)

    programs.unrecorded.clear()
    _replaced.append((owner, name, fork_exec))
    setattr(owner, name, start)
    if getattr(subprocess, "_USE_POSIX_SPAWN", False) is True:
        _replaced.append((subprocess, "_USE_POSIX_SPAWN", True))
        module: Any = subprocess
        module._USE_POSIX_SPAWN = _ButForPythons()


def remove() -> None:
    """No more."""
    for owner, name, original in _replaced:
        setattr(owner, name, original)
    _replaced.clear()


class _ButForPythons:
    """Stands for the True by which subprocess uses ``posix_spawn`` (with python 3.13, most often):
    not for what may train."""

    def __bool__(self) -> bool:
        try:
            names = sys._getframe(1).f_locals  # of subprocess.Popen._execute_child
            return not _may_train(names["args"], [os.fsencode(names["executable"])])
        except (KeyError, TypeError, ValueError):
            return True


class _Posix:
    """Stands for the module ``_posixsubprocess`` in python 3.10's subprocess; multiprocessing goes
    on with the module itself."""

    def __init__(self, module: Any) -> None:
        self.fork_exec = module.fork_exec


def _where_fork_exec_is(subprocess: Any) -> tuple[Any, str]:
    if hasattr(subprocess, "_fork_exec"):
        return subprocess, "_fork_exec"
    module = getattr(subprocess, "_posixsubprocess", None)
    if module is not None and not isinstance(module, _Posix):
        module = _Posix(module)
        subprocess._posixsubprocess = module
    return module, "fork_exec"


def _with(environment: Sequence[bytes] | None, text: str) -> list[bytes]:
    """An environment with the variable."""
    variables = _inherited() if environment is None else environment
    return [*variables, f"{VARIABLE}={text}".encode()]


def _is_rank(environment: Sequence[bytes] | None) -> bool:
    return any(word.startswith(_RANKS) for word in environment or ())


def _inherited() -> list[bytes]:
    """The variables that a child would inherit: also those that libraries have set, which
    ``os.environ`` does not know."""
    try:
        from ctypes import CDLL, POINTER, c_char_p

        environ = POINTER(c_char_p).in_dll(CDLL(None), "environ")
        variables: list[bytes] = []
        while environ[len(variables)] is not None:
            variables.append(environ[len(variables)])
        return variables
    except (ImportError, OSError, ValueError):
        return [name + b"=" + value for name, value in os.environb.items()]


def _may_train(words: Sequence[Any], executables: Sequence[bytes]) -> bool:
    """True if a command runs a python program, or a program that starts such ones."""
    decoded = [os.fsdecode(word) for word in words]
    program = os.path.basename(os.fsdecode(executables[0])) if executables else ""
    if _is_python(program):
        return how(read(decoded), sys.stdlib_module_names) != "plain"
    if decoded[1:2] == ["-c"]:  # a shell, by whatever name
        inner = " ".join(decoded[2:3]).split()
        return any(_is_python(word) or _name(word) in LAUNCHERS for word in inner)
    return _name(program) in LAUNCHERS or program == STARTS_RAY_WORKERS


def _is_python(word: str) -> bool:
    return os.path.basename(word).startswith("python")


def _name(word: str) -> str:
    return os.path.basename(word).rstrip("0123456789.")


def _note_unrecorded(words: Sequence[Any], executables: Sequence[bytes]) -> None:
    """Keep a command that may train, and that nothing was handed to."""
    decoded = [os.fsdecode(word) for word in words]
    executable = os.fsdecode(executables[0]) if executables else ""
    command = _shown_if_may_train(decoded, executable)
    commands = programs.unrecorded
    if command and command not in commands and len(commands) < _MOST_UNRECORDED:
        commands.append(command)


def _shown_if_may_train(words: list[str], executable: str) -> str:
    """The beginning of a command that may run a training; empty for any other."""
    program = os.path.basename(executable)
    if _is_python(program):
        return _python_if_may_train(program, read(words))
    if _name(program) in SHELLS and words[1:2] == ["-c"]:
        for word in " ".join(words[2:3]).split():
            if _may_lead_to_training(word):
                return os.path.basename(word)
        return ""
    if _name(program) in SHELLS:
        return " ".join([program, *map(os.path.basename, words[1:2])])
    return program if _may_lead_to_training(program) else ""


def _python_if_may_train(program: str, python: Python) -> str:
    if python.kind == "command":
        return "" if "voirkit" in python.name else f"{program} -c"
    if python.kind not in ("script", "module") or how(python, sys.stdlib_module_names) == "plain":
        return ""
    return f"{program} {os.path.basename(python.name)}"


def _may_lead_to_training(word: str) -> bool:
    name = _name(word)
    return _is_python(word) or name in LAUNCHERS or name in RUNNERS or word.endswith((".sh", ".py"))


def _sees_variable(executables: Sequence[bytes]) -> bool:
    """True if a python that is executed has voirkit, as far as is known here: one of another
    environment may have none."""
    path = ""
    for executable in executables:
        if os.path.exists(executable):
            path = os.fsdecode(executable)
            break
    prefix = _prefix_of(path)
    if not _is_python(path) or prefix in (
        sys.prefix,
        sys.exec_prefix,
        _prefix_of(sys.executable),
    ):
        return True
    libraries = os.path.join(prefix, "lib")
    names = os.listdir(libraries) if os.path.isdir(libraries) else ()
    return any(
        os.path.exists(os.path.join(libraries, name, packages, HOOK))
        for name in names
        if _is_python(name)
        for packages in ("site-packages", "dist-packages")
    )


def _prefix_of(executable: str) -> str:
    return os.path.dirname(os.path.dirname(executable))


def _why_not() -> str:
    """Why this environment's pythons do not see the variable; empty if they do."""
    if any(os.path.exists(os.path.join(folder, HOOK)) for folder in sys.path):
        return ""
    return (
        f"the ranks that the script starts are not recorded: there is no {HOOK} in {sys.prefix}.\n "
        " Install voirkit there (pip install voirkit), or have each rank run under it: torchrun -m"
        " voirkit SCRIPT"
    )


# a python's command line: the interpreter's own options, the program, and whether that is to be
# traced


class Python:
    """A command line of python.

    Attributes:
        options: The interpreter's own words, without its name.
        kind: ``script``, ``module``, ``command`` (``-c``), ``stdin``, or ``interactive``.
        name: Of the script or module.
        arguments: All that comes after it.
    """

    def __init__(
        self, options: Sequence[str], kind: str, name: str = "", arguments: Sequence[str] = ()
    ) -> None:
        self.options = list(options)
        self.kind = kind
        self.name = name
        self.arguments = list(arguments)

    @property
    def program(self) -> str:
        """The command as people call it: ``pip`` of ``/usr/bin/pip3.11``."""
        if self.kind == "module":
            return self.name.removesuffix(".__main__")
        return self.name.rpartition("/")[2].removesuffix(".exe").rstrip("0123456789.")


def read(words: Sequence[str]) -> Python:
    """A python's command line (``sys.orig_argv``), its options as CPython 3.10 to 3.15 has them."""
    index = 1
    while index < len(words):
        word = words[index]
        if word == "--":
            index += 1
            break
        if word == "-" or not word.startswith("-"):
            break
        if word.startswith("--"):  # --check-hash-based-pycs MODE
            index += 2
            continue
        position = _first_decisive_letter(word)
        letter = word[position : position + 1]
        if letter == "i":
            return Python(words[1:], "interactive")
        if letter in ("c", "m"):
            return _read_inline(words, index, position)
        if letter in ("W", "X") and position == len(word) - 1:
            index += 1  # its argument is the next word
        index += 1
    if index >= len(words) or words[index] == "-":
        return Python(words[1:], "stdin")
    options = [word for word in words[1:index] if word != "--"]
    return Python(options, "script", words[index], words[index + 1 :])


def _first_decisive_letter(word: str) -> int:
    """The place of the first letter, in a word of short options, behind which none follows; the
    word's length if there is none."""
    for position, letter in enumerate(word):
        if position and letter in "icmWX":
            return position
    return len(word)


def _read_inline(words: Sequence[str], index: int, position: int) -> Python:
    """A command line with ``-c`` or ``-m`` at a place of one of its words."""
    word = words[index]
    following = list(words[index + 1 :])
    attached = word[position + 1 :]
    if attached:
        following = [attached, *following]
    options = list(words[1:index])
    if position > 1:
        options.append(word[:position])
    kind = "module" if word[position] == "m" else "command"
    return Python(options, kind, following[0] if following else "", following[1:])


def how(python: Python, standard: frozenset[str] = frozenset()) -> str:
    """How it is started: ``run`` (under voirkit), ``launcher`` (the programs that it starts are
    inspected), or ``plain``. Modules of the standard library train nothing."""
    program = python.program
    if python.kind == "script":
        launchers = LAUNCHERS
        plain_programs = TOOLS
    elif python.kind == "module":
        launchers = LAUNCHER_MODULES
        plain_programs = TOOLS | standard
    else:
        return "plain"
    if program in launchers:
        return "launcher"
    root = program.partition(".")[0] if python.kind == "module" else program
    return "plain" if root in plain_programs or root == "voirkit" else "run"
