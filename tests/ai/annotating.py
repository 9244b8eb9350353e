"""What a folder holds of what was annotated, as plain Python; not what voirkit records of torch by itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from columns import read


class Event(NamedTuple):
    """A record, its number among its arguments."""

    category: str
    name: str
    kind: str
    args: dict[str, Any]
    start_ns: int
    duration_ns: int
    pid: int
    tid: int

    @property
    def what(self) -> tuple[str, str]:
        return self.category, self.name


def events(folder: Path | str) -> list[Event]:
    """All records in a run directory, by when they began; the outer before the inner."""
    found = read(str(folder))
    rows = zip(
        *(
            found[c].tolist()
            for c in ("name", "args", "value", "start_ns", "duration_ns", "pid", "tid")
        ),
        strict=True,
    )
    result = []
    for name, args, value, start, duration, pid, tid in rows:
        known = found.names[name]
        if known.kind == "phase":
            continue
        all_args = {
            **found.arguments[args],
            **({known.value_key: value} if known.value_key else {}),
        }
        result.append(
            Event(known.category, known.name, known.kind, all_args, start, duration, pid, tid)
        )
    return sorted(result, key=lambda e: (e.start_ns, -e.duration_ns))


OWN_KINDS = ("phase", "symptom")
"""Kinds of records that voirkit makes by itself."""


def rows(folder: Path | str) -> list[Event]:
    """The same of a run that voirkit has led, or that is opened: on the wall clock."""
    from voirkit import open_run
    from voirkit.runs.selection import EVERYTHING

    with open_run(folder) as run:
        found = [row for batch in run.rows(EVERYTHING) for row in batch]
    annotated = [row for row in found if row[0] not in OWN_KINDS]
    return [
        Event(category, name, kind, a, start, dur, pid, tid)
        for kind, category, name, start, dur, _, _, pid, tid, a in annotated
    ]


def phases(folder: Path | str) -> int:
    """How many records of a run are voirkit's own: an import that takes a moment on a busy machine is one."""
    from voirkit import open_run
    from voirkit.runs.selection import EVERYTHING

    with open_run(folder) as run:
        return sum(row[0] in OWN_KINDS for batch in run.rows(EVERYTHING) for row in batch)


def names(found: list[Event]) -> list[str]:
    """Their names."""
    return [e.name for e in found]


def counts(found: list[Event]) -> Counter[str]:
    """How many there are of each name."""
    return Counter(names(found))


def args(found: list[Event], name: str) -> list[dict[str, Any]]:
    """The arguments of those of a name."""
    return [e.args for e in found if e.name == name]
