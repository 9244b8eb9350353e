"""Models in eval mode while they are trained, and in train mode while they are evaluated. Only layers that make a difference count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voirkit_instruments.checks.detectors.facts import Fact, Facts
from voirkit_instruments.checks.detectors.finding import Detector, Finding

_FEW = 3  # steps


@dataclass
class _Trained:
    """How a model was called in the steps of the training.

    Attributes:
        train: In how many steps in train mode.
        eval: The first call of each step in eval mode since it was last in train mode.
        by: The optimizers that stepped in train mode, and those that did in these steps in eval mode.
    """

    train: int
    eval: list[Fact]
    by: tuple[set[int], set[int]]


def _eval_while_training(facts: Facts) -> Finding:
    doubtful = ""
    for process in facts.processes():
        layers = _layers(process)
        for model, seen in _by_step(process).items():
            found = layers.get((model, False))
            if found is None or len(seen.eval) < _FEW:
                continue
            dropout, norm = found["dropout_off"], found["norm_off"]
            if not dropout + norm:
                continue
            said = " and ".join([*([f"{dropout} dropout"] if dropout else []), *([f"{norm} batch norm"] if norm else [])])
            if found["frozen"]:
                doubtful = f"{found['kind']} is trained in eval mode, with some of its parameters frozen: that is done on purpose, too."
            elif seen.train and _is_another_part(process, model, seen):
                doubtful = f"A part of {found['kind']} is trained by another optimizer than before, in eval mode: it may be meant."
            elif not seen.train and not dropout and found["fresh"] < norm:
                doubtful = (
                    f"{found['kind']} is trained in eval mode from the first step on, with the batch norm that was loaded: it may be meant."
                )
            else:
                since = "left in eval mode" if seen.train else "never put into train mode"
                return Finding(
                    True,
                    f"{found['kind']} was {since} and trained like that for {len(seen.eval)} steps: {said} layers work as in evaluation.",
                    seen.eval[0],
                    "Call model.train() before each epoch's training, after every model.eval().",
                    {
                        "model": found["kind"],
                        "steps_in_eval": len(seen.eval),
                        "steps_in_train": seen.train,
                        "dropout": dropout,
                        "norm": norm,
                    },
                )
    if doubtful:
        return Finding(None, doubtful)
    return Finding(False, "Models were trained in train mode, or have no layers for which it matters.")


def _layers(process: Facts) -> dict[tuple[int, bool], Mapping[str, Any]]:
    """By model and mode, what layers it has; as they were last."""
    return {(fact.value, fact.args["training"]): fact.args for fact in process.of("model")}


def _is_trained(process: Facts, model: int) -> bool:
    return any(fact.value == model for fact in process.of("trained"))


def _trainers(process: Facts, model: int) -> dict[int, Mapping[str, Any]]:
    """The optimizers that were seen to train some of a model's parameters, and how many."""
    return {fact.args["optimizer"]: fact.args for fact in process.of("trained") if fact.value == model}


def _is_another_part(process: Facts, model: int, seen: _Trained) -> bool:
    """Whether an optimizer that did not train a model in train mode trains some of its parameters, such as a head's."""
    trained, (before, now) = _trainers(process, model), seen.by
    return not before & now and sum(trained[which]["graded"] for which in now) < trained[min(now)]["of"]


def _by_step(process: Facts) -> dict[int, _Trained]:
    """How each model was called before steps of optimizers that train it, with gradients on, if a backward pass followed."""
    found: dict[int, _Trained] = {}
    called: dict[int, tuple[bool, Fact]] = {}
    passed: dict[int, tuple[bool, Fact]] = {}
    stepped: set[int] | None = None  # the models whose step is counted, once an optimizer has stepped after the last backward pass
    trainers = {model: _trainers(process, model) for model in {fact.value for fact in process.of("trained")}}
    for fact in process.of("call", "backward", "step"):
        if fact.name == "call":
            if fact.args["grad"]:
                model, training = fact.args["model"], fact.args["training"]
                before = called.get(model)
                called[model] = (training or (before is not None and before[0]), before[1] if before is not None else fact)
        elif fact.name == "backward":
            if stepped is not None:
                passed, stepped = {}, None
            for model, (training, first) in called.items():
                known = passed.get(model)
                passed[model] = (training or (known is not None and known[0]), known[1] if known is not None else first)
            called = {}
        else:
            stepped = stepped or set()
            which = fact.args["optimizer"]
            for model, (training, first) in passed.items():
                if which not in trainers.get(model, ()):  # a teacher, or a discriminator while the generator is trained
                    continue
                seen = found.setdefault(model, _Trained(0, [], (set(), set())))
                if model not in stepped:
                    stepped.add(model)
                    if training:
                        seen.train, seen.eval, seen.by = seen.train + 1, [], (seen.by[0], set())
                    else:
                        seen.eval.append(first)
                seen.by[bool(seen.eval)].add(which)
    return found


def _train_while_evaluating(facts: Facts) -> Finding:
    doubtful, evaluated = "", False
    for process in facts.processes():
        layers = _layers(process)
        losses = [fact for fact in process.of("loss_input") if fact.args["input"] == "evaluated"]
        for model in sorted({fact.args["model"] for fact in process.of("call")}):
            calls = [call for call in process.of("call", model=model) if process.evaluates(call) or _before(call, losses, process)]
            wrong = [call for call in calls if call.args["training"]]
            evaluated = evaluated or bool(calls)
            found = layers.get((model, True))
            if not wrong or found is None or not _is_trained(process, model):
                continue
            dropout, norm = found["dropout_on"], found["norm_on"]
            if not dropout + norm:
                continue
            if not any(process.evaluates(call) for call in wrong):
                doubtful = f"{found['kind']} gave a loss without gradients in train mode, at {wrong[0].where}: it may be meant."
                continue
            if len(wrong) < len(calls):
                doubtful = f"{found['kind']} is evaluated in eval mode, and in train mode at {wrong[0].where}: it may be meant."
                continue
            if norm and process.of("call", model=model, training=False, grad=False):
                doubtful = f"{found['kind']} is used in eval mode; its calls at {wrong[0].where} may bring statistics up to date."
                continue
            said = " and ".join([*([f"{dropout} dropout"] if dropout else []), *([f"{norm} batch norm"] if norm else [])])
            return Finding(
                True,
                f"{found['kind']} was evaluated in train mode, {len(wrong)} times: {said} layers work as in training"
                + (", and its statistics take in the evaluation's data." if norm else "."),
                wrong[0],
                "Call model.eval() before the evaluation, and model.train() after it.",
                {"model": found["kind"], "calls": len(wrong), "dropout": dropout, "norm": norm},
            )
    if doubtful:
        return Finding(None, doubtful)
    if not evaluated:
        return Finding(None, "No evaluation was seen: no loop over a loader in which nothing is trained, no loss without gradients.")
    return Finding(False, "Models were evaluated in eval mode, or have no layers for which it matters.")


def _before(call: Fact, losses: list[Fact], process: Facts) -> bool:
    """Whether a call without gradients is the last one before a loss without gradients."""
    if call.args["grad"] or not losses:
        return False
    for loss in losses:
        if call.tid == loss.tid and call.at_ns <= loss.at_ns:
            between = [c for c in process.of("call") if call.at_ns < c.at_ns <= loss.at_ns]
            if not between and loss.at_ns - call.at_ns < 5_000_000_000:
                return True
    return False


EVAL_WHILE_TRAINING = Detector("eval-while-training", _eval_while_training, ("step", "backward", "call"))
TRAIN_WHILE_EVALUATING = Detector("train-while-evaluating", _train_while_evaluating, ("step", "call"))
