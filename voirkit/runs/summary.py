"""``summary.json``: what a run came to (DESIGN 3.8)."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = 1

# The verdict on a run of which no training step is known.
NO_STEPS = {
    "kind": "unknown",
    "because": "No training step was seen: no backward pass and no optimizer step of torch.",
    "next": "If it does train, tell with probes in a voirfile.py: voirkit init SCRIPT writes one to start from.",
    "evidence": {"steps": 0},
}


def empty(version: str) -> dict[str, Any]:
    """A summary with all its keys; null for what nothing has measured."""
    return {
        "schema": SCHEMA, "voirkit": version, "command": [], "exit_code": None, "duration_s": None, "world_size": 1,
        "rates": {}, "steps": None, "loader": None, "loss": None, "given": {}, "probes": [], "syscalls": None, "calls": None,
        "flame": None, "parameters": None, "native": None, "torch_profile": None, "checks": None, "evaluation": None, "ranks": [],
        "ended": "running",
        "verdict": dict(NO_STEPS), "alerts": [], "memory": None, "processors": None, "monitor": None,
        "overhead": {"events": 0, "seconds": 0.0, "share": 0.0}, "dropped": {}, "warnings": [], "what_if": None,
    }  # fmt: skip


def add_trace(summary: dict[str, Any], totals: Any, duration_s: float) -> None:
    """Put into a summary what recording came to.

    Args:
        summary: Changed here.
        totals: What ``recorder.end()`` returned: ``events``, ``dropped`` by name, ``seconds``.
        duration_s: Of the run.
    """
    share = totals.seconds / duration_s if duration_s > 0 else 0.0
    summary["overhead"] = {"events": totals.events, "seconds": totals.seconds, "share": share}
    summary["dropped"] = {**summary["dropped"], **totals.dropped}
