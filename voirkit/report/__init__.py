"""What a run is turned into for people and other tools: table, HTML page, live view, exports. Reads
runs, never changes them."""

from __future__ import annotations

from voirkit.units import duration, figure, size

__all__ = ["duration", "figure", "size"]
