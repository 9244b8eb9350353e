r"""Reads what ``strace`` writes: a stream of lines in, a stream of events out, in constant memory.
Checked with strace 6.1.

Any of its forms: with ``-o`` and ``-f`` (each line begins with a thread's number), on a terminal
(``[pid 7]``), without ``-f`` (no number); with ``-ttt``, ``-tt``, ``-t``, ``-r`` or no time; with
``-T`` or without; with ``-y``, ``-n``, ``-i`` or ``-Y``. A line is::

    7 1700000000.123456 open("a) = 1", O_RDONLY) = -1 ENOENT (No such file or directory) <0.000012>
    7 1700000000.123456 read(3,  <unfinished ...>
    7 1700000000.123999 <... read resumed>"ab", 2) = 2 <0.000543>
    7 1700000000.124000 --- SIGCHLD {si_signo=SIGCHLD, ...} ---
    7 1700000000.124100 +++ exited with 0 +++

A call's arguments end at the last ``) = `` that a whole result follows, since strings, paths of
descriptors and notes may hold one too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any, TextIO

from voirkit.errors import VoirkitError
from voirkit_instruments.syscalls.analyse_calls import (
    NAN,
    Call,
    CallEntry,
    Event,
    Signal,
    ThreadExit,
)

# How a line begins, thread and time. All lines of a log begin alike, but that a terminal's have no
# thread while there is one only. Each part is bounded, and no two that follow each other take the
# same characters: a line of any content is read in linear time.
_THREAD = r"(\d{1,10})(?:<[^\n]{0,64}?>)?"  # with the program's name behind it: -Y
_THREADS = (_THREAD + r" +(?! )", r"(?:\[pid +" + _THREAD + r"\] +(?! ))?")
_SECONDS = r" *(\d{1,12}\.\d{1,9}) "
_OF_DAY = r"(\d\d:\d\d:\d\d(?:\.\d{1,9})?) "
_NO_TIME = "()"
_PLACES = ("", r"(?:\[[ 0-9a-f?]+\] )+")  # numbers of calls (-n), addresses (-i)
_WORDS = r"(?=\w+\(|<\.\.\. |--- |\+\+\+ )"
# Behind the arguments: the result, the path of a descriptor (-y), the error, notes, the duration
# (-T).
_ENDS = r"\) *= "
_VALUE = r"(0x[0-9a-f]{1,16}|-?\d{1,20}|\?)"
_TOOK = r"(?: <(\d{1,12}\.\d{1,9})>)?$"
_RESULT = (
    f"{_ENDS}{_VALUE}"
    + r"(?:<[^\n]*?>)?(?: (E[A-Z0-9_]+))?(?: \([^\n]*?\)| /\*[^\n]*?\*/)?"
    + _TOOK
)
_NAME = re.compile(r"(\w+)\(")
_RESUMES = re.compile(r"<\.\.\. (\w+) resumed>")
_UNFINISHED_WORDS = "<unfinished ...>"
_UNFINISHED = f"{_UNFINISHED_WORDS}\n"
# the tracer's own words
_OF_STRACE = re.compile(r"(?:\[pid +\d+\] +)?(?:/\S*/)?strace: |\[ Process PID=")
# A pattern tries each end of the arguments with each end of a path and of a note. Longer lines, or
# with more ends, are read by parts: 40 kB of ``) = `` take 1.2 s by the pattern.
_LONGEST_BY_PATTERN = 512
_MOST_ENDS = 8
_END_OF_ARGUMENTS = re.compile(_ENDS)
_RESULT_VALUE = re.compile(_VALUE)
_DURATION = re.compile(_TOOK)
_BEHIND_VALUE = re.compile(r"(?: (E[A-Z0-9_]+))?(?: \([^\n]*\)| /\*[^\n]*\*/)?$")
# what begins the notes behind the path of a descriptor, by how they end
_NOTES_BY_END = {">": ">", ")": "> (", "/": "> /*"}
_DAY = 86400.0
_MOST_EXAMPLES = 3  # lines that are not understood
# characters: strace -s and -v make lines of some kilobytes, a thousand pieces of a writev too
_LONGEST_LINE = 1 << 20
_LONGEST_EXAMPLE = 200  # characters
_CUT = "…"  # what no line ends in that a tracer wrote: strace escapes all that is not ASCII
PACKED = (".gz", ".bz2", ".xz", ".zst")
OF_LTRACE = "= <void>"  # what no call of the kernel's returns
OF_PERF = re.compile(r"[ \d.?]+\([ \d.ms]*\): ")
HOW_TO_TRACE = "A log is made by: strace -f -ttt -T -o LOG python main.py"


class SyscallLogError(VoirkitError):
    """A log of system calls that cannot be read."""


def bounded_lines(text: TextIO) -> Iterator[str]:
    """Lines, each with its end, except the last, which may lack it: a file may hold gigabytes
    without the end of a line. A line longer than ``_LONGEST_LINE`` is read past, and its beginning
    stands for it, with ``_CUT`` before its end."""
    read = partial(text.readline, _LONGEST_LINE)
    for line in iter(read, ""):
        if len(line) < _LONGEST_LINE or line[-1] == "\n":
            yield line
            continue
        part = line
        while part and part[-1] != "\n":
            part = read()
        yield f"{line[:_LONGEST_EXAMPLE]}{_CUT}\n"


class StraceLog:
    """Reads a log; holds what is known of it besides its events, while it is read and after.

    Attributes:
        unread: How many were not understood. The tracer's own words (``strace: Process 7
            attached``) are none of them.
        dated: True if lines have times.
        timed: True if calls have durations (``-T``).
    """

    def __init__(self) -> None:
        self.lines = 0
        self.unread = 0
        self.signals = 0
        # the first of those, with their numbers, as far as they can be shown
        self.examples: list[tuple[int, str]] = []
        self.torn = False
        self.dated = False
        self.timed = False
        self.last = NAN  # the last time that was read; ``nan`` without any
        self._prefix: re.Pattern[str] | None = None
        self._time: Callable[[str], float] = float
        self._pending: dict[int, CallEntry] = {}

    def events(self, lines: Iterable[str]) -> Iterator[Event]:
        """Read lines, each with its end; the last may lack it."""
        new_call = tuple.__new__
        time: Callable[[str], float] = float
        match: Callable[[str], re.Match[str] | None] | None = None
        timed = False
        start = NAN
        for line in lines:
            self.lines += 1
            if match is None and self._find_form(line):
                assert self._prefix is not None
                match = re.compile(f"{self._prefix.pattern}(\\w+)\\((.*){_RESULT}").match
                time = self._time
            groups = self._parts_of_call(line, match)
            if groups is None:
                yield from self._other(line)
                continue
            tid, time_text, name, args, result, error, took = groups
            start = time(time_text) if time_text else NAN
            if took:
                timed = True
            elif timed and line[-1] != "\n":
                self.torn = True  # of a duration something is missing
                continue
            seconds = float(took) if took else NAN
            number = int(tid or 0)
            yield new_call(
                Call,
                (number, start, name, args, _value(result), error or "", seconds, False, 0.0),
            )
        self.timed = timed
        if start == start:
            self.last = max(start, self.last) if self.last == self.last else start
        for entry in self._pending.values():  # they have never returned
            yield Call(*entry, None, "", self.last - entry.start, True)
        self._pending.clear()

    def _parts_of_call(
        self, line: str, match: Callable[[str], re.Match[str] | None] | None
    ) -> tuple[Any, ...] | None:
        """Thread, time, name, arguments, result, error and duration of a line that is a whole call.
        ``match``: of the pattern of such lines, once that is known."""
        if match is None or line.endswith(_UNFINISHED):
            return None
        if len(line) <= _LONGEST_BY_PATTERN and line.count("= ") <= _MOST_ENDS:
            whole = match(line)
            return whole.groups() if whole is not None else None
        return self._parts_of_long_call(line)

    def _parts_of_long_call(self, line: str) -> tuple[Any, ...] | None:
        """The same of a line however long."""
        prefix = self._prefix.match(line) if self._prefix is not None else None
        if prefix is None:
            return None
        name = _NAME.match(line, prefix.end())
        if name is None:
            return None
        parts = _arguments_and_result(line[name.end() :].rstrip("\n"))
        if parts is None:
            return None
        return (prefix[1], prefix[2], name[1], *parts)

    def _find_form(self, line: str) -> bool:
        """See, from the first line that has a form, how all of them begin."""
        times: tuple[tuple[str, Callable[[str], float]], ...] = (
            (_SECONDS, float),
            (_OF_DAY, _TimeOfDay()),
            (_NO_TIME, float),
        )
        for thread, (time, read), place in product(_THREADS, times, _PLACES):
            prefix = thread + time + place
            match = re.match(prefix + _WORDS, line)
            if match is not None:
                self._prefix = re.compile(prefix)
                self.dated = time is not _NO_TIME
                # times since the line before begin with zero
                is_relative = read is float and match[2] and not float(match[2])
                self._time = _RelativeTime() if is_relative else read
                return True
        return False

    def _other(self, line: str) -> Iterator[Event]:
        """A line that is not a call from its beginning to its end."""
        prefix = self._prefix.match(line) if self._prefix is not None else None
        if prefix is None:
            self._count_unread(line)
            return
        tid = int(prefix[1] or 0)
        time = self._time(prefix[2]) if prefix[2] else NAN
        if time == time:
            self.last = time
        text = line[prefix.end() :].rstrip("\n")
        name = _NAME.match(text)
        if name is not None and text.endswith(_UNFINISHED_WORDS):
            args = text[name.end() : -len(_UNFINISHED_WORDS)].rstrip(" ").removesuffix(",")
            entry = CallEntry(tid, time, name[1], args)
            self._pending[tid] = entry
            yield entry
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
        name = match[1]
        args, result, error, took = parts
        seconds = float(took) if took else NAN
        entry = self._pending.pop(tid, None)
        if entry is None or entry.name != name:  # it was entered before the log began
            entry = CallEntry(tid, time - seconds, name, "")
        elif seconds != seconds:
            seconds = time - entry.start
        args = _joined_arguments(entry.args, args)
        yield Call(tid, entry.start, name, args, _value(result), error or "", seconds, True)

    def _ended(self, tid: int, time: float, how: str) -> Iterator[Event]:
        entry = self._pending.pop(tid, None)
        if entry is not None:
            yield Call(*entry, None, "", time - entry.start, True)
        successor = re.match(r"superseded by execve in pid (\d{1,10})", how)
        # it goes on under the number of the process
        if successor is not None and int(successor[1]) in self._pending:
            self._pending[tid] = self._pending.pop(int(successor[1]))._replace(tid=tid)
        yield ThreadExit(tid, time, how)

    def _count_unread(self, line: str) -> None:
        if not line.endswith("\n"):
            self.torn = True
        elif line.strip() and not _OF_STRACE.match(line):
            self.unread += 1
            if len(self.examples) < _MOST_EXAMPLES:
                self.examples.append((self.lines, line[: _LONGEST_EXAMPLE + 2].rstrip("\n")))


def _value(result: str) -> int | None:
    """The number that a call returned; None of one that did not."""
    if result == "?":
        return None
    return int(result, 16 if result.startswith("0x") else 10)


def _joined_arguments(first: str, second: str) -> str:
    """The arguments of a call that are printed in two lines."""
    second = second.removesuffix(_UNFINISHED_WORDS).strip(" ")
    if not first or not second or second.startswith((",", ")", "]", "}")):
        return first + second
    return f"{first}, {second}"


def _arguments_and_result(text: str) -> tuple[str, str, str | None, str | None] | None:
    """(arguments, result, error, duration) behind the parenthesis that opens a call, as ``_RESULT``
    has them, in linear time.

    Where arguments may end in very many places, only the last of these are looked at.
    """
    took = _DURATION.search(text, max(len(text) - 40, 0))
    assert took is not None  # it may be empty
    text = text[: took.start()]
    ends = list(_END_OF_ARGUMENTS.finditer(text))
    for end in reversed(ends[-_MOST_ENDS:]):
        value = _RESULT_VALUE.match(text, end.end())
        if value is None:
            continue
        args = text[: end.start()]
        behind = text[value.end() :]
        if behind.startswith("<"):
            notes = _NOTES_BY_END.get(behind[-1])
            if notes is not None and notes in behind:
                return args, value[1], None, took[1]
        else:
            error = _BEHIND_VALUE.match(behind)
            if error is not None:
                return args, value[1], error[1], took[1]
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
        self._last = 0.0
        self._midnight = 0.0

    def __call__(self, text: str) -> float:
        hours, minutes, seconds = text.split(":")
        now = self._midnight + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
        if now < self._last - _DAY / 2:  # threads' lines may stand a little out of order
            self._midnight += _DAY
            now += _DAY
        self._last = max(now, self._last)
        return now
