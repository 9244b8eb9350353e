"""What the steps instrument records for comparing runs: the loss of each backward pass, and a digest of the indices of each batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from struct import pack, unpack
from typing import Any

import numpy as np
import pytest
import torch
from phases import Kept, Watched, net, points, train
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from voirkit_instruments.steps.record import SeenLosses
from voirkit_instruments.steps.record_plain import digest_indices
from voirkit_instruments.steps.record_spans import engine as chosen_engine
from voirkit_instruments.steps.record_values import values_of

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture
def watch() -> Iterator[Watched]:
    """torch under the steps instrument, with the losses looked at as in every run."""
    watch = Watched()
    values_of(watch.overseer).start(torch, SeenLosses(), False)
    watch.steps.start(torch)
    yield watch
    watch.steps.end()
    assert watch.overseer.warned == []


def losses(kept: Kept) -> list[float | None]:
    """The loss of each backward pass, None where it is not known."""
    return [
        None if "loss" not in seen else unpack("<d", pack("<q", seen["loss"]))[0]
        for seen in kept.seen("compute.backward")
    ]


# losses


def test_the_loss_of_each_backward_pass_is_kept_to_the_last_bit(watch: Watched) -> None:
    model, seen = net(), []
    for x, y in DataLoader(points(12), batch_size=2):
        loss = F.cross_entropy(model(x), y)
        seen.append(loss.item())
        loss.backward()
    assert losses(watch.kept) == seen


@pytest.mark.parametrize("value", [0.0, -0.0, float("inf"), 5e-324, 1.0000001])
def test_any_float64_is_kept(watch: Watched, value: float) -> None:
    torch.tensor(value, dtype=torch.float64, requires_grad=True).backward()
    assert [None if loss is None else pack("<d", loss) for loss in losses(watch.kept)] == [
        pack("<d", value)
    ]


def test_a_loss_of_several_numbers_is_not_known_and_neither_is_that_of_grad(watch: Watched) -> None:
    w = torch.ones(2, requires_grad=True)
    (w * w).sum().backward()
    (w * w).backward(torch.ones(2))
    torch.autograd.grad((w * w).sum(), w)
    assert losses(watch.kept) == [2.0, None, None]


def test_a_loss_belongs_to_its_own_pass_also_where_that_fails(watch: Watched) -> None:
    w = torch.ones(1, requires_grad=True)
    with pytest.raises(RuntimeError):
        w.detach().sum().backward()
    torch.autograd.grad((w * w).sum(), w)
    assert losses(watch.kept) == [1.0, None]


# batches


def digests(kept: Kept) -> list[int]:
    return [value for *_, value in kept.batches]


def test_each_batch_of_a_map_style_loader_has_the_digest_of_its_indices(watch: Watched) -> None:
    for _ in DataLoader(points(6), batch_size=2):
        pass
    assert digests(watch.kept) == [
        digest_indices([0, 1]),
        digest_indices([2, 3]),
        digest_indices([4, 5]),
    ]


def test_indices_are_recorded_within_the_request_that_asks_for_them(watch: Watched) -> None:
    model = net()
    train(model, DataLoader(points(6), batch_size=2), torch.optim.SGD(model.parameters(), 0.1))
    within = zip(watch.kept.batches, watch.kept.times("dataloader.fetch"), strict=True)
    assert all(begin <= at <= end for (_, at, _, _, _), (begin, end) in within)


def test_a_single_index_without_batches_is_one_of_them(watch: Watched) -> None:
    for _ in DataLoader(points(3), batch_size=None):
        pass
    assert digests(watch.kept) == [digest_indices(i) for i in range(3)]


def test_an_iterable_dataset_has_no_indices(watch: Watched) -> None:
    class Numbers(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    assert len(list(DataLoader(Numbers(), batch_size=2))) == 2
    assert digests(watch.kept) == []


def drawn(watch: Watched, indices: Iterable[Any]) -> list[int]:
    """Digests of batches of one index each."""

    class Anything(torch.utils.data.Dataset[int]):
        def __getitem__(self, index: Any) -> int:
            return 0

    before = len(watch.kept.batches)
    for _ in DataLoader(Anything(), batch_sampler=[[index] for index in indices]):  # type: ignore[arg-type]  # any indices
        pass
    return digests(watch.kept)[before:]


def test_indices_that_are_texts_pairs_or_of_numpy_have_digests_that_tell_them_apart(
    watch: Watched,
) -> None:
    kinds = ["a", "b", (1, 2), (2, 1), (1, (2,)), np.int64(7), 1.5, True, 2**70]
    first, second = drawn(watch, kinds), drawn(watch, kinds)
    assert first == second
    assert len(set(first)) == len(kinds)


def test_indices_of_other_types_are_not_known(watch: Watched) -> None:
    assert drawn(watch, [object(), torch.tensor(3)]) == []


def test_a_sampler_that_fails_is_the_programs_own(watch: Watched) -> None:
    def fails() -> Iterator[list[int]]:
        yield [0]
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        list(DataLoader(points(2), batch_sampler=fails()))  # type: ignore[arg-type]  # an iterator will do
    assert digests(watch.kept) == [digest_indices([0])]


def recorded(indices: Any) -> int | None:
    """The digest as the engine has it that records."""
    kept: list[int] = []
    hot = chosen_engine().HotPath(
        lambda name, start, end, args=0, value=0: kept.append(value), lambda *_: None
    )
    leave: Callable[..., None] = hot.leave_indices(1, lambda _: None)
    leave(1, 0, indices)
    return kept[0] if kept else None


def test_both_engines_have_the_same_digest() -> None:
    source = random.Random(0)
    cases: list[Any] = [[], 0, -1, 2**63 - 1, -(2**63), 2**63, [2**64], [True], ["a"], (1, 2), None]
    cases += [
        [source.randrange(-(2**63), 2**63) for _ in range(source.randrange(40))] for _ in range(200)
    ]
    assert [recorded(case) for case in cases] == [digest_indices(case) for case in cases]


def test_order_and_length_are_in_the_digest() -> None:
    batches = [[0, 1], [1, 0], [0], [0, 0], [0, 1, 0], []]
    assert len({digest_indices(batch) for batch in batches}) == len(batches)
