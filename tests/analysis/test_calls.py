"""The reader of recorded calls: where each happened, what it took, what it was given."""

from __future__ import annotations

from collections import Counter

import pytest
from called import Training, record

from voirkit.runs.opened import open_run
from voirkit_instruments.calls.analyse import calls, recorded


def read(path):
    with open_run(path) as run:
        return list(calls(run))


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    return read(
        record(tmp_path_factory.mktemp("calls") / "run", Training(steps=3, evaluation=2, fails=1))
    )


def test_each_call_is_read_with_its_step(training):
    of_steps = Counter(
        (call.task, call.step) for call in training if call.function == "Net.__call__"
    )
    assert of_steps == {
        ("train", 0): 1,
        ("train", 1): 1,
        ("train", 2): 1,
        ("evaluation", 0): 1,
        ("evaluation", 1): 1,
    }


def test_calls_before_the_training_belong_to_no_step(training):
    assert [
        (call.task, call.step, call.arguments["args"])
        for call in training
        if call.function == "seed"
    ] == [("", None, [42])]


def test_a_call_belongs_to_the_phase_that_it_is(training):
    phases = {(call.function, call.phase) for call in training if call.task == "train"}
    expected = {
        ("Optimizer.zero_grad", "other"), ("Net.__call__", "forward"), ("Linear.__call__", "forward"), ("relu", "forward"),
        ("dropout", "forward"), ("cross_entropy", "other"), ("Tensor.backward", "backward"), ("SGD.step", "optimizer"),
        ("_foreach_add_", "optimizer"),
    }  # fmt: skip
    assert phases == expected


def test_self_time_is_without_the_calls_inside(training):
    step = next(call for call in training if call.function == "SGD.step")
    assert (step.duration_ns, step.self_ns, step.depth) == (50_200, 10_200, 0)
    inner = next(call for call in training if call.function == "_foreach_add_")
    assert (inner.duration_ns, inner.self_ns, inner.depth) == (40_000, 40_000, 1)


def test_arguments_results_and_exceptions_are_those_recorded(training):
    dropout = next(call for call in training if call.function == "dropout")
    assert dropout.arguments["kwargs"] == {"p": 0.5, "training": True}
    assert dropout.arguments["returns"]["shape"] == [4, 8]
    assert [(call.function, call.step) for call in training if call.arguments.get("error")] == [
        ("cross_entropy", 1)
    ]


def test_a_call_has_its_object_and_the_tensors_that_it_was_given(training):
    linear = [
        (call.object, call.operands)
        for call in training
        if call.function == "Linear.__call__" and call.step == 0
    ]
    assert linear[:2] == [(1001, (("args.0", 1071),)), (1002, (("args.0", 1072),))]


def test_calls_come_by_their_start(training):
    assert [call.start_ns for call in training] == sorted(call.start_ns for call in training)


def test_small_chunks_give_the_same_calls(tmp_path):
    path = record(tmp_path / "run", Training(steps=20))
    with open_run(path) as run:
        whole = [row for rank in recorded(run) for row in rank.rows()]
        parts = [row for rank in recorded(run) for row in rank.rows(chunk=7)]
    assert sorted(parts, key=lambda row: (row.start_ns, row.depth)) == whole


def test_calls_without_steps_have_none(tmp_path):
    found = read(record(tmp_path / "run", Training(phases=False)))
    assert {(call.task, call.step, call.phase) for call in found} == {("", None, "other")}


def test_ranks_are_told_apart(tmp_path):
    path = record(tmp_path / "run", Training(steps=2))
    record(path, Training(steps=2), rank=1)
    found = Counter(call.rank for call in read(path))
    assert found == {0: 21, 1: 21}


def test_a_function_inside_itself_is_counted_once_by_its_total(tmp_path):
    from voirkit_instruments.calls.analyse_records import Calls, nested

    columns = [
        [0, 0, 0],
        [0, 10, 20],
        [100, 50, 10],
        [7, 8, 7],
        [0, 0, 0],
        [0, 0, 0],
        [100, 50, 10],
        [-1, -1, -1],
        [False] * 3,
    ]
    import numpy as np

    made = nested(Calls(*map(np.array, columns), *([np.zeros(3)] * 3)))
    assert made.inside_itself.tolist() == [False, False, True]
    assert made.self_ns.tolist() == [50, 40, 10]
    assert made.depth.tolist() == [0, 1, 2]


def test_a_run_without_calls_has_none(tmp_path):
    from recorded import record_with_manifest

    assert read(record_with_manifest(tmp_path / "run")) == []


def test_what_lies_in_chosen_calls_is_found():
    import numpy as np

    from voirkit_instruments.calls.difference import within

    end = np.array([50, 20, 15, 35, 45, 70])  # they began at 0, 10, 12, 30, 40, 60
    assert within(end, np.array([False, True, False, False, False, False])).tolist() == [
        False,
        True,
        True,
        False,
        False,
        False,
    ]
