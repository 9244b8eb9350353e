"""A finding: something that is wrong with a run, where it is, the evidence, and what to do about
it; and the ranking of findings."""

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
        kind: Name of its kind in the catalogue.
        because: The evidence, in a sentence or two.
        next: What to do about it.
        where: The line of the program (``train.py:12``); empty if unknown.
        gain: The share of the run's time that fixing it would save; None if unknown. If its kind
            does not say where this figure comes from (``Kind.gain``), the figure is used to rank
            the finding but not printed.
        explains: The kind of verdict that it explains, so that no general advice is given about the
            same time; empty for none.
        evidence: The figures on which it is based.
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
        """Make a finding with the texts of the catalogue: ``evidence`` and ``where`` fill the
        templates. Figures whose name ends with ``_words`` are used in the templates only, and not
        kept.

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
        """Severity of the finding, by its kind."""
        return CATALOGUE[self.kind].severity

    @property
    def printed_gain(self) -> float | None:
        """``gain``, if the kind says where this figure comes from; otherwise None."""
        return self.gain if CATALOGUE[self.kind].gain else None

    @property
    def part_of(self) -> str:
        """``Kind.part_of`` of its kind: the kind of verdict whose time it accounts for in part."""
        return CATALOGUE[self.kind].part_of

    def document(self) -> dict[str, Any]:
        """Return the entry of ``findings`` in ``summary.json``."""
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
    """Return the findings of all instruments' rules in a summary, the gravest first.

    Findings that a more specific finding silences (``Kind.silences``) are left out. If the rules of
    an instrument fail, only the findings of that instrument are missing.

    Args:
        summary: The summary, with the parts of instruments, ``steps``, ``evaluation`` and ``wall``.
        failures: Collects the failures of rules.
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
    """Return the entry ``alerts`` of a summary: all findings except those that only cost time,
    which become advice of the verdict."""
    return [finding.document() for finding in findings if finding.severity != Severity.TIME]


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, the gravest first; of the same severity, the largest gain first."""
    return sorted(findings, key=lambda finding: (finding.severity, -(finding.gain or 0.0)))
