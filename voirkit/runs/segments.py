"""The records of a run that lie in segments, as arrays: what the end of a run needs of them, without DuckDB."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from voirkit.runs.processes import Process, damage, described_processes, description, without_names
from voirkit.runs.trace_files import Layout
from voirkit.trace.pieces import Piece, Pieces
from voirkit.trace.reader import Array, Files, Name

FIGURE = "figure"  # the key of a record's own number that is a double, as a counter's is
_LITTLE_BYTES = 64_000_000  # two million records, which take 120 MB as columns


class SegmentRecords:
    """Records of some processes; to be made only of what ``is_little``.

    Attributes:
        columns: Arrays of shape (n,): ``start_ns, duration_ns, value, name, args, process, tid``. ``name`` and ``process`` are indices.
        names: What records are of.
        owners: (rank, host, pid) of each process.
        processes: What is known of the processes, in the order in which they began.
        warnings: What could not be read.
    """

    def __init__(self, run: str, now: Layout, offset_ns: int = 0) -> None:
        pieces = Pieces(now.segments, most=_LITTLE_BYTES)
        piece = next(iter([*pieces]), None)
        if piece is None:
            piece = Piece({key: np.zeros(0, np.int64) for key in _COLUMNS}, [], {})
        self.columns, self._arguments = piece.columns, piece.arguments
        self.names = [Name(_clean(name.kind), _clean(name.category), _clean(name.name), name.value_key) for name in piece.names]
        self.owners = [(source.process.rank, _clean(source.process.host), source.process.pid) for source in pieces.sources]
        self.processes: Sequence[Process] = described_processes(map(description, pieces.sources), offset_ns)
        self.warnings = [*damage(run, pieces), *without_names(now.orphans)]

    def of_names(self, chosen: Iterable[int]) -> Array:
        """Indices of the records that have one of some names."""
        wanted = np.zeros(len(self.names) + 1, bool)
        wanted[list(chosen)] = True
        return np.flatnonzero(wanted[self.columns["name"]])

    def recorded(self, kind: str) -> list[tuple[int, str, int]]:
        """(rank, host, pid) of the processes that have records of a kind, ascending."""
        records = self.of_names(i for i, name in enumerate(self.names) if name.kind == kind)
        return sorted({self.owners[i] for i in np.flatnonzero(np.bincount(self.columns["process"][records])).tolist()})

    def arguments(self, records: Array) -> tuple[list[str], Array]:
        """The arguments of some records: the distinct ones as JSON, ascending, and which of them each record has."""
        numbers, place = np.unique(self.columns["args"][records], return_inverse=True)
        texts = [strict(self._arguments[number]) if number in self._arguments else "{}" for number in numbers.tolist()]
        distinct = sorted(set(texts))
        codes: Mapping[str, int] = {text: code for code, text in enumerate(distinct)}
        return distinct, np.array([codes[text] for text in texts], np.int64)[place]

    def values(self, records: Array) -> Array:
        """The own number of some records, -1 where they have none or it is a double."""
        whole = np.array([name.value_key not in (None, FIGURE) and name.kind != "counter" for name in self.names], bool)
        return np.where(whole[self.columns["name"][records]], self.columns["value"][records], -1)


_COLUMNS = ("start_ns", "duration_ns", "value", "name", "args", "process", "tid")


def is_little(files: Iterable[Files]) -> bool:
    """Whether the records of some processes may all be held in memory."""
    return sum(os.path.getsize(path) for own in files for path in own.segments) < _LITTLE_BYTES


def clean(text: str | None) -> str | None:
    """A text that can be written as UTF-8: half a surrogate pair becomes its escape."""
    return None if text is None else _clean(text)


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def strict(arguments: bytes) -> str:
    """Arguments as strict JSON: what it lacks (nan, inf, half a surrogate pair) becomes a text, so that no reader fails."""
    if b"N" not in arguments and b"I" not in arguments and b"\\ud" not in arguments and b"{" not in arguments[1:]:
        return arguments.decode()
    try:
        found = json.loads(arguments)
    except ValueError:
        return "{}"
    return json.dumps({clean(key): _strict(value) for key, value in found.items()}, separators=(",", ":"))


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"hex"}:
            return value["hex"]  # a number of thousands of digits
        return {clean(key): _strict(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_strict(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return clean(value) if isinstance(value, str) else value
