"""What the steps instrument records of a training loop: which phases, with which arguments, inside of what."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from phases import STEP, Kept, net, points, train, watched
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

pytestmark = pytest.mark.usefixtures("engine")


# a plain loop


def test_a_training_loop_is_its_phases_in_order(kept: Kept) -> None:
    model = net()
    train(model, DataLoader(points(6), batch_size=2), torch.optim.SGD(model.parameters(), 0.1))
    assert kept.kinds() == ["dataloader.iter", *STEP * 3, "dataloader.end", "pipeline.epoch"]


def test_phases_end_before_the_next_begins(kept: Kept) -> None:
    model = net()
    train(model, DataLoader(points(6), batch_size=2), torch.optim.SGD(model.parameters(), 0.1))
    *spans, _ = kept.spans  # the last is the epoch around them
    moments = [moment for _, begin, end, _, _ in spans for moment in (begin, end)]
    assert moments == sorted(moments)


def test_gradients_of_several_batches_for_one_step(kept: Kept) -> None:
    model = net()
    train(
        model,
        DataLoader(points(8), batch_size=2),
        torch.optim.SGD(model.parameters(), 0.1),
        every=2,
    )
    assert (kept.kinds().count("dataloader.fetch"), kept.kinds().count("compute.step")) == (4, 2)


def test_evaluation_is_told_by_the_module_and_by_what_gradients_are(kept: Kept) -> None:
    model, x = net(), torch.randn(2, 4)
    model(x)
    model.eval()
    model(x)
    with torch.no_grad():
        model(x)
    with torch.inference_mode():
        model(x)
    told = [(seen["training"], seen["grad"]) for seen in kept.seen("compute.forward")]
    assert told == [(True, True), (False, True), (False, False), (False, False)]


def test_an_evaluation_inside_of_an_epoch_has_its_own_loader(kept: Kept) -> None:
    model, held_out = net(), DataLoader(points(2), batch_size=1)
    for x, _ in DataLoader(points(2), batch_size=1):
        model(x)
        for z, _ in held_out:
            model(z)
    told = [(seen["loader"], seen["episode"]) for seen in kept.seen("dataloader.fetch")]
    assert told == [(0, 0), (1, 1), (1, 1), (0, 0), (1, 2), (1, 2)]


def test_a_loss_called_by_itself_is_told_from_a_model(kept: Kept) -> None:
    nn.MSELoss()(net()(torch.randn(2, 4)), torch.zeros(2, 3))
    assert kept.kinds() == ["compute.forward", "compute.loss"]
    assert kept.seen("compute.loss") == [{"module": "MSELoss"}]


def test_a_module_call_left_by_an_exception_is_recorded(kept: Kept) -> None:
    model = net()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            model(torch.zeros(2, 5))
    assert kept.kinds() == ["compute.forward"] * 2


# backward


def test_backward_in_each_of_its_forms_is_one_phase(kept: Kept) -> None:
    w = torch.ones(2, requires_grad=True)
    (w * w).sum().backward()
    torch.autograd.backward((w * w).sum())
    torch.autograd.grad((w * w).sum(), w)
    assert kept.kinds() == ["compute.backward"] * 3


def test_a_gradient_penalty_inside_of_a_module_is_backward_in_forward(kept: Kept) -> None:
    class Penalty(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.clone().requires_grad_()
            return torch.autograd.grad((x * x).sum(), x, create_graph=True)[0]

    Penalty()(torch.ones(2))
    assert kept.kinds() == ["compute.backward", "compute.forward"]
    (inner,), (outer,) = kept.times("compute.backward"), kept.times("compute.forward")
    assert outer[0] <= inner[0] <= inner[1] <= outer[1]


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_computes_again_is_backward(kept: Kept, reentrant: bool) -> None:
    model = net()
    checkpoint(
        model, torch.randn(2, 4, requires_grad=True), use_reentrant=reentrant
    ).sum().backward()
    assert kept.kinds() == ["compute.forward", "compute.backward"]


# optimizers


def test_the_step_of_the_class_above_is_no_second_one(kept: Kept) -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    w = torch.ones(2, requires_grad=True)
    w.grad = torch.ones(2)
    torch.optim.SGD([w], 0.1).step()
    Own([w], 0.1).step()
    assert [(step["optimizer"], step["which"]) for step in kept.seen("compute.step")] == [
        ("SGD", 0),
        ("Own", 1),
    ]


def test_how_an_optimizer_was_made_is_recorded_with_its_steps(kept: Kept) -> None:
    w = torch.ones(2, requires_grad=True)
    w.grad = torch.ones(2)
    torch.optim.Adam([w], 0.1, fused=True).step()
    step = kept.seen("compute.step")[0]
    assert (step["fused"], step["foreach"], step["device"]) == (True, False, "cpu")


def test_the_precision_that_autocast_switches_on_is_recorded_once(kept: Kept) -> None:
    for enabled in (False, True, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            pass
    assert kept.seen("script.autocast") == [{"device": "cpu", "dtype": "bfloat16"}]


def test_a_closure_is_forward_and_backward_inside_of_the_step(kept: Kept) -> None:
    model, x = net(), torch.randn(2, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    once = ["compute.zero_grad", "compute.forward", "compute.backward"]
    assert kept.kinds()[:3] == once
    assert kept.kinds()[-1] == "compute.step"
    assert set(kept.kinds()[:-1]) == set(once)


def test_two_optimizers_are_told_apart(kept: Kept) -> None:
    first, second = (torch.optim.Adam(net().parameters()) for _ in range(2))
    for optimizer in (first, second, first):
        optimizer.step()
    assert [seen["which"] for seen in kept.seen("compute.step")] == [0, 1, 0]


def test_a_step_that_raises_is_recorded(kept: Kept) -> None:
    class Broken(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            raise RuntimeError("no")

    optimizer = Broken([torch.ones(1, requires_grad=True)], {})
    for _ in range(2):
        with pytest.raises(RuntimeError):
            optimizer.step()
    assert kept.kinds() == ["compute.step"] * 2


def test_an_optimizer_that_was_there_before() -> None:
    w = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.RMSprop([w])
    with watched() as watch:
        optimizer.step()
    assert watch.kept.kinds() == ["compute.step"]


def test_a_step_that_a_scheduler_or_a_scaler_calls(kept: Kept) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(torch.randn(2, 4)).sum().backward()
    scaler = (
        torch.amp.GradScaler("cpu", enabled=False)
        if hasattr(torch.amp, "GradScaler")
        else torch.cuda.amp.GradScaler(enabled=False)
    )
    scaler.step(optimizer)
    scheduler.step()
    assert kept.kinds().count("compute.step") == 1
