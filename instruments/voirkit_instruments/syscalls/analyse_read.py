"""A log of ``strace`` that was made anywhere, as figures; and the difference of two."""

from __future__ import annotations

import re
from io import TextIOWrapper
from typing import Any, NamedTuple

from voirkit.errors import VoirkitError
from voirkit_instruments.syscalls.analyse_attribution import Attribution, Known
from voirkit_instruments.syscalls.analyse_figures import figures
from voirkit_instruments.syscalls.analyse_lines import bounded
from voirkit_instruments.syscalls.analyse_strace import StraceLog


class SyscallLogError(VoirkitError):
    """A log of system calls that can not be read."""


def read_strace(path: str, known: Known | None = None) -> tuple[dict[str, Any], StraceLog]:
    """The figures of a log, and what is known of it besides.

    Raises:
        SyscallLogError: It is not there, or no log of strace.
    """
    log = StraceLog()
    try:
        with open(path, "rb") as raw, TextIOWrapper(raw, encoding="latin-1", newline="\n") as lines:  # strace escapes all that is not ASCII
            if b"\0" in raw.peek():  # it may have no lines at all, and more than memory holds
                packed = ", and has to be unpacked first" if path.endswith(_PACKED) else ""
                raise SyscallLogError(f"it is no text{packed}.", where=path, next=_MADE)
            found = Attribution(known).add(log.events(bounded(lines)))
    except OSError as exc:
        raise SyscallLogError(f"it can not be read: {exc.strerror}.", where=path) from None
    if any(text.endswith(_OF_LTRACE) for _, text in log.examples):
        raise SyscallLogError("it is a log of ltrace, whose calls are those of libraries.", where=path, next=_MADE)
    if not found.calls and not found.own[0] and not found.markers:
        raise SyscallLogError(_why_none(path, log), where=path, next=_MADE)
    document = figures(found, log.timed)
    document["log"] = {
        "lines": log.lines, "unread": log.unread, "torn": log.torn, "dated": log.dated, "signals": log.signals,
        "examples": [{"line": number, "text": text} for number, text in log.examples],
    }  # fmt: skip
    return document, log


_PACKED = (".gz", ".bz2", ".xz", ".zst")
_OF_LTRACE = "= <void>"  # what no call of the kernel's returns
_OF_PERF = re.compile(r"[ \d.?]+\([ \d.ms]*\): ")
_MADE = "A log is made by: strace -f -ttt -T -o LOG python main.py"


def _why_none(path: str, log: StraceLog) -> str:
    if not log.lines:
        return "it is empty."
    if any(_OF_PERF.match(text) for _, text in log.examples):
        return "it is a log of perf trace, which writes calls otherwise than strace."
    if any("% time" in text or "usecs/call" in text for _, text in log.examples):
        return "it is the table that strace -c prints, which has no calls in it."
    return f"no line of it is a system call as strace prints them; line {log.examples[0][0] if log.examples else 1} is not."


class Difference(NamedTuple):
    """A call in two logs. What is only in the second counts up, what is only in the first counts down.

    Attributes:
        phase: The phase.
        name: Of the call.
        calls: How many in the first and in the second.
        errors: How many of them failed; None where that was not seen.
        seconds: How long in the first and in the second; None where a log has no durations.
        bytes: How many in the first and in the second.
    """

    phase: str
    name: str
    calls: tuple[int, int]
    errors: tuple[int | None, int | None]
    seconds: tuple[float | None, float | None]
    bytes: tuple[int, int]

    @property
    def more_calls(self) -> int:
        """The second's calls less the first's."""
        return self.calls[1] - self.calls[0]

    @property
    def more_errors(self) -> int | None:
        """The second's errors less the first's; None if one is not known."""
        first, second = self.errors
        return None if first is None or second is None else second - first

    @property
    def more_seconds(self) -> float | None:
        """The second's seconds less the first's; None if one is not known."""
        first, second = self.seconds
        return None if first is None or second is None else second - first


_COLUMNS = ("calls", "errors", "seconds", "bytes")
_ALL = "all"


def difference(first: dict[str, Any], second: dict[str, Any]) -> list[Difference]:
    """What two documents differ in, by phase and call, the largest difference of calls first; calls that are alike too.

    If one of them has no phases, all are compared as one; of two tracers the seconds are not compared, since they measure different things.
    """
    one, two = first["phases"], second["phases"]
    if (_ALL in one) is not (_ALL in two):
        one, two = _as_one(one), _as_one(two)
    nothings = [{column: None if column in unseen else 0 for column in _COLUMNS} for unseen in map(_unseen, (one, two))]
    alike = first.get("tool", "strace") == second.get("tool", "strace")  # a log of one's own is strace's
    found = []
    for phase in dict.fromkeys([*one, *two]):
        ours, theirs = one.get(phase, {}), two.get(phase, {})
        for name in dict.fromkeys([*ours, *theirs]):
            a, b = ours.get(name, nothings[0]), theirs.get(name, nothings[1])
            calls, errors, seconds, moved = ((a[column], b[column]) for column in _COLUMNS)
            found.append(Difference(phase, name, calls, errors, seconds if alike else (None, None), moved))
    return sorted(found, key=lambda row: (-abs(row.more_calls), -abs(row.more_seconds or 0), row.phase, row.name))


def _as_one(phases: dict[str, Any]) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    for calls in phases.values():
        for name, call in calls.items():
            row = sums.setdefault(name, dict.fromkeys(_COLUMNS, 0))
            for column in _COLUMNS:
                row[column] = None if call[column] is None or row[column] is None else row[column] + call[column]
    return {_ALL: sums}


def _unseen(phases: dict[str, Any]) -> set[str]:
    """The columns that no call of a document has: of what a log lacks it is not known that it is zero."""
    rows = [call for calls in phases.values() for call in calls.values()]
    return {column for column in _COLUMNS if rows and all(call[column] is None for call in rows)}
