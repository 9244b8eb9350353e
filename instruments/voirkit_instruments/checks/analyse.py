"""``checks`` of a summary: what each detector says of a run; and how reports show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from voirkit.analysis.document import Rank
from voirkit.report.sections import Block, Details, InText, OnPage, Section, Table, Text
from voirkit.runs.opened import Run
from voirkit_instruments.checks import analyse_data, analyse_models, analyse_optimizers, analyse_waste
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


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``checks`` of a summary, an entry for each detector, and the figures of ``analyse_waste``; None without ``--checks``."""
    facts = facts_of(runs, ranks)
    if facts is None:
        return None
    checks = [detector.examine(facts) for detector in DETECTORS]
    return {"checks": checks, "token_padding": analyse_waste.padding(facts), "dense_embeddings": analyse_waste.embeddings(facts)}


# how it is shown

_NAMED = 3  # checks of one reason; of more their number

Checks = Sequence[Mapping[str, Any]]


def sections(checks: Checks, summary: Mapping[str, Any]) -> Iterator[Section]:
    """What was looked for, beside the silent bugs, which are findings: what was not found, and what cannot be told; on a page with the
    evidence."""
    found, unknown, healthy = ([check for check in checks if check["found"] is state] for state in (True, None, False))
    blocks: list[Block] = [OnPage([Text(f"{len(checks)} looked for, {len(found) or 'none'} found.", mood="note")])]
    most = _most_looked_at(checks)
    for check in found:
        evidence = [(str(key), _words(value)) for key, value in (check.get("evidence") or {}).items()]
        blocks.append(OnPage([Table((check["name"], ""), evidence, left=(0, 1))]))
    blocks.append(InText([*_in_lines(unknown, healthy)]))
    if most:
        blocks.append(Text(_counts(most), "looked at", one_line=True))
    for title, head, chosen in (("cannot be told", "why", unknown), ("looked for and not found", "seen", healthy)):
        if chosen:
            rows = [(check["name"], check["because"], _counts(check.get("looked_at") or {})) for check in chosen]
            table = Table(("check", head, "looked at"), rows, left=(0, 1, 2))
            blocks.append(OnPage([Details(f"{len(chosen)} {title}", [table])]))
    yield Section("checks", "Checks", blocks, least=3)


def _in_lines(unknown: Checks, healthy: Checks) -> Iterator[Text]:
    because: dict[str, list[str]] = {}
    for check in unknown:
        because.setdefault(check["because"], []).append(check["name"])
    for reason, names in because.items():  # a script that fails early has one reason for all
        yield Text(reason, f"cannot tell  {', '.join(names) if len(names) <= _NAMED else f'{len(names)} checks'}")
    if healthy:
        yield Text(", ".join(check["name"] for check in healthy), f"not found ({len(healthy)})", one_line=True)


def _most_looked_at(checks: Checks) -> dict[str, int]:
    """The most of each that any check has looked at."""
    most: dict[str, int] = {}
    for check in checks:
        for unit, n in (check.get("looked_at") or {}).items():
            most[unit] = max(most.get(unit, 0), n)
    return most


def _counts(looked_at: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {unit}" for unit, n in looked_at.items() if n)


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
