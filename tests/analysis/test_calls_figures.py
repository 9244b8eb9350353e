"""What recorded calls come to: by function, phase, step and rank."""

from __future__ import annotations

from called import Training, record
from conftest import Elsewhere

from voirkit.runs.opened import open_run
from voirkit_instruments.calls.analyse import calls_of


def of(*paths):
    runs = [open_run(path) for path in paths]
    found = calls_of(runs)
    for run in runs:
        run.close()
    return found


def test_a_function_has_number_times_errors_and_calls_in_a_step(tmp_path):
    found = of(record(tmp_path / "run", Training(steps=5, fails=2, relus=(3,))))
    relu = found["by_function"]["torch.nn.functional.relu"]
    assert relu == {
        "n": 15, "total_s": 15e-5, "self_s": 15e-5, "mean_s": 1e-5, "max_s": 1e-5, "errors": 0,
        "a_step": {"median": 3, "min": 3, "max": 3}, "phases": {"forward": {"n": 15, "self_s": 15e-5}},
    }  # fmt: skip
    assert (
        found["by_function"]["torch.nn.functional.cross_entropy"]["errors"] == found["errors"] == 1
    )
    assert (found["functions"], found["events"]) == (10, 1 + 5 * 12 + 1)


def test_functions_are_ordered_by_their_own_time(tmp_path):
    found = of(record(tmp_path / "run"))
    own = [row["self_s"] for row in found["by_function"].values()]
    assert own == sorted(own, reverse=True)
    assert next(iter(found["by_function"])) == "torch.Tensor.backward"


def test_functions_that_vary_between_steps_are_named(tmp_path):
    found = of(
        record(
            tmp_path / "run",
            Training(steps=4, relus=(1, 1, 2, 1), without=[(3, "Optimizer.zero_grad")]),
        )
    )
    assert found["by_step"]["varying"] == [
        "torch.nn.functional.relu",
        "torch.optim.optimizer.Optimizer.zero_grad",
    ]
    assert found["by_step"]["calls"] == {"median": 10, "min": 9, "max": 11}
    assert found["by_function"]["torch.optim.optimizer.Optimizer.zero_grad"]["a_step"] == {
        "median": 1,
        "min": 0,
        "max": 1,
    }


def test_own_times_by_phase_sum_to_the_whole(tmp_path):
    found = of(record(tmp_path / "run", Training(evaluation=3)))
    assert abs(sum(row["self_s"] for row in found["by_phase"].values()) - found["self_s"]) < 1e-12


def test_ranks_are_added_up_from_one_directory_or_from_several(tmp_path):
    together = record(tmp_path / "run", Training(steps=2))
    record(together, Training(steps=3), rank=1)
    first, second = (
        record(tmp_path / "first", Training(steps=2)),
        record(tmp_path / "second", Training(steps=3), rank=1),
    )
    assert of(together) == of(first, second)
    with open_run(together) as run:
        run.executor = Elsewhere()
        assert calls_of([run]) == of(together)
    assert [(row["rank"], row["n"]) for row in of(together)["by_rank"]] == [(0, 21), (1, 31)]
