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


def looked_into(workers=2, enough=None, best=3, rate_without=300.0):
    rates = {2: 100.0, 3: 150.0, 6: 300.0}
    return {
        "workers": workers,
        "enough_workers": enough,
        "best_workers": best,
        "cost": {"cores": 2},
        "predicted": [{"workers": n, "rate": rate, "limited_by": "workers"} for n, rate in rates.items()],
        "first": {
            "operation": "RandomResizedCrop", "share": 0.61, "wait_share": 0.7, "action": "reduce", "because": "use less", "rate_without": rate_without,
        },
    }  # fmt: skip


def test_what_the_loader_found_is_named_with_its_shares_and_what_its_removal_would_give():
    found = said(run(train, wait=1000), facts={"workers": 2, "loader": looked_into()})
    assert found["evidence"]["operation"] == "RandomResizedCrop"
    assert (found["evidence"]["operation_share"], found["evidence"]["operation_wait_share"]) == (0.61, 0.7)
    assert "RandomResizedCrop is 61% of the work on it and 70% of the wait" in found["because"]
    assert "Begin with RandomResizedCrop: use less (without it 300 items/s at best)" in found["next"]


def test_how_many_workers_would_remove_the_wait_is_told_or_why_none_would():
    enough = said(run(train, wait=1000), facts={"workers": 2, "loader": looked_into(enough=6)})["next"]
    assert "num_workers=6 would remove the wait (predicted 300 items/s instead of 100)" in enough
    better = said(run(train, wait=1000), facts={"workers": 2, "loader": looked_into()})["next"]
    assert "num_workers=3 would give at best 150 items/s" in better
    none = said(run(train, wait=1000), facts={"workers": 2, "loader": looked_into(best=2)})["next"]
    assert "More workers would not help" in none
    steady = said(run(train, wait=1000), facts={"workers": 2, "loader": looked_into(enough=2)})["next"]
    assert "keep up on average" in steady


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


def test_checkpoints_between_the_steps_are_a_part_of_the_training():
    script = Script()
    for _epoch in range(5):
        for _ in script.iterate(2):
            script.train_on()
        script.do("checkpoint", "capture", 2160)
    found = said(Rank(0, "here", steps_of(script.timeline())))
    assert found["kind"] == "checkpoint-bound"
    assert found["evidence"]["between_steps"] == found["evidence"]["share"] == pytest.approx(0.75)
    assert "checkpoint-async" in found["next"]


def test_ranks_wait_for_the_one_that_saves_between_the_steps():
    ranks = []
    for number in range(4):
        script = Script()
        for _ in script.iterate(4):
            script.train_on()
        spent = steps_of(script.timeline()).train.time_ns.sum()
        if number == 0:
            script.do("checkpoint", "capture", int(spent))
        ranks.append(Rank(number, "here", steps_of(script.timeline())))
    between = figures(ranks)["steps"]["checkpoints_between"]
    assert between == {"share": pytest.approx(0.5), "total_s": pytest.approx(spent / 1e9)}
