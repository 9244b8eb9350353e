"""Silent bugs of models, losses and graphs: models in the wrong mode (only layers that make a difference count), a loss from which no
gradient comes to what is trained, loss functions that are given what they do not expect, graphs that are kept or grow, dead ReLU units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from voirkit_instruments.checks.analyse_facts import LEAST_LOOKS, Answer, Answers, Fact, Facts, detector, unknown

_FEW = 3  # steps


@dataclass
class _Trained:
    """How a model was called in the steps of the training."""

    train: int  # in how many steps in train mode
    eval: list[Fact]  # the first call of each step in eval mode since it was last in train mode
    by: tuple[set[int], set[int]]  # the optimizers that stepped in train mode, and those that did in these steps in eval mode
    returns: int = 0  # how often it was put from eval mode into train mode


@detector("eval-while-training", "step", "backward", "call", looks_at=("call", "step"))
def eval_while_training(facts: Facts) -> Answers:
    looked = 0
    for process in facts.processes():
        layers = _layers(process)
        for model, seen in _by_step(process).items():
            looked += 1
            found = layers.get((model, False))
            if found is None:
                if seen.eval:
                    yield "A model was trained in eval mode whose layers could not be examined."
                continue
            dropout, norm = found["dropout_off"], found["norm_off"]
            if not dropout + norm or not seen.eval:
                continue
            if len(seen.eval) < _FEW and seen.returns:
                continue
            if len(seen.eval) < _FEW:
                yield f"{found['kind']} was trained in eval mode in the last {len(seen.eval)} steps: {_FEW} are needed."
                continue
            said = " and ".join([*([f"{dropout} dropout"] if dropout else []), *([f"{norm} batch norm"] if norm else [])])
            if found["frozen"]:
                yield f"{found['kind']} is trained in eval mode, with some of its parameters frozen: that is done on purpose, too."
            elif seen.train and _is_another_part(process, model, seen):
                yield f"A part of {found['kind']} is trained by another optimizer than before, in eval mode: it may be meant."
            elif not seen.train and not dropout and found["fresh"] < norm:
                yield (
                    f"{found['kind']} is trained in eval mode from the first step on, with the batch norm that was loaded: it may be meant."
                )
            else:
                since = "left in eval mode" if seen.train else "never put into train mode"
                yield Answer(
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
    if not looked:
        return unknown("No model was called whose parameters an optimizer is seen to train.")
    return "Models were trained in train mode, or have no layers for which it matters."


def _layers(process: Facts) -> dict[tuple[int, bool], Mapping[str, Any]]:
    """By model and mode, what layers it has; as they were last."""
    return {(fact.value, fact.args["training"]): fact.args for fact in process.of("model")}


def _trainers(process: Facts, model: int) -> dict[int, Mapping[str, Any]]:
    """The optimizers that were seen to train some of a model's parameters, and how many."""
    return {fact.args["optimizer"]: fact.args for fact in process.of("trained") if fact.value == model}


def _is_another_part(process: Facts, model: int, calls: _Trained) -> bool:
    """Whether an optimizer that did not train a model in train mode trains some of its parameters, such as a head's."""
    trained, (before, now) = _trainers(process, model), calls.by
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
                        seen.returns += bool(seen.eval)
                        seen.train, seen.eval, seen.by = seen.train + 1, [], (seen.by[0], set())
                    else:
                        seen.eval.append(first)
                seen.by[bool(seen.eval)].add(which)
    return found


@detector("train-while-evaluating", "step", "call", looks_at=("call",))
def train_while_evaluating(facts: Facts) -> Answers:
    evaluated = False
    for process in facts.processes():
        layers = _layers(process)
        losses = [fact for fact in process.of("loss_input") if fact.args["input"] == "evaluated"]
        for model in sorted({fact.args["model"] for fact in process.of("call")}):
            calls = [call for call in process.of("call", model=model) if process.evaluates(call) or _before(call, losses, process)]
            wrong = [call for call in calls if call.args["training"]]
            found = layers.get((model, True))
            if not calls or not _trainers(process, model):
                continue
            evaluated = True
            if not wrong:
                continue
            if found is None:
                yield "A model was evaluated in train mode whose layers could not be examined."
                continue
            dropout, norm = found["dropout_on"], found["norm_on"]
            if not dropout + norm:
                continue
            if not any(process.evaluates(call) for call in wrong):
                yield f"{found['kind']} gave a loss without gradients in train mode, at {wrong[0].where}: it may be meant."
                continue
            if len(wrong) < len(calls):
                yield f"{found['kind']} is evaluated in eval mode, and in train mode at {wrong[0].where}: it may be meant."
                continue
            if norm and process.of("call", model=model, training=False, grad=False):
                yield f"{found['kind']} is used in eval mode; its calls at {wrong[0].where} may bring statistics up to date."
                continue
            said = " and ".join([*([f"{dropout} dropout"] if dropout else []), *([f"{norm} batch norm"] if norm else [])])
            yield Answer(
                f"{found['kind']} was evaluated in train mode, {len(wrong)} times: {said} layers work as in training"
                + (", and its statistics take in the evaluation's data." if norm else "."),
                wrong[0],
                "Call model.eval() before the evaluation, and model.train() after it.",
                {"model": found["kind"], "calls": len(wrong), "dropout": dropout, "norm": norm},
            )
    if not evaluated:
        return unknown(
            "No evaluation of a model that is trained was seen: "
            "no loop over a loader in which nothing is trained, no loss without gradients."
        )
    return "Models were evaluated in eval mode, or have no layers for which it matters."


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


_FEW_LOOKS = 2


@detector("loss-not-connected", "look", "reach", looks_at=("look", "graph"))
def loss_not_connected(facts: Facts) -> Answers:
    for process in facts.processes():
        looks, reached = process.of("look"), process.of("reach")
        if not looks or not reached or any(look.args["graded"] > look.args["zero"] for look in looks):
            continue
        if any(reach.args["held"] or reach.args["parameters"] for reach in reached) or not any(look.args["trainable"] for look in looks):
            continue
        if len(looks) < _FEW_LOOKS:
            yield f"No parameter had a gradient at the one step that was examined: {_FEW_LOOKS} looks are needed."
            continue
        loose = [reach for reach in reached if reach.args["leaf_root"]]
        how = "it is a new tensor, without a history" if loose else "what it was computed from ends before them"
        yield Answer(
            "The backward pass reaches no parameter, and no parameter of an optimizer ever has a gradient: the loss is not connected to "
            f"them, {how}.",
            (loose or reached)[0],
            "Compute the loss from the model's output by torch's own operations: no item(), tolist(), numpy(), detach(), argmax or "
            "torch.tensor(...) on the way.",
            {"looked_at": len(reached), "leaf_is_loss": bool(loose)},
            looks=len(looks),
        )
    return "Backward passes reach parameters that are trained."


_WRONG = {
    ("cross_entropy", "softmax"): ("cross_entropy takes a softmax itself", "Give it the scores before the softmax."),
    ("nll_loss", "softmax"): ("nll_loss expects logarithms of probabilities", "Use log_softmax, or cross_entropy on the scores."),
    ("binary_cross_entropy_with_logits", "sigmoid"): (
        "binary_cross_entropy_with_logits takes a sigmoid itself",
        "Give it the scores before the sigmoid, or use binary_cross_entropy.",
    ),
}


@detector("softmax-before-cross-entropy", "backward", looks_at=("loss_call",))
def softmax_before_cross_entropy(facts: Facts) -> Answers:
    harmless = False
    for fact in facts.of("loss_input"):
        wrong = _WRONG.get((fact.args["loss"], fact.args["input"]))
        if wrong is not None:
            why, what = wrong
            yield Answer(
                f"The output of {fact.args['input']} goes into {fact.args['loss']}: {why}. Gradients are weak, the loss cannot get small.",
                fact,
                what,
                {"loss": fact.args["loss"], "input": fact.args["input"]},
                looks=facts.count("backward"),
            )
        harmless = harmless or (fact.args["loss"], fact.args["input"]) == ("cross_entropy", "log_softmax")
    called = facts.tally("loss_call")
    if not called:
        return unknown(_NO_LOSS_CALL)
    if not called.keys() & {loss for loss, _ in _WRONG}:
        return f"No loss was seen that takes a softmax or sigmoid itself, but {', '.join(sorted(called))}."
    if harmless:
        return "The output of log_softmax goes into cross_entropy, which is done twice then and changes nothing."
    return "No softmax or sigmoid goes into a loss that takes one itself."


_NO_LOSS_CALL = "No loss function of torch's that is looked at was called: a loss that is written by hand may do anything."


@detector("loss-broadcast", "backward", looks_at=("loss_call",))
def loss_broadcast(facts: Facts) -> Answers:
    for process in facts.processes():
        seen = process.of("loss_shapes")
        if seen:
            first = seen[0]
            same = [fact for fact in seen if (fact.args["loss"], fact.where) == (first.args["loss"], first.where)]
            given, target, becomes = (first.args[key] for key in ("input", "target", "becomes"))
            what = "A loss written by hand" if first.args["loss"] == "a difference" else first.args["loss"]
            yield Answer(
                f"{what} compares an output of shape {given} with a target of shape {target}: they are broadcast to {becomes}, each output "
                "is compared with every target.",
                first,
                "Give both the same shape: output.squeeze(1), or target.unsqueeze(1).",
                {"loss": first.args["loss"], "input": given, "target": target, "broadcast_to": becomes},
                looks=len(same),
            )
    called = facts.tally("loss_call")
    if not called:
        return unknown(_NO_LOSS_CALL)
    if called.keys() <= {loss for loss, _ in _WRONG}:
        return f"Shapes that do not fit are an error of torch's in {', '.join(sorted(called))}."
    return "Losses compare each output with its own target, as far as shapes tell."


_FEWEST_PASSES = 8
_KEPT = 6  # graphs before the last two: a few are kept by buffers and by garbage that is not collected yet
_DEAD, _DOUBTFUL = 0.9, 0.75
_ROWS = 32  # of a layer's output


def _by_line(facts: list[Fact]) -> dict[str | None, list[Fact]]:
    found: dict[str | None, list[Fact]] = {}
    for fact in facts:
        found.setdefault(fact.where, []).append(fact)
    return found


@detector("graph-kept", "graph", looks_at=("backward", "graph"))
def graph_kept(facts: Facts) -> Answers:
    passes = 0
    for process in facts.processes():
        for looks in _by_line(process.of("graph")).values():
            passes = max(passes, looks[-1].value)
            kept = [look for look in looks if look.args["kept"] >= _KEPT]
            most = max(look.args["kept"] for look in looks)
            if len(kept) >= LEAST_LOOKS and kept[-1] is looks[-1]:
                yield Answer(
                    f"The graphs of earlier steps are still alive when the next are made ({most} at once, of those examined): "
                    "memory grows with each step.",
                    kept[0],
                    "Keep numbers, not tensors with a history: total += loss.item(), or loss.detach() where that would wait for a device.",
                    {"looked_at": len(looks), "kept": most},
                    looks=len(kept),
                )
            growth = _growth(looks)
            if growth:
                yield Answer(
                    f"Each backward pass goes through {growth:g} nodes more than the one before ({looks[1].args['nodes']} at pass "
                    f"{looks[1].value}, {looks[-1].args['nodes']} at pass {looks[-1].value}): all earlier graphs are in it.",
                    looks[1],
                    "Cut what is carried from step to step: state.detach(), and no retain_graph=True.",
                    {"looked_at": len(looks), "nodes_a_step": growth},
                    looks=len(looks) - 1,
                )
            piled = _piled_up(looks)
            if piled and len(kept) < LEAST_LOOKS:
                yield Answer(
                    f"Tensors with graphs pile up: {looks[-1].args['living']:,} are alive at pass {looks[-1].value:,}, "
                    f"{looks[0].args['living']:,} at pass {looks[0].value:,}; each keeps all that it was computed from.",
                    looks[-1],
                    "Keep numbers, not tensors with a history: append loss.item(), or loss.detach() where that would wait for a device.",
                    {"looked_at": len(looks), "tensors_a_step": piled},
                    looks=len(looks),
                )
            if kept and kept[-1] is looks[-1]:
                yield (
                    f"The graphs of earlier steps were alive at the last of {looks[-1].value:,} backward passes "
                    f"({most} of those examined): more passes are needed to tell whether they stay."
                )
    if passes < _FEWEST_PASSES:
        return unknown(
            f"Graphs were examined up to backward pass {passes} of a line: pass {_FEWEST_PASSES} is needed to tell one that is kept."
        )
    return "No graphs were seen that outlive their step."


_PILED_A_PASS = 0.5  # tensors with graphs that stay


def _piled_up(looks: list[Fact]) -> float:
    """How many more tensors with a graph are alive with each pass, if it is more at each look than at the one before; else 0."""
    known = [(look.value, look.args["living"]) for look in looks if "living" in look.args]
    slopes = [(later - living) / (n - before) for (before, living), (n, later) in pairwise(known) if n > before]
    return min(slopes) if len(slopes) >= LEAST_LOOKS and min(slopes) >= _PILED_A_PASS else 0.0


def _growth(looks: list[Fact]) -> float:
    """By how many nodes a graph grows with each pass, if it does so at all looks alike (but the first); else 0."""
    later = [(look.value, look.args["nodes"]) for look in looks[1:]]
    slopes = {(b - a) / (m - n) for (n, a), (m, b) in pairwise(later) if m > n}
    return slopes.pop() if len(later) > LEAST_LOOKS and len(slopes) == 1 and min(slopes) > 0 else 0.0


@detector("dead-units", "graph", looks_at=("units",))
def dead_units(facts: Facts) -> Answers:
    for process in facts.processes():
        for looks in _by_line(process.of("units")).values():
            last = looks[-1]
            share = last.args["dead"] / last.args["units"]
            if share < _DOUBTFUL:
                continue
            after = f" after {last.args['after']}" if last.args["after"] else ""
            said = f"{last.args['dead']} of {last.args['units']} units of the ReLU{after} gave nothing but 0, "
            said += f"for all {last.args['rows']:,} rows at {last.value} looks"
            if last.value < LEAST_LOOKS or last.args["rows"] < _ROWS:
                yield f"{said}: {LEAST_LOOKS} looks and {_ROWS} rows are needed."
                continue
            if share < _DEAD:
                yield f"{said}: features that are rare on purpose look alike."
                continue
            yield Answer(
                f"{said}: they are dead, no gradient comes through them.",
                last,
                "Lower the learning rate, look at the initialization and at the scale of the inputs, or use LeakyReLU or GELU.",
                {"dead": last.args["dead"], "units": last.args["units"], "rows": last.args["rows"], "looked_at": last.value},
                looks=last.value,
            )
    if not facts.has("units"):
        return unknown("No ReLU right after a layer with trained parameters was examined; other activations are not looked at.")
    return "No ReLU layer was seen of which most units are dead."
