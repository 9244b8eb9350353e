"""Transforms of libraries under ``--loader``: torchvision's, old and new, in a Compose and outside; a folder's pictures; what a user names; costs."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path

import pytest
from loading_runs import Record, named, records, under_loader, violations, write

from voirkit_instruments.loader.record_torch import NamedOperations

pytest.importorskip("torch")
pytest.importorskip("torchvision")

DATA = """
    import json, time
    import numpy as np
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms as T
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2
    torch.set_num_threads(1)

    normalize = T.Compose([T.ToTensor(), T.Normalize([0.5] * 3, [0.5] * 3)])

    class Plain(Dataset):
        def __init__(self, transform=None, n=4):
            self.transform, self.n = transform, n
        def __len__(self):
            return self.n
        def __getitem__(self, i):
            picture = Image.new("RGB", (16, 12), (i, i, i))
            return picture if self.transform is None else self.transform(picture)

    class Apart(Plain):
        def __getitem__(self, i):
            return normalize(T.functional.hflip(T.CenterCrop(8)(super().__getitem__(i))))

    class Slow:
        def __init__(self, seconds):
            self.seconds, self.took = seconds, []
        def __call__(self, x):
            began = time.perf_counter()
            time.sleep(self.seconds)
            self.took.append(time.perf_counter() - began)
            return x

    class Slower(Slow):
        pass

    class Tokenizer:
        def encode(self, text):
            return [len(text)]

    class Texts(Dataset):
        def __init__(self):
            self.tokenizer = Tokenizer()
        def __len__(self):
            return 4
        def __getitem__(self, i):
            return torch.tensor(self.tokenizer.encode("a" * i) + cut("b" * i))

    def cut(text):
        return [len(text)]
    """

MAIN = """
    import os, sys
    from data import *

    if __name__ == "__main__":
        for i in range(4):
            os.makedirs(f"pictures/{'ab'[i % 2]}", exist_ok=True)
            Image.new("RGB", (20, 20), (i, i, i)).save(f"pictures/{'ab'[i % 2]}/{i}.png")
        crop = T.RandomApply([T.CenterCrop(8)], p=1)
        old = T.Compose([T.RandomResizedCrop(8), crop, T.Compose([T.RandomHorizontalFlip(), T.ToTensor()])])
        new = v2.Compose([v2.RandomResizedCrop(8, antialias=True), v2.RandomHorizontalFlip(), v2.Lambda(lambda x: x),
                          v2.PILToTensor(), torch.nn.Sequential(v2.RandomHorizontalFlip())])
        slow, slower = Slow(0.003), Slower(0.009)
        late = T.Compose([T.ToTensor()])
        for name, loader in {
            "old": DataLoader(Plain(old), batch_size=2),
            "new": DataLoader(Plain(new), batch_size=2),
            "apart": DataLoader(Apart(), batch_size=2, num_workers=1),
            "folder": DataLoader(ImageFolder("pictures", T.ToTensor(), target_transform=lambda y: y + 1), batch_size=2),
            "planted": DataLoader(Plain(T.Compose([slow, slower, T.ToTensor()]), 12), batch_size=4),
            "changed": DataLoader(Plain(late), batch_size=2),
            "named": DataLoader(Texts(), batch_size=2, num_workers=1),
        }.items():
            if name == "changed":
                iterator = iter(loader)
                late.transforms.insert(0, T.CenterCrop(4))
                late.transforms.append(Slow(0))
                list(iterator)
            else:
                for batch in loader:
                    pass
        json.dump({"Slow": slow.took, "Slower": slower.took}, open("took.json", "w"))
    """


def test_what_a_user_names_may_be_imported_already() -> None:
    """As in a worker of a fork server that has loaded the program's modules, the default since python 3.14."""
    recorded: list[object] = []

    class Operations:
        def function(self, function: object) -> bool:
            recorded.append(function)
            return True

    named = NamedOperations(["json:dumps", "json:loads"], Operations())  # type: ignore[arg-type]  # what is used of it
    named.watch()
    assert recorded == [json.dumps, json.loads]
    assert named.missing == {}


NAMES = ["old", "new", "apart", "folder", "planted", "changed", "named"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write(tmp_path_factory.mktemp("transforms"), data=DATA, main=MAIN)
    said = under_loader(
        folder, "--loader-ops", "data:Tokenizer.encode,data:cut", "--loader-ops", "data:nothing"
    )
    assert said.code == 0, said.err
    assert "--loader-ops data:nothing was not recorded: data has no nothing." in said.err
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[Record]:
    return records(folder)


def operations(found: list[Record], name: str) -> dict[str, int]:
    mine = (record.name for record in found if record.args["loader"] == NAMES.index(name))
    return dict(
        Counter(sorted(text.partition(".")[2] for text in mine if text.startswith("operation.")))
    )


def test_the_rules_are_kept(found: list[Record]) -> None:
    assert violations(found) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "old",
            {
                "CenterCrop": 4,
                "RandomApply": 4,
                "RandomHorizontalFlip": 4,
                "RandomResizedCrop": 4,
                "ToTensor": 4,
            },
        ),
        ("new", {"Lambda": 4, "PILToTensor": 4, "RandomHorizontalFlip": 8, "RandomResizedCrop": 4}),
        ("apart", {"CenterCrop": 4, "Normalize": 4, "ToTensor": 4}),
        ("folder", {"<lambda>": 4, "Loader": 4, "ToTensor": 4}),
        ("planted", {"Slow": 12, "Slower": 12, "ToTensor": 12}),
        ("changed", {"CenterCrop": 4, "Slow": 4, "ToTensor": 4}),
        ("named", {"Tokenizer.encode": 4, "cut": 4}),
    ],
)
def test_every_transform_is_an_operation(
    found: list[Record], name: str, expected: dict[str, int]
) -> None:
    assert operations(found, name) == expected


def test_planted_costs_are_recovered(found: list[Record], folder: Path) -> None:
    took = json.loads((folder / "took.json").read_text())
    for name in "Slow", "Slower":
        mine = [
            r
            for r in named(found, f"operation.{name}")
            if r.args["loader"] == NAMES.index("planted")
        ]
        seen = [(record.end - record.begin) / 1e9 for record in mine]
        more = [one - other for one, other in zip(seen, took[name], strict=True)]
        assert min(more) >= 0
        assert statistics.median(more) < 0.03 * statistics.median(
            took[name]
        )  # of each: a busy machine lengthens some between two looks


def test_a_name_that_is_none_is_refused_before_the_program_runs(tmp_path: Path) -> None:
    said = under_loader(write(tmp_path, main="print('ran')"), "--loader-ops", "no colon")
    assert (said.code, said.out) == (2, "")
    assert "--loader-ops: 'no colon' names no function." in said.err
