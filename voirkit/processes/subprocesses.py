"""Recording of Python processes that the program starts by ``subprocess`` and that may train:
ranks of a launcher, other scripts.

Such a process takes part in the program's run. Its environment gets one more variable,
``VARIABLE``. A one-line file that is installed with voirkit (``HOOK``) reads the variable when
Python starts, and removes it before anything else runs: it is in ``os.environ`` neither of the
program nor of its child. Other child processes start unchanged: those that do not run Python, and
those that run a tool or a module of the standard library. Not on Windows.

Imports nothing but os and sys, since every Python process that a followed shell script starts loads
this module to read its own command line.
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
_LONGEST = 100_000  # maximum length of the variable's text; the kernel allows 128 KiB for one
_RANKS = (b"RANK=", b"LOCAL_RANK=", b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")

# Launchers: programs that start the training processes.
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
# raylet is not a Python program, but the Python processes that it starts inherit its environment.
STARTS_RAY_WORKERS = "raylet"
BECOMES_RAY_WORKER = "setup_worker.py"  # started by raylet; replaces itself (exec) by a worker
# Programs that train nothing: installers, environment managers, viewers and checkers. Modules of
# the standard library train nothing either, but are not listed.
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
# Programs that run another program, which may be Python: on another machine, with other limits, or
# several times.
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
_MOST_UNRECORDED = 16  # maximum number of commands in ``StartedPrograms.unrecorded``


class StartedPrograms:
    """The programs of any kind that this process has started by ``subprocess`` since ``install``.

    Attributes:
        n_started: The number of programs.
        unrecorded: The commands, as shown to users, of programs that may train and are not
            recorded.
    """

    def __init__(self) -> None:
        self.n_started = 0
        self.unrecorded: list[str] = []


programs = StartedPrograms()

# the patched attributes of subprocess: owner, name and original value
_replaced: list[tuple[Any, str, Any]] = []


def install(
    subprocess: ModuleType, offer: Callable[[], str | None], report: Callable[[str], None]
) -> None:
    """Patch ``subprocess`` so that Python processes which the program starts are handed a text.

    Args:
        subprocess: The module.
        offer: Called for each process; returns the text to hand over, or None for nothing.
        report: Called once for each reason why ranks cannot be reached, with the reason.
    """
    if _replaced or not hasattr(os, "putenv"):
        return
    owner, name = _where_fork_exec_is(subprocess)
    fork_exec = getattr(owner, name, None)
    if fork_exec is None:
        return
    reported: list[str] = []

    def text_for(arguments: tuple[Any, ...]) -> str | None:
        """Return the text for a program; None if there is no text, or the program does not train or
        cannot take it. A rank that cannot be reached is reported."""
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
        """Replace ``_posixsubprocess.fork_exec``. The first six arguments are the command's words,
        the executables to try, whether to close files, the files to keep open, the folder and the
        environment."""
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
            pass  # the program's process must start in any case
        return fork_exec(*final_arguments)

    programs.unrecorded.clear()
    _replaced.append((owner, name, fork_exec))
    setattr(owner, name, start)
    if getattr(subprocess, "_USE_POSIX_SPAWN", False) is True:
        _replaced.append((subprocess, "_USE_POSIX_SPAWN", True))
        module: Any = subprocess
        module._USE_POSIX_SPAWN = _ButForPythons()


def remove() -> None:
    """Undo ``install``."""
    for owner, name, original in _replaced:
        setattr(owner, name, original)
    _replaced.clear()


class _ButForPythons:
    """Replacement for the flag with which subprocess allows itself to use ``posix_spawn`` (the
    usual way in Python 3.13): false for a command that may train, so that ``fork_exec`` is
    called."""

    def __bool__(self) -> bool:
        try:
            # the local variables of subprocess.Popen._execute_child
            names = sys._getframe(1).f_locals
            return not _may_train(names["args"], [os.fsencode(names["executable"])])
        except (KeyError, TypeError, ValueError):
            return True


class _Posix:
    """Replacement for the module ``_posixsubprocess`` in subprocess of Python 3.10; multiprocessing
    still uses the module itself."""

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
    """Return an environment with ``VARIABLE`` added; None stands for the inherited environment."""
    variables = _inherited() if environment is None else environment
    return [*variables, f"{VARIABLE}={text}".encode()]


def _is_rank(environment: Sequence[bytes] | None) -> bool:
    return any(word.startswith(_RANKS) for word in environment or ())


def _inherited() -> list[bytes]:
    """Return the environment that a child would inherit. It includes variables that C libraries
    have set and that ``os.environ`` does not show."""
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
    """True if a command runs a Python program that may train, or a program that starts such
    ones."""
    decoded = [os.fsdecode(word) for word in words]
    program = os.path.basename(os.fsdecode(executables[0])) if executables else ""
    if _is_python(program):
        return how(read(decoded), sys.stdlib_module_names) != "plain"
    if decoded[1:2] == ["-c"]:  # a shell, whatever its name
        inner = " ".join(decoded[2:3]).split()
        return any(_is_python(word) or _name(word) in LAUNCHERS for word in inner)
    return _name(program) in LAUNCHERS or program == STARTS_RAY_WORKERS


def _is_python(word: str) -> bool:
    return os.path.basename(word).startswith("python")


def _name(word: str) -> str:
    return os.path.basename(word).rstrip("0123456789.")


def _note_unrecorded(words: Sequence[Any], executables: Sequence[bytes]) -> None:
    """Add a command that is not recorded to ``programs.unrecorded``, if it may train."""
    decoded = [os.fsdecode(word) for word in words]
    executable = os.fsdecode(executables[0]) if executables else ""
    command = _shown_if_may_train(decoded, executable)
    commands = programs.unrecorded
    if command and command not in commands and len(commands) < _MOST_UNRECORDED:
        commands.append(command)


def _shown_if_may_train(words: list[str], executable: str) -> str:
    """Return the beginning of a command that may run a training; empty for any other command."""
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
    """True if the executed Python has voirkit's ``HOOK``: a Python of another environment may not.
    Also true for a program that is not Python."""
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
    """Return the reason why Python processes of this environment do not see ``VARIABLE``; empty if
    they do."""
    if any(os.path.exists(os.path.join(folder, HOOK)) for folder in sys.path):
        return ""
    return (
        f"the ranks that the script starts are not recorded: there is no {HOOK} in {sys.prefix}.\n "
        " Install voirkit there (pip install voirkit), or have each rank run under it: torchrun -m"
        " voirkit SCRIPT"
    )


# Parsing a Python command line, and deciding whether to record its program


class Python:
    """A Python command line.

    Attributes:
        options: The interpreter's options, without the name of the interpreter.
        kind: ``script``, ``module``, ``command`` (``-c``), ``stdin``, or ``interactive``.
        name: The script, the module or the text of the command; otherwise empty.
        arguments: The words after the name.
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
        """The program's plain name, such as ``pip`` for ``/usr/bin/pip3.11``."""
        if self.kind == "module":
            return self.name.removesuffix(".__main__")
        return self.name.rpartition("/")[2].removesuffix(".exe").rstrip("0123456789.")


def read(words: Sequence[str]) -> Python:
    """Parse a Python command line (``sys.orig_argv``), with the options of CPython 3.10 to 3.15."""
    index = 1
    while index < len(words):
        word = words[index]
        if word == "--":
            index += 1
            break
        if word == "-" or not word.startswith("-"):
            break
        if word.startswith("--"):  # such as --check-hash-based-pycs MODE
            index += 2
            continue
        position = _first_decisive_letter(word)
        letter = word[position : position + 1]
        if letter == "i":
            return Python(words[1:], "interactive")
        if letter in ("c", "m"):
            return _read_inline(words, index, position)
        if letter in ("W", "X") and position == len(word) - 1:
            index += 1  # the option's argument is the next word
        index += 1
    if index >= len(words) or words[index] == "-":
        return Python(words[1:], "stdin")
    options = [word for word in words[1:index] if word != "--"]
    return Python(options, "script", words[index], words[index + 1 :])


def _first_decisive_letter(word: str) -> int:
    """Return the position of the first of ``-i``, ``-c``, ``-m``, ``-W`` and ``-X`` in a word of
    short options; the word's length if there is none. No other option follows such a letter."""
    for position, letter in enumerate(word):
        if position and letter in "icmWX":
            return position
    return len(word)


def _read_inline(words: Sequence[str], index: int, position: int) -> Python:
    """Return a command line that has the letter of ``-c`` or ``-m`` at ``position`` in the word at
    ``index``."""
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
    """Return how to treat a Python command line.

    ``run`` means under voirkit; ``launcher`` that the programs which it starts are inspected;
    ``plain`` without voirkit. ``standard`` are the modules of the standard library, which train
    nothing.
    """
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
