"""What rules over every run find in the figures of a summary: its loss, and what makes its times untrue."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from voirkit.findings import Finding
from voirkit_instruments.resources import rules as of_resources
from voirkit_instruments.steps import loss_rules
from voirkit_instruments.steps.record import MOST_POINTS, Losses


def summary(values: list[float], **more: Any) -> dict[str, Any]:
    losses = Losses()
    for value in values:
        losses.add(value)
    return {"loss": losses.summary(), **more}


def found(figures: dict[str, Any]) -> list[Finding]:
    return [*loss_rules.findings(figures), *of_resources.findings(figures)]


def kinds(figures: dict[str, Any]) -> list[str]:
    return [finding.kind for finding in found(figures)]


def noisy(first: float, last: float, n: int = 400, noise: float = 0.3) -> list[float]:
    chance = random.Random(1)
    return [first + (last - first) * i / n + chance.gauss(0, noise) for i in range(n)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_loss_that_is_no_number_is_named(bad: float) -> None:
    values = [*noisy(2, 1, 300)[:123], bad, 1.0, bad]
    (finding,) = found(summary(values))
    assert finding.kind == "loss-not-finite"
    assert finding.evidence == {"first": 123, "value": str(bad), "n": 2, "of": 126}
    assert f"{bad} from loss 123 on" in finding.because


def test_a_loss_that_is_no_number_leads_to_the_gradient_that_was_none_before() -> None:
    broken = summary([2.0, math.nan])
    (finding,) = found(broken)
    assert "--parameters" in finding.next
    first = {"what": "NaN in the gradient", "name": "2.bias", "step": 30}
    (finding,) = found({**broken, "parameters": {"not_finite": first}})
    assert finding.because.endswith("; NaN in the gradient of 2.bias came first, in step 30.")
    assert finding.evidence["parameter"] == first
    assert "--parameters" not in finding.next


def test_a_loss_that_does_not_fall_is_told() -> None:
    assert kinds(summary(noisy(2, 2, noise=0))) == ["loss-not-falling"]
    assert kinds(summary(noisy(2, 3))) == ["loss-not-falling"]
    assert kinds(summary(noisy(2, 2, n=100, noise=0.05))) == ["loss-not-falling"]
    assert kinds(summary(noisy(1, 6, n=60, noise=1.5))) == ["loss-not-falling"]
    assert kinds(summary([1e200, 1.01e200] * 40)) == ["loss-not-falling"]


def test_a_loss_that_does_not_fall_leads_to_the_checks_unless_they_are_on() -> None:
    flat = summary(noisy(2, 2, noise=0))
    (finding,) = found(flat)
    assert "--checks" in finding.next
    (finding,) = found({**flat, "checks": []})
    assert "--checks" not in finding.next


def test_a_loss_that_falls_and_a_short_run_are_not() -> None:
    assert kinds(summary(noisy(2, 1))) == []
    assert kinds(summary(noisy(10.9, 10.5, 60, 0.02))) == []
    assert kinds(summary([2.0] * 10)) == []


def test_a_loss_whose_noise_would_hide_that_it_falls_is_not() -> None:
    assert kinds(summary(noisy(2, 2, n=60, noise=0.5))) == []
    assert kinds(summary([loss for _ in range(40) for loss in (0.1, 0.9, 3.0, 1.6)])) == []


def test_without_a_loss_nothing_is_found() -> None:
    assert kinds({"loss": None}) == []


def test_the_curve_is_bounded_and_goes_from_the_first_to_near_the_last() -> None:
    curve = summary([float(i) for i in range(100_000)])["loss"]["curve"]
    assert len(curve) <= MOST_POINTS
    assert curve[0] == (0, 0.0)
    assert curve[-1][0] == curve[-1][1] >= 99_000


def test_instruments_that_slowed_a_run_are_told_with_what_they_took() -> None:
    held = {"waited_share": 0.2, "others_share": 0.01, "helpers_share": 0.4}
    (finding,) = found({"processors": held, "overhead": {"share": 0.5}, "steps": {"n": 10}})
    assert finding.kind == "instrument-overhead"
    assert (
        "recording took 50% of its time; voirkit's own processes used 40% of the CPU"
        in finding.because
    )
    assert finding.evidence == {"overhead_share": 0.5, "helpers_share": 0.4, "waited_share": 0.2}


def test_instruments_that_slowed_nothing_are_not() -> None:
    assert (
        kinds(
            {
                "processors": {"waited_share": 0.01, "others_share": 0, "helpers_share": 0.4},
                "steps": {"n": 10},
            }
        )
        == []
    )
    assert (
        kinds(
            {
                "processors": {"waited_share": 0.2, "others_share": 0, "helpers_share": 0.01},
                "steps": {"n": 10},
            }
        )
        == []
    )
    assert kinds({"overhead": {"share": 0.04}, "steps": {"n": 10}}) == []
    assert kinds({"overhead": {"share": 0.5}, "steps": {"n": 0}}) == []


def test_a_machine_with_other_work_is_told_of_a_run_that_has_rates() -> None:
    busy = {"waited_share": 0.2, "others_share": 0.5}
    (finding,) = found({"processors": busy, "steps": {"n": 10}})
    assert finding.kind == "busy-machine"
    assert "50%" in finding.because
    assert kinds({"processors": busy, "steps": {"n": 0}}) == []
    assert (
        kinds({"processors": {**busy, "others_share": 0.01}, "steps": {"n": 10}}) == []
    )  # its own threads wait for each other
    assert kinds({"processors": None, "steps": {"n": 10}}) == []


@pytest.mark.parametrize(
    ("losses", "words"), [([2.0, 90.0, 7e5], "diverges"), ([2.0, 1.5, 1.2], "logarithm of 0")]
)
def test_a_loss_that_grew_before_it_was_no_number_diverged(losses: list[float], words: str) -> None:
    curve = [[at, value] for at, value in enumerate(losses)]
    (finding,) = found(
        {
            "loss": {
                "n": 9,
                "curve": curve,
                "not_finite": {"first": 3, "value": "inf", "n": 6, "of": 9},
            }
        }
    )
    assert words in finding.next
