"""The place of a sample: the frames of its stack, the phase, operation and process that they show,
and the operations and phases that the run recorded at that time."""

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
from voirkit.phase_table import phase_of_function, phase_of_span
from voirkit.runs.opened import Run
from voirkit.runs.parquet import quoted
from voirkit_instruments.places import Owner, file_owner

OPERATION, PHASE, ELSEWHERE = "operation", "phase", "elsewhere"
COLLATE, ITEM = "collate_fn", ".__getitem__"
_ARGS = (
    "CASE WHEN s.kind = 'loader' AND s.category = 'data' AND s.name IN ('item', 'inner', 'items')"
    " THEN coalesce(s.args, '') ELSE '' END"
)
_NAMED = (
    "spans s JOIN native_names n ON n.kind = s.kind AND n.category = s.category AND n.name ="
    f" s.name AND n.args = {_ARGS}"
)
ANNOTATION = "span"  # kind of the trace records of ``voirkit.ai`` and of DFTracer's names
_STAGES, _BODY = ("pipeline", "ai_root"), ".block"
Name = tuple[str, str]  # (operation or phase, its name)
Thread = tuple[int, int]  # pid, tid


def name_of(kind: str, category: str, name: str, args: str = "") -> Name | None:
    """Return the operation or phase that a record stands for, or None.

    A dataset's own work and collation are named as in ``loader``. Annotations are operations too,
    named by category and name. Stages of a run and bodies of loops are not operations, because they
    contain everything else.
    """
    if kind == "loader":
        return _loader_operation(category, name, args)
    if kind == ANNOTATION:
        if category in _STAGES or name.endswith(_BODY):
            return None
        has_category = name == category or name.startswith(f"{category}.")
        return OPERATION, name if has_category else f"{category}.{name}"
    if kind == "phase":
        phase = phase_of_span(category, name)
        return None if phase is None else (PHASE, phase)
    return None


def _loader_operation(category: str, name: str, args: str) -> Name | None:
    if category == "operation":
        return OPERATION, name
    if (category, name) == ("data", "collate"):
        return OPERATION, COLLATE
    if category == "data" and name in ("item", "inner", "items"):
        source = json.loads(args or "{}").get("source")
        return OPERATION, str(source or f"dataset{ITEM}")
    return None


@dataclass(frozen=True)
class Spans:
    """Spans of one group (operations, or phases) in one thread; arrays of shape (n,). They ascend
    by start; of two spans with the same start, the longer comes first."""

    start_ns: Array
    end_ns: Array
    name: Array

    def owners(self, at_ns: Array) -> Any:
        """Return the name of the innermost span at each instant; -1 where there is no span."""
        span = innermost(self.start_ns, self.end_ns, at_ns)
        return np.where(span == NONE, NONE, self.name[span])

    def elapsed_ns(self, from_ns: int, to_ns: int, names: int) -> Any:
        """Return the nanoseconds between two instants in which each name was the innermost; shape
        (names,)."""
        start_ns = np.clip(self.start_ns, from_ns, to_ns)
        duration_ns = np.clip(self.end_ns, from_ns, to_ns) - start_ns
        own_ns = exclusive_ns(start_ns, duration_ns)
        return np.bincount(self.name, weights=own_ns, minlength=names).astype(np.int64)

    def starts(self, from_ns: int, to_ns: int, names: int) -> Any:
        """Count the spans of each name that began between two instants, without those inside a span
        of the same name; shape (names,)."""
        counts = np.zeros(names, dtype=np.int64)
        for name in np.unique(self.name).tolist():
            of_name = self.name == name
            start_ns = self.start_ns[of_name]
            latest_end_ns = np.maximum.accumulate(self.end_ns[of_name])
            is_outermost = np.concatenate(([True], start_ns[1:] >= latest_end_ns[:-1]))
            is_between = (start_ns >= from_ns) & (start_ns < to_ns)
            counts[name] = np.count_nonzero(is_outermost & is_between)
        return counts


class RecordedSpans:
    """The recorded operations and phases of one rank's processes on one host."""

    def __init__(self, run: Run, rank: int, host: str) -> None:
        self._connection = run.connection()
        self._where = f"rank = {int(rank)} AND host = {quoted(host)}"
        self.names: list[Name] = self._name_records()
        self._is_phase = np.array([group == PHASE for group, _ in self.names], dtype=bool)
        threads = self._connection.execute(
            f"SELECT s.kind, pid, tid, count(*) AS n FROM {_NAMED} WHERE {self._where} GROUP BY ALL"
            " ORDER BY n, tid DESC"
        ).fetchall()
        # by group (operations or phases) and process: the thread with the most spans, which is
        # taken for the one that trains or loads
        self.leading: dict[str, dict[int, int]] = {OPERATION: {}, PHASE: {}}
        for kind, pid, tid, _ in threads:
            self.leading[PHASE if kind == "phase" else OPERATION][pid] = tid
        pids = self._connection.execute(
            f"SELECT DISTINCT pid FROM spans WHERE {self._where}"
        ).fetchall()
        self.processes = {pid for (pid,) in pids}

    def _name_records(self) -> list[Name]:
        """Make the table ``native_names`` of the records that are operations or phases. Returns the
        names by number."""
        query = (
            f"SELECT DISTINCT kind, category, name, {_ARGS} AS args FROM spans s"
            f" WHERE kind IN ('loader', 'phase', '{ANNOTATION}') AND {self._where} ORDER BY ALL"
        )
        named = []
        for row in self._connection.execute(query).fetchall():
            name = name_of(*row)
            if name is not None:
                named.append((row, name))
        names = sorted({name for _, name in named})
        codes = {name: i for i, name in enumerate(names)}
        columns = "kind VARCHAR, category VARCHAR, name VARCHAR, args VARCHAR, code BIGINT"
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE native_names ({columns})")
        if named:
            self._connection.executemany(
                "INSERT INTO native_names VALUES (?, ?, ?, ?, ?)",
                [(*row, codes[name]) for row, name in named],
            )
        return names

    def between(self, from_ns: int, to_ns: int) -> dict[str, dict[Thread, Spans]]:
        """Return a dict from group to a dict from thread to spans, for the spans that overlap the
        time between two instants."""
        columns = self._connection.execute(
            "SELECT start_ns, start_ns + duration_ns AS end_ns, pid, tid, code "
            f"FROM {_NAMED} WHERE {self._where} AND start_ns <= {int(to_ns)} "
            f"AND start_ns + duration_ns >= {int(from_ns)} ORDER BY pid, tid, start_ns, end_ns DESC"
        ).fetchnumpy()
        start_ns = np.asarray(columns["start_ns"])
        end_ns = np.asarray(columns["end_ns"])
        code = np.asarray(columns["code"])
        spans: dict[str, dict[Thread, Spans]] = {OPERATION: {}, PHASE: {}}
        for thread, part in _parts(np.asarray(columns["pid"]), np.asarray(columns["tid"])):
            is_phase = self._is_phase[code[part]]
            for group, in_group in ((OPERATION, ~is_phase), (PHASE, is_phase)):
                rows = part.start + np.flatnonzero(in_group)
                if len(rows):
                    spans[group][thread] = Spans(start_ns[rows], end_ns[rows], code[rows])
        return spans

    def owners(
        self, group: str, spans: Mapping[Thread, Spans], pid: int, tid: int, at_ns: Array
    ) -> tuple[Array, Array]:
        """Return the operation or phase of a thread at some instants; where the thread was in none,
        that of the thread that trains or loads in the same process.

        Args:
            group: ``OPERATION`` or ``PHASE``.
            spans: Spans of the group around that time.
            at_ns: Instants; shape (n,).

        Returns:
            The numbers of the names, ``NONE`` without a name; and True for each that was looked up
                in that other thread.
        """
        owners = np.full(len(at_ns), NONE, dtype=np.int64)
        is_other = np.zeros(len(at_ns), dtype=bool)
        if (pid, tid) in spans:
            owners = spans[pid, tid].owners(at_ns)
        leading = self.leading[group].get(pid, tid)
        if leading == tid or (pid, leading) not in spans:
            return owners, is_other
        of_leading = spans[pid, leading].owners(at_ns)
        return np.where(owners == NONE, of_leading, owners), owners == NONE

    def reach(self, pid: int, tid: int) -> tuple[int, int]:
        """Return the begin of a thread's first phase and the end of its last phase."""
        first_ns, last_ns = self._connection.execute(
            f"SELECT min(start_ns), max(start_ns + duration_ns) FROM {_NAMED} WHERE {self._where}"
            " AND pid = ? AND tid = ? AND s.kind = 'phase'",
            [pid, tid],
        ).fetchall()[0]
        return int(first_ns or 0), int(last_ns or 0)


def _parts(pid: Array, tid: Array) -> Iterator[tuple[Thread, slice]]:
    """Yield the rows of each thread, which are contiguous."""
    if not len(pid):
        return
    is_other = (np.diff(pid) != 0) | (np.diff(tid) != 0)
    edges = [0, *(np.flatnonzero(is_other) + 1).tolist(), len(pid)]
    for first, end in pairwise(edges):
        yield (int(pid[first]), int(tid[first])), slice(first, end)


# Numbers that stand for voirkit's own stacks: any of them, those while it waits for py-spy, and
# those just after the end of the run. The run records when the last two occurred.
OWN_STACK, ATTACHING, STOPPING = -1, -2, -3
_NUMBERS_OF_OWN = {
    ("attach", "stacks/record_py_spy.py"): ATTACHING,
    ("stop", "stacks/record.py"): STOPPING,
}
# the file that runs the script: its present path, and the path in older runs
_RUNS_SCRIPT = ("/voirkit/runner/script.py", "/voirkit/script.py")
_COMMAND = "/voirkit/cli.py"

OTHER = "other"  # phase of the training process inside a step, but outside all other phases
# phases of loader workers, and of other child processes
FETCH, BETWEEN_FETCHES, CHILD = "fetch", "between fetches", "child"
MAIN = ""  # name of the thread that trains or loads
# Stands for all code without a name in its library: otherwise each address would be a function.
UNNAMED = "(unnamed)"
_IMPORTING = "<frozen importlib"
_WORKER = "torch/utils/data/_utils/worker.py"
_FETCH = "torch/utils/data/_utils/fetch.py"
_MODULE_CALL = "torch/nn/modules/module.py"
_LOADER = "Loader"
_LOADING_FUNCTIONS = ("pil_loader", "accimage_loader", "default_loader")
_PACKAGES = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+)/")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_PLACE = re.compile(r"(.*):(\d+)")
Stack = tuple[int, ...]


class Frame(NamedTuple):
    """A stack frame."""

    # function, with its class if known (``Compose.__call__``); an address if the library has no
    # name for the function
    name: str
    file: str  # source file or library
    line: int = 0  # line that was being executed; 0 if not known

    @property
    def function(self) -> str:
        """Name of the function, without its class or enclosing functions."""
        return self.name.rpartition(".")[2] if self.is_python else self.name

    @property
    def is_python(self) -> bool:
        """True if the function is written in Python."""
        return self.file.endswith(".py") or self.file.startswith("<")

    @property
    def owner(self) -> str:
        """Name of the class of a method; empty for other functions."""
        parts = self.name.split(".")
        if len(parts) > 1:
            return parts[-2] if parts[-2] != "<locals>" else ""
        return _class_around(self.file, self.line) if self.is_python else ""

    @property
    def is_unnamed(self) -> bool:
        """True if the library has no name for the function."""
        return _ADDRESS.fullmatch(self.name) is not None


def parse_frame(text: str) -> Frame:
    """Parse a frame from the form ``function (file:12)``."""
    if not text.endswith(")"):
        return Frame(text, "")
    name, place = split_place(text)
    match = _PLACE.fullmatch(place)
    return Frame(name, match[1], int(match[2])) if match else Frame(name, place)


def split_place(text: str) -> tuple[str, str]:
    """Split ``symbol (file)`` into (symbol, file). Both may contain blanks and parentheses, such as
    ``(/memfd:x (deleted))``."""
    depth = 0
    for i in range(len(text) - 1, -1, -1):
        depth += (text[i] == ")") - (text[i] == "(")
        if not depth:
            opening = i
            break
    else:
        opening = max(text.rfind("("), 0)
    return text[:opening].strip(), text[opening + 1 : -1]


@lru_cache(maxsize=10_000)
def _class_around(path: str, line: int) -> str:
    """Return the innermost class around a line of a source file; empty if there is no class or no
    source."""
    for first, last, name in reversed(_classes(path)):
        if first <= line <= last:
            return name
    return ""


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
    """Frames and stacks, with the number of each."""

    frames: dict[Frame, int] = field(default_factory=dict)
    stacks: dict[Stack, int] = field(default_factory=dict)
    _by_number: list[Sequence[Frame]] = field(default_factory=list)

    def number(self, frames: Sequence[Frame]) -> int:
        """Return the number of a stack, without the frames that run the script. ``frames`` begin
        with the outermost."""
        of_script = program_frames(frames)
        if of_script is None:
            return _number_of_own(frames)
        of_script = [_kept_frame(frame) for frame in _without_importing(of_script)]
        stack = tuple(self.frames.setdefault(frame, len(self.frames)) for frame in of_script)
        number = self.stacks.setdefault(stack, len(self.stacks))
        if number == len(self._by_number):
            self._by_number.append(of_script)
        return number

    def frames_of(self, number: int) -> Sequence[Frame]:
        """Return the frames of a stack by its number; none for voirkit's own stacks."""
        return self._by_number[number] if number > OWN_STACK else ()


def _number_of_own(frames: Sequence[Frame]) -> int:
    """Return the number for a stack of voirkit's own."""
    for name, file, _ in frames:
        function = name.rpartition(".")[2]
        number = _NUMBERS_OF_OWN.get((function, _end_of_path(file)))
        if number is not None:
            return number
    return OWN_STACK


def _end_of_path(file: str) -> str:
    """Return the last two parts of a path."""
    return "/".join(file.rsplit("/", 2)[-2:])


def program_frames(frames: Sequence[Frame]) -> Sequence[Frame] | None:
    """Return a stack without the outer frames that run the script, or, in a forked worker, without
    the frames of its parent; None if the stack is voirkit's own work."""
    for i in range(len(frames) - 1, -1, -1):
        name, file, _ = frames[i]
        if file.endswith(_WORKER) and name == "_worker_loop":
            return frames[i:]
        if file.endswith(_RUNS_SCRIPT):
            return frames[i + 1 :]
    if any(frame.file.endswith(_COMMAND) for frame in frames):
        return None
    return frames


def _without_importing(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Drop the frames of the import system between a module and the code that imports it, as
    Python's own tracebacks do."""
    last = len(frames)
    while last and frames[last - 1].file.startswith(_IMPORTING):
        last -= 1  # the innermost frames are the import system's own: these are kept
    outer = [frame for frame in frames[:last] if not frame.file.startswith(_IMPORTING)]
    return [*outer, *frames[last:]]


@lru_cache(maxsize=100_000)
def _kept_frame(frame: Frame) -> Frame:
    """Return a frame as it is stored: only functions of the program keep their line."""
    if frame.is_unnamed:
        return Frame(UNNAMED, frame.file)
    return frame if is_program(frame.file) else Frame(frame.name, frame.file)


def worker_phase(frames: Sequence[Frame]) -> str | None:
    """Return the phase of a loader worker from its stack, as ``program_frames`` returns it; None if
    the stack is not that of a worker."""
    if not frames or not frames[0].file.endswith(_WORKER):
        return None
    is_fetching = any(frame.file.endswith(_FETCH) for frame in frames)
    return FETCH if is_fetching else BETWEEN_FETCHES


def phase_by_frames(frames: Sequence[Frame]) -> str:
    """Return the phase that torch's own functions on a stack show; empty if they show none."""
    return dict(operation_and_phase(frames, ())).get(PHASE, "")


def operation_and_phase(frames: Sequence[Frame], operations: Collection[str]) -> list[Name]:
    """Return the innermost operation and the innermost phase of a stack. ``frames`` begin with the
    outermost; ``operations`` are the names of the operations in the run's loaders."""
    operation = ""
    phase = ""
    outer_phase = ""
    is_fetching = False
    for frame in frames:
        if not frame.is_python:
            continue
        if frame.file.endswith(_FETCH):
            is_fetching = True
        inner = _operation(frame, operations, is_fetching) if operations else ""
        if inner and frame.function == "forward":
            phase = outer_phase  # this ``forward`` is a transform's, not a forward pass
        operation = inner or operation
        if not frame.file.endswith(_MODULE_CALL):
            outer_phase = phase
        phase = phase_of_function(frame.file, frame.function) or phase
    names = []
    if operation:
        names.append((OPERATION, operation))
    if phase:
        names.append((PHASE, phase))
    return names


def _operation(frame: Frame, operations: Collection[str], is_fetching: bool) -> str:
    function = frame.function
    for name in (frame.owner, function):
        if name in operations:
            return name
    if function in _LOADING_FUNCTIONS and _LOADER in operations:
        return _LOADER
    if is_fetching and "collate" in function and COLLATE in operations:
        return COLLATE
    if is_fetching and function == "__getitem__":
        return next((name for name in operations if name.endswith(ITEM)), "")
    return ""


@lru_cache(maxsize=10_000)
def is_program(file: str) -> bool:
    """True if a source file belongs to the program, rather than to an installed package or
    Python."""
    return file.endswith((".py", os.sep)) and file_owner(file) is Owner.PROGRAM


@lru_cache(maxsize=100_000)
def label(frame: Frame, with_line: bool = True) -> str:
    """Return the name of a frame in a graph: its function, the end of its file's path and, for the
    program's own code, the line."""
    name, file, line = frame
    return f"{name} ({place(file, line if with_line else 0)})" if file else name


def place(file: str, line: int) -> str:
    """Return a place in the sources: ``package/file.py:12``. For a file in no package, the path has
    only its last two parts."""
    match = _PACKAGES.match(file)
    short = file[match.end() :] if match else _end_of_path(file)
    return f"{short}:{line}" if line else short
