"""Figures of findings, held against what a script has planted."""

from __future__ import annotations

import pytest
from conftest import Place

pytest.importorskip("torch")
pytestmark = pytest.mark.long

LEAK = """
import sys
import torch

model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
kept = []
for step in range(300):
    loss = model(torch.randn(32, 64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept.append(torch.ones(int(sys.argv[1]) // 4))
"""


def test_memory_that_is_kept_in_each_step_is_told_by_the_step(place: Place) -> None:
    (finding,) = place.write(main=LEAK).voirkit("main.py", "1000000").summary["findings"]
    assert finding["kind"] == "memory-grows"
    assert finding["evidence"]["each_step"] == pytest.approx(1e6, rel=0.1)


def test_of_memory_that_stays_nothing_is_told(place: Place) -> None:
    assert place.write(main=LEAK).voirkit("main.py", "4").summary["findings"] == []
