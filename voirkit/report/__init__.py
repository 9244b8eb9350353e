"""Reports of a run for people and other tools: table, HTML page, Markdown. Reads runs, never
changes them."""

from __future__ import annotations

from voirkit.units import duration, figure, size

__all__ = ["duration", "figure", "size"]
