"""Processes that the script starts and that voirkit does not look into are named where no training was seen."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest
from conftest import Place

from voirkit.processes import children, inherit, subprocesses
from voirkit.runner import completion
from voirkit.trace import layout

PYTHON = "/usr/bin/python3"
BUSY = "import time\nwhile time.process_time() < 0.8: pass\n"  # as long as importing torch


def shown(*words: str, program: str = "") -> str:
    return subprocesses._shown_if_may_train(list(words), program or words[0])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("bash", "jobs/train.sh", "3"), "bash train.sh"),
        (("/bin/sh", "-c", "cd x && ./train.sh > log"), "train.sh"),
        (("sh", "-c", "srun -n 2 ./run"), "srun"),
        (("./train.sh",), "train.sh"),
        (("mpirun", "-n", "2", "./train"), "mpirun"),
        ((PYTHON, "-c", "import train"), "python3 -c"),
        ((PYTHON, "train.py"), "python3 train.py"),
        ((PYTHON, "-m", "project.train"), "python3 project.train"),
    ],
)
def test_a_command_that_may_train_is_shown_by_its_beginning(
    words: tuple[str, ...], expected: str
) -> None:
    assert shown(*words) == expected


@pytest.mark.parametrize(
    "words",
    [
        ("git", "rev-parse", "HEAD"),
        ("sh", "-c", "git describe --tags"),
        ("nvidia-smi",),
        ("g++", "-shared", "x.cpp"),
        (PYTHON, "-m", "pip", "list"),
        (PYTHON, "-m", "venv", "x"),
        (PYTHON, "-c", "from voirkit.report.finish import main"),
    ],
)
def test_a_command_that_trains_nothing_is_not_shown(words: tuple[str, ...]) -> None:
    assert shown(*words) == ""


@pytest.mark.parametrize("has_voirkit", [True, False])
def test_a_python_of_another_environment_sees_what_it_is_handed_if_it_has_voirkit(
    tmp_path: Path, has_voirkit: bool
) -> None:
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    if has_voirkit:
        (packages / subprocesses.HOOK).touch()
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.touch()
    assert subprocesses._sees_variable([b"/nowhere/python3", bytes(python)]) is has_voirkit


def test_records_of_other_processes_are_counted_in_segments_that_are_longer(tmp_path: Path) -> None:
    record = struct.pack(layout.RECORD, 1, 2, 0, 0, 7)
    (tmp_path / "trace").mkdir()
    for pid, n in ((1, 0), (2, 5), (os.getpid(), 3)):
        written = bytes(layout.HEADER_BYTES) + n * record
        (tmp_path / "trace" / f"host-r0-{pid}-0.seg").write_bytes(
            written.ljust(layout.GRANULE, b"\0")
        )
    assert completion.records_of_others(str(tmp_path)) == {
        "host-r0-1-0.seg": 0,
        "host-r0-2-0.seg": 5,
    }


class PlantedChildren:
    """Processor time of children that have ended, as a test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used_s = 5.0
        monkeypatch.setattr(children, "_cpu_of_children_s", lambda: self.used_s)
        monkeypatch.setattr(subprocesses.programs, "unrecorded", [])
        self.processes = children.UnrecordedProcesses()


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> PlantedChildren:
    return PlantedChildren(monkeypatch)


def test_processes_that_used_no_time_are_not_named(planted: PlantedChildren) -> None:
    subprocesses.programs.unrecorded.append("bash train.sh")
    planted.used_s += 0.1
    assert planted.processes.commands() == []


def test_commands_are_named_once_children_have_used_time(planted: PlantedChildren) -> None:
    subprocesses.programs.unrecorded.append("bash train.sh")
    planted.used_s += 3.0
    assert planted.processes.commands() == ["bash train.sh"]


def test_time_that_no_known_child_explains_is_named(planted: PlantedChildren) -> None:
    planted.used_s += 3.0
    assert planted.processes.commands() == [
        "what os.system, os.posix_spawn or the like has started"
    ]


def test_time_of_children_that_were_looked_into_names_nothing(
    planted: PlantedChildren, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.used_s += 3.0
    monkeypatch.setattr(inherit.state, "n_handed", inherit.state.n_handed + 1)
    assert planted.processes.commands() == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_run_without_steps_names_what_was_not_looked_into(place: Place) -> None:
    place.write(
        {"train.sh": f"exec {sys.executable} busy.py\n"},
        busy=BUSY,
        main="import subprocess\nsubprocess.run(['sh', 'train.sh'], check=True)\nprint('done')\n",
    )
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (0, "done\n"), ended.err
    summary = ended.summary
    assert summary["unrecorded_processes"] == ["sh train.sh"]
    assert "sh train.sh" in summary["verdict"]["because"]
    assert "no optimizer step" not in summary["verdict"]["because"]
    [warning] = summary["warnings"]
    assert f"voirkit: {warning}\n" in ended.err


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_nothing_is_named_where_all_processes_were_looked_into(place: Place) -> None:
    place.write(
        busy=BUSY,
        main="import subprocess, sys\nsubprocess.run([sys.executable, 'busy.py'], check=True)\n",
    )
    summary = place.voirkit("main.py").summary
    assert "unrecorded_processes" not in summary
    assert summary["warnings"] == []
