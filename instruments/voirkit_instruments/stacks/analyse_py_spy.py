"""Reads what py-spy wrote, and the sampler in the program. Checked with py-spy 0.4.3."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit_instruments.stacks.analyse_frames import Frame, Stacks, operation_and_phase, parse_frame
from voirkit_instruments.stacks.analyse_perf import UNKNOWN
from voirkit_instruments.stacks.analyse_spans import ELSEWHERE, Name

EVENT = "stacks"  # of counts without times
_THREAD = re.compile(r"thread \((?P<tid>\d+|0x[0-9A-Fa-f]+)\)(?:: (?P<name>.*))?")


@dataclass
class Thread:
    """What one thread did.

    Attributes:
        tid: Its native id.
        name: As Python calls it.
        runs: (from, to, number of the stack), in microseconds of py-spy's clock, ascending.
    """

    tid: int
    name: str
    runs: list[tuple[int, int, int]] = field(default_factory=list)


def read_chrome_trace(path: str, stacks: Stacks) -> list[Thread]:
    """The threads in a file of ``py-spy record --format chrometrace --threads --idle``.

    An event says that a frame began or ended between two samples; what lies between the events of a thread is its stack. A thread that has
    ended keeps its last stack to the end of the file: when it existed last has been noted beside it.

    Args:
        path: Of the file.
        stacks: Gets their stacks.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not what py-spy writes.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        events = json.load(file)
    by_ident: dict[int, list[Mapping[str, Any]]] = {}
    for event in events:
        if event["ph"] in "BE":
            by_ident.setdefault(event["tid"], []).append(event)
    threads: dict[int, Thread] = {}
    for ident, edges in by_ident.items():
        for began, ended, frames in _between(edges):
            root = _THREAD.fullmatch(frames[0].name)
            if root is None:
                raise ValueError(f"a stack of thread {ident} does not begin with its thread")
            tid = int(root["tid"], 0)
            thread = threads.setdefault(tid, Thread(tid, root["name"] or ""))
            thread.name = thread.name or root["name"] or ""  # it may come late
            number = stacks.number(frames[1:])
            if thread.runs and thread.runs[-1][1:] == (began, number):
                began = thread.runs.pop()[0]
            thread.runs.append((began, ended, number))
    return list(threads.values())


def _between(edges: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int, list[Frame]]]:
    """(from, to, frames) of each stack; frames from the outermost."""
    stack: list[Frame] = []
    since = 0
    for edge in edges:
        now = int(edge["ts"])
        if now != since and stack:
            yield since, now, list(stack)
        since = now
        if edge["ph"] == "B":
            stack.append(Frame(edge["name"], edge["args"]["filename"], edge["args"].get("line") or 0))
        elif stack:
            stack.pop()


def read_sampler(lines: Iterable[str], stacks: Stacks) -> dict[int, tuple[str, Array, Array]]:
    """What the sampler in the program wrote: by thread its name, when it was seen (nanoseconds) and with which stack.

    A sample that waited for the GIL shows who kept it: it counts for those that it came too late for, if the thread existed before. Counted
    once, what sleeps would look like most of a program that computes.
    """
    frames: list[Frame] = []
    numbers: list[int] = []
    names: dict[int, str] = {}
    samples: dict[int, tuple[list[int], list[int]]] = {}
    before: set[int] = set()
    for line in lines:
        if not line.endswith("\n"):
            break  # the program was killed as it was written
        entry: dict[str, Any] = json.loads(line)
        if "t" in entry:
            for tid, stack in entry["seen"]:
                times, which = samples.setdefault(tid, ([], []))
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
        for tid, (times, which) in samples.items()
    }  # fmt: skip


def read_raw(lines: Iterable[str], stacks: Stacks) -> Iterator[tuple[int, str, int, int]]:
    """(thread, its name, stack, how often) of ``py-spy record --format raw --threads --full-filenames``, which has no times."""
    for line in lines:
        text, _, count = line.rstrip("\n").rpartition(" ")
        root, *rest = text.split(";")
        thread = _THREAD.fullmatch(root)
        if thread is not None and count.isdigit():
            yield int(thread["tid"], 0), thread["name"] or "", stacks.number([parse_frame(part) for part in rest]), int(count)


def parse_native_stack(line: str) -> tuple[list[Frame], int] | None:
    """(frames from the outermost, how often) of a line of ``py-spy record --native --format raw``; None if it is none of a stack."""
    text, _, count = line.rstrip("\n").rpartition(" ")
    if not count.isdigit() or not text:
        return None
    frames = [parse_frame(part) for part in text.split(";")]
    return [frame for frame in frames if frame.file], int(count)  # without `process 30201:"main.py"`


def count_native_stacks(lines: Iterable[str], operations: Collection[str]) -> dict[str, Any]:
    """``samples``, ``unread`` and ``rows`` of stacks, in the form of the counts of perf's samples.

    They have no times: an operation is known by the class or function that is on the stack, of those whose names the trace has; a phase by
    torch's own functions. On Python 3.10 py-spy writes no classes: they are looked up in the source.
    """
    rows: dict[Name, dict[tuple[str, str], int]] = {}
    samples = unread = 0
    for line in lines:
        parsed = parse_native_stack(line)
        if parsed is None or not parsed[0]:
            unread += bool(line.strip())
            continue
        frames, n = parsed
        samples += n
        leaf = frames[-1]
        code = "" if leaf.is_unnamed else leaf.name, leaf.file.rpartition("/")[2] or UNKNOWN
        for name in operation_and_phase(frames, operations) or [(ELSEWHERE, "")]:
            codes = rows.setdefault(name, {})
            codes[code] = codes.get(code, 0) + n
    return {
        "samples": samples,
        "unread": unread,
        "rows": [
            {"group": group, "name": name, "elapsed_ns": None, "n": None, "code": [_entry(*code, n) for code, n in sorted(codes.items())]}
            for (group, name), codes in sorted(rows.items())
        ],
    }


def _entry(function: str, library: str, n: int) -> dict[str, Any]:
    return {"function": function or None, "library": library, "kernel": False, "other_threads": False, "events": {EVENT: [n, n]}}
