"""loading_rate: what a watched loader tells, and that it is left as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from voirkit_instruments.rates.record import LoaderWatch


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(2)


class Batches:
    """An iterable of its own, written in Python."""

    def __init__(self, n: int = 3) -> None:
        self.left = n

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> list[int]:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return [1, 2]


class Watched:
    """A watch and what arrived at it."""

    def __init__(self) -> None:
        self.arrived: list[tuple[str | None, Any]] = []
        self.warned: list[str] = []
        self.times: list[int] = []
        self.watch = LoaderWatch(self.on_batch, self.warned.append)

    def on_batch(self, task: str | None, begin: int, end: int, batch: Any) -> None:
        self.arrived.append((task, batch))
        self.times.append(end - begin)


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.watch.remove()


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_every_batch_of_a_given_dataloader_is_timed(
    watched: Watched, workers: int, persistent: bool
) -> None:
    loader = DataLoader(Slow(), batch_size=8, num_workers=workers, persistent_workers=persistent)
    watched.watch.watch(loader, "train")
    lengths = [len(batch) for _ in range(2) for batch in loader]
    assert lengths == [8, 8, 4] * 2
    assert [(task, len(batch)) for task, batch in watched.arrived] == [
        ("train", n) for n in lengths
    ]
    assert min(watched.times) > 0


def test_other_dataloaders_are_not_timed(watched: Watched) -> None:
    given, other = DataLoader(Slow(), batch_size=10), DataLoader(Slow(), batch_size=5)
    watched.watch.watch(given)
    for _ in zip(given, other, strict=False):
        pass
    assert len(watched.arrived) == 2


def test_an_iterable_dataset_keeps_the_place_of_its_warning(watched: Watched) -> None:
    class Numbers(IterableDataset[torch.Tensor]):
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(torch.zeros(4, 1))

    loader = DataLoader(Numbers(), batch_size=1)
    assert len(loader) == 2  # from now on torch warns of a third batch
    places = []
    for observed in (False, True):
        if observed:
            watched.watch.watch(loader)
        numbers = iter(loader)
        next(numbers), next(numbers)
        with pytest.warns(UserWarning, match="Length of IterableDataset") as caught:
            next(numbers)
        places.append(caught[0].filename)
    assert places[0] == places[1]
    assert len(watched.arrived) == 3


def test_a_dataloader_is_given_after_its_workers_were_started(watched: Watched) -> None:
    loader = DataLoader(Slow(), batch_size=10, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    watched.watch.watch(loader)
    assert len(list(iterator)) == 2
    assert len(watched.arrived) == 2


def test_a_dataloader_whose_iter_is_a_generator_that_calls_the_original_is_timed(
    watched: Watched,
) -> None:
    class Sharded(DataLoader[torch.Tensor]):
        def __iter__(self) -> Any:  # as accelerate does
            yield from super().__iter__()

    loader = Sharded(Slow(), batch_size=10)
    watched.watch.watch(loader)
    assert len(list(loader)) == 2
    assert len(watched.arrived) == 2
    assert watched.warned == []


def test_a_loader_of_ones_own_is_timed(watched: Watched) -> None:
    loader = Batches()
    watched.watch.watch(loader)
    assert list(loader) == [[1, 2]] * 3
    assert [batch for _, batch in watched.arrived] == [[1, 2]] * 3


def test_an_iterator_that_calls_the_one_it_overrides_is_timed_once(watched: Watched) -> None:
    class More(Batches):
        def __next__(self) -> list[int]:
            return [*super().__next__(), 3]

    first, second = Batches(1), More(2)
    watched.watch.watch(first)
    watched.watch.watch(second)
    assert [*first, *second] == [[1, 2], [1, 2, 3], [1, 2, 3]]
    assert [batch for _, batch in watched.arrived] == [[1, 2], [1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: (x for x in [[1]]),
        lambda: [[1], [2]],
        lambda: iter([[1]]),
        lambda: zip([1], [2], strict=True),
    ],
)
def test_what_can_not_be_observed_is_said_and_left_alone(watched: Watched, make: Any) -> None:
    loader = make()
    watched.watch.watch(loader)
    assert len(list(loader)) > 0
    assert watched.arrived == []
    assert len(watched.warned) == 1
    assert "cannot be observed" in watched.warned[0]


def test_a_class_whose_iter_is_a_generator_is_said_once_for_all_its_objects(
    watched: Watched,
) -> None:
    class Yields:
        def __iter__(self) -> Iterator[int]:
            yield 1

    for _ in range(3):
        watched.watch.watch(Yields())
    assert len(watched.warned) == 1
    assert "generator function" in watched.warned[0]


def test_what_a_loader_raises_reaches_the_program(watched: Watched) -> None:
    class Broken(Batches):
        def __next__(self) -> list[int]:
            raise ValueError("broken sample")

    loader = Broken()
    watched.watch.watch(loader)
    with pytest.raises(ValueError, match="broken sample"):
        next(loader)


def test_all_classes_are_as_before_when_the_watch_ends() -> None:
    from torch.utils.data import dataloader

    names = (
        "_BaseDataLoaderIter",
        "_SingleProcessDataLoaderIter",
        "_MultiProcessingDataLoaderIter",
        "DataLoader",
    )
    kinds = [getattr(dataloader, name) for name in names] + [Batches]
    before = [dict(vars(kind)) for kind in kinds]
    watched = Watched()
    for loader in (DataLoader(Slow(), num_workers=0), DataLoader(Slow(), num_workers=1), Batches()):
        watched.watch.watch(loader)
        list(loader)
    assert len(watched.watch.patches) >= 3
    watched.watch.remove()
    assert [dict(vars(kind)) for kind in kinds] == before
    assert watched.watch.patches == []


def test_a_watched_loader_is_not_kept_alive(watched: Watched) -> None:
    import weakref

    loader = DataLoader(Slow(), batch_size=10)
    watched.watch.watch(loader)
    list(loader)
    reference = weakref.ref(loader)
    watched.arrived.clear()
    del loader
    gc.collect()
    assert reference() is None


def test_a_loader_that_was_never_asked_is_mentioned() -> None:
    watched = Watched()
    watched.watch.watch(DataLoader(Slow()))
    watched.watch.remove()
    assert "DataLoader" in watched.warned[0]
