"""Verdicts from figures: each kind, its evidence, and the order of the rules."""

from typing import Any

import numpy as np
import pytest

from voirkit.analysis.document import Rank, figures
from voirkit.analysis.steps import steps_of
from voirkit.analysis.verdict.diagnosis import conclusions, verdict
from voirkit.findings import Finding

from .simulated import Script

FACTS = {"workers": 0, "dataset": "Images", "cpus": 4}


def run(body, wait=10, steps=10):
    script = Script()
    for k in script.iterate(steps, wait=wait):
        body(script, k)
    return Rank(0, "here", steps_of(script.timeline()))


def said(*ranks, facts=FACTS, **more):
    """The verdict on what ranks did; what else a summary has (``loader``, ``wall``, ``flame``) by its name."""
    return verdict({**figures(ranks), **more}, facts)


def train(script, k):
    script.train_on()


def test_waiting_is_input_bound_and_names_the_dataset_and_what_to_try():
    found = said(run(train, wait=1000), facts={"workers": 0, "dataset": "Images", "cpus": 4})
    assert found["kind"] == "input-bound"
    assert found["evidence"] == {
        "phase": "wait",
        "share": pytest.approx(1000 / 1350),
        "ceiling": pytest.approx(350 / 1350),
        "workers": 0,
        "dataset": "Images",
    }


def test_more_workers_only_where_there_are_processors():
    assert "more workers" in said(run(train, wait=1000), facts={"workers": 2, "cpus": 8})["next"]
    assert "cheaper" in said(run(train, wait=1000), facts={"workers": 8, "cpus": 8})["next"]


def test_more_workers_than_processors_are_too_many():
    found, advice = concluded(run(train, wait=1000), facts={"workers": 12, "cpus": 2})
    assert "num_workers=2 or less" in found["next"]
    assert "12 loader workers share 2 processors" in advice[0]["because"]
    assert not any("on a sample" in one["do"] for one in advice)


def looked_into(workers=2, enough=None, best=3, rate_without=300.0):
    rates = {2: 100.0, 3: 150.0, 6: 300.0}
    return {
        "workers": workers,
        "enough_workers": enough,
        "best_workers": best,
        "cost": {"cores": 8},
        "predicted": [{"workers": n, "rate": rate, "limited_by": "workers"} for n, rate in rates.items()],
        "first": {
            "operation": "RandomResizedCrop", "share": 0.61, "wait_share": 0.7, "action": "reduce", "because": "use less", "rate_without": rate_without,
        },
    }  # fmt: skip


def test_what_the_loader_found_is_named_with_its_shares_and_what_its_removal_would_give():
    found = said(run(train, wait=1000), facts={"workers": 2}, loader=looked_into())
    assert found["evidence"]["operation"] == "RandomResizedCrop"
    assert (found["evidence"]["operation_share"], found["evidence"]["operation_wait_share"]) == (
        0.61,
        0.7,
    )
    assert "RandomResizedCrop is 61% of the work on it and 70% of the wait" in found["because"]
    assert (
        "Begin with RandomResizedCrop: use less (without it 300 items/s at best)" in found["next"]
    )


def test_an_operation_that_nobody_waits_for_gives_way_to_what_is_known_of_the_workers():
    idle = looked_into(workers=12)
    idle["first"]["wait_share"] = 0.0
    found, _ = concluded(run(train, wait=1000), facts={"workers": 12, "cpus": 2}, loader=idle)
    assert "num_workers=2 or less" in found["next"]
    assert "Begin with" not in found["next"]


def test_how_many_workers_would_remove_the_wait_is_told_or_why_none_would():
    enough = said(run(train, wait=1000), facts={"workers": 2}, loader=looked_into(enough=6))["next"]
    assert "num_workers=6 would remove the wait (predicted 300 items/s instead of 100)" in enough
    better = said(run(train, wait=1000), facts={"workers": 2}, loader=looked_into())["next"]
    assert "num_workers=3 would give at best 150 items/s" in better
    none = said(run(train, wait=1000), facts={"workers": 2}, loader=looked_into(best=2))["next"]
    assert "More workers would not help" in none
    steady = said(run(train, wait=1000), facts={"workers": 2}, loader=looked_into(enough=2))["next"]
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
    [
        ("device", "transfer", "transfer-bound"),
        ("checkpoint", "capture", "checkpoint-bound"),
        ("compute", "zero_grad", "host-bound"),
    ],
)
def test_what_else_may_take_most_of_a_step(category, name, kind):
    def body(script, k):
        script.train_on()
        script.do(category, name, 5000)

    assert said(run(body))["kind"] == kind


def test_the_loss_is_computing():
    def body(script, k):
        script.train_on()
        script.do("compute", "loss", 5000)

    found = said(run(body))
    assert found["kind"] == "compute-bound"
    assert "the loss 9" in found["because"]


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
    both = figures([fast, Rank(1, "there", slow.steps)])
    found, (advice,) = conclusions({**both, "wall": wall(4 * both["steps"]["total_s"])}, FACTS)
    assert (found["kind"], found["evidence"]["rank"], found["evidence"]["phase"]) == (
        "straggler",
        1,
        "wait",
    )
    assert advice["win"] == pytest.approx(found["evidence"]["share"] / 4)  # of the run


def ranks(*waits, backward=200):
    """DDP: ranks with these waits by step, of which each waits in backward for the one that comes last."""
    last = np.max(waits, axis=0)
    made = []
    for number, mine in enumerate(waits):
        script = Script()
        for k in script.iterate(len(mine), wait=0):
            script.do("dataloader", "queue", mine[k])
            script.forward()
            script.backward(backward + last[k] - mine[k])
            script.step()
        made.append(Rank(number, "here", steps_of(script.timeline())))
    return made


def test_one_late_batch_in_forty_makes_no_rank_a_straggler():
    usual, late = [10] * 40, [10] * 40
    late[17] = 40_000
    assert said(*ranks(usual, late))["kind"] != "straggler"


def test_first_batches_of_epochs_that_are_now_later_here_now_there_make_no_rank_a_straggler():
    first, second = ([900 if k % 8 == 0 else 10 for k in range(64)] for _ in range(2))
    for epoch in range(8):
        (first, second)[epoch % 2][epoch * 8] += 700
    assert said(*ranks(first, second))["kind"] != "straggler"


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_rank_that_is_late_in_most_steps_is_named_by_its_number(slow):
    waits = [[10 + k % 3 for k in range(20)] for _ in range(3)]
    waits[slow] = [300 + k % 3 for k in range(20)]
    found = said(*ranks(*waits))
    assert (found["kind"], found["evidence"]["rank"], found["evidence"]["phase"]) == (
        "straggler",
        slow,
        "wait",
    )


def test_a_rank_whose_workers_give_two_batches_at_a_time_is_a_straggler():
    assert said(*ranks([10] * 64, [10, 700] * 32))["evidence"]["rank"] == 1


def test_a_rank_that_waits_in_collectives_is_not_the_one_that_is_late():
    def waiting(script, k):
        script.train_on()
        script.do("comm", "all_gather", 900)

    def late(script, k):
        script.train_on()
        script.idle(800)
        script.do("comm", "all_gather", 100)

    found = said(run(waiting), Rank(1, "there", run(late).steps))
    assert (found["kind"], found["evidence"]["rank"], found["evidence"]["phase"]) == (
        "straggler",
        1,
        "other",
    )


def test_ranks_that_do_not_wait_for_each_other_have_no_straggler():
    slow = run(train, wait=1000)
    assert said(run(train), Rank(1, "there", slow.steps))["kind"] != "straggler"


def test_communication_is_a_phase_and_a_verdict_of_its_own():
    def body(script, k):
        script.train_on()
        script.do("comm", "all_reduce", 1000)

    found = said(run(body))
    assert (found["kind"], found["evidence"]["phase"]) == ("communication-bound", "communication")
    assert "script's own" not in found["because"]
    assert "no_sync" in found["next"]


def test_ranks_that_all_wait_are_input_bound():
    both = run(train, wait=1000)
    assert said(both, Rank(1, "there", both.steps))["kind"] == "input-bound"


def test_few_steps_and_none_are_unknown():
    assert said(run(train, steps=2))["kind"] == "unknown"
    assert "No training step" in said(run(lambda script, k: None))["because"]
    assert "evaluated" in said(run(lambda script, k: script.forward()))["because"]


def test_an_evaluation_alone_may_take_gradients():
    evaluation, recorded = (
        {"n": 4, "takes_gradients": True},
        {"backward_passes": {"n": 20, "total_s": 1.0}},
    )
    found = said(run(lambda script, k: None), evaluation=evaluation, recorded_work=recorded)
    assert (
        found["because"]
        == "The run trained nothing: 4 batches were evaluated, with 20 backward passes and no optimizer step."
    )


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


MS = 1_000_000


def planted(
    steps=40,
    wait=0,
    transfer=0,
    forward=0,
    backward=0,
    optimizer=0,
    other=0,
    save=0,
    comm=0,
    slow=None,
    optimizer_every=1,
):
    """A rank whose steps take so many milliseconds in each; ``slow``: by number of a step, milliseconds of forward instead."""
    script = Script()
    for k in script.iterate(steps, wait=wait * MS, items=8):
        for category, name, spent in (
            ("device", "transfer", transfer),
            ("checkpoint", "capture", save),
            ("comm", "all_reduce", comm),
        ):
            if spent:
                script.do(category, name, int(spent * MS))
        script.forward(int((slow or {}).get(k, forward) * MS))
        script.backward(int(backward * MS))
        if (k + 1) % optimizer_every == 0:
            script.step(int(optimizer * MS))
        script.idle(int(other * MS))
    return Rank(0, "here", steps_of(script.timeline()))


def concluded(*ranks, facts=FACTS, findings=(), **more):
    return conclusions({**figures(ranks), **more}, facts, findings=findings)


def wall(total_s, **parts):
    return {
        "total_s": total_s,
        "parts": {
            name: {"total_s": spent, "share": spent / total_s} for name, spent in parts.items()
        },
    }


def test_a_slow_function_of_the_script_that_is_the_largest_row_is_named_before_computing():
    found = said(planted(forward=20, backward=25, optimizer=12, other=43))
    assert (found["kind"], found["evidence"]["share"]) == (
        "host-bound",
        pytest.approx(0.43, abs=0.01),
    )
    assert "Second: computing, 57% of a step" in found["because"]


def test_what_comes_second_is_said_and_has_its_advice():
    found, advice = concluded(planted(forward=10, backward=11, optimizer=45, save=34))
    assert found["kind"] == "compute-bound"
    assert "Second: checkpoints, 34% of a step" in found["because"]
    assert any(
        "less often" in one["do"] and one["win"] == pytest.approx(0.34, abs=0.01) for one in advice
    )


def test_two_parts_as_large_name_both_and_only_their_own_remedies():
    found, advice = concluded(planted(forward=20, backward=24, optimizer=5, save=47))
    assert found["kind"] in ("balanced", "checkpoint-bound")
    assert "checkpoints" in found["because"]
    assert "less often" in found["next"]
    assert not any("pin_memory" in one["do"] or "non_blocking" in one["do"] for one in advice)


def test_of_two_parts_as_large_each_has_its_best_remedy_in_next():
    found, _ = concluded(
        planted(transfer=5, forward=20, backward=22, optimizer=4, save=38, other=11)
    )
    assert (found["kind"], list(found["evidence"]["largest"])) == (
        "balanced",
        ["compute-bound", "checkpoint-bound"],
    )
    assert "No dominant bottleneck" in found["because"]
    assert "less often" in found["next"]
    assert "autocast" in found["next"]


def test_advice_is_ranked_by_what_it_wins_and_next_is_the_first():
    found, advice = concluded(planted(wait=40, forward=20, backward=20, optimizer=10, other=10))
    wins = [one["win"] for one in advice if one["win"] is not None]
    assert wins == sorted(wins, reverse=True)
    assert len(advice) <= 3
    assert found["next"].startswith(advice[0]["do"])


@pytest.mark.parametrize(
    ("slow", "which"),
    [
        ({0: 9000}, "the first step"),
        ({17: 9000}, "1 of 40 steps"),
        ({0: 900, 1: 800, 9: 900}, "3 of 40 steps"),
    ],
)
def test_steps_that_compile_or_warm_up_do_not_turn_the_verdict_and_are_said(slow, which):
    found = said(planted(wait=60, forward=10, backward=20, optimizer=10, slow=slow))
    assert (found["kind"], found["evidence"]["share"]) == (
        "input-bound",
        pytest.approx(0.6, abs=0.01),
    )
    assert f"Left out: {which}" in found["because"]


def test_slow_steps_that_come_back_are_part_of_the_training():
    every = dict.fromkeys(range(0, 100, 25), 3000)
    steps = figures([planted(steps=100, wait=5, forward=10, backward=10, slow=every)])["steps"]
    assert "typical" not in steps


def test_no_number_of_workers_without_evidence_for_it():
    few = said(
        planted(wait=60, forward=15, backward=20, optimizer=5), facts={"workers": 0, "cpus": 64}
    )
    assert "num_workers=2" in few["next"]  # 1.5 times as long to load as to train
    many = said(
        planted(wait=95, forward=2, backward=2, optimizer=1), facts={"workers": 0, "cpus": 4}
    )
    assert "num_workers=4" in many["next"]
    assert "75%" in many["next"]  # of the run at best: four processors


def test_tiny_samples_are_indexed_by_whole_batches_instead_of_by_workers():
    tiny = planted(wait=0.2, forward=0.02, backward=0.03, optimizer=0.02)  # 25 us a sample
    found, advice = concluded(tiny, facts={"workers": 0, "cpus": 4})
    assert "whole batches" in found["next"]
    assert not any("num_workers" in one["do"] for one in advice)
    by_batch = concluded(tiny, facts={"workers": 0, "cpus": 4, "whole_batches": True})[1]
    assert not any("whole batches" in one["do"] for one in by_batch)


def test_a_part_of_the_time_is_ranked_by_what_it_saves():
    evidence = {
        "pauses": 10,
        "total_s": 0.1,
        "total_words": "100 ms",
        "share": 0.03,
        "in_steps": 0.02,
        "do_words": "gc.freeze()",
    }
    pauses = [Finding.of("garbage-collection", evidence, gain=0.03)]
    found, advice = concluded(
        planted(wait=60, forward=10, backward=10), facts={"workers": 0, "cpus": 4}, findings=pauses
    )
    assert "num_workers=" in found["next"]
    assert [one["win"] for one in advice if "gc.freeze()" in one["do"]] == [0.03]


def test_pauses_that_a_run_is_bound_by_are_what_to_do_next():
    def body(script, k):
        script.train_on()
        script.do("gc", "collect", 2000)

    evidence = {
        "pauses": 10,
        "total_s": 0.1,
        "total_words": "100 ms",
        "share": 0.7,
        "in_steps": 0.7,
        "do_words": "gc.freeze()",
    }
    found, _ = concluded(run(body), findings=[Finding.of("garbage-collection", evidence, gain=0.7)])
    assert found["kind"] == "host-bound"
    assert "gc.freeze()" in found["next"]


def restarted(trains=True, again_s=1.5):
    return {
        "loader": 0,
        "workers": 2,
        "starts": 5,
        "trains": trains,
        "again_s": again_s,
        "again_waited_s": 0.8 * again_s,
    }


def test_a_wait_for_the_start_of_workers_is_answered_by_keeping_them():
    first = {"loops": 5, "first_s": 2.0, "late_s": 1.9, "wait_s": 2.2}
    slow = planted(wait=60, forward=10, backward=10)
    found, advice = concluded(
        slow,
        facts={"workers": 2, "cpus": 8, "first_batches": first, "worker_restarts": [restarted()]},
    )
    assert "persistent_workers=True" in found["next"]
    assert advice[0]["win"] == pytest.approx(1.5 / figures([slow])["steps"]["total_s"])
    once = concluded(
        slow, facts={"workers": 2, "cpus": 8, "first_batches": first, "persistent": True}
    )
    assert "persistent_workers" not in once[0]["next"]


def test_nothing_is_advised_about_samples_while_workers_start_again_and_again():
    first = {
        "loops": 5,
        "first_s": 0.5,
        "late_s": 0.4,
        "wait_s": 2.2,
    }  # the second batches wait for the second worker
    facts = {"workers": 2, "cpus": 2, "first_batches": first}
    slow = planted(wait=60, forward=10, backward=10)
    _, advice = concluded(slow, facts={**facts, "worker_restarts": [restarted()]})
    assert not any("on a sample" in piece["do"] for piece in advice)
    _, advice = concluded(slow, facts=facts)
    assert any("on a sample" in piece["do"] for piece in advice)


def test_workers_of_an_evaluation_that_start_again_are_named_as_such():
    facts = {"workers": 0, "cpus": 8, "worker_restarts": [restarted(trains=False)]}
    evaluates = wall(4.0, training=0.8, evaluation=2.0, workers=0.8)
    _, advice = concluded(planted(forward=10, backward=10), facts=facts, wall=evaluates)
    assert "loader workers of evaluation" in advice[0]["do"]
    assert not any("logging" in one["do"] for one in advice)


def test_starts_of_workers_that_take_no_time_are_not_advised_about():
    facts = {"workers": 2, "cpus": 8, "worker_restarts": [restarted(again_s=1e-6)]}
    assert not any(
        "persistent_workers" in one["do"]
        for one in concluded(planted(forward=10, backward=10), facts=facts)[1]
    )


def test_a_run_of_starts_and_stops_of_workers_is_input_bound():
    facts = {"worker_restarts": [restarted(trains=False)]}
    found, _ = concluded(
        planted(forward=10, backward=10), facts=facts, wall=wall(4.0, training=0.8, workers=3.0)
    )
    assert found["kind"] == "input-bound"
    assert "starting and stopping" in found["because"]


def test_what_comes_before_the_first_batch_is_no_work_of_workers():
    first = {"loops": 10, "first_s": 2.3, "late_s": 2.25, "wait_s": 2.4}
    late = planted(wait=60, forward=10, backward=10)
    found, advice = concluded(late, facts={"workers": 0, "cpus": 4, "first_batches": first})
    assert "before the first batch" in found["next"]
    assert not any("num_workers=" in one["do"] for one in advice)


def test_a_sampler_is_no_work_of_workers():
    drawing = {"drawing": {"later_s": 2.25, "n": 30}}
    found, advice = concluded(
        planted(wait=60, forward=10, backward=10), facts={"workers": 0, "cpus": 4}, symptoms=drawing
    )
    assert "Draw indices faster" in found["next"]
    assert not any("num_workers=" in one["do"] for one in advice)


def test_a_sampler_that_draws_for_long_before_the_first_batch_is_named_beside_workers():
    first = {"loops": 4, "first_s": 2.2, "late_s": 2.1, "wait_s": 2.4}
    facts = {
        "workers": 2,
        "cpus": 8,
        "first_batches": first,
        "worker_restarts": [restarted(again_s=0.3)],
    }
    slow = planted(wait=60, forward=10, backward=10)
    found, advice = concluded(slow, facts=facts, symptoms={"drawing": {"start_s": 1.8}})
    assert "Draw indices faster" in found["next"]
    assert not any("on a sample" in one["do"] or "more workers" in one["do"] for one in advice)
    others, _ = concluded(slow, facts=facts, symptoms={"drawing": {"start_s": 0.8}})
    assert "Draw indices faster" not in others["next"], (
        "less than half of what first batches are late"
    )


def test_drawing_that_is_a_small_part_of_the_wait_is_not_advised_about():
    slow = planted(wait=60, forward=10, backward=10)
    waited_s = figures([slow])["steps"]["phases"]["wait"]["total_s"]
    _, advice = concluded(
        slow,
        facts={"workers": 0, "cpus": 4},
        symptoms={"drawing": {"later_s": 0.1 * waited_s, "n": 30}},
    )
    assert not any("Draw indices faster" in one["do"] for one in advice)


def test_a_wait_for_a_processor_makes_no_sample_slow():
    document = figures([planted(wait=20, forward=10, backward=10)])
    document["steps"]["phases"]["wait"]["step_s"]["p10"] = 1e-4  # of 8 samples
    busy = {"processors": {"waited_share": 0.3, "others_share": 0.6}}
    advised = [
        conclusions({**document, **more}, {"workers": 0, "cpus": 4})[1] for more in ({}, busy)
    ]
    assert [any("num_workers=" in one["do"] for one in advice) for advice in advised] == [
        True,
        False,
    ]


def test_what_the_script_does_already_is_not_advised():
    computing = planted(steps=800, forward=40, backward=40, optimizer=20)
    plain = {"optimizers": [{"optimizer": "Adam", "fused": False, "device": "cpu"}]}
    assert {"autocast", "fused=True", "torch.compile"} <= _words(
        concluded(computing, facts=plain)[1]
    )
    tuned = {
        "autocast": ["bfloat16"],
        "compiled": True,
        "optimizers": [{"optimizer": "Adam", "fused": True, "device": "cpu"}],
    }
    assert not {"autocast", "fused=True", "torch.compile"} & _words(
        concluded(computing, facts=tuned)[1]
    )


def test_processors_without_bfloat16_are_not_told_to_use_it():
    facts = {"optimizers": [{"optimizer": "Adam", "fused": True, "device": "cpu", "bf16": False}]}
    assert "autocast" not in _words(concluded(planted(forward=40, backward=40), facts=facts)[1])


def _words(advice):
    said = " ".join(one["do"] for one in advice)
    return {
        word for word in ("autocast", "fused=True", "torch.compile", "pin_memory") if word in said
    }


def test_a_cpu_run_is_not_told_to_pin_memory():
    facts = {"optimizers": [{"optimizer": "SGD", "device": "cpu"}]}
    found, advice = concluded(planted(transfer=80, forward=10, backward=10), facts=facts)
    assert found["kind"] == "transfer-bound"
    assert "pin_memory" not in _words(advice)
    on_gpu = concluded(
        planted(transfer=80, forward=10, backward=10),
        facts={"optimizers": [{"optimizer": "SGD", "device": "cuda"}]},
    )
    assert "pin_memory" in on_gpu[0]["next"]


def test_a_run_that_is_too_short_to_win_its_compiling_back_is_not_told_to_compile():
    assert "torch.compile" not in _words(concluded(planted(steps=40, forward=40, backward=40))[1])


def test_accumulation_is_said():
    found = said(
        planted(forward=20, backward=20, optimizer=10, optimizer_every=8), facts={"updates": 5}
    )
    assert "A step is a micro-batch: 8 steps an update" in found["because"]


FLAME = {
    "phases": {
        "other": {
            "lines": {"code/train.py:15": 0.93},
            "text": {"code/train.py:15": 'im.save("loss.png")'},
        },
        "wait": {"lines": {"code/data.py:3": 0.8}, "text": {}},
    }
}


def test_with_flame_the_line_is_named_with_its_text_and_flame_is_not_advised_again():
    found, advice = concluded(planted(forward=10, backward=10, other=80), flame=FLAME)
    assert 'train.py:15 im.save("loss.png")' in found["because"]
    assert 'train.py:15 im.save("loss.png")' in found["next"]
    assert advice[0]["win"] == pytest.approx(0.8 * 0.93, abs=0.01)
    assert not any("--flame" in one["do"] for one in advice)
    assert "--flame" in said(planted(forward=10, backward=10, other=80))["next"]


def test_with_flame_the_line_that_loading_waits_in_is_named():
    assert "data.py:3" in said(planted(wait=90, forward=5, backward=5), flame=FLAME)["because"]


def test_the_line_that_asks_for_a_batch_is_no_answer_to_what_is_waited_for():
    asks = {
        "phases": {
            "wait": {"lines": {"train.py:10": 0.9}, "text": {"train.py:10": "for x, y in loader:"}}
        }
    }
    assert "train.py:10" not in str(concluded(planted(wait=90, forward=5, backward=5), flame=asks))


def test_of_a_handful_of_stacks_no_line_is_named():
    few = {"phases": {"other": {**FLAME["phases"]["other"], "samples": 9}}}
    assert "train.py:15" not in str(
        concluded(planted(forward=10, backward=10, other=80), flame=few)
    )


def test_where_the_main_process_only_asks_the_line_of_the_workers_is_named():
    asks = {"lines": {"train.py:10": 0.9}, "text": {"train.py:10": "for x, y in loader:"}}
    flame = {"phases": {"wait": asks, "fetch": {"lines": {"scans.py:15": 0.7}, "text": {}}}}
    found = said(
        planted(wait=90, forward=5, backward=5), facts={"workers": 2, "cpus": 2}, flame=flame
    )
    assert "70% of it in scans.py:15" in found["because"]
    assert "70% of it is in scans.py:15" in found["next"]


def test_a_trial_that_mostly_imports_has_a_verdict_and_no_advice_that_saves_nothing():
    rank = planted(steps=20, wait=50, forward=2, backward=20, optimizer=3, other=25)  # 2 s
    found, advice = concluded(rank, wall=wall(1000.0, training=2.0, **{"import": 998.0}))
    assert (found["kind"], advice) == ("input-bound", [])
    assert (
        found["next"]
        == "The steps take 0.2% of this run: what they could save shows in a longer one."
    )


def test_advice_that_saves_less_than_a_hundredth_of_the_run_is_not_given():
    rank = planted(
        steps=20, wait=50, forward=2, backward=20, optimizer=3, other=25
    )  # 2 s, of which 50 % wait and 25 % other
    _, advice = concluded(rank, wall=wall(80.0, training=2.0, **{"import": 78.0}))
    assert len(advice) == 1


def test_on_a_busy_machine_no_saving_is_estimated():
    busy = {"waited_share": 0.5, "others_share": 0.9}
    _, advice = concluded(planted(wait=50, forward=20, backward=20, optimizer=10), processors=busy)
    assert advice
    assert all(piece["win"] is None for piece in advice)


def test_rules_of_thumb_have_no_figure():
    _, advice = concluded(planted(forward=50, backward=50, optimizer=5))
    assert [piece["win"] for piece in advice if "autocast" in piece["do"]] == [None]


@pytest.mark.parametrize("kind", ["graph-kept", "memory-grows", "workers-copy-dataset"])
def test_a_bug_or_held_memory_is_mended_before_rules_of_thumb_are_tried(kind):
    finding = Finding(kind, "It is there.", "Mend it.")
    _, advice = concluded(planted(forward=50, backward=50, optimizer=5), findings=[finding])
    assert not {"autocast", "compile", "larger-batch"} & {piece["kind"] for piece in advice}


def test_where_a_finding_explains_the_time_no_general_advice_is_given_about_it():
    finding = Finding("steps-get-slower", "They do.", "See --checks.", explains="compute-bound")
    found, advice = concluded(planted(forward=50, backward=50, optimizer=5), findings=[finding])
    assert found["next"] == "See --checks."
    assert not any("autocast" in piece["do"] for piece in advice)


def test_a_finding_that_costs_time_is_the_first_advice():
    finding = Finding(
        "iterator-each-step", "One each step.", "Make it once.", gain=0.3, explains="input-bound"
    )
    found, advice = concluded(planted(wait=80, forward=10, backward=10), findings=[finding])
    assert advice[0] == {
        "kind": "iterator-each-step",
        "do": "Make it once.",
        "because": "One each step",
        "win": 0.3,
    }
    assert found["next"].startswith("Make it once.")
    assert not any("num_workers" in piece["do"] for piece in advice)


def test_with_torch_profile_the_operator_is_named_and_it_is_not_advised_again():
    operators = {"aten::addmm": {"self_cpu_s": 3.0}, "aten::relu": {"self_cpu_s": 1.0}}
    profile = {"phases": {"forward": {"operators": operators}}}
    found, advice = concluded(planted(forward=60, backward=40), torch_profile=profile)
    assert "aten::addmm takes 75%" in found["because"]
    assert not any("--torch-profile" in one["do"] for one in advice)


def with_calls(**rows: dict[str, float]) -> dict[str, Any]:
    """Calls of the main thread in two seconds of checkpoints, which write 1,000 bytes to one file, and read a larger one elsewhere."""
    return {
        "lasted_s": {"main": {"checkpoint": 2.0}}, "threads": {"main": {"checkpoint": rows}},
        "files": [{"path": "torch.pyc", "read": 5000, "written": 0}, {"path": "model.pt", "read": 0, "written": 1000}],
    }  # fmt: skip


def test_advice_about_a_small_part_of_what_the_run_is_bound_by_does_not_lead():
    plain = {"optimizers": [{"optimizer": "Adam", "fused": False, "device": "cpu", "bf16": False}]}
    _, advice = concluded(planted(forward=60, backward=35, optimizer=5), facts=plain)
    assert [one["kind"] for one in advice] == ["look-at-operators", "fused-optimizer"]
    _, advice = concluded(planted(forward=30, backward=30, optimizer=40), facts=plain)
    assert [one["kind"] for one in advice] == ["fused-optimizer", "look-at-operators"]


def test_of_several_optimizers_none_is_told_to_be_fused_where_one_cannot_be():
    adam = {"optimizer": "Adam", "fused": False, "device": "cpu", "bf16": False}
    facts = {"optimizers": [adam, {"optimizer": "LBFGS", "device": "cpu", "bf16": False}]}
    _, advice = concluded(planted(forward=30, backward=30, optimizer=40), facts=facts)
    assert {one["kind"] for one in advice}.isdisjoint({"fused-optimizer", "fewer-updates"})


def test_with_syscalls_the_call_and_its_file_are_named():
    calls = with_calls(fsync={"seconds": 1.5, "bytes": 0}, write={"seconds": 0.1, "bytes": 1000})
    found = said(planted(forward=10, backward=10, save=80), syscalls=calls)
    assert "75% of it in fsync() on model.pt" in found["because"]


@pytest.mark.parametrize("call", ["futex", "recvfrom"])
def test_with_syscalls_a_call_that_is_about_no_file_names_none(call):
    calls = with_calls(
        **{call: {"seconds": 1.5, "bytes": 0}}, write={"seconds": 0.1, "bytes": 1000}
    )
    assert (
        f"75% of it in {call}()."
        in said(planted(forward=10, backward=10, save=80), syscalls=calls)["because"]
    )


def test_with_syscalls_no_file_is_named_whose_bytes_are_not_those_of_the_phase():
    calls = with_calls(read={"seconds": 1.5, "bytes": 100})
    assert (
        "75% of it in read()."
        in said(planted(forward=10, backward=10, save=80), syscalls=calls)["because"]
    )


def test_mostly_evaluation_is_evaluation_bound():
    rank = planted(steps=20, forward=10, backward=10)
    found, advice = concluded(
        rank, wall=wall(11.7, startup=7.0, training=0.4, evaluation=3.1, exit=0.5, between=0.7)
    )
    assert found["kind"] == "evaluation-bound"
    assert "Evaluate half as often" in advice[0]["do"]


def test_where_no_loader_was_seen_what_is_evaluated_may_be_rollouts():
    script = Script()
    for _ in range(20):
        script.do("compute", "zero_grad", 5)
        script.train_on()
    spent = wall(11.7, startup=7.0, training=0.4, evaluation=3.1, exit=0.5, between=0.7)
    _, advice = concluded(Rank(0, "here", steps_of(script.timeline())), wall=spent)
    assert "If these are rollouts: call the model on more environments at once." in advice[0]["do"]
    _, advice = concluded(planted(steps=20, forward=10, backward=10), wall=spent)
    assert "rollouts" not in str(advice)


def test_where_what_is_left_out_was_all_of_the_known_other_parts_the_rest_is_host_code():
    steps = figures([planted(other=60, forward=10, backward=20, optimizer=10)])["steps"]
    steps["phases"]["other"]["parts"] = {"import": {"share": 0.9, "total_s": 9.0}}
    steps["typical"] = {
        "outliers": {"n": 0, "first": -1, "share": 0.9, "total_s": 9.0, "phase": "import"},
        "phases": {"wait": 0.0, "transfer": 0.0, "forward": 0.1, "backward": 0.2, "optimizer": 0.1, "other": 0.6},
        "parts": {},
    }  # fmt: skip
    found = verdict({**figures([planted(other=60)]), "steps": steps}, {})
    assert (found["kind"], found["evidence"]["share"]) == ("host-bound", pytest.approx(0.6))


def test_a_start_of_a_moment_is_not_advised_about_however_short_the_run():
    rank = planted(steps=20, forward=10, backward=10)
    assert "before its first step" not in str(
        concluded(rank, wall=wall(1.5, startup=0.2, **{"import": 0.8}, training=0.4, exit=0.1))[1]
    )


def test_rollouts_are_called_inference_and_nobody_is_told_to_evaluate_less():
    rank = planted(steps=20, forward=10, backward=10)
    spent = wall(11.7, startup=7.0, training=0.4, evaluation=3.1, exit=0.5, between=0.7)
    found, advice = concluded(
        rank, wall=spent, evaluation={"n": 9, "total_s": 3.1, "inference": 0.9}
    )
    assert found["kind"] == "inference-bound"
    assert "Evaluate half as often" not in str(advice)
    assert "more environments" in advice[0]["do"]


def test_steps_that_are_long_since_they_wait_for_a_processor_are_small():
    slow = dict.fromkeys(range(0, 40, 2), 40)  # others hold the processors in half of the steps
    held = {"waited_share": 0.6, "others_share": 0.7}
    rank = planted(forward=0.4, backward=0.6, slow=slow)
    assert "larger batch" in str(concluded(rank, processors=held)[1])
    assert "autocast" not in str(concluded(rank, processors=held)[1])
    assert "autocast" in str(
        concluded(planted(forward=40, backward=60, slow=slow), processors=held)[1]
    )


def test_the_start_bounds_a_run_that_hardly_trains_but_imports_do_not():
    rank = planted(steps=20, forward=10, backward=10)
    parts = {"startup": 6.0, "import": 2.0, "training": 0.4, "between": 0.1}
    assert said(rank, wall=wall(8.5, **parts))["kind"] == "startup-bound"
    assert (
        said(rank, wall=wall(8.5, startup=0.5, **{"import": 7.5}, training=0.4, between=0.1))[
            "kind"
        ]
        == "compute-bound"
    )


def test_time_between_the_loops_is_host_bound():
    found = said(
        planted(steps=20, forward=10, backward=10),
        wall=wall(9.0, startup=2.0, training=0.4, between=6.6),
    )
    assert found["kind"] == "host-bound"
    assert "outside of the steps" in found["because"]
    assert "outside of the steps" in found["next"]


def test_a_script_that_fails_before_it_trains_is_not_asked_for_probes():
    found = said(run(lambda script, k: None), ended="exception")
    assert (found["kind"], found["because"]) == (
        "unknown",
        "The script failed before its first training step.",
    )
    assert "voirfile" not in found["next"]
    assert "voirfile" in said(run(lambda script, k: None), ended="normal")["next"]


def collectives(late=None, exposed=0.0):
    """``collectives`` of a summary: who is late, and the share of backward that waits at its end."""
    return {
        "late": late, "waited": {"time_s": 0.0, "share": 0.0}, "ranks": [{}, {}],
        "in_backward": {"time_s": 0.05, "share": 0.5, "of_backward": exposed},
        "groups": [{"group": "0"}],
    }  # fmt: skip


def test_what_backward_waits_for_at_its_end_is_communication_to_the_verdict():
    rank = planted(wait=5, forward=20, backward=70, optimizer=5)
    found, advice = concluded(rank, collectives=collectives(exposed=0.8))
    assert (found["kind"], found["evidence"]["share"]) == (
        "communication-bound",
        pytest.approx(0.56, abs=0.01),
    )
    assert "backward waits at its end" in found["because"]
    assert "no_sync" in advice[0]["do"]


def test_computing_is_what_is_left_of_backward_without_that_wait():
    found, _ = concluded(
        planted(forward=40, backward=50, optimizer=10), collectives=collectives(exposed=0.2)
    )
    assert found["kind"] == "compute-bound"
    assert "backward 40%" in found["because"]


LATE = {
    "rank": 1,
    "host": "b",
    "share": 0.4,
    "time_s": 0.04,
    "steps": 0.9,
    "phase": "wait",
    "of_it": 1.0,
    "collective": "all_reduce",
}


def test_what_a_late_rank_does_is_what_was_recorded_of_that_rank_alone():
    def flame(line):
        return {"flame": {"phases": {"wait": {"lines": {line: 0.7}}}}}

    made = {
        **figures([planted(forward=40, backward=50)]),
        "collectives": collectives(LATE),
        **flame("all.py:1"),
    }
    found, _ = conclusions(made, FACTS, lambda rank: {**made, **flame(f"of_{rank}.py:7")})
    assert found["kind"] == "straggler"
    assert "in waiting for input (70% of it in of_1.py:7); the others wait" in found["because"]


def compiled_again(total_s):
    return {
        "recompilations": [
            {
                "function": "forward",
                "place": "/x/net.py:12",
                "reason": "self.calls == 0",
                "n": 7,
                "total_s": total_s,
            }
        ]
    }


def test_what_is_compiled_again_is_named_with_its_guard_and_what_it_took():
    _, advice = concluded(planted(forward=100), wall=wall(10.0), compilations=compiled_again(4.0))
    assert advice[0]["do"].startswith(
        "Keep forward (net.py:12) from being compiled again: self.calls == 0 no longer held."
    )
    assert advice[0]["because"] == "torch.compile compiled it again 7 times"
    assert advice[0]["win"] is None, "on its example it saved 1.5 times as much as was recorded"


def hang(seconds):
    return {
        "hangs": [
            {
                "since_time_ns": 0,
                "until_time_ns": int(seconds * 1e9),
                "lasted_s": seconds,
                "until_end": False,
                "until_restart": False,
                "sentence": "rank 0 waits in barrier 4",
            }
        ]
    }


def test_a_run_that_hung_for_most_of_its_time_is_hung_whatever_its_steps_do():
    found, advice = concluded(planted(forward=100), wall=wall(70.0, between=60.0), hangs=hang(60.0))
    assert found["kind"] == "hung"
    assert "rank 0 waits in barrier 4" in found["evidence"]["what"]
    assert [one["do"] for one in advice] == [found["next"]]


def test_a_short_hang_turns_no_verdict():
    assert (
        concluded(planted(steps=400, forward=10_000), wall=wall(70.0), hangs=hang(0.1))[0]["kind"]
        != "hung"
    )
