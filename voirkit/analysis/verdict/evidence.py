"""The grounds of a verdict: where the time of a run goes, and the evidence of instruments about a
phase.

``Instrument.evidence`` names a function ``(part, phases) -> Iterable[Evidence]`` for each kind of
evidence. The function returns where these phases spend most of their time, the largest share first.
A verdict uses the kinds ``line``, ``operator``, ``system call``, ``loading``, ``exposed
communication`` (the time that the backward pass waits for other ranks), ``late rank``,
``recompilation`` (whose ``details`` have ``total_s``) and ``hang`` (whose ``details`` have
``since_time_ns`` and ``until_time_ns``). The account of a restarted job uses ``hang`` too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from voirkit.instrument import resolve
from voirkit.phase_table import BY_NAME, TABLE
from voirkit.plugins import installed_instruments
from voirkit.runs.summary import evaluation_name

LEAST = 0.2  # evidence explains a phase if it accounts for at least this share of its time

Summary = Mapping[str, Any]


class Evidence(NamedTuple):
    """Evidence of an instrument about where some phases spend their time."""

    # what takes the time, in words: ``train.py:12 image.load()``, ``aten::addmm``, ``read() on
    # data.bin``
    what: str
    share: float  # share of the phases' time that it takes
    do: str = ""  # what to do about it, if the instrument knows; a sentence or two
    # share of a step that following ``do`` could save at best; None without a prediction
    saves: float | None = None
    details: Mapping[str, Any] = {}  # keys to add to a verdict's ``evidence``


def evidence(summary: Summary, kind: str, *phases: str) -> list[Evidence]:
    """Return the evidence of a kind from all instruments; empty if no instrument recorded it."""
    collected: list[Evidence] = []
    for instrument in installed_instruments():
        if kind in instrument.evidence:
            part = summary.get(next(iter(instrument.parts), ""))
            if part:
                collected += resolve(instrument.evidence[kind])(part, phases)
    return collected


def first_evidence(summary: Summary, kind: str, *phases: str) -> Evidence | None:
    """Return the first evidence of a kind; None if there is none."""
    return next(iter(evidence(summary, kind, *phases)), None)


def flag_for(summary: Summary, kind: str) -> str:
    """Return the flag that makes an instrument record evidence of a kind; empty if the flag was
    given, or if no instrument has such evidence."""
    for instrument in installed_instruments():
        if kind in instrument.evidence and instrument.options:
            is_recorded = any(summary.get(key) is not None for key in instrument.parts)
            return "" if is_recorded else instrument.options[0].flag
    return ""


# the time of a run, divided into parts that a verdict compares


LOADING = ("wait", "fetch")  # phases: the main process waits for a batch, a worker makes it
# parts of phase ``other`` that are not host code: voirkit's own work, and work done only once
_NOT_HOST = ("voirkit", "compile", "import")


@dataclass(frozen=True)
class Part:
    """One part of a run's time."""

    kind: str  # kind of verdict if this part is the bottleneck
    name: str  # name in a sentence
    seconds: float  # time on one rank
    of_step: float = 0.0  # share of a typical step; 0 for time outside of the steps


@dataclass(frozen=True)
class Account:
    """The time of a run, and its parts."""

    parts: tuple[Part, ...]  # all time that has a kind of verdict; parts within the steps first
    # share of a typical step by phase; if the time that the backward pass waits for other ranks is
    # known, it counts as communication
    rows: Mapping[str, float]
    other: Mapping[str, float]  # share of a typical step by part of phase ``other``
    steps_s: float  # time of all steps of one rank
    usual_s: float  # time of these steps without the outliers; the shares are shares of it
    # ``steps_s`` and all time outside of the steps except the start: imports, and the script's own
    # time before its first step
    work_s: float
    # the run's duration; ``work_s`` if the duration is unknown (the run has not ended, or an older
    # voirkit recorded it)
    total_s: float
    startup_s: float  # the script's own time before its first step, without imports
    # ``steps.typical.outliers`` of the summary: the steps that are left out of the shares; empty
    # without outliers
    outliers: Mapping[str, Any]

    def of(self, kind: str) -> list[Part]:
        """Return the parts with a kind of verdict."""
        return [part for part in self.parts if part.kind == kind]

    def of_step(self, kind: str) -> float:
        """Return the share of a typical step that a kind of verdict takes."""
        return sum(part.of_step for part in self.of(kind))

    def seconds(self, kind: str) -> float:
        """Return the seconds that a kind of verdict takes, in the steps and outside of them."""
        return sum(part.seconds for part in self.of(kind))

    def of_run(self, seconds: float) -> float:
        """Return a time as a share of the run's duration, at most 1."""
        return min(seconds / self.total_s, 1.0) if self.total_s > 0 else 0.0


def account(summary: Mapping[str, Any]) -> Account:
    """Return the account of a run, from ``steps``, ``evaluation`` and ``ranks`` of its summary, and
    from ``wall`` if the summary has it."""
    steps, wall = summary["steps"], summary.get("wall") or {}
    rows, other = _typical_shares(summary)
    outliers = (steps.get("typical") or {}).get("outliers") or {}
    steps_s = steps.get("total_s") or _steps_of_a_rank_s(summary)
    usual_s = steps_s - outliers.get("total_s", 0.0)
    in_steps = [
        Part(kind, name, share * usual_s, share) for kind, name, share in _step_parts(rows, other)
    ]
    outside = _outside_parts(summary, other.get("checkpoint", 0.0) * usual_s)
    work_s = steps_s + sum(part.seconds for part in outside)
    return Account(
        (*in_steps, *outside),
        rows,
        other,
        steps_s,
        usual_s,
        work_s,
        wall.get("total_s") or work_s,
        _startup_s(wall),
        outliers,
    )


def _typical_shares(summary: Summary) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the shares of a typical step by phase, and by part of ``other``."""
    phases = summary["steps"]["phases"]
    typical = summary["steps"].get("typical") or {}
    rows = typical.get("phases") or {name: row["share"] for name, row in phases.items()}
    exposed = first_evidence(summary, "exposed communication", "backward")
    if exposed is not None:
        waits = rows["backward"] * exposed.share
        rows = {
            **rows,
            "backward": rows["backward"] - waits,
            "communication": rows.get("communication", 0.0) + waits,
        }
    other = typical.get("parts")  # empty if all steps were outliers
    if other is None:
        other = {name: row["share"] for name, row in phases["other"].get("parts", {}).items()}
    return rows, other


def _steps_of_a_rank_s(summary: Summary) -> float:
    """Return the time of all steps of one rank, from the time of the phases of all ranks."""
    total_s: float = sum(row["total_s"] for row in summary["steps"]["phases"].values())
    return total_s / max(len(summary.get("ranks") or ()), 1)


def _step_parts(
    rows: Mapping[str, float], other: Mapping[str, float]
) -> list[tuple[str, str, float]]:
    """Return the parts of a typical step, each as kind of verdict, name in a sentence, and
    share."""
    parts = []
    host = rows["other"] - sum(other.get(name, 0.0) for name in _NOT_HOST)
    for phase in TABLE:
        if phase.name == "other" or phase.verdict is None:
            continue
        share = rows.get(phase.name, 0.0)
        if phase.parent == "other":
            share = other.get(phase.name, 0.0)
            host -= share
        parts.append((phase.verdict, phase.label, share))
    untracked = BY_NAME["other"]
    return [*parts, (untracked.verdict or "", untracked.label, max(host, 0.0))]


def _outside_parts(summary: Summary, checkpoints_in_steps_s: float) -> list[Part]:
    """Return the parts of the time outside of the steps."""
    wall_parts = (summary.get("wall") or {}).get("parts") or {}
    wall_s = {name: row["total_s"] for name, row in wall_parts.items()}
    evaluation = summary.get("evaluation") or {}
    evaluation_s = wall_s.get("evaluation", evaluation.get("total_s", 0.0))
    name = evaluation_name(summary.get("evaluation"))
    between_s = (summary["steps"].get("checkpoints_between") or {}).get("total_s", 0.0)
    checkpoints_s = max(between_s, wall_s.get("checkpoint", 0.0) - checkpoints_in_steps_s)
    return [
        Part(f"{name}-bound", name, evaluation_s),
        Part("checkpoint-bound", "checkpoints between the steps", checkpoints_s),
        Part("input-bound", "starting and stopping workers", wall_s.get("workers", 0.0)),
        Part("host-bound", "host code outside of the steps", wall_s.get("between", 0.0)),
    ]


def _startup_s(wall: Mapping[str, Any]) -> float:
    """Return the script's own time before its first step, without imports; 0 if the time of imports
    is not known separately."""
    parts = wall.get("parts") or {}
    if "import" not in parts:
        return 0.0
    startup = parts.get("startup") or {}
    script_s: float = startup.get("total_s", 0.0) - startup.get("before_script_s", 0.0)
    return max(script_s, 0.0)
