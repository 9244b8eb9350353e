"""What is wrong with a run, by kind: the words and the documentation of each kind are in
``catalogue``, what finds it in rules of instruments (``Instrument.findings``)."""

from __future__ import annotations

from voirkit.findings.catalogue import CATALOGUE
from voirkit.findings.finding import Finding, alerts_of, findings_of, ranked
from voirkit.findings.kind import Kind, Severity

__all__ = ["CATALOGUE", "Finding", "Kind", "Severity", "alerts_of", "findings_of", "ranked"]
