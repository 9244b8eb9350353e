"""What the steps instrument does to torch, to a process that is forked, and when it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from phases import STEP, Watched, net, points, watched
from torch import nn
from torch.utils.data import DataLoader

from voirkit_instruments.steps.events import StepEvents

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.long]


# processes


# In a process of its own: after a fork torch refuses to train in one whose parent has autograd's threads, as other tests make them.
FORKED = """
import os
import torch
from phases import net, points, train, watched
from torch.utils.data import DataLoader

from voirkit_instruments.steps.events import StepEvents

def prepares():
    net()(x)

def trains():
    model = net()
    train(model, DataLoader(points(1)), torch.optim.SGD(model.parameters(), 0.1))

def trains_as_its_parent_would():
    train(common, DataLoader(points(1)), optimizer)

common = net()
optimizer = torch.optim.SGD(common.parameters(), 0.1)

x = torch.randn(2, 4)
with watched() as watch:
    for child in prepares, trains, trains_as_its_parent_would:
        if not os.fork():
            child()
            print(child.__name__, *watch.kept.kinds(), flush=True)
            os._exit(0)
        assert os.wait()[1] == 0
"""


def test_a_forked_child_records_what_its_parent_would() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORKED],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    prepares, trains, trains_as_its_parent = (
        line.split()[1:] for line in ended.stdout.splitlines()
    )
    assert prepares == ["compute.forward"]
    assert (
        trains
        == trains_as_its_parent
        == ["dataloader.iter", *STEP, "dataloader.end", "pipeline.epoch"]
    )


# patches


def test_torch_is_as_it_was_when_the_run_is_over() -> None:
    functions = (
        nn.Module.__call__,
        torch.autograd.backward,
        torch.save,
        DataLoader.__iter__,
        torch.optim.Optimizer.zero_grad.__wrapped__,
    )
    before = [function.__code__ for function in functions]
    names = set(vars(torch.Tensor))
    with watched() as watch:
        torch.optim.Adam(net().parameters()).step()
        during = [function.__code__ for function in functions]
    assert all(a is not b for a, b in zip(before, during, strict=True))
    assert [function.__code__ for function in functions] == before
    assert set(vars(torch.Tensor)) == names
    assert set(watch.patches.values()) == {None}
    assert "torch.optim.adam.Adam.step" in watch.patches


def test_a_second_run_in_the_process_records_as_the_first() -> None:
    for _ in range(2):
        with watched() as watch:
            net()(torch.randn(1, 4))
        assert watch.kept.kinds() == ["compute.forward"]


def test_a_patch_that_does_not_fit_is_off_and_told_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nn.Module, "zero_grad", len)
    monkeypatch.delattr(torch.autograd, "grad")
    watch = Watched()
    watch.steps.start(torch)
    net()(torch.randn(1, 4))
    watch.steps.end()
    assert watch.kept.kinds() == ["compute.forward"]
    assert [line.split(" is not watched")[0] for line in watch.overseer.warned] == [
        "steps: torch.nn.modules.module.Module.zero_grad", "steps: torch.autograd.grad",
    ]  # fmt: skip
    assert watch.patches["torch.autograd.grad"] == "is not there"


def test_a_record_that_fails_is_told_once_and_the_program_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise OSError("disk full")

    watch = Watched()
    monkeypatch.setattr(watch.kept, "arguments", broken)
    watch.steps.start(torch)
    model, loader = net(), DataLoader(points(4), batch_size=1)
    assert len([model(x) for x, _ in loader]) == 4
    watch.steps.end()
    assert all("disk full" in line for line in watch.overseer.warned)
    assert (
        len([line for line in watch.overseer.warned if "a garbage collection" not in line]) == 3
    )  # those come when they like


def test_who_would_wrap_phases_that_are_patched_already_learns_that_it_is_late() -> None:
    with watched() as watch:
        events = watch.overseer.shared(StepEvents)
        assert not events.wrap_phases(lambda _, calls: calls)
    assert StepEvents().wrap_phases(lambda _, calls: calls)
