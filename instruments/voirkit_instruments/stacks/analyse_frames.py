"""Frames and stacks, each kept once; what a stack says of the phase and the process that it is of."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import voirkit
from voirkit_instruments.stacks import analyse_py_spy as spy_stacks
from voirkit_instruments.stacks.analyse_spans import PHASE

# Numbers of what is voirkit's own, and of that as py-spy is waited for, and as the run has just ended: when these were is known exactly.
OWN, ATTACHING, STOPPING = -1, -2, -3
OTHER = "other"  # of the process that trains: in no phase; OUTSIDE is outside all of training
FETCH, BETWEEN, CHILD = "fetch", "between fetches", "child"  # of loader workers, and of processes that are neither
MAIN = ""  # the thread that trains, or loads
_OWN = {("attach", "stacks/record_py_spy.py"): ATTACHING, ("stop", "stacks/record.py"): STOPPING}
_RUNS_SCRIPT = ("/voirkit/runner/script.py", "/voirkit/script.py")  # now, and in runs recorded before it moved
_COMMAND = "/voirkit/cli.py"
_IMPORTING = "<frozen importlib"
_WORKER = "torch/utils/data/_utils/worker.py"
_FETCH = "torch/utils/data/_utils/fetch.py"
_PACKAGES = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+)/")
_VOIRKIT = (os.path.dirname(os.path.abspath(str(voirkit.__file__))) + os.sep, "/voirkit_instruments/")
UNNAMED = "(unnamed)"  # a library without names: each address would be a function of its own
_ADDRESS = re.compile(r"0x[0-9a-f]+")
Stack = tuple[int, ...]


class Frame(NamedTuple):
    """A function.

    Attributes:
        name: With its class, if that is known.
        file: Its source, or library.
        line: That was being executed, of the program's own functions; 0 if it is not known, and of all others.
    """

    name: str
    file: str
    line: int = 0


@dataclass
class Stacks:
    """Frames and stacks by number."""

    frames: dict[Frame, int] = field(default_factory=dict)
    stacks: dict[Stack, int] = field(default_factory=dict)
    _by_number: list[Sequence[Frame]] = field(default_factory=list)

    def number(self, frames: Sequence[Frame]) -> int:
        """The number of a stack, without what runs the script; its frames from the outermost."""
        of_script = of_program(frames)
        if of_script is None:
            own = (_OWN.get((name.rpartition(".")[2], "/".join(file.rsplit("/", 2)[-2:]))) for name, file, _ in frames)
            return next((number for number in own if number), OWN)
        of_script = [_known(frame) for frame in without_importing(of_script)]
        stack = tuple(self.frames.setdefault(frame, len(self.frames)) for frame in of_script)
        number = self.stacks.setdefault(stack, len(self.stacks))
        if number == len(self._by_number):
            self._by_number.append(of_script)
        return number

    def of(self, number: int) -> Sequence[Frame]:
        """The frames of a stack."""
        return self._by_number[number] if number > OWN else ()


def of_program(frames: Sequence[Frame]) -> Sequence[Frame] | None:
    """A stack without what runs the script, or, of a worker that was forked, what its parent was doing; None of voirkit's own work."""
    for at in range(len(frames) - 1, -1, -1):
        name, file, _ = frames[at]
        if file.endswith(_WORKER) and name == "_worker_loop":
            return frames[at:]
        if file.endswith(_RUNS_SCRIPT):
            return frames[at + 1 :]
    return None if any(frame.file.endswith(_COMMAND) for frame in frames) else frames


def without_importing(frames: Sequence[Frame]) -> Sequence[Frame]:
    """A stack without the import system's functions between a module and what imports it, as Python's own tracebacks are."""
    last = len(frames)
    while last and frames[last - 1].file.startswith(_IMPORTING):
        last -= 1  # it is at work itself
    return [frame for frame in frames[:last] if not frame.file.startswith(_IMPORTING)] + list(frames[last:])


def of_worker(frames: Sequence[Frame]) -> str | None:
    """Of a stack without what is around it: the phase of a loader worker; None if it is of none."""
    if not frames or not frames[0].file.endswith(_WORKER):
        return None
    return FETCH if any(frame.file.endswith(_FETCH) for frame in frames) else BETWEEN


def phase_by_frames(frames: Sequence[Frame]) -> str:
    """The phase that torch's own functions on a stack say; empty if they say none."""
    found = dict(spy_stacks.owners([spy_stacks.Frame(frame.name, frame.file, 0) for frame in frames], ()))
    return found.get(PHASE, "")


@lru_cache(maxsize=100_000)
def _known(frame: Frame) -> Frame:
    """A frame with what is told of it."""
    if _ADDRESS.fullmatch(frame.name):
        return Frame(UNNAMED, frame.file)
    return frame if is_program(frame.file) else Frame(frame.name, frame.file)


@lru_cache(maxsize=10_000)
def is_program(file: str) -> bool:
    """Whether a source is the program's own: of no installed package, and not Python's."""
    if _PACKAGES.match(f"/{file}") or not file.endswith((".py", os.sep)):
        return False
    return not (file.startswith(_VOIRKIT[0]) or _VOIRKIT[1] in file)


@lru_cache(maxsize=100_000)
def label(frame: Frame, with_line: bool = True) -> str:
    """What a frame is called in a graph: its function, the end of its file's path, and the line, of the program's own."""
    name, file, line = frame
    return f"{name} ({place(file, line if with_line else 0)})" if file else name


def place(file: str, line: int) -> str:
    """Where in the sources: ``package/file.py:12``."""
    return f"{short(file)}:{line}" if line else short(file)


def short(file: str) -> str:
    """A path without the folder that packages are in; of a file that is in none, the last two parts."""
    found = _PACKAGES.match(file)
    return file[found.end() :] if found else "/".join(file.rsplit("/", 2)[-2:])
