"""What a detector says of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from voirkit.analysis.checks.facts import Fact, Facts


@dataclass(frozen=True)
class Finding:
    """What a detector says.

    Attributes:
        found: Whether the bug is there; None: it can not be told.
        because: Why, in a sentence.
        at: The fact at which it was first seen: tells step and line.
        next: What to do about it; empty if nothing was found.
        evidence: The figures that it rests on.
    """

    found: bool | None
    because: str
    at: Fact | None = None
    next: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Detector:
    """Something that is looked for.

    Attributes:
        name: As it stands in the summary, the table and docs/checks.md: ``missing-zero-grad``.
        decide: Tells from the facts of all ranks.
        needs: Names of facts of which there must be at least one; without, it can not be told.
    """

    name: str
    decide: Callable[[Facts], Finding]
    needs: tuple[str, ...] = ()

    def ask(self, facts: Facts) -> dict[str, Any]:
        """Its entry in ``summary["checks"]``."""
        missing = [name for name in self.needs if not facts.has(name)]
        if missing:
            finding = Finding(None, f"No {_WORDS.get(missing[0], missing[0].replace('_', ' '))} was seen.")
        else:
            try:
                finding = self.decide(facts)
            except (LookupError, TypeError, ValueError, AttributeError) as exc:  # facts that are not like any known ones
                finding = Finding(None, f"The facts can not be read ({type(exc).__name__}: {exc}).")
        at = finding.at
        return {
            "name": self.name, "found": finding.found, "step": None if at is None else facts.step(at),
            "where": None if at is None else at.where, "because": finding.because, "next": finding.next, "evidence": dict(finding.evidence),
        }  # fmt: skip


_WORDS = {
    "step": "step of a torch optimizer", "backward": "backward pass", "call": "call of a model", "look": "step of a torch optimizer",
    "scheduler": "step of a learning rate scheduler", "scaler": "step of a gradient scaler", "reach": "backward pass",
}  # fmt: skip
