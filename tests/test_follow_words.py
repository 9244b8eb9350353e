"""Command lines of python: what is to run under voirkit, and what is left alone."""

from __future__ import annotations

import sys

import pytest

from voirkit.processes import subprocesses
from voirkit.processes.subprocesses import how, read

STANDARD = frozenset(sys.stdlib_module_names)


@pytest.mark.parametrize(
    ("line", "options", "kind", "name", "arguments"),
    [
        ("python main.py --lr 1", "", "script", "main.py", "--lr 1"),
        ("python -u -OO -X dev -Wd main.py -c x", "-u -OO -X dev -Wd", "script", "main.py", "-c x"),
        (
            "python -W error -Xfrozen_modules=off main.py",
            "-W error -Xfrozen_modules=off",
            "script",
            "main.py",
            "",
        ),
        (
            "python --check-hash-based-pycs never main.py",
            "--check-hash-based-pycs never",
            "script",
            "main.py",
            "",
        ),
        ("python -m train.main --lr 1", "", "module", "train.main", "--lr 1"),
        ("python -um train.main a", "-u", "module", "train.main", "a"),
        ("python -mtrain a", "", "module", "train", "a"),
        ("python -I -- main.py -m x", "-I", "script", "main.py", "-m x"),
        ("python -Oc print(1) main.py", "-O", "command", "print(1)", "main.py"),
    ],
)
def test_a_command_line_is_read_as_python_reads_it(
    line: str, options: str, kind: str, name: str, arguments: str
) -> None:
    found = read(line.split())
    assert (found.options, found.kind, found.name, found.arguments) == (
        options.split(),
        kind,
        name,
        arguments.split(),
    )


@pytest.mark.parametrize(
    "line", ["python", "python -", "python - a", "python -u", "python -i main.py", "python -c pass"]
)
def test_what_is_no_program_of_a_file_or_module_is_left_alone(line: str) -> None:
    assert how(read(line.split())) == "plain"


@pytest.mark.parametrize(
    "line",
    [
        "python /venv/bin/pip3.11 install torch", "python -m pip install torch", "python /venv/bin/voirkit main.py", "python -m voirkit main.py",
        "python -m venv there", "python -m http.server", "python -m json.tool", "python /venv/bin/tensorboard",
    ],
)  # fmt: skip
def test_tools_are_left_alone(line: str) -> None:
    assert how(read(line.split()), STANDARD) == "plain"


@pytest.mark.parametrize(
    "line",
    [
        "python /venv/bin/torchrun main.py",
        "python -m torch.distributed.run main.py",
        "python /venv/bin/accelerate launch main.py",
    ],
)
def test_launchers_are_looked_through(line: str) -> None:
    assert how(read(line.split()), STANDARD) == "launcher"


@pytest.mark.parametrize(
    "line",
    [
        "python main.py",
        "python -m train",
        "python /venv/bin/litgpt finetune",
        "python -m mypackage.pip",
        "python ./torch/run.py",
    ],
)
def test_all_else_runs_under_voirkit(line: str) -> None:
    assert how(read(line.split()), STANDARD) == "run"


@pytest.mark.parametrize(
    ("words", "trains"),
    [
        (["ksh", "-c", "cd x && python main.py"], True),
        (["ksh", "-c", "ls"], False),
        (["ksh", "python"], False),
    ],
)
def test_a_shell_is_what_is_given_a_command_by_whatever_name(
    words: list[str], trains: bool
) -> None:
    assert (
        subprocesses._may_train(words, [b"/bin/ksh"]) is trains
    )  # private: no other shell need be installed
