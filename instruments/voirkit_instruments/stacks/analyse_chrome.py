"""What ``py-spy record --format chrometrace --threads --idle`` wrote of one process: which stack each thread had from when to when.

An event says that a frame began or ended between two looks; what lies between the events of a thread is its stack. A thread that has ended
keeps its last stack to the end of the file: when it was there last has been noted beside it. Checked with py-spy 0.4.3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from voirkit_instruments.stacks.analyse_frames import Frame, Stacks
from voirkit_instruments.stacks.analyse_sampled import THREAD


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


def threads(path: str, stacks: Stacks) -> list[Thread]:
    """The threads in a file.

    Args:
        path: Of the file.
        stacks: Gets their stacks.

    Raises:
        OSError: It can not be read.
        ValueError: It is not what py-spy writes.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        events = json.load(file)
    found: dict[int, Thread] = {}
    for ident, edges in _by_ident(events).items():
        for began, ended, frames in _between(edges):
            root = THREAD.fullmatch(frames[0].name)
            if root is None:
                raise ValueError(f"a stack of thread {ident} does not begin with its thread")
            tid = int(root["tid"], 0)
            thread = found.setdefault(tid, Thread(tid, root["name"] or ""))
            thread.name = thread.name or root["name"] or ""  # it may be told late
            number = stacks.number(frames[1:])
            if thread.runs and thread.runs[-1][1:] == (began, number):
                began = thread.runs.pop()[0]
            thread.runs.append((began, ended, number))
    return list(found.values())


def _by_ident(events: Any) -> dict[int, list[Mapping[str, Any]]]:
    found: dict[int, list[Mapping[str, Any]]] = {}
    for event in events:
        if event["ph"] in "BE":
            found.setdefault(event["tid"], []).append(event)
    return found


def _between(edges: list[Mapping[str, Any]]) -> Iterator[tuple[int, int, list[Frame]]]:
    """(from, to, frames) of each stack; frames from the outermost."""
    open_: list[Frame] = []
    since = 0
    for edge in edges:
        at = int(edge["ts"])
        if at != since and open_:
            yield since, at, list(open_)
        since = at
        if edge["ph"] == "B":
            open_.append(Frame(edge["name"], edge["args"]["filename"], edge["args"].get("line") or 0))
        elif open_:
            open_.pop()
