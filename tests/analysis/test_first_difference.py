"""Where two runs begin to differ: losses by pass, digests by batch, and curves of losses on a device."""

from __future__ import annotations

import math

import numpy as np
import pytest

from voirkit.analysis.first_difference import (
    NO_STEP,
    Observations,
    curves_differ,
    digests_of_batches,
    episodes_of_draws,
    first_difference,
    leading_thread,
)


def observed(
    *values: float, known: list[bool] | None = None, steps: list[int] | None = None
) -> Observations:
    n = len(values)
    return Observations(
        np.array(values, np.float64),
        np.array(known or [True] * n, bool),
        np.array(steps if steps is not None else range(n), np.int64),
    )


def test_equal_observations_have_no_difference() -> None:
    found = first_difference(observed(1.0, math.nan, math.inf), observed(1.0, math.nan, math.inf))
    assert found is not None
    assert (found.index, found.compared, found.lengths) == (None, 3, (3, 3))


def test_the_first_that_differs_is_named_with_its_step_and_values() -> None:
    found = first_difference(
        observed(1, 2, 3, 4, steps=[0, 0, 1, 1]), observed(1, 2, 3.5, 4, steps=[0, 0, 1, 1])
    )
    assert found is not None
    assert (found.index, found.step, found.values, found.differing) == (2, 1, (3.0, 3.5), 1)


def test_the_last_bit_is_a_difference() -> None:
    found = first_difference(observed(1.0), observed(math.nextafter(1.0, 2.0)))
    assert found is not None
    assert found.index == 0


def test_a_number_beside_none_is_a_difference() -> None:
    found = first_difference(observed(1.0, math.nan), observed(1.0, 2.0))
    assert found is not None
    assert found.index == 1


def test_what_one_run_does_not_know_is_not_compared() -> None:
    found = first_difference(observed(1, 2, 3, known=[True, False, True]), observed(1, 5, 4))
    assert found is not None
    assert (found.index, found.compared) == (2, 2)


def test_a_shorter_run_is_compared_as_far_as_it_goes() -> None:
    found = first_difference(observed(1, 2), observed(1, 2, 3))
    assert found is not None
    assert (found.index, found.compared, found.lengths) == (None, 2, (2, 3))


def test_a_difference_outside_of_the_steps_has_no_step() -> None:
    found = first_difference(observed(1, steps=[NO_STEP]), observed(2, steps=[0]))
    assert found is not None
    assert (found.index, found.step) == (0, None)


def test_without_observations_nothing_is_known() -> None:
    assert first_difference(observed(), observed()) is None


def test_draws_belong_to_the_request_around_them() -> None:
    starts, ends, episodes = np.array([0, 20, 40]), np.array([10, 30, 50]), np.array([7, 8, 7])
    assert episodes_of_draws(
        np.array([-1, 10, 15, 25, 41, 60]), starts, ends, episodes
    ).tolist() == [-1, 7, -1, 8, 7, -1]
    nothing = np.zeros(0, np.int64)
    assert episodes_of_draws(np.array([5]), nothing, nothing, nothing).tolist() == [-1]


def test_batches_have_the_draws_of_their_episode_in_order_also_where_these_run_ahead() -> None:
    episode = np.array([0, 1, 0, 1])
    digest, is_known = digests_of_batches(
        episode, np.array([0, 0, 0, 1, -1]), np.array([10, 11, 12, 20, 99])
    )
    assert digest[is_known].tolist() == [10, 20, 11]
    assert is_known.tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("tid", "chosen"),
    [([1, 1, 1], [1, 1, 1]), ([1, 1, 2, 2], [1, 1, 1, 1]), ([1, 2, 1, 1], [1, 0, 1, 1]), ([], [])],
    ids=["one", "after each other", "at once", "none"],
)
def test_threads_that_work_at_once_are_told_apart(tid: list[int], chosen: list[int]) -> None:
    assert (
        leading_thread(np.zeros(len(tid), np.int64), np.array(tid, np.int64)).astype(int).tolist()
        == chosen
    )


# losses on a device


def test_curves_differ_between_two_losses_that_are_known() -> None:
    first = {"n": 9, "curve": [[0, 1.0], [4, 0.5], [8, 0.25]]}
    second = {"n": 9, "curve": [[0, 1.0], [2, 0.7], [4, 0.5], [8, 0.3]]}
    found = curves_differ(first, second)
    assert found is not None
    assert (
        found.last_equal,
        found.first_different,
        found.values,
        found.compared,
        found.losses,
    ) == (4, 8, (0.25, 0.3), 3, 9)


def test_equal_curves_are_equal_as_far_as_they_are_known() -> None:
    loss = {"n": 2, "curve": [[0, 1.0], [1, None]]}
    found = curves_differ(loss, loss)
    assert found is not None
    assert (found.first_different, found.compared) == (None, 2)


def test_without_a_curve_nothing_is_known() -> None:
    assert curves_differ(None, {"n": 1, "curve": [[0, 1.0]]}) is None
