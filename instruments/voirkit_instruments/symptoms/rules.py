"""From symptoms to findings: each rule is a condition over figures of the summary. What is also done on purpose is no finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from statistics import median
from typing import Any

from voirkit.findings import Finding
from voirkit.units import duration, size

Summary = Mapping[str, Any]
Figures = Mapping[str, Any]

_MB = 1e6
OFTEN = 0.9  # of the steps without an update: so often must gradients have been cleared
PASSES_AN_UPDATE = 1.5  # from which on gradients are accumulated
FEW_EVALUATED = 2  # batches, under which nothing is said of the mode in which they were
FEW_EPOCHS = 3  # iterators of a distributed sampler, under which nothing is said
FEW_UPDATES = 100  # calls of zero_grad, under which nothing is said of the learning rate
VANISHED = 0.5  # share of them at which it must be next to nothing
GRAPHS_OF_EVALUATION = 0.5  # share of its batches
WORKER_BYTES, BYTES_OF_OBJECT, WORKER_OBJECTS = 48 * _MB, 32, 100_000
GROWTH_BYTES, GROWTH_SHARE = 64 * _MB, 0.2
SLOWER = 1.5  # times the first fifth
SPIKE, FEW_LOSSES, AROUND = 50.0, 40, 0.2
FEW_ITERATORS, ITERATORS_OF_STEPS = 5, 0.5
COLLECTING = 0.02  # of the run
LATE, LATE_S, MANY_SAMPLES = 10.0, 0.05, 100_000
FEW_SINGLE, SINGLE_OF_EVALUATION, EVALUATION_OF_RUN = 20, 0.9, 0.05


def findings(summary: Summary) -> Iterator[Finding]:
    """All findings of the rules below."""
    figures = summary.get("symptoms") or {}
    told = {check["name"] for check in summary.get("checks") or () if check["found"]}  # with more evidence
    for rule in RULES:
        yield from (finding for finding in rule(figures, summary) if finding.kind not in told)


def _weights_onto_themselves(figures: Figures, summary: Summary) -> Iterator[Finding]:
    loaded = figures.get("own_weights")
    if loaded:
        counts = {name: loaded[name] for name in ("shared", "tensors")}
        yield Finding.of("weights-onto-themselves", counts, where=_place(loaded))


def _gradients_cleared_unused(figures: Figures, summary: Summary) -> Iterator[Finding]:
    cleared, steps = figures.get("cleared_gradients"), summary.get("steps") or {}
    updates = steps.get("updates")
    if not cleared or not updates or steps["n"] < PASSES_AN_UPDATE * updates:
        return
    if cleared["n"] >= OFTEN * (steps["n"] - updates):
        counts = {"cleared": cleared["n"], "cleared_of": cleared["zero_grads"], "steps": updates, "backward_passes": steps["n"]}
        yield Finding.of("gradients-cleared-unused", counts, where=_place(cleared))


def _same_order(figures: Figures, summary: Summary) -> Iterator[Finding]:
    sampler = figures.get("sampler_epochs")
    if sampler and sampler["epochs"] == 1 and sampler["iterators"] >= FEW_EPOCHS:
        yield Finding.of("same-order", {"epochs": sampler["iterators"]})


def _eval_while_training(figures: Figures, summary: Summary) -> Iterator[Finding]:
    mode = figures.get("evaluation_mode")
    if mode:
        yield Finding.of("eval-while-training", mode)


def _train_while_evaluating(figures: Figures, summary: Summary) -> Iterator[Finding]:
    evaluated = figures.get("evaluated_in_training")
    if evaluated and evaluated["batches"] >= FEW_EVALUATED:
        yield Finding.of("train-while-evaluating", evaluated)


def _learning_rate_vanishes(figures: Figures, summary: Summary) -> Iterator[Finding]:
    rate = figures.get("learning_rate")
    if rate and rate["updates_of"] >= FEW_UPDATES and rate["updates_of"] - rate["updates"] >= VANISHED * rate["updates_of"]:
        yield Finding.of("learning-rate-vanishes", {**rate, "share": rate["updates"] / rate["updates_of"]})


def _evaluation_builds_graphs(figures: Figures, summary: Summary) -> Iterator[Finding]:
    graphs = figures.get("evaluation_graphs")
    if graphs and graphs["batches"] >= GRAPHS_OF_EVALUATION * graphs["batches_of"]:
        yield Finding.of("evaluation-builds-graphs", graphs)


def _workers_copy_dataset(figures: Figures, summary: Summary) -> Iterator[Finding]:
    memory = figures.get("worker_memory")
    program = (summary.get("memory") or {}).get("process_peak") or (summary.get("memory") or {}).get("peak")
    if not memory or not program or memory["objects"] < WORKER_OBJECTS:
        return
    if memory["bytes"] >= max(WORKER_BYTES, BYTES_OF_OBJECT * memory["objects"]):
        words = {"worker_words": size(memory["bytes"]), "program_words": size(program)}
        yield Finding.of("workers-copy-dataset", {**memory, "program_bytes": program, **words})


def _memory_grows(figures: Figures, summary: Summary) -> Iterator[Finding]:
    memory = figures.get("memory")
    if not memory or not memory["steps"]:
        return
    eighths = memory["eighths"]
    growth = eighths[-1] - eighths[0]
    is_steady = all(earlier < later for earlier, later in pairwise(eighths))
    if is_steady and growth >= max(GROWTH_BYTES, GROWTH_SHARE * eighths[0]):
        each = growth / memory["steps"]
        words = {"first_words": size(eighths[0]), "last_words": size(eighths[-1]), "each_words": size(each)}
        kept = memory.get("kept") or {}
        words["kept_words"] = _kept(kept)
        words["look_words"] = "" if summary.get("checks") is not None else "; voirkit --checks names graphs that are kept"
        evidence = {"first": eighths[0], "last": eighths[-1], "each_step": each, **({"kept": kept} if kept else {})}
        yield Finding.of("memory-grows", {**evidence, **words})


def _kept(kept: Mapping[str, Any]) -> str:
    """What there is more of since a step, as the end of a sentence; empty where that is not known."""
    tensors, container = kept.get("tensors"), kept.get("container")
    since = f"more since step {kept.get('since_step', 0):,}"
    if tensors:
        held = container if container and container["holds"] == "Tensor" else None
        inside = f", in a {held['type']} of {held['length']:,}" if held else ""
        return f": {tensors['more']:,} tensors of {tensors['of']} {since} ({size(tensors['bytes'])}){inside}"
    if container:
        holds = f" ({container['holds']})" if container["holds"] else ""
        return f": a {container['type']} of {container['length']:,} has {container['more']:,} elements{holds} {since}"
    return ""


_COMPUTE = ("forward", "backward", "optimizer")
_VERDICT_OF_PHASE = {"wait": "input-bound", "transfer": "transfer-bound", "communication": "communication-bound", "other": "host-bound"}
_VERDICT_OF_PHASE |= dict.fromkeys(_COMPUTE, "compute-bound")
_NAME_OF_PHASE = {"wait": "waiting for input", "optimizer": "the optimizer's step", "other": "untracked host code"}


def _steps_get_slower(figures: Figures, summary: Summary) -> Iterator[Finding]:
    steps = figures.get("slower")
    if not steps or steps["fifths_s"][-1] < SLOWER * steps["fifths_s"][0]:
        return
    fifths_s, phase = steps["phase_fifths_s"], steps["phase"]
    words = {"first_words": duration(fifths_s[0]), "last_words": duration(fifths_s[-1])}
    words["fifths_words"] = ", ".join(map(duration, fifths_s))
    slowest = _NAME_OF_PHASE.get(phase, phase)
    yield Finding.of("steps-get-slower", {"slowest": slowest, **steps, **words}, explains=_VERDICT_OF_PHASE[phase])


def _loss_spike(figures: Figures, summary: Summary) -> Iterator[Finding]:
    curve = [(at, value) for at, value in (summary.get("loss") or {}).get("curve") or () if value is not None]
    if len(curve) < FEW_LOSSES:
        return
    usual = median(abs(value) for _, value in curve)
    at, (step, value) = max(enumerate(curve), key=lambda item: abs(item[1][1]))
    around = [abs(other) for _, other in curve[max(at - 2, 0) : at] + curve[at + 1 : at + 3]]
    is_alone = bool(around) and max(around) < AROUND * abs(value)
    if usual and is_alone and at >= 2 and abs(value) >= SPIKE * usual:
        yield Finding.of("loss-spike", {"step": step, "value": value, "times": abs(value) / usual, "usual": usual})


def _iterator_each_step(figures: Figures, summary: Summary) -> Iterator[Finding]:
    iterators, steps = figures.get("iterators"), summary.get("steps") or {}
    if not iterators or iterators["single"] < max(FEW_ITERATORS, ITERATORS_OF_STEPS * steps.get("n", 0)):
        return
    workers = (steps.get("loader") or {}).get("workers") or 0
    started = f"; each started {workers} worker{'s' if workers > 1 else ''}" if workers else ""
    again_s = iterators["again_s"] + (figures.get("drawing") or {}).get("first_s", 0.0)
    yield Finding.of("iterator-each-step", {**iterators, "again_s": again_s, "workers_words": started}, gain=_of_run(again_s, summary))


def _slow_sampler(figures: Figures, summary: Summary) -> Iterator[Finding]:
    waits, loader = figures.get("first_batches_s"), (summary.get("steps") or {}).get("loader") or {}
    samples = loader.get("samples") or 0
    if not waits or loader.get("workers") or samples < MANY_SAMPLES or not loader.get("sampler"):
        return
    if waits["first"] < max(LATE * waits["later"], waits["later"] + LATE_S):
        return
    words = {"first_words": duration(waits["first"]), "usual_words": duration(waits["later"]), "samples_words": f"{samples:,} samples"}
    drawn = {"sampler": loader["sampler"], "samples": samples, **waits, **words}
    yield Finding.of("slow-sampler", drawn, gain=_of_run(waits["again"], summary))


def _garbage_collection(figures: Figures, summary: Summary) -> Iterator[Finding]:
    pauses = figures.get("collections")
    share = _of_run(pauses["total_s"], summary) if pauses else None
    if not pauses or share is None or share < COLLECTING:
        return
    other = ((summary.get("steps") or {}).get("phases") or {}).get("other") or {}
    in_steps_s = ((other.get("parts") or {}).get("gc") or {}).get("total_s", 0.0)
    counts = {"pauses": pauses["n"], "total_s": pauses["total_s"], "share": share, "in_steps": _of_run(in_steps_s, summary)}
    yield Finding.of("garbage-collection", {**counts, "total_words": duration(pauses["total_s"])}, gain=share)


def _evaluation_one_by_one(figures: Figures, summary: Summary) -> Iterator[Finding]:
    evaluation, single = summary.get("evaluation") or {}, figures.get("single_samples", 0)
    spent_s = (((summary.get("wall") or {}).get("parts") or {}).get("evaluation") or {}).get("total_s", 0.0)
    share = _of_run(spent_s, summary) or 0.0
    if single >= max(FEW_SINGLE, SINGLE_OF_EVALUATION * evaluation.get("n", 0)) and share >= EVALUATION_OF_RUN:
        yield Finding.of("evaluation-one-by-one", {"batches": single, "share": share})


RULES: tuple[Callable[[Figures, Summary], Iterator[Finding]], ...] = (
    _weights_onto_themselves,
    _gradients_cleared_unused,
    _same_order,
    _eval_while_training,
    _train_while_evaluating,
    _learning_rate_vanishes,
    _evaluation_builds_graphs,
    _workers_copy_dataset,
    _memory_grows,
    _steps_get_slower,
    _loss_spike,
    _iterator_each_step,
    _slow_sampler,
    _garbage_collection,
    _evaluation_one_by_one,
)


def _place(figures: Figures) -> str:
    return figures.get("where") or "the script"


def _of_run(seconds: float, summary: Summary) -> float | None:
    """Share of the run's wall time; None where that is not known."""
    total_s = (summary.get("wall") or {}).get("total_s")
    return min(seconds / total_s, 1.0) if total_s else None
