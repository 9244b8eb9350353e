"""The figures of a rate in ``summary.json``: throughput (``value``), and what is usual of a single step (``median``, ``p10``, ``p90``)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def throughput(rate: Mapping[str, Any]) -> float:
    """Items over time: the figure that every table, condition and export shows. Runs of older versions have the median alone."""
    value = rate.get("value", rate["median"])
    return float(value)
