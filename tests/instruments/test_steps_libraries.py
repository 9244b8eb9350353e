"""What the steps instrument records of libraries beside torch: their checkpoints, and optimizers that are none of torch's."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from phases import Kept, net

pytestmark = pytest.mark.usefixtures("engine")

SAFETENSORS = """
import torch

def save_file(tensors, filename, metadata=None):
    torch.save(tensors, filename)

def load_file(filename, device="cpu"):
    return torch.load(filename)
"""
KERAS = """
from keras.src import backend

class BaseOptimizer:
    def apply(self, grads, trainable_variables=None):
        self.applied = grads

class Adam(BaseOptimizer):
    pass
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for libraries that are made up: what of the real ones voirkit stands around."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("safetensors", "keras"):
            del sys.modules[name]


def write(folder: Path, module: str, text: str = "") -> None:
    path = folder.joinpath(*module.split("."))
    path.mkdir(parents=True, exist_ok=True)
    (path / "__init__.py").write_text(textwrap.dedent(text))


def test_safetensors_files_are_checkpoints(library: Path, kept: Kept) -> None:
    write(library, "safetensors")
    write(library, "safetensors.torch", SAFETENSORS)
    safetensors = importlib.import_module("safetensors.torch")
    file = library / "weights.bin"
    safetensors.save_file({"x": torch.zeros(3)}, filename=str(file))
    safetensors.load_file(file)
    size = file.stat().st_size
    assert kept.kinds() == [
        "checkpoint.capture",
        "checkpoint.restart",
    ]  # what they write by is no second one
    assert [*kept.seen("checkpoint.capture"), *kept.seen("checkpoint.restart")] == [
        {"bytes": size}
    ] * 2


@pytest.mark.filterwarnings("ignore")
def test_checkpoints_of_torch_distributed_are_told_once_each(kept: Kept, tmp_path: Path) -> None:
    from torch.distributed import checkpoint

    state = {"x": torch.zeros(3)}
    checkpoint.save(state, checkpoint_id=tmp_path / "one", no_dist=True)
    checkpoint.load(state, checkpoint_id=tmp_path / "one", no_dist=True)
    assert [kind for kind in kept.kinds() if kind.startswith("checkpoint")] == [
        "checkpoint.capture",
        "checkpoint.restart",
    ]
    assert kept.seen("checkpoint.capture") == [{"bytes": -1}]  # a folder


def test_an_optimizer_of_keras_steps_where_it_applies_gradients(library: Path, kept: Kept) -> None:
    for module in ("keras", "keras.src", "keras.src.optimizers", "keras.src.backend.torch.core"):
        write(library, module, "import torch" if module.endswith("core") else "")
    write(library, "keras.src.backend.torch", "from keras.src.backend.torch import core")
    write(library, "keras.src.backend", "from keras.src.backend import torch")
    write(library, "keras.src.optimizers.base_optimizer", KERAS)
    optimizer = importlib.import_module("keras.src.optimizers.base_optimizer").Adam()
    optimizer.apply([1])
    torch.optim.SGD(net().parameters(), 0.1).step()
    told = [(seen["optimizer"], seen["which"]) for seen in kept.seen("compute.step")]
    assert (optimizer.applied, told) == ([1], [("Adam", 0), ("SGD", 1)])


def test_keras_on_another_backend_is_left_alone_without_a_warning(
    library: Path, kept: Kept
) -> None:
    for module in ("keras", "keras.src", "keras.src.optimizers", "keras.src.backend"):
        write(library, module)
    write(library, "keras.src.optimizers.base_optimizer", KERAS)
    importlib.import_module("keras.src.optimizers.base_optimizer").Adam().apply([1])
    assert kept.kinds() == []
