"""Remedies for each part of a run's time, with a rough estimate of what each would save: rules over
the summary's figures and the script's facts.

A remedy never advises what the script already does, what needs hardware that the script does not
use, or a voirkit flag that is already on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from voirkit import phase_names
from voirkit.analysis.verdict.evidence import (
    LEAST,
    LOADING,
    Account,
    evidence,
    first_evidence,
    flag_for,
)
from voirkit.findings import Finding
from voirkit.phase_table import COMPUTE
from voirkit.runs.summary import BETWEEN, EVALUATION, OUTSIDE, STARTUP, is_contended
from voirkit.runs.thresholds import (
    ADVICE_LEAST,
    ADVICE_LEAST_OF_RUN,
    AUTOCAST_SAVES,
    COMPILE_LEAST_S,
    COMPILE_SAVES,
    FUSED_SAVES,
    HALF_AS_OFTEN,
    LOADING_LEAST,
    RESTARTS_OF_WORKERS,
    SLOW_OPTIMIZER_S,
    SMALL_STEP_S,
    START_OF_WORKERS,
    STARTUP_S,
    TINY_SAMPLE_S,
)
from voirkit.units import duration

# lower bound for the share of a step that is not data loader wait, used when dividing by that share
_LEAST_TRAINING = 1e-3

Summary = Mapping[str, Any]
Facts = Mapping[str, Any]


def remedies(
    time: Account, summary: Summary, facts: Facts, parts: Iterable[Finding] = ()
) -> list[Finding]:
    """Return all advice, the largest saving first. Advice that saves less than ``ADVICE_LEAST`` of
    the time after the start is left out.

    Args:
        parts: Findings that are themselves advice: they have a ``part_of``.
    """
    candidates = [*parts]
    candidates += _input(time, summary, facts)
    candidates += _restarted_workers(time, summary, facts)
    candidates += _transfer(time, facts)
    candidates += _compute(time, summary, facts)
    candidates += _compiling(time, summary)
    candidates += _communication(time, summary)
    candidates += _checkpoint(time, summary)
    candidates += _host(time, summary)
    candidates += _evaluation(time, summary)
    candidates += _startup(time, summary)
    unsorted = [
        finding for finding in candidates if finding.gain is None or _matters(time, finding.gain)
    ]
    return sorted(unsorted, key=_gain_or_less, reverse=True)


def _gain_or_less(finding: Finding) -> float:
    return -1.0 if finding.gain is None else finding.gain


def _matters(time: Account, of_run: float) -> bool:
    """True if saving a share of the run is worth advice."""
    least_s = ADVICE_LEAST * time.work_s
    return of_run >= ADVICE_LEAST_OF_RUN and of_run * time.total_s >= least_s > 0


def _input(time: Account, summary: Summary, facts: Facts) -> Iterator[Finding]:
    if not summary["steps"].get("wait_known", True):
        return
    share = time.of_step("input-bound")
    waited_s = share * time.usual_s
    drawn_s = _drawn_at_start_s(summary, facts)
    if _matters(time, time.of_run(drawn_s)):
        yield _draw_faster(drawn_s, time.of_run(drawn_s))
        wait_s = summary["steps"]["phases"][phase_names.WAIT]["total_s"]
        waited_s = max(min(waited_s, wait_s - drawn_s), 0.0)
    restarts_s = _restarts_s(facts)
    gain = time.of_run(max(waited_s - restarts_s, 0.0))
    if not _matters(time, gain) or drawn_s > waited_s:
        return
    if restarts_s >= RESTARTS_OF_WORKERS * waited_s and _matters(time, time.of_run(restarts_s)):
        # No further advice: the waits for later batches are also longer because workers restart.
        # They can be judged only once the script keeps its workers.
        return
    slow_line = _slow_line(summary)
    loading = first_evidence(summary, "loading", phase_names.WAIT)
    if loading and loading.do:
        hint = "" if slow_line else _deeper_flag(summary, "line", "the lines of it")
        words = {"what_words": loading.what, "do_words": loading.do + slow_line + hint}
        if loading.saves is not None:
            gain = min(gain, time.of_run(loading.saves * time.steps_s))
        yield Finding.of("faster-loading", {"share": share, **words}, gain=gain)
        return
    more = slow_line + _look_into_loading(summary)
    if facts.get("workers") == 0:
        yield from _without_workers(time, summary, facts, more)
    else:
        yield from _with_workers(share, gain, facts, more)


def _restarts_s(facts: Facts) -> float:
    """Return the seconds that training waited for restarted workers."""
    restarts = facts.get("worker_restarts") or ()
    total_s: float = sum(loader["again_waited_s"] for loader in restarts if loader["trains"])
    return total_s


def _with_workers(share: float, gain: float, facts: Facts, more: str) -> Iterator[Finding]:
    """Advise on a loader that has workers, or may have them.

    Args:
        share: The data loader wait as a share of a step.
        gain: The data loader wait as a share of the run.
        more: Sentences about where loading spends its time, or how to see it.
    """
    workers, processors = facts.get("workers"), facts.get("cpus")
    if workers and processors and workers > processors:
        figures = {"share": share, "workers": workers, "processors": processors}
        words = {"plural_words": "s" if processors > 1 else "", "more_words": more}
        yield Finding.of("fewer-workers", {**figures, **words})
        return
    if workers and _starts_slowly(facts) and not facts.get("persistent"):
        return  # more workers are not advised: most of the wait is for workers to start
    if workers and processors and workers < processors:
        enough = math.ceil(workers / max(1 - share, _LEAST_TRAINING))
        enough = min(enough, processors)
        remaining = max((1 - share), workers / enough) if enough > workers else 1.0
        figures = {"share": share, "workers": workers, "enough": enough, "processors": processors}
        words = {"plural_words": "s" if workers > 1 else "", "more_words": more}
        saved = gain * (1 - remaining) / share if share else 0.0
        yield Finding.of("more-workers", {**figures, **words}, gain=saved)
        return
    yield Finding.of("cheaper-samples", {"share": share, "more_words": more}, gain=gain)


def _starts_slowly(facts: Facts) -> bool:
    """True if most of the wait for batches is for the first batches, while the workers start."""
    first = facts.get("first_batches") or {}
    if not first.get("wait_s"):
        return False
    share: float = first.get("first_s", 0.0) / first["wait_s"]
    return share >= START_OF_WORKERS


def _drawn_at_start_s(summary: Summary, facts: Facts) -> float:
    """Return the seconds that iterators with workers took to draw their first indices from the
    sampler, if that is most of the delay of first batches; otherwise 0."""
    drawn_s: float = _drawing(summary).get("start_s", 0.0)
    late_s = (facts.get("first_batches") or {}).get("late_s", 0.0)
    return drawn_s if drawn_s > late_s / 2 else 0.0


def _drawing(summary: Summary) -> Mapping[str, float]:
    """Return the figures of the symptom ``drawing``, the time to draw indices from the sampler;
    empty without the symptom."""
    return (summary.get("symptoms") or {}).get("drawing") or {}


def _draw_faster(drawing_s: float, gain: float) -> Finding:
    return Finding.of(
        "draw-indices-faster",
        {"drawing_s": drawing_s, "drawing_words": duration(drawing_s)},
        gain=gain,
    )


def _restarted_workers(time: Account, summary: Summary, facts: Facts) -> Iterator[Finding]:
    """Advise on workers that are restarted for each epoch or each evaluation."""
    loaders = _worth_keeping_workers(time, summary, facts)
    if not loaders:
        return
    purposes = []
    if any(loader["trains"] is True for loader in loaders):
        purposes.append("training")
    if any(loader["trains"] is False for loader in loaders):
        purposes.append("evaluation")
    again_s = sum(loader["again_s"] for loader in loaders)
    starts = sum(loader["starts"] for loader in loaders)
    words = {"whose_words": " and ".join(purposes), "again_words": duration(again_s)}
    yield Finding.of(
        "keep-workers",
        {"starts": starts, "again_s": again_s, **words},
        gain=time.of_run(again_s),
        explains="input-bound" if loaders[0]["trains"] else "evaluation-bound",
    )


def _worth_keeping_workers(
    time: Account, summary: Summary, facts: Facts
) -> list[Mapping[str, Any]]:
    """Return the loaders whose workers take much time to restart. Training loaders are left out if
    other advice already says to keep their workers."""
    loaders = [
        loader
        for loader in facts.get("worker_restarts") or ()
        if _matters(time, time.of_run(loader["again_s"]))
    ]
    loading = first_evidence(summary, "loading", phase_names.WAIT)
    if loading and "persistent_workers" in loading.do:
        loaders = [loader for loader in loaders if not loader["trains"]]
    return loaders


def _without_workers(time: Account, summary: Summary, facts: Facts, more: str) -> Iterator[Finding]:
    """Advise on a loader whose batches are made in the main process.

    Worker processes would only make the samples. Training would still wait while indices are drawn
    from the sampler, and for everything else that delays the first batch of a loop.

    Args:
        more: Sentences about where loading spends its time, or how to see it.
    """
    waited_s = summary["steps"]["phases"][phase_names.WAIT]["total_s"]
    first = facts.get("first_batches") or {}
    late_s = first.get("late_s", 0.0)
    drawing_s = _drawing(summary).get("later_s", 0.0)
    loading_s = max(waited_s - late_s - drawing_s, 0.0)
    share = min(time.of_step("input-bound"), loading_s / time.steps_s) if time.steps_s else 0.0
    gain = time.of_run(min(loading_s, share * time.usual_s))
    if late_s + drawing_s >= LEAST * waited_s and _matters(time, time.of_run(late_s + drawing_s)):
        yield _before_samples(time, first, late_s, drawing_s)
    figures = {"share": time.of_step("input-bound")}
    per_sample_s = _wait_per_sample(summary, loading_s)
    if per_sample_s is not None and per_sample_s < TINY_SAMPLE_S:
        if not facts.get("whole_batches") and share >= LOADING_LEAST:
            words = {"per_sample_words": duration(per_sample_s)}
            yield Finding.of("whole-batches", {**figures, **words}, gain=gain)
        return
    if share < LOADING_LEAST:
        return
    enough, remaining = _workers(share, facts.get("cpus"))
    of_training = share / max(1 - share, _LEAST_TRAINING)
    figures = {**figures, "of_training": of_training, "workers": enough}
    yield Finding.of(
        "load-in-workers", {**figures, "more_words": more}, gain=gain * (1 - remaining)
    )


def _before_samples(
    time: Account, first: Mapping[str, Any], late_s: float, drawing_s: float
) -> Finding:
    """Advise on the time before the first sample of a batch is made."""
    gain = time.of_run(late_s + drawing_s)
    if drawing_s > late_s:
        return _draw_faster(drawing_s, gain)
    figures = {"loops": first["loops"], "late_s": late_s}
    words = {"late_words": duration(late_s), "plural_words": "s" if first["loops"] > 1 else ""}
    return Finding.of("late-first-batch", {**figures, **words}, gain=gain)


def _wait_per_sample(summary: Summary, loading_s: float) -> float | None:
    """Return the data loader wait per sample, in seconds; None if the number of samples is unknown.

    On a busy machine a step mostly waits for a CPU. The wait per sample is then computed from the
    10th percentile of the wait in a step.

    Args:
        loading_s: The wait for all samples, in seconds.
    """
    steps = summary["steps"]
    if not steps.get("items"):
        return None
    shortest_s = (steps["phases"][phase_names.WAIT].get("step_s") or {}).get("p10")
    if is_contended(summary.get("processors")) and shortest_s is not None:
        loading_s = min(shortest_s * steps["n"], loading_s)
    per_sample_s: float = loading_s / steps["items"]
    return per_sample_s


def _workers(share: float, cpus: int | None) -> tuple[int, float]:
    """Return the number of workers that would keep up with training, at most one per CPU, and the
    share of the wait that would remain.

    Args:
        share: The data loader wait, without workers, as a share of a step.
    """
    cpus = cpus or 2
    enough = max(math.ceil(share / max(1 - share, 1e-3)), 1)
    number = min(enough, cpus)
    # Loading and training share the CPUs: a step takes at least the sum of their times divided by
    # the number of CPUs.
    step = max(1 - share, share / number, 1 / cpus)
    if not share:
        return number, 0.0
    remaining = (step - (1 - share)) / share
    return number, min(max(remaining, 0.0), 1.0)


def _deeper_flag(summary: Summary, kind: str, words: str) -> str:
    """Return a sentence about the flag that records more evidence of a kind; empty without such a
    flag."""
    flag = flag_for(summary, kind)
    return f" voirkit {flag} shows {words}." if flag else ""


def _look_into_loading(summary: Summary) -> str:
    """Return a sentence about the flags that show where loading spends its time, without flags that
    are already on; empty if the loader is already recorded."""
    loader, lines = flag_for(summary, "loading"), flag_for(summary, "line")
    if not loader:
        return ""
    command = f"voirkit {loader} {lines}".rstrip()
    return f" {command} shows which transform takes the time, and in which line."


def _slow_line(summary: Summary) -> str:
    line = first_evidence(summary, "line", *LOADING)
    return f" {percent(line.share)} of it is in {line.what}." if line else ""


def _transfer(time: Account, facts: Facts) -> Iterator[Finding]:
    kind = "pinned-copies" if _device(facts) != "cpu" else "convert-once"
    share, seconds = time.of_step("transfer-bound"), time.seconds("transfer-bound")
    yield Finding.of(kind, {"share": share}, gain=time.of_run(seconds))


def _device(facts: Facts) -> str:
    """Return the type of the training device; "" if it is not known."""
    for optimizer in facts.get("optimizers") or ():
        if optimizer.get("device"):
            return str(optimizer["device"])
    return ""


def _has_bfloat16(facts: Facts) -> bool:
    return all(optimizer.get("bf16", True) for optimizer in facts.get("optimizers") or ())


def _compute(time: Account, summary: Summary, facts: Facts) -> Iterator[Finding]:
    yield from _passes(time, summary, facts)
    yield from _optimizer(time, summary, facts)
    share = time.rows[phase_names.FORWARD] + time.rows[phase_names.BACKWARD]
    operator = first_evidence(summary, "operator", *COMPUTE)
    hint = _deeper_flag(summary, "operator", "which operators take the time").strip()
    if operator:
        figures = {"share": share, "operator": operator.what, "of_operators": operator.share}
        yield Finding.of("slow-operator", figures)
    elif hint and _matters(time, time.of_run(share * time.usual_s)):
        yield Finding.of("look-at-operators", {"share": share, "look_words": hint})


def _passes(time: Account, summary: Summary, facts: Facts) -> Iterator[Finding]:
    """Advise on the forward and backward passes."""
    share = time.rows[phase_names.FORWARD] + time.rows[phase_names.BACKWARD]
    of_run = time.of_run(share * time.usual_s)
    # the time of one call counts: a rollout, or a loss of several models, calls small models many
    # times in a step
    calls = max(facts.get("calls_a_step", 1.0), 1.0)
    call_s = _passes_s(summary) / calls
    is_small = call_s < SMALL_STEP_S and summary["steps"].get("time_of") != "device"
    if is_small and _matters(time, of_run):
        words = f"{duration(call_s)}{' a call' if calls > 1 else ''}"
        yield Finding.of(
            "larger-batch", {"share": share, "seconds_words": words}, gain=of_run * AUTOCAST_SAVES
        )
    elif not facts.get("autocast") and _has_bfloat16(facts):
        yield Finding.of("autocast", {"share": share}, gain=of_run * AUTOCAST_SAVES)
    wall_parts = (summary.get("wall") or {}).get("parts") or {}
    is_compiled = facts.get("compiled") or "compile" in wall_parts
    if not is_compiled and not is_small and time.steps_s >= COMPILE_LEAST_S:
        yield Finding.of("compile", {"share": share}, gain=of_run * COMPILE_SAVES)


def _passes_s(summary: Summary) -> float:
    """Return the time of the forward and backward passes in a typical step, in seconds."""
    # On a busy machine the median step mostly waits for a CPU, and the shortest steps hardly do: so
    # the tenth percentile is used.
    quantile = "p10" if is_contended(summary.get("processors")) else "median"
    total_s = 0.0
    for phase in (phase_names.FORWARD, phase_names.BACKWARD):
        step_s = summary["steps"]["phases"][phase].get("step_s") or {}
        total_s += step_s.get(quantile, 0.0)
    return total_s


def _optimizer(time: Account, summary: Summary, facts: Facts) -> Iterator[Finding]:
    share = time.rows[phase_names.OPTIMIZER]
    of_run = time.of_run(share * time.usual_s)
    if not share or not _matters(time, of_run):
        return
    quantiles_s = summary["steps"]["phases"][phase_names.OPTIMIZER].get("step_s") or {}
    usual_step_s = quantiles_s.get("median", 0.0)
    optimizers = facts.get("optimizers") or []
    # it is unknown which of several optimizers takes the time, so all of them must be unfused
    is_plain = bool(optimizers) and all(each.get("fused") is False for each in optimizers)
    if is_plain and usual_step_s >= SLOW_OPTIMIZER_S:
        figures = {"share": share, "optimizer": optimizers[0]["optimizer"]}
        yield Finding.of("fused-optimizer", figures, gain=of_run * FUSED_SAVES)
    elif "updates" not in facts and not any(map(_steps_by_closure, optimizers)):
        yield Finding.of("fewer-updates", {"share": share}, gain=of_run * HALF_AS_OFTEN)


def _steps_by_closure(optimizer: Mapping[str, Any]) -> bool:
    """True if an optimizer computes the gradients itself, in a closure that each step calls."""
    return optimizer.get("optimizer") == "LBFGS"


def _compiling(time: Account, summary: Summary) -> Iterator[Finding]:
    recompilation = first_evidence(summary, "recompilation", "compile")
    if recompilation:
        words = {"what_words": recompilation.what, "do_words": recompilation.do}
        gain = time.of_run(recompilation.details["total_s"])
        yield Finding.of("recompilations", words, gain=gain)


def _communication(time: Account, summary: Summary) -> Iterator[Finding]:
    share, seconds = time.of_step("communication-bound"), time.seconds("communication-bound")
    late = first_evidence(summary, "late rank")
    if late and late.do:
        uneven_s = (late.saves or 0.0) * time.usual_s
        seconds = max(seconds - uneven_s, 0.0)
        words = {"what_words": late.what, "do_words": late.do}
        yield Finding.of("late-rank", words, gain=time.of_run(uneven_s))
    yield Finding.of("communicate-less", {"share": share}, gain=time.of_run(seconds))


def _checkpoint(time: Account, summary: Summary) -> Iterator[Finding]:
    of_run = time.of_run(time.seconds("checkpoint-bound"))
    call = first_evidence(summary, "system call", "checkpoint")
    more = f" {percent(call.share)} of it is in {call.what}." if call else ""
    yield Finding.of(
        "checkpoints-in-background", {"of_run": of_run, "more_words": more}, gain=of_run
    )


def _host(time: Account, summary: Summary) -> Iterator[Finding]:
    gc = time.other.get("gc", 0.0)
    share = time.of_step("host-bound") - gc
    seconds = time.seconds("host-bound") - gc * time.usual_s
    gain = time.of_run(seconds)
    if share * time.usual_s >= seconds / 2:
        words = (
            f"{percent(share)} of a step is untracked host code (not data wait, transfer or"
            " compute)"
        )
        where, lines = "in every step", evidence(summary, "line", "other")
    else:
        words = f"{percent(gain)} of the run is host code outside of the steps"
        where, lines = "outside of the steps", evidence(summary, "line", BETWEEN, OUTSIDE)
    for line in lines:
        figures = {"line": line.what, "of_part": line.share, "part_words": words}
        yield Finding.of("slow-line", figures, gain=gain * line.share)
    if lines:
        return
    call = first_evidence(summary, "system call", "other")
    if call:
        figures = {"call": call.what, "of_part": call.share, "part_words": words}
        yield Finding.of("slow-system-call", figures, gain=gain * call.share)
    else:
        hint = _deeper_flag(summary, "line", "the lines")
        words_of = {"part_words": words, "where_words": where, "look_words": hint}
        yield Finding.of("look-for-host-code", words_of, gain=gain)


def _evaluation(time: Account, summary: Summary) -> Iterator[Finding]:
    inference_s = time.seconds("inference-bound")
    if inference_s:
        of_run = time.of_run(inference_s)
        yield Finding.of("batched-inference", {"of_run": of_run}, gain=of_run * HALF_AS_OFTEN)
    of_run = time.of_run(time.seconds("evaluation-bound"))
    rollouts = ""
    if not summary["steps"].get("wait_known", True):
        rollouts = " If these are rollouts: call the model on more environments at once."
    line = first_evidence(summary, "line", EVALUATION)
    if line:
        hint = f" {percent(line.share)} of it is in {line.what}."
    else:
        hint = _deeper_flag(summary, "line", "the lines that take it")
    words = {"rollouts_words": rollouts, "look_words": hint}
    yield Finding.of("evaluate-less", {"of_run": of_run, **words}, gain=of_run * HALF_AS_OFTEN)


def _startup(time: Account, summary: Summary) -> Iterator[Finding]:
    if time.startup_s < STARTUP_S:
        return
    line = first_evidence(summary, "line", STARTUP)
    if line:
        more = f" {percent(line.share)} of the time before the first step is in {line.what}."
    else:
        more = _deeper_flag(summary, "line", "the lines")
    of_run = time.of_run(time.startup_s)
    yield Finding.of("start-once", {"of_run": of_run, "more_words": more}, gain=of_run)


def percent(share: float) -> str:
    return f"{share:.0%}"
