"""The input pipeline's figures, from loaders whose times are known exactly: nothing is loaded, their records are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Elsewhere
from pipelined import Loader, record

from voirkit.analysis.summary import summary_of
from voirkit.runs.opened import Run
from voirkit_instruments.loader.analyse import summarise_run
from voirkit_instruments.loader.analyse_records import LoaderRecords, find_loaders, follow_batches
from voirkit_instruments.loader.analyse_totals import measure_operations

pytestmark = pytest.mark.long


def looked_into(folder: Path, *loaders: Loader, cpus: int = 8) -> dict[str, Any]:
    record(folder / "run", *loaders, cpus=cpus)
    return told(folder)


def told(folder: Path) -> dict[str, Any]:
    with Run(str(folder / "run")) as run:
        summary = summary_of(run)
    assert summary["warnings"] == []
    json.dumps(summary)  # nothing but what JSON has
    return summary


def test_each_operation_has_its_runs_and_times(tmp_path: Path) -> None:
    found = looked_into(tmp_path, Loader())["loader"]
    assert (found["workers"], found["batches"], found["items"], found["dataset"]) == (
        2,
        6,
        24,
        "Pictures",
    )
    rows = found["operations"]
    assert list(rows) == [
        "RandomCrop",
        "Decode",
        "ToTensor",
        "Pictures.__getitem__",
        "Normalize",
        "collate_fn",
    ]
    crop = rows["RandomCrop"]
    assert crop["n"] == 24
    assert crop["total_s"] == pytest.approx(24 * 0.006)
    assert crop["median_s"] == crop["p90_s"] == crop["mean_s"] == pytest.approx(0.006)
    assert crop["share"] == pytest.approx(24 / 41)
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
    assert rows["collate_fn"]["n"] == 6


def test_a_dataset_without_transforms_is_named_with_its_method(tmp_path: Path) -> None:
    found = looked_into(tmp_path, Loader(operations=(), own=10.0, dataset="SlowDisk"))
    assert found["verdict"]["evidence"]["operation"] == "SlowDisk.__getitem__"
    assert found["loader"]["operations"]["SlowDisk.__getitem__"]["total_s"] == pytest.approx(
        24 * 0.010
    )
    assert "SlowDisk.__getitem__ is 98% of the work on it" in found["verdict"]["because"]


@pytest.mark.parametrize("spread", [[1.0, 9.0], [1.0, 1.2, 1.4, 30.0]])
def test_quantiles_are_those_of_the_spans(tmp_path: Path, spread: list[float]) -> None:
    found = looked_into(
        tmp_path, Loader(workers=len(spread), batches=40, operations=(("Step", spread),))
    )["loader"]
    times = sorted(spread * 40)
    row = found["operations"]["Step"]
    middle = (times[len(times) // 2 - 1] + times[len(times) // 2]) / 2
    assert row["median_s"] == pytest.approx(middle / 1000, rel=0.01)
    assert row["p90_s"] == pytest.approx(times[int(0.9 * len(times))] / 1000, rel=0.01)
    assert (row["min_s"], row["max_s"]) == (
        pytest.approx(times[0] / 1000),
        pytest.approx(times[-1] / 1000),
    )


def test_operations_inside_others_are_shown_below_them_and_counted_once(tmp_path: Path) -> None:
    found = looked_into(tmp_path, Loader(inner=(("Jitter", 1.0), ("Decode", 0.2))))["loader"][
        "operations"
    ]
    assert found["Jitter"]["inside"] == "Decode"
    assert found["Jitter"]["total_s"] == pytest.approx(24 * 0.001)
    assert found["Decode"]["n"] == 24  # the one in itself is part of it
    assert sum(row["share"] for row in found.values() if "inside" not in row) == pytest.approx(1)


def test_the_wait_is_shared_out_by_what_the_awaited_worker_did(tmp_path: Path) -> None:
    found = looked_into(tmp_path, Loader(workers=0))["loader"]
    for row in found["operations"].values():
        assert row["wait_share"] == pytest.approx(
            row["share"], rel=0.01
        )  # with no worker all of the work is waited for
    assert found["wait"]["by"]["rest"] == pytest.approx(0, abs=0.01)
    # Workers that are a batch ahead make training wait for the end of a batch only: what comes last in it causes the wait.
    late = looked_into(
        tmp_path / "late",
        Loader(
            workers=1, batches=20, operations=(("First", 5.0), ("Last", 5.0)), pause=20.0, size=1
        ),
    )
    rows = late["loader"]["operations"]
    assert rows["First"]["share"] == pytest.approx(rows["Last"]["share"])
    assert late["loader"]["ready_share"] > 0.9


def test_a_worker_that_is_slower_brings_batches_out_of_order(tmp_path: Path) -> None:
    slow = Loader(operations=(("Sleep", [60.0, 0.5]),), size=4, own=0.0, collate=0.0, pause=0.0)
    found = looked_into(tmp_path, slow)["loader"]
    assert found["out_of_order"] == 3  # batches 1, 3 and 5 come before 0, 2 and 4
    assert found["ready_share"] == pytest.approx(0.5)
    busy = {row["worker"]: row for row in found["utilisation"]["workers"]}
    assert busy[0]["busy"] > 0.95
    assert busy[1]["busy"] < 0.05
    assert found["utilisation"]["imbalance"] == pytest.approx(0.98, abs=0.02)


def test_the_queue_is_full_where_training_is_slow_and_empty_where_loading_is(
    tmp_path: Path,
) -> None:
    fast = looked_into(
        tmp_path / "fast",
        Loader(batches=30, operations=(("Step", 0.1),), own=0.0, collate=0.0, pause=20.0),
    )["loader"]
    assert fast["queue"]["mean"] > 2.5
    assert fast["queue"]["empty_share"] < 0.05
    assert fast["queue"]["under_way"] == 4
    assert fast["ready_share"] > 0.95
    slow = looked_into(tmp_path / "slow", Loader(batches=30))["loader"]
    assert slow["queue"]["mean"] < 0.2
    assert slow["queue"]["empty_share"] > 0.8


def test_epochs_drift_and_the_operation_that_changed_is_named(tmp_path: Path) -> None:
    found = looked_into(tmp_path, Loader(epochs=6, slower_by_epoch=0.1))["loader"]
    assert [row["batches"] for row in found["epochs"]] == [6] * 6
    means = [row["preprocess_mean_s"] for row in found["epochs"]]
    assert means == sorted(means)
    assert found["drift"]["preprocess"] == pytest.approx(0.36, abs=0.03)
    assert found["drift"]["operation"] == "RandomCrop"
    assert found["drift"]["operation_change"] == pytest.approx(1.45 / 1.05 - 1)
    assert looked_into(tmp_path / "one", Loader())["loader"]["drift"] is None


def test_slow_samples_are_named_by_index_with_their_operation(tmp_path: Path) -> None:
    found = looked_into(tmp_path, Loader(epochs=3, slow={"5": 20.0, "17": 40.0}))["loader"][
        "slowest"
    ]
    assert [(row["index"], row["operation"]) for row in found[:2]] == [
        (17, "Decode"),
        (5, "Decode"),
    ]
    assert found[0]["median_s"] == pytest.approx(0.050)
    assert found[0]["n"] == 3


def test_more_workers_are_predicted_from_what_a_batch_costs(tmp_path: Path) -> None:
    found = looked_into(tmp_path, Loader(batches=30, cpu=0.1))["loader"]
    rates = {row["workers"]: row for row in found["predicted"]}
    assert list(rates) == list(range(17))
    assert rates[2]["rate"] == pytest.approx(2 * 4 / 0.04101)
    assert rates[16]["rate"] == pytest.approx(
        4 / (0.005 + 5e-6)
    )  # taking a batch that is there takes 5 us
    assert (rates[2]["limited_by"], rates[16]["limited_by"]) == ("workers", "training")
    assert found["enough_workers"] == 8
    # What is computed, and not waited for, cannot be done more often at once than there are processors.
    busy = looked_into(tmp_path / "busy", Loader(batches=30, cpu=1.0), cpus=2)["loader"]
    assert busy["enough_workers"] is None
    assert busy["best_workers"] == 2
    assert {row["limited_by"] for row in busy["predicted"] if row["workers"] >= 2} == {"processors"}


def test_loaders_are_kept_apart_and_that_of_the_training_comes_first(tmp_path: Path) -> None:
    evaluation = Loader(
        number=1, batches=9, workers=1, dataset="Held", operations=(("Resize", 1.0),), train=False
    )
    found = looked_into(tmp_path, evaluation, Loader(number=0))["loader"]
    assert (found["loader"], found["batches"], found["dataset"], found["trains"]) == (
        0,
        6,
        "Pictures",
        True,
    )
    (other,) = found["loaders"]
    assert (other["loader"], other["batches"], other["dataset"], other["trains"]) == (
        1,
        9,
        "Held",
        False,
    )
    assert set(other["operations"]) == {"Resize", "Held.__getitem__", "collate_fn"}
    assert "Resize" not in found["operations"]


def test_ranks_are_added_up(tmp_path: Path) -> None:
    record(tmp_path / "run", Loader(), rank=0)
    record(tmp_path / "run", Loader(slow={"3": 50.0}), rank=1)
    found = told(tmp_path)["loader"]
    with Run(str(tmp_path / "run")) as run:
        run.executor = Elsewhere()
        assert summary_of(run)["loader"] == found
    assert (found["batches"], found["items"], found["workers"]) == (12, 48, 2)
    assert found["operations"]["Normalize"]["n"] == 48
    assert found["operations"]["Decode"]["total_s"] == pytest.approx(48 * 0.002 + 0.050)
    assert [(row["rank"], row["worker"]) for row in found["utilisation"]["workers"]] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert found["slowest"][0]["index"] == 3
    assert found["epochs"][0]["batches"] == 12


def test_without_steps_the_loader_is_known_by_its_own_records(tmp_path: Path) -> None:
    record(tmp_path / "run", Loader(phases=False))
    with Run(str(tmp_path / "run")) as run:
        found = summarise_run([run])
    assert found is not None
    assert (found["workers"], found["batches"]) == (2, 6)
    assert found["operations"]["dataset.__getitem__"]["n"] == 24


def test_a_run_that_recorded_no_loader_has_none(tmp_path: Path) -> None:
    record(tmp_path / "run", Loader(records=False))
    summary = told(tmp_path)
    assert summary["loader"] is None
    loader = {"workers": 2, "dataset": "Pictures", "batch_size": 4, "sampler": None, "samples": 24}
    assert summary["steps"]["loader"] == loader


@pytest.mark.parametrize("chunk", [7, 50, 100_000])
def test_chunks_of_any_size_give_the_same(tmp_path: Path, chunk: int) -> None:
    record(tmp_path / "run", Loader(epochs=2, inner=(("Jitter", 1.0),)))
    with Run(str(tmp_path / "run")) as run:
        records = LoaderRecords(run, 0)
        columns = records.batch_columns()
        loaders = find_loaders(records, columns)
        batches = follow_batches(records, loaders, columns)
        parts, whole = (
            measure_operations(records, loaders, batches, *chunks) for chunks in ((chunk,), ())
        )
    assert parts.keys() == whole.keys()
    for kind, operation in whole.items():
        assert (parts[kind].spans.n, parts[kind].spans.total) == (
            operation.spans.n,
            operation.spans.total,
        )
        assert parts[kind].waited_ns == pytest.approx(operation.waited_ns)
        assert parts[kind].by_episode == operation.by_episode
