"""``checks`` of a summary: what each detector says of a run (docs/checks.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from voirkit.analysis.document import Rank
from voirkit.runs.opened import Run
from voirkit_instruments.checks import analyse_data, analyse_models, analyse_optimizers
from voirkit_instruments.checks.analyse_facts import Detector, facts_of

# In the order of docs/checks.md.
DETECTORS: tuple[Detector, ...] = (
    analyse_optimizers.missing_zero_grad,
    analyse_optimizers.misplaced_zero_grad,
    analyse_optimizers.frozen_parameters,
    analyse_optimizers.foreign_parameters,
    analyse_optimizers.never_updated,
    analyse_optimizers.no_gradient,
    analyse_models.eval_while_training,
    analyse_models.train_while_evaluating,
    analyse_models.loss_not_connected,
    analyse_models.softmax_before_cross_entropy,
    analyse_models.loss_broadcast,
    analyse_optimizers.learning_rate_zero,
    analyse_optimizers.scheduler_before_optimizer,
    analyse_optimizers.scheduler_too_often,
    analyse_models.graph_kept,
    analyse_models.dead_units,
    analyse_optimizers.not_finite,
    analyse_optimizers.skipped_steps,
    analyse_data.same_augmentation,
    analyse_data.samples_missed,
    analyse_data.samples_twice,
    analyse_data.not_shuffled,
    analyse_data.same_order,
    analyse_data.ranks_same_data,
    analyse_data.ranks_diverge,
)


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``checks`` of a summary: ``name, found, step, where, because, next, evidence`` of each detector; None without ``--checks``."""
    facts = facts_of(runs, ranks)
    return None if facts is None else {"checks": [detector.examine(facts) for detector in DETECTORS]}
