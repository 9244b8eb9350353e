"""Which files a trace consists of at a moment: segments, and what is at rest already. Each record is in exactly one of them.

``trace/kind=<kind>/rank=<rank>/<host>-<n>.parquet`` and ``trace/processes/<host>-r<rank>-<n>.jsonl`` are at rest. While records are put to
rest there is a folder with drafts, ``trace/settle-r<rank>.<word>.tmp``, and, from the moment when the drafts are complete and count instead
of the segments until they have their places, a journal, ``trace/settle-r<rank>.json``.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, NamedTuple

from voirkit.trace.layout import folder_of
from voirkit.trace.reader import Files, files

_JOURNAL = re.compile(r"settle-r(\d+)\.json")


class Journal(NamedTuple):
    """What is to be done with complete drafts. Paths are relative to the folder of the trace.

    Attributes:
        move: (draft, its place).
        remove: Files whose records are in the drafts.
    """

    move: list[tuple[str, str]]
    remove: list[str]


class Layout(NamedTuple):
    """The files of a trace.

    Attributes:
        spans: Parquet files.
        processes: JSON lines about the processes whose records are in those.
        segments: Files of the processes whose records are in segments.
        orphans: Segments without names.
    """

    spans: list[str]
    processes: list[str]
    segments: list[Files]
    orphans: list[str]


def layout(run: str) -> Layout:
    """The files of a run's trace as they are now.

    Raises:
        OSError: The folder cannot be read.
    """
    folder = folder_of(run)
    names = _listed(folder)
    journals = [found for name in names if _JOURNAL.fullmatch(name) and (found := read_journal(f"{folder}/{name}")) is not None]
    gone = {f"{folder}/{path}" for journal in journals for path in journal.remove}
    at_rest = {f"{folder}/{place}" for journal in journals for _, place in journal.move}
    drafts = [f"{folder}/{draft}" for journal in journals for draft, place in journal.move if not os.path.exists(f"{folder}/{place}")]
    for kind in names:
        if kind.startswith("kind="):
            for rank in _listed(f"{folder}/{kind}"):
                at_rest.update(f"{folder}/{kind}/{rank}/{name}" for name in _listed(f"{folder}/{kind}/{rank}"))
    at_rest.update(f"{folder}/processes/{name}" for name in _listed(f"{folder}/processes"))
    everything = sorted([path for path in at_rest if os.path.exists(path)] + [path for path in drafts if os.path.exists(path)])
    segments = [_without(own, gone) for own in files(run)]
    named = {path for own in segments for path in own.segments}
    orphans = [f"{folder}/{name}" for name in names if name.endswith(".seg") and f"{folder}/{name}" not in named | gone]
    return Layout(
        [path for path in everything if path.endswith(".parquet")],
        [path for path in everything if path.endswith(".jsonl")],
        [own for own in segments if own.names not in gone],
        orphans,
    )


def _without(own: Files, gone: set[str]) -> Files:
    return own._replace(segments=[path for path in own.segments if path not in gone], dropped=None if own.dropped in gone else own.dropped)


def journal_path(folder: str, rank: int) -> str:
    """Where the journal of a rank is, if there is one."""
    return f"{folder}/settle-r{rank}.json"


def read_journal(path: str) -> Journal | None:
    """A journal; None if there is none. It is written in one step, so that it is never found in part."""
    try:
        with open(path, encoding="utf-8") as file:
            found: Any = json.load(file)
        return Journal([(str(draft), str(place)) for draft, place in found["move"]], [str(path) for path in found["remove"]])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
