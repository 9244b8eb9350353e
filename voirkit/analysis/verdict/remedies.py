"""What to do about each part of a run's time, and about what that would save: rules over the summary's figures and the script's facts.

Nothing is advised that the script does already, that needs hardware it does not use, or that runs a flag that is on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from voirkit.analysis.verdict.evidence import COMPUTE, Account, evidence, first_evidence, flag_for
from voirkit.findings import Finding
from voirkit.runs.summary import OUTSIDE, is_contended
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

_LEAST_TRAINING = 1e-3  # share of a step that is no wait, at least

Summary = Mapping[str, Any]
Facts = Mapping[str, Any]


def remedies(time: Account, summary: Summary, facts: Facts, parts: Iterable[Finding] = ()) -> list[Finding]:
    """All that there is to advise, what saves most first; what saves less than ``ADVICE_LEAST`` of the time after the start is left out.

    Args:
        parts: Findings that are advice about a part of the time of a kind of verdict.
    """
    made = [
        *parts,
        *_input(time, summary, facts),
        *_workers_again(time, summary, facts),
        *_transfer(time, facts),
        *_compute(time, summary, facts),
        *_compiling(time, summary),
        *_communication(time, summary),
        *_checkpoint(time, summary),
        *_host(time, summary),
        *_evaluation(time, summary),
        *_startup(time, summary),
    ]
    worth = [finding for finding in made if finding.gain is None or _matters(time, finding.gain)]
    return sorted(worth, key=lambda finding: -1.0 if finding.gain is None else finding.gain, reverse=True)


def _matters(time: Account, of_run: float) -> bool:
    """Whether a share of the run is worth advice."""
    return of_run >= ADVICE_LEAST_OF_RUN and of_run * time.total_s >= ADVICE_LEAST * time.work_s > 0


def _input(time: Account, summary: Summary, facts: Facts) -> Iterator[Finding]:
    share = time.of_step("input-bound")
    restarts_s = sum(loader["again_waited_s"] for loader in facts.get("worker_restarts") or () if loader["trains"])
    waited_s = share * time.usual_s
    gain = time.of_run(max(waited_s - restarts_s, 0.0))
    if not summary["steps"].get("wait_known", True) or not _matters(time, gain):
        return
    if restarts_s >= RESTARTS_OF_WORKERS * waited_s and _matters(time, time.of_run(restarts_s)):
        return  # later batches wait for the other workers to start: what is left of the wait shows once they stay
    workers, loading = facts.get("workers"), first_evidence(summary, "loading", "wait")
    slow = _slow_line(summary)
    if loading:
        most = gain if loading.saves is None else min(gain, time.of_run(loading.saves * time.steps_s))
        look = "" if slow else _deeper_flag(summary, "line", "the lines of it")
        words = {"what_words": loading.what, "do_words": loading.do + slow + look}
        yield Finding.of("faster-loading", {"share": share, **words}, gain=most)
        return
    more = slow + _look_into_loading(summary)
    if workers == 0:
        yield from _without_workers(time, summary, facts, more)
        return
    first = facts.get("first_batches") or {}
    starting = first.get("first_s", 0.0) / first["wait_s"] if first.get("wait_s") else 0.0
    if workers and starting >= START_OF_WORKERS and not facts.get("persistent"):
        return  # the start of workers is what is waited for
    processors = facts.get("cpus")
    if workers and processors and workers < processors:
        enough = min(math.ceil(workers / max(1 - share, _LEAST_TRAINING)), processors)
        left = max((1 - share), workers / enough) if enough > workers else 1.0
        figures = {"share": share, "workers": workers, "enough": enough, "processors": processors}
        words = {"plural_words": "s" if workers > 1 else "", "more_words": more}
        yield Finding.of("more-workers", {**figures, **words}, gain=gain * (1 - left) / share if share else 0.0)
        return
    yield Finding.of("cheaper-samples", {"share": share, "more_words": more}, gain=gain)


def _workers_again(time: Account, summary: Summary, facts: Facts) -> Iterator[Finding]:
    """Workers that are started for each epoch, or for each evaluation."""
    worth = [loader for loader in facts.get("worker_restarts") or () if _matters(time, time.of_run(loader["again_s"]))]
    loading = first_evidence(summary, "loading", "wait")
    if loading and "persistent_workers" in loading.do:
        worth = [loader for loader in worth if not loader["trains"]]
    if not worth:
        return
    whose = [name for name, trains in (("training", True), ("evaluation", False)) if any(row["trains"] is trains for row in worth)]
    again_s = sum(loader["again_s"] for loader in worth)
    starts = sum(loader["starts"] for loader in worth)
    words = {"whose_words": " and ".join(whose), "again_words": duration(again_s)}
    kind = "input-bound" if worth[0]["trains"] else "evaluation-bound"
    yield Finding.of("keep-workers", {"starts": starts, "again_s": again_s, **words}, gain=time.of_run(again_s), explains=kind)


def _without_workers(time: Account, summary: Summary, facts: Facts, more: str) -> Iterator[Finding]:
    """A loader whose batches are made in the main process.

    Worker processes take over the making of samples alone. What draws their indices, and what makes the first batch of a loop late, is
    waited for all the same.

    Args:
        more: How to see more of it, in words.
    """
    waited_s = summary["steps"]["phases"]["wait"]["total_s"]
    first, drawing = facts.get("first_batches") or {}, (summary.get("symptoms") or {}).get("drawing") or {}
    late_s = first.get("late_s", 0.0)
    drawing_s = drawing.get("later_s", 0.0)
    loading_s = max(waited_s - late_s - drawing_s, 0.0)
    share = min(time.of_step("input-bound"), loading_s / time.steps_s) if time.steps_s else 0.0
    gain = time.of_run(min(loading_s, share * time.usual_s))
    if _matters(time, time.of_run(late_s + drawing_s)):
        yield _before_samples(time, first, late_s, drawing_s)
    figures = {"share": time.of_step("input-bound")}
    per_sample_s = _wait_per_sample(summary, loading_s)
    if per_sample_s is not None and per_sample_s < TINY_SAMPLE_S:
        if not facts.get("whole_batches") and share >= LOADING_LEAST:
            yield Finding.of("whole-batches", {**figures, "per_sample_words": duration(per_sample_s)}, gain=gain)
        return
    if share < LOADING_LEAST:
        return
    enough, left = _workers(share, facts.get("cpus"))
    figures = {**figures, "of_training": share / max(1 - share, _LEAST_TRAINING), "workers": enough}
    yield Finding.of("load-in-workers", {**figures, "more_words": more}, gain=gain * (1 - left))


def _before_samples(time: Account, first: Mapping[str, Any], late_s: float, drawing_s: float) -> Finding:
    """What to do about time before the samples of a batch are made."""
    gain = time.of_run(late_s + drawing_s)
    if drawing_s > late_s:
        return Finding.of("draw-indices-faster", {"drawing_s": drawing_s, "drawing_words": duration(drawing_s)}, gain=gain)
    words = {"late_words": duration(late_s), "plural_words": "s" if first["loops"] > 1 else ""}
    return Finding.of("late-first-batch", {"loops": first["loops"], "late_s": late_s, **words}, gain=gain)


def _wait_per_sample(summary: Summary, loading_s: float) -> float | None:
    """How long a sample is waited for. On a busy machine waits are mostly for a processor: there it is that of the shortest tenth of steps.

    Args:
        loading_s: The wait for all samples.
    """
    steps = summary["steps"]
    if not steps.get("items"):
        return None
    shortest_s = (steps["phases"]["wait"].get("step_s") or {}).get("p10")
    if is_contended(summary.get("processors")) and shortest_s is not None:
        loading_s = min(shortest_s * steps["n"], loading_s)
    per_sample_s: float = loading_s / steps["items"]
    return per_sample_s


def _workers(share: float, cpus: int | None) -> tuple[int, float]:
    """How many workers would keep up, by what a batch takes to load and to train on, and the share of the wait that would remain."""
    cpus = cpus or 2
    enough = max(math.ceil(share / max(1 - share, 1e-3)), 1)
    number = min(enough, cpus)
    # Loading and training share the processors: together they take no less than their sum over all of them.
    step = max(1 - share, share / number, 1 / cpus)
    return number, min(max((step - (1 - share)) / share, 0.0), 1.0) if share else 0.0


def _deeper_flag(summary: Summary, kind: str, words: str) -> str:
    """Which flag shows more."""
    flag = flag_for(summary, kind)
    return f" voirkit {flag} shows {words}." if flag else ""


def _look_into_loading(summary: Summary) -> str:
    """Which flags show what loading takes its time for, of those that are not on."""
    loader, lines = (flag_for(summary, kind) for kind in ("loading", "line"))
    if not loader:
        return ""
    return f" voirkit {loader} {lines} shows which transform takes the time, and in which line.".replace("  ", " ")


def _slow_line(summary: Summary) -> str:
    found = first_evidence(summary, "line", "wait")
    return f" {percent(found.share)} of it is in {found.what}." if found else ""


def _transfer(time: Account, facts: Facts) -> Iterator[Finding]:
    kind = "pinned-copies" if _device(facts) != "cpu" else "convert-once"
    share, seconds = time.of_step("transfer-bound"), time.seconds("transfer-bound")
    yield Finding.of(kind, {"share": share}, gain=time.of_run(seconds))


def _device(facts: Facts) -> str:
    """The type of device that is trained on; "" if it is not known."""
    return next((str(one["device"]) for one in facts.get("optimizers") or () if one.get("device")), "")


def _has_bfloat16(facts: Facts) -> bool:
    return all(one.get("bf16", True) for one in facts.get("optimizers") or ())


def _compute(time: Account, summary: Summary, facts: Facts) -> Iterator[Finding]:
    yield from _passes(time, summary, facts)
    yield from _optimizer(time, summary, facts)
    share = time.rows["forward"] + time.rows["backward"]
    operator, look = first_evidence(summary, "operator", *COMPUTE), _deeper_flag(summary, "operator", "which operators take the time")
    if operator:
        yield Finding.of("slow-operator", {"share": share, "operator": operator.what, "of_operators": operator.share})
    elif look and _matters(time, time.of_run(share * time.usual_s)):
        yield Finding.of("look-at-operators", {"share": share, "look_words": look.strip()})


def _passes(time: Account, summary: Summary, facts: Facts) -> Iterator[Finding]:
    """Forward and backward."""
    phases = summary["steps"]["phases"]
    share = time.rows["forward"] + time.rows["backward"]
    of_run = time.of_run(share * time.usual_s)
    # Where other work is done a median step mostly waits for a processor; the short ones hardly do.
    usual = "p10" if is_contended(summary.get("processors")) else "median"
    calls = max(facts.get("calls_a_step", 1.0), 1.0)  # a rollout, or a loss of several models, calls small models many times in a step
    call_s = sum((phases[phase].get("step_s") or {}).get(usual, 0.0) for phase in ("forward", "backward")) / calls
    is_small = call_s < SMALL_STEP_S and summary["steps"].get("time_of") != "device"
    if is_small and _matters(time, of_run):
        words = f"{duration(call_s)}{' a call' if calls > 1 else ''}"
        yield Finding.of("larger-batch", {"share": share, "seconds_words": words}, gain=of_run * AUTOCAST_SAVES)
    elif not facts.get("autocast") and _has_bfloat16(facts):
        yield Finding.of("autocast", {"share": share}, gain=of_run * AUTOCAST_SAVES)
    is_compiled = facts.get("compiled") or "compile" in ((summary.get("wall") or {}).get("parts") or {})
    if not is_compiled and not is_small and time.steps_s >= COMPILE_LEAST_S:
        yield Finding.of("compile", {"share": share}, gain=of_run * COMPILE_SAVES)


def _optimizer(time: Account, summary: Summary, facts: Facts) -> Iterator[Finding]:
    share = time.rows["optimizer"]
    of_run = time.of_run(share * time.usual_s)
    if not share or not _matters(time, of_run):
        return
    usual_step_s = (summary["steps"]["phases"]["optimizer"].get("step_s") or {}).get("median", 0.0)
    plain = [optimizer for optimizer in facts.get("optimizers") or () if optimizer.get("fused") is False]
    if plain and usual_step_s >= SLOW_OPTIMIZER_S:
        figures = {"share": share, "optimizer": plain[0]["optimizer"]}
        yield Finding.of("fused-optimizer", figures, gain=of_run * FUSED_SAVES)
    elif "updates" not in facts:
        yield Finding.of("fewer-updates", {"share": share}, gain=of_run * HALF_AS_OFTEN)


def _compiling(time: Account, summary: Summary) -> Iterator[Finding]:
    if again := first_evidence(summary, "recompilation", "compile"):
        words = {"what_words": again.what, "do_words": again.do}
        yield Finding.of("recompilations", words, gain=time.of_run(again.details["total_s"]))


def _communication(time: Account, summary: Summary) -> Iterator[Finding]:
    share, seconds = time.of_step("communication-bound"), time.seconds("communication-bound")
    late = first_evidence(summary, "late rank")
    if late and late.do:
        uneven_s = (late.saves or 0.0) * time.usual_s
        seconds = max(seconds - uneven_s, 0.0)
        yield Finding.of("late-rank", {"what_words": late.what, "do_words": late.do}, gain=time.of_run(uneven_s))
    yield Finding.of("communicate-less", {"share": share}, gain=time.of_run(seconds))


def _checkpoint(time: Account, summary: Summary) -> Iterator[Finding]:
    of_run = time.of_run(time.seconds("checkpoint-bound"))
    call = first_evidence(summary, "system call", "checkpoint")
    more = f" {percent(call.share)} of it is in {call.what}." if call else ""
    yield Finding.of("checkpoints-in-background", {"of_run": of_run, "more_words": more}, gain=of_run)


def _host(time: Account, summary: Summary) -> Iterator[Finding]:
    usual_s = time.usual_s
    gc = time.other.get("gc", 0.0)
    share, seconds = time.of_step("host-bound") - gc, time.seconds("host-bound") - gc * usual_s
    is_in_steps = share * usual_s >= seconds / 2
    gain = time.of_run(seconds)
    words = (
        f"{percent(share)} of a step is untracked host code (not data wait, transfer or compute)"
        if is_in_steps
        else f"{percent(gain)} of the run is host code outside of the steps"
    )
    lines = evidence(summary, "line", "other" if is_in_steps else OUTSIDE)
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
        look = _deeper_flag(summary, "line", "the lines")
        yield Finding.of("look-for-host-code", {"part_words": words, "look_words": look}, gain=gain)


def _evaluation(time: Account, summary: Summary) -> Iterator[Finding]:
    if inference := time.seconds("inference-bound"):
        of_run = time.of_run(inference)
        yield Finding.of("batched-inference", {"of_run": of_run}, gain=of_run * HALF_AS_OFTEN)
    of_run = time.of_run(time.seconds("evaluation-bound"))
    rollouts = "" if summary["steps"].get("wait_known", True) else " If these are rollouts: call the model on more environments at once."
    takes_gradients = (summary.get("evaluation") or {}).get("takes_gradients")
    words = {
        "mode_words": "" if takes_gradients else ", under torch.inference_mode()",
        "rollouts_words": rollouts,
        "look_words": _deeper_flag(summary, "line", "the lines that take it"),
    }
    yield Finding.of("evaluate-less", {"of_run": of_run, **words}, gain=of_run * HALF_AS_OFTEN)


def _startup(time: Account, summary: Summary) -> Iterator[Finding]:
    if time.startup_s < STARTUP_S:
        return
    line = first_evidence(summary, "line", OUTSIDE)
    more = f" {percent(line.share)} of the time outside of the steps is in {line.what}." if line else ""
    of_run = time.of_run(time.startup_s)
    yield Finding.of("start-once", {"of_run": of_run, "more_words": more or _deeper_flag(summary, "line", "the lines")}, gain=of_run)


def percent(share: float) -> str:
    return f"{share:.0%}"
