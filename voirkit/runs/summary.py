"""``summary.json``: what a run came to."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SCHEMA = 1

# The verdict on a run of which no training step is known.
NO_STEPS = {
    "kind": "unknown",
    "because": "No training step was seen: no backward pass and no optimizer step of torch.",
    "next": "If it does train, tell with probes in a voirfile.py: voirkit init SCRIPT writes one to start from.",
    "evidence": {"steps": 0},
}

ONCE = ("start", "completing")  # parts of the overhead that a run pays once, however long it is
# Of parts of the overhead that are not as they were timed. What tracemalloc adds to each of python's allocations nothing counts.
_QUALITY: dict[str, dict[str, bool]] = {"sampling": {"estimated": True}, "tracemalloc": {"unmeasured": True}}


def empty(version: str) -> dict[str, Any]:
    """A summary with the keys of every run, null for what nothing has measured; instruments add theirs."""
    return {
        "schema": SCHEMA, "voirkit": version, "command": [], "exit_code": None, "duration_s": None, "world_size": 1, "rates": {},
        "steps": None, "given": {}, "probes": [], "evaluation": None, "ranks": [], "processes": [], "ended": "running",
        "wall": None, "verdict": dict(NO_STEPS), "advice": [], "alerts": [],
        "overhead": {"events": 0, "seconds": 0.0, "share": 0.0, "parts": {}}, "dropped": {}, "warnings": [],
    }  # fmt: skip


def add_trace(summary: dict[str, Any], totals: Any, duration_s: float) -> None:
    """Put into a summary what recording came to.

    Args:
        summary: Changed here.
        totals: What ``recorder.end()`` returned: ``events``, ``dropped`` by name, ``parts``: seconds by what they were spent on.
        duration_s: Of the run.
    """
    summary["overhead"] = overhead(totals.events, duration_s, totals.parts, {})
    summary["dropped"] = {**summary["dropped"], **totals.dropped}


def overhead(events: int, duration_s: float, measured: Mapping[str, float], estimated: Mapping[str, float]) -> dict[str, Any]:
    """``overhead`` of a summary: what the run pays for being recorded, in all processes.

    ``share`` and ``seconds`` are of what goes on while the script runs; ``ONCE`` are parts in seconds alone.

    Args:
        events: How many records there are.
        duration_s: Of the run, or of all its ranks.
        measured: Seconds by what they were spent on, as they were timed.
        estimated: The same, as they follow from how many records there are.
    """
    parts: dict[str, Any] = {name: {"seconds": spent, **_QUALITY.get(name, {})} for name, spent in measured.items()}
    for name, spent in estimated.items():
        parts[name] = {"seconds": spent + measured.get(name, 0.0), "estimated": True}
    seconds = sum(part["seconds"] for name, part in parts.items() if name not in ONCE)
    return {"events": events, "seconds": seconds, "share": seconds / duration_s if duration_s > 0 else 0.0, "parts": parts}


def throughput(rate: Mapping[str, Any]) -> float:
    """Items over time, the figure of a rate that every report shows. Runs of older versions have the median alone."""
    value = rate.get("value", rate["median"])
    return float(value)
