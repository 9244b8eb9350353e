"""What a detector says of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from voirkit_instruments.checks.detectors.facts import Fact, Facts

LEAST_LOOKS = 3  # that a bug must have been seen at: a script's first step, or a change from one stage to another, is not its rule


@dataclass(frozen=True)
class Finding:
    """What a detector says.

    Attributes:
        found: Whether the bug is there; None: it can not be told.
        because: Why, in a sentence.
        at: The fact at which it was first seen: tells step and line.
        next: What to do about it; empty if nothing was found.
        evidence: The figures that it rests on.
        looks: At how many steps, batches or epochs it was looked for; None: at each step of the optimizers.
    """

    found: bool | None
    because: str
    at: Fact | None = None
    next: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    looks: int | None = None


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
        if missing and not any(facts.has(name) for name in _TRAINING):
            finding = Finding(None, "No training was seen: no backward pass, and no step of a torch optimizer.")
        elif missing:
            finding = Finding(None, f"No {_WORDS.get(missing[0], missing[0].replace('_', ' '))} was seen.")
        else:
            try:
                finding = self.decide(facts)
            except (LookupError, TypeError, ValueError, AttributeError) as exc:  # facts that are not like any known ones
                finding = Finding(None, f"The facts cannot be read ({type(exc).__name__}: {exc}).")
        finding = _enough(finding, facts)
        at = finding.at
        return {
            "name": self.name, "found": finding.found, "step": None if at is None else facts.step(at),
            "where": None if at is None else at.where, "because": finding.because, "next": finding.next, "evidence": dict(finding.evidence),
        }  # fmt: skip


def _enough(finding: Finding, facts: Facts) -> Finding:
    """The finding, if it rests on enough looks."""
    looks = max(facts.count("step"), facts.count("scaler")) if finding.looks is None else finding.looks
    if not finding.found or looks >= LEAST_LOOKS:
        return finding
    return Finding(None, f"{finding.because} That rests on {looks} {'look' if looks == 1 else 'looks'}: {LEAST_LOOKS} are needed.")


_TRAINING = ("step", "backward", "scaler")
_WORDS = {
    "step": "step of a torch optimizer", "backward": "backward pass", "call": "call of a model", "look": "step of a torch optimizer",
    "scheduler": "step of a learning rate scheduler", "scaler": "step of a gradient scaler", "reach": "backward pass",
    "graph": "backward pass",
}  # fmt: skip
