"""Runs of scripts whose optimizer is a class of their own."""

from __future__ import annotations

import pytest
from conftest import Place

pytestmark = pytest.mark.torch

SCRIPT = """
import torch

class Sign:
    def __init__(self, weight):
        self.weight = weight

    @torch.no_grad()
    def step(self):
        self.weight -= 0.1 * self.weight.grad.sign()

    def zero_grad(self):
        self.weight.grad = None

weight = torch.ones(3, requires_grad=True)
optimizer = Sign(weight)
for batch in range(8):
    (weight * batch).sum().backward()
    if batch % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
print(weight.tolist())
"""


def test_its_steps_are_updates_and_a_phase(place: Place) -> None:
    run = place.write({"main.py": SCRIPT}).voirkit("main.py")
    steps = run.summary["steps"]
    assert steps["n"] == 2  # without a loader, from one update to the next
    assert steps["phases"]["optimizer"]["total_s"] > 0
