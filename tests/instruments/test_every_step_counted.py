"""Each optimizer step and backward pass of a program lies in a counted step or an evaluation, and there are as many of both as it counts."""

from __future__ import annotations

import os

import pytest
from generated_programs import Program, Section, programs, steps_of_program
from hypothesis import HealthCheck, assume, example, given, settings

pytestmark = pytest.mark.long

N = int(os.environ.get("VOIRKIT_PROGRAMS", "500"))

# Found among 20,000.
DRAWN_THEN_FORCES = ("whole epoch", ""), ("evaluation", "drawn"), ("evaluation", "loop mode forces")
ZIPPED_THEN_FORCES = ("zipped", ""), ("evaluation", "hand mode forces")
FORCES_TWICE = (("evaluation", "hand mode forces"),) * 2 + (("by hand", ""),)
FORCES_THEN_ONE_STEP = Program(
    (2,),
    1,
    ((0, Section("evaluation", evaluates="hand mode forces")), (0, Section("by hand", n=1))),
)
FORCES_TWICE_THEN_SUMMED = (("evaluation", "hand mode forces"),) * 2 + (("summed", ""),)
FORCES_AROUND_AND_AMID = (
    ("evaluation", ""),
    ("evaluation", "hand mode forces"),
    ("drawn once", "hand mode forces"),
)
# The pool's batches are read by the main thread, and its optimizer is that of a thread that trains beside another.
FED_BY_ANOTHER = Program(
    (2, 2),
    1,
    (
        (0, Section("steps in a pool")),
        (1, Section("loop")),
        (0, Section("at once", epochs=2)),
        (1, Section("whole epoch")),
    ),
)
ANEW_THEN_KEPT = Program(
    (2, 2), 1, ((0, Section("drawn anew", n=2)), (1, Section("drawn and kept", n=2)))
)
QUEUES_THEN_ONE_AHEAD = Program(
    (3, 2), 1, ((0, Section("loop", "queue by count", epochs=2)), (1, Section("loop", "one ahead")))
)
LEFT_THEN_SUMMED = Program(
    (2, 3), 1, ((1, Section("loop", leaves_after=1)), (1, Section("summed")), (0, Section("loop")))
)
PEEKED_THEN_SUMMED = Program(
    (2, 4), 1, ((1, Section("loop", "after the first", accumulates=2)), (0, Section("summed")))
)
# One run in ten: where the queue is full before it is read, its first batch was taken for one that another thread had trained on.
AT_ONCE_THEN_QUEUE = Program(
    (6, 3),
    1,
    (
        (0, Section("at once", epochs=2, evaluates="loop", every=3)),
        (0, Section("loop", "queue", epochs=2, accumulates=2)),
    ),
)


def one_training(*sections: tuple[str, str]) -> Program:
    return Program(
        (2,), 1, tuple((0, Section(kind, evaluates=evaluates)) for kind, evaluates in sections)
    )


@example(one_training(*DRAWN_THEN_FORCES))
@example(one_training(*ZIPPED_THEN_FORCES))
@example(one_training(*FORCES_TWICE))
@example(one_training(*FORCES_TWICE_THEN_SUMMED))
@example(one_training(*FORCES_AROUND_AND_AMID))
@example(FORCES_THEN_ONE_STEP)
@example(FED_BY_ANOTHER)
@example(ANEW_THEN_KEPT)
@example(QUEUES_THEN_ONE_AHEAD)
@example(LEFT_THEN_SUMMED)
@example(PEEKED_THEN_SUMMED)
@example(AT_ONCE_THEN_QUEUE)
@settings(max_examples=N, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_every_step_of_a_program_is_counted(program: Program) -> None:
    counts, figures, _ = steps_of_program(program)
    assume(counts.updates)  # without an optimizer, gradients are taken for training
    steps = figures["steps"]
    assert "uncounted" not in steps
    assert steps["n"] == counts.steps
    if counts.items_known and counts.steps:
        assert steps["items"] == counts.items
    assert (figures["evaluation"] or {"n": 0})["n"] == counts.evaluated
