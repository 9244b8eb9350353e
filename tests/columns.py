"""All records of a run as arrays: what recorders have written, read in one piece."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from voirkit.trace.reader import Array, Piece, Pieces, Source, files


class Columns(dict[str, Array]):
    """Records as arrays of equal length: ``start_ns, duration_ns, name, args, value, process, pid, tid, rank``; in the order of the files.

    Attributes:
        names: What ``name`` counts.
        arguments: What ``args`` counts; the first is empty.
        processes: What ``process`` counts.
        threads: Names of threads by (pid, tid).
        dropped: Records that were not written, by ``category.name``.
    """

    def __init__(self, piece: Piece, sources: Sequence[Source]) -> None:
        args = piece.columns["args"]
        codes = np.zeros(args.max(initial=0) + 1, np.uint32)
        texts = {b"{}": 0}
        for number, text in piece.arguments.items():
            codes[number] = texts.setdefault(text, len(texts))
        process = piece.columns["process"]
        super().__init__(
            piece.columns,
            args=codes[args],
            pid=np.array([one.process.pid for one in sources], np.int64)[process],
            rank=np.array([one.process.rank for one in sources], np.int32)[process],
        )
        self.names = piece.names
        self.arguments = [_arguments(text) for text in texts]
        self.processes = [one.process for one in sources]
        self.threads = {
            (one.process.pid, tid): name for one in sources for tid, name in one.threads.items()
        }
        self.dropped: dict[str, int] = {}
        for one in sources:
            for label, count in one.dropped.items():
                self.dropped[label] = self.dropped.get(label, 0) + count

    @property
    def rows(self) -> int:
        """How many records there are."""
        return len(self["start_ns"])


def read(folder: str, names: Collection[str] | None = None) -> Columns:
    """All records of a run, which are to fit into memory; codes are the same over all processes.

    Args:
        folder: The run directory.
        names: Only records of these names.
    """
    pieces = Pieces(files(folder), most=sys.maxsize)
    piece = pieces.in_one()
    if names is not None:
        chosen = np.isin(
            piece.columns["name"],
            [code for code, name in enumerate(piece.names) if name.name in names],
        )
        piece = piece._replace(
            columns={key: values[chosen] for key, values in piece.columns.items()}
        )
    return Columns(piece, pieces.sources)


def _arguments(text: bytes) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    for key, value in data.items():
        if isinstance(value, dict):
            data[key] = int(value["hex"], 16)
    return data
