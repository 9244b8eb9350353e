"""``voirkit compare`` names the first loss and the first batch that differ, of whole runs, as the script's own output has them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Place

pytestmark = [pytest.mark.long, pytest.mark.torch]

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

change, workers = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
x, y = torch.randn(64, 4), torch.randint(0, 3, (64,))
if change == "sample":
    x[5] += 1
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, num_workers=workers)
for epoch in range(2):
    if change == "seed" and epoch == 1:
        torch.manual_seed(1)
    for i, (a, b) in enumerate(loader):
        step = 16 * epoch + i
        loss = torch.nn.functional.cross_entropy(model(a), b)
        if change == "operator" and step >= 7:
            loss = loss * 1.0000001
        print(loss.item().hex())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, dict[str, list[str]]]:
    """A run of each change, and the losses that it printed."""
    place = Place(tmp_path_factory.mktemp("runs")).write(main=SCRIPT)
    printed = {}
    for change, workers in (
        ("none", 0),
        ("workers", 2),
        ("sample", 0),
        ("seed", 0),
        ("operator", 0),
    ):
        ended = place.run(
            sys.executable,
            "-m",
            "voirkit",
            "--run-dir",
            change,
            "--quiet",
            "main.py",
            change,
            str(workers),
        )
        assert ended.code == 0, ended.err
        printed[change] = ended.out.splitlines()
    return place, printed


def first_difference(place: Place, other: str) -> dict[str, Any]:
    ended = place.run(sys.executable, "-m", "voirkit", "compare", "none", other, "--json")
    (rank,) = json.loads(ended.out)["first_difference"]
    assert isinstance(rank, dict)
    return rank


def first_that_differs(one: list[str], other: list[str]) -> int:
    return next(step for step, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)


Runs = tuple[Place, dict[str, list[str]]]


def test_runs_that_only_load_in_workers_are_equal(runs: Runs) -> None:
    place, printed = runs
    assert printed["workers"] == printed["none"]
    found = first_difference(place, "workers")
    assert (found["losses"]["equal"], found["losses"]["compared"]) == (True, 32)
    assert (found["batches"]["equal"], found["batches"]["compared"]) == (True, 32)


@pytest.mark.parametrize(
    ("change", "batches"), [("sample", None), ("operator", None), ("seed", 16)]
)
def test_the_first_step_whose_loss_differs_is_named(
    runs: Runs, change: str, batches: int | None
) -> None:
    place, printed = runs
    step = first_that_differs(printed["none"], printed[change])
    found = first_difference(place, change)
    assert found["losses"]["step"] == step
    assert [float(value).hex() for value in found["losses"]["values"]] == [
        printed[name][step] for name in ("none", change)
    ]
    assert found["batches"]["step"] == batches


def test_the_difference_stands_below_the_headline(runs: Runs) -> None:
    place, _ = runs
    out = place.run(sys.executable, "-m", "voirkit", "compare", "none", "operator").out
    places = [
        out.index(words)
        for words in (
            "wall time  ",
            "throughput  ",
            "losses  equal to step 6; differ from step 7 on",
            "Figures",
        )
    ]
    assert places == sorted(places)
    assert "batches  the same indices in all 32 batches." in out


def test_the_records_of_batches_are_in_the_tables_and_no_events(runs: Runs) -> None:
    from voirkit.runs.opened import open_run

    place, _ = runs
    with open_run(str(Path(place.folder) / "none")) as run:
        count = "SELECT count(*) FROM {} WHERE kind = 'batch'"
        rows = [
            run.connection().execute(count.format(table)).fetchall()
            for table in ("spans", "events")
        ]
    assert rows == [[(32,)], [(0,)]]
