"""What the sampler in the program wrote, and py-spy's stacks without times (``--gil``): lines, of which a torn one is left out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit_instruments.stacks.analyse_frames import Frame, Stacks
from voirkit_instruments.stacks.analyse_perf import split

_LINE = re.compile(r"(.*):(\d+)")
THREAD = re.compile(r"thread \((?P<tid>\d+|0x[0-9A-Fa-f]+)\)(?:: (?P<name>.*))?")


def samples(lines: Iterable[str], stacks: Stacks) -> dict[int, tuple[str, Array, Array]]:
    """By thread its name, when it was seen (nanoseconds) and with which stack.

    A look that waited for the GIL sees who kept it: it counts for those that it came too late for, if the thread was there before. Counted
    once, what sleeps would look like most of a program that computes.
    """
    frames: list[Frame] = []
    numbers: list[int] = []
    names: dict[int, str] = {}
    seen: dict[int, tuple[list[int], list[int]]] = {}
    before: set[int] = set()
    for line in lines:
        if not line.endswith("\n"):
            break  # the program was killed as it was written
        entry: dict[str, Any] = json.loads(line)
        if "t" in entry:
            for tid, stack in entry["seen"]:
                times, which = seen.setdefault(tid, ([], []))
                n = 1 + (entry.get("waited", 0) if tid in before else 0)
                times += [entry["t"]] * n
                which += [numbers[stack]] * n
            before = {tid for tid, _ in entry["seen"]}
        elif "frame" in entry:
            frames.append(Frame(*entry["frame"]))
        elif "stack" in entry:
            numbers.append(stacks.number([frames[at] for at in entry["stack"]]))
        else:
            names[entry["thread"]] = entry["name"]
    return {
        tid: (names.get(tid, ""), np.array(times, dtype=np.int64), np.array(which, dtype=np.int64))
        for tid, (times, which) in seen.items()
    }  # fmt: skip


def counted(lines: Iterable[str], stacks: Stacks) -> Iterator[tuple[int, str, int, int]]:
    """(thread, its name, stack, how often) of ``py-spy record --format raw --threads --full-filenames``."""
    for line in lines:
        text, _, count = line.rstrip("\n").rpartition(" ")
        root, *rest = text.split(";")
        thread = THREAD.fullmatch(root)
        if thread is None or not count.isdigit():
            continue
        yield int(thread["tid"], 0), thread["name"] or "", stacks.number([_frame(part) for part in rest]), int(count)


def _frame(text: str) -> Frame:
    if not text.endswith(")"):
        return Frame(text, "")
    name, place = split(text)
    found = _LINE.fullmatch(place)
    return Frame(name, found[1], int(found[2])) if found else Frame(name, place)
