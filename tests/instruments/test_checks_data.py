"""What ``--checks`` reads of datasets, batches and generators: it tells them apart, changes none, and runs no code of the program."""

from __future__ import annotations

import random
from array import array
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from voirkit_instruments.checks.record_data import (
    _figures,
    content,
    count_indices,
    is_ascending,
    labels,
    size_of,
    states,
)


class Drawing:
    """A dataset with generators of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.transforms = [Crop(), Crop()]
        self.torch = torch.Generator().manual_seed(3)


class Crop:
    """A transform with one."""

    def __init__(self) -> None:
        self.random = random.Random(5)


class Counting:
    """A dataset whose length is asked for at a price."""

    asked = 0

    def __len__(self) -> int:
        self.asked += 1
        return 4


class Plain:
    """A dataset whose length is that of a list."""

    def __init__(self) -> None:
        self.items = [1, 2, 3]

    def __len__(self) -> int:
        return len(self.items)


def drawn() -> tuple[Any, ...]:
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_reading_generators_draws_nothing() -> None:
    own = Drawing()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    expected = (*drawn(), Drawing().rng.random())
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    before = states(torch, own)
    assert states(torch, own) == before
    assert (*drawn(), own.rng.random()) == expected


@pytest.mark.parametrize(
    ("which", "draw"),
    [
        ("random", lambda _: random.random()),
        ("numpy.random", lambda _: np.random.rand()),
        ("torch", lambda _: torch.rand(1)),
        ("dataset.rng", lambda own: own.rng.random()),
        ("dataset.torch", lambda own: torch.rand(1, generator=own.torch)),
        ("dataset.transforms[1].random", lambda own: own.transforms[1].random.random()),
    ],
)
def test_a_generator_that_was_drawn_from_is_told(which: str, draw: Any) -> None:
    own = Drawing()
    before = states(torch, own)
    draw(own)
    after = states(torch, own)
    assert [name for name in after if after[name] != before[name]] == [which]


def test_the_length_of_a_dataset_is_not_asked_for_where_that_runs_code() -> None:
    counting = Counting()
    assert (size_of(counting), counting.asked) == (-1, 0)
    assert size_of(Plain()) == 3
    data = TensorDataset(torch.zeros(5, 2))
    assert (size_of(data), size_of(Subset(data, [1, 3])), size_of(ConcatDataset([data, data]))) == (
        5,
        2,
        10,
    )


@pytest.mark.parametrize(
    ("options", "n"),
    [
        ({"batch_size": 4}, 10),
        ({"batch_size": 4, "shuffle": True, "drop_last": True}, 8),
        ({"batch_size": None}, 10),
        ({"batch_size": 4, "sampler": torch.utils.data.SubsetRandomSampler([1, 2, 3])}, 3),
        ({"batch_size": 4, "sampler": torch.utils.data.WeightedRandomSampler([0.5] * 10, 6)}, 6),
        ({"batch_size": 4, "sampler": [3, 1, 2]}, -1),
        ({"batch_sampler": [[0, 1], [2]]}, -1),
    ],
)
def test_how_many_samples_a_pass_asks_for_is_known_of_samplers_of_torch(
    options: dict[str, Any], n: int
) -> None:
    assert (
        count_indices(torch.utils.data.DataLoader(TensorDataset(torch.zeros(10, 2)), **options))
        == n
    )


def test_how_many_samples_a_pass_asks_for_is_not_known_where_that_runs_code() -> None:
    counting: Any = Counting()
    loader = torch.utils.data.DataLoader(counting, batch_size=2)
    counting.asked = 0
    assert (count_indices(loader), counting.asked) == (-1, 0)


def test_a_subset_in_another_order() -> None:
    data = torch.utils.data
    inner = TensorDataset(torch.zeros(5, 2))
    assert is_ascending(data, inner)
    assert is_ascending(data, Subset(inner, range(1, 4)))
    assert is_ascending(data, Subset(inner, [0, 2, 3]))
    assert not is_ascending(data, Subset(inner, [2, 0, 3]))
    assert not is_ascending(data, Subset(Subset(inner, torch.tensor([4, 0])), [0, 1]))  # type: ignore[arg-type]  # programs do


def test_labels_of_a_batch() -> None:
    images, classes = torch.zeros(3, 2), torch.tensor([2, 0, 2])
    assert labels(torch, [images, classes]) == [2, 0, 2]
    assert labels(torch, {"image": images, "label": classes}) == [2, 0, 2]
    assert labels(torch, [images, torch.zeros(3)]) is None
    assert labels(torch, [images, torch.zeros(3, 2, dtype=torch.long)]) is None
    assert labels(torch, images) is None


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_batches_that_hold_the_same_are_told_from_others(kind: torch.dtype) -> None:
    one, other = torch.tensor([1, 0, 1]).to(kind), torch.tensor([1, 1, 1]).to(kind)
    assert content(torch, [one, {"a": "b"}]) == content(torch, (one.clone(), {"a": "b"}))
    assert content(torch, [one]) != content(torch, [other])


def test_a_batch_can_be_resized_after_it_was_looked_at() -> None:
    batch = torch.ones(3)
    content(torch, batch)
    batch.resize_(9)


def test_what_is_no_data_is_not_told() -> None:
    assert content(torch, [object()]) is None


def test_a_large_batch_is_told_by_its_first_part() -> None:
    batch = torch.rand(64, 3, 64, 64)
    other = batch.clone()
    assert content(torch, batch) == content(torch, other)
    other[0, 0] += 1
    assert content(torch, batch) != content(torch, other)


@pytest.mark.parametrize(
    ("indices", "says"),
    [
        ([0, 1, 2, 3], {"distinct": 4, "missed": 0, "missed_first": -1, "sequential": True}),
        ([3, 1, 0], {"distinct": 3, "missed": 1, "missed_first": 2, "sequential": False}),
        ([0, 1, 1, 2], {"distinct": 3, "missed": 1, "missed_first": 3, "at_seams": 1}),
        ([], {"n": 0, "distinct": 0, "missed": 4, "sequential": False}),
    ],
)
def test_the_figures_of_an_epoch(indices: list[int], says: dict[str, Any]) -> None:
    found = _figures(array("q", indices), [2, len(indices)], 4)
    assert {key: found[key] for key in says} == says


def test_two_orders_of_the_same_samples() -> None:
    one, other = (_figures(array("q", order), [], -1) for order in ([0, 2, 1], [2, 1, 0]))
    assert one["set"] == other["set"]
    assert one["order"] != other["order"]
    assert "missed" not in one
