r"""Reads what ``strace`` writes: a stream of lines in, a stream of events out, in constant memory. Checked with strace 6.1.

Any of its forms: with ``-o`` and ``-f`` (each line begins with a thread's number), on a terminal (``[pid 7]``), without ``-f`` (no number);
with ``-ttt``, ``-tt``, ``-t``, ``-r`` or no time; with ``-T`` or without; with ``-y``, ``-n``, ``-i`` or ``-Y``. A line is::

    7 1700000000.123456 openat(AT_FDCWD, "a) = 1", O_RDONLY) = -1 ENOENT (No such file or directory) <0.000012>
    7 1700000000.123456 read(3,  <unfinished ...>
    7 1700000000.123999 <... read resumed>"ab", 2) = 2 <0.000543>
    7 1700000000.124000 --- SIGCHLD {si_signo=SIGCHLD, ...} ---
    7 1700000000.124100 +++ exited with 0 +++

A call's arguments end at the last ``) = `` that a whole result follows, since strings, paths of descriptors and notes may hold one too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from voirkit_instruments.syscalls.analyse_events import NAN, Begun, Call, Ended, Event, Signal
from voirkit_instruments.syscalls.analyse_lines import SHOWN

# How a line begins, thread and time. All lines of a log begin alike, but that a terminal's have no thread while there is one only.
_THREADS = (r"(\d+)(?:<[^\n]*?>)? +", r"(?:\[pid +(\d+)(?:<[^\n]*?>)?\] +)?")  # with the program's name behind it: -Y
_SECONDS, _OF_DAY, _UNTOLD = r" *(\d+\.\d+) ", r"(\d\d:\d\d:\d\d(?:\.\d+)?) ", "()"
_PLACES = ("", r"(?:\[[ 0-9a-f?]+\] )+")  # numbers of calls (-n), addresses (-i)
_WORDS = r"(?=\w+\(|<\.\.\. |--- |\+\+\+ )"
# Behind the arguments: the result, the path of a descriptor (-y), the error, notes, the duration (-T).
_RESULT = r"\) *= (-?\d+|0x[0-9a-f]+|\?)(?:<[^\n]*?>)?(?: (E[A-Z0-9_]+))?(?: \([^\n]*?\)| /\*[^\n]*?\*/)?(?: <(\d+\.\d+)>)?$"
_BEGINS = re.compile(r"(\w+)\((.*?),? *<unfinished \.\.\.>$")
_RESUMES = re.compile(r"<\.\.\. (\w+) resumed>(.*)" + _RESULT)
_UNFINISHED = "<unfinished ...>\n"
_DAY = 86400.0
_SHOWN = 3  # lines that are not understood


class StraceLog:
    """What is known of a log besides its events, while it is read and after.

    Attributes:
        lines: How many have been read.
        unread: How many were not understood. The tracer's own words (``strace: Process 7 attached``) are none of them.
        examples: The first of those, with their numbers, as far as they can be shown.
        torn: Whether the last line is cut.
        dated: Whether lines have times.
        timed: Whether calls have durations (``-T``).
        signals: How many signals have come.
        last: The last time that was read; ``nan`` without any.
    """

    def __init__(self) -> None:
        self.lines = self.unread = self.signals = 0
        self.examples: list[tuple[int, str]] = []
        self.torn = self.dated = self.timed = False
        self.last = NAN
        self._prefix: re.Pattern[str] | None = None
        self._time: Callable[[str], float] = float
        self._pending: dict[int, Begun] = {}

    def events(self, lines: Iterable[str]) -> Iterator[Event]:
        """Read lines, each with its end; the last may lack it."""
        make, unfinished = tuple.__new__, _UNFINISHED
        time: Callable[[str], float] = float
        match: Callable[[str], re.Match[str] | None] | None = None
        line, timed, began = "\n", False, NAN
        for line in lines:
            self.lines += 1
            if match is None and self._look(line):
                assert self._prefix is not None
                match, time = re.compile(f"{self._prefix.pattern}(\\w+)\\((.*){_RESULT}").match, self._time
            found = None if match is None or line.endswith(unfinished) else match(line)
            if found is None:
                yield from self._other(line)
                continue
            tid, at, name, args, result, error, seconds = found.groups()
            began = time(at) if at else NAN
            if seconds:
                timed = True
            elif timed and line[-1] != "\n":
                self.torn = True  # of a duration something is missing
                continue
            try:
                value: int | None = int(result)
            except ValueError:
                value = None if result == "?" else int(result, 16)
            yield make(Call, (
                int(tid or 0), began, name, args, value, error or "", float(seconds) if seconds else NAN, False, 0.0,
            ))  # fmt: skip
        self.timed = timed
        if began == began:
            self.last = max(began, self.last) if self.last == self.last else began
        yield from self._never_returned()

    def _look(self, line: str) -> bool:
        """See, from the first line that has a form, how all of them begin."""
        for thread in _THREADS:
            for time, read in ((_SECONDS, float), (_OF_DAY, _OfDay()), (_UNTOLD, float)):
                for place in _PLACES:
                    found = re.match(thread + time + place + _WORDS, line)
                    if found is not None:
                        self._prefix, self.dated = re.compile(thread + time + place), time is not _UNTOLD
                        self._time = _SinceTheLast() if read is float and found[2] and not float(found[2]) else read
                        return True
        return False

    def _other(self, line: str) -> Iterator[Event]:
        """A line that is no call from its beginning to its end."""
        found = self._prefix.match(line) if self._prefix is not None else None
        if found is None:
            self._unknown(line)
            return
        tid, at = int(found[1] or 0), self._time(found[2]) if found[2] else NAN
        text = line[found.end() :].rstrip("\n")
        if at == at:
            self.last = at
        if text.endswith("<unfinished ...>") and (begins := _BEGINS.match(text)):
            self._pending[tid] = begun = Begun(tid, at, begins[1], begins[2])
            yield begun
        elif text.startswith("<... "):
            yield from self._resumed(line, text, tid, at)
        elif text.startswith("+++ ") and text.endswith(" +++"):
            yield from self._ended(tid, at, text[4:-4])
        elif text.startswith("--- ") and text.endswith(" ---"):
            self.signals += 1
            yield Signal(tid, at, text[4:-4])
        else:
            self._unknown(line)

    def _resumed(self, line: str, text: str, tid: int, at: float) -> Iterator[Event]:
        found = _RESUMES.match(text)
        if found is None:
            self._unknown(line)
            return
        name, rest, result, error, seconds = found.groups()
        took = float(seconds) if seconds else NAN
        begun = self._pending.pop(tid, None)
        if begun is None or begun.name != name:  # it was entered before the log began
            begun = Begun(tid, at - took, name, "")
        elif took != took:
            took = at - begun.began
        rest = rest.removesuffix("<unfinished ...>").strip(" ")
        between = ", " if begun.args and rest and not rest.startswith((",", ")", "]", "}")) else ""
        value = None if result == "?" else int(result, 0)
        yield Call(tid, begun.began, name, begun.args + between + rest, value, error or "", took, True)

    def _ended(self, tid: int, at: float, how: str) -> Iterator[Event]:
        begun = self._pending.pop(tid, None)
        if begun is not None:
            yield Call(*begun, None, "", at - begun.began, True)
        successor = re.match(r"superseded by execve in pid (\d+)", how)
        if successor is not None and int(successor[1]) in self._pending:  # it goes on under the number of the process
            self._pending[tid] = self._pending.pop(int(successor[1]))._replace(tid=tid)
        yield Ended(tid, at, how)

    def _never_returned(self) -> Iterator[Event]:
        for begun in self._pending.values():
            yield Call(*begun, None, "", self.last - begun.began, True)
        self._pending.clear()

    def _unknown(self, line: str) -> None:
        if not line.endswith("\n"):
            self.torn = True
        elif line.strip() and not re.match(r"(?:\[pid +\d+\] +)?(?:/\S*/)?strace: |\[ Process PID=", line):
            self.unread += 1
            if len(self.examples) < _SHOWN:
                self.examples.append((self.lines, line[: SHOWN + 2].rstrip("\n")))


class _SinceTheLast:
    """Times of ``strace -r``: since the line before, the first of which is zero."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self, text: str) -> float:
        self._now += float(text)
        return self._now


class _OfDay:
    """Times of ``strace -t`` and ``-tt``: seconds since the midnight before the first of them."""

    def __init__(self) -> None:
        self._last = self._midnight = 0.0

    def __call__(self, text: str) -> float:
        hours, minutes, seconds = text.split(":")
        now = self._midnight + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
        if now < self._last - _DAY / 2:  # threads' lines may stand a little out of order
            self._midnight += _DAY
            now += _DAY
        self._last = max(now, self._last)
        return now
