"""The lines of ``voirkit compare`` about the first loss and the first batch that differ, and its key ``first_difference``."""

from __future__ import annotations

from typing import Any

import pytest

from voirkit.analysis.first_difference import FirstDifference, RankDifference, rank_as_json
from voirkit.report.comparison import Side, different_facts
from voirkit.report.comparison_values import losses_and_batches


def side(*names: str, **summary: Any) -> Side:
    return Side([summary] * len(names), names)


def lines(
    *ranks: RankDifference, first: Side | None = None, second: Side | None = None
) -> dict[str, str]:
    return {
        line.label: line.text
        for line in losses_and_batches(first or side("a"), second or side("b"), ranks)
    }


def equal(n: int, other: int | None = None) -> FirstDifference:
    other = n if other is None else other
    return FirstDifference((n, other), min(n, other))


def apart(
    step: int | None,
    first: Any,
    second: Any,
    index: int | None = None,
    n: int = 40,
    differing: int | None = None,
) -> FirstDifference:
    at = (step or 0) if index is None else index
    return FirstDifference(
        (n, n), n, at, step, (first, second), n - at if differing is None else differing
    )


def test_equal_runs_are_said_to_be_equal() -> None:
    assert lines(RankDifference(0, equal(40), equal(40))) == {
        "losses": "equal in all 40 backward passes.",
        "batches": "the same indices in all 40 batches.",
    }


def test_the_first_step_that_differs_is_named() -> None:
    assert lines(RankDifference(0, apart(5, 0.7253, 0.7251), apart(3, 17, 18))) == {
        "losses": "equal to step 4; differ from step 5 on (0.7253 / 0.7251).",
        "batches": "equal to step 2; differ from step 3 on (other indices).",
    }


def test_a_difference_in_the_first_step_has_nothing_before_it() -> None:
    assert (
        lines(RankDifference(0, apart(0, 1.0, 2.0), equal(40)))["losses"]
        == "differ from step 0 on (1 / 2)."
    )


def test_values_have_as_many_digits_as_tell_them_apart() -> None:
    assert lines(RankDifference(0, apart(1, 1.0, 1.0000001), None))["losses"].endswith(
        "(1 / 1.0000001)."
    )


def test_losses_that_are_equal_again_are_counted() -> None:
    text = lines(RankDifference(0, apart(5, 1.0, 2.0, differing=3), None))["losses"]
    assert text == "equal to step 4; differ from step 5 on (1 / 2), in 3 of 35 backward passes."


def test_a_difference_outside_of_the_steps_is_named_by_its_number() -> None:
    text = lines(RankDifference(0, apart(None, 1.0, 2.0, index=7), None))["losses"]
    assert text == "equal up to number 7, outside of the steps; differ from there on (1 / 2)."


def test_runs_of_unequal_length_are_equal_as_far_as_both_go() -> None:
    assert (
        lines(RankDifference(0, equal(40, 30), None))["losses"]
        == "equal in the 30 backward passes that both have (40 and 30)."
    )


def test_of_several_ranks_the_first_difference_is_named_with_its_rank() -> None:
    ranks = [
        RankDifference(0, equal(40), None),
        RankDifference(1, apart(9, 1.0, 2.0), None),
        RankDifference(2, apart(5, 1.0, 3.0), None),
    ]
    assert (
        lines(*ranks)["losses"]
        == "equal to step 4; differ from step 5 on (1 / 3), first on rank 2 (2 of 3 ranks differ)."
    )


def test_of_several_runs_a_side_it_is_said_which_are_compared() -> None:
    text = lines(
        RankDifference(0, equal(4), None), first=side("a1", "a2"), second=side("b1", "b2")
    )["losses"]
    assert text == "equal in all 4 backward passes (a1 and b1)."


def test_batches_of_an_iterable_dataset_have_no_line() -> None:
    assert set(lines(RankDifference(0, equal(4), None))) == {"losses"}
    assert set(lines(RankDifference(0, equal(4), FirstDifference((4, 4), 0)))) == {"losses"}


CURVE = {"n": 512, "curve": [[0, 1.0], [256, 0.5]]}
UNKNOWN = FirstDifference((512, 512), 0)


def test_of_losses_on_a_device_those_of_the_curve_are_compared() -> None:
    first, second = (
        side("a", loss=CURVE),
        side("b", loss={**CURVE, "curve": [[0, 1.0], [256, 0.6]]}),
    )
    text = lines(RankDifference(0, UNKNOWN, None), first=first, second=second)["losses"]
    assert (
        text
        == "equal to loss 0; differ at loss 256 or before (0.5 / 0.6); known are 2 of 512, since they lie on a device."
    )
    text = lines(RankDifference(0, UNKNOWN, None), first=first, second=first)["losses"]
    assert text == "equal as far as they are known; known are 2 of 512, since they lie on a device."


def test_losses_that_nobody_knows_are_said_not_to_be_known() -> None:
    assert lines(RankDifference(0, UNKNOWN, None))["losses"] == "not known of both runs."


@pytest.mark.parametrize("ranks", [[], [RankDifference(0, None, None)]])
def test_runs_without_backward_passes_have_no_line(ranks: list[RankDifference]) -> None:
    assert lines(*ranks) == {}


def test_programs_get_all_of_it() -> None:
    assert rank_as_json(RankDifference(1, apart(5, 1.0, 2.0), UNKNOWN)) == {
        "rank": 1,
        "losses": {
            "equal": False, "lengths": [40, 40], "compared": 40, "index": 5, "step": 5, "values": [1.0, 2.0], "differing": 35,
        },
        "batches": {
            "equal": None, "lengths": [512, 512], "compared": 0, "index": None, "step": None, "values": None, "differing": 0,
        },
    }  # fmt: skip


def test_what_all_runs_of_a_side_have_in_common_is_said_once() -> None:
    assert different_facts(side("a", "b", ended="normal"), side("c", ended="normal")) == {}
    unlike = different_facts(side("a", "b", ended="normal"), side("c", ended="signal"))
    assert unlike["ended"] == ("normal", "signal")
