"""Steps that a script gives with the task of evaluating, as the steps instrument records them."""

from __future__ import annotations

from typing import Any

import pytest
import torch  # noqa: F401  # phases needs it: such files are left out where it is not installed
from phases import Watched, watched

pytestmark = pytest.mark.usefixtures("engine")


def wrapped(watch: Watched, task: str, name: str = "step") -> None:
    """What ``give.wrap(name, task=task)`` gives, whatever is done in it."""
    for step in ("begin", "end"):
        event: dict[str, Any] = {"$wrap": {"name": name, "step": step, "id": 7}, "task": task}
        watch.steps.on_given(event)


@pytest.mark.parametrize(("task", "n"), [("eval", 1), ("validation", 1), ("train", 0)])
def test_a_step_of_evaluation_is_recorded(task: str, n: int) -> None:
    with watched() as watch:
        wrapped(watch, task)
        wrapped(watch, task, name="epoch")
        watch.steps.on_given({"loss": 1.0, "task": task})
    assert watch.kept.kinds() == ["given.evaluation"] * n
