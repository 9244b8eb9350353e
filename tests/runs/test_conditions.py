"""The conditions of ``--require``."""

import pytest

from voirkit.errors import CommandLineError
from voirkit.runs.conditions import read

KNOWN = {"steps", "rates", "loss", "duration_s", "overhead", "memory", "ranks", "alerts"}
SUMMARY = {
    "rates": {"train_rate": {"value": 512.0}},
    "steps": {"n": 10, "phases": {"wait": {"share": 0.25}}},
    "loss": None,
    "duration_s": 3,
    "memory": {"peak": 1_500_000_000, "units": "bytes"},
    "ranks": [{"steps": 5}, {"steps": 6}],
    "alerts": [],
}


@pytest.mark.parametrize(
    "text",
    [
        "train_rate>=500",
        "train_rate >= 512",
        "wait_share<0.3",
        "steps.phases.wait.share != 0.5",
        "steps==10",
        "duration_s<=3",
        "duration > 1e-3",
        "duration<10min",
        "duration < 3001 ms",
        "memory.peak<2GB",
        "memory<=1500MB",
        "memory>1GiB",
        "wait_share<30%",
        "ranks.1.steps==6",
    ],
)
def test_conditions_that_hold(text):
    assert read(text, KNOWN).failure(SUMMARY) is None


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("train_rate>=513", "train_rate>=513: it is 512"),
        ("wait_share<0.2", "wait_share<0.2: it is 0.25"),
        ("loss<1", "loss<1: this run has no loss.last"),
        ("memory<1GB", "memory<1GB: it is 1.5GB"),
        ("duration<0.01min", "duration<0.01min: it is 0.05min"),
        ("wait_share<20%", "wait_share<20%: it is 25%"),
        ("memory.paek<2GB", "memory.paek<2GB: this run has no memory.paek. Did you mean 'peak'?"),
        ("memory.units<2", "memory.units<2: memory.units is no number"),
        (
            "rates.train_rate<2",
            "rates.train_rate<2: rates.train_rate is no number; it has rates.train_rate.value",
        ),
        ("ranks.2.steps>1", "ranks.2.steps>1: this run has no ranks.2.steps"),
        ("loading_rate>1", "loading_rate>1: this run has no rates.loading_rate.value"),
    ],
)
def test_a_condition_that_does_not_hold_says_the_figure(text, because):
    assert read(text, KNOWN).failure(SUMMARY) == because


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train_rate", "comparison"),
        ("trian_rate>5", "Did you mean 'train_rate'"),
        ("train_rate>fast", "'fast' is not a number"),
        ("", "no condition"),
        ("wait_share<nan", "not a number"),
        ("memory<2 bananas", "2GiB"),
        ("duration<1e999s", "not a number"),
    ],
)
def test_what_is_no_condition_is_refused(text, words):
    with pytest.raises(CommandLineError, match=words):
        read(text, KNOWN)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("train_rate>=5MB", "train_rate>=500"),
        ("wait_share<3s", "wait_share<20%"),
        ("duration<2GB", "duration<250ms"),
        ("memory.peak<10min", "memory.peak<2GB"),
        ("steps>10%", "steps>500"),
        ("steps.time_s.p90<5%", "steps.time_s.p90<250ms"),
    ],
)
def test_a_unit_that_the_figure_does_not_have_is_refused(text, hint):
    with pytest.raises(CommandLineError, match="is not measured in") as caught:
        read(text, KNOWN)
    assert f"Write: {hint}" in str(caught.value)


def test_a_bound_with_a_sign_and_a_percentage_is_beside_another_run():
    condition = read("step_time<+3%", KNOWN, baseline=True)
    assert (condition.relative, condition.holds(0.02), condition.holds(0.04)) == (True, True, False)


def test_without_another_run_it_is_refused():
    with pytest.raises(
        CommandLineError, match="voirkit compare BASELINE RUN --require 'step_time<\\+3%'"
    ):
        read("step_time<+3%", KNOWN)
