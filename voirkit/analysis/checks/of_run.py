"""``summary["checks"]`` of a run (DESIGN 3.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from voirkit.analysis.checks.all_of import DETECTORS
from voirkit.analysis.checks.facts import facts_of
from voirkit.analysis.document import Rank

if TYPE_CHECKING:
    from voirkit.runs.opened import Run


def checks_of(runs: Sequence[Run], ranks: Sequence[Rank]) -> list[dict[str, Any]] | None:
    """What each detector says: ``name, found, step, where, because, next, evidence``; None if the run was without ``--checks``.

    Args:
        runs: The run's directory, or those of its ranks.
        ranks: What its ranks did.
    """
    facts = facts_of(runs, ranks)
    return None if facts is None else [detector.ask(facts) for detector in DETECTORS]
