"""Steps and their phases from the spans of scripts of every shape."""

import numpy as np
import pytest

from voirkit.analysis.nesting import NONE
from voirkit.analysis.phases import (
    leading_optimizers_ns,
    whole_checkpoints,
    whole_imports,
)
from voirkit.analysis.script_facts import in_training_mode
from voirkit.analysis.segmentation import Kind
from voirkit.analysis.steps import (
    ALL_COUNTED,
    CHECKPOINT,
    COMPILE,
    FORWARD,
    GC,
    IMPORT,
    OPTIMIZER,
    ZERO_GRAD,
    Uncounted,
    steps_of,
)
from voirkit.phase_table import PHASES

from .simulated import Script


def found(script):
    return steps_of(script.timeline())


def phases(table):
    return {p: int(table.phase_ns(p).sum()) for p in PHASES}


def test_an_import_that_trains_is_one_until_it_does():
    start = np.array([0, 10, 100, 200])
    meaning = np.array([IMPORT, GC, FORWARD, GC])
    duration, kept = whole_imports(start, np.array([1000, 5, 50, 5]), meaning)
    assert duration.tolist() == [100, 5, 50, 5]
    assert kept.tolist() == [True, False, True, True]


def test_garbage_that_is_collected_in_a_compilation_is_part_of_it_and_an_import_in_it_is_not():
    start = np.array([0, 10, 20, 200])
    meaning = np.array([COMPILE, IMPORT, GC, GC])
    duration, kept = whole_imports(start, np.array([100, 30, 5, 5]), meaning)
    assert duration.tolist() == [100, 30, 5, 5]
    assert kept.tolist() == [True, True, False, True]


def joined(*spans):
    """Durations, in ms, of spans (start, duration, meaning) once the pieces of checkpoints are joined; checkpoints are written."""
    start, duration, meaning = (np.array(column) for column in zip(*spans, strict=True))
    return (
        whole_checkpoints(start * 1_000_000, duration * 1_000_000, meaning, meaning == CHECKPOINT)
        // 1_000_000
    ).tolist()


def test_what_lies_between_two_pieces_of_a_checkpoint_is_the_checkpoints():
    assert joined(
        (0, 5, OPTIMIZER), (10, 20, CHECKPOINT), (100, 20, CHECKPOINT), (200, 5, CHECKPOINT)
    ) == [5, 90, 100, 5]
    assert joined((0, 5, OPTIMIZER), (10, 20, CHECKPOINT), (50, 3, GC), (100, 20, CHECKPOINT)) == [
        5,
        90,
        3,
        20,
    ]


def test_what_lies_between_checkpoints_with_other_work_between_them_or_far_apart_is_not():
    assert joined(
        (0, 5, OPTIMIZER), (10, 20, CHECKPOINT), (50, 3, FORWARD), (100, 20, CHECKPOINT)
    ) == [5, 20, 3, 20]
    assert joined((0, 5, OPTIMIZER), (10, 20, CHECKPOINT), (9000, 20, CHECKPOINT)) == [5, 20, 20]


def test_files_that_are_saved_before_anything_is_trained_are_no_pieces_of_one():
    assert joined((10, 20, CHECKPOINT), (100, 20, CHECKPOINT), (200, 5, OPTIMIZER)) == [20, 20, 5]


def test_a_piece_in_a_span_that_ends_before_the_next_is_not_made_longer():
    assert joined(
        (0, 1, OPTIMIZER), (5, 50, ZERO_GRAD), (10, 20, CHECKPOINT), (100, 20, CHECKPOINT)
    ) == [1, 50, 20, 20]


@pytest.fixture
def script():
    return Script()


def test_a_step_runs_from_one_request_to_the_next(script):
    for _ in script.iterate(3):
        script.train_on()
        script.idle(40)
    steps = found(script).train
    assert steps.time_ns.tolist() == [400, 400, 400]
    assert steps.items.tolist() == [4, 4, 4]
    assert phases(steps) == {
        "wait": 30,
        "transfer": 0,
        "forward": 300,
        "backward": 600,
        "optimizer": 150,
        "communication": 0,
        "other": 120,
    }


def test_making_the_iterator_belongs_to_the_first_request(script):
    for _ in script.iterate(2, make=1000):
        script.train_on()
    steps = found(script).train
    assert steps.time_ns.tolist() == [1360, 360]
    assert steps.phase_ns("wait").tolist() == [1010, 10]


def test_the_request_that_finds_nothing_is_no_step_and_in_none(script):
    for _epoch in range(2):
        for _ in script.iterate(2, wait=10):
            script.train_on()
        script.idle(500)
    assert found(script).train.time_ns.tolist() == [360, 360, 360, 360]


def test_a_step_that_is_never_closed_does_not_count(script):
    loop = script.iterate(3)  # held, as by the traceback of a run that was killed in its loop
    for k in loop:
        if k == 2:
            break
        script.train_on()
    assert len(found(script).train) == 2


def test_a_loop_that_is_left_closes_its_step_where_it_is_left(script):
    for k in script.iterate(10):
        script.train_on()
        if k == 1:
            break
    script.idle(1000)
    assert found(script).train.time_ns.tolist() == [360, 360]


def test_each_step_holds_the_items_of_its_own_batch(script):
    for _ in script.iterate(3, items=[4, 4, 1]):
        script.train_on()
    assert found(script).train.items.tolist() == [4, 4, 1]


def test_items_that_are_not_known_are_minus_one(script):
    for _ in script.iterate(1, items=None):
        script.train_on()
    assert found(script).train.items.tolist() == [-1]


def test_gradient_accumulation_is_a_step_a_batch(script):
    for k in script.iterate(4):
        script.forward()
        script.backward()
        if k % 2:
            script.step()
    assert len(found(script).train) == 4


def test_a_closure_of_the_optimizer_is_forward_and_backward(script):
    for _ in script.iterate(1):
        with script.phase(OPTIMIZER):
            script.idle(5)
            script.forward(100)
            script.backward(200)
            script.idle(7)
    got = phases(found(script).train)
    assert (got["forward"], got["backward"], got["optimizer"]) == (100, 200, 12)


def test_closures_after_a_loop_over_a_loader_are_steps_of_their_own(script):
    for _ in script.iterate(3):
        script.train_on()
    for _ in range(4):
        with script.phase(OPTIMIZER):
            for _ in range(3):
                script.forward()
                script.backward()
    assert len(found(script).train) == 3 + 4


def test_deep_nesting_counts_each_instant_once(script):
    for _ in script.iterate(1):
        with script.phase(OPTIMIZER):
            script.idle(1)
            for _ in range(2):
                with script.phase(FORWARD):
                    script.idle(10)
                    script.do("device", "transfer", 3)
                    script.idle(10)
            script.backward(30)
    steps = found(script).train
    got = phases(steps)
    assert (got["forward"], got["transfer"], got["backward"], got["optimizer"]) == (40, 6, 30, 1)
    assert steps.own_ns.sum() == steps.time_ns.sum()


def test_parts_of_other_are_told_apart(script):
    for _ in script.iterate(1):
        script.do("compute", "zero_grad", 5)
        script.train_on()
        script.do("checkpoint", "capture", 70)
        script.idle(9)
    steps = found(script).train
    assert phases(steps)["other"] == 84
    assert (steps.own_ns[0, ZERO_GRAD], steps.own_ns[0, CHECKPOINT]) == (5, 70)


def test_evaluation_is_kept_apart(script):
    for _epoch in range(2):
        for _ in script.iterate(3):
            script.train_on()
        for _ in script.iterate(2, loader=1):
            script.forward(70)
    steps = found(script)
    assert len(steps.train) == 6
    assert steps.evaluation.time_ns.tolist() == [80] * 4


def test_an_evaluation_inside_a_step_is_none_of_its_time(script):
    for k in script.iterate(4):
        script.train_on()
        if k == 1:
            for _ in script.iterate(5, loader=1, wait=1000):
                script.forward()
    steps = found(script)
    assert steps.train.time_ns.tolist() == [360, 360, 360, 360]
    assert len(steps.evaluation) == 5


def test_a_loop_that_calls_no_model_is_neither(script):
    for _ in script.iterate(3):
        script.idle(10)
    for _ in script.iterate(2):
        script.train_on()
    steps = found(script)
    assert (len(steps.train), len(steps.evaluation)) == (2, 0)


@pytest.mark.parametrize("batches", [1, 2, 5])
def test_zip_of_two_loaders_is_one_step_a_turn(script, batches):
    first, second = script.iterate(batches, wait=10), script.iterate(batches, loader=1, wait=20)
    for _ in zip(first, second, strict=False):
        script.train_on()
    del first, second
    steps = found(script).train
    assert steps.time_ns.tolist() == [380] * batches
    assert steps.phase_ns("wait").tolist() == [30] * batches


def test_a_second_loader_that_is_asked_now_and_then_is_waited_for(script):
    other = script.iterate(2, loader=1, wait=500)
    for k in script.iterate(4):
        if k % 2:
            next(other)
        script.train_on()
    assert found(script).train.phase_ns("wait").tolist() == [10, 510, 10, 510]


def test_training_loops_inside_a_turn_of_another_loader_are_steps(script):
    for _ in script.iterate(2, loader=0):
        for _ in script.iterate(3, loader=1):
            script.train_on()
    steps = found(script).train
    assert steps.time_ns.tolist() == [360] * 6


def test_several_epochs_over_several_loaders(script):
    for loader in (0, 1, 2):
        for _ in script.iterate(2, loader=loader):
            script.train_on()
    assert len(found(script).train) == 6


def test_persistent_workers_do_not_say_that_a_loop_was_left(script):
    for _epoch in range(3):
        for k in script.iterate(10):
            script.train_on()
            if k == 1:
                break
        script.requests.pop()
        script.idle(15)
    steps = found(script).train
    assert len(steps) == 5  # the last was never closed
    assert steps.time_ns.tolist() == [360, 375, 360, 375, 360]


def test_a_loader_that_reads_a_batch_ahead(script):
    # what accelerate does: the next batch is requested before the present one is worked on
    loop = script.iterate(4, items=[4, 4, 4, 1])
    next(loop)
    for _ in range(3):
        next(loop)
        script.train_on()
    assert next(loop, None) is None
    script.train_on()
    script.idle(1000)
    steps = found(script).train
    assert steps.time_ns.tolist() == [370, 360, 360, 360]
    assert steps.items.tolist() == [4, 4, 4, 1]


def test_without_a_loader_a_step_runs_from_one_optimizer_step_to_the_next(script):
    script.idle(5000)
    for _ in range(3):
        script.train_on()
        script.idle(20)
    steps = found(script)
    assert steps.train.time_ns.tolist() == [350, 370, 370]
    assert not steps.wait_known
    assert steps.train.items.tolist() == [-1, -1, -1]


def test_two_optimizers_without_a_loader_are_one_step_a_turn(script):
    for _ in range(3):
        for optimizer in (0, 1):
            script.forward()
            script.backward()
            script.step(optimizer=optimizer)
    assert found(script).train.time_ns.tolist() == [
        700,
        700,
        700,
    ]  # the last step of the second is in the last


def test_copies_in_a_row_include_giving_back_their_memory(script):
    for _ in script.iterate(1):
        for _ in range(3):
            script.do("device", "transfer", 1_000_000)
            script.idle(40_000)
        script.idle(500_000)
        script.do("device", "transfer", 1_000_000)
        script.train_on()
    got = phases(found(script).train)
    assert (got["transfer"], got["other"]) == (4_080_000, 540_000)


def test_nothing_at_all(script):
    steps = found(script)
    assert (len(steps.train), len(steps.evaluation)) == (0, 0)


def test_a_million_spans_take_seconds_at_most(script):
    for _ in range(1000):
        for _ in script.iterate(20):
            script.train_on()
    steps = found(script).train
    assert len(steps) == 20_000
    assert np.array_equal(steps.own_ns.sum(axis=1), steps.time_ns)


def test_checkpoints_after_a_loops_last_batch_are_in_no_step_and_kept_apart(script):
    script.do("checkpoint", "restart", 5000)  # before anything is trained
    for epoch in range(2):
        for k in script.iterate(2):
            script.train_on()
            if k == epoch == 0:
                script.do("checkpoint", "capture", 30)
        script.do("checkpoint", "capture", 700)
    steps = found(script)
    assert steps.train.own_ns[:, CHECKPOINT].tolist() == [30, 0, 0, 0]
    assert steps.saving_between_ns == 1400


def test_evaluation_that_the_script_annotates_is_in_no_step_whatever_its_mode(script):
    for _ in range(3):
        script.train_on()
        with script.annotation():
            script.idle(30)
            script.forward(70)
            script.idle(20)
    steps = found(script)
    assert steps.train.time_ns.tolist() == [350, 350, 350]
    assert steps.evaluation.time_ns.tolist() == [120, 120, 120]


def test_an_annotated_evaluation_of_a_function_that_is_differentiated_has_its_backward_passes(
    script,
):
    for _ in range(2):
        script.train_on()
        with script.annotation():
            for _ in range(3):
                script.idle(30)
                script.backward(20)
    steps = found(script)
    assert (len(steps.train), len(steps.evaluation)) == (2, 6)
    assert steps.evaluation.time_ns.sum() == 2 * 3 * 50


def test_what_is_trained_in_an_annotation_of_evaluation_is_training(script):
    with script.annotation():
        for _ in script.iterate(2):
            script.train_on()
    steps = found(script)
    assert (len(steps.train), len(steps.evaluation)) == (2, 0)


def test_only_what_is_called_in_evaluation_mode_evaluates_between_its_switches(script):
    for _ in script.iterate(3):
        script.switch(False)
        script.idle(5)
        script.forward(40, training=False, grad=False)
        script.switch(True)
        script.train_on()
    steps = found(script)
    assert steps.train.time_ns.tolist() == [360] * 3
    assert steps.evaluation.time_ns.tolist() == [45] * 3


def test_a_checkpoint_that_is_written_before_training_goes_on_ends_an_evaluation(script):
    for _ in range(2):
        script.train_on()
        script.switch(False)
        script.forward(40, training=False, grad=False)
        script.idle(3)
        script.do("checkpoint", "capture", 900)
        script.switch(True)
    steps = found(script)
    assert steps.evaluation.time_ns.tolist() == [43, 43]
    assert steps.train.time_ns.tolist() == [350, 1250]


def test_several_optimizers_in_turn_are_one_step_a_turn_and_a_stage_of_its_own_is_not(script):
    for optimizer in (0, 1, 0, 1, 2, 2, 2):
        script.forward()
        script.backward()
        script.step(optimizer=optimizer)
    assert found(script).train.time_ns.tolist() == [700, 700, 350, 350, 350]


def test_a_window_that_begins_in_a_loop_has_no_steps_before_its_first_request(script):
    for _ in script.iterate(4):
        script.train_on()
    script.requests = script.requests[3:]  # the iterator's making, and two batches, are not known
    assert len(found(script).train) == 2


def test_a_rollout_between_steps_is_inference_and_an_evaluation_in_evaluation_mode_is_none(script):
    for _ in range(3):
        for _ in range(4):
            script.forward(20, grad=False)
            script.idle(5)
        script.do("compute", "zero_grad", 5)
        script.train_on()
    script.switch(False)
    script.forward(70, training=False, grad=False)
    script.switch(True)
    script.train_on()
    steps = found(script)
    assert steps.evaluation.time_ns.sum() == 3 * 95 + 70
    assert in_training_mode(script.timeline(), steps.evaluation) == pytest.approx(
        3 * 95 / (3 * 95 + 70)
    )


def test_a_loop_over_a_loader_that_trains_nothing_is_no_inference_though_nobody_calls_eval(script):
    for _ in script.iterate(2):
        script.train_on()
    for _ in script.iterate(2):
        script.forward(grad=False)
    assert in_training_mode(script.timeline(), found(script).evaluation) == 0


def test_a_second_training_updates_with_an_optimizer_of_its_own(script):
    for optimizer in (1, 2):
        for _ in range(5):
            script.forward()
            script.backward()
            script.step(optimizer=optimizer)
    assert len(leading_optimizers_ns(script.timeline())) == 10


def test_of_two_optimizers_that_take_turns_the_first_updates(script):
    for _ in range(5):
        for optimizer in (1, 2):
            script.backward()
            script.step(optimizer=optimizer)
    assert len(leading_optimizers_ns(script.timeline())) == 5


def draw(script, loader=0, wait=10):
    """What ``next(iter(loader))`` does."""
    script.ask(loader, Kind.ITER, Kind.FETCH, Kind.RELEASED, wait=wait)


def test_batches_that_are_drawn_between_loops_over_another_loader_are_none_of_a_loop(script):
    for _ in range(2):
        draw(script)
        for _ in script.iterate(3, loader=1):
            script.train_on()
    draw(script)
    script.train_on()
    steps = found(script).train
    assert (len(steps), steps.time_ns.max()) == (7, 360)


def test_a_batch_that_is_drawn_for_each_step_begins_it(script):
    for _ in range(3):
        draw(script)
        script.train_on()
        script.idle(40)
    steps = found(script).train
    assert steps.time_ns.tolist() == [400, 400, 400]
    assert steps.items.tolist() == [4, 4, 4]


def test_a_backward_pass_whose_step_was_not_done_is_counted_apart(script):
    for _ in script.iterate(2):
        script.train_on()
    script.forward()
    begun_ns = script.now
    script.backward()
    assert found(script).uncounted == Uncounted(0, 1, begun_ns)


@pytest.mark.parametrize("evaluates", [True, False])
def test_the_step_in_which_a_run_was_killed_is_not_counted_apart(script, evaluates):
    loops = [script.iterate(3)]  # held, as a killed process holds them
    for k in loops[0]:
        script.train_on()
        if k == 1:
            break
    if evaluates:
        loops.append(script.iterate(3, loader=1))
        next(loops[1])
        script.forward(grad=False)
    steps = found(script)
    assert (len(steps.train), steps.uncounted) == (1, ALL_COUNTED)


def test_an_optimizer_that_steps_twice_for_each_of_several_steps_of_another_is_a_part_of_them(
    script,
):
    for _ in range(6):
        for optimizer in (0, 0, 0, 1, 1):
            script.backward()
            script.step(optimizer=optimizer)
    assert len(found(script).train) == 18


def test_an_instant_belongs_to_the_step_around_it_by_the_clock_but_for_what_lies_in_an_evaluation_within_it(
    script,
):
    marks = [script.now]
    for _ in script.iterate(2):
        marks.append(script.now)
        script.idle(5)
        for _ in script.iterate(1, loader=1):
            marks.append(script.now)
            script.forward(grad=False, training=False)
        script.idle(1000)
        script.train_on()
        marks.append(script.now - 1)
    script.idle(100)
    steps = found(script)
    instants = np.array([0, *marks, script.now])
    assert steps.training_steps_at(instants).tolist() == [NONE, 0, 0, NONE, 0, 1, NONE, 1, NONE]
    assert steps.steps_at(instants)[1].tolist() == [NONE, NONE, NONE, 0, NONE, NONE, 1, NONE, NONE]
    assert steps.training_steps_at(np.zeros(0, np.int64)).tolist() == []
    assert found(Script()).training_steps_at(instants).tolist() == [NONE] * len(instants)


def test_a_step_ends_where_the_next_begins_also_with_a_loop_within_it(script):
    for k in script.iterate(3):
        script.train_on()
        if k == 1:
            for _ in script.iterate(4, loader=1):
                script.forward(grad=False, training=False)
    train = found(script).train
    assert train.end_ns[:-1].tolist() == train.start_ns[1:].tolist()
    assert (train.loops_ns > 0).tolist() == [False, True, False]
