"""A loss from which no gradient comes to what is trained, and loss functions that are given what they do not expect."""

from __future__ import annotations

from voirkit_instruments.checks.detectors.facts import Facts
from voirkit_instruments.checks.detectors.finding import Detector, Finding

_FEW = 2


def _not_connected(facts: Facts) -> Finding:
    for process in facts.processes():
        looks, reached = process.of("look"), process.of("reach")
        if len(looks) < _FEW or not reached or any(look.args["graded"] > look.args["zero"] for look in looks):
            continue
        if any(reach.args["held"] or reach.args["parameters"] for reach in reached) or not any(look.args["trainable"] for look in looks):
            continue
        loose = [reach for reach in reached if reach.args["leaf_root"]]
        how = "it is a new tensor, without a history" if loose else "what it was computed from ends before them"
        return Finding(
            True,
            "The backward pass reaches no parameter, and no parameter of an optimizer ever has a gradient: the loss is not connected to "
            f"them, {how}.",
            (loose or reached)[0],
            "Compute the loss from the model's output by torch's own operations: no item(), tolist(), numpy(), detach(), argmax or "
            "torch.tensor(...) on the way.",
            {"looked_at": len(reached), "leaf_is_loss": bool(loose)},
            looks=len(looks),
        )
    return Finding(False, "Backward passes reach parameters that are trained.")


_WRONG = {
    ("cross_entropy", "softmax"): ("cross_entropy takes a softmax itself", "Give it the scores before the softmax."),
    ("nll_loss", "softmax"): ("nll_loss expects logarithms of probabilities", "Use log_softmax, or cross_entropy on the scores."),
    ("binary_cross_entropy_with_logits", "sigmoid"): (
        "binary_cross_entropy_with_logits takes a sigmoid itself",
        "Give it the scores before the sigmoid, or use binary_cross_entropy.",
    ),
}


def _softmax(facts: Facts) -> Finding:
    harmless = False
    for fact in facts.of("loss_input"):
        wrong = _WRONG.get((fact.args["loss"], fact.args["input"]))
        if wrong is not None:
            why, what = wrong
            return Finding(
                True,
                f"The output of {fact.args['input']} goes into {fact.args['loss']}: {why}. Gradients are weak, the loss cannot get small.",
                fact,
                what,
                {"loss": fact.args["loss"], "input": fact.args["input"]},
                looks=facts.count("backward"),
            )
        harmless = harmless or (fact.args["loss"], fact.args["input"]) == ("cross_entropy", "log_softmax")
    if harmless:
        return Finding(False, "The output of log_softmax goes into cross_entropy, which is done twice then and changes nothing.")
    return Finding(False, "No softmax or sigmoid goes into a loss that takes one itself.")


def _broadcast(facts: Facts) -> Finding:
    for process in facts.processes():
        seen = process.of("loss_shapes")
        if seen:
            first = seen[0]
            same = [fact for fact in seen if (fact.args["loss"], fact.where) == (first.args["loss"], first.where)]
            given, target, becomes = (first.args[key] for key in ("input", "target", "becomes"))
            what = "A loss written by hand" if first.args["loss"] == "a difference" else first.args["loss"]
            return Finding(
                True,
                f"{what} compares an output of shape {given} with a target of shape {target}: they are broadcast to {becomes}, each output "
                "is compared with every target.",
                first,
                "Give both the same shape: output.squeeze(1), or target.unsqueeze(1).",
                {"loss": first.args["loss"], "input": given, "target": target, "broadcast_to": becomes},
                looks=len(same),
            )
    return Finding(False, "Losses compare each output with its own target, as far as shapes tell.")


NOT_CONNECTED = Detector("loss-not-connected", _not_connected, ("look", "reach"))
SOFTMAX = Detector("softmax-before-cross-entropy", _softmax, ("backward",))
BROADCAST = Detector("loss-broadcast", _broadcast, ("backward",))
