"""What is kept of the given losses, and whether they fall."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from voirkit_instruments.steps.record import MOST_POINTS, Losses


def given(losses: list[Any]) -> Losses:
    made = Losses()
    for loss in losses:
        made.add(loss)
    return made


def test_the_first_quarter_is_compared_with_the_last() -> None:
    assert given([4.0, 2.0, 9.0, 9.0, 9.0, 9.0, 1.0, 0.0]).means() == (3.0, 0.5)


def test_one_loss_or_none_tells_nothing() -> None:
    assert given([]).means() is None
    assert given([1.0]).means() is None
    assert given([object(), "x", None]).means() is None


def test_tensors_and_losses_per_sample_are_taken() -> None:
    assert given(
        [torch.tensor(3.0), torch.tensor([1.0, 3.0]), torch.tensor([2], dtype=torch.int64)]
    ).means() == (3.0, 2.0)


def test_a_long_run_keeps_few_losses_and_its_beginning_and_end() -> None:
    made = given([float(n) for n in range(100_000)])
    first, last = made.means() or (0, 0)
    assert made.n == 100_000
    assert len(made._samples) <= MOST_POINTS
    assert first == pytest.approx(12_500, rel=0.02)
    assert last == pytest.approx(87_500, rel=0.02)


def test_no_graph_is_kept_alive() -> None:
    made = Losses()
    made.add((torch.ones(3, requires_grad=True) * 2) ** 2)  # one loss a sample: kept as a tensor
    assert [kept.grad_fn for _, kept in made._samples] == [None]


def test_a_loss_that_is_changed_in_place_later_is_kept_as_it_was() -> None:
    loss = torch.tensor([4.0, 4.0])
    made = given([loss])
    loss.zero_()
    made.add(loss)
    assert made.means() == (4.0, 0.0)
