r"""Reader of ``strace`` logs, which turns lines into events in constant memory. Checked with strace
6.1.

It reads all forms of strace's output. Threads: with ``-o`` and ``-f`` (each line begins with a
thread id), on a terminal (``[pid 7]``), or without ``-f`` (no id). Times: with ``-ttt``, ``-tt``,
``-t``, ``-r`` or without. Also with ``-T``, ``-y``, ``-n``, ``-i`` or ``-Y``. Lines look like::

    7 1700000000.123456 open("a) = 1", O_RDONLY) = -1 ENOENT (No such file or directory) <0.000012>
    7 1700000000.123456 read(3,  <unfinished ...>
    7 1700000000.123999 <... read resumed>"ab", 2) = 2 <0.000543>
    7 1700000000.124000 --- SIGCHLD {si_signo=SIGCHLD, ...} ---
    7 1700000000.124100 +++ exited with 0 +++

A call's arguments end at the last ``) = `` that is followed by a complete result: strings, paths of
descriptors and notes may contain ``) = `` too.
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

# Patterns for the start of a line: thread and time. All lines of a log start alike, except that a
# terminal shows no thread while there is only one thread. Each part of a pattern is bounded, and no
# two adjacent parts match the same characters: any line is read in linear time.
_THREAD = r"(\d{1,10})(?:<[^\n]{0,64}?>)?"  # with -Y, the program's name follows the thread id
_THREADS = (_THREAD + r" +(?! )", r"(?:\[pid +" + _THREAD + r"\] +(?! ))?")
_SECONDS = r" *(\d{1,12}\.\d{1,9}) "
_OF_DAY = r"(\d\d:\d\d:\d\d(?:\.\d{1,9})?) "
_NO_TIME = "()"
_PLACES = ("", r"(?:\[[ 0-9a-f?]+\] )+")  # nothing; or call numbers (-n) and addresses (-i)
_WORDS = r"(?=\w+\(|<\.\.\. |--- |\+\+\+ )"
# After the arguments: the result, the path of a file descriptor (-y), the error, notes, the
# duration (-T).
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
# messages of strace itself
_OF_STRACE = re.compile(r"(?:\[pid +\d+\] +)?(?:/\S*/)?strace: |\[ Process PID=")
# ``_RESULT`` tries each possible end of the arguments with each end of a path and of a note, which
# takes 1.2 s for 40 kB of ``) = ``. So lines that exceed one of these limits, in length or in
# possible ends, are read part by part.
_LONGEST_BY_PATTERN = 512
_MOST_ENDS = 8
_END_OF_ARGUMENTS = re.compile(_ENDS)
_RESULT_VALUE = re.compile(_VALUE)
_DURATION = re.compile(_TOOK)
_BEHIND_VALUE = re.compile(r"(?: (E[A-Z0-9_]+))?(?: \([^\n]*\)| /\*[^\n]*\*/)?$")
# By the last character of a line's result: how the text after the path of a file descriptor begins
# (nothing, an explanation, or a comment).
_NOTES_BY_END = {">": ">", ")": "> (", "/": "> /*"}
_DAY = 86400.0
_MOST_EXAMPLES = 3  # limit of stored lines that were not understood
# in characters; strace -s and -v write lines of some kilobytes, and so does a writev of a thousand
# buffers
_LONGEST_LINE = 1 << 20
_LONGEST_EXAMPLE = 200  # characters
# marks a shortened line; no log contains this character, since strace escapes non-ASCII characters
_CUT = "…"
PACKED = (".gz", ".bz2", ".xz", ".zst")
OF_LTRACE = "= <void>"  # only in logs of ltrace: no system call returns this
OF_PERF = re.compile(r"[ \d.?]+\([ \d.ms]*\): ")
HOW_TO_TRACE = "A log is made by: strace -f -ttt -T -o LOG python main.py"


class SyscallLogError(VoirkitError):
    """A log of system calls that cannot be read."""


def bounded_lines(text: TextIO) -> Iterator[str]:
    """Yield lines with their line ends, which only the last may lack. A file may hold gigabytes
    without a line end. Of a line longer than ``_LONGEST_LINE``, only the beginning is yielded,
    followed by ``_CUT`` and a line end."""
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
    """Reader of an strace log, which counts lines and problems.

    Attributes:
        unread: Number of lines that were not understood. Messages of strace itself (``strace:
            Process 7 attached``) are excluded.
        dated: True if lines have times.
        timed: True if calls have durations (``-T``).
        torn: True if the last line is incomplete.
    """

    def __init__(self) -> None:
        self.lines = 0
        self.unread = 0
        self.signals = 0
        # (line number, beginning of the line) of the first lines that were not understood
        self.examples: list[tuple[int, str]] = []
        self.torn = False
        self.dated = False
        self.timed = False
        self.last = NAN  # last time that was read; ``nan`` if the log has no times
        self._prefix: re.Pattern[str] | None = None
        self._time: Callable[[str], float] = float
        self._pending: dict[int, CallEntry] = {}

    def events(self, lines: Iterable[str]) -> Iterator[Event]:
        """Yield the events of lines. Each line has its line end, which only the last may lack."""
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
                self.torn = True  # the log's last line is cut off before the duration
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
        for entry in self._pending.values():  # calls that never returned
            yield Call(*entry, None, "", self.last - entry.start, True)
        self._pending.clear()

    def _parts_of_call(
        self, line: str, match: Callable[[str], re.Match[str] | None] | None
    ) -> tuple[Any, ...] | None:
        """Return thread, time, name, arguments, result, error and duration of a line that is a
        complete call; None for any other line. ``match``: matches complete calls, once the log's
        form is known."""
        if match is None or line.endswith(_UNFINISHED):
            return None
        if len(line) <= _LONGEST_BY_PATTERN and line.count("= ") <= _MOST_ENDS:
            whole = match(line)
            return whole.groups() if whole is not None else None
        return self._parts_of_long_call(line)

    def _parts_of_long_call(self, line: str) -> tuple[Any, ...] | None:
        """Return the parts of a complete call like ``_parts_of_call``, for a line of any length."""
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
        """Find out from a line how all lines of the log begin. Return True if the line has a known
        form."""
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
                # relative times (-r) start with zero, unlike times since 1970
                is_relative = read is float and match[2] and not float(match[2])
                self._time = _RelativeTime() if is_relative else read
                return True
        return False

    def _other(self, line: str) -> Iterator[Event]:
        """Yield the events of a line that is not a complete call."""
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
        if entry is None or entry.name != name:  # the call was entered before the log began
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
        # the thread that called execve now has the id of its process, and so has its open call
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
    """Return the number that a call returned; None if the call did not return."""
    if result == "?":
        return None
    return int(result, 16 if result.startswith("0x") else 10)


def _joined_arguments(first: str, second: str) -> str:
    """Return the arguments of a call that are printed in two lines."""
    second = second.removesuffix(_UNFINISHED_WORDS).strip(" ")
    if not first or not second or second.startswith((",", ")", "]", "}")):
        return first + second
    return f"{first}, {second}"


def _arguments_and_result(text: str) -> tuple[str, str, str | None, str | None] | None:
    """Return (arguments, result, error, duration) from the text after a call's opening parenthesis,
    in linear time; see ``_RESULT``. None if the text is not a complete call.

    If the arguments may end in very many places, only the last few are tried.
    """
    took = _DURATION.search(text, max(len(text) - 40, 0))
    assert took is not None  # the pattern always matches, perhaps an empty string
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
    """Converter for times of ``strace -r``, which count from the previous line and start with
    zero."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self, text: str) -> float:
        self._now += float(text)
        return self._now


class _TimeOfDay:
    """Converter for times of ``strace -t`` and ``-tt``. Returns seconds since the midnight before
    the first time."""

    def __init__(self) -> None:
        self._last = 0.0
        self._midnight = 0.0

    def __call__(self, text: str) -> float:
        hours, minutes, seconds = text.split(":")
        now = self._midnight + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
        # A new day has begun. A small step back is no new day: lines of threads may be slightly out
        # of order.
        if now < self._last - _DAY / 2:
            self._midnight += _DAY
            now += _DAY
        self._last = max(now, self._last)
        return now
