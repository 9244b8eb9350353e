"""Silent bugs of optimizers: gradients that are never cleared, or too early; parameters that they hold and should not, or should and do
not; learning rates and schedulers; numbers that are not finite, and steps that a gradient scaler leaves out for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from voirkit_instruments.checks.analyse_facts import Answer, Answers, Fact, Facts, detector, unknown

_FEW = 2  # looks at least: at the first step a script may still be about to begin


@detector("frozen-parameters", "look", looks_at=("look",))
def frozen_parameters(facts: Facts) -> Answers:
    some = 0
    for _, which, looks in facts.by_optimizer("look"):
        if looks[0].args["held"] and not any(look.args["trainable"] or look.args["graded"] for look in looks):
            yield Answer(
                f"All {looks[0].args['held']} parameters that the optimizer ({looks[0].args['kind']}) holds are frozen "
                "(requires_grad is False): its steps change nothing.",
                looks[0],
                "Make the optimizer from the parameters that are to be trained, after they were frozen, replaced or thawed.",
                {"optimizer": which, "held": looks[0].args["held"], "looked_at": len(looks)},
                looks=len(looks),
            )
        some += looks[-1].args["trainable"] < looks[-1].args["held"]
    if some:
        return "An optimizer holds frozen parameters beside others, which is harmless."
    return "The optimizers hold parameters that require gradients."


@detector("foreign-parameters", "look", "reach", looks_at=("look", "graph"))
def foreign_parameters(facts: Facts) -> Answers:
    for process, which, looks in facts.by_optimizer("look"):
        unheld = process.of("unheld")
        last = unheld[-1] if unheld else None
        if len(looks) < _FEW and looks[0].args["trainable"] and not looks[0].args["graded"]:
            yield f"The optimizer ({looks[0].args['kind']}) was examined once, without gradients: {_FEW} looks are needed."
        if last is not None and last.args.get("unread"):
            yield f"Whether {last.args['unread']} parameters that no optimizer holds change is not known: their values cannot be read."
        if last is None or not last.value:
            continue
        whole = len(looks) >= _FEW and all(look.args["trainable"] and not look.args["graded"] for look in looks)
        without = process.of("without", optimizer=which)
        lost = without[-1].args["never"] - without[-1].args["of_models"] if without else 0
        if whole and not any(reach.args["held"] for reach in process.of("reach")):
            said = f"None of the {looks[0].args['trainable']} parameters that the optimizer ({looks[0].args['kind']}) holds ever has a "
            said += f"gradient; {last.value} others have, which no optimizer holds and which never change"
        elif lost and len(without) >= _FEW and last.args["unnamed"] < last.value:
            said = f"{lost} parameters that the optimizer ({looks[0].args['kind']}) holds are of no model that is called; "
            said += f"{last.value} of the model are held by no optimizer"
        else:
            continue
        yield Answer(
            f"{said} ({last.args['names']}).",
            looks[0],
            "Make the optimizer after the model has its final form (made again, copied, wrapped, its head replaced).",
            {"optimizer": which, "held": looks[0].args["held"], "not_held": last.value, "names": last.args["names"]},
            looks=len(looks),
        )
    return "What the optimizers hold is what gets gradients."


@detector("never-updated", "look", "reach", looks_at=("look", "graph"))
def never_updated(facts: Facts) -> Answers:
    if foreign_parameters.decide(facts).found:
        return unknown("An optimizer holds parameters of another model, which is reported on its own.")
    for process in facts.processes():
        unheld = process.of("unheld")
        last = unheld[-1] if unheld else None
        if last is not None and last.args.get("unread"):
            yield f"Whether {last.args['unread']} parameters that no optimizer holds change is not known: their values cannot be read."
        if last is None or not last.value:
            continue
        if len(process.of("step")) < _FEW:
            yield f"{last.value} parameters get gradients and are in no optimizer; whether they change is not known after one step."
            continue
        reached = any(reach.args["held"] and reach.args["parameters"] for reach in process.of("reach"))
        if not reached:
            yield f"{last.value} parameters of another model get gradients and are in no optimizer ({last.args['names']})."
        elif (last.args["after"] and last.args["partly"]) or last.args["unnamed"]:
            whose = f" of {last.args['models']}" if last.args["models"] else ""
            yield Answer(
                f"{last.value} parameters{whose} get gradients, but no optimizer holds them and they never change: {last.args['names']}.",
                next((fact for fact in unheld if fact.where), last),
                "Give them to the optimizer (layers in a plain list are no part of a module: nn.ModuleList), or freeze them with "
                "requires_grad_(False) if that is meant.",
                {"parameters": last.value, "names": last.args["names"]},
                looks=len(unheld),
            )
        else:
            yield (
                f"{last.value} parameters get gradients and are in no optimizer ({last.args['names']}): it may be meant, as when only a "
                "head is trained, or another model is part of the loss."
            )
    return "All parameters that get gradients are in an optimizer, or change otherwise."


@detector("no-gradient", "look", looks_at=("look",))
def no_gradient(facts: Facts) -> Answers:
    said = ""
    for process, which, looks in facts.by_optimizer("look"):
        without = process.of("without", optimizer=which)
        last = without[-1] if without and without[-1].value == looks[-1].value else None
        if last is None or not last.args["never"]:
            continue
        if not last.args["graded"]:
            said = said or f"No parameter that the optimizer ({looks[0].args['kind']}) holds had a gradient at the last look."
            continue
        if len(looks) < _FEW:
            said = said or f"{last.args['never']} parameters had no gradient at the one step that was examined: {_FEW} looks are needed."
            continue
        n, names = last.args["never"], last.args["names"]
        if last.args["before"]:
            yield Answer(
                f"{n} trainable parameters of {last.args['model'] or 'the model'} never receive a gradient, though their layers are "
                f"called before those that do: {names}.",
                without[0],
                "Look for what cuts the graph after them: detach(), .data, no_grad, a detour through numpy or item().",
                {"optimizer": which, "parameters": n, "before": last.args["before"], "names": names, "looked_at": len(looks)},
                looks=len(looks),
            )
        if last.args["called"]:
            said = f"{n} parameters never receive a gradient ({names}): what their layers give is no part of the loss; it may be meant."
        else:
            said = said or f"{n} parameters never receive a gradient ({names}): their layers are not called, like an unused head's."
    return unknown(said) if said else "All trainable parameters that optimizers hold receive gradients."


@detector("missing-zero-grad", "step", "backward", looks_at=("step", "backward", "look"))
def missing_zero_grad(facts: Facts) -> Answers:
    looked = 0
    for process in facts.processes():
        for which in sorted({fact.args["optimizer"] for fact in process.of("cleared", "uncleared")}):
            cleared, kept = process.of("cleared", optimizer=which), process.of("uncleared", optimizer=which)
            looked += len(cleared) + len(kept)
            since = [fact for fact in cleared if kept and fact.at_ns > kept[0].at_ns]
            if len(kept) > len(since):  # from the first time on more often than not
                at = kept[0]
                steps = len(process.of("step", optimizer=which))
                yield Answer(
                    f"New gradients were added to those that the step before had used, which nobody had cleared, at {len(kept)} of "
                    f"{len(kept) + len(since)} steps that were examined since ({steps} in all).",
                    at,
                    "Call optimizer.zero_grad() before each backward pass (with gradient accumulation: after each step).",
                    {"optimizer": which, "looked_at": len(kept) + len(since), "cleared": len(since)},
                    looks=len(kept) + len(since),
                )
    if not looked:
        return unknown("No two steps of an optimizer with a backward pass between them were seen.")
    return f"Gradients were cleared between steps (examined {looked} times)."


@detector("misplaced-zero-grad", "step", "backward", "look", looks_at=("look", "zero_grad"))
def misplaced_zero_grad(facts: Facts) -> Answers:
    for process, which, looks in facts.by_optimizer("look"):
        empty = [look for look in looks if look.args["trainable"] and _is_empty(look)]
        if all(look.args["graded"] and look.args["graded"] == look.args.get("unread") for look in looks):
            kind = looks[0].args["kind"]
            yield f"The gradients of the optimizer ({kind}) cannot be read: they are sharded, sparse or of a class of its own."
            continue
        if len(empty) < len(looks):
            continue
        if len(empty) < _FEW:
            yield f"The optimizer's step had no gradients to use at the one step that was examined: {_FEW} looks are needed."
            continue
        between = _cleared_before_step(process, which)
        if between is not None:
            yield Answer(
                "The gradients were cleared between the backward pass and the optimizer's step, which had none to use, at each of the "
                f"{len(looks)} steps that were examined.",
                between,
                "Call zero_grad() before the backward pass, or after the optimizer's step.",
                {"optimizer": which, "looked_at": len(looks)},
                looks=len(looks),
            )
        elif not process.has("zero_grad"):
            yield "The optimizer's steps had no gradients to use, and no zero_grad was seen: what cleared them is not known."
    return "The optimizer's steps had gradients to use, or it is not for a zero_grad that they had none."


def _is_empty(fact: Fact) -> bool:
    return bool(fact.args["graded"] == fact.args["zero"])


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


RATES_ZERO, RATES_UNREAD = 1, 2  # values of the fact ``step``
_FEW_STILL, _TAIL, _TAIL_SHARE, _SCHEDULED = 3, 20, 0.2, 5
_EACH_STEP = 0.9  # scheduler steps an optimizer step, of a scheduler that steps with each
_HALF_PERIODS = 10  # of a cosine that is used as one: it comes down once


@detector("learning-rate-zero", "step", looks_at=("step", "scheduler"))
def learning_rate_zero(facts: Facts) -> Answers:
    for process, which, steps in facts.by_optimizer("step"):
        if all(step.value == RATES_UNREAD for step in steps):
            yield f"The learning rate of optimizer {which} cannot be read: it is on a device, or under another name than lr."
            continue
        still = next((at for at in range(len(steps) - 1, -1, -1) if steps[at].value != RATES_ZERO), -1) + 1  # from here on all are 0
        n = len(steps) - still
        scheduled = len(process.of("scheduler", optimizer=which))
        if n < _FEW_STILL:
            if still == 0:
                yield f"The learning rate was 0 in {'both steps' if n == _FEW else 'the only step'}: {_FEW_STILL} are needed."
            continue
        if still == 0 and scheduled and scheduled < _SCHEDULED:
            yield f"The learning rate was 0 in all {n} steps, at the beginning of a schedule: the run ended before it could rise."
            continue
        if still and (n < _TAIL or n < _TAIL_SHARE * len(steps)):
            continue
        when = "in every step" if still == 0 else f"in the last {n} of {len(steps)} steps"
        yield Answer(
            f"The learning rate of optimizer {which} was 0 {when}: they change nothing.",
            steps[still],
            "Look at the schedule: its length, its warm-up (integer division?), whether it steps by batch or by epoch.",
            {"optimizer": which, "steps": len(steps), "at_zero": n, "scheduler_steps": scheduled},
        )
    return "Learning rates were above 0, but for a few steps at most."


@detector("scheduler-before-optimizer", "step", looks_at=("step", "scheduler"))
def scheduler_before_optimizer(facts: Facts) -> Answers:
    for process in facts.processes():
        worked = process.of("step", "scaler")
        first = worked[0] if worked else None
        early = [s for s in process.of("scheduler") if first is not None and s.at_ns < first.at_ns and not s.value]
        if early and len(process.of("scheduler")) == len(early):
            kind = early[0].args["scheduler"]
            yield f"{kind}.step() came before the first step of the optimizer, and never after it: the run was too short."
            continue
        for scheduler in early:
            again = [s for s in process.of("scheduler") if s.where == scheduler.where and first is not None and s.at_ns > first.at_ns]
            if again:  # else a schedule that is brought to where a run goes on
                yield Answer(
                    f"{scheduler.args['scheduler']}.step() comes before the optimizer's step: the schedule's first value is never used, "
                    "and each comes one too early.",
                    scheduler,
                    "Call scheduler.step() after optimizer.step(), at the end of the epoch or batch.",
                    {"scheduler": scheduler.args["scheduler"], "before": len(early)},
                )
    if not facts.has("scheduler"):
        return "No scheduler of torch was used."
    return "Schedulers step after the optimizer."


@detector("scheduler-too-often", "step", looks_at=("step", "scheduler"))
def scheduler_too_often(facts: Facts) -> Answers:
    for process in facts.processes():
        for which in sorted({fact.args["optimizer"] for fact in process.of("scheduler")}):
            steps = process.of("step", optimizer=which)
            scheduled = [fact for fact in process.of("scheduler", optimizer=which) if not fact.value]
            rates = process.of("rate", optimizer=which)
            if not scheduled or len(scheduled) < _EACH_STEP * len(steps) or not steps:
                continue
            kind = scheduled[0].args["scheduler"]
            if len(steps) < _TAIL:
                yield f"{kind}.step() comes with every optimizer step, {len(steps)} times: {_TAIL} are needed to tell what that does."
                continue
            evidence = {"optimizer": which, "steps": len(steps), "scheduler_steps": len(scheduled)}
            last = rates[-1] if rates else None
            if last is not None and last.args["tiny"] and last.args["peak"]:
                at = next((n for n, step in enumerate(steps) if step.at_ns >= last.at_ns), len(steps))
                left = len(steps) - at
                if left >= _TAIL and left >= _TAIL_SHARE * len(steps):
                    yield Answer(
                        f"{kind}.step() comes with every optimizer step, and the learning rate is next to nothing "
                        f"({last.args['rate']:.1e}, of {last.args['peak']:.1e}) in the last {left} of {len(steps)} steps.",
                        scheduled[0],
                        "Step the scheduler once an epoch, or give its lengths in batches.",
                        {**evidence, "at_next_to_nothing": left},
                    )
            period = scheduled[0].args.get("period")
            if period and len(scheduled) >= _HALF_PERIODS * period and len(scheduled) >= _TAIL:
                yield Answer(
                    f"{kind}.step() comes with every optimizer step, {len(scheduled)} times, and its T_max is {period}: the learning rate "
                    f"goes down to its least and up again {len(scheduled) // (2 * period)} times.",
                    scheduled[0],
                    "Step the scheduler once an epoch, or give T_max in batches.",
                    {**evidence, "period": period},
                )
    if not facts.has("scheduler"):
        return "No scheduler of torch was used."
    return "No scheduler steps too often."


_FEW_SKIPPED, _SHARE_SKIPPED, _LEAST_ASKED = 5, 0.25, 8
SKIPPED, UNKNOWN = 0, 2  # values of the fact ``scaler``


@detector("not-finite", "step", looks_at=("loss_value", "look"))
def not_finite(facts: Facts) -> Answers:
    for process in facts.processes():
        losses, others = process.of("loss_not_finite"), process.of("not_finite")
        if process.has("scaler"):  # an overflow of the scaled loss or of gradients is what a scaler is for
            others = [fact for fact in others if fact.args["what"] == "parameter"]
        if not any(fact.args["what"] == "parameter" for fact in others):
            if others:
                yield f"Gradients of {others[0].args['names']} were not finite at {others[0].where}, but no parameter became so."
            elif losses and not process.has("scaler"):
                yield f"The loss was {losses[0].args['loss']} at {losses[0].where}, but gradients and parameters stayed finite."
            continue
        first = min([*losses, *others], key=lambda fact: fact.at_ns)
        before = next((fact for fact in others if fact.args["before"]), None)
        if before is not None:
            steps = [step for step in process.of("step") if step.at_ns < first.at_ns]
            first = steps[-1] if steps and not any(fact.at_ns < steps[-1].at_ns for fact in others) else first
        layers = "; ".join(f"{fact.args['what']}s of {fact.args['names']}" for fact in others)
        loss = f"the loss is {losses[0].args['loss']}" if losses else ""
        yield Answer(
            f"Not finite: {loss}{'; ' if loss else ''}{layers}.",
            first,
            "Look at this step's batch and at the learning rate; a division, logarithm or square root of 0, float16 without a scaler. "
            "torch.autograd.set_detect_anomaly(True) names the operation.",
            {"loss": losses[0].args["loss"] if losses else None, **{fact.args["what"]: fact.args["names"] for fact in others}},
        )
    if not facts.tally("loss_value") and not _has_readable_gradients(facts):
        return unknown("Neither losses nor gradients could be read.")
    return "Losses were finite, and so were gradients and parameters where they were looked at."


def _has_readable_gradients(facts: Facts) -> bool:
    return any(look.args["graded"] > look.args.get("unread", 0) for look in facts.of("look"))


@detector("skipped-steps", looks_at=("scaler", "step", "backward"))
def skipped_steps(facts: Facts) -> Answers:
    is_fused = False
    for process in facts.processes() or [facts]:
        for which in sorted({fact.args["optimizer"] for fact in process.of("scaler")}):
            asked = process.of("scaler", optimizer=which)
            is_fused = is_fused or any(fact.value == UNKNOWN for fact in asked)
            late = asked[len(asked) // 2 :]
            skipped, skipped_late = ([fact for fact in some if fact.value == SKIPPED] for some in (asked, late))
            if len(asked) < _LEAST_ASKED and 2 * len(skipped) > len(asked):
                yield f"The gradient scaler left out {len(skipped)} of {len(asked)} steps: more are needed to tell whether it goes on to."
            elif len(asked) >= _LEAST_ASKED and len(skipped) >= _FEW_SKIPPED and len(skipped_late) >= _SHARE_SKIPPED * len(late):
                yield Answer(
                    f"The gradient scaler left out {len(skipped)} of {len(asked)} steps, and goes on to: gradients are never finite.",
                    skipped[0],
                    "Look for what overflows or is nan in the forward or backward pass (bfloat16, clipping, masks), and call update().",
                    {"optimizer": which, "skipped": len(skipped), "of": len(asked)},
                )
    if is_fused:
        return unknown("A fused optimizer leaves out steps itself, on the device, where it cannot be seen.")
    if not facts.has("scaler"):
        return "No gradient scaler of torch was used."
    return "No scaler left out steps again and again."
