"""``--loader`` where loading is special: a worker that is killed, a pinning thread, torchdata's loader, albumentations, a trace without room."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from loading_runs import named, records, under_loader, values, violations, write

pytestmark = pytest.mark.long

torch = pytest.importorskip("torch")

NUMBERS = """
    import multiprocessing, os, signal, sys, time
    import torch
    from torch.utils.data import DataLoader, Dataset
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # nothing is below a main guard, which the others need

    class Numbers(Dataset):
        def __init__(self, n, killed_at=None):
            self.n, self.killed_at = n, killed_at
        def __len__(self):
            return self.n
        def __getitem__(self, i):
            if i == self.killed_at:
                time.sleep(0.3)  # what was read before has been sent
                os.kill(os.getpid(), signal.SIGKILL)
            return torch.full((2,), float(i))
    """


def test_a_killed_worker_is_told_with_its_batch_and_sample(tmp_path: Path) -> None:
    text = (
        NUMBERS
        + """
    for batch in DataLoader(Numbers(24, killed_at=13), batch_size=4, num_workers=2):
        pass
    """
    )
    said = under_loader(write(tmp_path, main=text))
    assert said.code == 1
    assert re.search(
        r"RuntimeError: DataLoader worker \(pid\(s\) \d+\) exited unexpectedly", said.err
    )
    assert re.search(
        r"worker 1 \(pid \d+\) of loader 0 was killed by signal 9 \(SIGKILL\) with batch 3, sample 13\.",
        said.err,
    )
    [died] = named(records(tmp_path), "worker.died")
    assert (died.value, died.args["worker"], died.args["sample"], died.args["exit_code"]) == (
        3,
        1,
        13,
        -9,
    )


def test_batches_of_a_loop_that_was_left_are_not_those_of_the_next_one(tmp_path: Path) -> None:
    text = (
        NUMBERS
        + """
    loader = DataLoader(Numbers(16), batch_size=2, num_workers=2, persistent_workers=True)
    for _ in range(3):
        for batch in loader:
            break
    """
    )
    said = under_loader(write(tmp_path, main=text), "--no-steps", "--quiet")
    assert (said.code, said.err) == (0, "")
    found = records(tmp_path)
    for episode in range(3):
        assert values([r for r in found if r.args["episode"] == episode], "batch.consumed") == [0]


def test_a_dataset_whose_samples_can_not_be_seen_is_listed(tmp_path: Path) -> None:
    text = (
        NUMBERS
        + """
    import functools
    class Kept(Numbers):
        @functools.lru_cache
        def __getitem__(self, i):
            return torch.full((2,), float(i))
    for batch in DataLoader(torch.utils.data.Subset(Kept(4), [0, 1])):
        pass
    for batch in DataLoader([1, 2]):
        pass
    """
    )
    said = under_loader(write(tmp_path, main=text), "--no-steps", "--quiet")
    assert (said.code, said.err) == (0, "")
    patches = json.loads((tmp_path / "run/summary.json").read_text())["patches"]
    assert [one for one in patches if one["why_not"]] == [
        {"name": "__main__.Kept.__getitem__", "why_not": "is not written in Python"}
    ]


@pytest.mark.skipif(
    not hasattr(torch, "accelerator"), reason="older torch has no accelerator to stand in for"
)
def test_batches_are_pinned_in_a_thread_of_their_own(tmp_path: Path) -> None:
    text = (
        NUMBERS
        + """
    fake = {"is_available": True, "current_accelerator": torch.device("cuda"), "current_device_index": 0, "set_device_index": None}
    for name, answer in fake.items():
        setattr(torch.accelerator, name, lambda *_, answer=answer, **__: answer)
    torch.Tensor.pin_memory = lambda self, *_: (time.sleep(0.002), self)[1]
    for workers, kept in (1, False), (1, True), (0, False):
        loader = DataLoader(Numbers(6), batch_size=2, num_workers=workers, pin_memory=True, persistent_workers=kept)
        for _ in range(2):
            for batch in loader:
                pass
    """
    )
    said = under_loader(write(tmp_path, main=text), "--no-steps")
    assert said.code == 0, said.err
    found = records(tmp_path)
    assert violations(found) == []
    pinned = named(found, "batch.pin")
    assert [record.value for record in pinned] == [0, 1, 2] * 6
    assert all(record.end - record.begin >= 2_000_000 for record in pinned)
    assert Counter((r.args["loader"], r.args["episode"]) for r in pinned) == {
        (n // 2, n): 3 for n in range(6)
    }
    threads = [
        {record.tid for record in pinned if record.args["loader"] == loader} for loader in range(3)
    ]
    assert [tids == {pinned[0].pid} for tids in threads] == [False, False, True]


def test_the_loader_of_torchdata(tmp_path: Path) -> None:
    pytest.importorskip("torchdata.stateful_dataloader")
    text = (
        NUMBERS
        + """
    from torchdata.stateful_dataloader import StatefulDataLoader
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from range(5)
    for kept in False, True:
        loader = StatefulDataLoader(Numbers(8), batch_size=2, num_workers=2, persistent_workers=kept)
        for _ in range(2):
            for batch in loader:
                pass
    for workers in 0, 1:
        loader = StatefulDataLoader(Stream(), batch_size=2, num_workers=workers)
        for n, batch in enumerate(loader):
            if n == 1:
                state = loader.state_dict()
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == [[4]], workers
    """
    )
    said = under_loader(write(tmp_path, main=text))
    assert said.code == 0, said.err
    found = records(tmp_path)
    for loader in 0, 1:
        mine = [record for record in found if record.args["loader"] == loader]
        assert violations(mine) == []
        assert sorted(values(mine, "data.item")) == sorted([*range(8)] * 2)
        assert values(mine, "batch.consumed") == [0, 1, 2, 3] * 2
    assert {record.args["loader"] for record in named(found, "data.item")} == {0, 1, 2, 3}


def test_the_transforms_of_albumentations(tmp_path: Path) -> None:
    pytest.importorskip("albumentations")
    text = """
    import os
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
    import albumentations as A
    import numpy as np
    from torch.utils.data import DataLoader, Dataset
    class Pictures(Dataset):
        def __init__(self):
            self.transform = A.Compose([A.CenterCrop(4, 4), A.OneOf([A.HorizontalFlip(p=1)], p=1), A.Normalize()])
        def __len__(self):
            return 4
        def __getitem__(self, i):
            return self.transform(image=np.full((8, 8, 3), i, np.uint8))["image"]
    for batch in DataLoader(Pictures(), batch_size=2, num_workers=1, multiprocessing_context="fork"):
        pass
    """
    said = under_loader(write(tmp_path, main=text))
    assert said.code == 0, said.err
    found = records(tmp_path)
    assert violations(found) == []
    names = Counter(record.name for record in found if record.name.startswith("operation."))
    assert names == {
        f"operation.{name}": 4 for name in ("CenterCrop", "OneOf", "HorizontalFlip", "Normalize")
    }


def test_what_there_is_no_room_for_is_counted(tmp_path: Path) -> None:
    text = (
        NUMBERS
        + """
    for batch in DataLoader(Numbers(30000), batch_size=100):
        pass
    print("loaded")
    """
    )
    said = under_loader(write(tmp_path, main=text), "--trace-limit", "500kB", "--no-steps")
    assert (said.code, said.out) == (0, "loaded\n"), said.err
    dropped = json.loads((tmp_path / "run" / "summary.json").read_text())["dropped"]
    kept = len(named(records(tmp_path), "data.item"))
    assert kept + dropped["data.item"] == 30000


def test_a_dataset_that_reads_in_threads(tmp_path: Path) -> None:
    text = (
        NUMBERS
        + """
    from concurrent.futures import ThreadPoolExecutor
    class Pooled(Numbers):
        def __getitems__(self, indices):
            with ThreadPoolExecutor(2) as pool:
                return list(pool.map(self.__getitem__, indices))
    for batch in DataLoader(Pooled(8), batch_size=4, num_workers=1):
        pass
    """
    )
    said = under_loader(write(tmp_path, main=text))
    assert said.code == 0, said.err
    assert sorted(values(records(tmp_path), "data.item")) == [*range(8)]
