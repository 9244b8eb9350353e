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
from functools import partial
from typing import TextIO

from voirkit.errors import VoirkitError
from voirkit_instruments.syscalls.analyse_calls import NAN, Call, CallEntry, Event, Signal, ThreadExit

# How a line begins, thread and time. All lines of a log begin alike, but that a terminal's have no thread while there is one only.
# Each part is bounded, and no two that follow each other take the same characters: a line of any content is read in linear time.
_THREAD = r"(\d{1,10})(?:<[^\n]{0,64}?>)?"  # with the program's name behind it: -Y
_THREADS = (_THREAD + r" +(?! )", r"(?:\[pid +" + _THREAD + r"\] +(?! ))?")
_SECONDS, _OF_DAY, _NO_TIME = r" *(\d{1,12}\.\d{1,9}) ", r"(\d\d:\d\d:\d\d(?:\.\d{1,9})?) ", "()"
_PLACES = ("", r"(?:\[[ 0-9a-f?]+\] )+")  # numbers of calls (-n), addresses (-i)
_WORDS = r"(?=\w+\(|<\.\.\. |--- |\+\+\+ )"
# Behind the arguments: the result, the path of a descriptor (-y), the error, notes, the duration (-T).
_ENDS, _VALUE, _TOOK = r"\) *= ", r"(0x[0-9a-f]{1,16}|-?\d{1,20}|\?)", r"(?: <(\d{1,12}\.\d{1,9})>)?$"
_RESULT = f"{_ENDS}{_VALUE}" + r"(?:<[^\n]*?>)?(?: (E[A-Z0-9_]+))?(?: \([^\n]*?\)| /\*[^\n]*?\*/)?" + _TOOK
_NAME = re.compile(r"(\w+)\(")
_RESUMES = re.compile(r"<\.\.\. (\w+) resumed>")
_UNFINISHED = "<unfinished ...>\n"
# A pattern tries each end of the arguments with each end of a path and of a note. Longer lines, or with more ends, are read by parts: 40 kB
# of ``) = `` take 1.2 s by the pattern.
_LONGEST_BY_PATTERN, _MOST_ENDS = 512, 8
_END_OF_ARGUMENTS, _VALUE_THERE, _DURATION = re.compile(_ENDS), re.compile(_VALUE), re.compile(_TOOK)
_BEHIND_VALUE = re.compile(r"(?: (E[A-Z0-9_]+))?(?: \([^\n]*\)| /\*[^\n]*\*/)?$")
_DAY = 86400.0
_MOST_EXAMPLES = 3  # lines that are not understood
_LONGEST_LINE = 1 << 20  # characters: strace -s and -v make lines of some kilobytes, a thousand pieces of a writev too
_LONGEST_EXAMPLE = 200  # characters
_CUT = "…"  # what no line ends in that a tracer wrote: strace escapes all that is not ASCII
PACKED = (".gz", ".bz2", ".xz", ".zst")
OF_LTRACE = "= <void>"  # what no call of the kernel's returns
OF_PERF = re.compile(r"[ \d.?]+\([ \d.ms]*\): ")
HOW_TO_TRACE = "A log is made by: strace -f -ttt -T -o LOG python main.py"


class SyscallLogError(VoirkitError):
    """A log of system calls that cannot be read."""


def bounded_lines(text: TextIO) -> Iterator[str]:
    """Lines, each with its end, except the last, which may lack it: a file may hold gigabytes without the end of a line. A line longer than
    ``_LONGEST_LINE`` is read past, and its beginning stands for it, with ``_CUT`` before its end."""
    read = partial(text.readline, _LONGEST_LINE)
    for line in iter(read, ""):
        if len(line) < _LONGEST_LINE or line[-1] == "\n":
            yield line
            continue
        rest = line
        while rest and rest[-1] != "\n":
            rest = read()
        yield f"{line[:_LONGEST_EXAMPLE]}{_CUT}\n"


class StraceLog:
    """What is known of a log besides its events, while it is read and after.

    Attributes:
        unread: How many were not understood. The tracer's own words (``strace: Process 7 attached``) are none of them.
        dated: Whether lines have times.
        timed: Whether calls have durations (``-T``).
    """

    def __init__(self) -> None:
        self.lines = self.unread = self.signals = 0
        self.examples: list[tuple[int, str]] = []  # the first of those, with their numbers, as far as they can be shown
        self.torn = self.dated = self.timed = False
        self.last = NAN  # the last time that was read; ``nan`` without any
        self._prefix: re.Pattern[str] | None = None
        self._time: Callable[[str], float] = float
        self._pending: dict[int, CallEntry] = {}

    def events(self, lines: Iterable[str]) -> Iterator[Event]:
        """Read lines, each with its end; the last may lack it."""
        make, unfinished = tuple.__new__, _UNFINISHED
        time: Callable[[str], float] = float
        match: Callable[[str], re.Match[str] | None] | None = None
        line, timed, began = "\n", False, NAN
        for line in lines:
            self.lines += 1
            if match is None and self._find_form(line):
                assert self._prefix is not None
                match, time = re.compile(f"{self._prefix.pattern}(\\w+)\\((.*){_RESULT}").match, self._time
            if match is None or line.endswith(unfinished):
                groups = None
            elif len(line) <= _LONGEST_BY_PATTERN and line.count("= ") <= _MOST_ENDS:
                found = match(line)
                groups = found.groups() if found is not None else None
            else:
                groups = self._call_by_parts(line)
            if groups is None:
                yield from self._other(line)
                continue
            tid, at, name, args, result, error, seconds = groups
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
        for begun in self._pending.values():  # they have never returned
            yield Call(*begun, None, "", self.last - begun.began, True)
        self._pending.clear()

    def _call_by_parts(self, line: str) -> tuple[str | None, ...] | None:
        """Thread, time, name, arguments, result, error and duration of a line that is a whole call, however long."""
        prefix = self._prefix.match(line) if self._prefix is not None else None
        name = _NAME.match(line, prefix.end()) if prefix is not None else None
        if prefix is None or name is None:
            return None
        rest = _arguments_and_result(line[name.end() :].rstrip("\n"))
        return rest and (prefix[1], prefix[2], name[1], *rest)

    def _find_form(self, line: str) -> bool:
        """See, from the first line that has a form, how all of them begin."""
        for thread in _THREADS:
            for time, read in ((_SECONDS, float), (_OF_DAY, _TimeOfDay()), (_NO_TIME, float)):
                for place in _PLACES:
                    found = re.match(thread + time + place + _WORDS, line)
                    if found is not None:
                        self._prefix, self.dated = re.compile(thread + time + place), time is not _NO_TIME
                        self._time = _RelativeTime() if read is float and found[2] and not float(found[2]) else read
                        return True
        return False

    def _other(self, line: str) -> Iterator[Event]:
        """A line that is no call from its beginning to its end."""
        prefix = self._prefix.match(line) if self._prefix is not None else None
        if prefix is None:
            self._count_unread(line)
            return
        tid, time = int(prefix[1] or 0), self._time(prefix[2]) if prefix[2] else NAN
        text = line[prefix.end() :].rstrip("\n")
        if time == time:
            self.last = time
        if text.endswith("<unfinished ...>") and (begins := _NAME.match(text)):
            arguments = text[begins.end() : -len("<unfinished ...>")].rstrip(" ").removesuffix(",")
            self._pending[tid] = begun = CallEntry(tid, time, begins[1], arguments)
            yield begun
        elif text.startswith("<... "):
            yield from self._resumed(line, text, tid, time)
        elif text.startswith("+++ ") and text.endswith(" +++"):
            yield from self._ended(tid, time, text[4:-4])
        elif text.startswith("--- ") and text.endswith(" ---"):
            self.signals += 1
            yield Signal(tid, time, text[4:-4])
        else:
            self._count_unread(line)

    def _resumed(self, line: str, text: str, tid: int, time: float) -> Iterator[Event]:
        match = _RESUMES.match(text)
        parts = _arguments_and_result(text[match.end() :]) if match is not None else None
        if match is None or parts is None:
            self._count_unread(line)
            return
        name, (rest, result, error, seconds) = match[1], parts
        took = float(seconds) if seconds else NAN
        begun = self._pending.pop(tid, None)
        if begun is None or begun.name != name:  # it was entered before the log began
            begun = CallEntry(tid, time - took, name, "")
        elif took != took:
            took = time - begun.began
        rest = rest.removesuffix("<unfinished ...>").strip(" ")
        between = ", " if begun.args and rest and not rest.startswith((",", ")", "]", "}")) else ""
        value = None if result == "?" else int(result, 16 if result.startswith("0x") else 10)
        yield Call(tid, begun.began, name, begun.args + between + rest, value, error or "", took, True)

    def _ended(self, tid: int, time: float, how: str) -> Iterator[Event]:
        begun = self._pending.pop(tid, None)
        if begun is not None:
            yield Call(*begun, None, "", time - begun.began, True)
        successor = re.match(r"superseded by execve in pid (\d{1,10})", how)
        if successor is not None and int(successor[1]) in self._pending:  # it goes on under the number of the process
            self._pending[tid] = self._pending.pop(int(successor[1]))._replace(tid=tid)
        yield ThreadExit(tid, time, how)

    def _count_unread(self, line: str) -> None:
        if not line.endswith("\n"):
            self.torn = True
        elif line.strip() and not re.match(r"(?:\[pid +\d+\] +)?(?:/\S*/)?strace: |\[ Process PID=", line):
            self.unread += 1
            if len(self.examples) < _MOST_EXAMPLES:
                self.examples.append((self.lines, line[: _LONGEST_EXAMPLE + 2].rstrip("\n")))


def _arguments_and_result(text: str) -> tuple[str, str, str | None, str | None] | None:
    """(arguments, result, error, duration) behind the parenthesis that opens a call, as ``_RESULT`` has them, in linear time.

    Where arguments may end in very many places, only the last of these are looked at.
    """
    took = _DURATION.search(text, max(len(text) - 40, 0))
    assert took is not None  # it may be empty
    text = text[: took.start()]
    for end in [*_END_OF_ARGUMENTS.finditer(text)][: -_MOST_ENDS - 1 : -1]:
        value = _VALUE_THERE.match(text, end.end())
        if value is None:
            continue
        behind = text[value.end() :]
        if behind.startswith("<"):
            notes = {">": ">", ")": "> (", "/": "> /*"}.get(behind[-1])
            if notes is not None and notes in behind:
                return text[: end.start()], value[1], None, took[1]
        elif (rest := _BEHIND_VALUE.match(behind)) is not None:
            return text[: end.start()], value[1], rest[1], took[1]
    return None


class _RelativeTime:
    """Times of ``strace -r``: since the line before, the first of which is zero."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self, text: str) -> float:
        self._now += float(text)
        return self._now


class _TimeOfDay:
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
