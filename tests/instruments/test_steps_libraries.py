"""What the steps instrument records of libraries beside torch: their checkpoints, and optimizers that are none of torch's, the program's own among them."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from phases import Kept, Watched, net, watched

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

OWN = """
import torch

class Lion:
    def __init__(self, parameters):
        self.parameters, self.stepped = list(parameters), 0

    @torch.no_grad()
    def step(self):
        self.stepped += 1

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

class Warmup:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()

class Trainer:
    def __init__(self, model):
        self.model = model

    def step(self, x):
        self.model(x).sum().backward()

    def zero_grad(self):
        self.model.zero_grad()
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for libraries that are made up: what of the real ones voirkit stands around."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("safetensors", "keras", "own_optimizers"):
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
    ]  # what they write by is not a second one
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


def own_optimizers(library: Path, watch: Watched) -> Any:
    """A module of the program's that defines optimizers, as it is once it is loaded."""
    write(library, "own_optimizers", OWN)
    module = importlib.import_module("own_optimizers")
    watch.steps.watch_program()
    return module


def test_a_class_of_the_program_with_step_and_zero_grad_is_an_optimizer(library: Path) -> None:
    with watched() as watch:
        optimizer = own_optimizers(library, watch).Lion(net().parameters())
        optimizer.step()
        optimizer.step()
    seen = [(step["optimizer"], step["which"]) for step in watch.kept.seen("compute.step")]
    assert (optimizer.stepped, seen) == (2, [("Lion", 0), ("Lion", 0)])
    assert watch.patches["own_optimizers.Lion.step"] is None


def test_the_step_of_a_wrapper_is_that_of_its_optimizer(library: Path) -> None:
    with watched() as watch:
        adam = torch.optim.Adam(net().parameters())
        own_optimizers(library, watch).Warmup(adam).step()
    assert [step["optimizer"] for step in watch.kept.seen("compute.step")] == ["Adam"]


def test_what_computes_in_its_step_is_no_optimizer(library: Path) -> None:
    with watched() as watch:
        own_optimizers(library, watch).Trainer(net()).step(torch.randn(2, 4))
    assert watch.kept.kinds() == ["compute.forward", "compute.backward"]


def test_a_program_without_such_a_class_has_torch_compile_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden() -> None:
        raise AssertionError("torch.compile is patched")

    steps_of_program = "voirkit_instruments.steps.record_foreign.steps_of_program"
    monkeypatch.setattr(steps_of_program, lambda: iter(()))  # of other tests, there may be some
    monkeypatch.setattr("voirkit.probes.around.watch_torch_compile", forbidden)
    with watched() as watch:
        watch.steps.watch_program()
