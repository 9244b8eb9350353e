"""What a run is bound by, why that is said, and what to do about it: rules over the figures; the thresholds are in ``runs.thresholds``.

The same figures always give the same verdict. What there is to do, and what it would win, is in ``remedies``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from voirkit.analysis.verdict.evidence import COMPUTE, Account, account, evidence, first_evidence
from voirkit.analysis.verdict.remedies import percent, remedies
from voirkit.findings import Finding, Severity
from voirkit.runs.summary import OUTSIDE, is_contended, no_steps, saving, training_counts
from voirkit.runs.thresholds import (
    BOUND,
    FEW,
    FEW_IN_STEP,
    FEW_OF_RUN,
    IDLES,
    LARGEST,
    LATE_IN,
    SECOND,
    STARTUP_S,
    STRAGGLES,
    TRAINS_LEAST,
)
from voirkit.units import figure

_ADVICE = 3  # pieces of it
LEAST_SHOWN = 0.01  # share of a step from which a part of a phase is named
_EVALUATION = ("evaluation-bound", "inference-bound")

Figures = Mapping[str, Any]
Facts = Mapping[str, Any]
Document = dict[str, Any]


def verdict(figures: Figures, facts: Facts) -> Document:
    """The verdict alone: see ``conclusions``."""
    return conclusions(figures, facts)[0]


def conclusions(
    figures: Figures, facts: Facts, of_rank: Callable[[int], Figures] | None = None, findings: Sequence[Finding] = ()
) -> tuple[Document, list[Document]]:
    """``verdict`` and ``advice`` of a summary.

    Args:
        figures: A summary with ``steps``, ``evaluation`` and ``ranks`` as ``document.figures`` gives them; what else it has
            (``wall``, parts of instruments that give evidence) is used.
        facts: What is known of the loader, the script and the machine (``document.Rank.facts``); what is missing is not used.
        of_rank: The figures of one rank alone, for what is said of a late one.
        findings: What rules have found: where one explains a part of the time, no general advice is given about the same part.

    Returns:
        ``{"kind", "because", "next", "evidence"}``, and up to three of ``{"do", "because", "win"}``: what findings advise to save time,
        if it is known how much, or of the verdict's own kind; then what wins most, then other findings; ``next`` is the first of them.
    """
    steps = figures["steps"]
    if steps["n"] < FEW:
        return _unknown(steps["n"], figures), []
    time = account(figures)
    hung = _hung(time, figures)
    if hung is not None:
        return hung, [_leading(hung, time.of_run(hung["evidence"]["seconds"]))]
    late = straggler(figures, of_rank)
    if late is not None:
        return late, [_leading(late, time.of_run(late["evidence"]["share"] * time.usual_s))]
    found = _outside(time, figures) or _starved(steps) or _inside(time, figures, facts)
    said = [found["because"], _second(time, found), _outlying(time, steps), _micro_batches(steps, facts)]
    found["because"] = " ".join(filter(None, said))
    explained = {finding.explains for finding in findings if finding.explains}
    parts = [finding for finding in findings if finding.part_of]
    general = [remedy for remedy in remedies(time, figures, facts, parts) if remedy.explains not in explained]
    specific = [finding for finding in findings if finding.severity == Severity.TIME and not finding.part_of]
    has_figures = not is_contended(figures.get("processors"))  # else what is recorded is not this script's own
    advice = [_advice(finding, has_figures) for finding in _chosen(specific, _ranked(general, found), found)]
    if found["kind"] in explained:
        found.setdefault("next", next(finding.next for finding in findings if finding.explains == found["kind"]))
    found.setdefault("next", _following(advice, found["kind"] == "balanced") or _nothing_to_do(time))
    return {key: found[key] for key in ("kind", "because", "next", "evidence")}, advice


def _chosen(specific: Sequence[Finding], general: Sequence[Finding], verdict: Document) -> list[Finding]:
    """The advice that is given: findings of the verdict's kind or with a gain first, and last those of time that may be small."""
    kinds = verdict["evidence"].get("largest", [verdict["kind"]])
    leading = [finding for finding in specific if finding.gain is not None or finding.explains in kinds]
    others = [finding for finding in specific if finding not in leading]
    best = [*leading, *general][: max(_ADVICE - len(others), 1)]
    return [*best, *others][:_ADVICE]


def _leading(verdict: Document, win: float) -> Document:
    """The only entry of ``advice`` where the verdict itself says what to do."""
    return {"kind": verdict["kind"], "do": verdict["next"], "because": verdict["because"], "win": win}


def _advice(finding: Finding, has_figures: bool) -> Document:
    """An entry of ``advice`` from a finding."""
    win = finding.printed_gain if has_figures else None
    return {"kind": finding.kind, "do": finding.next, "because": finding.because.removesuffix("."), "win": win}


def _ranked(remedies: Sequence[Finding], verdict: Mapping[str, Any]) -> list[Finding]:
    """What was compiled again, whose cause is known; then the best of the verdict's own kind, or of each of two parts as large; then what
    wins most."""
    kinds = verdict["evidence"].get("largest", [verdict["kind"]])
    best = [next((remedy for remedy in remedies if kind in (remedy.explains, remedy.part_of)), None) for kind in ("compile-bound", *kinds)]
    leading = [remedy for remedy in best if remedy is not None]
    return [*leading, *(remedy for remedy in remedies if remedy not in leading)]


def _following(advice: Sequence[Mapping[str, Any]], both: bool) -> str:
    """``next``: the first piece of advice with about what it saves; where two parts are as large, the first two. Empty without advice."""
    lines = ((one["do"], saving(one["win"])) for one in advice[: 2 if both else 1])
    return " Or: ".join(f"{do} {saves[:1].upper()}{saves[1:]}." if saves else do for do, saves in lines)


def _nothing_to_do(time: Account) -> str:
    share = time.of_run(time.steps_s)
    if share < FEW_OF_RUN:
        return f"The steps take {share:.1%} of this run: what they could save shows in a longer one."
    return "Nothing stands out that could be saved."


# straggler, unknown


def straggler(figures: Figures, of_rank: Callable[[int], Figures] | None = None) -> Document | None:
    """The rank for which the others wait in most steps, if there is one: by the collectives that each has entered, or by its ``skew``."""
    found = first_evidence(figures, "late rank")
    late = found.details if found is not None else _late_by_skew(figures["ranks"])
    if not late:
        return None
    share, rank, host, named = late["share"], late["rank"], late["host"], _NAMED.get(late["phase"], late["phase"])
    needs = found.what if found is not None else f"it needs {percent(share)} of a step longer than the others before they meet"
    doing, do = _doing(of_rank(rank), late["phase"]) if of_rank else ("", "")
    look = f"Look at what rank {rank} does differently in {named}: its data, its disk, its processors, its neighbours on {host}."
    look = f"On rank {rank}: {do}" if do else look
    return {
        "kind": "straggler",
        "because": f"Rank {rank} ({host}) is a straggler: {needs}, in {named}{doing}; the others wait for it.",
        "next": f"{look} At best, if it kept up, a step would take {percent(1 - share)} of today's time.",
        "evidence": {**late, "ceiling": 1 - share},
    }


def _doing(of_rank: Figures, phase: str) -> tuple[str, str]:
    """What a late rank does in that phase, by what of it is recorded most closely, and what to do about it."""
    loading = first_evidence(of_rank, "loading", phase) if phase == "wait" else None
    if loading is not None:
        return f" ({loading.what})", loading.do
    found = first_evidence(of_rank, "line", phase) or first_evidence(of_rank, "system call", phase)
    return (f" ({percent(found.share)} of it in {found.what})", found.do) if found is not None else ("", "")


def _late_by_skew(ranks: Sequence[Mapping[str, Any]]) -> Document:
    late = max(ranks, key=lambda rank: (rank.get("skew") or {}).get("share", 0.0), default={})
    skew = late.get("skew") or {"share": 0.0, "late": 0.0}
    if skew["share"] < STRAGGLES or skew["late"] < LATE_IN or late["steps"] < FEW_IN_STEP:
        return {}
    return {"rank": late["rank"], "host": late["host"], "phase": skew["phase"], "share": skew["share"], "late": skew["late"]}


def _unknown(n: int, figures: Figures) -> Document:
    evaluation = figures.get("evaluation") or {}
    evaluated = evaluation.get("n", 0)
    seen = figures.get("recorded_work") or {}
    trained = {name: (seen.get(name) or {}).get("n", 0) for name in ("optimizer_steps", "backward_passes")}
    if n:
        because = f"Only {n} training step{'s' if n > 1 else ''} came to an end; fewer than {FEW} tell nothing."
        next_ = "Let it run longer."
    elif evaluated and not trained["optimizer_steps"] and (evaluation.get("takes_gradients") or not trained["backward_passes"]):
        gradients = training_counts(**trained) if trained["backward_passes"] else "no backward pass"
        because = f"The run trained nothing: {evaluated} batches were evaluated, with {gradients} and no optimizer step."
        next_ = "See which lines its time goes to: voirkit --flame SCRIPT."
    elif any(trained.values()):
        because = f"{training_counts(**trained)} were recorded, but none of them lies in a step that can be told from the next."
        next_ = "Say where a step begins with a probe in a voirfile.py: voirkit init SCRIPT writes one to start from."
        return {"kind": "unknown", "because": because, "next": next_, "evidence": {"steps": n, **trained}}
    elif figures.get("ended") == "exception":
        because, next_ = "The script failed before its first training step.", "Its error, with the traceback that python prints, says why."
    else:
        return no_steps(figures.get("unrecorded_processes") or ())
    return {"kind": "unknown", "because": because, "next": next_, "evidence": {"steps": n}}


# outside of the steps


def _hung(time: Account, figures: Figures) -> Document | None:
    """A run that hung for most of its time: what its steps spend theirs on explains nothing."""
    hangs = evidence(figures, "hang")
    seconds = sum(one.details["until_time_ns"] - one.details["since_time_ns"] for one in hangs) / 1e9
    if not hangs or seconds < BOUND * time.work_s:
        return None
    share = min(seconds / time.work_s, 1.0) if time.work_s else 1.0
    return {
        "kind": "hung",
        "because": f"{percent(share)} of the time after the start no step ended.",
        "next": "See what each rank waits for, with all stacks: voirkit report --html",
        "evidence": {"share": share, "of": "run", "seconds": seconds, "ceiling": 1 - share, "what": hangs[0].what},
    }


def _outside(time: Account, figures: Figures) -> Document | None:
    """A run that spends most of its time elsewhere than in steps of training."""
    training = time.steps_s - time.seconds("checkpoint-bound") + _checkpoints_outside(time)
    seconds = {
        **{kind: time.seconds(kind) for kind in _EVALUATION},
        "checkpoint-bound": time.seconds("checkpoint-bound"),
        "input-bound": sum(part.seconds for part in time.of("input-bound") if not part.of_step),
        "host-bound": sum(part.seconds for part in time.of("host-bound") if not part.of_step),
        "startup-bound": time.startup_s if time.startup_s >= STARTUP_S else 0.0,
    }
    work_s = time.work_s + seconds["startup-bound"]
    kind = max(seconds, key=seconds.__getitem__)
    share = seconds[kind] / work_s if work_s else 0.0
    if kind == "checkpoint-bound" and not _checkpoints_outside(time):
        return None  # all of them lie in the steps
    if share < BOUND and (training >= TRAINS_LEAST * work_s or share <= SECOND):
        return None
    trains = f"{percent(time.steps_s / work_s)} training steps"
    evidence: Document = {"share": share, "of": "run", "seconds": seconds[kind], "ceiling": 1 - share}
    if kind in _EVALUATION:
        batches = (figures.get("evaluation") or {}).get("n", 0)
        counted = f" ({batches:,} batches)" if batches else ""
        because = f"{percent(share)} of the time after the start is {_KINDS[kind]}{counted}, {trains}."
        because += " It is a rollout, or an evaluation without eval()." if kind == "inference-bound" else ""
    elif kind == "checkpoint-bound":
        between = _checkpoints_outside(time) / work_s
        because = (
            f"{percent(share)} of the time since the first step goes into checkpoints, {percent(between)} of it all between the steps, "
            "after the last batch of a loop."
        )
        evidence.update({"phase": "other", "part": "checkpoint", "between_steps": between})
    elif kind == "input-bound":
        because = f"{percent(share)} of the time after the start is starting and stopping loader workers between the steps, {trains}."
    elif kind == "host-bound":
        line = first_evidence(figures, "line", OUTSIDE)
        where = f" ({percent(line.share)} of it in {line.what})" if line else ""
        because = f"{percent(share)} of the time after the start is host code outside of the steps{where}, {trains}."
    else:
        because = f"{percent(share)} of the time, imports left out, is the script's own start before its first step, {trains}."
    return {"kind": kind, "because": because, "evidence": evidence}


def _checkpoints_outside(time: Account) -> float:
    return sum(part.seconds for part in time.of("checkpoint-bound") if not part.of_step)


# in the steps


def _starved(steps: Mapping[str, Any]) -> Document | None:
    """Host-bound if a GPU is given too little work while no input is waited for."""
    device = steps.get("device")
    if device is None:
        return None
    phases = steps["phases"]
    parts = {name: row["share"] for name, row in phases["other"].get("parts", {}).items()}
    idle = phases["other"]["share"] - parts.get("checkpoint", 0.0) - parts.get("voirkit", 0.0)
    compute = sum(phases[phase]["share"] for phase in COMPUTE)
    others = [*(phases[phase]["share"] for phase in ("wait", "transfer", "communication") if phase in phases), parts.get("checkpoint", 0.0)]
    launching = device["launching"]["share"]
    share = idle + launching
    if share < IDLES or max(others) > max(idle, compute):
        return None
    return {
        "kind": "host-bound",
        "because": f"The GPU is given too little to do: it is idle for {percent(idle)} of a step without waiting for input, and in "
        f"{percent(launching)} it has finished as soon as the host has started its work.",
        "next": "Start less and larger work: a larger batch, torch.compile, CUDA graphs, a fused optimizer; look for .item(), .cpu() and "
        f"print of tensors in every step. At best, if the GPU never waited for the host, a step would take {percent(1 - share)} of "
        "today's time.",
        "evidence": {"phase": "other", "share": share, "idle": idle, "launching": launching, "ceiling": 1 - share},
    }


def _shares(time: Account) -> dict[str, float]:
    """Share of a typical step by kind of verdict."""
    kinds = dict.fromkeys(part.kind for part in time.parts if part.kind not in _EVALUATION)
    return {kind: time.of_step(kind) for kind in kinds}


def _inside(time: Account, figures: Figures, facts: Facts) -> Document:
    shares = _shares(time)
    kind = max(shares, key=shares.__getitem__)
    others = {other: share for other, share in shares.items() if other != "compute-bound"}
    largest = max(others, key=others.__getitem__)
    # Computing is several phases, and hardly to be saved as a whole: what is larger than each of them, and can be saved, comes before it.
    if others[largest] >= LARGEST and others[largest] > max(time.rows[phase] for phase in COMPUTE):
        kind = largest
    elif shares[kind] < BOUND:
        return _balanced(shares)
    share = shares[kind]
    phase, grounds = _GROUNDS[kind]
    because, more = grounds(time, share, figures, facts)
    return {"kind": kind, "because": because, "evidence": {"phase": phase, "share": share, "ceiling": 1 - share, **more}}


def _balanced(shares: Mapping[str, float]) -> Document:
    first, second = sorted(shares, key=lambda kind: -shares[kind])[:2]
    both = f"{_KINDS[first]} {percent(shares[first])}, {_KINDS[second]} {percent(shares[second])}"
    return {
        "kind": "balanced",
        "because": f"No dominant bottleneck; the largest two parts of a step: {both}.",
        "evidence": {
            "share": shares[first], "phase": _GROUNDS[first][0], "ceiling": 1 - shares[first],
            "largest": {kind: shares[kind] for kind in (first, second)},
        },
    }  # fmt: skip


def _input(time: Account, share: float, figures: Figures, facts: Facts) -> tuple[str, Document]:
    workers, dataset = facts.get("workers"), facts.get("dataset")
    because = f"{percent(share)} of a step is spent waiting for the next batch{f' for {dataset}' if dataset else ''}"
    because += f" ({workers} loader worker{'s' if workers != 1 else ''})" if workers is not None else ""
    loading, line = (first_evidence(figures, kind, "wait") for kind in ("loading", "line"))
    because += f"; {loading.what}" if loading else ""
    because += f"; {percent(line.share)} of it in {line.what}" if line else ""
    because += _called(figures, "wait", "fetch")
    known = {key: value for key, value in (("workers", workers), ("dataset", dataset)) if value is not None}
    return f"{because}.", {**known, **(loading.details if loading else {})}


def _transfer(time: Account, share: float, figures: Figures, facts: Facts) -> tuple[str, Document]:
    return f"{percent(share)} of a step is transfer: copies of tensors from one device or place to another.", {}


def _compute(time: Account, share: float, figures: Figures, facts: Facts) -> tuple[str, Document]:
    phases = {phase: time.rows[phase] for phase in COMPUTE}
    phase = max(phases, key=phases.__getitem__)
    shown = {_NAMED.get(name, name): part for name, part in phases.items()}
    if (loss := time.other.get("loss", 0.0)) >= LEAST_SHOWN:
        shown["the loss"] = loss
    split = ", ".join(f"{name} {percent(part)}" for name, part in shown.items())
    found = first_evidence(figures, "operator", *COMPUTE)
    slowest = f"; {found.what} takes {percent(found.share)} of the time of operators" if found else ""
    more = {"phase": phase, "phase_share": phases[phase], "ceiling": 1 - phases[phase], **({"operator": found.what} if found else {})}
    unknown = len(figures["ranks"]) > 1 and first_evidence(figures, "exposed communication", "backward") is None
    among = " (backward includes what the ranks exchange in it)" if unknown else ""
    return f"{percent(share)} of a step is computing: {split}{among}{slowest}.", more


def _communication(time: Account, share: float, figures: Figures, facts: Facts) -> tuple[str, Document]:
    found = [first_evidence(figures, kind, "backward") for kind in ("exposed communication", "late rank")]
    known = "".join(f"; {one.what}" for one in found if one and one.what)
    return f"{percent(share)} of a step is communication between ranks: collectives that the step waits for{known}.", {}


def _checkpoint(time: Account, share: float, figures: Figures, facts: Facts) -> tuple[str, Document]:
    return f"{percent(share)} of step time goes into writing checkpoints{_called(figures, 'checkpoint')}.", {"part": "checkpoint"}


def _host(time: Account, share: float, figures: Figures, facts: Facts) -> tuple[str, Document]:
    parts = {name: part for name, part in time.other.items() if part >= LEAST_SHOWN and name not in ("voirkit", "checkpoint", "loss")}
    known = f" ({', '.join(f'{name} {percent(part)}' for name, part in parts.items())})" if parts else ""
    because = f"{percent(share)} of a step is untracked host code, not data wait, transfer or compute{known}"
    line = first_evidence(figures, "line", "other")
    because += f"; {percent(line.share)} of it in {line.what}" if line else ""
    return f"{because}{_called(figures, 'other')}.", {"line": line.what} if line else {}


# By kind: the phase in which it shows, and the sentence.
_GROUNDS = {
    "input-bound": ("wait", _input),
    "transfer-bound": ("transfer", _transfer),
    "compute-bound": ("forward", _compute),
    "communication-bound": ("communication", _communication),
    "checkpoint-bound": ("other", _checkpoint),
    "host-bound": ("other", _host),
}
_KINDS = {
    "input-bound": "waiting for input",
    "transfer-bound": "transfer",
    "compute-bound": "computing",
    "communication-bound": "communication between ranks",
    "checkpoint-bound": "checkpoints",
    "host-bound": "untracked host code",
    "evaluation-bound": "evaluation",
    "inference-bound": "inference between the steps",
    "startup-bound": "the start",
}
_NAMED = {
    "wait": "waiting for input",
    "optimizer": "the optimizer's step",
    "checkpoint": "checkpoints",
    "other": "untracked host code",
    "compile": "compiling",
    "import": "imports",
    "processor": "waiting for a processor that others use",
}


# what else is said


def _called(figures: Figures, *phases: str) -> str:
    found = first_evidence(figures, "system call", *phases)
    return f"; {percent(found.share)} of it in {found.what}" if found else ""


def _second(time: Account, verdict: Mapping[str, Any]) -> str:
    """What comes next to that which the verdict names."""
    if verdict["kind"] == "balanced":
        return ""
    seconds = {kind: time.seconds(kind) for kind in dict.fromkeys(part.kind for part in time.parts) if kind != verdict["kind"]}
    kind = max(seconds, key=seconds.__getitem__)
    share = seconds[kind] / time.work_s if time.work_s else 0.0
    if share < SECOND:
        return ""
    if sum(part.seconds for part in time.of(kind) if part.of_step) > seconds[kind] / 2:
        return f"Second: {_KINDS[kind]}, {percent(time.of_step(kind))} of a step."
    return f"Second: {_KINDS[kind]}, {percent(share)} of the time after the start."


def _outlying(time: Account, steps: Mapping[str, Any]) -> str:
    """The few steps that shares and medians leave out."""
    found = time.outliers
    if not found:
        return ""
    n, phase = found["n"], _NAMED.get(found["phase"], found["phase"])
    if not n:
        return f"Left out: {percent(found['share'])} of the time of all steps, {phase}."
    which = "the first step takes" if n == 1 and found["first"] == 0 else f"{n} of {steps['n']:,} steps take{'s' if n == 1 else ''}"
    return f"Left out: {which} {percent(found['share'])} of the time of all steps, mostly in {phase}."


def _micro_batches(steps: Mapping[str, Any], facts: Facts) -> str:
    """That gradients are accumulated: a step is no update then."""
    updates = facts.get("updates") or 0
    if not 0 < updates <= steps["n"] / 1.5:
        return ""
    return f"A step is a micro-batch: {figure(steps['n'] / updates)} steps an update of the parameters."
