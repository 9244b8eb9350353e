"""The input pipeline's lines in a report: what other numbers of workers would load."""

from __future__ import annotations

from typing import Any

import pytest

from voirkit_instruments.loader.analyse_prediction import Cost, best_workers, candidate_workers, enough_workers, predict_rates
from voirkit_instruments.loader.show import facts

NOTHING = {"n": 0, "mean_s": 0.0, "median_s": 0.0, "std_s": 0.0}


def loader(cost: Cost, workers: int) -> dict[str, Any]:
    """What a summary has of a loader that nothing but its cost is known of."""
    wanted = enough_workers(cost), best_workers(cost)
    return {
        "workers": workers, "items": 64, "preprocess": NOTHING, "wait": NOTHING, "operations": {}, "out_of_order": 0, "failed": 0,
        "predicted": predict_rates(cost, candidate_workers(cost.cores, workers, *wanted)), "enough_workers": wanted[0], "best_workers": wanted[1],
        "cost": {"batch_s": cost.batch_s, "cpu_s": cost.cpu_s, "pause_s": cost.pause_s, "items": cost.items, "cores": cost.cores},
    }  # fmt: skip


def lines(of: dict[str, Any]) -> str:
    return "\n".join(f"{line.label}  {line.text}" for line in facts(of))


@pytest.mark.parametrize("cores", [1, 2, 4, 6, 15, 64])
@pytest.mark.parametrize("batch_s", [0.01, 0.16, 1.0, 9.0])
def test_many_workers_are_named_whatever_the_number_of_processors(cores: int, batch_s: float) -> None:
    """Samples that wait for a disk or a network: many more workers than processors would help."""
    waiting = Cost(batch_s=batch_s, cpu_s=0.0002, pause_s=0.001, items=8.0, cores=cores)

    said = lines(loader(waiting, 2))

    assert "2 (now)" in said
    assert f"· {best_workers(waiting)} " in said
