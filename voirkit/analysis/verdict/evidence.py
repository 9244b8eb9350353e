"""What a verdict rests on: where the time of a run goes, and what instruments have found of a phase.

``Instrument.evidence`` names, for each kind, a function ``(part, phases) -> Iterable[Evidence]``: what most of the time of these phases was
spent in, most first. The kinds that a verdict asks for: ``line``, ``operator``, ``system call``, ``loading``, ``exposed communication``
(what backward waits for other ranks), ``late rank``, ``recompilation`` (``details`` have its ``total_s``). The account of a job that was
restarted asks for ``hang``, of which ``details`` have ``since_time_ns`` and ``until_time_ns``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from voirkit.instrument import resolve
from voirkit.plugins import installed_instruments
from voirkit.runs.summary import evaluation_name

LEAST = 0.2  # of the phase's time: less explains nothing

Summary = Mapping[str, Any]


class Evidence(NamedTuple):
    """What some phases spend their time in."""

    what: str  # in words: ``train.py:12 image.load()``, ``aten::addmm``, ``read() on data.bin``
    share: float  # of the time of these phases
    do: str = ""  # what to do about it, if the instrument knows; a sentence or two
    saves: float | None = None  # share of a step that this could save at best; None if nothing is predicted
    details: Mapping[str, Any] = {}  # keys that a verdict's ``evidence`` has of it


def evidence(summary: Summary, kind: str, *phases: str) -> list[Evidence]:
    """What instruments have found of a kind; empty where none has recorded it."""
    found: list[Evidence] = []
    for reference, part in _sources(summary, kind):
        if part:
            found += resolve(reference)(part, phases)
    return found


def first_evidence(summary: Summary, kind: str, *phases: str) -> Evidence | None:
    """The first of it."""
    return next(iter(evidence(summary, kind, *phases)), None)


def flag_for(summary: Summary, kind: str) -> str:
    """The flag that would record evidence of a kind; empty if it was given, or no instrument has any."""
    for instrument in installed_instruments():
        if kind in instrument.evidence and instrument.options:
            return "" if any(summary.get(key) is not None for key in instrument.parts) else instrument.options[0].flag
    return ""


def _sources(summary: Summary, kind: str) -> Iterator[tuple[str, Any]]:
    for instrument in installed_instruments():
        if kind in instrument.evidence:
            yield from ((instrument.evidence[kind], summary.get(key)) for key in list(instrument.parts)[:1])


# the time of a run, as parts that a verdict holds against each other


COMPUTE = ("forward", "backward", "optimizer")
_NOT_HOST = ("voirkit", "compile", "import")  # parts of other: what instruments look at, and what is done once


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
    # share of a typical step by phase; what backward waits for other ranks, where that is known, is communication
    rows: Mapping[str, float]
    other: Mapping[str, float]  # share of a typical step by part of ``other``
    steps_s: float  # time of all steps; what one rank spent
    usual_s: float  # of it, that of the steps that the shares are of: without the outliers
    work_s: float  # that and all that lies outside of the steps, but for the start: imports, and the script's own before its first step
    total_s: float  # the run's duration; of the steps and checkpoints where it is not known (a run that goes on, or of an older voirkit)
    startup_s: float  # the script's own time before its first step, without imports
    outliers: Mapping[str, Any]  # ``steps.typical.outliers`` of the summary: the steps that are left out of the shares; empty for none

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
    """The account of a summary: of its ``steps``, ``evaluation`` and ``ranks``, and its ``wall`` if it has one."""
    steps, wall = summary["steps"], summary.get("wall") or {}
    typical = steps.get("typical") or {}
    rows = typical.get("phases") or {name: row["share"] for name, row in steps["phases"].items()}
    exposed = first_evidence(summary, "exposed communication", "backward")
    if exposed is not None:
        waits = rows["backward"] * exposed.share
        rows = {**rows, "backward": rows["backward"] - waits, "communication": rows.get("communication", 0.0) + waits}
    parts = typical.get("parts")  # empty where what stands out was all of them
    other = parts if parts is not None else {name: row["share"] for name, row in steps["phases"]["other"].get("parts", {}).items()}
    steps_s = steps.get("total_s") or sum(row["total_s"] for row in steps["phases"].values()) / max(len(summary.get("ranks") or ()), 1)
    outliers = typical.get("outliers") or {}
    usual_s = steps_s - outliers.get("total_s", 0.0)
    spent = {name: row["total_s"] for name, row in (wall.get("parts") or {}).items()}
    saving = other.get("checkpoint", 0.0)
    loss = other.get("loss", 0.0)
    host = rows["other"] - saving - loss - sum(other.get(name, 0.0) for name in _NOT_HOST)
    inside = [
        ("input-bound", "waiting for input", rows["wait"]),
        ("transfer-bound", "transfer", rows["transfer"]),
        ("compute-bound", "forward", rows["forward"]),
        ("compute-bound", "backward", rows["backward"]),
        ("compute-bound", "the optimizer's step", rows["optimizer"]),
        ("compute-bound", "the loss", loss),
        ("communication-bound", "communication between ranks", rows.get("communication", 0.0)),
        ("checkpoint-bound", "checkpoints", saving),
        ("host-bound", "untracked host code", max(host, 0.0)),
    ]
    between_s = (steps.get("checkpoints_between") or {}).get("total_s", 0.0)
    saved_outside_s = max(between_s, spent.get("checkpoint", 0.0) - saving * usual_s)
    evaluated = evaluation_name(summary.get("evaluation"))
    evaluation_s = spent.get("evaluation", (summary.get("evaluation") or {}).get("total_s", 0.0))
    outside = [
        Part(f"{evaluated}-bound", evaluated, evaluation_s),
        Part("checkpoint-bound", "checkpoints between the steps", saved_outside_s),
        Part("input-bound", "starting and stopping workers", spent.get("workers", 0.0)),
        Part("host-bound", "host code outside of the steps", spent.get("between", 0.0)),
    ]
    work_s = steps_s + sum(part.seconds for part in outside)
    return Account(
        (*(Part(kind, name, share * usual_s, share) for kind, name, share in inside), *outside),
        rows, other, steps_s, usual_s, work_s, wall.get("total_s") or work_s, _startup_s(wall), outliers,
    )  # fmt: skip


def _startup_s(wall: Mapping[str, Any]) -> float:
    """The script's own time before its first step. Where imports are no part of their own they are in it, and nothing is known of it."""
    parts = wall.get("parts") or {}
    startup = parts.get("startup") or {}
    return max(startup.get("total_s", 0.0) - startup.get("before_script_s", 0.0), 0.0) if "import" in parts else 0.0
