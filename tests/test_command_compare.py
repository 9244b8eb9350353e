"""``voirkit compare``: two runs beside each other, and where they begin to call different things."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from called import Training, record
from conftest import Ended, Place
from live_training import TRAINING
from recorded import record_with_manifest

pytestmark = pytest.mark.long


def compare(place: Place, *words: str, **options: Any) -> Ended:
    return place.run(sys.executable, "-m", "voirkit", "compare", *words, **options)


def compared(place: Place, first: Training, second: Training) -> Ended:
    record(place.folder / "a", first)
    record(place.folder / "b", second)
    return compare(place, "--calls", "a", "b")


def said(ended: Ended) -> str:
    """The line that says what differs."""
    assert ended.code == 1, ended.err
    return ended.out.splitlines()[2]


# the first call that differs


def test_runs_that_call_the_same_are_equal(place: Place) -> None:
    ended = compared(place, Training(evaluation=2), Training(evaluation=2, base=500_000))
    assert (ended.code, ended.out.splitlines()[2:], ended.err) == (0, ["the same calls"], "")


def test_another_argument_is_told_with_its_step_and_both_values(place: Place) -> None:
    ended = compared(place, Training(p=(0.5,)), Training(p=(0.5, 0.5, 0.5, 0.1)))
    assert said(ended) == "step 3: F.dropout was called with p=0.5, in the other run with p=0.1"


def test_a_call_that_is_missing_is_told(place: Place) -> None:
    ended = compared(place, Training(), Training(without=[(2, "Optimizer.zero_grad")]))
    assert said(ended) == "step 2: the other run does not call optim.Optimizer.zero_grad here"


def test_a_call_that_only_the_other_run_makes_is_told(place: Place) -> None:
    ended = compared(place, Training(without=[(2, "Optimizer.zero_grad")]), Training())
    assert said(ended) == "step 2: the other run calls optim.Optimizer.zero_grad here"


def test_another_shape_is_told(place: Place) -> None:
    ended = compared(place, Training(), Training(shape=(4, 16)))
    assert (
        said(ended)
        == "step 0: F.relu was called with args.0.shape=[4, 8], in the other run with args.0.shape=[4, 16]"
    )


def test_an_exception_is_told(place: Place) -> None:
    ended = compared(place, Training(fails=1), Training())
    assert (
        said(ended)
        == "step 1: F.cross_entropy ended with error='ValueError', in the other run with error=None"
    )
    assert any(line.endswith(" raised ValueError") for line in ended.out.splitlines())


def test_fewer_steps_are_told(place: Place) -> None:
    ended = compared(place, Training(steps=4), Training(steps=3))
    assert (
        said(ended)
        == "step 3: the other run calls no more, this one goes on: optim.Optimizer.zero_grad and 9 more calls"
    )


def test_calls_in_the_evaluation_are_compared_too(place: Place) -> None:
    ended = compared(place, Training(evaluation=2), Training(evaluation=3))
    assert said(ended).startswith(
        "evaluation batch 2: this run calls no more, the other one goes on: __main__.Net.__call__ and 4 more calls"
    )


def test_without_steps_the_place_is_told_by_the_calls_alone(place: Place) -> None:
    ended = compared(place, Training(phases=False), Training(phases=False, p=(0.1,)))
    assert said(ended).startswith("outside of the steps: F.dropout was called with p=0.5")


def test_a_number_that_was_left_out_is_like_any_other(place: Place) -> None:
    left_out: Any = {"type": "float"}
    assert compared(place, Training(p=(0.5,)), Training(p=(left_out,))).code == 0


def test_how_batches_came_from_workers_makes_no_difference(place: Place) -> None:
    assert compared(place, Training(asks=1), Training(asks=3, base=5000)).code == 0


def test_some_calls_before_are_shown_as_they_were_nested(place: Place) -> None:
    lines = compared(
        place, Training(), Training(without=[(2, "Optimizer.zero_grad")])
    ).out.splitlines()
    assert [line.partition("(")[0] for line in lines[3:10]] == [
        "      F.relu", "      F.dropout", "    F.cross_entropy", "    torch.Tensor.backward", "    optim.SGD.step",
        "      torch._foreach_add_", "  < optim.Optimizer.zero_grad",
    ]  # fmt: skip
    assert "      F.dropout(float32 [4, 8], p=0.5, training=True) -> float32 [4, 8]" in lines


def test_functions_that_are_not_called_equally_often_are_counted(place: Place) -> None:
    lines = compared(
        place, Training(), Training(without=[(2, "Optimizer.zero_grad")], relus=(1, 3))
    ).out.splitlines()
    assert [line.split() for line in lines[-2:]] == [
        ["F.relu", "4", "10", "+6"],
        ["optim.Optimizer.zero_grad", "4", "3", "-1"],
    ]


def test_each_rank_is_compared_with_its_own(place: Place) -> None:
    for name, p in (("a", 0.5), ("b", 0.1)):
        record(place.folder / name, Training())
        record(place.folder / name, Training(p=(p,)), rank=1)
    lines = compare(place, "--calls", "a", "b").out.splitlines()
    assert lines[2] == "rank 0: the same calls"
    assert lines[3].startswith("rank 1: step 0: F.dropout was called with p=0.5")


def test_a_rank_that_only_one_run_has_makes_them_different(place: Place) -> None:
    record(place.folder / "a")
    record(place.folder / "a", rank=1)
    record(place.folder / "b")
    ended = compare(place, "--calls", "a", "b")
    assert (ended.code, ended.out.splitlines()[2:]) == (
        1,
        ["only a has calls of rank 1", "the same calls"],
    )


def test_json_has_all_of_it(place: Place) -> None:
    record(place.folder / "a")
    record(place.folder / "b", Training(p=(0.5, 0.1)))
    found = json.loads(compare(place, "--calls", "--json", "a", "b").out)
    (rank,) = found["ranks"]
    assert (found["equal"], rank["calls"], rank["by_function"]) == (False, [41, 41], {})
    assert {key: rank["divergence"][key] for key in ("kind", "task", "step", "call")} == {
        "kind": "given",
        "task": "train",
        "step": 1,
        "call": 16,
    }
    assert [sign for sign, _ in rank["divergence"]["context"]] == [" "] * 6 + ["<", ">"]


# the summaries


@pytest.fixture
def two(place: Place) -> Place:
    place.write(main=TRAINING + "Training().epoch()\n")
    for name in ("a", "b"):
        assert (
            place.run(sys.executable, "-m", "voirkit", "--run-dir", name, "--quiet", "main.py").code
            == 0
        )
    return place


def test_two_runs_stand_beside_each_other(two: Place) -> None:
    ended = compare(two, "a", "b")
    assert (ended.code, ended.err) == (0, "")
    rows = {line[:20].strip(): line.split() for line in ended.out.splitlines()}
    assert rows["steps"][1:3] == rows["steps"][1:2] * 2
    ratio, low, _, high = rows["forward, a step"][
        -4:
    ]  # how far apart depends on how busy the machine was
    assert ratio == "1.00x"
    assert float(low) < 1 < float(high)


def test_what_was_different_around_them_is_told(two: Place) -> None:
    manifest = json.loads((two.folder / "b" / "run.json").read_text())
    (two.folder / "b" / "run.json").write_text(
        json.dumps(
            {**manifest, "command": ["main.py", "--lr", "1"], "python": {"version": "3.9.1"}}
        )
    )
    lines = compare(two, "a", "b").out.splitlines()
    assert "command  main.py  |  main.py --lr 1" in lines
    assert any(line.startswith("python  ") and line.endswith("  |  3.9.1") for line in lines)


def test_other_versions_of_packages_are_told(two: Place) -> None:
    (two.folder / "thing.py").write_text("__version__ = '2.1'\n")
    two.write(main="import thing\n" + TRAINING + "Training().epoch()\n")
    two.run(sys.executable, "-m", "voirkit", "--run-dir", "c", "--quiet", "main.py")
    assert "thing  unknown  |  2.1" in compare(two, "a", "c").out.splitlines()


def test_figures_can_be_read_by_programs(two: Place) -> None:
    found = json.loads(compare(two, "--json", "a", "b").out)
    step = next(row for row in found["figures"] if row["name"] == "step")
    assert step["ratio"] == pytest.approx(step["second"] / step["first"])
    assert step["difference"]["low"] < 1 < step["difference"]["high"]
    assert "host" not in found["environment"]


# wrong input


def test_one_run_is_too_few(place: Place) -> None:
    ended = compare(place, "a")
    assert (ended.code, ended.err) == (
        2,
        "voirkit: two RUNs are compared, only 'a' is given.\n  voirkit compare RUN RUN\n",
    )


@pytest.mark.parametrize("words", [(), ("a", "b", "c")])
def test_two_runs_are_asked_for(place: Place, words: tuple[str, ...]) -> None:
    ended = compare(place, *words)
    assert ended.code == 2
    assert "two RUNs are compared" in ended.err


def test_a_run_that_is_not_there_is_named(place: Place) -> None:
    record(place.folder / "a")
    ended = compare(place, "--calls", "a", "nowhere")
    assert (ended.code, ended.err.splitlines()[0]) == (
        2,
        "voirkit: nowhere: there is no such folder.",
    )


def test_a_run_without_calls_says_which_flag_was_missing(place: Place) -> None:
    record(place.folder / "a")
    record_with_manifest(place.folder / "b")
    ended = compare(place, "--calls", "a", "b")
    assert ended.code == 2
    assert "no calls are recorded there." in ended.err
    assert "voirkit --calls SCRIPT" in ended.err
    assert str(Path("b")) in ended.err
