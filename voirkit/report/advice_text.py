"""A piece of advice as a person reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def following(advice: Mapping[str, Any]) -> str:
    """What to do, the figure that it rests on, and what it saves at best; of one entry of ``advice`` in a summary."""
    win = advice.get("win")
    saves = "" if win is None else f", saves at most {win:.0%} of the run"
    return f"{advice['do'].removesuffix('.')} ({advice['because']}{saves})"
