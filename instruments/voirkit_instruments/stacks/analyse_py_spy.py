"""Stacks that ``py-spy record --native --full-filenames --format raw`` wrote: a line for each, its frames from the outermost, and a count.

They have no times, so that an operation is known by the class or function that is on the stack, of those whose names the trace has;
a phase by torch's own functions. On Python 3.10 it writes no classes: they are looked up in the source. Checked with py-spy 0.4.3.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from voirkit_instruments.stacks.analyse_native_join import ELSEWHERE
from voirkit_instruments.stacks.analyse_perf import UNKNOWN, split
from voirkit_instruments.stacks.analyse_spans import COLLATE, ITEM, OPERATION, PHASE, Name

EVENT = "stacks"
_LINE = re.compile(r"(.*):(\d+)")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_LOADER = "Loader"
_READS = ("pil_loader", "accimage_loader", "default_loader")
_CALLS = "torch/nn/modules/module.py"
# (end of the file's path, function): the phase that it is the outermost function of
_PHASES = (
    ("torch/_tensor.py", "backward", "backward"),
    ("torch/autograd/__init__.py", "backward", "backward"),
    (_CALLS, "_call_impl", "forward"),
    ("torch/utils/data/dataloader.py", "__next__", "wait"),
    ("torch/utils/data/dataloader.py", "__iter__", "wait"),
)
_FETCH = "torch/utils/data/_utils/fetch.py"


class Frame(NamedTuple):
    """One function on a stack.

    Attributes:
        name: With its class, if it is Python's and that is known (``Compose.__call__``); empty if the library has none for it.
        file: Path of the source or library.
        line: Of the source; 0 of a library.
    """

    name: str
    file: str
    line: int

    @property
    def function(self) -> str:
        """The name without what it is inside of."""
        return self.name.rpartition(".")[2] if self.is_python else self.name

    @property
    def is_python(self) -> bool:
        """Whether it is a function of Python's."""
        return self.file.endswith(".py") or self.file.startswith("<")

    @property
    def owner(self) -> str:
        """The class, if it is a method of one."""
        parts = self.name.split(".")
        if len(parts) > 1:
            return parts[-2] if parts[-2] != "<locals>" else ""
        return _class_at(self.file, self.line) if self.is_python else ""


def stack(line: str) -> tuple[list[Frame], int] | None:
    """(frames from the outermost, how often) of a line; None if it is none of a stack."""
    text, _, count = line.rstrip("\n").rpartition(" ")
    if not count.isdigit() or not text:
        return None
    return [frame for part in text.split(";") if (frame := _frame(part)) is not None], int(count)


def _frame(text: str) -> Frame | None:
    if not text.endswith(")"):
        return None  # process 30201:"main.py"
    name, place = split(text)
    found = _LINE.fullmatch(place)
    file, line = (found[1], int(found[2])) if found else (place, 0)
    return Frame("" if _ADDRESS.fullmatch(name) else name, file, line)


@lru_cache(maxsize=10_000)
def _class_at(path: str, line: int) -> str:
    """The innermost class around a line of a source; empty if there is none, or no source."""
    found = ""
    for first, last, name in _classes(path):
        if first <= line <= last:
            found = name
    return found


@lru_cache(maxsize=500)
def _classes(path: str) -> list[tuple[int, int, str]]:
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, ValueError, SyntaxError):
        return []
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return sorted((node.lineno, node.end_lineno or node.lineno, node.name) for node in nodes)


def owners(frames: Iterable[Frame], operations: Collection[str]) -> list[Name]:
    """The operation and the phase that a stack is in, the innermost of each.

    Args:
        frames: From the outermost.
        operations: The names of those that the run's loaders have.
    """
    operation = phase = outer = ""
    fetching = False
    for frame in frames:
        if not frame.is_python:
            continue
        fetching |= frame.file.endswith(_FETCH)
        here = _operation(frame, operations, fetching)
        if here and frame.function == "forward":
            phase = outer  # a transform that is a module: to call it is no forward pass
        operation = here or operation
        if not frame.file.endswith(_CALLS):
            outer = phase
        phase = _phase(frame) or phase
    return [name for name in ((OPERATION, operation), (PHASE, phase)) if name[1]]


def _operation(frame: Frame, operations: Collection[str], fetching: bool) -> str:
    function = frame.function
    for name in (frame.owner, function):
        if name in operations:
            return name
    if function in _READS and _LOADER in operations:
        return _LOADER
    if fetching and "collate" in function and COLLATE in operations:
        return COLLATE
    if fetching and function == "__getitem__":
        return next((name for name in operations if name.endswith(ITEM)), "")
    return ""


def _phase(frame: Frame) -> str:
    function = frame.function
    for path, name, phase in _PHASES:
        if function == name and frame.file.endswith(path):
            return phase
    if function in ("step", "zero_grad") and "/torch/optim/" in frame.file:
        return "optimizer" if function == "step" else "zero_grad"
    return ""


def counted(lines: Iterable[str], operations: Collection[str]) -> dict[str, Any]:
    """``samples``, ``unread`` and ``rows`` of stacks, in the form of what perf's samples come to."""
    rows: dict[Name, dict[tuple[str, str], int]] = {}
    samples = unread = 0
    for line in lines:
        read = stack(line)
        if read is None or not read[0]:
            unread += bool(line.strip())
            continue
        frames, n = read
        samples += n
        leaf = frames[-1]
        code = leaf.name, leaf.file.rpartition("/")[2] or UNKNOWN
        for name in owners(frames, operations) or [(ELSEWHERE, "")]:
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
