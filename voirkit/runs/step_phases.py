"""The phases of a training step, in the order in which every table, chart and export lists them: the one list of them.

What each means is in docs/steps.md. They are exclusive, and their shares of a step sum to 1; ``other`` is last and is what no other is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PHASES = ("wait", "transfer", "forward", "backward", "optimizer", "communication", "other")
OUTSIDE = "before and after"  # of the process that trains: outside all of training


def shown_phases(phases: Mapping[str, Any]) -> list[str]:
    """The phases of a summary that a table lists: those it has, but for communication where there was none (one process)."""
    return [name for name in PHASES if name in phases and (name != "communication" or phases[name]["total_s"])]
