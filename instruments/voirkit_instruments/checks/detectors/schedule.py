"""Learning rates that are 0, and schedulers that step before the optimizer, or far too often."""

from __future__ import annotations

from voirkit_instruments.checks.detectors.facts import Facts
from voirkit_instruments.checks.detectors.finding import Detector, Finding

_FEW, _TAIL, _TAIL_SHARE, _SCHEDULED = 3, 20, 0.2, 5
_EACH_STEP = 0.9  # scheduler steps an optimizer step, of a scheduler that steps with each
_HALF_PERIODS = 10  # of a cosine that is used as one: it comes down once


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


def _too_often(facts: Facts) -> Finding:
    for process in facts.processes():
        for which in sorted({fact.args["optimizer"] for fact in process.of("scheduler")}):
            steps = process.of("step", optimizer=which)
            scheduled = [fact for fact in process.of("scheduler", optimizer=which) if not fact.value]
            rates = process.of("rate", optimizer=which)
            if not scheduled or len(scheduled) < _EACH_STEP * len(steps) or not steps:
                continue
            kind = scheduled[0].args["scheduler"]
            evidence = {"optimizer": which, "steps": len(steps), "scheduler_steps": len(scheduled)}
            last = rates[-1] if rates else None
            if last is not None and last.args["tiny"] and last.args["peak"]:
                at = next((n for n, step in enumerate(steps) if step.at_ns >= last.at_ns), len(steps))
                left = len(steps) - at
                if left >= _TAIL and left >= _TAIL_SHARE * len(steps):
                    return Finding(
                        True,
                        f"{kind}.step() comes with every optimizer step, and the learning rate is next to nothing "
                        f"({last.args['rate']:.1e}, of {last.args['peak']:.1e}) in the last {left} of {len(steps)} steps.",
                        scheduled[0],
                        "Step the scheduler once an epoch, or give its lengths in batches.",
                        {**evidence, "at_next_to_nothing": left},
                    )
            period = scheduled[0].args.get("period")
            if period and len(scheduled) >= _HALF_PERIODS * period and len(scheduled) >= _TAIL:
                return Finding(
                    True,
                    f"{kind}.step() comes with every optimizer step, {len(scheduled)} times, and its T_max is {period}: the learning rate "
                    f"goes down to its least and up again {len(scheduled) // (2 * period)} times.",
                    scheduled[0],
                    "Step the scheduler once an epoch, or give T_max in batches.",
                    {**evidence, "period": period},
                )
    return Finding(False, "No scheduler was seen to step too often.")


RATE_ZERO = Detector("learning-rate-zero", _rate_zero, ("step",))
SCHEDULER_FIRST = Detector("scheduler-before-optimizer", _scheduler_first, ("step",))
TOO_OFTEN = Detector("scheduler-too-often", _too_often, ("step",))
