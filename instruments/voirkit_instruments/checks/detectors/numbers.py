"""Numbers that are none: nan and inf in loss, gradients and parameters; and steps that a gradient scaler leaves out for them."""

from __future__ import annotations

from voirkit_instruments.checks.detectors.facts import Facts
from voirkit_instruments.checks.detectors.finding import Detector, Finding

_FEW, _SHARE, _LEAST = 5, 0.25, 8
SKIPPED, UNKNOWN = 0, 2  # values of the fact ``scaler``


def _not_finite(facts: Facts) -> Finding:
    doubtful = ""
    for process in facts.processes():
        losses, others = process.of("loss_not_finite"), process.of("not_finite")
        if process.has("scaler"):  # an overflow of the scaled loss or of gradients is what a scaler is for
            others = [fact for fact in others if fact.args["what"] == "parameter"]
        if not any(fact.args["what"] == "parameter" for fact in others):
            if others:
                doubtful = f"Gradients of {others[0].args['names']} were not finite at {others[0].where}, but no parameter became so."
            elif losses and not process.has("scaler"):
                doubtful = f"The loss was {losses[0].args['loss']} at {losses[0].where}, but gradients and parameters stayed finite."
            continue
        first = min([*losses, *others], key=lambda fact: fact.at_ns)
        before = next((fact for fact in others if fact.args["before"]), None)
        if before is not None:
            steps = [step for step in process.of("step") if step.at_ns < first.at_ns]
            first = steps[-1] if steps and not any(fact.at_ns < steps[-1].at_ns for fact in others) else first
        layers = "; ".join(f"{fact.args['what']}s of {fact.args['names']}" for fact in others)
        loss = f"the loss is {losses[0].args['loss']}" if losses else ""
        return Finding(
            True,
            f"Not finite: {loss}{'; ' if loss else ''}{layers}.",
            first,
            "Look at this step's batch and at the learning rate; a division, logarithm or square root of 0, float16 without a scaler. "
            "torch.autograd.set_detect_anomaly(True) names the operation.",
            {"loss": losses[0].args["loss"] if losses else None, **{fact.args["what"]: fact.args["names"] for fact in others}},
        )
    if doubtful:
        return Finding(None, doubtful)
    return Finding(False, "Losses were finite, and so were gradients and parameters where they were looked at.")


def _skipped(facts: Facts) -> Finding:
    unknown = False
    for process in facts.processes() or [facts]:
        for which in sorted({fact.args["optimizer"] for fact in process.of("scaler")}):
            asked = process.of("scaler", optimizer=which)
            unknown = unknown or any(fact.value == UNKNOWN for fact in asked)
            late = asked[len(asked) // 2 :]
            skipped, skipped_late = ([fact for fact in some if fact.value == SKIPPED] for some in (asked, late))
            if len(asked) >= _LEAST and len(skipped) >= _FEW and len(skipped_late) >= _SHARE * len(late):
                return Finding(
                    True,
                    f"The gradient scaler left out {len(skipped)} of {len(asked)} steps, and goes on to: gradients are never finite.",
                    skipped[0],
                    "Look for what overflows or is nan in the forward or backward pass (bfloat16, clipping, masks), and call update().",
                    {"optimizer": which, "skipped": len(skipped), "of": len(asked)},
                )
    if unknown:
        return Finding(None, "A fused optimizer leaves out steps itself, on the device, where it cannot be seen.")
    return Finding(False, "No scaler left out steps again and again.")


NOT_FINITE = Detector("not-finite", _not_finite, ("step",))
SKIPPED_STEPS = Detector("skipped-steps", _skipped)
