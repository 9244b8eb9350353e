"""What ``--loader`` records of real loaders: every sample once, its transforms, its worker, the way of each batch, and how long each took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from loader_rules import check
from loading_runs import Record, episodes, named, records, under_loader, values, violations, write

from voirkit.runs.opened import open_run

pytestmark = pytest.mark.long

pytest.importorskip("torch")

DATA = """
    import functools, time
    import torch
    from torch import nn
    from torch.utils.data import Dataset, IterableDataset, get_worker_info

    torch.set_num_threads(1)

    class Scale:
        def __init__(self, by):
            self.by = by
        def __call__(self, x):
            return x * self.by

    class Twice:
        __slots__ = ("inner",)
        def __init__(self, inner):
            self.inner = inner
        def __call__(self, x):
            return self.inner(self.inner(x))

    class Steeper(Scale):
        def __call__(self, x):
            return super().__call__(x) + 1

    class Flip(nn.Module):
        def forward(self, x):
            return x.flip(0)

    class Everything:
        def __call__(*everything):
            return everything[1]

    class Pipeline:
        def __init__(self, *transforms):
            self.transforms = list(transforms)
        def __call__(self, x):
            for transform in self.transforms:
                x = transform(x)
            return x

    def shift(x, by=1):
        del by
        return x + 1

    class Numbers(Dataset):
        def __init__(self, n, transform=None, n_first=0):
            self.n, self.transform, self.first = n, transform, n_first
        def __len__(self):
            return self.n
        def __getitem__(self, index):
            x = torch.full((4,), float(index))
            del index
            return x if self.transform is None else self.transform(x)

    class Narrow(Dataset):
        __slots__ = ("n", "transform")
        def __init__(self, n, transform):
            self.n, self.transform = n, transform
        def __len__(self):
            return self.n
        def __getitem__(self, i, /):
            return self.transform(torch.full((4,), float(i)))

    class InGroups(Numbers):
        def __getitems__(self, indices):
            return [self[i] for i in indices]

    class Wrapped(Dataset):
        def __init__(self, inner, transform):
            self.inner, self.transform = inner, transform
        def __len__(self):
            return len(self.inner)
        def __getitem__(self, i):
            return self.transform(self.inner[i])

    class Stream(IterableDataset):
        def __init__(self, n, transform=None):
            self.n, self.transform = n, transform
        def __iter__(self):
            info = get_worker_info()
            at, of = (0, 1) if info is None else (info.id, info.num_workers)
            for i in range(at, self.n, of):
                x = torch.full((4,), float(i))
                yield x if self.transform is None else self.transform(x)

    class SlowWorker(Numbers):
        def __getitem__(self, index):
            if get_worker_info().id == 0:
                time.sleep(0.15)
            return super().__getitem__(index)

    everywhere = Pipeline(Scale(2), Flip())

    class Shared(Numbers):
        steep = Steeper(3)
        def __getitem__(self, i):
            return everywhere(self.steep(super().__getitem__(i)))

    def stacked(samples):
        return torch.utils.data.default_collate(samples)

    def breaking(x):
        if x[0] == 5:
            raise ValueError("no such picture")
        return x
    """

MAIN = """
    import functools, json, multiprocessing, sys, zipfile
    import numpy as np
    import torch
    from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, SequentialSampler, Subset, TensorDataset, random_split
    from data import *

    kept, wanted = [], {}

    def load(name, loader, epochs=1, samples=None):
        kept.append(loader)
        for _ in range(epochs):
            for batch in loader:
                pass
        wanted[name] = {"loader": len(kept) - 1, "epochs": epochs, "samples": samples}

    def main():
        pipeline = Pipeline(Scale(2), shift, lambda x: x - 1)
        generator = torch.Generator().manual_seed(0)
        for workers in 0, 1, 2:
            load(f"{workers} workers", DataLoader(Numbers(10, pipeline), batch_size=4, num_workers=workers), 2, [*range(10)])
        load("persistent workers", DataLoader(Numbers(8, pipeline), batch_size=2, num_workers=2, persistent_workers=True), 3, [*range(8)])
        load("an iterable", DataLoader(Stream(9, Scale(3)), batch_size=2), 1, [*range(9)])
        load("an iterable in workers", DataLoader(Stream(9, Scale(3)), batch_size=2, num_workers=2), 2)
        part = random_split(Numbers(12, shift), [5, 7], generator=generator)[0]
        load("a part", DataLoader(part, batch_size=2, num_workers=1, shuffle=True, generator=generator), 1, sorted(part.indices))
        load("several datasets", DataLoader(ConcatDataset([Numbers(3, shift), Numbers(4, shift)]), batch_size=2), 1, [*range(7)])
        load("groups", DataLoader(InGroups(8, shift), batch_size=4, num_workers=1), 1, [*range(8)])
        load("a wrapper", DataLoader(Wrapped(Numbers(6, shift), Scale(2)), batch_size=3), 1, [*range(6)])
        load("slots", DataLoader(Narrow(6, Twice(Scale(2))), batch_size=3), 1, [*range(6)])
        load("the last call counts", DataLoader(Numbers(4, Steeper(2)), batch_size=2), 1, [*range(4)])
        load("modules", DataLoader(Numbers(4, torch.nn.Sequential(Flip(), Flip())), batch_size=2), 1, [*range(4)])
        load("a partial function", DataLoader(Numbers(4, functools.partial(shift, by=2)), batch_size=2), 1, [*range(4)])
        load("all parameters in one", DataLoader(Numbers(4, Everything()), batch_size=2), 1, [*range(4)])
        load("what a class and a module have", DataLoader(Shared(4), batch_size=2), 1, [*range(4)])
        load("an own collate", DataLoader(Numbers(4, shift), batch_size=2, collate_fn=stacked, num_workers=1), 1, [*range(4)])
        load("a lambda that collates", DataLoader(Numbers(4, shift), batch_size=2, collate_fn=lambda s: torch.stack(s)), 1, [*range(4)])
        load("single samples", DataLoader(Numbers(3, shift), batch_size=None, num_workers=1), 1, [*range(3)])
        batches = BatchSampler(RandomSampler(range(7), generator=generator), 3, drop_last=True)
        load("an own batch sampler", DataLoader(Numbers(7, shift), batch_sampler=batches, num_workers=1))
        load("indices of numpy", DataLoader(Numbers(4, shift), sampler=np.arange(4), batch_size=2), 1, [*range(4)])
        load("no order", DataLoader(SlowWorker(24), batch_size=4, num_workers=2, **unordered), 1, [*range(24)])
        load("a slow worker", DataLoader(SlowWorker(24), batch_size=4, num_workers=2), 1, [*range(24)])
        broken = DataLoader(Numbers(8, breaking), batch_size=2, num_workers=2)
        try:
            load("broken", broken)
        except ValueError:
            wanted["broken"] = {"loader": len(kept) - 1, "epochs": 1, "samples": None}
        first, second = DataLoader(Numbers(6, shift), batch_size=2, num_workers=1), DataLoader(Numbers(6, shift), batch_size=2)
        kept.append(first), kept.append(second)
        for pair in zip(first, second):
            pass
        wanted["one of two"] = {"loader": len(kept) - 2, "epochs": 1, "samples": [*range(6)]}
        wanted["the other of two"] = {"loader": len(kept) - 1, "epochs": 1, "samples": [*range(6)]}
        for method in "spawn", "forkserver":
            loader = DataLoader(Numbers(4, Pipeline(Scale(2), shift)), batch_size=2, num_workers=1, multiprocessing_context=method)
            load(method, loader, 1, [*range(4)])
        json.dump(wanted, open("wanted.json", "w"))

    unordered = {"in_order": False} if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6) else {}
    if __name__ == "__main__":
        multiprocessing.set_start_method("fork")  # lambdas are not pickled; no longer the default since python 3.14
        main()
    """


class Loads:
    """The records of a program by what it loads."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.records = records(folder)
        self.wanted: dict[str, Any] = json.loads((folder / "wanted.json").read_text())
        self.by_episode = episodes(self.records)

    def of(self, name: str) -> list[Record]:
        """All of one loader."""
        return [
            record
            for record in self.records
            if record.args["loader"] == self.wanted[name]["loader"]
        ]

    def epochs(self, name: str) -> list[list[Record]]:
        """Those of each of its epochs."""
        return [
            found
            for (loader, _), found in self.by_episode.items()
            if loader == self.wanted[name]["loader"]
        ]

    def operations(self, name: str) -> dict[str, int]:
        """How many records each operation has."""
        names = [
            record.name.partition(".")[2]
            for record in self.of(name)
            if record.name.startswith("operation.")
        ]
        return {found: names.count(found) for found in sorted(set(names))}


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> Loads:
    folder = write(tmp_path_factory.mktemp("loads"), data=DATA, main=MAIN)
    said = under_loader(folder)
    assert said.code == 0, said.err
    assert "recorded" not in said.err  # nothing failed
    assert "watched" not in said.err
    return Loads(folder)


def test_every_run_keeps_the_rules(loads: Loads) -> None:
    wanted = {known["loader"]: known["samples"] for known in loads.wanted.values()}
    assert violations(loads.records, {key: wanted.get(key[0]) for key in loads.by_episode}) == []


def test_every_run_keeps_the_rules_that_planted_records_are_held_against(loads: Loads) -> None:
    with open_run(str(loads.run_dir)) as run:
        rules = check(run, 0)
    assert len(rules) > 20
    assert {rule.text: rule.example for rule in rules if rule.broken} == {}


def test_every_loader_has_as_many_episodes_as_epochs(loads: Loads) -> None:
    assert {name: len(loads.epochs(name)) for name in loads.wanted} == {
        name: known["epochs"] for name, known in loads.wanted.items()
    }


def test_loaders_and_episodes_have_the_numbers_that_steps_have(
    loads: Loads, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert sorted({episode for _, episode in loads.by_episode}) == [*range(len(loads.by_episode))]


@pytest.mark.parametrize("workers", ["0 workers", "1 workers", "2 workers"])
def test_each_transform_of_a_pipeline_is_an_operation_on_each_sample(
    loads: Loads, workers: str
) -> None:
    assert loads.operations(workers) == {"<lambda>": 20, "Scale": 20, "shift": 20}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_started_anew_record_the_same(loads: Loads, method: str) -> None:
    assert loads.operations(method) == {"Scale": 4, "shift": 4}
    assert {record.args["worker"] for record in named(loads.of(method), "data.item")} == {0}


@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("a wrapper", {"Scale": 6, "shift": 6}),
        ("slots", {"Scale": 12, "Twice": 6}),
        ("the last call counts", {"Steeper": 4}),
        ("modules", {"Flip": 8}),
        ("a partial function", {"shift": 4}),
        ("what a class and a module have", {"Flip": 4, "Scale": 4, "Steeper": 4}),
        ("all parameters in one", {"Everything": 4}),
        ("groups", {"shift": 8}),
        ("an iterable", {"Scale": 9}),
        ("an iterable in workers", {"Scale": 18}),
    ],
)
def test_operations_are_seen_wherever_they_stand(
    loads: Loads, name: str, operations: dict[str, int]
) -> None:
    assert loads.operations(name) == operations


def test_what_a_transform_calls_lies_in_it(loads: Loads) -> None:
    outer, inner = (
        named(loads.of("slots"), "operation.Twice"),
        named(loads.of("slots"), "operation.Scale"),
    )
    assert [sum(one.is_in(other) for one in inner) for other in outer] == [2] * 6


def test_a_batch_that_raises_is_told(loads: Loads) -> None:
    found = loads.of("broken")
    assert [
        (record.value, record.args["error"])
        for record in named(found, "batch.consumed")
        if "error" in record.args
    ] == [(2, "ValueError")]
    assert [
        (record.value, record.args["error"])
        for record in named(found, "data.preprocess")
        if "error" in record.args
    ] == [(2, "ValueError")]


def test_the_end_of_an_iterable_is_no_batch(loads: Loads) -> None:
    for found in loads.epochs("an iterable in workers"):
        assert len(named(found, "batch.consumed")) == len(named(found, "data.collate")) == 5
        assert [
            record.args["error"]
            for record in named(found, "data.preprocess")
            if "error" in record.args
        ] == ["StopIteration"] * 2


def test_samples_of_an_iterable_are_counted_in_each_worker(loads: Loads) -> None:
    for found in loads.epochs("an iterable in workers"):
        by_worker = {
            w: [r.value for r in named(found, "data.item") if r.args["worker"] == w] for w in (0, 1)
        }
        assert by_worker == {0: [0, 1, 2, 3, 4], 1: [0, 1, 2, 3]}


def test_the_source_of_samples_is_the_dataset_that_made_them(loads: Loads) -> None:
    sources = {
        name: {r.args["source"] for r in named(loads.of(name), "data.item", "data.inner")}
        for name in ("a part", "several datasets", "an iterable", "spawn")
    }
    assert sources == {
        "a part": {"Numbers.__getitem__"},
        "several datasets": {"ConcatDataset.__getitem__", "Numbers.__getitem__"},
        "an iterable": {"Stream.__iter__"},
        "spawn": {"Numbers.__getitem__"},
    }


def test_batches_that_overtake_each_other(loads: Loads) -> None:
    found = loads.of("a slow worker")
    arrived = values(found, "batch.arrived")
    assert values(found, "batch.consumed") == [0, 1, 2, 3, 4, 5]
    assert arrived == [1, 3, 0, 5, 2, 4]
    assert [record.value for record in named(found, "batch.wait") if record.args["ready"]] == [
        1,
        3,
        5,
    ]


def test_without_order_batches_are_consumed_as_they_come(loads: Loads) -> None:
    found = loads.of("no order")
    if values(found, "batch.consumed") != [
        0,
        1,
        2,
        3,
        4,
        5,
    ]:  # torch before 2.6 always has an order
        assert values(found, "batch.arrived") == values(found, "batch.consumed")


def test_the_processor_time_of_a_batch_is_told_where_it_ends(loads: Loads) -> None:
    for name in "0 workers", "2 workers":
        worked, took = named(loads.of(name), "data.cpu"), named(loads.of(name), "data.preprocess")
        assert sorted(record.begin for record in worked) == sorted(record.end for record in took)
        assert all(record.value > 0 for record in worked)


def test_at_most_so_many_batches_are_queued_as_torch_allows(loads: Loads) -> None:
    found, most, queued = loads.epochs("2 workers")[0], 0, 0
    for record in sorted(named(found, "batch.queued", "batch.consumed"), key=lambda r: r.begin):
        queued += 1 if record.name == "batch.queued" else -1
        most = max(most, queued)
    assert most <= 2 * 2 + 1  # the next one is queued before the request for this one ends
