"""Detectors of silent bugs in models, losses and autograd graphs.

They find models in the wrong mode (only layers that behave differently in it count), losses from
which no gradient reaches the trained parameters, loss functions with unsuitable inputs, graphs that
are kept or grow, and dead ReLU units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from voirkit_instruments.checks.analyse_facts import (
    LEAST_LOOKS,
    Answer,
    Answers,
    Fact,
    Facts,
    detector,
    unknown,
)

_FEW = 3  # fewest steps that are needed to report a bug

# by ``id`` of the fact of a model's call: the recorded values about the model's layers
_LayersByCall = Mapping[int, Mapping[str, Any]]


@dataclass
class _Training:
    """Figures about one model's calls in training steps, by the mode that it was in."""

    n_train: int = 0  # number of steps in train mode
    # the first call of each step in eval mode, since the last step in train mode
    eval_calls: list[Fact] = field(default_factory=list)
    # numbers of the optimizers that stepped in train mode, and of those that stepped in the steps
    # of ``eval_calls``
    train_optimizers: set[int] = field(default_factory=set)
    eval_optimizers: set[int] = field(default_factory=set)
    n_returns: int = 0  # how often the model returned from eval mode to train mode

    def add_step(self, is_training: bool, first_call: Fact) -> None:
        """Count a training step in which the model was called."""
        if not is_training:
            self.eval_calls.append(first_call)
            return
        self.n_train += 1
        self.n_returns += bool(self.eval_calls)
        self.eval_calls = []
        self.eval_optimizers = set()

    def add_optimizer(self, optimizer: int) -> None:
        """Add an optimizer that stepped in the step counted last."""
        if self.eval_calls:
            self.eval_optimizers.add(optimizer)
        else:
            self.train_optimizers.add(optimizer)


@detector("eval-while-training", "step", "backward", "call", looks_at=("call", "step"))
def eval_while_training(facts: Facts) -> Answers:
    n_models = 0
    for process in facts.processes():
        layers = _layers(process)
        for model, training in _trainings(process, layers).items():
            n_models += 1
            answer = _answer_trained_in_eval(process, model, training, layers)
            if answer is not None:
                yield answer
    if not n_models:
        return unknown("No model was called whose parameters an optimizer is seen to train.")
    return "Models were trained in train mode, or have no layers for which it matters."


def _answer_trained_in_eval(
    process: Facts, model: int, training: _Training, layers: _LayersByCall
) -> Answer | str | None:
    """Return the bug of one model, or why it is in doubt; None if there is none."""
    n_eval = len(training.eval_calls)
    if not n_eval:
        return None
    modes = layers.get(id(training.eval_calls[-1]))
    if modes is None:
        return "A model was trained in eval mode whose layers could not be examined."
    kind, dropout, norm = modes["kind"], modes["dropout_off"], modes["norm_off"]
    if not dropout + norm:
        return None
    if n_eval < _FEW:
        if training.n_returns:
            return None
        return f"{kind} was trained in eval mode in the last {n_eval} steps: {_FEW} are needed."
    doubt = _why_eval_may_be_meant(process, model, training, modes)
    if doubt:
        return doubt
    since = "left in eval mode" if training.n_train else "never put into train mode"
    part = "A part of " if modes["training"] else ""
    return Answer(
        f"{part}{kind} was {since} and trained like that for {n_eval} steps:"
        f" {_words(dropout, norm)} layers work as in evaluation.",
        training.eval_calls[0],
        "Call model.train() before each epoch's training, after every model.eval().",
        {
            "model": kind,
            "steps_in_eval": n_eval,
            "steps_in_train": training.n_train,
            "dropout": dropout,
            "norm": norm,
        },
    )


def _why_eval_may_be_meant(
    process: Facts, model: int, training: _Training, modes: Mapping[str, Any]
) -> str:
    """Return why a model may be trained in eval mode on purpose; empty if nothing suggests that."""
    kind = modes["kind"]
    if modes["frozen"]:
        return (
            f"{kind} is trained in eval mode, with some of its parameters frozen: that is done on"
            " purpose, too."
        )
    if training.n_train:
        if not _is_another_part(process, model, training):
            return ""
        return (
            f"A part of {kind} is trained by another optimizer than before, in eval mode: it may be"
            " meant."
        )
    if not modes["dropout_off"] and modes["fresh"] < modes["norm_off"]:
        return (
            f"{kind} is trained in eval mode from the first step on, with the batch norm that was"
            " loaded: it may be meant."
        )
    return ""


def _words(dropout: int, norm: int) -> str:
    """Return the numbers of layers as text: ``2 dropout and 1 batch norm``."""
    words = []
    if dropout:
        words.append(f"{dropout} dropout")
    if norm:
        words.append(f"{norm} batch norm")
    return " and ".join(words)


def _layers(process: Facts) -> _LayersByCall:
    """Return the recorded values about the model's layers at each call, with the mode of the layers
    at that time, by id of the call's fact."""
    by_mode: dict[tuple[int, bool, bool], Mapping[str, Any]] = {}
    by_call = {}
    for fact in process.of("model", "call"):
        args = fact.args
        if fact.name == "model":
            by_mode[fact.value, args["training"], args["grad"]] = args
        else:
            layers = by_mode.get((args["model"], args["training"], args["grad"]))
            if layers is not None:
                by_call[id(fact)] = layers
    return by_call


def _count_off(layers: Mapping[str, Any]) -> int:
    """Count the dropout and batch norm layers that are in eval mode."""
    return int(layers["dropout_off"] + layers["norm_off"])


class _LeftInEval:
    """Detects layers that an evaluation has put into eval mode one by one, and that stay in it.

    If no evaluation came before, or one with the whole model in eval mode, the eval mode is meant:
    statistics are frozen.
    """

    def __init__(self) -> None:
        # number of layers in eval mode at the last call in training, and the highest number at a
        # call in an evaluation since
        self._n_trained = 0
        self._n_evaluated = 0

    def has(self, call: Fact, layers: Mapping[str, Any]) -> bool:
        """True if layers were left in eval mode; to be called for each call in train mode, in
        order."""
        n_off = _count_off(layers)
        if not call.args["grad"]:
            self._n_evaluated = max(self._n_evaluated, n_off)
            return False
        if self._n_trained < n_off <= self._n_evaluated:
            return True
        self._n_trained = n_off
        self._n_evaluated = 0
        return False


def _trainers(process: Facts, model: int) -> dict[int, Mapping[str, Any]]:
    """Return a dict from the number of each optimizer that was seen to train some of a model's
    parameters to a mapping that says how many parameters it trains."""
    return {
        fact.args["optimizer"]: fact.args for fact in process.of("trained") if fact.value == model
    }


def _is_another_part(process: Facts, model: int, training: _Training) -> bool:
    """True if the optimizers of the eval mode steps did not step in train mode, and train only some
    of the model's parameters, such as a head's."""
    if training.train_optimizers & training.eval_optimizers:
        return False
    trained = _trainers(process, model)
    n_graded = sum(trained[optimizer]["graded"] for optimizer in training.eval_optimizers)
    return bool(n_graded < trained[min(training.eval_optimizers)]["of"])


class _Calls:
    """The calls of models up to a backward pass: by model, True if one was in train mode, and the
    first call."""

    def __init__(self) -> None:
        self.by_model: dict[int, tuple[bool, Fact]] = {}

    def add(self, model: int, is_training: bool, call: Fact) -> None:
        """Add a call of a model, or the first of several calls."""
        earlier = self.by_model.get(model)
        if earlier is not None:
            was_training, call = earlier
            is_training = is_training or was_training
        self.by_model[model] = (is_training, call)

    def add_all(self, later: _Calls) -> None:
        """Add all calls of ``later``."""
        for model, (is_training, first_call) in later.by_model.items():
            self.add(model, is_training, first_call)


def _trainings(process: Facts, layers: _LayersByCall) -> dict[int, _Training]:
    """Return, for each model, its calls in training steps: gradients were on, and a backward pass
    and a step of an optimizer that trains the model followed."""
    trainings: dict[int, _Training] = {}
    left_in_eval: dict[int, _LeftInEval] = {}
    called = _Calls()  # the calls since the last backward pass
    backpropagated = _Calls()  # the calls that belong to the backward passes since the last step
    # models whose step is counted already; None if no optimizer has stepped since the last backward
    # pass
    stepped: set[int] | None = None
    models = {fact.value for fact in process.of("trained")}
    trainers = {model: _trainers(process, model) for model in models}
    for fact in process.of("call", "backward", "step"):
        if fact.name == "call":
            is_training = _is_in_train_mode(fact, layers, left_in_eval)
            if fact.args["grad"]:
                called.add(fact.args["model"], is_training, fact)
        elif fact.name == "backward":
            if stepped is not None:
                backpropagated = _Calls()
                stepped = None
            backpropagated.add_all(called)
            called = _Calls()
        else:
            stepped = stepped or set()
            optimizer = fact.args["optimizer"]
            for model, (is_training, first_call) in backpropagated.by_model.items():
                # the optimizer does not train this model: e.g. a teacher, or a discriminator while
                # the generator is trained
                if optimizer not in trainers.get(model, ()):
                    continue
                training = trainings.setdefault(model, _Training())
                if model not in stepped:
                    stepped.add(model)
                    training.add_step(is_training, first_call)
                training.add_optimizer(optimizer)
    return trainings


def _is_in_train_mode(
    call: Fact,
    layers: _LayersByCall,
    left_in_eval: dict[int, _LeftInEval],
) -> bool:
    """True if a model is called in train mode, and none of its layers was left in eval mode."""
    if not call.args["training"]:
        return False
    modes = layers.get(id(call))
    if modes is None:
        return True
    parts = left_in_eval.setdefault(call.args["model"], _LeftInEval())
    return not parts.has(call, modes)


@detector("train-while-evaluating", "step", "call", looks_at=("call",))
def train_while_evaluating(facts: Facts) -> Answers:
    has_evaluations = False
    for process in facts.processes():
        layers = _layers(process)
        losses = process.of("loss_input", input="evaluated")
        for model in sorted({fact.args["model"] for fact in process.of("call")}):
            calls = [
                call
                for call in process.of("call", model=model)
                if process.evaluates(call) or _is_before_loss(call, losses, process)
            ]
            if not calls or not _trainers(process, model):
                continue
            has_evaluations = True
            answer = _answer_evaluated_in_train(process, model, calls, layers)
            if answer is not None:
                yield answer
    if not has_evaluations:
        return unknown(
            "No evaluation of a model that is trained was seen: "
            "no loop over a loader in which nothing is trained, no loss without gradients."
        )
    return "Models were evaluated in eval mode, or have no layers for which it matters."


def _answer_evaluated_in_train(
    process: Facts, model: int, calls: list[Fact], layers: _LayersByCall
) -> Answer | str | None:
    """Return the bug of one model by its calls in evaluations, or why it is in doubt; None if there
    is none."""
    wrong = [call for call in calls if _is_wrong_in_evaluation(call, layers)]
    if not wrong:
        return None
    first = wrong[0]
    modes = layers.get(id(first))
    if modes is None:
        return "A model was evaluated in train mode whose layers could not be examined."
    kind, dropout, norm = modes["kind"], modes["dropout_on"], modes["norm_on"]
    if not dropout + norm:
        return None
    if not any(process.evaluates(call) for call in wrong):
        return (
            f"{kind} gave a loss without gradients in train mode, at {first.where}: it may be"
            " meant."
        )
    if len(wrong) < len(calls):
        return (
            f"{kind} is evaluated in eval mode, and in train mode at {first.where}: it may be"
            " meant."
        )
    if norm and process.of("call", model=model, training=False, grad=False):
        return (
            f"{kind} is used in eval mode; its calls at {first.where} may bring statistics up to"
            " date."
        )
    if _count_off(modes) > _fewest_off_in_training(process, model, layers):
        return (
            f"{kind} is evaluated with some of its layers in eval mode, at {first.where}: it may be"
            " meant."
        )
    effect = ", and its statistics take in the evaluation's data." if norm else "."
    return Answer(
        f"{kind} was evaluated in train mode, {len(wrong)} times: {_words(dropout, norm)} layers"
        f" work as in training{effect}",
        first,
        "Call model.eval() before the evaluation, and model.train() after it.",
        {"model": kind, "calls": len(wrong), "dropout": dropout, "norm": norm},
    )


def _is_wrong_in_evaluation(call: Fact, layers: _LayersByCall) -> bool:
    """True for a call in train mode, unless all layers that depend on the mode are in eval mode."""
    return call.args["training"] and not _is_in_eval(layers.get(id(call)))


def _fewest_off_in_training(process: Facts, model: int, layers: _LayersByCall) -> int:
    """Return the smallest number of layers in eval mode in any training call; 0 if unknown."""
    calls = process.of("call", model=model, grad=True)
    counts = [_count_off(layers[id(call)]) for call in calls if id(call) in layers]
    return min(counts, default=0)


def _is_in_eval(layers: Mapping[str, Any] | None) -> bool:
    """True if all layers that depend on the mode were put into eval mode one by one."""
    if layers is None or layers["dropout_on"] + layers["norm_on"]:
        return False
    return _count_off(layers) > 0


def _is_before_loss(call: Fact, losses: list[Fact], process: Facts) -> bool:
    """True if a call without gradients is the last one before a loss without gradients."""
    if call.args["grad"]:
        return False
    for loss in losses:
        if call.tid != loss.tid or not 0 <= loss.at_ns - call.at_ns < _LONGEST_TO_LOSS_NS:
            continue
        if not any(call.at_ns < other.at_ns <= loss.at_ns for other in process.of("call")):
            return True
    return False


_LONGEST_TO_LOSS_NS = 5_000_000_000  # longest time from a call to the loss of its output
_FEW_LOOKS = 2


@detector("loss-not-connected", "look", "reach", looks_at=("look", "graph"))
def loss_not_connected(facts: Facts) -> Answers:
    for process in facts.processes():
        inspections, reaches = process.of("look"), process.of("reach")
        if not inspections or not reaches:
            continue
        if _has_gradients(inspections, reaches):
            continue
        if len(inspections) < _FEW_LOOKS:
            yield (
                f"No parameter had a gradient at the one step that was examined: {_FEW_LOOKS} looks"
                " are needed."
            )
            continue
        new_tensors = [reach for reach in reaches if reach.args["leaf_root"]]
        if new_tensors:
            how = "it is a new tensor, without a history"
        else:
            how = "what it was computed from ends before them"
        yield Answer(
            "The backward pass reaches no parameter, and no parameter of an optimizer ever has a"
            f" gradient: the loss is not connected to them, {how}.",
            (new_tensors or reaches)[0],
            "Compute the loss from the model's output by torch's own operations: no item(),"
            " tolist(), numpy(), detach(), argmax or torch.tensor(...) on the way.",
            {"looked_at": len(reaches), "leaf_is_loss": bool(new_tensors)},
            n_inspected=len(inspections),
        )
    return "Backward passes reach parameters that are trained."


def _has_gradients(inspections: list[Fact], reaches: list[Fact]) -> bool:
    """True if a parameter has a gradient or is reached by a backward pass, or if no parameter is
    trainable."""
    if any(fact.args["graded"] > fact.args["zero"] for fact in inspections):
        return True
    if any(reach.args["held"] or reach.args["parameters"] for reach in reaches):
        return True
    return not any(fact.args["trainable"] for fact in inspections)


_WRONG = {
    ("cross_entropy", "softmax"): (
        "cross_entropy takes a softmax itself",
        "Give it the scores before the softmax.",
    ),
    ("nll_loss", "softmax"): (
        "nll_loss expects logarithms of probabilities",
        "Use log_softmax, or cross_entropy on the scores.",
    ),
    ("binary_cross_entropy_with_logits", "sigmoid"): (
        "binary_cross_entropy_with_logits takes a sigmoid itself",
        "Give it the scores before the sigmoid, or use binary_cross_entropy.",
    ),
}


@detector("softmax-before-cross-entropy", "backward", looks_at=("loss_call",))
def softmax_before_cross_entropy(facts: Facts) -> Answers:
    is_harmless = False
    for fact in facts.of("loss_input"):
        loss, given = fact.args["loss"], fact.args["input"]
        wrong = _WRONG.get((loss, given))
        if wrong is not None:
            why, advice = wrong
            yield Answer(
                f"The output of {given} goes into {loss}: {why}. Gradients are weak, the loss"
                " cannot get small.",
                fact,
                advice,
                {"loss": loss, "input": given},
                n_inspected=facts.count("backward"),
            )
        if (loss, given) == ("cross_entropy", "log_softmax"):
            is_harmless = True
    called = facts.tally("loss_call")
    if not called:
        return unknown(_NO_LOSS_CALL)
    if not called.keys() & {loss for loss, _ in _WRONG}:
        return (
            "No loss was seen that takes a softmax or sigmoid itself, but"
            f" {', '.join(sorted(called))}."
        )
    if is_harmless:
        return (
            "The output of log_softmax goes into cross_entropy, which is done twice then and"
            " changes nothing."
        )
    return "No softmax or sigmoid goes into a loss that takes one itself."


_NO_LOSS_CALL = (
    "No loss function of torch's that is looked at was called: a loss that is written by hand may"
    " do anything."
)


@detector("loss-broadcast", "backward", looks_at=("loss_call",))
def loss_broadcast(facts: Facts) -> Answers:
    for process in facts.processes():
        broadcasts = process.of("loss_shapes")
        if not broadcasts:
            continue
        first = broadcasts[0]
        loss, given, target = (first.args[key] for key in ("loss", "input", "target"))
        becomes = first.args["becomes"]
        alike = [fact for fact in process.of("loss_shapes", loss=loss) if fact.where == first.where]
        subject = "A loss written by hand" if loss == "a difference" else loss
        yield Answer(
            f"{subject} compares an output of shape {given} with a target of shape {target}: they"
            f" are broadcast to {becomes}, each output is compared with every target.",
            first,
            "Give both the same shape: output.squeeze(1), or target.unsqueeze(1).",
            {"loss": loss, "input": given, "target": target, "broadcast_to": becomes},
            n_inspected=len(alike),
        )
    called = facts.tally("loss_call")
    if not called:
        return unknown(_NO_LOSS_CALL)
    if called.keys() <= {loss for loss, _ in _WRONG}:
        return f"Shapes that do not fit are an error of torch's in {', '.join(sorted(called))}."
    return "Losses compare each output with its own target, as far as shapes tell."


_FEWEST_PASSES = 8
# fewest live graphs, besides the newest two, that are reported: buffers, and garbage that is not
# collected yet, may keep a few
_FEWEST_ALIVE = 6
_DEAD, _DOUBTFUL = 0.9, 0.75
_ROWS = 32  # fewest rows of a layer's output that are needed to report a bug


def _by_line(facts: list[Fact]) -> dict[str | None, list[Fact]]:
    by_line: dict[str | None, list[Fact]] = {}
    for fact in facts:
        by_line.setdefault(fact.where, []).append(fact)
    return by_line


@detector("graph-kept", "graph", looks_at=("backward", "graph"))
def graph_kept(facts: Facts) -> Answers:
    n_passes = 0
    for process in facts.processes():
        for inspections in _by_line(process.of("graph")).values():
            n_passes = max(n_passes, inspections[-1].value)
            yield from _answers_of_graphs(inspections)
    if n_passes < _FEWEST_PASSES:
        return unknown(
            f"Graphs were examined up to backward pass {n_passes} of a line: pass {_FEWEST_PASSES}"
            " is needed to tell one that is kept."
        )
    return "No graphs were seen that outlive their step."


def _answers_of_graphs(inspections: list[Fact]) -> Iterator[Answer | str]:
    """Yield the bugs in the graphs of one line's backward passes, and what is in doubt."""
    first, last = inspections[0], inspections[-1]
    alive = [fact for fact in inspections if fact.args["kept"] >= _FEWEST_ALIVE]
    most = max(fact.args["kept"] for fact in inspections)
    is_kept_at_last = bool(alive) and alive[-1] is last
    if len(alive) >= LEAST_LOOKS and is_kept_at_last:
        yield Answer(
            f"The graphs of earlier steps are still alive when the next are made ({most} at once,"
            " of those examined): memory grows with each step.",
            alive[0],
            "Keep numbers, not tensors with a history: total += loss.item(), or loss.detach() where"
            " that would wait for a device.",
            {"looked_at": len(inspections), "kept": most},
            n_inspected=len(alive),
        )
    growth = _growth(inspections)
    if growth:
        second = inspections[1]
        yield Answer(
            f"Each backward pass goes through {growth:g} nodes more than the one before"
            f" ({second.args['nodes']} at pass {second.value}, {last.args['nodes']} at pass"
            f" {last.value}): all earlier graphs are in it.",
            second,
            "Cut what is carried from step to step: state.detach(), and no retain_graph=True.",
            {"looked_at": len(inspections), "nodes_a_step": growth},
            n_inspected=len(inspections) - 1,
        )
    piled = _piled_up(inspections)
    if piled and len(alive) < LEAST_LOOKS:
        yield Answer(
            f"Tensors with graphs pile up: {last.args['living']:,} are alive at pass"
            f" {last.value:,}, {first.args['living']:,} at pass {first.value:,}; each keeps all"
            " that it was computed from.",
            last,
            "Keep numbers, not tensors with a history: append loss.item(), or loss.detach() where"
            " that would wait for a device.",
            {"looked_at": len(inspections), "tensors_a_step": piled},
            n_inspected=len(inspections),
        )
    if is_kept_at_last:
        yield (
            f"The graphs of earlier steps were alive at the last of {last.value:,} backward passes"
            f" ({most} of those examined): more passes are needed to tell whether they stay."
        )


_PILED_A_PASS = 0.5  # least growth in tensors with graphs, per backward pass, that is reported


def _piled_up(inspections: list[Fact]) -> float:
    """Return the growth per backward pass in live tensors with a graph: the smallest between two
    inspections. Return 0 if it is too small, or if there are too few inspections."""
    counts = [(fact.value, fact.args["living"]) for fact in inspections if "living" in fact.args]
    slopes = _slopes(counts)
    if len(slopes) < LEAST_LOOKS or min(slopes) < _PILED_A_PASS:
        return 0.0
    return min(slopes)


def _slopes(counts: list[tuple[int, int]]) -> list[float]:
    """Return the growth of a count per backward pass, from each (pass, count) to the next."""
    return [
        (later - earlier) / (pass_later - pass_earlier)
        for (pass_earlier, earlier), (pass_later, later) in pairwise(counts)
        if pass_later > pass_earlier
    ]


def _growth(inspections: list[Fact]) -> float:
    """Return how many nodes a graph grows by per backward pass, if the growth is the same between
    all inspections after the first; otherwise 0."""
    counts = [(fact.value, fact.args["nodes"]) for fact in inspections[1:]]
    slopes = set(_slopes(counts))
    if len(counts) <= LEAST_LOOKS or len(slopes) != 1:
        return 0.0
    return max(slopes.pop(), 0.0)


@detector("dead-units", "graph", looks_at=("units",))
def dead_units(facts: Facts) -> Answers:
    for process in facts.processes():
        for inspections in _by_line(process.of("units")).values():
            answer = _answer_dead_units(inspections[-1])
            if answer is not None:
                yield answer
    if not facts.has("units"):
        return unknown(
            "No ReLU right after a layer with trained parameters was examined; other activations"
            " are not looked at."
        )
    return "No ReLU layer was seen of which most units are dead."


def _answer_dead_units(last: Fact) -> Answer | str | None:
    """Return the bug of one ReLU layer by its last inspection, or why it is in doubt; None if there
    is none."""
    n_dead, n_units, n_rows = (last.args[key] for key in ("dead", "units", "rows"))
    share = n_dead / n_units
    if share < _DOUBTFUL:
        return None
    after = f" after {last.args['after']}" if last.args["after"] else ""
    subject = (
        f"{n_dead} of {n_units} units of the ReLU{after} gave nothing but 0, for all {n_rows:,}"
        f" rows at {last.value} looks"
    )
    if last.value < LEAST_LOOKS or n_rows < _ROWS:
        return f"{subject}: {LEAST_LOOKS} looks and {_ROWS} rows are needed."
    if share < _DEAD:
        return f"{subject}: features that are rare on purpose look alike."
    return Answer(
        f"{subject}: they are dead, no gradient comes through them.",
        last,
        "Lower the learning rate, look at the initialization and at the scale of the inputs, or use"
        " LeakyReLU or GELU.",
        {"dead": n_dead, "units": n_units, "rows": n_rows, "looked_at": last.value},
        n_inspected=last.value,
    )
