"""Runs of programs under ``--calls``, and what was recorded of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

from conftest import Ended, Place

from voirkit.runs.opened import open_run

FUNCTIONS = """
    import os, sys, threading
    import torch
    import torch.nn.functional as F
    from torch import nn
    torch.manual_seed(0)
    torch.set_num_threads(1)
    """

NET = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.two(F.relu(self.one(x)))

    def main(steps=3):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(torch.randn(4 * steps, 4), torch.arange(4 * steps) % 2)
        for x, y in torch.utils.data.DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(loss.item().hex())

    """
MAIN = """
    if __name__ == "__main__":
        main()
    """
TRAINING = FUNCTIONS, NET, MAIN


class Call(NamedTuple):
    """A call. Times in ns; ``operands`` are the ids of its tensors by their place."""

    name: str
    begin: int
    end: int
    pid: int
    tid: int
    object: int
    arguments: dict[str, Any]
    operands: dict[str, int]


def place(folder: Path, *texts: str, **modules: str) -> Place:
    """A folder with ``main.py``, of these texts one after the other, and other modules."""
    return Place(folder).write(main="".join(dedent(text) for text in texts), **modules)


def traced(where: Place, *words: str, **options: Any) -> Ended:
    """Run ``main.py`` without steps, quietly; the words are voirkit's."""
    ended = where.voirkit("--quiet", *words, "main.py", **options)
    assert ended.code == 0, ended.err
    return ended


def calls(where: Place) -> list[Call]:
    """What was recorded, in the order in which the calls began."""
    rows = [row for batch in open_run(where.folder / "run").rows() for row in batch]
    ids: dict[tuple[int, int, int], dict[str, int]] = {}
    for kind, _, _, start, _, _, _, pid, tid, args in rows:
        if kind == "operand":
            ids.setdefault((pid, tid, start), {})[args["at"]] = args["id"]
    found = [
        Call(
            f"{category}.{name}",
            start,
            start + duration,
            pid,
            tid,
            args.pop("object", 0),
            args,
            ids.get((pid, tid, start), {}),
        )
        for kind, category, name, start, duration, _, _, pid, tid, args in rows
        if kind == "call"
    ]
    return sorted(found, key=lambda call: (call.begin, -call.end))


def named(found: Sequence[Call], name: str) -> list[Call]:
    """Those of one function."""
    return [call for call in found if call.name == name]
