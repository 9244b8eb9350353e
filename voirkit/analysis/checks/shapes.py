"""Losses of outputs and targets that have as many numbers and another shape, so that each is compared with all."""

from __future__ import annotations

from voirkit.analysis.checks.facts import Facts
from voirkit.analysis.checks.finding import Detector, Finding


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


BROADCAST = Detector("loss-broadcast", _broadcast, ("backward",))
