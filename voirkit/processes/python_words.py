"""A python's command line: the interpreter's own options, what it runs, and whether that is to be traced.

Imports nothing: every python that a followed shell script starts loads this.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

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
OURS = "voirkit"


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
    """A python's command line (``sys.orig_argv``), its options as CPython 3.10 to 3.14 has them."""
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
    """What becomes of it: ``run`` (under voirkit), ``launcher`` (what it starts is looked at), or ``plain``.

    Args:
        python: Its command line.
        standard: The modules of the standard library.
    """
    if python.kind not in ("script", "module"):
        return "plain"
    program = python.program
    if program in (LAUNCHERS if python.kind == "script" else LAUNCHER_MODULES):
        return "launcher"
    root = program.partition(".")[0] if python.kind == "module" else program
    if root in TOOLS or root == OURS or (python.kind == "module" and root in standard):
        return "plain"
    return "run"
