"""A bug is found, with step and line, wherever the loop lives: in an imported module, under -m, in a thread, in a run that was killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from conftest import CLEAN

pytestmark = pytest.mark.long

pytest.importorskip("torch")

TRAINER = """
    import torch
    from torch import nn

    class Trainer:
        def __init__(self):
            torch.manual_seed(0)
            self.model = nn.Linear(4, 2)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def fit(self, steps):
            for step in range(steps):
                self.batch(torch.randn(8, 4))

        def batch(self, x):
            self.model(x).pow(2).mean().backward()  # here
            self.optimizer.step()
    """
PLANTED_AT = f"trainer.py:{dedent(TRAINER).lstrip().splitlines().index('        self.model(x).pow(2).mean().backward()  # here') + 1}"


def checked(folder: Path, main: str, *words: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """What the checks say, by name, of a program that trains with the trainer; it is in a package ``lib``."""
    (folder / "lib").mkdir()
    (folder / "lib" / "__init__.py").write_text("")
    (folder / "lib" / "trainer.py").write_text(dedent(TRAINER).lstrip())
    (folder / "main.py").write_text(dedent(main).lstrip())
    command = [
        sys.executable,
        "-m",
        "voirkit",
        "--checks",
        "--quiet",
        "--run-dir",
        "run",
        *(words or ("main.py",)),
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        env={**CLEAN, "OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    assert done.returncode == code, done.stderr
    report = [sys.executable, "-m", "voirkit", "report", "--json", "run"]
    said = subprocess.run(
        report, cwd=folder, capture_output=True, text=True, env=CLEAN, timeout=240, check=True
    )
    return {check["name"]: check for check in json.loads(said.stdout)["checks"]}


def assert_found(said: dict[str, dict[str, Any]]) -> None:
    found = [check for check in said.values() if check["found"]]
    assert [(check["name"], check["step"], check["where"]) for check in found] == [
        ("missing-zero-grad", 1, f"lib/{PLANTED_AT}")
    ]


def test_in_a_class_of_an_imported_module(tmp_path: Path) -> None:
    assert_found(checked(tmp_path, "from lib.trainer import Trainer\nTrainer().fit(6)\n"))


def test_under_m(tmp_path: Path) -> None:
    assert_found(
        checked(tmp_path, "from lib.trainer import Trainer\nTrainer().fit(6)\n", "-m", "main")
    )


def test_in_a_thread(tmp_path: Path) -> None:
    main = """
        import threading
        from lib.trainer import Trainer
        thread = threading.Thread(target=Trainer().fit, args=(6,))
        thread.start()
        thread.join()
        """
    assert_found(checked(tmp_path, main))


def test_in_a_run_that_is_killed(tmp_path: Path) -> None:
    main = """
        import os, signal
        from lib.trainer import Trainer
        Trainer().fit(6)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    assert_found(checked(tmp_path, main, code=-signal.SIGKILL))
