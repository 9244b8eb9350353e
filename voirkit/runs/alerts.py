"""What deserves a warning beside the verdict: a loss that is no number or does not fall, a machine that others work on as well.

Each alert is ``{"kind", "because", "next", "evidence"}``, as a verdict is. Pure functions of figures; loads nothing.
"""

from __future__ import annotations

from voirkit.runs import thresholds as limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


def alerts(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All alerts that a summary's own figures give, the gravest first."""
    found = (
        loss_not_finite(summary.get("loss")),
        loss_not_falling(summary.get("loss")),
        busy_machine(summary.get("processors")) if ((summary.get("steps") or {}).get("n") or 0) >= limits.FEW else None,
    )
    return [alert for alert in found if alert is not None]


def loss_not_finite(loss: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The loss is nan or infinite."""
    bad = (loss or {}).get("not_finite")
    if not bad:
        return None
    at, n = bad["first"], bad["n"]
    seen = f"from loss {at:,} on" if n > 1 else f"at loss {at:,}"
    return {
        "kind": "loss-not-finite",
        "because": f"The loss is {bad['value']} {seen} ({n:,} of {bad['of']:,} that were looked at).",
        "next": "Look at the step before: the learning rate, a division or logarithm of 0, float16 without a scaler. "
        "torch.autograd.set_detect_anomaly(True) names the operation.",
        "evidence": dict(bad),
    }


def loss_not_falling(loss: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The loss is no lower at the end than at the beginning."""
    curve = (loss or {}).get("curve") or []
    values = [value for _, value in curve if value is not None]
    quarter = len(values) // 4
    if loss is None or loss["n"] < limits.FEW_LOSSES or not quarter:
        return None
    first, last = median(values[:quarter]), median(values[-quarter:])
    if first - last >= limits.FALLS * abs(first):
        return None
    return {
        "kind": "loss-not-falling",
        "because": f"The loss does not fall: {first:.4g} in the first quarter of the run, {last:.4g} in the last (medians).",
        "next": "Look whether the optimizer holds the model's parameters and steps, and whether the learning rate fits."
        " In reinforcement learning and adversarial training it need not fall.",
        "evidence": {"first": first, "last": last, "n": loss["n"]},
    }


def busy_machine(processors: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Other work held the processors: the rates are not this script's own."""
    waited, others = (processors or {}).get("waited_share"), (processors or {}).get("others_share")
    if waited is None or others is None or waited < limits.WAITED or others < limits.OTHERS:
        return None
    return {
        "kind": "busy-machine",
        "because": f"CPU contention: other processes used {others:.0%} of the CPU; the main thread waited for it {waited:.0%} of the run.",
        "next": "Re-run on an idle machine: these timings are not reliable.",
        "evidence": {"waited_share": waited, "others_share": others},
    }


def median(values: Sequence[float]) -> float:
    """The value in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
