"""The losses that the recorder sees: a series for each optimizer, and how much of a loss ``backward`` gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Place

from voirkit.runs.summary import loss_note
from voirkit_instruments.steps.loss_rules import findings
from voirkit_instruments.steps.record import SeenLosses
from voirkit_instruments.values import ScalarReader, constant_divisor


def seen(*passes: tuple[float, int, float | None]) -> dict[str, Any]:
    """The summary after passes: their loss, who has stepped before it, and by what it was divided."""
    losses = SeenLosses()
    for loss, stepped, divisor in passes:
        losses.add(loss, stepped, divisor)
    summary = losses.summary()
    assert summary is not None
    return summary


def trained(
    optimizer: int, values: list[float], before: int, divisor: float | None = None
) -> list[tuple[float, int, float | None]]:
    """Passes with a step of the optimizer behind each; ``before``: who has stepped before the first."""
    return [(value, optimizer if at else before, divisor) for at, value in enumerate(values)]


FALLING = [3.0 - 0.05 * n for n in range(40)]


def test_one_training_is_one_series() -> None:
    summary = seen(*trained(7, FALLING, 0))
    assert (summary["first"], summary["last"], summary["n"]) == (3.0, FALLING[-1], 40)
    assert "series" not in summary
    assert "passes" not in summary


def test_of_losses_that_are_an_evaluations_too_none_is_said_not_to_fall() -> None:
    flat = {
        "loss": seen(*trained(7, [2.0] * 40, 0)),
        "steps": {"n": 20},
        "evaluation": {"n": 4, "takes_gradients": True},
    }
    assert list(findings(flat)) == []
    assert [finding.kind for finding in findings({**flat, "steps": {"n": 40}})] == [
        "loss-not-falling"
    ]


def test_trainings_one_after_the_other_are_a_series_each_and_the_last_of_the_longest_is_the_runs() -> (
    None
):
    higher = [value + 5 for value in FALLING]
    summary = seen(*trained(7, FALLING, 0), *trained(8, higher, 7), *trained(9, FALLING[:20], 8))
    assert [(one["optimizer"], one["first"], one["last"], one["updates"]) for one in summary["series"]] == [
        (0, 3.0, FALLING[-1], 40), (1, 8.0, higher[-1], 40), (2, 3.0, FALLING[19], 20),
    ]  # fmt: skip
    assert (summary["first"], summary["last"], summary["n"]) == (8.0, higher[-1], 40)
    assert list(findings({"loss": summary})) == []
    assert loss_note(summary) == " (of optimizer 2 of 3)"


def test_a_training_that_does_not_fall_is_named_among_others() -> None:
    (finding,) = findings({"loss": seen(*trained(7, FALLING, 0), *trained(8, [2.0] * 40, 7))})
    assert finding.because.startswith(
        "The loss of optimizer 2 does not fall: 2 in the first quarter of its training"
    )


def test_losses_of_optimizers_by_turns_are_a_series_each_and_need_not_fall() -> None:
    passes: list[tuple[float, int, float | None]] = []
    for n in range(50):
        passes += [(1.0, 8 if n else 0, None), (2.0, 7, None)]
    summary = seen(*passes)
    assert [(one["first"], one["last"], one["updates"]) for one in summary["series"]] == [
        (1.0, 1.0, 50),
        (2.0, 2.0, 50),
    ]
    assert list(findings({"loss": summary})) == []


def test_a_long_run_of_two_optimizers_keeps_losses_of_both() -> None:
    losses = SeenLosses()
    for n in range(5000):
        losses.add(1.0, 8 if n else 0)
        losses.add(2.0, 7)
    summary = losses.summary()
    assert summary is not None
    assert [{value for _, value in one["curve"]} for one in summary["series"]] == [{1.0}, {2.0}]
    assert [one["n"] for one in summary["series"]] == [5000, 5000]


def accumulated(n: int, divisor: float | None, loss: float = 0.5) -> dict[str, Any]:
    return seen(*((loss, 7 if at and not at % n else 0, divisor) for at in range(n * 10)))


def test_of_a_loss_that_was_divided_by_the_passes_of_an_update_it_is_said_what_part_it_is() -> None:
    summary = accumulated(4, 4.0)
    assert (summary["first"], summary["last"], summary["times"], summary["passes"]) == (
        0.5,
        0.5,
        4,
        4,
    )
    assert {value for _, value in summary["curve"]} == {0.5}
    assert loss_note(summary) == " (as backward gets it, 1/4 of a batch's)"


@pytest.mark.parametrize(
    ("divisor", "note"),
    [
        (None, " (as backward gets it, 4 times an update)"),
        (64.0, " (as backward gets it, 1/4 of an update's)"),
    ],
)
def test_of_another_loss_of_several_passes_it_is_said_that_it_is_as_backward_gets_it(
    divisor: float | None, note: str
) -> None:
    summary = accumulated(4, divisor)
    assert summary["first"] == 0.5
    assert loss_note(summary) == note


def test_a_loss_that_is_scaled_once_an_update_is_as_it_is() -> None:
    summary = seen(*trained(7, FALLING, 0, 4.0))
    assert summary["first"] == 3.0
    assert loss_note(summary) == ""


def test_passes_that_no_optimizer_uses_are_a_series_and_take_no_room() -> None:
    losses = SeenLosses()
    for n in range(5000):
        losses.add(float(n))
    summary = losses.summary()
    assert summary is not None
    assert (summary["first"], summary["last"], summary["n"]) == (0.0, 4999.0, 5000)


def test_many_trainings_keep_a_bounded_number_of_series() -> None:
    losses = SeenLosses()
    for optimizer in range(1, 500):
        losses.add(1.0, optimizer - 1)
        losses.add(1.0, optimizer)
    summary = losses.summary()
    assert summary is not None
    assert len(summary["series"]) == 64


DIVIDED: list[tuple[Callable[[Any], Any], float | None]] = [
    (lambda loss: loss, None),
    (lambda loss: loss / 4, 4.0),
    (lambda loss: loss * 0.25, 4.0),
    (lambda loss: 0.25 * loss, 4.0),
    (lambda loss: loss.mul_(0.25), 4.0),
    (lambda loss: loss / torch.tensor(4), 4.0),
    (lambda loss: loss / 4 / 1, 4.0),
    (lambda loss: (loss / 4).double(), 4.0),
    (lambda loss: loss / torch.tensor(4.0, requires_grad=True), None),
    (lambda loss: loss + 1, None),
    (lambda loss: loss / 0, None),
]


@pytest.mark.parametrize(("divide", "divisor"), DIVIDED)
def test_by_what_a_loss_was_divided_is_read_of_its_graph(
    divide: Callable[[Any], Any], divisor: float | None
) -> None:
    loss = divide((torch.ones(3, requires_grad=True) * 2).sum())
    if not hasattr(torch._C._autograd.SavedTensor, "unpack_hook"):
        divisor = None
    assert constant_divisor(torch, loss, ScalarReader(torch).read) == divisor


def test_no_hook_of_the_program_is_called_for_it() -> None:
    unpacked: list[object] = []

    def unpack(tensor: Any) -> Any:
        unpacked.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = (torch.ones(3, requires_grad=True) * 2).sum() / torch.tensor(4.0)
    assert constant_divisor(torch, loss, ScalarReader(torch).read) is None
    assert unpacked == []


SCRIPT = """
    import sys
    import torch
    torch.manual_seed(0)

    def train(model, optimizer, n_batches):
        for at in range(n_batches):
            loss = torch.nn.functional.mse_loss(model(torch.ones(8, 4)), torch.zeros(8, 1))
            (loss / 2).backward()
            if at % 2:
                optimizer.step()
                optimizer.zero_grad()
            if not at:
                print(loss.item())

    for scale in (1.0, 3.0):
        model = torch.nn.Linear(4, 1)
        torch.nn.init.constant_(model.weight, scale)
        train(model, torch.optim.SGD(model.parameters(), 0.01), 12)
"""


@pytest.mark.long
@pytest.mark.parametrize("extension", ["", "1"])
def test_the_losses_of_a_script_are_those_that_it_prints(place: Place, extension: str) -> None:
    run = place.write(main=SCRIPT).voirkit("main.py", env={"VOIRKIT_NO_EXTENSION": extension})
    series = run.summary["loss"]["series"]
    assert [one["first"] * one["times"] for one in series] == [
        pytest.approx(float(line), rel=1e-5) for line in run.out.split()
    ]
    assert [(one["n"], one["updates"], one["passes"], one["times"]) for one in series] == [
        (12, 6, 2, 2)
    ] * 2
    assert "(as backward gets it, 1/2 of a batch's; of optimizer 2 of 2)" in " ".join(
        run.err.split()
    )
