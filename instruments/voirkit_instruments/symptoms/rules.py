"""Rules that turn symptoms into findings: each rule is a condition on values of the summary. A
pattern that programs also use on purpose is not a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from math import inf
from statistics import median
from typing import Any

from voirkit import phase_names
from voirkit.analysis.verdict.evidence import first_evidence, flag_for
from voirkit.findings import Finding
from voirkit.phase_table import BY_NAME, label_of
from voirkit.runs.summary import is_contended
from voirkit.units import duration, size

Summary = Mapping[str, Any]
Figures = Mapping[str, Any]

_MB = 1e6
OFTEN = 0.9  # of the steps without an update, minimum share that clears gradients for a finding
PASSES_AN_UPDATE = 1.5  # minimum number of backward passes per update for gradient accumulation
FEW_EVALUATED = 2  # minimum number of batches evaluated in training mode for a finding
FEW_EPOCHS = 3  # minimum number of iterators of a distributed sampler for a finding
FEW_UPDATES = 100  # minimum number of zero_grad calls for a finding on the learning rate
VANISHED = 0.5  # minimum share of the zero_grad calls at which the learning rate is almost 0
GRAPHS_OF_EVALUATION = 0.5  # minimum share of the evaluation batches that build autograd graphs
WORKER_BYTES, BYTES_OF_OBJECT, WORKER_OBJECTS = 48 * _MB, 32, 100_000
GROWTH_BYTES, GROWTH_SHARE = 64 * _MB, 0.2
SLOWER = 1.5  # minimum ratio of the step time in the last fifth of the steps to the first fifth
SLOWER_BESIDE_OTHERS = 5.0  # minimum ratio if other programs may have slowed the machine
SPIKE, FEW_LOSSES, AROUND = 50.0, 40, 0.2
_MANY_TIMES = 1e6  # a larger ratio is printed as a power of ten
FEW_ITERATORS, ITERATORS_OF_STEPS = 5, 0.5
COLLECTING = 0.02  # minimum share of the run spent in garbage collection
# If a run has at least COLLECTED_BY_HAND full collections per step, the program is taken to call
# gc.collect() itself. A run of fewer than FEW_STEPS steps counts as one of FEW_STEPS steps.
COLLECTED_BY_HAND, FEW_STEPS = 0.5, 10
LATE, LATE_S, MANY_SAMPLES, DRAWING = 10.0, 0.05, 100_000, 0.5
FEW_SINGLE, SINGLE_OF_EVALUATION, EVALUATION_OF_RUN = 20, 0.9, 0.05


def findings(summary: Summary) -> Iterator[Finding]:
    """Yield the findings of all rules, except kinds that ``--checks`` has found."""
    figures = summary.get("symptoms") or {}
    checks = summary.get("checks") or ()
    # a symptom is skipped if --checks has found the same kind, with more evidence
    found_by_checks = {check["name"] for check in checks if check["found"]}
    for rule in RULES:
        for finding in rule(figures, summary):
            if finding.kind not in found_by_checks:
                yield finding


def _weights_onto_themselves(figures: Figures, summary: Summary) -> Iterator[Finding]:
    loaded = figures.get("own_weights")
    if loaded:
        shared, tensors = loaded["shared"], loaded["tensors"]
        words = (
            f"load_state_dict() was given the model's own tensors ({shared} of {tensors}): it"
            " copied the weights onto themselves, and restored nothing"
        )
        counts = {"shared": shared, "tensors": tensors, "weights_words": words}
        yield Finding.of("weights-onto-themselves", counts, where=_place(loaded))
        return
    returned = figures.get("kept_weights")
    if returned:
        words = (
            f"{returned['how']} what state_dict() had returned before, the model's own tensors,"
            " which later steps have changed: these are the last weights, not those of when it was"
            " called"
        )
        yield Finding.of(
            "weights-onto-themselves", {"weights_words": words}, where=_place(returned)
        )


def _gradients_cleared_unused(figures: Figures, summary: Summary) -> Iterator[Finding]:
    cleared, steps = figures.get("cleared_gradients"), summary.get("steps") or {}
    updates = steps.get("updates")
    if not cleared or not updates:
        return
    n_steps = steps["n"]
    if n_steps < PASSES_AN_UPDATE * updates or cleared["n"] < OFTEN * (n_steps - updates):
        return
    counts = {
        "cleared": cleared["n"],
        "cleared_of": cleared["zero_grads"],
        "steps": updates,
        "backward_passes": n_steps,
    }
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
    if not rate or rate["updates_of"] < FEW_UPDATES:
        return
    updates, all_updates = rate["updates"], rate["updates_of"]
    if all_updates - updates >= VANISHED * all_updates:
        yield Finding.of("learning-rate-vanishes", {**rate, "share": updates / all_updates})


def _evaluation_builds_graphs(figures: Figures, summary: Summary) -> Iterator[Finding]:
    graphs = figures.get("evaluation_graphs")
    if graphs and graphs["batches"] >= GRAPHS_OF_EVALUATION * graphs["batches_of"]:
        yield Finding.of("evaluation-builds-graphs", graphs)


def _workers_copy_dataset(figures: Figures, summary: Summary) -> Iterator[Finding]:
    worker_memory, memory = figures.get("worker_memory"), summary.get("memory") or {}
    program = memory.get("process_peak") or memory.get("peak")
    if not worker_memory or not program or worker_memory["objects"] < WORKER_OBJECTS:
        return
    n_bytes = worker_memory["bytes"]
    if n_bytes >= max(WORKER_BYTES, BYTES_OF_OBJECT * worker_memory["objects"]):
        words = {"worker_words": size(n_bytes), "program_words": size(program)}
        yield Finding.of(
            "workers-copy-dataset", {**worker_memory, "program_bytes": program, **words}
        )


def _memory_grows(figures: Figures, summary: Summary) -> Iterator[Finding]:
    memory = figures.get("memory")
    if not memory or not memory["steps"]:
        return
    eighths = memory["eighths"]
    first, last = eighths[0], eighths[-1]
    growth = last - first
    is_steady = all(earlier < later for earlier, later in pairwise(eighths))
    if not is_steady or growth < max(GROWTH_BYTES, GROWTH_SHARE * first):
        return
    each_step = growth / memory["steps"]
    more = memory.get("kept") or {}
    evidence = {"first": first, "last": last, "each_step": each_step}
    if more:
        evidence["kept"] = more
    words = {
        "first_words": size(first),
        "last_words": size(last),
        "each_words": size(each_step),
        "kept_words": _words_of_growth(more),
        **_advice_on_growth(more, summary),
    }
    yield Finding.of("memory-grows", {**evidence, **words})


def _words_of_growth(more: Mapping[str, Any]) -> str:
    """Return the end of a sentence on the objects that have increased since a step; empty if they
    are unknown."""
    tensors, container = more.get("tensors"), more.get("container")
    since = f"more since step {more.get('since_step', 0):,}"
    if tensors:
        inside = ""
        if container and container["holds"] == "Tensor":
            inside = f", in a {container['type']} of {container['length']:,}"
        return (
            f": {tensors['more']:,} tensors of {tensors['of']} {since}"
            f" ({size(tensors['bytes'])}){inside}"
        )
    if container:
        holds = f" ({container['holds']})" if container["holds"] else ""
        return (
            f": a {container['type']} of {container['length']:,} has {container['more']:,}"
            f" elements{holds} {since}"
        )
    return ""


def _advice_on_growth(more: Mapping[str, Any], summary: Summary) -> dict[str, str]:
    """Return advice on where to look for kept objects. It mentions graphs unless the objects that
    have increased are known to have none."""
    if more and "graphs" not in (more.get("tensors") or {}).get("of", ""):
        return {
            "held_words": (
                "where these are kept: a list, a cache or a buffer that nothing is taken out of"
            ),
            "look_words": "",
        }
    return {
        "held_words": (
            "what is kept from every step: losses with their graph (keep loss.item()), lists of"
            " outputs"
        ),
        "look_words": _advice_to_check(summary),
    }


def _advice_to_check(summary: Summary) -> str:
    """Return the advice to use ``--checks``, which names graphs that are kept; empty if it is
    on."""
    if summary.get("checks") is not None:
        return ""
    return "; voirkit --checks names graphs that are kept"


# If steps become slower: by phase, what may grow with each step. Phases that are not in this table
# get a general phrase.
_GROWS = {
    phase_names.WAIT: (
        "what a sample is read through: subsets of subsets, a list that is searched, a file that is"
        " read from its begin"
    ),
    phase_names.FORWARD: (
        "what the model's call goes through: a memory, hooks that are registered in each step"
    ),
    phase_names.BACKWARD: "a graph that is carried on from step to step (detach it)",
    phase_names.OPTIMIZER: "the optimizer's parameters: groups that are added in each step",
    phase_names.OTHER: "what the script's own code goes through: a list that is searched, a buffer",
}


def _steps_get_slower(figures: Figures, summary: Summary) -> Iterator[Finding]:
    steps = figures.get("slower")
    least = SLOWER_BESIDE_OTHERS if is_contended(summary.get("processors")) else SLOWER
    if not steps or steps["fifths_s"][-1] < least * steps["fifths_s"][0]:
        return
    fifths_s, phase = steps["phase_fifths_s"], steps["phase"]
    fifths = [duration(time_s) for time_s in fifths_s]
    words = {
        "first_words": fifths[0],
        "last_words": fifths[-1],
        "fifths_words": ", ".join(fifths),
        "grows_words": _GROWS.get(phase, "data that grows with each step"),
        "look_words": _how_to_see(phase, summary),
    }
    slowest = label_of(phase)
    yield Finding.of(
        "steps-get-slower",
        {"slowest": slowest, **steps, **words},
        explains=BY_NAME[phase].verdict or "",
    )


def _how_to_see(phase: str, summary: Summary) -> str:
    """Return the line of code that takes the phase's time. If it is unknown, return the flags that
    would show what grows in the phase, of those that are off."""
    line = first_evidence(summary, "line", phase)
    if line:
        return f"; {line.share:.0%} of that time is in {line.what}"
    if phase == phase_names.BACKWARD:
        return _advice_to_check(summary)
    kinds = ["loading", "line"] if phase == phase_names.WAIT else ["line"]
    flags = [flag_for(summary, kind) for kind in kinds]
    words = " ".join(flag for flag in flags if flag)
    return f"; voirkit {words} shows where" if words else ""


def _loss_spike(figures: Figures, summary: Summary) -> Iterator[Finding]:
    loss, steps = summary.get("loss") or {}, summary.get("steps") or {}
    curve = [(step, value) for step, value in loss.get("curve") or () if value is not None]
    # With one sample per step, losses vary this much by nature: there is no finding.
    items = steps.get("items") or inf
    if len(curve) < FEW_LOSSES or items <= steps.get("n", 0):
        return
    sizes = [abs(value) for _, value in curve]
    usual = median(sizes)
    index = sizes.index(max(sizes))
    step, value = curve[index]
    # If losses are not finite later, training diverges, which ``loss-not-finite`` says.
    diverges = (loss.get("not_finite") or {}).get("first", -1) > step
    if usual and not diverges and _is_spike(sizes, index, usual):
        times = sizes[index] / usual
        evidence = {"step": step, "value": value, "times": times, "usual": usual}
        words = f"{times:,.0f}" if times < _MANY_TIMES else f"{times:.0e}"
        yield Finding.of("loss-spike", {**evidence, "times_words": words})


def _is_spike(sizes: list[float], index: int, usual: float) -> bool:
    """True if a loss is far above the median, and above its neighbours."""
    if index < 2 or sizes[index] < SPIKE * usual:
        return False
    around = sizes[index - 2 : index] + sizes[index + 1 : index + 3]
    return max(around) < AROUND * sizes[index]


def _iterator_each_step(figures: Figures, summary: Summary) -> Iterator[Finding]:
    iterators, steps = figures.get("iterators"), summary.get("steps") or {}
    if not iterators:
        return
    if iterators["single"] < max(FEW_ITERATORS, ITERATORS_OF_STEPS * steps.get("n", 0)):
        return
    workers = (steps.get("loader") or {}).get("workers") or 0
    workers_words = ""
    if workers:
        plural = "s" if workers > 1 else ""
        workers_words = f"; each started {workers} worker{plural}"
    again_s = iterators["again_s"] + (figures.get("drawing") or {}).get("first_s", 0.0)
    yield Finding.of(
        "iterator-each-step",
        {**iterators, "again_s": again_s, "workers_words": workers_words},
        gain=_share_of_run(again_s, summary),
    )


def _slow_sampler(figures: Figures, summary: Summary) -> Iterator[Finding]:
    waits, steps = figures.get("first_batches_s"), summary.get("steps") or {}
    loader = steps.get("loader") or {}
    samples = loader.get("samples") or 0
    if not waits or samples < MANY_SAMPLES or not loader.get("sampler"):
        return
    again_s = waits["again"]
    # with workers, the first wait includes their start, so the time of drawing counts instead
    if loader.get("workers"):
        drawing_s = (figures.get("drawing") or {}).get("start_s", 0.0)
        if drawing_s < DRAWING * again_s:
            return
        again_s = drawing_s
    if waits["first"] < max(LATE * waits["later"], waits["later"] + LATE_S):
        return
    words = {
        "first_words": duration(waits["first"]),
        "usual_words": duration(waits["later"]),
        "samples_words": f"{samples:,} samples",
    }
    evidence = {"sampler": loader["sampler"], "samples": samples, **waits, **words}
    yield Finding.of("slow-sampler", evidence, gain=_share_of_run(again_s, summary))


def _garbage_collection(figures: Figures, summary: Summary) -> Iterator[Finding]:
    pauses, steps = figures.get("collections"), summary.get("steps") or {}
    if not pauses:
        return
    total_s = pauses["total_s"]
    share = _share_of_run(total_s, summary)
    if share is None or share < COLLECTING:
        return
    # older voirkit versions did not record ``later_s``
    later_s = pauses.get("later_s", total_s)
    later = _share_of_run(later_s, summary) or 0.0
    is_at_begin = later < COLLECTING
    if is_at_begin:
        advice = _SWITCH_OFF
    elif pauses.get("full", 0) >= COLLECTED_BY_HAND * max(steps.get("n", 0), FEW_STEPS):
        advice = _DO_NOT_COLLECT
    else:
        advice = _FREEZE
    evidence = {
        "pauses": pauses["n"],
        "total_s": total_s,
        "share": share,
        "in_steps": _share_of_run(_collecting_in_steps_s(steps), summary) or 0.0,
        "total_words": duration(total_s),
        "do_words": advice,
    }
    yield Finding.of("garbage-collection", evidence, gain=share if is_at_begin else later)


def _collecting_in_steps_s(steps: Mapping[str, Any]) -> float:
    """Return the seconds of garbage collection inside steps."""
    other = (steps.get("phases") or {}).get("other") or {}
    collections = (other.get("parts") or {}).get("gc") or {}
    seconds: float = collections.get("total_s", 0.0)
    return seconds


_FREEZE = (
    "Keep what lives long out of garbage collection: gc.collect(); gc.freeze() before the loop."
    " voirkit --what-if gc-freeze measures what that wins, on the script as it is"
)
_SWITCH_OFF = (
    "Switch the collector off while the data is made, before the first step: gc.disable(), and"
    " gc.enable() after it"
)
_DO_NOT_COLLECT = (
    "Look for gc.collect() in the loop, and leave it out: there is a full collection in most steps,"
    " which Python seldom begins by itself"
)


def _evaluation_one_by_one(figures: Figures, summary: Summary) -> Iterator[Finding]:
    n_single = figures.get("single_samples", 0)
    n_batches = (summary.get("evaluation") or {}).get("n", 0)
    if n_single < max(FEW_SINGLE, SINGLE_OF_EVALUATION * n_batches):
        return
    parts = (summary.get("wall") or {}).get("parts") or {}
    evaluation_s = (parts.get("evaluation") or {}).get("total_s", 0.0)
    share = _share_of_run(evaluation_s, summary) or 0.0
    if share >= EVALUATION_OF_RUN:
        yield Finding.of("evaluation-one-by-one", {"batches": n_single, "share": share})


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


def _share_of_run(seconds: float, summary: Summary) -> float | None:
    """Return a time as a share of the run's wall time; None if the wall time is unknown."""
    total_s = (summary.get("wall") or {}).get("total_s")
    return min(seconds / total_s, 1.0) if total_s else None
