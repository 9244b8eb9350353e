"""The conditions of ``--require``."""

import pytest

from voirkit.errors import CommandLineError
from voirkit.runs.conditions import read

KNOWN = {"steps", "rates", "loss", "duration_s", "overhead"}
SUMMARY = {
    "rates": {"train_rate": {"median": 512.0}},
    "steps": {"n": 10, "phases": {"wait": {"share": 0.25}}},
    "loss": None,
    "duration_s": 3,
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
        ("loading_rate>1", "loading_rate>1: this run has no rates.loading_rate.median"),
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
        ("wait_share<20%", "0.2"),
    ],
)
def test_what_is_no_condition_is_refused(text, words):
    with pytest.raises(CommandLineError, match=words):
        read(text, KNOWN)
