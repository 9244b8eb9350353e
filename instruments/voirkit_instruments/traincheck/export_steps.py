"""Steps and stages as TrainCheck's lines name them, and which records a choice of steps takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from voirkit.errors import CommandLineError
from voirkit_instruments.calls.analysis.when import TASKS, When

if TYPE_CHECKING:
    from voirkit.analysis.nesting import Array
    from voirkit.analysis.steps import Steps

INIT, TRAINING, EVALUATION = "init", "training", "evaluation"
_TRAIN, _EVALUATION = TASKS.index("train"), TASKS.index("evaluation")


class Stages:
    """Steps, from 1 as TrainCheck counts them, and stages of one rank. Before the first step is ``init``, step 0; what lies behind a step,
    and in none, belongs to it.

    Args:
        when: To which step a moment belongs.
        steps: The rank's steps; None: not known.
    """

    def __init__(self, when: When, steps: Steps | None) -> None:
        self._when = when
        self._starts: Array = np.zeros(0, np.int64) if steps is None else np.sort(steps.train.start_ns)

    def of(self, start_ns: Array, duration_ns: Array) -> list[tuple[int, str]]:
        """Step and stage of each of some calls. An evaluation has the step of the training that went before."""
        task, number, _ = self._when.place(start_ns, duration_ns)
        before = np.searchsorted(self._starts, start_ns, side="right") - 1
        trains = task == _TRAIN
        step = np.where(trains, number, before) + 1
        stage = np.where(task == _EVALUATION, EVALUATION, np.where(trains | (before >= 0), TRAINING, INIT))
        return list(zip(step.tolist(), stage.tolist(), strict=True))

    def at(self, moment_ns: int) -> tuple[int, str]:
        """Those of a moment."""
        return self.of(np.array([moment_ns]), np.zeros(1, np.int64))[0]


def stretches(chosen: tuple[int | None, int | None], steps: Mapping[int, Steps]) -> dict[int, tuple[int, int]]:
    """When the chosen steps were, by rank: from the start of the first until the one behind them begins, on the host's clock.

    Args:
        chosen: (first, end), half open; None: no bound.
        steps: By rank.

    Raises:
        CommandLineError: No rank has such steps.
    """
    first, end = chosen
    found = {}
    for rank, own in steps.items():
        starts = np.sort(own.train.start_ns)
        if len(starts) > (first or 0):
            is_bounded = end is not None and end < len(starts)
            found[rank] = int(starts[first]) if first else -(1 << 62), int(starts[end]) if is_bounded else 1 << 62
    if not found:
        has = max((len(own.train) for own in steps.values()), default=0)
        where = f"--steps {'' if first is None else first}:{'' if end is None else end}"
        raise CommandLineError("this run has no such steps.", where=where, next=f"It has {has}; the first is 0." if has else "")
    return found
