"""The lines of a log, of which none takes more than a bound of memory: a file may hold gigabytes without the end of a line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TextIO

LONGEST = 1 << 20  # characters: strace -s and -v make lines of some kilobytes, a thousand pieces of a writev too
SHOWN = 200  # characters of what is not understood
CUT = "…"  # what no line ends in that a tracer wrote: strace escapes all that is not ASCII


def bounded(text: TextIO) -> Iterator[str]:
    """Lines, each with its end, but for the last, which may lack it.

    A line longer than ``LONGEST`` is read past, and its beginning stands for it, with ``CUT`` before its end.
    """
    read = partial(text.readline, LONGEST)
    for line in iter(read, ""):
        if len(line) < LONGEST or line[-1] == "\n":
            yield line
            continue
        rest = line
        while rest and rest[-1] != "\n":
            rest = read()
        yield f"{line[:SHOWN]}{CUT}\n"
