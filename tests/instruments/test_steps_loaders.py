"""What the steps instrument records of loaders, and how long it says they are."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from phases import STEP, Kept, net, points, train, watched
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from voirkit_instruments.steps.batch_sizes import batches

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.long]


def test_a_loader_tells_what_it_is(kept: Kept) -> None:
    list(DataLoader(points(7), batch_size=3))
    assert kept.seen("dataloader.iter") == [
        {
            "loader": 0, "episode": 0, "workers": 0, "batch_size": 3, "length": 3, "dataset": "TensorDataset", "pin_memory": False,
            "persistent": False, "whole_batches": False, "sampler": "SequentialSampler",
        }
    ]  # fmt: skip
    assert [seen["items"] for seen in kept.seen("dataloader.fetch")] == [3, 3, 1]


class Keeping(DataLoader[Any]):
    """Keeps one iterator for ever, and never asks ``DataLoader.__iter__`` for it, as ultralytics' does."""

    kept: Any = None

    def __iter__(self) -> Any:
        if self.kept is None:
            self.kept = self._get_iterator()
        for _ in range(len(self)):
            yield next(self.kept)


def test_an_iterator_that_the_loader_makes_by_itself_is_known_with_its_loader(kept: Kept) -> None:
    list(Keeping(points(6), batch_size=3))
    (begun,) = kept.seen("dataloader.iter")
    assert (begun["loader"], begun["episode"], begun["workers"], begun["dataset"]) == (
        0,
        0,
        0,
        "TensorDataset",
    )
    assert [(seen["loader"], seen["episode"]) for seen in kept.seen("dataloader.fetch")] == [
        (0, 0)
    ] * 2


class StandIn:
    """What fastai makes torch's iterator from: no loader of torch, and its own dataset; no attribute may be asked for that is not plain."""

    _IterableDataset_len_called, _auto_collation, drop_last, in_order, _index_sampler = (
        None,
        False,
        False,
        True,
        range(4),
    )
    generator = worker_init_fn = prefetch_factor = multiprocessing_context = None
    _dataset_kind = dataset_kind = 1
    pin_memory_device = ""

    def __init__(self, loader: Any) -> None:
        self.d, self.dataset = loader, self
        self.num_workers, self.pin_memory, self.timeout, self.persistent_workers = (
            0,
            False,
            0,
            False,
        )

    def collate_fn(self, batch: Any) -> Any:
        return batch

    def __iter__(self) -> Iterator[Any]:
        yield from (torch.zeros(2, 4) for _ in range(4))


def test_an_iterator_of_what_is_no_loader_of_torch_is_known_by_plain_attributes(kept: Kept) -> None:
    class Behind:
        bs = 2

        def __init__(self) -> None:
            self.dataset, self.bs = points(8), 2

        def __getattr__(self, name: str) -> Any:
            raise AssertionError("code of the program")

    made = torch.utils.data.dataloader._SingleProcessDataLoaderIter(StandIn(Behind()))  # type: ignore[arg-type]
    next(made)
    (begun,) = kept.seen("dataloader.iter")
    assert (begun["workers"], begun["batch_size"], begun["length"], begun["dataset"]) == (
        0,
        2,
        None,
        "TensorDataset",
    )


class Stream(IterableDataset[int]):
    def __len__(self) -> int:
        return 1  # wrong, and torch says so to who has asked for it

    def __iter__(self) -> Iterator[int]:
        yield from range(5)


def test_an_iterable_dataset_has_no_length_and_is_not_asked(kept: Kept) -> None:
    assert list(DataLoader(Stream(), batch_size=2))  # warnings are errors
    assert kept.seen("dataloader.iter")[0]["length"] is None


# In a process of its own: after a fork torch refuses to train in one whose parent has autograd's threads, as other tests make them.
FORKED = """
import sys
import torch
from phases import net, train, watched
from test_steps_loaders import Transformed

with watched() as watch:
    model = net()
    loader = torch.utils.data.DataLoader(Transformed(), batch_size=2, num_workers=int(sys.argv[1]))
    train(model, loader, torch.optim.SGD(model.parameters(), 0.1))
    print(*watch.kept.kinds())
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_record_nothing_of_their_own(workers: int) -> None:
    command = [sys.executable, "-c", FORKED, str(workers)]
    ended = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    started, stopped = "dataloader.start_workers", "dataloader.stop_workers"
    assert ended.stdout.split() == [
        started,
        "dataloader.iter",
        *STEP * 3,
        stopped,
        "dataloader.end",
        "pipeline.epoch",
    ]


class Transformed(Dataset[Any]):
    """Its transform is a module, moves tensors, loads a file and has gradients: all of it is loading."""

    def __init__(self) -> None:
        self.transform = net()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Any:
        x = torch.zeros(4).to(torch.float64).to(torch.float32)
        self.transform(x).sum().backward()
        self.transform.zero_grad()
        return x, 0


def test_inside_of_a_request_nothing_else_is_recorded(kept: Kept) -> None:
    list(DataLoader(Transformed(), batch_size=2))
    assert set(kept.kinds()) == {"dataloader.iter", "dataloader.fetch", "dataloader.end"}


def test_persistent_workers_have_an_episode_each_epoch(kept: Kept) -> None:
    loader = DataLoader(points(4), batch_size=2, num_workers=1, persistent_workers=True)
    for _ in range(2):
        list(loader)
    assert [(seen["loader"], seen["episode"]) for seen in kept.seen("dataloader.fetch")] == [
        (0, 0)
    ] * 2 + [(0, 1)] * 2


def test_requests_by_hand_and_by_zip(kept: Kept) -> None:
    iterator = iter(DataLoader(points(2), batch_size=1))
    next(iterator)
    assert next(iter([]), None) is next(iter(DataLoader([], batch_size=1)), None)
    for _ in zip(iterator, DataLoader(points(5), batch_size=1), strict=False):
        pass
    assert [seen["loader"] for seen in kept.seen("dataloader.fetch")] == [0, 0, 2]
    assert [seen["loader"] for seen in kept.seen("dataloader.end")] == [1, 0]


def test_a_request_that_fails_has_no_items_and_the_error(kept: Kept) -> None:
    class Broken(Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> int:
            if i == 2:
                raise KeyError("no such picture")
            return i

    try:
        raise OSError("handled while batches are asked for")
    except OSError:
        with pytest.raises(KeyError):
            list(DataLoader(Broken(), batch_size=2))
    place = {"loader": 0, "episode": 0}
    assert kept.seen("dataloader.fetch") == [
        {**place, "items": 2},
        {**place, "error": "KeyError", "items": -1},
    ]


def test_an_iterator_that_can_not_be_made_is_told(kept: Kept) -> None:
    class Sampler(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise ValueError("no order")

    with pytest.raises(ValueError, match="no order"):
        list(DataLoader(points(2), sampler=Sampler([0, 1]), batch_size=None))
    assert kept.seen("dataloader.iter")[0]["error"] == "ValueError"


def test_a_loader_in_another_thread(kept: Kept) -> None:
    from voirkit_instruments.steps import record_plain as steps_plain

    thread = threading.Thread(target=lambda: list(DataLoader(points(4), batch_size=2)))
    thread.start()
    net()(torch.randn(1, 4))
    thread.join()
    assert kept.kinds().count("dataloader.fetch") == 2
    assert steps_plain.now() > kept.times("dataloader.end")[0][1]


LENGTHS: dict[str, tuple[Callable[[], Any], int | None]] = {
    "a dataset of torch": (lambda: DataLoader(points(7), batch_size=2, shuffle=True), 4),
    "a part of one": (lambda: DataLoader(Subset(points(7), [1, 2, 3]), batch_size=2, drop_last=True), 1),
    "a list": (lambda: DataLoader([1, 2, 3], batch_size=2), 2),
    "no batches": (lambda: DataLoader([1, 2, 3], batch_size=None), 3),
    "a dataset whose length looks": (lambda: DataLoader(Looks(), batch_size=2), 3),
    "a dataset whose length does something": (lambda: DataLoader(Counts()), None),
    "a sampler whose length does something": (lambda: DataLoader(points(4), sampler=Counts()), None),
    "a long list": (lambda: DataLoader(Around([0] * 100), batch_size=2), 50),
    "a dataset around one of torch": (lambda: DataLoader(Around(points(7)), batch_size=2), 4),
    "a dataset around one whose length looks": (lambda: DataLoader(Around(Looks()), batch_size=2), 3),
    "a dataset around one whose length does something": (lambda: DataLoader(Around(Counts()), sampler=[0]), None),
    "a dataset around a list of one whose length does something": (lambda: DataLoader(First([Counts()]), sampler=[0]), None),
    "a dataset whose list is a property": (lambda: DataLoader(Lazy(), sampler=[0]), None),
    "a dataset that passes on what it is asked for": (lambda: DataLoader(Asked(), sampler=[0]), None),
    "a part of one by indices that do something": (lambda: DataLoader(Subset(points(4), Counts()), sampler=[0]), None),  # type: ignore[arg-type]
}  # fmt: skip


class Looks(Dataset[int]):
    n = 5

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        return i


class Counts(Dataset[int]):
    asked = 0

    def __len__(self) -> int:
        self.asked += 1
        return 5

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class Around(Looks):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)


class First(Around):
    def __len__(self) -> int:
        return len(self.inner[0])


class Lazy(Looks):
    files: Any = property(lambda self: pytest.fail("it was asked for its files"))

    def __len__(self) -> int:
        return len(self.files)


class Asked(Looks):
    def __getattr__(self, name: str) -> Any:
        pytest.fail(f"it was asked for {name}")

    def __len__(self) -> int:
        return len(self.files)


@pytest.mark.parametrize("name", LENGTHS)
def test_the_length_is_known_where_no_code_of_the_program_runs_for_it(name: str) -> None:
    make, length = LENGTHS[name]
    assert batches(make()) == length


# loops as spans of the pipeline


def test_a_loop_is_an_epoch_if_it_trains_and_an_evaluation_if_it_only_calls(kept: Kept) -> None:
    model, loader = net(), DataLoader(points(4), batch_size=2)
    train(model, loader, torch.optim.SGD(model.parameters(), 0.1))
    for x, _ in loader:
        model(x)
    list(loader)
    told = [
        (kind, seen) for kind in ("pipeline.epoch", "pipeline.evaluate") for seen in kept.seen(kind)
    ]
    assert told == [
        ("pipeline.epoch", {"loader": 0, "episode": 0}),
        ("pipeline.evaluate", {"loader": 0, "episode": 1}),
    ]


def test_a_loop_that_is_left_is_over_where_it_is_left(kept: Kept) -> None:
    model = net()
    for x, _ in DataLoader(points(4), batch_size=1):
        model(x)
        break
    model(x)
    (begin, end), (_, called), (after, _) = (
        *kept.times("pipeline.evaluate"),
        *kept.times("compute.forward"),
    )
    assert begin < called < end < after


def test_an_evaluation_whose_iterator_is_held_is_over_when_the_next_loop_begins(kept: Kept) -> None:
    model = net()
    held = iter(DataLoader(points(2), batch_size=2))
    model(next(held)[0])
    train(model, DataLoader(points(2), batch_size=2), torch.optim.SGD(model.parameters(), 0.1))
    del held
    assert [seen["episode"] for seen in kept.seen("pipeline.evaluate")] == [0]
    assert kept.times("pipeline.evaluate")[0][1] <= kept.times("pipeline.epoch")[0][0]


@pytest.mark.usefixtures("engine")
def test_training_lasts_from_the_first_epoch_until_the_last_is_over() -> None:
    model, loader = net(), DataLoader(points(4), batch_size=2)
    with watched() as watch:
        for _ in range(2):
            train(model, loader, torch.optim.SGD(model.parameters(), 0.1))
    epochs = watch.kept.times("pipeline.epoch")
    ((begin, end),) = watch.kept.times("pipeline.train")
    assert begin == epochs[0][0]
    assert end >= epochs[1][1]  # it lies around them


def test_iterators_that_are_let_go_while_a_loop_begins_cost_no_record(kept: Kept) -> None:
    loader = DataLoader(points(4), batch_size=2)
    left = [iter(loader) for _ in range(300)]
    sys.setprofile(
        lambda *_: left.pop() and None if left else None
    )  # as another thread, or the garbage collector, might
    try:
        iterator = iter(loader)
    finally:
        sys.setprofile(None)
    assert len(kept.seen("dataloader.iter")) == 301
    del iterator
