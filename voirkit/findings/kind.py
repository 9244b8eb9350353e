"""What a kind of finding is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How grave a finding is; the gravest first."""

    BUG = 0  # the training is not what its author means it to be
    MEASUREMENT = 1  # the times of this run are not the script's own
    MEMORY = 2  # memory is held or copied that is of no use
    SYMPTOM = 3  # something is wrong, and a flag would tell what
    TIME = 4  # time is lost
    ADVICE = 5  # what could save time of the part that takes most
    VERDICT = 6  # what the run is bound by


@dataclass(frozen=True)
class Kind:
    """One kind of finding.

    Attributes:
        name: As in ``summary.json`` and for ``voirkit explain``.
        severity: How grave it is.
        because: Template of what a report says of it; empty for verdicts and silent bugs, whose
            words are made where they are found.
        next: Template of what to do about it; the same.
        meaning: What it means, for the documentation.
        condition: When it is said, with its thresholds.
        confirm: How to confirm it.
        mend: How to mend it, with an example.
        example: The command that shows it, on a script of the project; empty where there is none.
        gain: Where the figure of what mending it would save comes from; empty where none is
            printed.
        explains: The kind of verdict whose time it explains; no general advice is given about the
            same time then.
        part_of: The kind of verdict of whose time it is a part: it is ranked with the general
            advice, by what it would save.
        silences: Kinds of the same cause, or of what follows from it, that are not told beside it.
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
