"""The ``checks`` part of a summary, with the result of each detector, and its report section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from voirkit.analysis.document import Rank
from voirkit.report.sections import Block, Details, InText, OnPage, Section, Table, Text
from voirkit.runs.opened import Run
from voirkit_instruments.checks import (
    analyse_data,
    analyse_models,
    analyse_optimizers,
    analyse_waste,
)
from voirkit_instruments.checks.analyse_facts import Detector, facts_of

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


def summarise(
    runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the ``checks`` part of a summary, with an entry for each detector, and the figures of
    ``analyse_waste``; None without ``--checks``."""
    facts = facts_of(runs, ranks)
    if facts is None:
        return None
    checks = [detector.examine(facts) for detector in DETECTORS]
    return {
        "checks": checks,
        "token_padding": analyse_waste.padding(facts),
        "dense_embeddings": analyse_waste.embeddings(facts),
    }


# The report section on checks

# most checks with the same reason that are listed by name; of more checks, only the number is shown
_NAMED = 3

Checks = Sequence[Mapping[str, Any]]


def sections(checks: Checks, summary: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the section on checks that found nothing and checks that cannot be decided. The HTML
    page also shows the evidence of bugs that were found; the bugs themselves are reported as
    findings."""
    positive = [check for check in checks if check["found"] is True]
    unknown = [check for check in checks if check["found"] is None]
    negative = [check for check in checks if check["found"] is False]
    n_found = len(positive) or "none"
    blocks: list[Block] = [
        OnPage([Text(f"{len(checks)} looked for, {n_found} found.", mood="note")])
    ]
    for check in positive:
        blocks.append(OnPage([_evidence_table(check)]))
    blocks.append(InText([*_in_lines(unknown, negative)]))
    most = _most_looked_at(checks)
    if most:
        blocks.append(Text(_counts(most), "looked at", one_line=True))
    if unknown:
        blocks.append(_folded_table("cannot be told", "why", unknown))
    if negative:
        blocks.append(_folded_table("looked for and not found", "seen", negative))
    yield Section("checks", "Checks", blocks, least=3)


def _evidence_table(check: Mapping[str, Any]) -> Table:
    evidence = check.get("evidence") or {}
    rows = [(str(key), _words(value)) for key, value in evidence.items()]
    return Table((check["name"], ""), rows, left=(0, 1))


def _folded_table(title: str, head: str, checks: Checks) -> OnPage:
    rows = []
    for check in checks:
        counts = _counts(check.get("looked_at") or {})
        rows.append((check["name"], check["because"], counts))
    table = Table(("check", head, "looked at"), rows, left=(0, 1, 2))
    return OnPage([Details(f"{len(checks)} {title}", [table])])


def _in_lines(unknown: Checks, negative: Checks) -> Iterator[Text]:
    """The terminal's lines on checks that cannot be decided and on checks that found nothing."""
    by_reason: dict[str, list[str]] = {}
    for check in unknown:
        by_reason.setdefault(check["because"], []).append(check["name"])
    # one line for each reason, because all checks have the same one if a script fails early
    for reason, names in by_reason.items():
        checks = ", ".join(names) if len(names) <= _NAMED else f"{len(names)} checks"
        yield Text(reason, f"cannot tell  {checks}")
    if negative:
        checks = ", ".join(check["name"] for check in negative)
        yield Text(checks, f"not found ({len(negative)})", one_line=True)


def _most_looked_at(checks: Checks) -> dict[str, int]:
    """Return, for each unit, the highest number that any check has looked at."""
    most: dict[str, int] = {}
    for check in checks:
        for unit, n in (check.get("looked_at") or {}).items():
            most[unit] = max(most.get(unit, 0), n)
    return most


def _counts(looked_at: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {unit}" for unit, n in looked_at.items() if n)


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
