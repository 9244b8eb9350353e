"""The input pipeline's lines in a report: what other numbers of workers would load."""

from __future__ import annotations

from typing import Any

import pytest

from voirkit.report.sections import Table, Text
from voirkit_instruments.loader.analyse_prediction import (
    Cost,
    best_workers,
    candidate_workers,
    enough_workers,
    predict_rates,
)
from voirkit_instruments.loader.show import facts, sections

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
def test_many_workers_are_named_whatever_the_number_of_processors(
    cores: int, batch_s: float
) -> None:
    """Samples that wait for a disk or a network: many more workers than processors would help."""
    waiting = Cost(batch_s=batch_s, cpu_s=0.0002, pause_s=0.001, items=8.0, cores=cores)

    said = lines(loader(waiting, 2))

    assert "2 (now)" in said
    assert f"· {best_workers(waiting)} " in said


def operation(share: float = 1.0) -> dict[str, Any]:
    times = dict.fromkeys(("mean_s", "median_s", "p90_s", "total_s", "max_s"), 0.001)
    return {"n": 10, "share": share, "wait_share": share, **times}


def with_operations(
    number: int, trains: bool | None, **operations: dict[str, Any]
) -> dict[str, Any]:
    facts_of_it = {
        "loader": number,
        "trains": trains,
        "dataset": "Pictures",
        "batches": 10,
        "batch_size": 4,
        "ready_share": None,
    }
    return {
        **loader(Cost(batch_s=0.1, cpu_s=0.1, pause_s=0.1, items=4.0, cores=2), 0),
        **facts_of_it,
        "operations": operations,
    }


def test_each_operation_of_another_loader_has_a_row_below_the_name_of_its_loader() -> None:
    evaluation = with_operations(1, False, CenterCrop=operation(0.75), collate_fn=operation(0.25))
    trained = {**with_operations(0, True, RandomCrop=operation()), "loaders": [evaluation]}
    (section,) = sections(trained, {})
    blocks = list(section.blocks)
    (name,) = (block for block in blocks if isinstance(block, Text) and block.label == "loader 1")
    assert name.text.startswith("Pictures · not trained on · 0 workers · 10 batches of 4")
    tables = [block for block in blocks if isinstance(block, Table)]
    assert [[str(row[0].text) for row in table.rows] for table in tables] == [
        ["RandomCrop"],
        ["CenterCrop", "collate_fn"],
    ]  # type: ignore[union-attr]
    assert blocks.index(tables[1]) == blocks.index(name) + 1


def test_a_loader_without_operations_has_no_rows() -> None:
    trained = {
        **with_operations(0, True, RandomCrop=operation()),
        "loaders": [with_operations(1, False)],
    }
    (section,) = sections(trained, {})
    assert len([block for block in section.blocks if isinstance(block, Table)]) == 1
