"""What a report says of steps that differ so much that the median step misleads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voirkit.report.figure import duration


def unlike_steps(steps: Mapping[str, Any]) -> str:
    """One line for a run whose ``steps`` have the flag ``unlike``."""
    mean, median = steps["mean_s"], steps["time_s"]["median"]
    rare = "a few steps take most of the time" if mean > median else "a few steps take hardly any time"
    return f"a step takes {duration(mean)} on average and {duration(median)} at the median: {rare}. The rates are items over time."
