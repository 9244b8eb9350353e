"""Detectors of silent bugs in optimizers.

They find gradients that are never cleared, or cleared too early; parameters that an optimizer holds
and should not, or should hold and does not; wrong learning rates and schedules; numbers that are
not finite, and steps that a gradient scaler skips because of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from voirkit_instruments.checks.analyse_facts import Answer, Answers, Fact, Facts, detector, unknown

# fewest inspections that prove anything: at its first step a script may still be starting up
_FEW = 2


@detector("frozen-parameters", "look", looks_at=("look",))
def frozen_parameters(facts: Facts) -> Answers:
    has_some_frozen = False
    for _, optimizer, inspections in facts.by_optimizer("look"):
        first = inspections[0].args
        is_trained = any(fact.args["trainable"] or fact.args["graded"] for fact in inspections)
        n_held = first["held"]
        if n_held and not is_trained:
            yield Answer(
                f"All {n_held} parameters that the optimizer ({first['kind']}) holds are frozen"
                " (requires_grad is False): its steps change nothing.",
                inspections[0],
                "Make the optimizer from the parameters that are to be trained, after they were"
                " frozen, replaced or thawed.",
                {"optimizer": optimizer, "held": n_held, "looked_at": len(inspections)},
                n_inspected=len(inspections),
            )
        last = inspections[-1].args
        if last["trainable"] < last["held"]:
            has_some_frozen = True
    if has_some_frozen:
        return "An optimizer holds frozen parameters beside others, which is harmless."
    return "The optimizers hold parameters that require gradients."


@detector("foreign-parameters", "look", "reach", looks_at=("look", "graph"))
def foreign_parameters(facts: Facts) -> Answers:
    for process, optimizer, inspections in facts.by_optimizer("look"):
        first = inspections[0].args
        if len(inspections) < _FEW and first["trainable"] and not first["graded"]:
            yield (
                f"The optimizer ({first['kind']}) was examined once, without gradients: {_FEW}"
                " looks are needed."
            )
        yield from _unread_values(process)
        unheld = _last(process.of("unheld"))
        if unheld is None or not unheld.value:
            continue
        because = _trains_none_of_its_own(process, inspections, unheld)
        if not because:
            because = _holds_another_model(process, optimizer, first["kind"], unheld)
        if not because:
            continue
        yield Answer(
            f"{because} ({unheld.args['names']}).",
            inspections[0],
            "Make the optimizer after the model has its final form (made again, copied, wrapped,"
            " its head replaced).",
            {
                "optimizer": optimizer,
                "held": first["held"],
                "not_held": unheld.value,
                "names": unheld.args["names"],
            },
            n_inspected=len(inspections),
        )
    return "What the optimizers hold is what gets gradients."


def _last(facts: Sequence[Fact]) -> Fact | None:
    return facts[-1] if facts else None


def _unread_values(process: Facts) -> Iterator[str]:
    """Yield the doubt about parameters outside of optimizers whose values cannot be read."""
    unheld = _last(process.of("unheld"))
    if unheld is not None and unheld.args.get("unread"):
        yield (
            f"Whether {unheld.args['unread']} parameters that no optimizer holds change is not"
            " known: their values cannot be read."
        )


def _trains_none_of_its_own(process: Facts, inspections: Sequence[Fact], unheld: Fact) -> str:
    """Return the sentence on an optimizer none of whose parameters has a gradient; otherwise
    empty."""
    if len(inspections) < _FEW:
        return ""
    if any(fact.args["graded"] or not fact.args["trainable"] for fact in inspections):
        return ""
    if any(reach.args["held"] for reach in process.of("reach")):
        return ""
    first = inspections[0].args
    return (
        f"None of the {first['trainable']} parameters that the optimizer ({first['kind']}) holds"
        f" ever has a gradient; {unheld.value} others have, which no optimizer holds and which"
        " never change"
    )


def _holds_another_model(process: Facts, optimizer: int, kind: str, unheld: Fact) -> str:
    """Return the sentence on an optimizer with parameters that belong to no model that is called;
    otherwise empty."""
    without = process.of("without", optimizer=optimizer)
    if len(without) < _FEW or unheld.args["unnamed"] >= unheld.value:
        return ""
    n_lost = without[-1].args["never"] - without[-1].args["of_models"]
    if not n_lost:
        return ""
    return (
        f"{n_lost} parameters that the optimizer ({kind}) holds are of no model that is called;"
        f" {unheld.value} of the model are held by no optimizer"
    )


@detector("never-updated", "look", "reach", looks_at=("look", "graph"))
def never_updated(facts: Facts) -> Answers:
    if foreign_parameters.decide(facts).is_present:
        return unknown(
            "An optimizer holds parameters of another model, which is reported on its own."
        )
    for process in facts.processes():
        yield from _unread_values(process)
        unheld = _last(process.of("unheld"))
        if unheld is not None and unheld.value:
            yield _answer_never_updated(process, unheld)
    return "All parameters that get gradients are in an optimizer, or change otherwise."


def _answer_never_updated(process: Facts, unheld: Fact) -> Answer | str:
    """Return the bug, or why it is in doubt, by the last inspection of the parameters that no
    optimizer holds."""
    n, names = unheld.value, unheld.args["names"]
    if len(process.of("step")) < _FEW:
        return (
            f"{n} parameters get gradients and are in no optimizer; whether they change is not"
            " known after one step."
        )
    reaches = process.of("reach")
    if not any(reach.args["held"] and reach.args["parameters"] for reach in reaches):
        return f"{n} parameters of another model get gradients and are in no optimizer ({names})."
    is_middle_part = unheld.args["after"] and unheld.args["partly"]
    if not is_middle_part and not unheld.args["unnamed"]:
        return (
            f"{n} parameters get gradients and are in no optimizer ({names}): it may be meant, as"
            " when only a head is trained, or another model is part of the loss."
        )
    inspections = process.of("unheld")
    located = next((fact for fact in inspections if fact.where), unheld)
    of_models = f" of {unheld.args['models']}" if unheld.args["models"] else ""
    return Answer(
        f"{n} parameters{of_models} get gradients, but no optimizer holds them and they never"
        f" change: {names}.",
        located,
        "Give them to the optimizer (layers in a plain list are no part of a module:"
        " nn.ModuleList), or freeze them with requires_grad_(False) if that is meant.",
        {"parameters": n, "names": names},
        n_inspected=len(inspections),
    )


@detector("no-gradient", "look", looks_at=("look",))
def no_gradient(facts: Facts) -> Answers:
    doubt = ""
    for process, optimizer, inspections in facts.by_optimizer("look"):
        without = process.of("without", optimizer=optimizer)
        last = _last(without)
        if last is None or last.value != inspections[-1].value:
            continue
        n, names = last.args["never"], last.args["names"]
        if not n:
            continue
        is_examined = last.args["graded"] and len(inspections) >= _FEW
        if is_examined and last.args["before"]:
            model = last.args["model"] or "the model"
            yield Answer(
                f"{n} trainable parameters of {model} never receive a gradient, though their layers"
                f" are called before those that do: {names}.",
                without[0],
                "Look for what cuts the graph after them: detach(), .data, no_grad, a detour"
                " through numpy or item().",
                {
                    "optimizer": optimizer,
                    "parameters": n,
                    "before": last.args["before"],
                    "names": names,
                    "looked_at": len(inspections),
                },
                n_inspected=len(inspections),
            )
        # a doubt about layers that are called takes precedence over a doubt about other layers
        if not doubt or (is_examined and last.args["called"]):
            doubt = _doubt_of_no_gradient(inspections, last)
    if doubt:
        return unknown(doubt)
    return "All trainable parameters that optimizers hold receive gradients."


def _doubt_of_no_gradient(inspections: Sequence[Fact], without: Fact) -> str:
    """Return why it is unknown if an optimizer's parameters should have had gradients."""
    n, names = without.args["never"], without.args["names"]
    if not without.args["graded"]:
        kind = inspections[0].args["kind"]
        return f"No parameter that the optimizer ({kind}) holds had a gradient at the last look."
    if len(inspections) < _FEW:
        return (
            f"{n} parameters had no gradient at the one step that was examined: {_FEW} looks are"
            " needed."
        )
    if without.args["called"]:
        return (
            f"{n} parameters never receive a gradient ({names}): what their layers give is no part"
            " of the loss; it may be meant."
        )
    return (
        f"{n} parameters never receive a gradient ({names}): their layers are not called, like an"
        " unused head's."
    )


@detector("missing-zero-grad", "step", "backward", looks_at=("step", "backward", "look"))
def missing_zero_grad(facts: Facts) -> Answers:
    n_inspected = 0
    for process in facts.processes():
        for optimizer in process.optimizers("cleared", "uncleared"):
            cleared = process.of("cleared", optimizer=optimizer)
            uncleared = process.of("uncleared", optimizer=optimizer)
            n_inspected += len(cleared) + len(uncleared)
            if not uncleared:
                continue
            first = uncleared[0]
            cleared_since = sum(fact.at_ns > first.at_ns for fact in cleared)
            if len(uncleared) <= cleared_since:
                continue
            # the bug: since the first time that gradients were left in place, they were left in
            # place more often than cleared
            n_since = len(uncleared) + cleared_since
            n_steps = len(process.of("step", optimizer=optimizer))
            yield Answer(
                "New gradients were added to those that the step before had used, which nobody"
                f" had cleared, at {len(uncleared)} of {n_since} steps that were examined since"
                f" ({n_steps} in all).",
                first,
                "Call optimizer.zero_grad() before each backward pass (with gradient"
                " accumulation: after each step).",
                {"optimizer": optimizer, "looked_at": n_since, "cleared": cleared_since},
                n_inspected=n_since,
            )
    if not n_inspected:
        return unknown("No two steps of an optimizer with a backward pass between them were seen.")
    return f"Gradients were cleared between steps (examined {n_inspected} times)."


@detector("misplaced-zero-grad", "step", "backward", "look", looks_at=("look", "zero_grad"))
def misplaced_zero_grad(facts: Facts) -> Answers:
    for process, optimizer, inspections in facts.by_optimizer("look"):
        if all(_is_unreadable(fact) for fact in inspections):
            kind = inspections[0].args["kind"]
            yield (
                f"The gradients of the optimizer ({kind}) cannot be read: they are sharded, sparse"
                " or of a class of its own."
            )
            continue
        if not all(_is_without_gradients(fact) for fact in inspections):
            continue
        if len(inspections) < _FEW:
            yield (
                "The optimizer's step had no gradients to use at the one step that was examined:"
                f" {_FEW} looks are needed."
            )
            continue
        clearing = _cleared_before_step(process, optimizer)
        if clearing is not None:
            yield Answer(
                "The gradients were cleared between the backward pass and the optimizer's step,"
                f" which had none to use, at each of the {len(inspections)} steps that were"
                " examined.",
                clearing,
                "Call zero_grad() before the backward pass, or after the optimizer's step.",
                {"optimizer": optimizer, "looked_at": len(inspections)},
                n_inspected=len(inspections),
            )
        elif not process.has("zero_grad"):
            yield (
                "The optimizer's steps had no gradients to use, and no zero_grad was seen: what"
                " cleared them is not known."
            )
    return (
        "The optimizer's steps had gradients to use, or it is not for a zero_grad that they had"
        " none."
    )


def _is_unreadable(inspection: Fact) -> bool:
    """True if there were gradients, and none of them could be read."""
    graded = inspection.args["graded"]
    return bool(graded and graded == inspection.args.get("unread"))


def _is_without_gradients(inspection: Fact) -> bool:
    """True if an optimizer with trainable parameters had no gradients but zeros."""
    args = inspection.args
    return bool(args["trainable"] and args["graded"] == args["zero"])


def _cleared_before_step(process: Facts, optimizer: int) -> Fact | None:
    """Return the first clearing of gradients between a backward pass and a step, if gradients were
    cleared there at (nearly) each step; otherwise None."""
    first: Fact | None = None
    n_steps = n_cleared = 0
    since_step: list[Fact] = []
    for fact in process.of("backward", "zero_grad", "step"):
        if fact.name != "step":
            since_step.append(fact)
        elif fact.args["optimizer"] == optimizer:
            n_steps += 1
            clearing = _last_clearing(since_step, optimizer)
            if clearing is not None:
                n_cleared += 1
                first = first or clearing
            since_step = []
    return first if n_cleared and n_cleared >= n_steps - 1 else None


def _last_clearing(facts: Sequence[Fact], optimizer: int) -> Fact | None:
    """Return the first clearing after the last backward pass in ``facts``; None if there is
    none."""
    clearing: Fact | None = None
    for fact in reversed(facts):
        if fact.name == "backward":
            # with the start of the backward pass, the clearing is counted in the right step
            return None if clearing is None else replace(clearing, start_ns=fact.start_ns)
        if fact.name == "zero_grad" and fact.args.get("optimizer") in (optimizer, -1):
            clearing = fact
    return None


RATES_ZERO, RATES_UNREAD = 1, 2  # values of the fact ``step``
_FEW_STILL, _TAIL, _TAIL_SHARE, _SCHEDULED = 3, 20, 0.2, 5
# a scheduler with at least this many steps per optimizer step counts as stepping with each of them
_EACH_STEP = 0.9
# this many half periods of a cosine schedule are too many: it should come down once
_HALF_PERIODS = 10


@detector("learning-rate-zero", "step", looks_at=("step", "scheduler"))
def learning_rate_zero(facts: Facts) -> Answers:
    for process, optimizer, steps in facts.by_optimizer("step"):
        answer = _answer_rate_zero(process, optimizer, steps)
        if answer is not None:
            yield answer
    return "Learning rates were above 0, but for a few steps at most."


def _answer_rate_zero(process: Facts, optimizer: int, steps: list[Fact]) -> Answer | str | None:
    """Return the bug of one optimizer, or why it is in doubt; None if there is none."""
    if all(step.value == RATES_UNREAD for step in steps):
        return (
            f"The learning rate of optimizer {optimizer} cannot be read: it is on a device, or"
            " under another name than lr."
        )
    first_zero = _first_of_zero_rates(steps)
    n_zero = len(steps) - first_zero
    is_always_zero = first_zero == 0
    if n_zero < _FEW_STILL:
        if not is_always_zero:
            return None
        steps_words = "both steps" if n_zero == _FEW else "the only step"
        return f"The learning rate was 0 in {steps_words}: {_FEW_STILL} are needed."
    n_scheduled = len(process.of("scheduler", optimizer=optimizer))
    if is_always_zero and 0 < n_scheduled < _SCHEDULED:
        return (
            f"The learning rate was 0 in all {n_zero} steps, at the beginning of a schedule: the"
            " run ended before it could rise."
        )
    is_short_tail = n_zero < _TAIL or n_zero < _TAIL_SHARE * len(steps)
    if not is_always_zero and is_short_tail:
        return None
    when = "in every step" if is_always_zero else f"in the last {n_zero} of {len(steps)} steps"
    return Answer(
        f"The learning rate of optimizer {optimizer} was 0 {when}: they change nothing.",
        steps[first_zero],
        "Look at the schedule: its length, its warm-up (integer division?), whether it steps by"
        " batch or by epoch.",
        {
            "optimizer": optimizer,
            "steps": len(steps),
            "at_zero": n_zero,
            "scheduler_steps": n_scheduled,
        },
    )


def _first_of_zero_rates(steps: Sequence[Fact]) -> int:
    """Return the index of the first step from which on all learning rates are 0; the number of
    steps if they are not all 0 at the last step."""
    index = len(steps)
    while index > 0 and steps[index - 1].value == RATES_ZERO:
        index -= 1
    return index


@detector("scheduler-before-optimizer", "step", looks_at=("step", "scheduler"))
def scheduler_before_optimizer(facts: Facts) -> Answers:
    for process in facts.processes():
        optimizer_steps = process.of("step", "scaler")
        if optimizer_steps:
            scheduled = process.of("scheduler")
            yield from _answers_scheduled_before(optimizer_steps[0].at_ns, scheduled)
    if not facts.has("scheduler"):
        return "No scheduler of torch was used."
    return "Schedulers step after the optimizer."


def _answers_scheduled_before(first_ns: int, scheduled: list[Fact]) -> Iterator[Answer | str]:
    """Yield the bugs, and doubts, of schedulers that step before the first step of an optimizer."""
    before = [fact for fact in scheduled if fact.at_ns < first_ns]
    early = [fact for fact in before if not fact.value]
    if early and len(scheduled) == len(early):
        kind = early[0].args["scheduler"]
        yield (
            f"{kind}.step() came before the first step of the optimizer, and never after it: the"
            " run was too short."
        )
        return
    places_after = {fact.where for fact in scheduled if fact.at_ns > first_ns}
    for fact in early:
        if fact.where not in places_after:
            # not the bug: a resumed run advances its schedule before it continues
            continue
        kind = fact.args["scheduler"]
        yield Answer(
            f"{kind}.step() comes before the optimizer's step: the schedule's first value is never"
            " used, and each comes one too early.",
            fact,
            "Call scheduler.step() after optimizer.step(), at the end of the epoch or batch.",
            {"scheduler": kind, "before": len(early)},
        )


@detector("scheduler-too-often", "step", looks_at=("step", "scheduler"))
def scheduler_too_often(facts: Facts) -> Answers:
    for process in facts.processes():
        for optimizer in process.optimizers("scheduler"):
            yield from _answers_too_often(process, optimizer)
    if not facts.has("scheduler"):
        return "No scheduler of torch was used."
    return "No scheduler steps too often."


def _answers_too_often(process: Facts, optimizer: int) -> Iterator[Answer | str]:
    """Yield the bugs of a scheduler that steps with every optimizer step, or what is in doubt."""
    steps = process.of("step", optimizer=optimizer)
    scheduled = [fact for fact in process.of("scheduler", optimizer=optimizer) if not fact.value]
    if not scheduled or not steps or len(scheduled) < _EACH_STEP * len(steps):
        return
    kind = scheduled[0].args["scheduler"]
    if len(steps) < _TAIL:
        yield (
            f"{kind}.step() comes with every optimizer step, {len(steps)} times: {_TAIL} are needed"
            " to tell what that does."
        )
        return
    evidence = {"optimizer": optimizer, "steps": len(steps), "scheduler_steps": len(scheduled)}
    rate = _last(process.of("rate", optimizer=optimizer))
    n_tiny = _count_tiny_rates(rate, steps)
    if rate is not None and n_tiny >= max(_TAIL, _TAIL_SHARE * len(steps)):
        yield Answer(
            f"{kind}.step() comes with every optimizer step, and the learning rate is next to"
            f" nothing ({rate.args['rate']:.1e}, of {rate.args['peak']:.1e}) in the last"
            f" {n_tiny} of {len(steps)} steps.",
            scheduled[0],
            "Step the scheduler once an epoch, or give its lengths in batches.",
            {**evidence, "at_next_to_nothing": n_tiny},
        )
    period = scheduled[0].args.get("period")
    if period and len(scheduled) >= max(_HALF_PERIODS * period, _TAIL):
        yield Answer(
            f"{kind}.step() comes with every optimizer step, {len(scheduled)} times, and its T_max"
            f" is {period}: the learning rate goes down to its least and up again"
            f" {len(scheduled) // (2 * period)} times.",
            scheduled[0],
            "Step the scheduler once an epoch, or give T_max in batches.",
            {**evidence, "period": period},
        )


def _count_tiny_rates(rate: Fact | None, steps: Sequence[Fact]) -> int:
    """Count the steps since the learning rate became close to zero; 0 if it is not close to
    zero."""
    if rate is None or not rate.args["tiny"] or not rate.args["peak"]:
        return 0
    return sum(step.at_ns >= rate.at_ns for step in steps)


_FEW_SKIPPED, _SHARE_SKIPPED, _LEAST_ASKED = 5, 0.25, 8
SKIPPED, UNKNOWN = 0, 2  # values of the fact ``scaler``


@detector("not-finite", "step", looks_at=("loss_value", "look"))
def not_finite(facts: Facts) -> Answers:
    for process in facts.processes():
        answer = _answer_not_finite(process)
        if answer is not None:
            yield answer
    if not facts.tally("loss_value") and not _has_readable_gradients(facts):
        return unknown("Neither losses nor gradients could be read.")
    return "Losses were finite, and so were gradients and parameters where they were looked at."


def _answer_not_finite(process: Facts) -> Answer | str | None:
    """Return the bug of one process, or why it is in doubt; None if all was finite."""
    losses = process.of("loss_not_finite")
    tensors = process.of("not_finite")
    parameters = [fact for fact in tensors if fact.args["what"] == "parameter"]
    # With a gradient scaler, only parameters that are not finite count as a bug: the scaler is
    # there to handle an overflow of the scaled loss or of gradients.
    has_scaler = process.has("scaler")
    if not parameters:
        return None if has_scaler else _doubt_of_finite(losses, tensors)
    if has_scaler:
        tensors = parameters
    layers = "; ".join(f"{fact.args['what']}s of {fact.args['names']}" for fact in tensors)
    loss = losses[0].args["loss"] if losses else None
    loss_words = f"the loss is {loss}; " if losses else ""
    evidence = {"loss": loss}
    for fact in tensors:
        evidence[fact.args["what"]] = fact.args["names"]
    return Answer(
        f"Not finite: {loss_words}{layers}.",
        _first_not_finite(process, losses, tensors),
        "Look at this step's batch and at the learning rate; a division, logarithm or square root"
        " of 0, float16 without a scaler. torch.autograd.set_detect_anomaly(True) names the"
        " operation.",
        evidence,
    )


def _doubt_of_finite(losses: list[Fact], gradients: list[Fact]) -> str | None:
    """Return the doubt if gradients or losses were not finite but parameters were; otherwise
    None."""
    if gradients:
        first = gradients[0]
        return (
            f"Gradients of {first.args['names']} were not finite at {first.where}, but no parameter"
            " became so."
        )
    if losses:
        first = losses[0]
        return (
            f"The loss was {first.args['loss']} at {first.where}, but gradients and parameters"
            " stayed finite."
        )
    return None


def _first_not_finite(process: Facts, losses: list[Fact], tensors: list[Fact]) -> Fact:
    """Return the first fact about numbers that are not finite. If parameters were not finite before
    the next step, return the optimizer step that came before this fact."""
    first = min([*losses, *tensors], key=lambda fact: fact.at_ns)
    if not any(fact.args["before"] for fact in tensors):
        return first
    step = _last([step for step in process.of("step") if step.at_ns < first.at_ns])
    if step is None or any(fact.at_ns < step.at_ns for fact in tensors):
        return first
    return step


def _has_readable_gradients(facts: Facts) -> bool:
    return any(fact.args["graded"] > fact.args.get("unread", 0) for fact in facts.of("look"))


@detector("skipped-steps", looks_at=("scaler", "step", "backward"))
def skipped_steps(facts: Facts) -> Answers:
    is_fused = False
    for process in facts.processes() or [facts]:
        for optimizer in process.optimizers("scaler"):
            scaled = process.of("scaler", optimizer=optimizer)
            is_fused = is_fused or any(fact.value == UNKNOWN for fact in scaled)
            answer = _answer_skipped(optimizer, scaled)
            if answer is not None:
                yield answer
    if is_fused:
        return unknown(
            "A fused optimizer leaves out steps itself, on the device, where it cannot be seen."
        )
    if not facts.has("scaler"):
        return "No gradient scaler of torch was used."
    return "No scaler left out steps again and again."


def _answer_skipped(optimizer: int, scaled: list[Fact]) -> Answer | str | None:
    """Return the bug of one optimizer's scaler, or why it is in doubt; None if there is none."""
    n = len(scaled)
    skipped = [fact for fact in scaled if fact.value == SKIPPED]
    if n < _LEAST_ASKED:
        if 2 * len(skipped) <= n:
            return None
        return (
            f"The gradient scaler left out {len(skipped)} of {n} steps: more are needed to tell"
            " whether it goes on to."
        )
    second_half = scaled[n // 2 :]
    n_skipped_late = sum(fact.value == SKIPPED for fact in second_half)
    if len(skipped) < _FEW_SKIPPED or n_skipped_late < _SHARE_SKIPPED * len(second_half):
        return None
    return Answer(
        f"The gradient scaler left out {len(skipped)} of {n} steps, and goes on to: gradients are"
        " never finite.",
        skipped[0],
        "Look for what overflows or is nan in the forward or backward pass (bfloat16, clipping,"
        " masks), and call update().",
        {"optimizer": optimizer, "skipped": len(skipped), "of": n},
    )
