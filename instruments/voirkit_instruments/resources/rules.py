"""Findings on what distorts the times of a run: other work on the processors, and recording
itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from voirkit.findings import Finding
from voirkit.runs import thresholds as limits
from voirkit.runs.summary import is_contended

Summary = Mapping[str, Any]


def findings(summary: Summary) -> Iterator[Finding]:
    """Yield all findings of the rules below, for a run with enough steps for its times to
    matter."""
    if ((summary.get("steps") or {}).get("n") or 0) >= limits.FEW:
        yield from _busy_machine(summary)
        yield from _instrument_overhead(summary)


def _busy_machine(summary: Summary) -> Iterator[Finding]:
    processors = summary.get("processors")
    if processors and is_contended(processors):
        yield Finding.of(
            "busy-machine", {name: processors[name] for name in ("waited_share", "others_share")}
        )


def _instrument_overhead(summary: Summary) -> Iterator[Finding]:
    processors = summary.get("processors") or {}
    share = (summary.get("overhead") or {}).get("share") or 0.0
    helpers = processors.get("helpers_share") or 0.0
    waited = processors.get("waited_share") or 0.0
    reasons = []
    if share > limits.OVERHEAD:
        reasons.append(f"recording took {share:.0%} of its time")
    if waited >= limits.WAITED and helpers >= limits.OTHER_PROGRAMS:
        reasons.append(
            f"voirkit's own processes used {helpers:.0%} of the CPU, for which the main thread"
            f" waited {waited:.0%} of the run"
        )
    if reasons:
        figures = {"overhead_share": share, "helpers_share": helpers, "waited_share": waited}
        yield Finding.of("instrument-overhead", {**figures, "reasons_words": "; ".join(reasons)})
