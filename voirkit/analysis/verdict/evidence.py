"""The grounds of a verdict: where the time of a run goes, and the evidence of instruments about a
phase.

``Instrument.evidence`` names, for each kind, a function ``(part, phases) -> Iterable[Evidence]``:
what most of the time of these phases was spent in, most first. The kinds that a verdict asks for:
``line``, ``operator``, ``system call``, ``loading``, ``exposed communication`` (what backward waits
for other ranks), ``late rank``, ``recompilation`` (``details`` have its ``total_s``). The account
of a job that was restarted asks for ``hang``, of which ``details`` have ``since_time_ns`` and
``until_time_ns``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from voirkit.instrument import resolve
from voirkit.phase_table import BY_NAME, TABLE
from voirkit.plugins import installed_instruments
from voirkit.runs.summary import evaluation_name

LEAST = 0.2  # of the phase's time: less explains nothing

Summary = Mapping[str, Any]


class Evidence(NamedTuple):
    """What some phases spend their time in."""

    what: str  # in words: ``train.py:12 image.load()``, ``aten::addmm``, ``read() on data.bin``
    share: float  # of the time of these phases
    do: str = ""  # what to do about it, if the instrument knows; a sentence or two
    # share of a step that this could save at best; None if nothing is predicted
    saves: float | None = None
    details: Mapping[str, Any] = {}  # keys that a verdict's ``evidence`` has of it


def evidence(summary: Summary, kind: str, *phases: str) -> list[Evidence]:
    """The evidence of instruments of a kind; empty where none has recorded it."""
    collected: list[Evidence] = []
    for instrument in installed_instruments():
        if kind in instrument.evidence:
            part = summary.get(next(iter(instrument.parts), ""))
            if part:
                collected += resolve(instrument.evidence[kind])(part, phases)
    return collected


def first_evidence(summary: Summary, kind: str, *phases: str) -> Evidence | None:
    """The first of it."""
    return next(iter(evidence(summary, kind, *phases)), None)


def flag_for(summary: Summary, kind: str) -> str:
    """The flag that would record evidence of a kind; empty if it was given, or no instrument has
    any."""
    for instrument in installed_instruments():
        if kind in instrument.evidence and instrument.options:
            is_recorded = any(summary.get(key) is not None for key in instrument.parts)
            return "" if is_recorded else instrument.options[0].flag
    return ""


# the time of a run, as parts that a verdict holds against each other


LOADING = ("wait", "fetch")  # the main process waits for the batch that workers make
# parts of other: what instruments look at, and what is done once
_NOT_HOST = ("voirkit", "compile", "import")


@dataclass(frozen=True)
class Part:
    """One part of the time."""

    kind: str  # the verdict if this is what the run is bound by
    name: str  # what it is called in a sentence
    seconds: float  # its time, of one rank
    of_step: float = 0.0  # its share of a typical step; 0 for what lies outside of the steps


@dataclass(frozen=True)
class Account:
    """The time of a run."""

    parts: tuple[Part, ...]  # all of it that has a kind; those of the steps first
    # share of a typical step by phase; what backward waits for other ranks, where that is known, is
    # communication
    rows: Mapping[str, float]
    other: Mapping[str, float]  # share of a typical step by part of ``other``
    steps_s: float  # time of all steps; what one rank spent
    usual_s: float  # of it, that of the steps that the shares are of: without the outliers
    # that and all that lies outside of the steps, but for the start: imports, and the script's own
    # before its first step
    work_s: float
    # the run's duration; of the steps and checkpoints where it is not known (a run that goes on, or
    # of an older voirkit)
    total_s: float
    startup_s: float  # the script's own time before its first step, without imports
    # ``steps.typical.outliers`` of the summary: the steps that are left out of the shares; empty
    # for none
    outliers: Mapping[str, Any]

    def of(self, kind: str) -> list[Part]:
        """The parts of a kind."""
        return [part for part in self.parts if part.kind == kind]

    def of_step(self, kind: str) -> float:
        """Share of a typical step."""
        return sum(part.of_step for part in self.of(kind))

    def seconds(self, kind: str) -> float:
        """In the steps and outside of them."""
        return sum(part.seconds for part in self.of(kind))

    def of_run(self, seconds: float) -> float:
        """Share of the run's duration."""
        return min(seconds / self.total_s, 1.0) if self.total_s > 0 else 0.0


def account(summary: Mapping[str, Any]) -> Account:
    """The account of a summary: of its ``steps``, ``evaluation`` and ``ranks``, and its ``wall`` if
    it has one."""
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
    """The shares of a typical step by phase, and by part of ``other``."""
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
    other = typical.get("parts")  # empty where what stands out was all of them
    if other is None:
        other = {name: row["share"] for name, row in phases["other"].get("parts", {}).items()}
    return rows, other


def _steps_of_a_rank_s(summary: Summary) -> float:
    """The time of all steps that one rank spent, by that of the phases of all."""
    total_s: float = sum(row["total_s"] for row in summary["steps"]["phases"].values())
    return total_s / max(len(summary.get("ranks") or ()), 1)


def _step_parts(
    rows: Mapping[str, float], other: Mapping[str, float]
) -> list[tuple[str, str, float]]:
    """The parts of a typical step: the kind, the name and the share of each."""
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
    """The parts of the time outside of the steps."""
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
    """The script's own time before its first step. Where imports are not part of their own they are
    in it, and nothing is known of it."""
    parts = wall.get("parts") or {}
    if "import" not in parts:
        return 0.0
    startup = parts.get("startup") or {}
    script_s: float = startup.get("total_s", 0.0) - startup.get("before_script_s", 0.0)
    return max(script_s, 0.0)
