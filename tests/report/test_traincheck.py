"""Real TrainCheck 0.2.0, in an environment of its own, reads ``--format traincheck``: run by ``make test-readers``.

From a good run ``traincheck-infer`` finds invariants; ``traincheck-check`` finds them broken by the same script with a bug, and by no other
good run.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from annotated import readers
from conftest import CLEAN, Place

pytestmark = [pytest.mark.readers, pytest.mark.timeout(900)]

# Words on the command line plant bugs and the like; the loop and the model lie in a module of their own.
PROGRAM = """
import os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import training

def main(words):
    torch.manual_seed(next((int(word[5:]) for word in words if word.startswith("seed=")), 0))
    if "ranks" in words:
        torch.distributed.init_process_group("gloo")
    samples = TensorDataset(torch.randn(80, 16), torch.randint(0, 4, (80,)))
    loader = DataLoader(samples, batch_size=8, shuffle="ranks" not in words, num_workers=2 * ("workers" in words))
    training.Trainer(training.Net(), loader, words).fit()

if __name__ == "__main__":
    main(sys.argv[1:])
"""
TRAINING = """
import os, signal
import torch
import torch.nn.functional as F

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(16, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        return F.log_softmax(self.out(F.relu(self.hidden(x))), dim=1)

class Trainer:
    def __init__(self, net, loader, words):
        self.loader, self.words = loader, words
        if "frozen" in words:  # in the optimizer; what is trained is not
            net.requires_grad_(False)
        self.head = torch.nn.Linear(4, 4)
        self.net = torch.nn.parallel.DistributedDataParallel(net) if "ranks" in words else net
        self.optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)

    def fit(self):
        for n, (x, y) in enumerate(self.loader):
            if "forgets" not in self.words:
                self.optimizer.zero_grad()
            loss = F.nll_loss(self.head(self.net(x)), y)
            loss.backward()
            self.optimizer.step()
            if n == 6:
                self.happens()
            if "diverges" in self.words and n > 3 and torch.distributed.get_rank():
                with torch.no_grad():
                    self.net.module.out.bias += 0.01

    def happens(self):
        if "raises" in self.words:
            self.net(torch.zeros(2, 5))
        if "killed" in self.words:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A folder with the program."""
    return Place(tmp_path_factory.mktemp("traincheck")).write(main=PROGRAM, training=TRAINING)


@pytest.fixture(scope="module")
def exported(place: Place) -> Callable[..., Path]:
    """The folder of the export of a run with these words; each run is made once."""
    made: dict[str, Path] = {}

    def run(*words: str, calls: str | None = None, code: int = 0) -> Path:
        name = "-".join(("run", *words, calls or ""))
        if name not in made:
            flags = ["--calls", calls] if calls else ["--calls"]
            ran = place.python(
                "-m",
                "voirkit",
                "--quiet",
                "--run-dir",
                name,
                *flags,
                "--parameters",
                "main.py",
                *words,
                timeout=600,
            )
            assert ran.code == code, ran.err
            made[name] = export(place, name)
        return made[name]

    return run


def export(place: Place, name: str) -> Path:
    ended = place.python(
        "-m", "voirkit", "export", name, "--format", "traincheck", "-o", f"{name}-traincheck"
    )
    assert (ended.code, ended.err) == (0, "")
    folder = place.folder / f"{name}-traincheck"
    assert sorted(map(Path, ended.out.split())) == sorted(
        path.relative_to(place.folder) for path in folder.iterdir()
    )
    return folder


def tool(name: str, *words: str | Path, cwd: Path) -> None:
    done = subprocess.run(
        [readers() / "traincheck" / "bin" / name, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=800,
        env={**CLEAN, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}"


def infer(trace: Path) -> Path:
    """The file of the invariants of a trace."""
    found = trace.with_suffix(".invariants")
    if not found.exists():
        tool("traincheck-infer", "-f", trace, "-o", found, cwd=trace.parent)
    return found


def said(invariants: Path) -> list[str]:
    return [json.loads(line)["text_description"] for line in invariants.read_text().splitlines()]


def broken(trace: Path, invariants: Path) -> list[str]:
    """What of the invariants does not hold for a trace."""
    results = trace.parent / f"results-{trace.name}-{invariants.stem}"
    tool(
        "traincheck-check",
        "-f",
        trace,
        "-i",
        invariants,
        "-o",
        results,
        "--no-html-report",
        cwd=trace.parent,
    )
    text = "".join(path.read_text() for path in results.rglob("failed.log"))
    found, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        one, end = decoder.raw_decode(text)
        found.append(one["invariant"]["text_description"])
        text = text[end:]
    return found


GOOD = {
    "Optimizer.zero_grad() always occurs when Adam.step() is called",
    "Adam.step() always precedes Optimizer.zero_grad()",
    "Adam.step() changes Parameter.data: non-zero --> non-zero",
    "Optimizer.zero_grad() changes Parameter.grad: non-zero --> None",
    "Linear.forward() receives distinct arguments at each step",
    "Linear.forward() consistently returns tensors with dtype=torch.float32",
}


def test_invariants_are_found_in_a_good_run(exported: Callable[..., Path]) -> None:
    found = said(infer(exported("seed=0")))
    assert set(found) >= GOOD - {"Linear.forward() receives distinct arguments at each step"}
    assert len(found) >= 18


def test_they_hold_for_that_run_and_for_another(exported: Callable[..., Path]) -> None:
    invariants = infer(exported("seed=0"))
    assert broken(exported("seed=0"), invariants) == []
    assert broken(exported("seed=1"), invariants) == []
    assert broken(exported("seed=2", "workers"), invariants) == []


def test_a_missing_zero_grad_breaks_those_that_name_it(exported: Callable[..., Path]) -> None:
    found = broken(exported("forgets"), infer(exported("seed=0")))
    assert {
        one
        for one in GOOD
        if "zero_grad() always occurs" in one or one.endswith("precedes Optimizer.zero_grad()")
    } <= set(found)
    assert all("Optimizer.zero_grad()" in one for one in found)


def test_frozen_parameters_in_the_optimizer_break_what_step_and_zero_grad_do(
    exported: Callable[..., Path],
) -> None:
    found = broken(exported("frozen"), infer(exported("seed=0")))
    assert {one for one in GOOD if "changes Parameter" in one} <= set(found)


def test_ranks_agree_and_diverging_ones_break_that(place: Place) -> None:
    def run(*words: str) -> Path:
        name = "-".join(words)
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
        ]
        command = [
            *torchrun,
            "-m",
            "voirkit",
            "--quiet",
            "--run-dir",
            name,
            "--calls",
            "--parameters=1",
            "main.py",
            "ranks",
            *words,
        ]
        ended = place.run(*command, timeout=600)
        assert ended.code == 0, ended.err
        return export(place, name)

    good = run("seed=0")
    assert len(list(good.iterdir())) == 2
    invariants = infer(good)
    consistent = "Parameter.data stays consistent across training steps"
    assert consistent in said(invariants)
    assert broken(good, invariants) == []
    assert broken(run("seed=1"), invariants) == []
    assert consistent in broken(run("diverges"), invariants)


def test_a_run_that_was_killed_is_read(exported: Callable[..., Path]) -> None:
    trace = exported("killed", code=-signal.SIGKILL)
    assert len(said(infer(trace))) >= 18
    assert broken(trace, infer(exported("seed=0"))) == []


def test_a_run_that_raised_is_read(exported: Callable[..., Path]) -> None:
    trace = exported("raises", code=1)
    assert len(said(infer(trace))) >= 18
    assert any("Linear.forward()" in one for one in broken(trace, infer(exported("seed=0"))))


def test_all_of_torch_is_read(exported: Callable[..., Path]) -> None:
    invariants = infer(exported("seed=0", calls="torch"))
    assert set(said(invariants)) >= {one for one in GOOD if "Parameter" in one}
    assert broken(exported("seed=1", calls="torch"), invariants) == []
    assert any(
        "Optimizer.zero_grad()" in one
        for one in broken(exported("forgets", calls="torch"), invariants)
    )
