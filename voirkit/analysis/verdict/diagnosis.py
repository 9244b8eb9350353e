"""Verdict on a run: the bottleneck, its cause, and what to do about it. Rules over the figures; the
thresholds are in ``runs.thresholds``.

The same figures always give the same verdict. The advice, and what it would save, is in
``remedies``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from voirkit import phase_names
from voirkit.analysis.verdict.evidence import (
    LOADING,
    Account,
    account,
    evidence,
    first_evidence,
)
from voirkit.analysis.verdict.remedies import percent, remedies
from voirkit.findings import Finding, Severity
from voirkit.phase_table import COMPUTE, label_of
from voirkit.runs.summary import BETWEEN, OUTSIDE, is_contended, no_steps, saving, training_counts
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

_ADVICE = 3  # maximum number of pieces of advice
_FAIR_PART = 1 / 3  # minimum share of the bottleneck's time that advice must be about to come first
LEAST_SHOWN = 0.01  # minimum share of a step for a part of a phase to be named
_EVALUATION = ("evaluation-bound", "inference-bound")

Figures = Mapping[str, Any]
Facts = Mapping[str, Any]
Document = dict[str, Any]


def verdict(figures: Figures, facts: Facts) -> Document:
    """Return the verdict alone: see ``conclusions``."""
    return conclusions(figures, facts)[0]


def conclusions(
    figures: Figures,
    facts: Facts,
    of_rank: Callable[[int], Figures] | None = None,
    findings: Sequence[Finding] = (),
) -> tuple[Document, list[Document]]:
    """Return ``verdict`` and ``advice`` of a summary.

    Args:
        figures: A summary with ``steps``, ``evaluation`` and ``ranks`` as returned by
            ``document.figures``. ``wall`` and the parts of instruments are used as evidence where
            they are present.
        facts: Facts about the loader, the script and the machine (``document.Rank.facts``); all of
            them may be missing.
        of_rank: Returns the figures of one rank; used to describe a late rank.
        findings: The findings of all rules. A part of the time that a finding explains gets no
            general advice.

    Returns:
        The verdict, ``{"kind", "because", "next", "evidence"}``, and up to three pieces of advice,
        ``{"kind", "do", "because", "win"}``. Findings with a known gain or of the verdict's
        kind come first, then general advice (of the verdict's kind, then by what it saves), then
        other findings. ``next`` says what the finding that explains the verdict advises, otherwise
        it is the first piece of advice.
    """
    steps = figures["steps"]
    if steps["n"] < FEW:
        return _unknown(steps["n"], figures), []
    time = account(figures)
    hung = _hung(time, figures, findings)
    if hung is not None:
        return hung, [_leading(hung, time.of_run(hung["evidence"]["seconds"]))]
    late = straggler(figures, of_rank)
    if late is not None:
        return late, [_leading(late, time.of_run(late["evidence"]["share"] * time.usual_s))]
    main = _outside(time, figures) or _starved(steps) or _inside(time, figures, facts)
    sentences = [
        main["because"],
        _second(time, main),
        _outlying(time, steps),
        _micro_batches(steps, facts),
    ]
    main["because"] = " ".join(filter(None, sentences))
    advice = _advice(main, time, figures, facts, findings)
    if "next" not in main:
        main["next"] = _next(main["kind"], time, findings, advice)
    return {key: main[key] for key in ("kind", "because", "next", "evidence")}, advice


def _advice(
    main: Document, time: Account, figures: Figures, facts: Facts, findings: Sequence[Finding]
) -> list[Document]:
    """Return the ``advice`` that goes with a verdict."""
    explained = {finding.explains for finding in findings if finding.explains}
    parts = [finding for finding in findings if finding.part_of]
    general = [
        remedy
        for remedy in remedies(time, figures, facts, parts)
        if remedy.explains not in explained
    ]
    if any(map(_comes_first, findings)):
        general = [remedy for remedy in general if remedy.kind not in _RULES_OF_THUMB]
    specific = [
        finding for finding in findings if finding.severity == Severity.TIME and not finding.part_of
    ]
    # no numbers on a busy machine, where other programs make the recorded times longer
    has_figures = not is_contended(figures.get("processors"))
    best = _choose_advice(specific, _ranked(general, main), main)
    return [_advice_entry(finding, has_figures) for finding in best]


# Kinds of advice that is given because the script lacks something, without evidence that it would
# help.
_RULES_OF_THUMB = frozenset({"autocast", "compile", "larger-batch"})


def _comes_first(finding: Finding) -> bool:
    """True if a finding should be fixed before a rule of thumb is tried: a bug, or wasted or
    growing memory."""
    holds_memory = finding.severity == Severity.MEMORY or finding.kind == "memory-grows"
    return finding.severity == Severity.BUG or holds_memory


def _choose_advice(
    specific: Sequence[Finding], general: Sequence[Finding], verdict: Document
) -> list[Finding]:
    """Return up to ``_ADVICE`` pieces of advice: first findings of the verdict's kind or with a
    known gain, then general advice, last the other findings, whose gain may be small."""
    kinds = verdict["evidence"].get("largest", [verdict["kind"]])
    leading = [
        finding for finding in specific if finding.gain is not None or finding.explains in kinds
    ]
    trailing = [finding for finding in specific if finding not in leading]
    best = [*leading, *general][: max(_ADVICE - len(trailing), 1)]
    return [*best, *trailing][:_ADVICE]


def _next(
    kind: str, time: Account, findings: Sequence[Finding], advice: Sequence[Mapping[str, Any]]
) -> str:
    """Return the entry ``next`` of a verdict: the advice of the finding that explains a verdict of
    this kind, otherwise the first piece of ``advice``."""
    for finding in findings:
        if finding.explains == kind:
            return finding.next
    return _following(advice, kind == "balanced") or _nothing_to_do(time)


def _leading(verdict: Document, win: float) -> Document:
    """Return the only entry of ``advice`` for a verdict that itself says what to do."""
    return {
        "kind": verdict["kind"],
        "do": verdict["next"],
        "because": verdict["because"],
        "win": win,
    }


def _advice_entry(finding: Finding, has_figures: bool) -> Document:
    """Return an entry of ``advice`` from a finding."""
    win = finding.printed_gain if has_figures else None
    return {
        "kind": finding.kind,
        "do": finding.next,
        "because": finding.because.removesuffix("."),
        "win": win,
    }


def _ranked(remedies: Sequence[Finding], verdict: Mapping[str, Any]) -> list[Finding]:
    """Return the remedies in order.

    First comes the best remedy for recompilation, whose cause is known. Then comes the best remedy
    of the verdict's kind, if it is about a fair part of that time; a balanced verdict has two
    kinds. The rest follow in the given order, by what they save.
    """
    evidence = verdict["evidence"]
    shares = evidence.get("largest", {verdict["kind"]: evidence.get("share", 0.0)})
    leading = []
    for kind, share in {"compile-bound": 0.0, **shares}.items():
        about_it = (remedy for remedy in remedies if _is_about(remedy, kind, share))
        best = next(about_it, None)
        if best is not None:
            leading.append(best)
    return [*leading, *(remedy for remedy in remedies if remedy not in leading)]


def _is_about(remedy: Finding, kind: str, share: float) -> bool:
    """True if a remedy is about the time of a kind of verdict, and about a fair part of the
    ``share`` of a step that this kind takes. The size of the part does not matter if ``part_of`` of
    the remedy is that kind."""
    is_fair = remedy.evidence.get("share", share) >= _FAIR_PART * share
    return kind == remedy.part_of or (kind == remedy.explains and is_fair)


def _following(advice: Sequence[Mapping[str, Any]], both: bool) -> str:
    """Return the entry ``next``: the first piece of advice and roughly what it saves; if ``both``,
    the first two pieces. Empty without advice."""
    sentences = []
    for entry in advice[: 2 if both else 1]:
        words = saving(entry["win"])
        if words:
            sentences.append(f"{entry['do']} {words[:1].upper()}{words[1:]}.")
        else:
            sentences.append(entry["do"])
    return " Or: ".join(sentences)


def _nothing_to_do(time: Account) -> str:
    share = time.of_run(time.steps_s)
    if share < FEW_OF_RUN:
        return (
            f"The steps take {share:.1%} of this run: what they could save shows in a longer one."
        )
    return "Nothing stands out that could be saved."


# verdicts on late ranks, and on runs without steps


def straggler(figures: Figures, of_rank: Callable[[int], Figures] | None = None) -> Document | None:
    """Return the verdict about a straggler, the rank that the others wait for in most steps; None
    without one. It is found from the collectives that each rank entered, if an instrument recorded
    them, otherwise from the ``skew`` of each rank."""
    recorded = first_evidence(figures, "late rank")
    late = recorded.details if recorded is not None else _late_by_skew(figures["ranks"])
    if not late:
        return None
    share, rank, host = late["share"], late["rank"], late["host"]
    phase = _name_of(late["phase"])
    if recorded is not None:
        needs = recorded.what
    else:
        needs = f"it needs {percent(share)} of a step longer than the others before they meet"
    doing, do = _doing(of_rank(rank), late["phase"]) if of_rank else ("", "")
    if do:
        next_ = f"On rank {rank}: {do}"
    else:
        next_ = (
            f"Look at what rank {rank} does differently in {phase}: its data, its disk, its"
            f" processors, its neighbours on {host}."
        )
    return {
        "kind": "straggler",
        "because": (
            f"Rank {rank} ({host}) is a straggler: {needs}, in {phase}{doing}; the others wait"
            " for it."
        ),
        "next": (
            f"{next_} At best, if it kept up, a step would take {percent(1 - share)} of today's"
            " time."
        ),
        "evidence": {**late, "ceiling": 1 - share},
    }


def _doing(of_rank: Figures, phase: str) -> tuple[str, str]:
    """Return two strings from the most detailed evidence: what a late rank does in a phase, and
    what to do about it. Both are empty without evidence."""
    phases: tuple[str, ...] = (phase,)
    if phase == phase_names.WAIT:
        phases = LOADING
        loading = first_evidence(of_rank, "loading", phase)
        if loading is not None:
            return f" ({loading.what})", loading.do
    cause = first_evidence(of_rank, "line", *phases)
    cause = cause or first_evidence(of_rank, "system call", *phases)
    if cause is None:
        return "", ""
    return f" ({percent(cause.share)} of it in {cause.what})", cause.do


def _late_by_skew(ranks: Sequence[Mapping[str, Any]]) -> Document:
    late = max(ranks, key=lambda rank: (rank.get("skew") or {}).get("share", 0.0), default={})
    skew = late.get("skew") or {"share": 0.0, "late": 0.0}
    if skew["share"] < STRAGGLES or skew["late"] < LATE_IN or late["steps"] < FEW_IN_STEP:
        return {}
    return {
        "rank": late["rank"],
        "host": late["host"],
        "phase": skew["phase"],
        "share": skew["share"],
        "late": skew["late"],
    }


_SEE_ERROR = "Its error, with the traceback that python prints, says why it ended."


def _unknown(n: int, figures: Figures) -> Document:
    """Return the verdict on a run with too few steps."""
    work = figures.get("recorded_work") or {}
    counts = {
        name: (work.get(name) or {}).get("n", 0) for name in ("optimizer_steps", "backward_passes")
    }
    evidence = {"steps": n}
    if n:
        because = (
            f"Only {n} training step{'s' if n > 1 else ''} came to an end; fewer than {FEW} tell"
            " nothing."
        )
        next_ = _SEE_ERROR if figures.get("ended") == "exception" else "Let it run longer."
    elif _only_evaluated(figures, counts):
        gradients = training_counts(**counts) if counts["backward_passes"] else "no backward pass"
        because = (
            f"The run trained nothing: {figures['evaluation']['n']} batches were evaluated, with"
            f" {gradients} and no optimizer step."
        )
        next_ = "See which lines its time goes to: voirkit --flame SCRIPT."
    elif any(counts.values()):
        because = (
            f"{training_counts(**counts)} were recorded, but none of them lies in a step that can"
            " be told from the next."
        )
        next_ = (
            "Say where a step begins with a probe in a voirfile.py: voirkit init SCRIPT writes one"
            " to start from."
        )
        evidence.update(counts)
    elif figures.get("ended") == "exception":
        because = "The script failed before its first training step."
        next_ = _SEE_ERROR
    else:
        return no_steps(figures.get("unrecorded_processes") or ())
    return {"kind": "unknown", "because": because, "next": next_, "evidence": evidence}


def _only_evaluated(figures: Figures, counts: Mapping[str, int]) -> bool:
    """True if batches were evaluated, and nothing was trained."""
    evaluation = figures.get("evaluation") or {}
    if not evaluation.get("n", 0) or counts["optimizer_steps"]:
        return False
    return bool(evaluation.get("takes_gradients")) or not counts["backward_passes"]


# verdicts on the time outside of the steps


def _hung(time: Account, figures: Figures, findings: Sequence[Finding]) -> Document | None:
    """Return the verdict on a run that hung for most of its time; None for other runs. The phases
    of its steps would explain nothing."""
    hangs = evidence(figures, "hang")
    duration_ns = sum(
        hang.details["until_time_ns"] - hang.details["since_time_ns"] for hang in hangs
    )
    seconds = duration_ns / 1e9
    if not hangs or seconds < BOUND * time.work_s:
        return None
    share = min(seconds / time.work_s, 1.0) if time.work_s else 1.0
    next_ = "See what waits where, with all stacks: voirkit report --html"
    finding = next((finding for finding in findings if finding.kind == "hang"), None)
    if finding is not None:
        next_ = finding.next
    return {
        "kind": "hung",
        "because": f"{percent(share)} of the time after the start no step ended.",
        "next": next_,
        "evidence": {
            "share": share,
            "of": "run",
            "seconds": seconds,
            "ceiling": 1 - share,
            "what": hangs[0].what,
        },
    }


def _outside(time: Account, figures: Figures) -> Document | None:
    """Return the verdict on a run that spends most of its time outside of training steps; None for
    other runs."""
    checkpoints_outside_s = _checkpoints_outside(time)
    seconds = {
        "evaluation-bound": time.seconds("evaluation-bound"),
        "inference-bound": time.seconds("inference-bound"),
        "checkpoint-bound": time.seconds("checkpoint-bound"),
        "input-bound": _seconds_outside(time, "input-bound"),
        "host-bound": _seconds_outside(time, "host-bound"),
        "startup-bound": time.startup_s if time.startup_s >= STARTUP_S else 0.0,
    }
    work_s = time.work_s + seconds["startup-bound"]
    kind = max(seconds, key=seconds.__getitem__)
    share = seconds[kind] / work_s if work_s else 0.0
    if kind == "checkpoint-bound" and not checkpoints_outside_s:
        return None  # all checkpoints lie in the steps
    training_s = time.steps_s - time.seconds("checkpoint-bound") + checkpoints_outside_s
    trains_enough = training_s >= TRAINS_LEAST * work_s
    if share < BOUND and (trains_enough or share <= SECOND):
        return None
    evidence: Document = {
        "share": share,
        "of": "run",
        "seconds": seconds[kind],
        "ceiling": 1 - share,
    }
    if kind == "checkpoint-bound":
        between = checkpoints_outside_s / work_s
        because = (
            f"{percent(share)} of the time since the first step goes into checkpoints,"
            f" {percent(between)} of it all between the steps, after the last batch of a loop."
        )
        evidence.update({"phase": "other", "part": "checkpoint", "between_steps": between})
    else:
        trains = f"{percent(time.steps_s / work_s)} training steps"
        because = f"{percent(share)} of the time{_outside_words(kind, trains, figures)}"
    return {"kind": kind, "because": because, "evidence": evidence}


def _outside_words(kind: str, trains: str, figures: Figures) -> str:
    """Describe the time that a run spends outside of its steps; ``trains``: the share of the steps,
    in words."""
    if kind in _EVALUATION:
        n_batches = (figures.get("evaluation") or {}).get("n", 0)
        batches = f" ({n_batches:,} batches)" if n_batches else ""
        words = f" after the start is {_KINDS[kind]}{batches}, {trains}."
        if kind == "inference-bound":
            words += " It is a rollout, or an evaluation without eval()."
        return words
    if kind == "input-bound":
        return (
            f" after the start is starting and stopping loader workers between the steps, {trains}."
        )
    if kind == "host-bound":
        line = first_evidence(figures, "line", BETWEEN, OUTSIDE)
        place = f" ({percent(line.share)} of it in {line.what})" if line else ""
        return f" after the start is host code outside of the steps{place}, {trains}."
    return f", imports left out, is the script's own start before its first step, {trains}."


def _checkpoints_outside(time: Account) -> float:
    return _seconds_outside(time, "checkpoint-bound")


def _seconds_outside(time: Account, kind: str) -> float:
    """Return the time of a kind of verdict outside of the steps, in seconds."""
    return sum(part.seconds for part in time.of(kind) if not part.of_step)


# verdicts on the time in the steps


def _starved(steps: Mapping[str, Any]) -> Document | None:
    """Return the verdict host-bound if the host gives the GPU too little work while the step waits
    for nothing else, such as input; otherwise None."""
    device = steps.get("device")
    if device is None:
        return None
    phases = steps["phases"]
    other = phases[phase_names.OTHER]
    parts = {name: row["share"] for name, row in other.get("parts", {}).items()}
    idle = other["share"] - parts.get("checkpoint", 0.0) - parts.get("voirkit", 0.0)
    compute = sum(phases[phase]["share"] for phase in COMPUTE)
    waits = (phase_names.WAIT, phase_names.TRANSFER, phase_names.COMMUNICATION)
    not_host = [phases[phase]["share"] for phase in waits if phase in phases]
    not_host.append(parts.get("checkpoint", 0.0))
    launching = device["launching"]["share"]
    share = idle + launching
    if share < IDLES or max(not_host) > max(idle, compute):
        return None
    return {
        "kind": "host-bound",
        "because": (
            f"The GPU is given too little to do: it is idle for {percent(idle)} of a step without"
            f" waiting for input, and in {percent(launching)} it has finished as soon as the host"
            " has started its work."
        ),
        "next": (
            "Start less and larger work: a larger batch, torch.compile, CUDA graphs, a fused"
            " optimizer; look for .item(), .cpu() and print of tensors in every step. At best, if"
            f" the GPU never waited for the host, a step would take {percent(1 - share)} of today's"
            " time."
        ),
        "evidence": {
            "phase": "other",
            "share": share,
            "idle": idle,
            "launching": launching,
            "ceiling": 1 - share,
        },
    }


def _shares(time: Account) -> dict[str, float]:
    """Return the share of a typical step that each kind of verdict takes."""
    kinds = dict.fromkeys(part.kind for part in time.parts if part.kind not in _EVALUATION)
    return {kind: time.of_step(kind) for kind in kinds}


def _inside(time: Account, figures: Figures, facts: Facts) -> Document:
    shares = _shares(time)
    kind = max(shares, key=shares.__getitem__)
    savable = {other: share for other, share in shares.items() if other != "compute-bound"}
    largest = max(savable, key=savable.__getitem__)
    # Computing consists of several phases, and its time can hardly be saved as a whole. So another
    # kind becomes the verdict already if it takes longer than each single one of these phases.
    largest_computing = max(time.rows[phase] for phase in COMPUTE)
    if savable[largest] >= LARGEST and savable[largest] > largest_computing:
        kind = largest
    elif shares[kind] < BOUND:
        return _balanced(shares)
    share = shares[kind]
    phase, grounds = _GROUNDS[kind]
    because, more = grounds(time, share, figures, facts)
    return {
        "kind": kind,
        "because": because,
        "evidence": {"phase": phase, "share": share, "ceiling": 1 - share, **more},
    }


def _balanced(shares: Mapping[str, float]) -> Document:
    first, second = sorted(shares, key=lambda kind: -shares[kind])[:2]
    both = f"{_KINDS[first]} {percent(shares[first])}, {_KINDS[second]} {percent(shares[second])}"
    return {
        "kind": "balanced",
        "because": f"No dominant bottleneck; the largest two parts of a step: {both}.",
        "evidence": {
            "share": shares[first],
            "phase": _GROUNDS[first][0],
            "ceiling": 1 - shares[first],
            "largest": {kind: shares[kind] for kind in (first, second)},
        },
    }


def _input(time: Account, share: float, figures: Figures, facts: Facts) -> tuple[str, Document]:
    workers, dataset = facts.get("workers"), facts.get("dataset")
    more: Document = {}
    because = f"{percent(share)} of a step is spent waiting for the next batch"
    if dataset:
        because += f" for {dataset}"
    if workers is not None:
        because += f" ({workers} loader worker{'s' if workers != 1 else ''})"
        more["workers"] = workers
    if dataset is not None:
        more["dataset"] = dataset
    loading = first_evidence(figures, "loading", *LOADING)
    if loading:
        because += f"; {loading.what}"
        more.update(loading.details)
    because += _mostly_in("line", figures, *LOADING)
    because += _mostly_in("system call", figures, *LOADING)
    return f"{because}.", more


def _transfer(time: Account, share: float, figures: Figures, facts: Facts) -> tuple[str, Document]:
    because = (
        f"{percent(share)} of a step is transfer: copies of tensors from one device or place to"
        " another."
    )
    return because, {}


def _compute(time: Account, share: float, figures: Figures, facts: Facts) -> tuple[str, Document]:
    phases = {phase: time.rows[phase] for phase in COMPUTE}
    phase = max(phases, key=phases.__getitem__)
    named_shares = {_name_of(name): part for name, part in phases.items()}
    loss = time.other.get("loss", 0.0)
    if loss >= LEAST_SHOWN:
        named_shares["the loss"] = loss
    because = f"{percent(share)} of a step is computing: {_list_shares(named_shares)}"
    more = {"phase": phase, "phase_share": phases[phase], "ceiling": 1 - phases[phase]}
    exposed = first_evidence(figures, "exposed communication", phase_names.BACKWARD)
    if len(figures["ranks"]) > 1 and exposed is None:
        because += " (backward includes what the ranks exchange in it)"
    operator = first_evidence(figures, "operator", *COMPUTE)
    if operator:
        because += f"; {operator.what} takes {percent(operator.share)} of the time of operators"
        more["operator"] = operator.what
    return f"{because}.", more


def _list_shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {percent(share)}" for name, share in shares.items())


def _communication(
    time: Account, share: float, figures: Figures, facts: Facts
) -> tuple[str, Document]:
    because = (
        f"{percent(share)} of a step is communication between ranks: collectives that the step"
        " waits for"
    )
    for kind in ("exposed communication", "late rank"):
        cause = first_evidence(figures, kind, phase_names.BACKWARD)
        if cause and cause.what:
            because += f"; {cause.what}"
    return f"{because}.", {}


def _checkpoint(
    time: Account, share: float, figures: Figures, facts: Facts
) -> tuple[str, Document]:
    calls = _mostly_in("system call", figures, "checkpoint")
    because = f"{percent(share)} of step time goes into writing checkpoints{calls}."
    return because, {"part": "checkpoint"}


def _host(time: Account, share: float, figures: Figures, facts: Facts) -> tuple[str, Document]:
    because = (
        f"{percent(share)} of a step is untracked host code, not data wait, transfer or compute"
    )
    parts = {
        name: part
        for name, part in time.other.items()
        if part >= LEAST_SHOWN and name not in ("voirkit", "checkpoint", "loss")
    }
    if parts:
        because += f" ({_list_shares(parts)})"
    because += _mostly_in("line", figures, phase_names.OTHER)
    because += _mostly_in("system call", figures, phase_names.OTHER)
    line = first_evidence(figures, "line", phase_names.OTHER)
    return f"{because}.", {"line": line.what} if line else {}


# By kind of verdict: the phase that takes the time, and the function that explains it in words.
_GROUNDS = {
    "input-bound": (phase_names.WAIT, _input),
    "transfer-bound": (phase_names.TRANSFER, _transfer),
    "compute-bound": (phase_names.FORWARD, _compute),
    "communication-bound": (phase_names.COMMUNICATION, _communication),
    "checkpoint-bound": (phase_names.OTHER, _checkpoint),
    "host-bound": (phase_names.OTHER, _host),
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


def _name_of(phase: str) -> str:
    """Return the name of a phase in a sentence; ``processor`` stands for a rank's wait for a
    CPU."""
    if phase == "processor":
        return "waiting for a processor that others use"
    return label_of(phase)


# further sentences of a verdict


def _mostly_in(kind: str, figures: Figures, *phases: str) -> str:
    """Return a clause that says where most of the time of the phases goes, from one kind of
    evidence; empty without evidence."""
    cause = first_evidence(figures, kind, *phases)
    return f"; {percent(cause.share)} of it in {cause.what}" if cause else ""


def _second(time: Account, verdict: Mapping[str, Any]) -> str:
    """Describe the largest part of the time apart from that of the verdict; empty if it is small,
    or if the verdict is balanced."""
    if verdict["kind"] == "balanced":
        return ""
    kinds = dict.fromkeys(part.kind for part in time.parts if part.kind != verdict["kind"])
    seconds = {kind: time.seconds(kind) for kind in kinds}
    kind = max(seconds, key=seconds.__getitem__)
    share = seconds[kind] / time.work_s if time.work_s else 0.0
    if share < SECOND:
        return ""
    in_steps_s = sum(part.seconds for part in time.of(kind) if part.of_step)
    if in_steps_s > seconds[kind] / 2:
        return f"Second: {_KINDS[kind]}, {percent(time.of_step(kind))} of a step."
    return f"Second: {_KINDS[kind]}, {percent(share)} of the time after the start."


def _outlying(time: Account, steps: Mapping[str, Any]) -> str:
    """Describe the outliers: the few steps that shares and medians leave out."""
    outliers = time.outliers
    if not outliers:
        return ""
    n, phase = outliers["n"], _name_of(outliers["phase"])
    share = f"{percent(outliers['share'])} of the time of all steps"
    if not n:
        return f"Left out: {share}, {phase}."
    if n == 1 and outliers["first"] == 0:
        subject = "the first step takes"
    else:
        subject = f"{n} of {steps['n']:,} steps take{'s' if n == 1 else ''}"
    return f"Left out: {subject} {share}, mostly in {phase}."


def _micro_batches(steps: Mapping[str, Any], facts: Facts) -> str:
    """Return a sentence about accumulated gradients, with which a step is only a micro-batch; empty
    if gradients are not accumulated."""
    updates = facts.get("updates") or 0
    if not 0 < updates <= steps["n"] / 1.5:
        return ""
    return (
        f"A step is a micro-batch: {figure(steps['n'] / updates)} steps an update of the"
        " parameters."
    )
