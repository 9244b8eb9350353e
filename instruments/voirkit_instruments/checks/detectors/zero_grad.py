"""Gradients that are never cleared, and gradients that are cleared before the optimizer has used them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from voirkit_instruments.checks.detectors.facts import Fact, Facts
from voirkit_instruments.checks.detectors.finding import Detector, Finding


def _missing(facts: Facts) -> Finding:
    looked = 0
    for process in facts.processes():
        for which in sorted({fact.args["optimizer"] for fact in process.of("cleared", "uncleared")}):
            cleared, kept = process.of("cleared", optimizer=which), process.of("uncleared", optimizer=which)
            looked += len(cleared) + len(kept)
            since = [fact for fact in cleared if kept and fact.at_ns > kept[0].at_ns]
            if len(kept) > len(since):  # from the first time on more often than not
                at = kept[0]
                steps = len(process.of("step", optimizer=which))
                return Finding(
                    True,
                    f"New gradients were added to those that the step before had used, which nobody had cleared, at {len(kept)} of "
                    f"{len(kept) + len(since)} steps that were looked at since ({steps} in all).",
                    at,
                    "Call optimizer.zero_grad() before each backward pass (with gradient accumulation: after each step).",
                    {"optimizer": which, "looked_at": len(kept) + len(since), "cleared": len(since)},
                    looks=len(kept) + len(since),
                )
    if not looked:
        return Finding(None, "No two steps of an optimizer with a backward pass between them were seen.")
    return Finding(False, f"Gradients were cleared between steps ({looked} times looked at).")


def _misplaced(facts: Facts) -> Finding:
    for process in facts.processes():
        for which in sorted({fact.args["optimizer"] for fact in process.of("look")}):
            looks = process.of("look", optimizer=which)
            empty = [look for look in looks if look.args["trainable"] and _is_empty(look)]
            if len(empty) < 2 or len(empty) < len(looks):
                continue
            between = _cleared_before_step(process, which)
            if between is not None:
                return Finding(
                    True,
                    "The gradients were cleared between the backward pass and the optimizer's step, which had none to use, at each of the "
                    f"{len(looks)} steps that were looked at.",
                    between,
                    "Call zero_grad() before the backward pass, or after the optimizer's step.",
                    {"optimizer": which, "looked_at": len(looks)},
                    looks=len(looks),
                )
    return Finding(False, "The optimizer's steps had gradients to use, or it is not for a zero_grad that they had none.")


def _is_empty(look: Fact) -> bool:
    return bool(look.args["graded"] == look.args["zero"])


def _cleared_before_step(process: Facts, which: int) -> Fact | None:
    """The first clearing after a backward pass and before a step, if the last thing before (nearly) each step is one."""
    first: Fact | None = None
    steps = placed = 0
    since: list[Fact] = []
    for fact in process.of("backward", "zero_grad", "step"):
        if fact.name == "step":
            if fact.args["optimizer"] == which:
                steps += 1
                cleared = _last_clearing(since, which)
                placed += cleared is not None
                first = first or cleared
                since = []
        else:
            since.append(fact)
    return first if placed and placed >= steps - 1 else None


def _last_clearing(since: Sequence[Fact], which: int) -> Fact | None:
    at = next((i for i in range(len(since) - 1, -1, -1) if since[i].name == "backward"), None)
    if at is None:
        return None
    clearing = next((fact for fact in since[at:] if fact.name == "zero_grad" and fact.args.get("optimizer") in (which, -1)), None)
    return None if clearing is None else replace(clearing, start_ns=since[at].start_ns)  # it is of the backward pass's step


MISSING = Detector("missing-zero-grad", _missing, ("step", "backward"))
MISPLACED = Detector("misplaced-zero-grad", _misplaced, ("step", "backward"))
