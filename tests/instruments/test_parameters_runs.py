"""``--parameters`` on whole runs: what is in the summary and the table, also of killed runs, and the program as it is without it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from conftest import Place

from voirkit.runs.opened import open_run
from voirkit_instruments.parameters.analyse import parameters_of

pytestmark = pytest.mark.long

MODEL = """
import os, pickle, sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 100), nn.ReLU(), nn.BatchNorm1d(100), nn.Linear(100, 5))
model[0].bias.requires_grad_(False)
x, y = torch.randn(32, 20), torch.randint(0, 5, (32,))
"""
TRAIN = """
def train(model, optimizer, steps=12, spoil=None, autocast=False):
    losses = []
    for n in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if n == spoil:
            model[3].weight.grad[2, 2] = float("nan")
        optimizer.step()
        losses.append(loss.item())
    return losses
"""
WHOLE = (
    MODEL
    + TRAIN
    + """
if __name__ == "__main__":
    plain = torch.optim.AdamW(model.parameters(), 1e-2, fused="fused" in sys.argv)
    compiled = torch.compile(model, backend="eager", fullgraph=True) if "compile" in sys.argv else model
    losses = train(compiled, plain, autocast="autocast" in sys.argv)
    with open(sys.argv[1], "wb") as file:
        state = [(name, tensor.numpy().tobytes(), tensor.stride()) for name, tensor in model.state_dict().items()]
        pickle.dump((losses, state, torch.get_rng_state().tolist(), sorted(vars(plain)), sorted(vars(model)),
            len(plain._optimizer_step_pre_hooks), type(pickle.loads(pickle.dumps(plain))).__name__,
            [name for name, tensor in model.named_parameters() if tensor._backward_hooks or tensor._post_accumulate_grad_hooks]), file)
"""
)


@pytest.mark.parametrize("how", [[], ["fused"], ["autocast"], ["compile"]])
def test_the_program_is_as_it_is_without_it(place: Place, how: list[str]) -> None:
    place.write(main=WHOLE)
    plain, watched = (
        place.python("main.py", "plain", *how),
        place.voirkit("--parameters=3", "main.py", "watched", *how),
    )
    assert (plain.code, watched.code) == (0, 0), watched.err
    assert _read(place.folder / "plain") == _read(place.folder / "watched")
    assert "parameters:" not in watched.err


def _read(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


def test_the_summary_and_the_table_say_what_each_parameter_did(place: Place) -> None:
    place.write(
        main=MODEL + TRAIN + "train(model, torch.optim.Adam(model.parameters()), 12, spoil=7)"
    )
    ended = place.voirkit("--parameters=2", "main.py")
    assert ended.code == 0, ended.err
    said = ended.summary["parameters"]
    rows = {layer["name"]: layer for layer in said["layers"]}
    assert list(rows) == ["0.weight", "0.bias", "2.weight", "2.bias", "3.weight", "3.bias"]
    assert (said["every"], said["optimizers"]) == (
        2,
        [{"optimizer": 0, "class": "Adam", "steps": 12}],
    )
    assert said["not_finite"] == {"step": 7, "name": "3.weight", "what": "NaN in the gradient"}
    assert (said["frozen"], said["never_changed"], said["never_gradient"]) == (["0.bias"], [], [])
    assert rows["0.bias"]["none_gradient_steps"] == 12
    assert rows["0.weight"]["nan_step"] == 8
    assert 0 < rows["0.weight"]["update_ratio"]["median"] < 0.1
    assert "NaN in the gradient of 3.weight first, in step 7" in ended.err
    assert (
        place.python("-m", "voirkit", "export", "run", "--format", "chrome", "-o", "run.json").code
        == 0
    )
    figures = [
        one["args"]["figure"]
        for one in json.loads((place.folder / "run.json").read_text())["traceEvents"]
        if one.get("cat") == "norm"
    ]
    assert figures
    assert None in figures  # nan


def test_buffers_and_the_optimizers_state_are_looked_at_on_request(place: Place) -> None:
    place.write(main=MODEL + TRAIN + "train(model, torch.optim.Adam(model.parameters()), 4)")
    ended = place.voirkit("--parameters=1", "--parameters-of=buffers,state", "main.py")
    assert ended.code == 0, ended.err
    said = ended.summary["parameters"]
    assert list(said["buffers"]) == ["2.running_mean", "2.running_var"]
    assert said["buffers"]["2.running_mean"]["first"] < said["buffers"]["2.running_mean"]["last"]
    assert {"3.bias:exp_avg", "3.bias:exp_avg_sq"} <= set(said["state"])
    assert len(said["layers"]) == 6


GAN = """
import torch
from torch import nn
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    def forward(self, x):
        return self.main(x)
class Discriminator(Generator):
    pass
one, other = Generator(), Discriminator()
for model in (one, other):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
"""


def test_a_model_that_was_named_before_the_second_was_called_has_its_class_before_its_names_too(
    place: Place,
) -> None:
    place.write(main=GAN)
    ended = place.voirkit("--parameters=1", "--parameters-of=buffers,state", "main.py")
    assert ended.code == 0, ended.err
    said = ended.summary["parameters"]
    paths = ("main.0.weight", "main.0.bias", "main.1.weight", "main.1.bias")
    names = [f"{model}.{path}" for model in ("Generator", "Discriminator") for path in paths]
    assert [layer["name"] for layer in said["layers"]] == names
    assert {"Generator.main.0.weight:exp_avg", "Discriminator.main.0.weight:exp_avg"} <= set(
        said["state"]
    )
    assert "Generator.main.1.running_mean" in said["buffers"]


def test_a_killed_run_has_all_steps_that_ended(place: Place) -> None:
    place.write(
        main=MODEL
        + TRAIN
        + "train(model, torch.optim.Adam(model.parameters()), 9)\nos.kill(os.getpid(), 9)"
    )
    assert place.voirkit("--parameters=1", "main.py").code in (-9, 137)
    with open_run(place.folder / "run") as run:
        (weight,) = (one for one in parameters_of(run) if one.name == "3.weight")
    assert (weight.optimizer.steps, len(weight.norms), len(weight.digests)) == (9, 9, 9)
    assert weight.ever_changed
    assert weight.ever_gradient


def test_without_the_steps_instrument_the_parameters_are_watched_all_the_same(place: Place) -> None:
    place.write(main=MODEL + TRAIN + "train(model, torch.optim.SGD(model.parameters(), 0.1), 4)")
    assert place.voirkit("--parameters", "--no-steps", "main.py").code == 0
    with open_run(place.folder / "run") as run:
        assert {one.optimizer.steps for one in parameters_of(run)} == {4}


def test_a_number_of_steps_that_is_none_is_refused(place: Place) -> None:
    ended = place.write(main="").voirkit("--parameters=0", "main.py")
    assert ended.code == 2
    assert "whole number of at least 1" in ended.err
