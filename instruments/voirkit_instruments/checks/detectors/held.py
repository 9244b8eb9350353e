"""What optimizers hold: nothing but frozen parameters, those of another model, not all of the model's, some without gradients."""

from __future__ import annotations

from voirkit_instruments.checks.detectors.facts import Fact, Facts
from voirkit_instruments.checks.detectors.finding import Detector, Finding

_FEW = 2  # looks at least: at the first step a script may still be about to begin


def _optimizers(process: Facts) -> list[tuple[int, list[Fact]]]:
    """The looks at each optimizer."""
    return [(which, process.of("look", optimizer=which)) for which in sorted({look.args["optimizer"] for look in process.of("look")})]


def _frozen(facts: Facts) -> Finding:
    some = 0
    for process in facts.processes():
        for which, looks in _optimizers(process):
            if looks[0].args["held"] and not any(look.args["trainable"] or look.args["graded"] for look in looks):
                return Finding(
                    True,
                    f"All {looks[0].args['held']} parameters that the optimizer ({looks[0].args['kind']}) holds are frozen "
                    "(requires_grad is False): its steps change nothing.",
                    looks[0],
                    "Make the optimizer from the parameters that are to be trained, after they were frozen, replaced or thawed.",
                    {"optimizer": which, "held": looks[0].args["held"], "looked_at": len(looks)},
                    looks=len(looks),
                )
            some += looks[-1].args["trainable"] < looks[-1].args["held"]
    if some:
        return Finding(False, "An optimizer holds frozen parameters beside others, which is harmless.")
    return Finding(False, "The optimizers hold parameters that require gradients.")


def _foreign(facts: Facts) -> Finding:
    for process in facts.processes():
        unheld = process.of("unheld")
        last = unheld[-1] if unheld else None
        if last is None or not last.value:
            continue
        for which, looks in _optimizers(process):
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
            return Finding(
                True,
                f"{said} ({last.args['names']}).",
                looks[0],
                "Make the optimizer after the model has its final form (made anew, copied, wrapped, its head replaced).",
                {"optimizer": which, "held": looks[0].args["held"], "not_held": last.value, "names": last.args["names"]},
                looks=len(looks),
            )
    return Finding(False, "What the optimizers hold is what gets gradients.")


def _never_updated(facts: Facts) -> Finding:
    if _foreign(facts).found:
        return Finding(None, "An optimizer holds parameters of another model, which is told of for itself.")
    doubtful = ""
    for process in facts.processes():
        unheld = process.of("unheld")
        last = unheld[-1] if unheld else None
        if last is None or not last.value or len(process.of("step")) < _FEW:
            continue
        reached = any(reach.args["held"] and reach.args["parameters"] for reach in process.of("reach"))
        if not reached:
            doubtful = doubtful or f"{last.value} parameters of another model get gradients and are in no optimizer ({last.args['names']})."
        elif (last.args["after"] and last.args["partly"]) or last.args["unnamed"]:
            whose = f" of {last.args['models']}" if last.args["models"] else ""
            return Finding(
                True,
                f"{last.value} parameters{whose} get gradients, but no optimizer holds them and they never change: {last.args['names']}.",
                next((fact for fact in unheld if fact.where), last),
                "Give them to the optimizer (layers in a plain list are no part of a module: nn.ModuleList), or freeze them with "
                "requires_grad_(False) if that is meant.",
                {"parameters": last.value, "names": last.args["names"]},
                looks=len(unheld),
            )
        else:
            doubtful = f"{last.value} parameters get gradients and are in no optimizer ({last.args['names']}): it may be meant, as when "
            doubtful += "only a head is trained, or another model is part of the loss."
    if doubtful:
        return Finding(None, doubtful)
    return Finding(False, "All parameters that get gradients are in an optimizer, or change otherwise.")


def _no_gradient(facts: Facts) -> Finding:
    said = ""
    for process in facts.processes():
        for which, looks in _optimizers(process):
            without = process.of("without", optimizer=which)
            last = without[-1] if without and len(looks) >= _FEW and without[-1].value == looks[-1].value else None
            if last is None or not last.args["never"] or not last.args["graded"]:
                continue
            n, names = last.args["never"], last.args["names"]
            if last.args["before"]:
                return Finding(
                    True,
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
    return Finding(None if said else False, said or "All trainable parameters that optimizers hold receive gradients.")


FROZEN = Detector("frozen-parameters", _frozen, ("look",))
FOREIGN = Detector("foreign-parameters", _foreign, ("look",))
NEVER_UPDATED = Detector("never-updated", _never_updated, ("look", "reach"))
NO_GRADIENT = Detector("no-gradient", _no_gradient, ("look",))
