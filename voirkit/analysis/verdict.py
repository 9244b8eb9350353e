"""What a run is bound by, why that is said, and what to try first: rules over the figures; the thresholds are in ``runs.thresholds``.

The same figures always give the same verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from voirkit.analysis.pipeline import words
from voirkit.runs.summary import NO_STEPS
from voirkit.runs.thresholds import BOUND, FEW, IDLES, STRAGGLES

_COMPUTE = ("forward", "backward", "optimizer")
_PARTS_OF_OTHER = {"checkpoint": "checkpoint-bound", "communication": "host-bound"}

Figures = Mapping[str, Any]


def verdict(figures: Figures, facts: Mapping[str, Any]) -> dict[str, Any]:
    """``{"kind", "because", "next", "evidence"}`` of a summary.

    Args:
        figures: ``steps`` and ``ranks`` as ``document.figures`` gives them.
        facts: What is known of the loader and the machine: ``workers``, ``dataset``, ``cpus``; what is missing is not used. With
            ``loader``, that of the summary, where it was looked into.
    """
    steps = figures["steps"]
    if steps["n"] < FEW:
        return _unknown(steps["n"], figures)
    late = straggler(figures["ranks"])
    if late is not None:
        return late
    between = steps.get("checkpoints_between", {}).get("share", 0.0)
    shares = _groups(steps["phases"])
    saving = between + shares["checkpoint-bound"] * (1 - between)
    if between and saving >= BOUND:
        return _saving(saving, between)
    kind, share = max(shares.items(), key=lambda pair: pair[1])
    if (starved := _starved(steps, kind)) is not None:
        return starved
    if share < BOUND:
        return _balanced(shares, steps)
    return _SAID[kind](share, steps, facts)


def _starved(steps: Mapping[str, Any], kind: str) -> dict[str, Any] | None:
    """Host-bound if a GPU is given too little work while no input is waited for."""
    device = steps.get("device")
    if device is None or kind in ("input-bound", "transfer-bound", "checkpoint-bound"):
        return None
    idle = _groups(steps["phases"])["host-bound"]
    launching = device["launching"]["share"]
    share = idle + launching
    if share < IDLES:
        return None
    return {
        "kind": "host-bound",
        "because": f"The GPU is given too little to do: it is idle for {_percent(idle)} of a step without waiting for input, and in "
        f"{_percent(launching)} it has finished as soon as the host has started its work.",
        "next": "Start less and larger work: a larger batch, torch.compile, CUDA graphs, a fused optimizer; look for .item(), .cpu() and "
        "print of tensors in every step." + _ceiling(share, "if the GPU never waited for the host"),
        "evidence": {"phase": "other", "share": share, "idle": idle, "launching": launching, "ceiling": 1 - share},
    }


def _groups(phases: Mapping[str, Any]) -> dict[str, float]:
    """What a verdict may name, each with its share."""
    parts = {name: part["share"] for name, part in phases["other"].get("parts", {}).items()}
    checkpoint = parts.get("checkpoint", 0.0)
    return {
        "input-bound": phases["wait"]["share"],
        "transfer-bound": phases["transfer"]["share"],
        "compute-bound": sum(phases[p]["share"] for p in _COMPUTE),
        "checkpoint-bound": checkpoint,
        "host-bound": phases["other"]["share"] - checkpoint - parts.get("voirkit", 0.0),
    }


def straggler(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The rank for which the others wait in every step, if there is one.

    Ranks meet in the backward pass, where gradients are exchanged: one that comes late makes the others' backward longer. So each is
    held against the rest by what it does outside of backward and communication.
    """
    if len(ranks) < 2:
        return None
    per_step = [_own_per_step(r) for r in ranks]
    sums = [sum(own.values()) for own in per_step]
    late = max(range(len(ranks)), key=sums.__getitem__)
    rest = sorted(s for i, s in enumerate(sums) if i != late)
    usual = rest[len(rest) // 2]
    step = max(r["time_s"]["median"] for r in ranks)
    share = (sums[late] - usual) / step if step else 0.0
    if share < STRAGGLES:
        return None
    nearest = min((i for i in range(len(ranks)) if i != late), key=lambda i: abs(sums[i] - usual))
    phase = max(per_step[late], key=lambda p: per_step[late][p] - per_step[nearest][p])
    rank, host, named = ranks[late]["rank"], ranks[late]["host"], _NAMED[phase]
    late_by = f"Rank {rank} ({host}) needs {_percent(share)} of a step longer than the others, in {named}"
    return {
        "kind": "straggler",
        "because": f"{late_by}; they wait for it in backward.",
        "next": f"Look at what rank {rank} does differently in {named}: its data, its disk, its processors, its neighbours on {host}.",
        "evidence": {"rank": rank, "host": host, "phase": phase, "share": share, "ceiling": 1 - share},
    }


def _own_per_step(rank: Mapping[str, Any]) -> dict[str, float]:
    """Seconds a step by phase, without those in which ranks wait for each other."""
    return {p: v["total_s"] / max(rank["steps"], 1) for p, v in rank["phases"].items() if p != "backward"}


def _unknown(n: int, figures: Figures) -> dict[str, Any]:
    evaluated = (figures.get("evaluation") or {}).get("n", 0)
    if n:
        because = f"Only {n} training step{'s' if n > 1 else ''} came to an end; fewer than {FEW} tell nothing."
        next_ = "Let it run longer."
    elif evaluated:
        because = f"The run trained nothing: {evaluated} batches were evaluated, without a backward pass or an optimizer step."
        next_ = "The evaluation's own time is in summary.json."
    else:
        return dict(NO_STEPS)
    return {"kind": "unknown", "because": because, "next": next_, "evidence": {"steps": n}}


def _balanced(shares: Mapping[str, float], steps: Mapping[str, Any]) -> dict[str, Any]:
    first, second = sorted(shares, key=lambda k: -shares[k])[:2]
    named = {
        "input-bound": "waiting for input",
        "transfer-bound": "transfers",
        "compute-bound": "computing",
        "checkpoint-bound": "checkpoints",
        "host-bound": "other work",
    }
    advice = f"Each alone gains little; overlapping {named[first]} with {named[second]} (workers, pinned memory, non_blocking copies)"
    return {
        "kind": "balanced",
        "because": f"Nothing takes most of a step: {named[first]} {_percent(shares[first])}, {named[second]} {_percent(shares[second])}.",
        "next": f"{advice} would gain at most {_percent(shares[second])}.",
        "evidence": {"share": shares[first], "phase": _PHASE[first], "ceiling": 1 - shares[first]},
    }


def _input(share: float, steps: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    workers, dataset, cpus = facts.get("workers"), facts.get("dataset"), facts.get("cpus")
    loader = facts.get("loader") or {}
    who = f" for {dataset}" if dataset else ""
    because = f"{_percent(share)} of a step is spent waiting for the next batch{who}"
    because += f" ({workers} loader worker{'s' if workers != 1 else ''})" if workers is not None else ""
    looked_into = words.because(loader)
    advice = words.workers(loader) if looked_into else ""
    if advice:
        pass
    elif workers == 0:
        advice = f"Load in worker processes: DataLoader(..., num_workers={max((cpus or 2) - 1, 1)})."
    elif workers is not None and cpus is not None and workers < cpus:
        advice = f"Use more workers: there are {cpus} processors and {workers} worker{'s' if workers > 1 else ''}."
    else:
        advice = "The workers can not keep up: make the work on a sample cheaper, or do it once and keep the result."
    advice += f" {words.begin_with(loader)}" if looked_into else " voirkit --loader tells which transform takes the time."
    because += f"; {looked_into}" if looked_into else ""
    evidence: dict[str, Any] = {"phase": "wait", "share": share, "ceiling": 1 - share}
    evidence.update({k: v for k, v in (("workers", workers), ("dataset", dataset)) if v is not None})
    evidence.update(words.evidence(loader))
    return {"kind": "input-bound", "because": f"{because}.", "next": advice + _ceiling(share, "without that wait"), "evidence": evidence}


def _transfer(share: float, steps: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    advice = (
        "Copy once, whole and early: pin_memory=True in the DataLoader, .to(device, non_blocking=True), the smallest dtype that will do."
    )
    return {
        "kind": "transfer-bound",
        "because": f"{_percent(share)} of a step is transfer: copies of tensors from one device or place to another.",
        "next": advice + _ceiling(share, "without these copies"),
        "evidence": {"phase": "transfer", "share": share, "ceiling": 1 - share},
    }


_TRY = {
    "forward": "Try lower precision (torch.autocast), torch.compile, or a larger batch if the device is not full.",
    "backward": "Try lower precision (torch.autocast), torch.compile, or freezing what need not be trained.",
    "optimizer": "Try the optimizer's fused=True or foreach=True, or fewer, larger steps (accumulate gradients).",
}


def _compute(share: float, steps: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    phases = {p: steps["phases"][p]["share"] for p in _COMPUTE}
    phase = max(phases, key=phases.__getitem__)
    split = ", ".join(f"{_NAMED[p]} {_percent(s)}" for p, s in phases.items())
    return {
        "kind": "compute-bound",
        "because": f"{_percent(share)} of a step is computing: {split}.",
        "next": _TRY[phase] + _ceiling(phases[phase], f"if {_NAMED[phase]} cost nothing"),
        "evidence": {"phase": phase, "share": share, "phase_share": phases[phase], "ceiling": 1 - phases[phase]},
    }


_WRITE_LESS = (
    "Write them less often, or in the background: voirkit --what-if checkpoint-async measures what that wins, on the script as it is."
)


def _checkpoint(share: float, steps: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": "checkpoint-bound",
        "because": f"{_percent(share)} of step time goes into writing checkpoints.",
        "next": _WRITE_LESS + _ceiling(share, "without them"),
        "evidence": {"phase": "other", "part": "checkpoint", "share": share, "ceiling": 1 - share},
    }


def _saving(share: float, between: float) -> dict[str, Any]:
    """Where much of it lies between the steps: after an epoch's last batch."""
    return {
        "kind": "checkpoint-bound",
        "because": f"{_percent(share)} of the time since the first step goes into checkpoints, {_percent(between)} of it all after "
        "the last batch of a loop, where no step is.",
        "next": _WRITE_LESS + f" At best, without them, training would take {_percent(1 - share)} of today's time.",
        "evidence": {"phase": "other", "part": "checkpoint", "share": share, "between_steps": between, "ceiling": 1 - share},
    }


def _host(share: float, steps: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    parts = steps["phases"]["other"].get("parts", {})
    known = ", ".join(f"{name} {_percent(part['share'])}" for name, part in parts.items() if part["share"] >= 0.01 and name != "voirkit")
    because = f"{_percent(share)} of a step is none of waiting, copying or computing{f' ({known})' if known else ''}"
    return {
        "kind": "host-bound",
        "because": f"{because}: the script's own Python.",
        "next": "voirkit --flame shows where; look for logging, metrics, .item() and .cpu() in every step." + _ceiling(share, "without it"),
        "evidence": {"phase": "other", "share": share, "ceiling": 1 - share},
    }


_SAID = {
    "input-bound": _input,
    "transfer-bound": _transfer,
    "compute-bound": _compute,
    "checkpoint-bound": _checkpoint,
    "host-bound": _host,
}
_PHASE = {
    "input-bound": "wait",
    "transfer-bound": "transfer",
    "compute-bound": "forward",
    "checkpoint-bound": "other",
    "host-bound": "other",
}
_NAMED = {
    "wait": "waiting for input",
    "transfer": "transfer",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "the optimizer's step",
    "other": "work that is none of the phases",
}


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _ceiling(share: float, condition: str) -> str:
    return f" At best, {condition}, a step would take {_percent(1 - share)} of today's time."
