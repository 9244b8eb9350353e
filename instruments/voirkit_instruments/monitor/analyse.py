"""``--monitor`` of a run that could not sum it up itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from voirkit.analysis.creep import monitored

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``monitor`` of a summary; see ``voirkit.instrument.Instrument``."""
    return {"monitor": monitored(runs[0])} if summary.get("monitor") is None else None
