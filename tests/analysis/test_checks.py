"""Each detector of ``--checks`` finds its bug in what was recorded, with step and line, and not in what looks like it and is healthy."""

from __future__ import annotations

from typing import Any

import pytest

from voirkit_instruments.checks.analyse import DETECTORS
from voirkit_instruments.checks.analyse_facts import Fact, Facts

from .facts_of_checks import Told


def found(said: dict[str, Any], step: int, where: str) -> None:
    assert (said["found"], said["step"], said["where"]) == (True, step, where), said
    assert said["because"]
    assert said["next"]
    assert said["evidence"]


def cleared(*was: bool) -> Told:
    told = Told()
    for n, clear in enumerate(was, 1):
        told.backward().step(n)
        if n > 1:
            told.add("cleared" if clear else "uncleared", n, "main.py:12", optimizer=0)
    return told


def test_gradients_that_are_never_cleared() -> None:
    found(cleared(False, False, False, False).says("missing-zero-grad"), 1, "main.py:12")


@pytest.mark.parametrize("looks", [1, 2])
def test_what_was_seen_at_less_than_three_looks_is_not_found(looks: int) -> None:
    said = cleared(*[False] * (looks + 1)).says("missing-zero-grad")
    assert said["found"] is None
    assert f"{looks} look" in said["because"]


def test_gradients_that_are_cleared_once_an_epoch() -> None:
    found(cleared(False, False, False, True, False).says("missing-zero-grad"), 1, "main.py:12")


def test_gradients_that_are_cleared_in_the_first_epoch_alone() -> None:
    found(
        cleared(False, True, True, True, False, False, True, False).says("missing-zero-grad"),
        4,
        "main.py:12",
    )
    assert cleared(False, True, True, True, False, True).says("missing-zero-grad")["found"] is False


def test_gradients_that_are_cleared() -> None:
    assert cleared(True, True, True).says("missing-zero-grad")["found"] is False
    assert Told().backward().step(1).says("missing-zero-grad")["found"] is None


def test_gradients_that_are_cleared_before_the_step() -> None:
    told = Told()
    for n in (1, 2, 3):
        told.backward().zero_grad("main.py:8").step(n, graded=0)
    found(told.says("misplaced-zero-grad"), 0, "main.py:8")


def test_what_the_second_of_two_optimizers_does_is_of_the_step_of_the_first() -> None:
    told = Told()
    for n in (1, 2, 3):
        told.backward().step(n).zero_grad("main.py:8", optimizer=1).step(
            n, "main.py:14", optimizer=1, graded=0, still=True
        )
    found(told.says("misplaced-zero-grad"), 0, "main.py:8")
    found(told.says("learning-rate-zero"), 0, "main.py:14")


def test_gradients_that_are_cleared_before_backward_after_the_step_or_of_another_model() -> None:
    told = Told()
    for n in (1, 2, 3):  # a GAN: the second optimizer clears its own after the first's backward
        told.zero_grad(optimizer=0).backward().step(n).zero_grad(optimizer=1).backward().step(
            n, optimizer=1
        )
    assert told.says("misplaced-zero-grad")["found"] is False


def test_an_optimizer_that_holds_frozen_parameters_alone() -> None:
    told = (
        Told()
        .step(1, trainable=0, graded=0)
        .step(2, trainable=0, graded=0)
        .step(3, trainable=0, graded=0)
    )
    found(told.says("frozen-parameters"), 0, "main.py:12")


def test_an_optimizer_that_holds_frozen_parameters_beside_others_or_thaws_them() -> None:
    assert Told().step(1, trainable=2, graded=2).says("frozen-parameters")["found"] is False
    assert (
        Told()
        .step(1, trainable=0, graded=0)
        .step(2, trainable=2, graded=2)
        .says("frozen-parameters")["found"]
        is False
    )


def test_an_optimizer_that_holds_another_model() -> None:
    told = Told().reach(held=0, parameters=4)
    for n in (1, 2, 3):
        told.step(n, graded=0).unheld(4, partly=False)
    found(told.says("foreign-parameters"), 0, "main.py:12")


def test_an_optimizer_that_holds_a_head_that_was_replaced() -> None:
    told = Told().reach(held=2, parameters=2)
    for n in (1, 2, 3):
        told.step(n, graded=2).unheld(2, after=2).without(n, 2, of_models=0)
    found(told.says("foreign-parameters"), 0, "main.py:12")
    assert told.says("never-updated")["found"] is None  # the same bug, told once


def test_a_copy_that_is_updated_by_hand_and_a_model_that_is_part_of_the_loss() -> None:
    by_hand = (
        Told()
        .reach(held=0, parameters=4)
        .step(1, graded=0)
        .unheld(4)
        .step(2, graded=0)
        .unheld(0, changed=4)
    )
    assert by_hand.says("foreign-parameters")["found"] is False
    assert by_hand.says("never-updated")["found"] is False
    loss = (
        Told()
        .reach(held=4, parameters=6)
        .step(1)
        .unheld(6, partly=False, after=6)
        .step(2)
        .unheld(6, partly=False, after=6)
    )
    assert loss.says("never-updated")["found"] is None


def test_parameters_after_those_that_are_trained_which_no_optimizer_holds() -> None:
    told = Told().reach(held=2, parameters=2)
    for n in (1, 2, 3):
        told.step(n).unheld(2, after=2)
    found(told.says("never-updated"), 0, "main.py:12")


def test_layers_in_a_plain_list() -> None:
    told = Told().reach(held=2, parameters=2)
    for n in (1, 2, 3):
        told.step(n).unheld(2, unnamed=2, partly=False)
    found(told.says("never-updated"), 0, "main.py:12")


def test_a_head_that_is_trained_alone_can_be_meant() -> None:
    told = Told().reach(held=2, parameters=4).step(1).unheld(4).step(2).unheld(4)
    assert told.says("never-updated")["found"] is None


def test_layers_that_are_cut_off_from_the_loss() -> None:
    told = Told()
    for n in (1, 2, 3):
        told.step(n, graded=2).without(n, 2, called=2, before=2)
    found(told.says("no-gradient"), 0, "main.py:12")


def test_heads_that_are_not_used_or_whose_output_is_not_and_copies_that_follow() -> None:
    unused = Told().step(1, graded=2).without(1, 2).step(2, graded=2).without(2, 2)
    output = (
        Told().step(1, graded=2).without(1, 2, called=2).step(2, graded=2).without(2, 2, called=2)
    )
    follows = (
        Told()
        .step(1, graded=2)
        .without(1, 2, called=2, before=2)
        .step(2, graded=2)
        .without(2, 0, changed=2)
    )
    sometimes = Told().step(1, graded=2).without(1, 2, called=2, before=2).step(2, graded=4)
    assert [told.says("no-gradient")["found"] for told in (unused, output, follows, sometimes)] == [
        None,
        None,
        False,
        False,
    ]


def trained(*modes: bool, frozen: int = 0, fresh: int = 0, **layers: int) -> Told:
    told = Told().layers(training=True).layers(training=False, frozen=frozen, fresh=fresh, **layers)
    for n, training in enumerate(modes, 1):
        told.call(
            training=training, where="main.py:10" if training else "main.py:20"
        ).backward().step(n).trained()
    return told


def test_a_model_that_is_left_in_eval_mode() -> None:
    found(
        trained(True, True, False, False, False, dropout_off=1).says("eval-while-training"),
        2,
        "main.py:20",
    )
    found(
        trained(True, True, False, False, False, norm_off=1).says("eval-while-training"),
        2,
        "main.py:20",
    )


def test_a_model_that_is_never_put_into_train_mode() -> None:
    found(trained(False, False, False, dropout_off=2).says("eval-while-training"), 0, "main.py:20")
    found(
        trained(False, False, False, norm_off=2, fresh=2).says("eval-while-training"),
        0,
        "main.py:20",
    )


def test_eval_mode_on_purpose() -> None:
    says = "eval-while-training"
    assert (
        trained(False, False, False).says(says)["found"] is False
    )  # no layer for which it matters
    assert (
        trained(False, False, False, norm_off=2).says(says)["found"] is None
    )  # what was loaded stays
    assert trained(False, False, False, dropout_off=1, frozen=3).says(says)["found"] is None
    assert trained(False, True, False, True, False, dropout_off=1).says(says)["found"] is False
    for optimizer, said in (
        (0, True),
        (1, None),
    ):  # the one that trained the whole, or one of a head alone
        told = trained(True, True, dropout_off=1)
        for n in (1, 2, 3):
            told.call(training=False).backward().step(n, optimizer=optimizer)
        told.add("trained", 0, "main.py:12", optimizer=1, graded=2, of=4)
        assert told.says(says)["found"] is said
    taught = trained(
        True, True, dropout_off=1
    )  # it is a student's teacher then, called with gradients on
    for n in (1, 2, 3):
        taught.call(training=False).call(model=1).backward().step(n, optimizer=1).add(
            "trained", 1, "main.py:12", optimizer=1, graded=4, of=4
        )
    assert taught.says(says)["found"] is False
    attacked = Told().layers(training=False, dropout_off=1).layers(training=True)
    for n in range(1, 5):  # an attack in eval mode, then the step in train mode
        attacked.call(training=False).backward().call(training=True).backward().step(n).trained()
    assert attacked.says(says)["found"] is False


def test_a_model_that_is_evaluated_in_train_mode_and_statistics_brought_up_to_date() -> None:
    says = "train-while-evaluating"
    told = trained(True, True, True, norm_off=1).layers(grad=False, norm_on=1)
    at = len(told.facts)
    told.call(grad=False, where="main.py:30").call(grad=False, where="main.py:30")
    found(told.says(says, (at, at + 1)), 3, "main.py:30")
    told.call(training=False, grad=False, where="main.py:40")  # not in a loop over a loader
    assert told.says(says, (at, at + 1))["found"] is None


def switched(*off: tuple[int, bool]) -> Told:
    """A model in train mode whose backbone is in eval mode in so many of its layers, with gradients on and off."""
    told = Told()
    for n, (dropout_off, grad) in enumerate(off, 1):
        told.layers(grad=grad, dropout_off=dropout_off, dropout_on=2 - dropout_off)
        told.call(grad=grad, where="main.py:10" if grad else "main.py:30")
        if grad:
            told.backward().step(n).trained()
    return told


def test_a_part_that_an_evaluation_leaves_in_eval_mode() -> None:
    said = switched((0, True), (0, True), (2, False), (2, True), (2, True), (2, True)).says(
        "eval-while-training"
    )
    found(said, 2, "main.py:10")
    assert said["evidence"]["steps_in_eval"] == 3


def test_parts_that_go_back_are_not_left_nor_those_that_are_frozen_without_an_evaluation() -> None:
    says = "eval-while-training"
    assert (
        switched((0, True), (2, False), (0, True), (2, False), (0, True), (0, True)).says(says)[
            "found"
        ]
        is False
    )
    assert (
        switched((0, True), (0, True), (2, True), (2, True), (2, True)).says(says)["found"] is False
    )


def test_a_model_is_evaluated_in_eval_mode_if_all_of_its_parts_are() -> None:
    says = "train-while-evaluating"
    told = switched((0, True), (0, True), (0, True), (2, False), (0, True))
    evaluated = next(
        at for at, fact in enumerate(told.facts) if fact.args.get("where") == "main.py:30"
    )
    assert told.says(says, (evaluated, evaluated))["found"] is False
    told = switched((0, True), (0, True), (0, True), (1, False), (0, True))
    assert told.says(says, (evaluated, evaluated))["found"] is None


def test_a_loss_that_is_connected_to_nothing() -> None:
    told = (
        Told().reach(held=0, leaf_root=True).step(1, graded=0).step(2, graded=0).step(3, graded=0)
    )
    found(told.says("loss-not-connected"), 0, "main.py:11")


def test_a_loss_that_is_a_constant_now_and_then_and_an_attack_without_training() -> None:
    now_and_then = Told().reach(held=0, leaf_root=True).step(1, graded=0).reach().step(2)
    assert now_and_then.says("loss-not-connected")["found"] is False
    assert Told().reach(held=0, leaf_root=False).says("loss-not-connected")["found"] is None


@pytest.mark.parametrize(
    ("loss", "given", "is_found"),
    [
        ("cross_entropy", "softmax", True),
        ("nll_loss", "softmax", True),
        ("binary_cross_entropy_with_logits", "sigmoid", True),
        ("cross_entropy", "log_softmax", False),
        ("nll_loss", "log_softmax", False),
        ("cross_entropy", "evaluated", False),
    ],
)
def test_what_goes_into_a_loss(loss: str, given: str, is_found: bool) -> None:
    said = (
        Told()
        .backward()
        .backward()
        .backward()
        .add("loss_call", 3, kind=loss)
        .add("loss_input", 0, "main.py:5", loss=loss, input=given)
        .says("softmax-before-cross-entropy")
    )
    assert said["found"] is is_found
    assert said["where"] == ("main.py:5" if is_found else None)


def steps(*still: bool, scheduled: int = 0) -> Told:
    told = Told()
    for n, zero in enumerate(still, 1):
        told.step(n, still=zero)
        if n <= scheduled:
            told.add("scheduler", 0, "main.py:13", optimizer=0, scheduler="LambdaLR")
    return told


def test_a_learning_rate_of_nought() -> None:
    found(steps(*[True] * 5).says("learning-rate-zero"), 0, "main.py:12")
    found(steps(*[True] * 9, scheduled=9).says("learning-rate-zero"), 0, "main.py:12")
    found(steps(*[False] * 10, *[True] * 30).says("learning-rate-zero"), 10, "main.py:12")


def test_a_warm_up_from_nought_and_a_schedule_that_ends_there() -> None:
    assert steps(True, True, False, False, scheduled=4).says("learning-rate-zero")["found"] is False
    assert (
        steps(*[True] * 8, scheduled=1).says("learning-rate-zero")["found"] is None
    )  # the first of ten epochs, and killed
    assert (
        steps(*[False] * 40, *[True] * 3, scheduled=43).says("learning-rate-zero")["found"] is False
    )


def scheduler(told: Told, where: str = "main.py:8", value: int = 0) -> Told:
    return told.add("scheduler", value, where, optimizer=0, scheduler="StepLR")


def test_a_scheduler_before_the_optimizer() -> None:
    told = scheduler(scheduler(scheduler(Told()).step(1)).step(2)).step(3)
    found(told.says("scheduler-before-optimizer"), 0, "main.py:8")


def test_a_scheduler_after_it_or_brought_to_where_a_run_goes_on_or_told_the_epoch() -> None:
    after = scheduler(scheduler(Told().step(1)).step(2))
    resumed = scheduler(scheduler(scheduler(Told(), "main.py:4"), "main.py:4").step(1))
    told = scheduler(scheduler(Told(), value=1).step(1), value=1).step(2)
    skipped = scheduler(scheduler(Told().add("scaler", 0, "main.py:12", optimizer=0)).step(1))
    assert [
        t.says("scheduler-before-optimizer")["found"] for t in (after, resumed, told, skipped)
    ] == [False] * 4


def bad(told: Told, what: str, before: bool = False) -> Told:
    return told.add("not_finite", 1, "main.py:12", what=what, n=1, before=before, names="fc.weight")


def test_a_loss_that_is_no_number_and_parameters_that_become_none() -> None:
    told = Told().step(1).step(2).add("loss_not_finite", 0, "main.py:11", loss="nan").step(3)
    found(bad(told, "parameter").says("not-finite"), 2, "main.py:11")


def test_a_gradient_that_is_no_number_is_named_at_the_step_that_used_it() -> None:
    told = Told().step(1).step(2)
    told = (
        bad(told, "parameter", before=True)
        .add("loss_not_finite", 0, "main.py:11", loss="nan")
        .step(3)
    )
    found(told.says("not-finite"), 1, "main.py:12")


def test_a_loss_or_gradient_that_is_no_number_and_does_no_harm() -> None:
    loss = Told().step(1).add("loss_not_finite", 0, "main.py:11", loss="inf").step(2)
    assert loss.says("not-finite")["found"] is None
    assert bad(Told().step(1), "gradient").says("not-finite")["found"] is None
    assert Told().step(1).says("not-finite")["found"] is False


def scaled(*stepped: int) -> Told:
    told = Told()
    for value in stepped:
        told.add("scaler", value, "main.py:12", optimizer=0)
        if value:
            told.step(1)
    return told


def test_steps_that_are_left_out_again_and_again() -> None:
    found(scaled(1, 0, 0, 0, 0, 0, 0, 0, 0, 0).says("skipped-steps"), 1, "main.py:12")


def test_steps_that_are_left_out_until_the_scale_fits() -> None:
    assert scaled(0, 0, 0, 0, 0, 0, *[1] * 14).says("skipped-steps")["found"] is False
    assert scaled(0, 1, 1).says("skipped-steps")["found"] is False


def test_nothing_can_be_told_of_a_run_in_which_nothing_was_seen() -> None:
    told = Told().add("on")
    said = [told.says(detector.name) for detector in DETECTORS]
    assert not [entry["name"] for entry in said if entry["found"]]
    assert all(entry["because"] for entry in said)


def compared(n: int, **shapes: str) -> Told:
    told = Told()
    for _ in range(n):
        told.add(
            "loss_shapes",
            1,
            "main.py:7",
            **{
                "loss": "mse_loss",
                "input": "(8, 1)",
                "target": "(8,)",
                "becomes": "(8, 8)",
                **shapes,
            },
        )
        told.backward().step(1)
    return told


def test_a_loss_that_compares_each_output_with_every_target() -> None:
    found(compared(3).says("loss-broadcast"), 0, "main.py:7")
    assert compared(2).says("loss-broadcast")["found"] is None
    assert (
        Told()
        .add("loss_call", 1, kind="mse_loss")
        .backward()
        .step(1)
        .says("loss-broadcast")["found"]
        is False
    )
    assert (
        Told()
        .add("loss_call", 1, kind="cross_entropy")
        .backward()
        .step(1)
        .says("loss-broadcast")["found"]
        is False
    )


@pytest.mark.parametrize("name", ["loss-broadcast", "softmax-before-cross-entropy"])
def test_a_loss_that_is_written_by_hand_cannot_be_told(name: str) -> None:
    assert Told().backward().step(1).says(name)["found"] is None


def scheduled(steps: int, each: int = 1, tiny_at: int | None = None, **more: Any) -> Told:
    told = Told()
    for n in range(1, steps + 1):
        told.step(n)
        if n == tiny_at:
            told.add("rate", n, "main.py:12", optimizer=0, tiny=True, rate=1e-9, peak=0.1)
        if n % each == 0:
            told.add("scheduler", 0, "main.py:13", optimizer=0, scheduler="StepLR", **more)
    return told


def test_a_scheduler_that_steps_with_each_batch_and_leaves_a_rate_of_next_to_nothing() -> None:
    found(scheduled(60, tiny_at=20).says("scheduler-too-often"), 1, "main.py:13")
    found(scheduled(60, period=5).says("scheduler-too-often"), 1, "main.py:13")


@pytest.mark.parametrize(
    "told",
    [
        scheduled(60),
        scheduled(60, tiny_at=55),
        scheduled(60, each=10, tiny_at=20),
        scheduled(60, period=60),
    ],
)
def test_a_scheduler_that_steps_by_epoch_or_comes_to_nothing_at_the_end_alone(told: Told) -> None:
    assert told.says("scheduler-too-often")["found"] is False


def graphs(*looks: tuple[int, int, int]) -> Told:
    told = Told().step(1).step(2).step(3)
    for n, nodes, kept in looks:
        told.add("graph", n, "main.py:11", nodes=nodes, kept=kept)
    return told


def test_graphs_that_are_kept_or_grow() -> None:
    found(
        graphs((1, 9, 0), (8, 9, 6), (16, 9, 14), (32, 9, 30)).says("graph-kept"), 3, "main.py:11"
    )
    found(
        graphs((1, 4, 0), (2, 10, 0), (4, 20, 0), (8, 40, 0), (16, 80, 0)).says("graph-kept"),
        3,
        "main.py:11",
    )


@pytest.mark.parametrize(
    "looks",
    [
        [(1, 9, 0), (2, 9, 0), (4, 9, 0), (8, 9, 0), (16, 9, 0)],
        [(8, 9, 6), (16, 9, 14), (32, 9, 2)],  # released in the end
        [
            (1, 4, 0),
            (2, 10, 0),
            (4, 12, 0),
            (8, 40, 0),
            (16, 41, 0),
        ],  # sequences of several lengths
    ],
)
def test_graphs_that_are_let_go_of_or_differ_in_size(looks: list[tuple[int, int, int]]) -> None:
    assert graphs(*looks).says("graph-kept")["found"] is False


@pytest.mark.parametrize(
    ("dead", "looks", "rows", "expected"),
    [
        (32, 3, 96, True),
        (26, 3, 96, None),
        (10, 3, 96, False),
        (32, 2, 96, None),
        (32, 3, 12, None),
    ],
)
def test_units_that_give_nothing_but_nought(
    dead: int, looks: int, rows: int, expected: bool | None
) -> None:
    told = Told().step(1).step(2).step(3).add("graph", 1, "main.py:11", nodes=3, kept=0)
    told.add(
        "units", looks, "main.py:11", layers=1, units=32, dead=dead, rows=rows, after="0.weight"
    )
    assert told.says("dead-units")["found"] is expected


def test_a_script_that_fails_before_it_trains_has_one_reason_for_all() -> None:
    said = [
        detector.examine(Facts([Fact("on", 1, 0, {})])) for detector in DETECTORS if detector.needs
    ]
    assert {one["because"] for one in said if one["found"] is None} == {
        "No training was seen: no backward pass, and no step of a torch optimizer."
    }


def test_each_answer_is_one_of_three_and_says_how_much_was_looked_at() -> None:
    told = cleared(True, True, True)
    healthy, alone = told.says("missing-zero-grad"), Told().add("on").says("missing-zero-grad")
    assert (
        healthy["answer"],
        healthy["looked_at"]["optimizer steps"],
        healthy["looked_at"]["parameters"],
    ) == ("not found", 3, 4)
    assert (alone["answer"], alone["looked_at"]["optimizer steps"]) == ("cannot tell", 0)
    assert cleared(False, False, False, False).says("missing-zero-grad")["answer"] == "found"


def test_rates_and_gradients_that_cannot_be_read_cannot_be_told() -> None:
    told = Told()
    for n in (1, 2, 3):
        told.backward().add("step", 2, "main.py:12", optimizer=0)
        told.add(
            "look",
            n,
            "main.py:12",
            optimizer=0,
            kind="Adam",
            held=4,
            trainable=4,
            graded=4,
            zero=0,
            unread=4,
            of_models=4,
        )
    assert told.says("learning-rate-zero")["found"] is None
    assert told.says("misplaced-zero-grad")["found"] is None
    assert told.says("not-finite")["found"] is None
