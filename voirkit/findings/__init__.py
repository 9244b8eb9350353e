"""Findings about a run: instruments' rules make them, with texts from a catalogue.

The rules are ``Instrument.findings``. ``catalogue`` has the texts and the documentation of each
kind of finding.
"""

from __future__ import annotations

from voirkit.findings.catalogue import CATALOGUE
from voirkit.findings.finding import Finding, alerts_of, findings_of, ranked
from voirkit.findings.kind import Kind, Severity

__all__ = ["CATALOGUE", "Finding", "Kind", "Severity", "alerts_of", "findings_of", "ranked"]
