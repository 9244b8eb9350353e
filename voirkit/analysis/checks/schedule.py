"""Learning rates that are 0, and schedulers that step before the optimizer."""

from __future__ import annotations

from voirkit.analysis.checks.facts import Facts
from voirkit.analysis.checks.finding import Detector, Finding

_FEW, _TAIL, _TAIL_SHARE, _SCHEDULED = 3, 20, 0.2, 5


def _rate_zero(facts: Facts) -> Finding:
    doubtful = ""
    for process in facts.processes():
        for which in sorted({step.args["optimizer"] for step in process.of("step")}):
            steps = process.of("step", optimizer=which)
            still = next((at for at in range(len(steps) - 1, -1, -1) if not steps[at].value), -1) + 1  # from here on all are 0
            n = len(steps) - still
            scheduled = len(process.of("scheduler", optimizer=which))
            if n < _FEW:
                continue
            if still == 0 and scheduled and scheduled < _SCHEDULED:
                doubtful = f"The learning rate was 0 in all {n} steps, at the beginning of a schedule: the run ended before it could rise."
                continue
            if still and (n < _TAIL or n < _TAIL_SHARE * len(steps)):
                continue
            when = "in every step" if still == 0 else f"in the last {n} of {len(steps)} steps"
            return Finding(
                True,
                f"The learning rate of optimizer {which} was 0 {when}: they change nothing.",
                steps[still],
                "Look at the schedule: its length, its warm-up (integer division?), whether it steps by batch or by epoch.",
                {"optimizer": which, "steps": len(steps), "at_zero": n, "scheduler_steps": scheduled},
            )
    return Finding(None, doubtful) if doubtful else Finding(False, "Learning rates were above 0, but for a few steps at most.")


def _scheduler_first(facts: Facts) -> Finding:
    for process in facts.processes():
        worked = process.of("step", "scaler")
        first = worked[0] if worked else None
        early = [s for s in process.of("scheduler") if first is not None and s.at_ns < first.at_ns and not s.value]
        for scheduler in early:
            again = [s for s in process.of("scheduler") if s.where == scheduler.where and first is not None and s.at_ns > first.at_ns]
            if again:  # else a schedule that is brought to where a run goes on
                return Finding(
                    True,
                    f"{scheduler.args['scheduler']}.step() comes before the optimizer's step: the schedule's first value is never used, "
                    "and each comes one too early.",
                    scheduler,
                    "Call scheduler.step() after optimizer.step(), at the end of the epoch or batch.",
                    {"scheduler": scheduler.args["scheduler"], "before": len(early)},
                )
    if not facts.has("scheduler"):
        return Finding(False, "No scheduler of torch was used.")
    return Finding(False, "Schedulers step after the optimizer.")


RATE_ZERO = Detector("learning-rate-zero", _rate_zero, ("step",))
SCHEDULER_FIRST = Detector("scheduler-before-optimizer", _scheduler_first, ("step",))
