"""voirkit raises no warning of python's: a training under ``python -W error`` goes on as without it.

Where torch itself warns of the plain program, so that it cannot run that way, the warnings of both are compared.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from conftest import Place

pytestmark = [pytest.mark.torch, pytest.mark.long]

MAIN = """
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    argparse.ArgumentParser().parse_args()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(16, 4), torch.randint(0, 2, (16,)))
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(data, batch_size=4, num_workers=1, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
"""

FLAGS = [
    [],
    ["--loader", "--compact", "--html"],
    ["--checks", "--parameters", "--parameters-of", "buffers,state"],
    ["--calls"],
    ["--flame", "--monitor", "0.1", "--hang", "60"],
    ["--dash", "--display", "--options", "--train-rate", "--loading-rate", "--compute-rate"],
    ["--torch-profile", "1:1:2"],
    ["--memory-snapshot", "tracemalloc"],
    ["--require", "train_rate>0", "--no-steps"],
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, set[str]]:
    """A folder with the program, what it is run with, and what it warns of."""
    pytest.importorskip("torch")
    place = Place(tmp_path_factory.mktemp("plain")).write(main=MAIN)
    if place.run(sys.executable, "-W", "error", "main.py").code == 0:
        return place.folder, "error", set()
    return (
        place.folder,
        "always",
        warnings_in(place.run(sys.executable, "-W", "always", "main.py").err),
    )


def warnings_in(text: str) -> set[str]:
    return set(re.findall(r"\w*Warning: .*", text))


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: " ".join(flags) or "none")
def test_a_run_raises_no_warning_that_the_program_does_not(
    plain: tuple[Path, str, set[str]], flags: list[str]
) -> None:
    folder, action, known = plain
    place = Place(folder)
    ended = place.run(
        sys.executable,
        "-W",
        action,
        "-m",
        "voirkit",
        "--run-dir",
        "run",
        "--force",
        *flags,
        "main.py",
    )
    assert warnings_in(ended.err) <= known, ended.err
    assert ended.code == (3 if "--require" in flags else 0), ended.err
    report = place.run(sys.executable, "-W", "error", "-m", "voirkit", "report", "run")
    assert (report.code, report.err) == (0, "")
