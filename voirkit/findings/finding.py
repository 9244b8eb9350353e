"""A finding: something that is wrong with a run, where, why that is said, and what to do about it;
and how findings are ranked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from voirkit.errors import PartFailures
from voirkit.findings.catalogue import CATALOGUE
from voirkit.findings.kind import Severity
from voirkit.instrument import resolve
from voirkit.plugins import installed_instruments

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a run.

    Attributes:
        kind: Of the catalogue.
        because: The evidence, a sentence or two.
        next: What to do about it.
        where: The line of the program (``train.py:12``); empty where none is known.
        gain: The share of the run's time that mending it would save; None where nobody can know. Of
            kinds without a source of that figure it ranks them, and is not printed.
        explains: The kind of verdict whose time it explains, so that no general advice speaks of
            the same time; empty for none.
        evidence: The figures that it rests on.
    """

    kind: str
    because: str
    next: str
    where: str = ""
    gain: float | None = None
    explains: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        kind: str,
        evidence: Mapping[str, Any],
        *,
        where: str = "",
        gain: float | None = None,
        explains: str = "",
    ) -> Finding:
        """A finding in the words of the catalogue, whose templates are filled with ``evidence`` and
        ``where``; figures whose name ends with ``_words`` are for the templates alone.

        Raises:
            KeyError: The kind is not in the catalogue, or its templates ask for a figure that is
                not given.
        """
        entry = CATALOGUE[kind]
        figures = {**evidence, "where": where}
        because = entry.because.format_map(figures)
        next_step = entry.next.format_map(figures)
        stored = {name: value for name, value in evidence.items() if not name.endswith("_words")}
        return cls(kind, because, next_step, where, gain, explains or entry.explains, stored)

    @property
    def severity(self) -> Severity:
        """How grave it is, by its kind."""
        return CATALOGUE[self.kind].severity

    @property
    def printed_gain(self) -> float | None:
        """``gain``, where its kind says where it comes from."""
        return self.gain if CATALOGUE[self.kind].gain else None

    @property
    def part_of(self) -> str:
        """The kind of verdict of whose time it is a part, by its kind."""
        return CATALOGUE[self.kind].part_of

    def document(self) -> dict[str, Any]:
        """An entry of ``findings`` in ``summary.json``."""
        return {
            "kind": self.kind,
            "severity": self.severity.name.lower(),
            "where": self.where or None,
            "because": self.because,
            "next": self.next,
            "gain": self.printed_gain,
            "evidence": dict(self.evidence),
        }


def findings_of(summary: Summary, failures: PartFailures) -> list[Finding]:
    """What the rules of all instruments find in a summary, the gravest first, without what a
    finding of a more specific kind silences. A rule that fails costs its own findings.

    Args:
        summary: With the parts of instruments, ``steps``, ``evaluation`` and ``wall``.
        failures: Gets what fails.
    """
    findings: list[Finding] = []
    for instrument in installed_instruments():
        if instrument.findings:
            rules = partial(_applied, instrument.findings, summary)
            findings += failures.attempt(f"findings of {instrument.name}", rules, [])
    silenced = {kind for finding in findings for kind in CATALOGUE[finding.kind].silences}
    return ranked(finding for finding in findings if finding.kind not in silenced)


def _applied(rules: str, summary: Summary) -> list[Finding]:
    return list(resolve(rules)(summary))


def alerts_of(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """``alerts`` of a summary: all findings but those that only cost time, which are advice of the
    verdict."""
    return [finding.document() for finding in findings if finding.severity != Severity.TIME]


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """The gravest first, and of one severity what saves most."""
    return sorted(findings, key=lambda finding: (finding.severity, -(finding.gain or 0.0)))
