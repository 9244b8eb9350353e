"""Verdicts from figures: each kind, its evidence, and the order of the rules."""

import pytest

from voirkit.analysis.document import Rank, figures
from voirkit.analysis.steps import steps_of
from voirkit.analysis.verdict import verdict

from .simulated import Script

FACTS = {"workers": 0, "dataset": "Images", "cpus": 4}


def run(body, wait=10, steps=10):
    script = Script()
    for k in script.iterate(steps, wait=wait):
        body(script, k)
    return Rank(0, "here", steps_of(script.timeline()))


def said(*ranks, facts=FACTS):
    return verdict(figures(ranks), facts)


def train(script, k):
    script.train_on()


def test_waiting_is_input_bound_and_names_the_dataset_and_what_to_try():
    found = said(run(train, wait=1000))
    assert found["kind"] == "input-bound"
    assert found["evidence"] == {
        "phase": "wait",
        "share": pytest.approx(1000 / 1350),
        "ceiling": pytest.approx(350 / 1350),
        "workers": 0,
        "dataset": "Images",
    }
    assert "num_workers=3" in found["next"]
    assert "26%" in found["next"]


def test_more_workers_only_where_there_are_processors():
    assert "more workers" in said(run(train, wait=1000), facts={"workers": 2, "cpus": 8})["next"]
    assert "cheaper" in said(run(train, wait=1000), facts={"workers": 8, "cpus": 8})["next"]


def test_what_the_loader_found_is_named():
    found = said(run(train, wait=1000), facts={"workers": 2, "operation": "RandomResizedCrop", "operation_share": 0.61})
    assert found["evidence"]["operation"] == "RandomResizedCrop"
    assert "61%" in found["because"]


def test_computing_names_its_phase():
    found = said(run(train))
    assert (found["kind"], found["evidence"]["phase"]) == ("compute-bound", "backward")


def test_an_optimizer_that_dominates_is_compute_bound():
    def slow(script, k):
        script.forward(10)
        script.backward(10)
        script.step(500)

    found = said(run(slow))
    assert (found["kind"], found["evidence"]["phase"]) == ("compute-bound", "optimizer")


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [("device", "transfer", "transfer-bound"), ("checkpoint", "capture", "checkpoint-bound"), ("compute", "zero_grad", "host-bound")],
)
def test_what_else_may_take_most_of_a_step(category, name, kind):
    def body(script, k):
        script.train_on()
        script.do(category, name, 5000)

    assert said(run(body))["kind"] == kind


def test_nothing_takes_most():
    def body(script, k):
        script.train_on()
        script.do("device", "transfer", 300)

    found = said(run(body, wait=350))
    assert found["kind"] == "balanced"
    assert found["next"]


def test_a_rank_for_which_the_others_wait():
    def waits_in_backward(script, k):
        script.forward()
        script.backward(900)
        script.step()

    fast, slow = run(waits_in_backward), run(train, wait=710)
    found = said(fast, Rank(1, "there", slow.steps))
    assert (found["kind"], found["evidence"]["rank"], found["evidence"]["phase"]) == ("straggler", 1, "wait")


def test_ranks_that_all_wait_are_input_bound():
    both = run(train, wait=1000)
    assert said(both, Rank(1, "there", both.steps))["kind"] == "input-bound"


def test_few_steps_and_none_are_unknown():
    assert said(run(train, steps=2))["kind"] == "unknown"
    assert "No training step" in said(run(lambda script, k: None))["because"]
    assert "evaluated" in said(run(lambda script, k: script.forward()))["because"]
