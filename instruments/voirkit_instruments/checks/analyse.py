"""``checks`` of a summary: what each detector says of a run (docs/checks.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from voirkit.analysis.document import Rank
from voirkit_instruments.checks.detectors.all_of import DETECTORS
from voirkit_instruments.checks.detectors.facts import facts_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from voirkit.runs.opened import Run


def checks_of(runs: Sequence[Run], ranks: Sequence[Rank]) -> list[dict[str, Any]] | None:
    """What each detector says: ``name, found, step, where, because, next, evidence``; None if the run was without ``--checks``.

    Args:
        runs: The run's directory, or those of its ranks.
        ranks: What its ranks did.
    """
    facts = facts_of(runs, ranks)
    return None if facts is None else [detector.ask(facts) for detector in DETECTORS]


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``checks`` of a summary; see ``voirkit.instrument.Instrument``."""
    checks = checks_of(runs, ranks)
    return None if checks is None else {"checks": checks}
