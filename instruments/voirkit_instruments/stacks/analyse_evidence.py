"""The lines of the program that a phase was seen in most often, for the verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from voirkit.analysis.verdict.evidence import LEAST, Evidence

_ASKS = re.compile(r"^(async )?for\b|\bnext\(")  # the line that asks for a batch says nothing of what is waited for


def source_lines(flame: Mapping[str, Any], phases: Sequence[str]) -> list[Evidence]:
    """Lines with their text, and their shares of the first of the phases."""
    row = (flame.get("phases") or {}).get(phases[0]) or {}
    texts = row.get("text") or {}
    hot = [(place, share) for place, share in (row.get("lines") or {}).items() if share >= LEAST]
    found = sorted((line for line in hot if phases[0] != "wait" or not _ASKS.search(texts.get(line[0], ""))), key=lambda line: -line[1])
    return [Evidence(" ".join(filter(None, (place.rpartition("/")[2], texts.get(place)))), share) for place, share in found]
