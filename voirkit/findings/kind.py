"""Kinds of findings, and their severity."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """Severity of a finding, the gravest first."""

    BUG = 0  # the script does not train as its author intends
    MEASUREMENT = 1  # something other than the script affects the times of this run
    MEMORY = 2  # memory is held or copied needlessly
    SYMPTOM = 3  # something is wrong, and a flag would show what it is
    TIME = 4  # time is lost
    ADVICE = 5  # the part of the run that takes the most time could take less
    VERDICT = 6  # the bottleneck of the run


@dataclass(frozen=True)
class Kind:
    """One kind of finding.

    Attributes:
        name: Name in ``summary.json`` and for ``voirkit explain``.
        severity: Severity of its findings.
        because: Template of the evidence in a report; empty for verdicts and silent bugs, whose
            texts are made by the code that finds them.
        next: Template of what to do about it; empty for verdicts and silent bugs.
        meaning: What it means, for the documentation.
        condition: When it is reported, with its thresholds.
        confirm: How to confirm it.
        mend: How to fix it, with an example.
        example: A command that shows it on a script of this project; empty if there is none.
        gain: Where the figure for the time that a fix would save comes from; empty if no figure is
            printed.
        explains: The kind of verdict that it explains, so that no general advice is given about the
            same time; empty for none.
        part_of: The kind of verdict whose time it accounts for in part. Its findings are ranked
            with the general advice, by what they would save. Empty for none.
        silences: Kinds that have the same cause or follow from it; they are not reported beside
            it.
    """

    name: str
    severity: Severity
    meaning: str
    condition: str
    confirm: str
    mend: str
    because: str = ""
    next: str = ""
    gain: str = ""
    explains: str = ""
    part_of: str = ""
    silences: tuple[str, ...] = ()
    example: str = ""
