"""A run that has recorded little ends without DuckDB; what is read of it is the same as of any other."""

from __future__ import annotations

import json
import sys

import pytest
from conftest import Place

TRAINS = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for x in DataLoader(torch.zeros(40, 2), batch_size=4):
    model(x.to(torch.float64).to(torch.float32)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
pytestmark = pytest.mark.torch


def test_its_segments_are_left_and_put_to_rest_when_it_is_first_opened(place: Place) -> None:
    place.write(main=TRAINS)
    ended = place.voirkit("main.py", timeout=280)
    assert (ended.code, ended.out) == (0, ""), ended.err
    run = place.folder / "run"
    assert list(run.glob("trace/*.seg"))
    assert not (run / "steps").exists()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["steps"]["n"], summary["steps"]["items"]) == (10, 40)
    report = place.run(sys.executable, "-m", "voirkit", "report", "run", "--json")
    opened = json.loads(report.out)
    assert not list(run.glob("trace/*.seg"))
    assert list(run.glob("trace/kind=phase/**/*.parquet"))
    for key in ("steps", "rates", "verdict", "loader", "evaluation"):
        assert opened[key] == summary[key], key


def test_one_that_has_annotations_too_is_put_to_rest_at_once(place: Place) -> None:
    place.write(main=TRAINS + "from voirkit import ai\nwith ai.compute.forward:\n    pass\n")
    assert place.voirkit("main.py", timeout=280).code == 0
    assert not list((place.folder / "run").glob("trace/*.seg"))
