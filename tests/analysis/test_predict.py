"""What other numbers of workers would reach: handing batches over, the training's own part and the processors are accounted for."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from voirkit_instruments.loader.analyse_prediction import (
    Cost,
    advice,
    advise_workers,
    best_workers,
    candidate_workers,
    enough_workers,
    first_change,
    handover_costs,
    predict_rates,
    rate,
    rate_limits,
    recording_s,
    share_saved,
)

MACHINE = {"tensor_ns": 94_000, "mb_ns": 540_000, "call_ns": 34}
TINY = Cost(
    batch_s=0.0003,
    cpu_s=0.0003,
    pause_s=0.0001,
    items=64,
    cores=8,
    **handover_costs(8_000, 2, MACHINE),
)
PYTHON = Cost(
    batch_s=0.1, cpu_s=0.1, pause_s=0.001, items=64, cores=8, **handover_costs(8_000, 2, MACHINE)
)
WAITING = Cost(
    batch_s=0.1, cpu_s=0.0001, pause_s=0.001, items=64, cores=2, **handover_costs(8_000, 2, MACHINE)
)


def test_tiny_samples_are_faster_without_workers() -> None:
    """64 samples of a TensorDataset took 0.43 ms a step, 1.8 ms with one worker."""
    assert rate(TINY, 1) < rate(TINY, 0) / 2
    assert best_workers(TINY) == 0


def test_costly_samples_are_faster_with_workers() -> None:
    assert rate(PYTHON, 4) > 3 * rate(PYTHON, 0)
    assert best_workers(PYTHON) > 4


def test_what_waits_is_not_held_up_by_handing_over_nor_by_the_number_of_processors() -> None:
    assert rate(WAITING, 2) == pytest.approx(2 * 64 / 0.1)
    assert rate(WAITING, 16) == pytest.approx(16 * 64 / 0.1)


def test_the_processors_that_the_training_uses_are_not_the_workers() -> None:
    busy = replace(PYTHON, pause_s=0.05, training_cores=8.0)
    assert (
        rate_limits(busy, 8)["processors"]
        < rate_limits(replace(busy, training_cores=1.0), 8)["processors"]
    )


def test_what_the_loader_alone_could_give_does_not_depend_on_the_training() -> None:
    slow = replace(PYTHON, pause_s=5.0, training_cores=2.0, cores=2)
    given, alone = (
        [row["loading_rate"] for row in predict_rates(cost, (0, 1, 2))]
        for cost in (slow, replace(slow, pause_s=0.0))
    )
    assert given == alone
    assert given[1] == pytest.approx(64 / 0.1, rel=0.1)


def test_a_rate_that_present_workers_have_not_reached_is_not_promised_of_more() -> None:
    assert rate(replace(PYTHON, reached=0.5), 4) == pytest.approx(rate(PYTHON, 4) / 2)
    assert rate(replace(PYTHON, reached=0.5), 0) == rate(PYTHON, 0)


def test_large_and_many_tensors_cost_more_to_hand_over() -> None:
    small, large, many = (
        handover_costs(*size, MACHINE) for size in ((8_000, 1), (16_000_000, 1), (8_000, 16))
    )
    assert all(large[key] > small[key] and many[key] > small[key] for key in small)
    assert set(handover_costs(16_000_000, 4, {}).values()) == {0.0}


def test_the_training_never_waits_less_than_taking_a_batch_lasts() -> None:
    wanted = enough_workers(WAITING)
    assert wanted is not None
    assert {row["limited_by"] for row in predict_rates(WAITING, [2 * wanted])} == {"training"}
    assert predict_rates(WAITING, [2 * wanted])[0]["rate"] < 64 / WAITING.pause_s


def test_records_are_what_calls_of_python_are_on_the_machine() -> None:
    assert recording_s(64, MACHINE) == pytest.approx(2 * recording_s(64, {"call_ns": 17}))
    assert recording_s(64, {}) == 0


def loader_with(cost: Cost, workers: int, **more: Any) -> dict[str, Any]:
    """What a summary has of a loader, for the words of a verdict."""
    wanted = enough_workers(cost), best_workers(cost)
    return {
        "workers": workers, "cost": asdict(cost), "predicted": predict_rates(cost, candidate_workers(cost.cores, workers, *wanted)), "enough_workers": wanted[0],
        "best_workers": wanted[1], "operations": {"Rows.__getitem__": {"unit": "samples"}}, **more,
    }  # fmt: skip


def test_tiny_samples_are_to_be_indexed_in_batches() -> None:
    said = advise_workers(loader_with(TINY, 0))
    assert said.startswith("Index whole batches at once")
    assert "num_workers" not in said


def test_whole_batches_that_are_cheap_are_not_to_be_indexed_in_batches_again() -> None:
    said = advise_workers(
        loader_with(TINY, 0, operations={"Rows.__getitem__": {"unit": "batches"}})
    )
    assert said.startswith(
        "Worker processes would not help: a batch is made in 300 µs, and handing one over takes"
    )


def test_workers_of_tiny_samples_are_to_go() -> None:
    assert advise_workers(loader_with(TINY, 4)).startswith("num_workers=0 would be faster")


def test_workers_that_start_again_in_each_epoch_are_to_be_kept() -> None:
    said = advise_workers(
        loader_with(PYTHON, 2, starts={"n": 4, "total_s": 1.0, "share": 0.8, "again_share": 0.6})
    )
    assert (
        said
        == "Keep the workers between epochs: persistent_workers=True. 60% of the wait is for workers that start again."
    )


def test_workers_that_compute_in_more_threads_than_there_are_processors_are_to_use_one_each() -> (
    None
):
    said = advise_workers(loader_with(replace(PYTHON, threads=2.04, cores=2), 2))
    assert said.startswith(
        "Each of the 2 workers computes in 2.04 threads at once, on 2 processors: give it one, in worker_init_fn"
    )
    assert "threads at once" not in advise_workers(
        loader_with(replace(PYTHON, threads=2.04, cores=8), 2)
    )


def test_workers_that_start_once_are_no_reason_for_more_of_them() -> None:
    said = advise_workers(
        loader_with(PYTHON, 2, starts={"n": 1, "total_s": 1.0, "share": 0.8, "again_share": 0.0})
    )
    assert said == "80% of the wait is for workers that start, which a longer run has no more of."


def test_a_number_of_workers_is_named_only_where_it_wins() -> None:
    assert advise_workers(loader_with(PYTHON, 0)).startswith("num_workers=")
    assert share_saved(loader_with(PYTHON, 0)) > 0.5  # type: ignore[operator]
    full = replace(PYTHON, cores=1)
    assert (
        advise_workers(loader_with(full, 0))
        == "Worker processes would not help: making batches and training keep the processors busy as it is."
    )
    assert advise_workers(loader_with(full, 1)).startswith("More workers would not help")


def test_no_more_workers_are_advised_than_there_are_processors() -> None:
    wanted = enough_workers(WAITING)
    assert wanted is not None
    assert wanted > (WAITING.cores or 0)
    said = advise_workers(loader_with(WAITING, 0))
    assert said.startswith(f"num_workers={WAITING.cores} would give at best")
    assert "no more processors" in said
    assert "as many workers as processors" in advise_workers(
        loader_with(WAITING, WAITING.cores or 0)
    )


def test_a_collate_function_of_the_programs_own_is_to_be_done_once() -> None:
    row = {"collate_fn": {"total_s": 1.0, "share": 0.9, "wait_share": 0.9, "level": "collate"}}
    own, torchs = (first_change(row, [], PYTHON, 10, 0, name) for name in ("tokenize", ""))
    assert own is not None
    assert torchs is not None
    assert "tokenizing" in own["because"]
    assert "__getitems__" in torchs["because"]


def test_no_operation_is_blamed_by_times_that_strace_has_stretched() -> None:
    row = {
        "operation": "Flip",
        "share": 0.9,
        "wait_share": 0.9,
        "because": "use less",
        "rate_without": 1e6,
    }
    loader = loader_with(PYTHON, 0, first=row)
    assert advice(loader)
    stretched = {**loader, "stretched_by": "strace"}
    assert (advice(stretched), advise_workers(stretched)) == ([], "")


def test_an_operation_that_nobody_waits_for_is_not_what_to_begin_with() -> None:
    row = {
        "operation": "Flip",
        "share": 0.6,
        "wait_share": 0.0,
        "because": "use less",
        "rate_without": 1e6,
    }
    waited, idle = (
        advice(loader_with(PYTHON, 2, first={**row, "wait_share": share})) for share in (0.6, 0.0)
    )
    assert "Begin with Flip" in waited[0].do
    assert "Begin with Flip" not in idle[0].do
    assert share_saved(loader_with(PYTHON, 2, first=row)) < share_saved(
        loader_with(PYTHON, 2, first={**row, "wait_share": 0.6})
    )  # type: ignore[operator]


def test_a_worker_that_takes_much_longer_than_the_others_is_named():
    def rows(*spent):
        return [{"worker": i, "batches": 10, "busy_s": one} for i, one in enumerate(spent)]

    row = {
        "operation": "crop",
        "share": 0.9,
        "wait_share": 0.8,
        "because": "use less",
        "rate_without": 1e6,
    }
    for workers, word in (
        (rows(1.0, 2.1, 1.1), "worker 1 takes 2 times"),
        (rows(1.0, 1.2), None),
        (rows(1.0) + rows(9.0), None),
    ):
        (found,) = advice(loader_with(PYTHON, 2, first=row, utilisation={"workers": workers}))
        assert (word in found.what) if word else ("worker" not in found.what)
