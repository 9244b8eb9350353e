"""Probes in the workers of torch's DataLoader, with each way in which these are started; and what of torch's and other values arrives."""

from __future__ import annotations

import collections
import enum
from typing import Any

import pytest
from conftest import Place
from forking import METHODS, said

from voirkit.probes.children import plain

LOADER = """
    import json, os, sys, threading
    import torch
    from torch.utils.data import DataLoader, Dataset
    from voirkit import probing

    class Data(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            v = i * 10
            t = torch.ones(2, 3)
            return i

    def seen_with(workers, epochs=1, **more):
        with probing("//Data/__getitem__(v) > t").values() as seen:
            loader = DataLoader(Data(), batch_size=2, num_workers=workers, **more)
            batches = [batch.tolist() for _ in range(epochs) for batch in loader]
        return [batches, [[e["v"], e.get("$worker"), e.get("$pid", here) != here, e["t"] if workers else None] for e in seen]]

    if __name__ == "__main__":
        here = os.getpid()
        found = {"none": seen_with(0), "stay": seen_with(2, 2, multiprocessing_context="fork", persistent_workers=True)}
        found["fork"] = seen_with(2, multiprocessing_context="fork")
        for method in ("spawn", "forkserver"):
            found[method] = seen_with(1, multiprocessing_context=method)
        print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is seen with each kind of workers: of one program, since importing torch takes its time."""
    found: dict[str, Any] = said(Place(tmp_path_factory.mktemp("loaded")), LOADER)
    return found


@pytest.mark.parametrize("method", METHODS)
def test_loader_workers(loaded: dict[str, Any], method: str) -> None:
    batches, seen = loaded[method]
    plain_batches, plain_seen = loaded["none"]
    workers = 2 if method == "fork" else 1
    tensor = {"$type": "torch.Tensor", "shape": [2, 3], "dtype": "torch.float32"}
    assert batches == plain_batches
    assert plain_seen == [[10 * i, None, False, None] for i in range(8)]
    assert sorted(seen, key=lambda e: e[0]) == [
        [10 * i, i // 2 % workers, True, tensor] for i in range(8)
    ]


def test_workers_that_stay_for_the_next_epoch(loaded: dict[str, Any]) -> None:
    _, seen = loaded["stay"]
    assert sorted(e[0] for e in seen) == sorted([10 * i for i in range(8)] * 2)


class Odd:
    """Raises at whatever is done with it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = None  # type: ignore[assignment]


def test_plain_values_arrive_as_they_are_and_others_as_what_they_are() -> None:
    import numpy
    import torch

    class Color(enum.IntEnum):
        RED = 3

    pair = collections.namedtuple("pair", "a b")
    for value in (
        1,
        -(10**30),
        0.1,
        float("inf"),
        True,
        None,
        "ä\ud800",
        (),
        (1, "a", None, False),
    ):
        assert plain(value) == value
        assert type(plain(value)) is type(value)
    for value, want in (
        (Color.RED, 3),
        (numpy.float64(0.5), 0.5),
        (numpy.int32(7), 7),
        (numpy.bool_(True), True),
        (pair(1, 2), (1, 2)),
    ):
        assert plain(value) == want
        assert type(plain(value)) is type(want)
    assert plain(torch.Size([2, 3])) == (2, 3)
    assert plain(torch.zeros(2, 0, dtype=torch.int8)) == {
        "$type": "torch.Tensor",
        "shape": [2, 0],
        "dtype": "torch.int8",
    }
    assert plain(torch.nn.Parameter(torch.zeros(1)))["$type"] == "torch.nn.parameter.Parameter"
    assert plain(numpy.zeros((2, 3))) == {
        "$type": "numpy.ndarray",
        "shape": [2, 3],
        "dtype": "float64",
    }
    assert plain([1, 2]) == {"$type": "list", "len": 2}
    assert plain((1, [2])) == {"$type": "tuple", "len": 2}
    assert plain(tuple(range(1000))) == {"$type": "tuple", "len": 1000}
    assert plain(Odd()) == {"$type": f"{__name__}.Odd"}
