"""What a sample was taken in: the frames of a stack, and the phase, operation and process that they show; what the run recorded then."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from voirkit.analysis.nesting import NONE, Array, exclusive_ns, innermost
from voirkit.analysis.steps import COMMUNICATION, MEANING, PARTS
from voirkit.runs.opened import Run
from voirkit.runs.parquet import quoted
from voirkit.runs.summary import PHASES
from voirkit_instruments.places import Owner, file_owner

OPERATION, PHASE, ELSEWHERE = "operation", "phase", "elsewhere"
COLLATE, ITEM = "collate_fn", ".__getitem__"
_ARGS = "CASE WHEN s.kind = 'loader' AND s.category = 'data' AND s.name IN ('item', 'inner', 'items') THEN coalesce(s.args, '') ELSE '' END"
_NAMED = f"spans s JOIN native_names n ON n.kind = s.kind AND n.category = s.category AND n.name = s.name AND n.args = {_ARGS}"
_MEANINGS = (*PHASES[:-1], *PARTS)
ANNOTATION = "span"  # records of ``voirkit.ai`` and of DFTracer's names
_STAGES, _BODY = ("pipeline", "ai_root"), ".block"
Name = tuple[str, str]  # (operation or phase, its name)
Thread = tuple[int, int]  # pid, tid


def name_of(kind: str, category: str, name: str, args: str = "") -> Name | None:
    """Of a record: the operation or phase that it is, or None. What a dataset does itself and collation are named as in ``loader``.

    Annotations are operations too, under their category and name; but not stages of a run and the bodies of loops, which hold all else.
    """
    if kind == "loader":
        if category == "operation":
            return OPERATION, name
        if (category, name) == ("data", "collate"):
            return OPERATION, COLLATE
        if category == "data" and name in ("item", "inner", "items"):
            return OPERATION, str(json.loads(args or "{}").get("source") or f"dataset{ITEM}")
        return None
    if kind == ANNOTATION:
        if category in _STAGES or name.endswith(_BODY):
            return None
        has_category = name == category or name.startswith(f"{category}.")
        return OPERATION, name if has_category else f"{category}.{name}"
    if kind == "phase":
        meaning = COMMUNICATION if category == "comm" else MEANING.get((category, name))
        return None if meaning is None else (PHASE, _MEANINGS[meaning])
    return None


@dataclass(frozen=True)
class Spans:
    """Spans of one group (operations, or phases) of one thread, ascending by start, the longer of two first; arrays of shape (n,)."""

    start_ns: Array
    end_ns: Array
    name: Array

    def owners(self, at_ns: Array) -> Any:
        """The name of the innermost span that each instant lies in; -1 where there is none."""
        at = innermost(self.start_ns, self.end_ns, at_ns)
        return np.where(at == NONE, NONE, self.name[at])

    def elapsed_ns(self, from_ns: int, to_ns: int, names: int) -> Any:
        """By name: how long, between two instants, it was the innermost. Shape (names,)."""
        start = np.clip(self.start_ns, from_ns, to_ns)
        own = exclusive_ns(start, np.clip(self.end_ns, from_ns, to_ns) - start)
        return np.bincount(self.name, weights=own, minlength=names).astype(np.int64)

    def starts(self, from_ns: int, to_ns: int, names: int) -> Any:
        """By name: how many began between two instants, without those inside one of the same name. Shape (names,)."""
        counts = np.zeros(names, dtype=np.int64)
        for name in np.unique(self.name).tolist():
            own = self.name == name
            start, reached = self.start_ns[own], np.maximum.accumulate(self.end_ns[own])
            outermost = np.concatenate(([True], start[1:] >= reached[:-1]))
            counts[name] = np.count_nonzero(outermost & (start >= from_ns) & (start < to_ns))
        return counts


class RecordedSpans:
    """The operations and phases of one rank's processes on one host."""

    def __init__(self, run: Run, rank: int, host: str) -> None:
        self._connection = run.connection()
        self._where = f"rank = {int(rank)} AND host = {quoted(host)}"
        kinds = f"kind IN ('loader', 'phase', '{ANNOTATION}')"
        chosen = f"SELECT DISTINCT kind, category, name, {_ARGS} AS args FROM spans s WHERE {kinds} AND {self._where}"
        rows = self._connection.execute(f"{chosen} ORDER BY ALL").fetchall()
        known = [(row, name) for row in rows if (name := name_of(*row)) is not None]
        self.names: list[Name] = sorted({name for _, name in known})
        codes = {name: i for i, name in enumerate(self.names)}
        columns = "kind VARCHAR, category VARCHAR, name VARCHAR, args VARCHAR, code BIGINT"
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE native_names ({columns})")
        if known:
            self._connection.executemany("INSERT INTO native_names VALUES (?, ?, ?, ?, ?)", [(*row, codes[name]) for row, name in known])
        self._is_phase = np.array([group == PHASE for group, _ in self.names], dtype=bool)
        found = self._connection.execute(
            f"SELECT s.kind, pid, tid, count(*) AS n FROM {_NAMED} WHERE {self._where} GROUP BY ALL ORDER BY n, tid DESC"
        ).fetchall()
        # by group and process: the thread with most of them, the one that trains, or loads
        self.leading: dict[str, dict[int, int]] = {OPERATION: {}, PHASE: {}}
        for kind, pid, tid, _ in found:
            self.leading[PHASE if kind == "phase" else OPERATION][pid] = tid
        pids = self._connection.execute(f"SELECT DISTINCT pid FROM spans WHERE {self._where}").fetchall()
        self.processes = {pid for (pid,) in pids}

    def between(self, from_ns: int, to_ns: int) -> dict[str, dict[Thread, Spans]]:
        """By group and thread: the spans of which a part lies between two instants."""
        columns = self._connection.execute(
            "SELECT start_ns, start_ns + duration_ns AS end_ns, pid, tid, code "
            f"FROM {_NAMED} WHERE {self._where} AND start_ns <= {int(to_ns)} "
            f"AND start_ns + duration_ns >= {int(from_ns)} ORDER BY pid, tid, start_ns, end_ns DESC"
        ).fetchnumpy()
        start, end, pid, tid, code = (np.asarray(columns[key]) for key in ("start_ns", "end_ns", "pid", "tid", "code"))
        found: dict[str, dict[Thread, Spans]] = {OPERATION: {}, PHASE: {}}
        for thread, part in _parts(pid, tid):
            phases = self._is_phase[code[part]]
            for group, chosen in ((OPERATION, ~phases), (PHASE, phases)):
                if chosen.any():
                    found[group][thread] = Spans(start[part][chosen], end[part][chosen], code[part][chosen])
        return found

    def owners(self, group: str, spans: Mapping[Thread, Spans], pid: int, tid: int, at_ns: Array) -> tuple[Array, Array]:
        """What a thread was in at some instants; where it was in nothing, what the thread was in that trains, or loads, in its process.

        Args:
            group: ``OPERATION`` or ``PHASE``.
            spans: Of that group, around that time.
            at_ns: Instants. Shape (n,).

        Returns:
            The numbers of the names, ``NONE`` where there is nothing, and whether each is of that other thread.
        """
        empty = np.full(len(at_ns), NONE, dtype=np.int64)
        own = spans[pid, tid].owners(at_ns) if (pid, tid) in spans else empty
        leading = self.leading[group].get(pid, tid)
        if leading == tid or (pid, leading) not in spans:
            return own, empty != NONE
        theirs = spans[pid, leading].owners(at_ns)
        return np.where(own == NONE, theirs, own), own == NONE

    def reach(self, pid: int, tid: int) -> tuple[int, int]:
        """From when to when a thread had phases."""
        found = self._connection.execute(
            f"SELECT min(start_ns), max(start_ns + duration_ns) FROM {_NAMED} WHERE {self._where} AND pid = ? AND tid = ? "
            "AND s.kind = 'phase'",
            [pid, tid],
        ).fetchall()[0]
        return int(found[0] or 0), int(found[1] or 0)


def _parts(pid: Array, tid: Array) -> Iterator[tuple[Thread, slice]]:
    """By thread, the rows that are its own; they lie together."""
    if not len(pid):
        return
    edges = [0, *(np.flatnonzero((np.diff(pid) != 0) | (np.diff(tid) != 0)) + 1).tolist(), len(pid)]
    for begin, end in pairwise(edges):
        yield (int(pid[begin]), int(tid[begin])), slice(begin, end)


# Numbers of voirkit's own stacks, and of those as py-spy is waited for, and as the run has just ended: when these were is known exactly.
OWN, ATTACHING, STOPPING = -1, -2, -3
_OWN = {("attach", "stacks/record_py_spy.py"): ATTACHING, ("stop", "stacks/record.py"): STOPPING}
_RUNS_SCRIPT = ("/voirkit/runner/script.py", "/voirkit/script.py")  # now, and in runs recorded before it moved
_COMMAND = "/voirkit/cli.py"

OTHER = "other"  # of the training process: in no phase; OUTSIDE is outside all of training
FETCH, BETWEEN, CHILD = "fetch", "between fetches", "child"  # of loader workers, and of processes that are neither
MAIN = ""  # the thread that trains, or loads
UNNAMED = "(unnamed)"  # a library without names: each address would be a function of its own
_IMPORTING = "<frozen importlib"
_WORKER = "torch/utils/data/_utils/worker.py"
_FETCH = "torch/utils/data/_utils/fetch.py"
_MODULE_CALL = "torch/nn/modules/module.py"
_LOADER = "Loader"
_LOADING_FUNCTIONS = ("pil_loader", "accimage_loader", "default_loader")
# (end of the file's path, function): the phase that it is the outermost function of
_PHASES = (
    ("torch/_tensor.py", "backward", "backward"),
    ("torch/autograd/__init__.py", "backward", "backward"),
    (_MODULE_CALL, "_call_impl", "forward"),
    ("torch/utils/data/dataloader.py", "__next__", "wait"),
    ("torch/utils/data/dataloader.py", "__iter__", "wait"),
)
_PACKAGES = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+)/")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_PLACE = re.compile(r"(.*):(\d+)")
Stack = tuple[int, ...]


class Frame(NamedTuple):
    """A function on a stack."""

    name: str  # with its class, if that is known (``Compose.__call__``); an address if the library has none for it
    file: str  # its source, or library
    line: int = 0  # that was being executed; 0 if it is not known

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
        return _class_around(self.file, self.line) if self.is_python else ""

    @property
    def is_unnamed(self) -> bool:
        """Whether its library has no name for it."""
        return _ADDRESS.fullmatch(self.name) is not None


def parse_frame(text: str) -> Frame:
    """The frame that ``function (file:12)`` names."""
    if not text.endswith(")"):
        return Frame(text, "")
    name, place = split_place(text)
    match = _PLACE.fullmatch(place)
    return Frame(name, match[1], int(match[2])) if match else Frame(name, place)


def split_place(text: str) -> tuple[str, str]:
    """(symbol, file) from ``symbol (file)``. Both may hold blanks and parentheses: ``(/memfd:x (deleted))``."""
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if not depth:
            break
    else:
        at = max(text.rfind("("), 0)
    return text[:at].strip(), text[at + 1 : -1]


@lru_cache(maxsize=10_000)
def _class_around(path: str, line: int) -> str:
    """The innermost class around a line of a source; empty if there is none, or no source."""
    return next((name for first, last, name in reversed(_classes(path)) if first <= line <= last), "")


@lru_cache(maxsize=500)
def _classes(path: str) -> list[tuple[int, int, str]]:
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, ValueError, SyntaxError):
        return []
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return sorted((node.lineno, node.end_lineno or node.lineno, node.name) for node in nodes)


@dataclass
class Stacks:
    """Frames and stacks by number."""

    frames: dict[Frame, int] = field(default_factory=dict)
    stacks: dict[Stack, int] = field(default_factory=dict)
    _by_number: list[Sequence[Frame]] = field(default_factory=list)

    def number(self, frames: Sequence[Frame]) -> int:
        """The number of a stack, without what runs the script; its frames from the outermost."""
        of_script = program_frames(frames)
        if of_script is None:
            own = (_OWN.get((name.rpartition(".")[2], "/".join(file.rsplit("/", 2)[-2:]))) for name, file, _ in frames)
            return next((number for number in own if number), OWN)
        of_script = [_kept_frame(frame) for frame in _without_importing(of_script)]
        stack = tuple(self.frames.setdefault(frame, len(self.frames)) for frame in of_script)
        number = self.stacks.setdefault(stack, len(self.stacks))
        if number == len(self._by_number):
            self._by_number.append(of_script)
        return number

    def frames_of(self, number: int) -> Sequence[Frame]:
        """The frames of a stack."""
        return self._by_number[number] if number > OWN else ()


def program_frames(frames: Sequence[Frame]) -> Sequence[Frame] | None:
    """A stack without what runs the script, or, of a worker that was forked, what its parent was doing; None of voirkit's own work."""
    for at in range(len(frames) - 1, -1, -1):
        name, file, _ = frames[at]
        if file.endswith(_WORKER) and name == "_worker_loop":
            return frames[at:]
        if file.endswith(_RUNS_SCRIPT):
            return frames[at + 1 :]
    return None if any(frame.file.endswith(_COMMAND) for frame in frames) else frames


def _without_importing(frames: Sequence[Frame]) -> Sequence[Frame]:
    """A stack without the import system's functions between a module and what imports it, as Python's own tracebacks are."""
    last = len(frames)
    while last and frames[last - 1].file.startswith(_IMPORTING):
        last -= 1  # it is at work itself
    return [frame for frame in frames[:last] if not frame.file.startswith(_IMPORTING)] + list(frames[last:])


@lru_cache(maxsize=100_000)
def _kept_frame(frame: Frame) -> Frame:
    """A frame as it is kept: a line of the program's own functions alone."""
    if frame.is_unnamed:
        return Frame(UNNAMED, frame.file)
    return frame if is_program(frame.file) else Frame(frame.name, frame.file)


def worker_phase(frames: Sequence[Frame]) -> str | None:
    """Of a stack without what is around it: the phase of a loader worker; None if it is of none."""
    if not frames or not frames[0].file.endswith(_WORKER):
        return None
    return FETCH if any(frame.file.endswith(_FETCH) for frame in frames) else BETWEEN


def phase_by_frames(frames: Sequence[Frame]) -> str:
    """The phase that torch's own functions on a stack show; empty if they show none."""
    return dict(operation_and_phase(frames, ())).get(PHASE, "")


def operation_and_phase(frames: Sequence[Frame], operations: Collection[str]) -> list[Name]:
    """The operation and the phase that a stack is in, the innermost of each. ``frames``: from the outermost; ``operations``: the names of
    those that the run's loaders have."""
    operation = phase = outer = ""
    fetching = False
    for frame in frames:
        if not frame.is_python:
            continue
        fetching |= frame.file.endswith(_FETCH)
        inner = _operation(frame, operations, fetching) if operations else ""
        if inner and frame.function == "forward":
            phase = outer  # a transform that is a module: to call it is no forward pass
        operation = inner or operation
        if not frame.file.endswith(_MODULE_CALL):
            outer = phase
        phase = _phase(frame) or phase
    return [name for name in ((OPERATION, operation), (PHASE, phase)) if name[1]]


def _operation(frame: Frame, operations: Collection[str], fetching: bool) -> str:
    function = frame.function
    for name in (frame.owner, function):
        if name in operations:
            return name
    if function in _LOADING_FUNCTIONS and _LOADER in operations:
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


@lru_cache(maxsize=10_000)
def is_program(file: str) -> bool:
    """Whether a source is the program's own: of no installed package, and not Python's."""
    return file.endswith((".py", os.sep)) and file_owner(file) is Owner.PROGRAM


@lru_cache(maxsize=100_000)
def label(frame: Frame, with_line: bool = True) -> str:
    """What a frame is called in a graph: its function, the end of its file's path, and the line, of the program's own."""
    name, file, line = frame
    return f"{name} ({place(file, line if with_line else 0)})" if file else name


def place(file: str, line: int) -> str:
    """Where in the sources: ``package/file.py:12``; of a file that is in no package, the last two parts of its path."""
    match = _PACKAGES.match(file)
    short = file[match.end() :] if match else "/".join(file.rsplit("/", 2)[-2:])
    return f"{short}:{line}" if line else short
