"""Rules over figures of a summary: what each finds, and what it does not find."""

from __future__ import annotations

from typing import Any

import pytest

from voirkit.findings import Finding
from voirkit_instruments.symptoms.rules import findings

STEPS: dict[str, Any] = {
    "n": 400,
    "updates": 100,
    "loader": {"workers": 0, "sampler": "WeightedRandomSampler", "samples": 1_500_000},
}
FALLING = [[at, 1.0 - at / 200] for at in range(100)]


def kinds(symptoms: dict[str, Any] | None = None, **summary: Any) -> list[str]:
    return [
        finding.kind
        for finding in findings(
            {"steps": STEPS, "wall": {"total_s": 10.0}, "symptoms": symptoms, **summary}
        )
    ]


FOUND = {
    "weights-onto-themselves": {"own_weights": {"shared": 6, "tensors": 6, "where": "train.py:3"}},
    "gradients-cleared-unused": {
        "cleared_gradients": {"n": 300, "zero_grads": 400, "where": "train.py:3"}
    },
    "same-order": {"sampler_epochs": {"iterators": 5, "epochs": 1}},
    "eval-while-training": {
        "evaluation_mode": {"first_step": 20, "steps_in_eval": 380, "steps": 400}
    },
    "train-while-evaluating": {"evaluated_in_training": {"batches": 30, "batches_of": 30}},
    "learning-rate-vanishes": {
        "learning_rate": {"highest": 0.1, "last": 1e-8, "updates": 40, "updates_of": 400}
    },
    "evaluation-builds-graphs": {"evaluation_graphs": {"batches": 96, "batches_of": 96}},
    "memory-grows": {
        "memory": {"eighths": [1e9 + 50e6 * at for at in range(7)], "steps": 300, "samples": 20}
    },
    "steps-get-slower": {
        "slower": {
            "fifths_s": [0.01, 0.02, 0.03, 0.04, 0.05],
            "phase": "backward",
            "phase_fifths_s": [1.0, 2, 3, 4, 5],
        }
    },
    "iterator-each-step": {"iterators": {"single": 400, "iterators": 400, "again_s": 4.0}},
    "slow-sampler": {"first_batches_s": {"loops": 4, "first": 2.1, "later": 0.001, "again": 6.3}},
}
NOT_FOUND = {
    "gradients of an attack are cleared": {
        "cleared_gradients": {"n": 100, "zero_grads": 500, "where": "train.py:3"}
    },
    "two iterators of one epoch": {"sampler_epochs": {"iterators": 2, "epochs": 1}},
    "an epoch each": {"sampler_epochs": {"iterators": 5, "epochs": 5}},
    "a learning rate that is annealed": {
        "learning_rate": {"highest": 0.1, "last": 1e-8, "updates": 380, "updates_of": 400}
    },
    "a learning rate of a short run": {
        "learning_rate": {"highest": 0.1, "last": 1e-8, "updates": 4, "updates_of": 40}
    },
    "few batches with graphs": {"evaluation_graphs": {"batches": 10, "batches_of": 96}},
    "one batch that is looked at while the model trains": {
        "evaluated_in_training": {"batches": 1, "batches_of": 1}
    },
    "memory that goes up and down": {
        "memory": {"eighths": [1e9, 2e9, 1e9, 2e9, 1e9, 2e9, 3e9], "steps": 300, "samples": 20}
    },
    "memory that grows by little": {
        "memory": {"eighths": [1e9 + 1e6 * at for at in range(7)], "steps": 300, "samples": 20}
    },
    "steps a little slower": {
        "slower": {
            "fifths_s": [1.0, 1.05, 1.1, 1.15, 1.2],
            "phase": "other",
            "phase_fifths_s": [1, 2, 3, 4, 5],
        }
    },
    "one batch drawn for a look": {"iterators": {"single": 4, "iterators": 6, "again_s": 0.1}},
    "a first batch that is a little late": {
        "first_batches_s": {"loops": 4, "first": 0.02, "later": 0.001, "again": 0.06}
    },
}


@pytest.mark.parametrize(("kind", "symptoms"), FOUND.items(), ids=FOUND)
def test_finds(kind: str, symptoms: dict[str, Any]) -> None:
    assert kinds(symptoms) == [kind]


@pytest.mark.parametrize("symptoms", NOT_FOUND.values(), ids=NOT_FOUND)
def test_does_not_find(symptoms: dict[str, Any]) -> None:
    assert kinds(symptoms) == []


@pytest.mark.parametrize(("start_s", "named"), [(6.0, ["slow-sampler"]), (2.0, [])])
def test_a_sampler_is_named_beside_workers_where_drawing_is_most_of_what_first_batches_are_late(
    start_s: float, named: list[str]
) -> None:
    steps = {**STEPS, "loader": {**STEPS["loader"], "workers": 2}}
    assert kinds({**FOUND["slow-sampler"], "drawing": {"start_s": start_s}}, steps=steps) == named


def test_best_weights_that_are_the_last_are_named_where_they_are_saved() -> None:
    (finding,) = findings(
        {"symptoms": {"kept_weights": {"how": "torch.save() was given", "where": "train.py:9"}}}
    )
    assert finding.kind == "weights-onto-themselves"
    assert finding.because.startswith(
        "train.py:9: torch.save() was given what state_dict() had returned"
    )


def test_a_loss_that_jumps_once_is_named_with_its_step() -> None:
    curve = [*FALLING[:60], [60, 4000.0], *FALLING[61:]]
    (finding,) = findings({"loss": {"curve": curve}})
    assert (finding.kind, finding.evidence["step"]) == ("loss-spike", 60)


def test_how_far_a_loss_jumps_is_said_in_few_digits() -> None:
    curve = [*FALLING[:60], [60, 4e18], *FALLING[61:]]
    (finding,) = findings({"loss": {"curve": curve}})
    assert " 4e+18, 5e+18 times the median" in finding.because


def test_a_training_that_diverges_after_a_jump_is_not_said_to_jump() -> None:
    curve = [*FALLING[:60], [60, 4e18], *FALLING[61:90], *([at, None] for at in range(90, 100))]
    assert kinds(loss={"curve": curve, "not_finite": {"n": 10, "first": 90}}) == []


def test_a_single_sample_whose_loss_is_large_is_no_jump() -> None:
    curve = [*FALLING[:60], [60, 4000.0], *FALLING[61:]]
    assert kinds(loss={"curve": curve}, steps={"n": 100, "items": 100}) == []


@pytest.mark.parametrize(
    "curve",
    [
        FALLING,
        [[0, 4000.0], *FALLING[1:]],
        [*FALLING[:50], *([at, 4000.0] for at in range(50, 100))],
    ],
)
def test_a_loss_that_falls_begins_high_or_stays_high_is_no_jump(curve: list[list[float]]) -> None:
    assert kinds(loss={"curve": curve}) == []


GROWING = {"eighths": [1e9 + 50e6 * at for at in range(7)], "steps": 300, "samples": 20}
TENSORS = {"of": "float32[256, 256]", "more": 1200, "bytes": 314_572_800}
LIST = {"type": "list", "length": 1300, "more": 1200, "holds": "Tensor"}


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (
            {"tensors": TENSORS, "container": LIST},
            "1,200 tensors of float32[256, 256] more since step 100 (315 MB), in a list of 1,300.",
        ),
        ({"tensors": TENSORS}, "1,200 tensors of float32[256, 256] more since step 100 (315 MB)."),
        (
            {"container": {**LIST, "holds": "ndarray"}},
            "a list of 1,300 has 1,200 elements (ndarray) more since step 100.",
        ),
        ({}, "a step."),
    ],
)
def test_memory_that_grows_is_told_with_what_there_is_more_of(
    kept: dict[str, Any], words: str
) -> None:
    (finding,) = findings(
        {"symptoms": {"memory": {**GROWING, "kept": {"since_step": 100, **kept}}}}
    )
    assert finding.because.endswith(words)


GRAPHS = {"tensors": {**TENSORS, "of": "float32[] with their graphs"}}


@pytest.mark.parametrize(
    ("kept", "leads"),
    [({}, True), (GRAPHS, True), ({"tensors": TENSORS}, False), ({"container": LIST}, False)],
)
def test_memory_leads_to_the_check_of_graphs_unless_what_is_kept_has_none(
    kept: dict[str, Any], leads: bool
) -> None:
    known = {"kept": {"since_step": 100, **kept}} if kept else {}
    (finding,) = findings({"symptoms": {"memory": {**GROWING, **known}}})
    assert ("--checks" in finding.next) is leads


def slower(phase: str, **summary: Any) -> str:
    """What to do about steps that get slower in a phase."""
    fifths = {
        "fifths_s": [0.01, 0.02, 0.03, 0.04, 0.05],
        "phase": phase,
        "phase_fifths_s": [1.0, 2, 3, 4, 5],
    }
    (finding,) = findings({"symptoms": {"slower": fifths}, **summary})
    return finding.next


@pytest.mark.parametrize(
    ("phase", "grows", "flags"),
    [
        ("wait", "subsets of subsets", "; voirkit --loader --flame shows where."),
        ("forward", "hooks", "; voirkit --flame shows where."),
        ("backward", "graph", "; voirkit --checks names graphs that are kept."),
        ("optimizer", "groups", "; voirkit --flame shows where."),
        ("other", "list that is searched", "; voirkit --flame shows where."),
    ],
)
def test_steps_that_get_slower_lead_to_what_shows_the_phase_that_does(
    phase: str, grows: str, flags: str
) -> None:
    said = slower(phase)
    assert grows in said
    assert said.endswith(flags)


def test_steps_that_get_slower_lead_to_no_flag_that_is_on() -> None:
    assert "--checks" not in slower("backward", checks=[])
    assert "--flame" not in slower("other", flame={"phases": {}})


def collected(total_s: float, later_s: float, full: int = 0) -> list[Finding]:
    """Of a run of ten seconds and 400 steps."""
    pauses = {"n": 40, "total_s": total_s, "later_s": later_s, "full": full}
    return list(
        findings(
            {
                "symptoms": {"collections": pauses},
                "steps": STEPS,
                "wall": {"total_s": 10.0, "parts": {}},
            }
        )
    )


def test_pauses_for_garbage_are_named_where_they_take_2_percent_of_the_run() -> None:
    assert [finding.kind for finding in collected(0.21, 0.21)] == ["garbage-collection"]
    assert collected(0.19, 0.19) == []


@pytest.mark.parametrize(
    ("pauses", "words", "gain"),
    [
        ((1.0, 0.8), "gc.freeze() before the loop", 0.08),
        ((1.0, 0.1), "gc.disable()", 0.1),  # of which freezing before the loop would save nothing
        ((1.0, 0.8, 390), "Look for gc.collect() in the loop", 0.08),
    ],
)
def test_what_to_do_about_pauses_depends_on_when_they_come_and_on_who_begins_them(
    pauses: Any, words: str, gain: float
) -> None:
    (finding,) = collected(*pauses)
    assert words in finding.next
    assert finding.gain == pytest.approx(gain)


def test_samples_evaluated_one_by_one_are_named_where_they_take_time() -> None:
    evaluation = {"n": 100, "total_s": 1.0}
    slow, fast = (
        {"total_s": 10.0, "parts": {"evaluation": {"total_s": seconds}}} for seconds in (1.0, 0.1)
    )
    assert kinds({"single_samples": 100}, evaluation=evaluation, wall=slow) == [
        "evaluation-one-by-one"
    ]
    assert kinds({"single_samples": 100}, evaluation=evaluation, wall=fast) == []


def test_workers_that_copy_a_dataset_of_many_objects_are_named() -> None:
    memory = {"bytes": 95_000_000, "workers": 2, "objects": 1_000_000, "dataset": "Clips"}
    assert kinds({"worker_memory": memory}, memory={"peak": 9e8}) == ["workers-copy-dataset"]
    assert kinds({"worker_memory": {**memory, "objects": 10}}, memory={"peak": 9e8}) == [], (
        "large buffers are no copies"
    )


def test_what_explains_time_says_which() -> None:
    (finding,) = findings({"symptoms": FOUND["steps-get-slower"]})
    assert finding.explains == "compute-bound"


def test_steps_that_a_busier_machine_may_slow_down_are_told_from_five_times_as_long_on() -> None:
    busy = {"waited_share": 0.8, "others_share": 0.9}
    steps = FOUND["steps-get-slower"]["slower"]
    for last, is_told in ((0.049, False), (0.051, True)):
        slower = {**steps, "fifths_s": [0.01, 0.02, 0.03, 0.04, last]}
        summary = {"symptoms": {"slower": slower}, "processors": busy}
        assert bool(list(findings(summary))) is is_told
