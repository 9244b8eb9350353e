"""``--loader`` and datasets in each other, and datasets that give whole batches: each sample is counted once, and is of the one that made it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from loading_runs import under_loader, write

pytestmark = pytest.mark.long

torch = pytest.importorskip("torch")

DATASETS = """
    import torch
    from torch.utils.data import Dataset, IterableDataset

    class Rows(Dataset):
        def __init__(self, n=12, width=3):
            self.n, self.width = n, width
        def __len__(self):
            return self.n
        def __getitem__(self, i):
            return torch.full((self.width,), float(i)), i

    class Slow(Rows):
        pass

    class Longer(Rows):
        def __getitem__(self, i):
            return super().__getitem__(i)

    class Retrying(Rows):
        def __getitem__(self, i):
            return self[i + 1] if i % 2 == 0 and i + 1 < self.n else super().__getitem__(i)

    class Scaled(Dataset):
        def __init__(self, inner):
            self.inner = inner
        def __len__(self):
            return len(self.inner)
        def __getitem__(self, i):
            x, y = self.inner[i]
            return x * 2, y

    class Mixture:  # subclasses nothing of torch's
        def __init__(self, parts):
            self.parts = {i: part for i, part in enumerate(parts)}
        def __len__(self):
            return sum(map(len, self.parts.values()))
        def __getitem__(self, i):
            return self.parts[i % len(self.parts)][i // len(self.parts)]

    class Stream(IterableDataset):
        def __init__(self, n=12):
            self.n = n
        def __iter__(self):
            info = torch.utils.data.get_worker_info()
            start, by = (0, 1) if info is None else (info.id, info.num_workers)
            yield from (torch.full((3,), float(i)) for i in range(start, self.n, by))

    class OtherStream(Stream):
        pass

    class Batches(Stream):
        def __iter__(self):
            for i in range(4):
                yield {"x": torch.zeros(3, 5), "y": torch.zeros(3)}

    class Drawing(IterableDataset):  # iterates over a dataset that is indexed
        def __init__(self, inner):
            self.inner = inner
        def __iter__(self):
            for i in range(len(self.inner)):
                yield self.inner[i]

    class Table(Rows):  # as Hugging Face's datasets
        def __getitem__(self, key):
            n = len(key) if isinstance(key, list) else 1
            return {"x": torch.ones(n, 7), "y": torch.zeros(n)}
        def __getitems__(self, keys):
            rows = self.__getitem__(keys)
            return [{k: v[i] for k, v in rows.items()} for i in range(len(keys))]

    class AtOnce(Rows):
        def __getitems__(self, keys):
            return torch.ones(len(keys), 5).unbind()

    class Behind:
        def __init__(self, dataset):
            self.dataset, self.bs = dataset, 4

    class StandIn:  # as fastai's _FakeLoader
        _IterableDataset_len_called, _auto_collation, drop_last, in_order, timeout, pin_memory = None, False, False, True, 0, False
        generator, prefetch_factor, persistent_workers, worker_init_fn, pin_memory_device = None, 2, False, None, ""
        multiprocessing_context = None
        dataset_kind = _dataset_kind = torch.utils.data._DatasetKind.Iterable
        _index_sampler = range(100)
        def __init__(self, d, num_workers):
            self.dataset, self.d, self.num_workers = self, d, num_workers
        def collate_fn(self, x):
            return x
        def _get_shared_seed(self, *_):
            return None
        def __iter__(self):
            for at in range(0, len(self.d.dataset), self.d.bs):
                yield torch.stack([self.d.dataset[i][0] for i in range(at, at + self.d.bs)])

    class Own:
        def __init__(self, dataset):
            self.stand_in = StandIn(Behind(dataset), 1)
        def __iter__(self):
            yield from torch.utils.data.dataloader._MultiProcessingDataLoaderIter(self.stand_in)

    class OneByOne(Rows):
        def __getitems__(self, keys):
            return [self[i] for i in keys]
    """

PROGRAM = """
    import torch
    from torch.utils.data import BatchSampler, ChainDataset, ConcatDataset, DataLoader, SequentialSampler, StackDataset, Subset, random_split
    from datasets_here import *

    if __name__ == "__main__":
        torch.manual_seed(0)
        several = ConcatDataset([Rows(), Slow(), ConcatDataset([Longer(), Rows()])])
        by_lists = BatchSampler(SequentialSampler(range(12)), 4, False)
        for name, loader in {
            "several": DataLoader(several, 4),
            "several, forked": DataLoader(several, 4, num_workers=2),
            "several, spawned": DataLoader(several, 4, num_workers=1, multiprocessing_context="spawn"),
            "split": DataLoader(random_split(ConcatDataset([Scaled(Rows()), Slow()]), [12, 12])[1], 4),
            "wrapped": DataLoader(Scaled(Subset(Scaled(Longer()), range(8))), 4),
            "mixed": DataLoader(Mixture([Rows(), Slow()]), 4),
            "again": DataLoader(Retrying(), 4),
            "stacked": DataLoader(StackDataset(Rows(), Slow()), 4),
            "chained": DataLoader(ChainDataset([Stream(), ChainDataset([OtherStream(), Stream(5)])]), 4),
            "chained, forked": DataLoader(ChainDataset([Stream(), OtherStream()]), 4, num_workers=2),
            "drawn": DataLoader(Drawing(Rows()), 4),
            "table": DataLoader(Table(), 4),
            "table, forked": DataLoader(Subset(Table(), range(8)), 4, num_workers=2),
            "at once": DataLoader(AtOnce(), 4),
            "one by one": DataLoader(OneByOne(), 4),
            "lists": DataLoader(Table(), sampler=by_lists, batch_size=None),
            "whole": DataLoader(Batches(), batch_size=None, num_workers=1),
            "a list": DataLoader([torch.ones(5) for _ in range(12)], 4),
            "a list of batches": DataLoader([torch.ones(6, 5) for _ in range(4)], batch_size=None),
            "not collated": DataLoader(Table(), 4, collate_fn=lambda samples: samples),
            "a stand-in": Own(Rows()),
        }.items():
            n = 0
            for epoch in range(2):
                for batch in loader:
                    n += 1
            print(name, n, sep=";")
    """


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The loader part of the summary by the name of the case, for two epochs."""
    folder = write(tmp_path_factory.mktemp("datasets"), main=PROGRAM, datasets_here=DATASETS)
    said = under_loader(folder, "--quiet")
    assert (said.code, said.err) == (0, "")
    summary = json.loads((folder / "run/summary.json").read_text())["loader"]
    names = [line.partition(";")[0] for line in said.out.splitlines()]
    return {names[one["loader"]]: one for one in (summary, *summary["loaders"])}


def reading(one: dict[str, Any]) -> dict[str, int]:
    """What reads samples, and how often."""
    return {name: row["n"] for name, row in one["operations"].items() if name != "collate_fn"}


@pytest.mark.parametrize("case", ["several", "several, forked", "several, spawned"])
def test_each_dataset_of_several_has_its_own_samples(
    loaders: dict[str, dict[str, Any]], case: str
) -> None:
    made = {
        "Rows.__getitem__": 48,
        "Slow.__getitem__": 24,
        "Longer.__getitem__": 24,
        "ConcatDataset.__getitem__": 96 + 48,
    }
    assert reading(loaders[case]) == made
    assert loaders[case]["items"] == 96


def test_a_dataset_that_asks_another_one_leaves_it_its_samples(
    loaders: dict[str, dict[str, Any]],
) -> None:
    split = reading(loaders["split"])
    assert split["Scaled.__getitem__"] == split["Rows.__getitem__"]
    assert split["Scaled.__getitem__"] + split["Slow.__getitem__"] == 24
    assert reading(loaders["mixed"]) == {
        "Mixture.__getitem__": 48,
        "Rows.__getitem__": 24,
        "Slow.__getitem__": 24,
    }
    stacked = reading(loaders["stacked"])
    assert (stacked["Rows.__getitem__"], stacked["Slow.__getitem__"]) == (24, 24)
    assert reading(loaders["drawn"]) == {"Drawing.__iter__": 24, "Rows.__getitem__": 24}


def test_the_same_class_in_itself_is_each_counted(loaders: dict[str, dict[str, Any]]) -> None:
    assert reading(loaders["wrapped"]) == {"Scaled.__getitem__": 32, "Longer.__getitem__": 16}


def test_a_sample_that_is_asked_for_again_is_one(loaders: dict[str, dict[str, Any]]) -> None:
    assert reading(loaders["again"]) == {"Retrying.__getitem__": 24}


def test_samples_of_a_chain_are_of_the_dataset_that_gave_them(
    loaders: dict[str, dict[str, Any]],
) -> None:
    assert reading(loaders["chained"]) == {"Stream.__iter__": 34, "OtherStream.__iter__": 24}
    assert reading(loaders["chained, forked"]) == {
        "Stream.__iter__": 24,
        "OtherStream.__iter__": 24,
    }


@pytest.mark.parametrize(
    ("case", "items"),
    [
        ("several, spawned", 96), ("stacked", 24), ("chained", 58), ("drawn", 24), ("table", 24), ("table, forked", 16), ("at once", 24),
        ("one by one", 24), ("lists", 24), ("whole", 24), ("a list", 24), ("a list of batches", 48), ("not collated", 24),
    ],
)  # fmt: skip
def test_items_are_those_of_the_batches(
    loaders: dict[str, dict[str, Any]], case: str, items: int
) -> None:
    one = loaders[case]
    assert one["items"] == items
    assert one["cost"]["items"] == pytest.approx(items / one["batches"])
    assert one["units"] == "items/s"


@pytest.mark.parametrize(
    ("case", "row", "n"),
    [
        ("table", "Table.__getitem__", 6), ("table", "Table.__getitems__", 6), ("at once", "AtOnce.__getitems__", 6),
        ("lists", "Table.__getitem__", 6), ("whole", "Batches.__iter__", 8), ("table, forked", "Table.__getitem__", 4),
    ],
)  # fmt: skip
def test_what_reads_a_whole_batch_says_so(
    loaders: dict[str, dict[str, Any]], case: str, row: str, n: int
) -> None:
    found = loaders[case]["operations"][row]
    assert (found["n"], found["unit"]) == (n, "batches")


def test_what_reads_one_sample_says_so(loaders: dict[str, dict[str, Any]]) -> None:
    rows = loaders["one by one"]["operations"]
    assert (rows["OneByOne.__getitem__"]["n"], rows["OneByOne.__getitem__"]["unit"]) == (
        24,
        "samples",
    )
    assert rows["OneByOne.__getitems__"]["unit"] == "batches"


def test_a_stand_in_for_a_loader_is_known_by_the_dataset_behind_it(
    loaders: dict[str, dict[str, Any]],
) -> None:
    """fastai's loader hands torch's iterator an object that is its own dataset, iterates, and gives whole batches."""
    one = loaders["a stand-in"]
    assert reading(one) == {"StandIn.__iter__": 6, "Rows.__getitem__": 24}
    assert (
        one["operations"]["StandIn.__iter__"]["unit"],
        one["operations"]["Rows.__getitem__"]["unit"],
    ) == ("batches", "samples")
    assert (one["items"], one["dataset"], one["workers"]) == (24, "Rows", 1)
