"""What instruments have found of a phase: its hottest source line, operator or system call, the slow part of loading.

``Instrument.evidence`` names, for each kind, a function ``(part, phases) -> Iterable[Evidence]``: what most of the time of these phases was
spent in, most first. The kinds that a verdict asks for: ``line``, ``operator``, ``system call``, ``loading``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from voirkit.instrument import resolve
from voirkit.plugins import installed_instruments

LEAST = 0.2  # of the phase's time: less explains nothing

Summary = Mapping[str, Any]


class Evidence(NamedTuple):
    """What some phases spend their time in.

    Attributes:
        what: In words: ``train.py:12 image.load()``, ``aten::addmm``, ``read() on data.bin``.
        share: Of the time of these phases.
        do: What to do about it, if the instrument knows; a sentence or two.
        saves: Share of a step that this could save at best; None if nothing is predicted.
        details: Keys that a verdict's ``evidence`` has of it.
    """

    what: str
    share: float
    do: str = ""
    saves: float | None = None
    details: Mapping[str, Any] = {}


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
