"""What to do about each part of a run's time, and about what that would save: rules over the summary's figures and the script's facts.

Nothing is advised that the script does already, that needs hardware it does not use, or that runs a flag that is on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from voirkit.analysis.verdict.evidence import COMPUTE, Account, evidence, first_evidence, flag_for
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
    SLOW_OPTIMIZER_S,
    SMALL_STEP_S,
    START_OF_WORKERS,
    STARTUP_S,
    TINY_SAMPLE_S,
)
from voirkit.units import duration

Summary = Mapping[str, Any]
Facts = Mapping[str, Any]


class Remedy(NamedTuple):
    """One piece of advice."""

    kind: str  # the verdict that it belongs to
    do: str  # what to do, a sentence or two
    because: str  # the figure that it rests on
    win: float | None  # share of the run's time that it would save, about, by the recorded time of that part; None where nobody can know
    # Whether that is close enough to be printed: within a factor of 1.5 of what was saved on its own example (docs/advice.md). What is not
    # is for ranking alone.
    is_figure: bool = True

    def document(self) -> dict[str, Any]:
        """An entry of ``advice`` in ``summary.json``."""
        return {"do": self.do, "because": self.because, "win": self.win if self.is_figure else None}


def remedies(time: Account, summary: Summary, facts: Facts) -> list[Remedy]:
    """All that there is to advise, what wins most first; what wins less than ``ADVICE_LEAST`` of the time after the start is left out."""
    made = [
        *_input(time, summary, facts),
        *_transfer(time, facts),
        *_compute(time, summary, facts),
        *_compiling(time, summary),
        *_communication(time, summary),
        *_checkpoint(time, summary),
        *_host(time, summary),
        *_evaluation(time, summary),
        *_startup(time, summary),
    ]
    worth = [one for one in made if one.win is None or _matters(time, one.win)]
    if is_contended(summary.get("processors")):  # what is recorded is not this script's own then
        worth = [remedy._replace(is_figure=False) for remedy in worth]
    return sorted(worth, key=lambda one: -1.0 if one.win is None else one.win, reverse=True)


def _matters(time: Account, of_run: float) -> bool:
    """Whether a share of the run is worth advice."""
    return of_run >= ADVICE_LEAST_OF_RUN and of_run * time.total_s >= ADVICE_LEAST * time.work_s > 0


def _input(time: Account, summary: Summary, facts: Facts) -> Iterator[Remedy]:
    kind = "input-bound"
    share, seconds = time.of_step(kind), time.seconds(kind)
    if not summary["steps"].get("wait_known", True) or not _matters(time, time.of_run(seconds)):
        return
    win, workers, loading = time.of_run(seconds), facts.get("workers"), first_evidence(summary, "loading", "wait")
    because = f"{percent(share)} of a step is spent waiting for the next batch"
    slow = _slow_line(summary)
    if loading:
        most = win if loading.saves is None else min(win, time.of_run(loading.saves * time.steps_s))
        look = "" if slow else _deeper_flag(summary, "line", "the lines of it")
        yield Remedy(kind, loading.do + slow + look, f"{because}; {loading.what}", most)
        return
    look = _look_into_loading(summary)
    if workers == 0:
        per_sample_s = _wait_per_sample(summary)
        if per_sample_s is not None and per_sample_s < TINY_SAMPLE_S:
            if not facts.get("whole_batches"):
                yield Remedy(
                    kind,
                    "Index whole batches at once, data[indices], not sample by sample: give the dataset a __getitems__, or loop over "
                    "a permutation of the indices. Worker processes would cost more than they save.",
                    f"{because}, {duration(per_sample_s)} a sample",
                    win,
                )
            return
        if share < LOADING_LEAST:
            return
        enough, left = _workers(share, facts.get("cpus"))
        yield Remedy(
            kind,
            f"Load in worker processes: DataLoader(..., num_workers={enough}, persistent_workers=True)." + slow + look,
            f"{because}; loading a batch takes {share / max(1 - share, 1e-3):.0%} of the time that training on it takes",
            win * (1 - left),
        )
        return
    first = facts.get("first_batches") or {}
    starting = first.get("first_s", 0.0) / first["wait_s"] if first.get("wait_s") else 0.0
    if workers and starting >= START_OF_WORKERS and not facts.get("persistent"):
        if first["loops"] > 1:
            yield Remedy(
                kind,
                f"Keep the loader's workers between epochs: DataLoader(..., num_workers={workers}, persistent_workers=True).",
                f"{percent(starting)} of the wait is for the first batch of each of {first['loops']} epochs, in which the workers start",
                time.of_run(first["again_s"]),
                is_figure=False,
            )
        return
    if workers and facts.get("cpus") and workers < facts["cpus"]:
        enough = min(math.ceil(workers / max(1 - share, 1e-3)), facts["cpus"])
        left = max((1 - share), workers / enough) if enough > workers else 1.0
        yield Remedy(
            kind,
            f"Use more workers: num_workers={enough} ({facts['cpus']} processors)." + slow + look,
            f"{because} with {workers} worker{'s' if workers > 1 else ''}",
            win * (1 - left) / share if share else 0.0,
        )
        return
    again = "make the work on a sample cheaper, or do it once and keep the result"
    yield Remedy(kind, f"{again[:1].upper()}{again[1:]}." + slow + look, because, win)


def _wait_per_sample(summary: Summary) -> float | None:
    steps = summary["steps"]
    return steps["phases"]["wait"]["total_s"] / steps["items"] if steps.get("items") else None


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


def _transfer(time: Account, facts: Facts) -> Iterator[Remedy]:
    kind = "transfer-bound"
    do = (
        "Copy once, whole and early: pin_memory=True in the DataLoader, .to(device, non_blocking=True), the smallest dtype that will do."
        if _device(facts) != "cpu"
        else "Convert and copy the data once, before the training, into the dtype and layout that it is used in."
    )
    yield Remedy(kind, do, f"{percent(time.of_step(kind))} of a step is copies of tensors", time.of_run(time.seconds(kind)))


def _device(facts: Facts) -> str:
    """The type of device that is trained on; "" if it is not known."""
    return next((str(one["device"]) for one in facts.get("optimizers") or () if one.get("device")), "")


def _has_bfloat16(facts: Facts) -> bool:
    return all(one.get("bf16", True) for one in facts.get("optimizers") or ())


def _compute(time: Account, summary: Summary, facts: Facts) -> Iterator[Remedy]:
    kind, phases = "compute-bound", summary["steps"]["phases"]
    usual_s = time.usual_s
    passes = time.rows["forward"] + time.rows["backward"]
    run = time.of_run(passes * usual_s)
    because = f"forward and backward take {percent(passes)} of a step"
    # Where other work is done a median step mostly waits for a processor; the short ones hardly do.
    usual = "p10" if is_contended(summary.get("processors")) else "median"
    calls = max(facts.get("calls_a_step", 1.0), 1.0)  # a rollout, or a loss of several models, calls small models many times in a step
    passes_s = sum((phases[phase].get("step_s") or {}).get(usual, 0.0) for phase in ("forward", "backward")) / calls
    is_small = passes_s < SMALL_STEP_S and summary["steps"].get("time_of") != "device"
    if is_small and _matters(time, run):
        yield Remedy(
            kind,
            "Try a larger batch: calling operators takes most of such a small step, whatever the batch.",
            f"{because}, {duration(passes_s)}{' a call' if calls > 1 else ''}",
            run * AUTOCAST_SAVES,
            is_figure=False,
        )
    elif not facts.get("autocast") and _has_bfloat16(facts):
        yield Remedy(
            kind,
            "Try lower precision: torch.autocast with torch.bfloat16 around the forward pass and the loss.",
            because,
            run * AUTOCAST_SAVES,
            is_figure=False,
        )
    if (
        not facts.get("compiled")
        and "compile" not in ((summary.get("wall") or {}).get("parts") or {})
        and not is_small
        and time.steps_s >= COMPILE_LEAST_S
    ):
        yield Remedy(kind, "Try torch.compile(model).", because, run * COMPILE_SAVES, is_figure=False)
    step = time.rows["optimizer"]
    usual_step_s = (phases["optimizer"].get("step_s") or {}).get("median", 0.0)
    plain = [one for one in facts.get("optimizers") or () if one.get("fused") is False and usual_step_s >= SLOW_OPTIMIZER_S]
    if plain and _matters(time, time.of_run(step * usual_s)):
        yield Remedy(
            kind,
            f"Make the optimizer with fused=True: {plain[0]['optimizer']}(..., fused=True).",
            f"the optimizer's step takes {percent(step)} of a step",
            time.of_run(step * usual_s) * FUSED_SAVES,
        )
    elif step and _matters(time, time.of_run(step * usual_s)) and "updates" not in facts:
        yield Remedy(
            kind,
            "Step the optimizer less often: accumulate the gradients of two batches, or double the batch.",
            f"the optimizer's step takes {percent(step)} of a step",
            time.of_run(step * usual_s) * HALF_AS_OFTEN,
        )
    found, look = first_evidence(summary, "operator", *COMPUTE), _deeper_flag(summary, "operator", "which operators take the time")
    if found:
        yield Remedy(kind, f"Look at {found.what}: {percent(found.share)} of the time of operators.", because, None)
    elif _matters(time, run) and look:
        yield Remedy(kind, look.strip(), because, None)


def _compiling(time: Account, summary: Summary) -> Iterator[Remedy]:
    if again := first_evidence(summary, "recompilation", "compile"):
        yield Remedy("compile-bound", again.do, again.what, time.of_run(again.details["total_s"]), is_figure=False)


def _communication(time: Account, summary: Summary) -> Iterator[Remedy]:
    kind = "communication-bound"
    seconds, late = time.seconds(kind), first_evidence(summary, "late rank")
    if late and late.do:
        uneven = (late.saves or 0.0) * time.usual_s
        seconds = max(seconds - uneven, 0.0)
        yield Remedy(kind, late.do, late.what, time.of_run(uneven))
    yield Remedy(
        kind,
        "Communicate less often and in larger pieces: accumulate gradients under no_sync(), larger buckets (bucket_cap_mb), fewer and "
        "larger shards; overlap it with computing (async_op=True); broadcast_buffers=False where buffers need not be equal.",
        f"{percent(time.of_step(kind))} of a step is communication between ranks",
        time.of_run(seconds),
    )


def _checkpoint(time: Account, summary: Summary) -> Iterator[Remedy]:
    kind = "checkpoint-bound"
    win = time.of_run(time.seconds(kind))
    found = first_evidence(summary, "system call", "checkpoint")
    do = "Write them less often, or in the background: voirkit --what-if checkpoint-async measures what that wins, on the script as it is."
    where = f" {percent(found.share)} of it is in {found.what}." if found else ""
    yield Remedy(kind, do + where, f"{percent(win)} of the run goes into checkpoints", win)


def _host(time: Account, summary: Summary) -> Iterator[Remedy]:
    kind = "host-bound"
    usual_s = time.usual_s
    gc = time.other.get("gc", 0.0)
    if gc:
        yield Remedy(
            kind,
            "Keep what lives long out of garbage collection: gc.collect(); gc.freeze() before the loop. "
            "voirkit --what-if gc-freeze measures what that wins, on the script as it is.",
            f"garbage collections take {percent(gc)} of a step",
            time.of_run(gc * usual_s),
        )
    inside, all_s = time.of_step(kind) - gc, time.seconds(kind) - gc * usual_s
    in_steps = inside * usual_s >= all_s / 2
    lines = evidence(summary, "line", "other" if in_steps else OUTSIDE)
    call = first_evidence(summary, "system call", "other")
    because = (
        f"{percent(inside)} of a step is untracked host code (not data wait, transfer or compute)"
        if in_steps
        else f"{percent(time.of_run(all_s))} of the run is host code outside of the steps"
    )
    win = time.of_run(all_s)
    for line in lines:
        yield Remedy(kind, f"Do less of {line.what}, or do it less often: {percent(line.share)} of that time.", because, win * line.share)
    if lines:
        return
    if call:
        yield Remedy(kind, f"Do less of {call.what}: {percent(call.share)} of that time.", because, win * call.share)
    else:
        look = _deeper_flag(summary, "line", "the lines").strip()
        yield Remedy(kind, f"Look for logging, metrics, plots, .item() and .cpu() in every step. {look}".strip(), because, win)


def _evaluation(time: Account, summary: Summary) -> Iterator[Remedy]:
    if inference := time.seconds("inference-bound"):
        yield Remedy(
            "inference-bound",
            "Call the model on more inputs at once: in a rollout, on more environments; in an evaluation, on larger batches.",
            f"{percent(time.of_run(inference))} of the run is inference between the steps",
            time.of_run(inference) * HALF_AS_OFTEN,
        )
    seconds = time.seconds("evaluation-bound")
    rollouts = "" if summary["steps"].get("wait_known", True) else " If these are rollouts: call the model on more environments at once."
    takes_gradients = (summary.get("evaluation") or {}).get("takes_gradients")
    mode = "" if takes_gradients else ", under torch.inference_mode()"
    yield Remedy(
        "evaluation-bound",
        f"Evaluate half as often, or on a part of the data; larger batches{mode}.{rollouts}",
        f"{percent(time.of_run(seconds))} of the run is evaluation",
        time.of_run(seconds) * HALF_AS_OFTEN,
    )


def _startup(time: Account, summary: Summary) -> Iterator[Remedy]:
    if time.startup_s < STARTUP_S:
        return
    line = first_evidence(summary, "line", OUTSIDE)
    share = f" {percent(line.share)} of the time outside of the steps is in {line.what}." if line else ""
    more = share or _deeper_flag(summary, "line", "the lines")
    yield Remedy(
        "startup-bound",
        f"Do what the script does before its first step once, and keep the result (prepared data, downloads, indices).{more}",
        f"{percent(time.of_run(time.startup_s))} of the run is the script's own start, before its first step",
        time.of_run(time.startup_s),
    )


def percent(share: float) -> str:
    return f"{share:.0%}"
