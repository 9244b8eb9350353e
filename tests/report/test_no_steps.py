"""The report at the end of a run of which no step can be counted."""

from __future__ import annotations

import pytest
from conftest import Place

from voirkit.analysis.verdict.diagnosis import conclusions

pytestmark = pytest.mark.long

EVALUATION = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(4, 2)
    with torch.no_grad():
        for (x,) in DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8):
            model(x)
"""


def test_a_run_that_only_evaluates_ends_with_its_wall_time_evaluation_memory_and_what_was_seen(
    place: Place,
) -> None:
    err = place.write(main=EVALUATION).voirkit("main.py").err
    for words in (
        "wall time  import",
        "evaluation 0%",
        "8 batches were evaluated",
        "  next  ",
        "8 evaluation batches of ",
        "memory  peak",
    ):
        assert words in err
    (seen,) = [line for line in err.splitlines() if line.startswith("seen  ")]
    assert "batches 8 (" in seen
    assert "model calls 8 (" in seen


def test_a_run_that_does_nothing_with_torch_ends_with_its_wall_time_and_memory(
    place: Place,
) -> None:
    err = place.write(main="import torch").voirkit("main.py").err
    for words in ("wall time  import", "No training step was seen", "  next  ", "memory  peak"):
        assert words in err
    assert "seen  " not in err


def test_no_training_is_only_said_where_no_training_was_recorded() -> None:
    seen = {
        "model_calls": {"n": 4, "total_s": 0.1},
        "optimizer_steps": {"n": 1, "total_s": 0.1},
        "backward_passes": {"n": 4, "total_s": 0.1},
    }
    verdict, advice = conclusions(
        {"steps": {"n": 0}, "evaluation": {"n": 4}, "recorded_work": seen}, {}
    )
    assert verdict["because"].startswith(
        "1 optimizer step and 4 backward passes were recorded, but none of them lies in a step"
    )
    assert verdict["evidence"] == {"steps": 0, "optimizer_steps": 1, "backward_passes": 4}
    assert "voirkit init" in verdict["next"]
    assert advice == []
