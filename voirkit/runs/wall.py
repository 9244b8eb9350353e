"""The account of a run's whole wall time: ``wall`` in ``summary.json``. Its parts are exclusive, and sum to the run's duration."""

from __future__ import annotations

from voirkit.runs.thresholds import INFERENCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# In the order of a run. What each means is in docs/report.md.
PARTS = ("startup", "import", "script", "training", "evaluation", "checkpoint", "compile", "gc", "between", "exit")


def evaluation_name(evaluation: Mapping[str, Any] | None) -> str:
    """What evaluation is called in reports: ``inference`` where most of it may be none.

    Args:
        evaluation: Of a summary. ``inference``: the share of its time that is model calls by hand in training mode: a rollout, a sample of
            a generator, or an evaluation without ``eval()``.
    """
    share = evaluation.get("inference", 0.0) if isinstance(evaluation, dict) else 0.0  # reports are drawn of damaged summaries too
    return "inference" if share > INFERENCE else "evaluation"


def account(seconds: Mapping[str, float], total_s: float, before_script_s: float | None = None) -> dict[str, Any]:
    """``{"total_s", "parts": {name: {"total_s", "share"}}}``.

    Args:
        seconds: Of parts; what is not positive is left out.
        total_s: The run's duration, to which the parts are made to sum: clocks are read one after the other, and a thread that trains may
            outlive the script.
        before_script_s: Of ``startup``, what passed before the script's first line.
    """
    own = {name: float(seconds[name]) for name in PARTS if seconds.get(name, 0.0) > 0}
    factor = total_s / sum(own.values()) if own else 0.0
    parts: dict[str, Any] = {
        name: {"total_s": spent * factor, "share": spent * factor / total_s if total_s else 0.0} for name, spent in own.items()
    }
    if before_script_s is not None and "startup" in parts:
        parts["startup"]["before_script_s"] = min(before_script_s, parts["startup"]["total_s"])
    return {"total_s": total_s, "parts": parts}


class Moments:
    """When a run began, when its script did, and when its script ended; nanoseconds of ``time.perf_counter_ns``.

    Args:
        manifest: ``run.json``. That of an older version has no ``moments``: the run begins where its record does.

    Attributes:
        begun: When python was started, or, where that is not known, when voirkit was.
        script: When the script's first line ran.
        script_ended: None if it did not come to its end.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        moments = manifest.get("moments") or {}
        record = (manifest.get("clocks") or {}).get("perf_counter_ns")
        self.begun: int | None = moments.get("begun_ns", record)
        self.script: int | None = moments.get("script_ns", record)
        self.script_ended: int | None = moments.get("script_ended_ns")


def without_steps(moments: Moments, total_s: float, spent_s: Mapping[str, float] | None = None) -> dict[str, Any] | None:
    """The account of a run in which no step was seen; None if nothing is known of when it began.

    Args:
        moments: Of the run.
        total_s: Its duration.
        spent_s: Time of the script's that is known: import, checkpoint, compile, gc.
    """
    if moments.begun is None or moments.script is None:
        return None
    ended = moments.begun + total_s * 1e9
    startup = (moments.script - moments.begun) * 1e-9
    exit_ = max(ended - moments.script_ended, 0.0) * 1e-9 if moments.script_ended is not None else 0.0
    script = total_s - startup - exit_ - sum((spent_s or {}).values())
    return account({**(spent_s or {}), "startup": startup, "script": script, "exit": exit_}, total_s, startup)
