"""Findings on the samples of ``--monitor``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from voirkit.findings import Finding
from voirkit.units import size


def findings(summary: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding if the memory of the first rank grows steadily."""
    memory = (summary.get("monitor") or {}).get("rss") or {}
    growth = memory.get("growth")
    if growth:
        figures = {
            "bytes_per_s": growth["bytes_a_second"],
            **{name: growth[name] for name in ("grown", "middle", "end")},
        }
        words = {
            "hourly_words": size(growth["bytes_a_second"] * 3600),
            "middle_words": size(growth["middle"]),
            "end_words": size(growth["end"]),
        }
        yield Finding.of("memory-creep", {**figures, **words})
