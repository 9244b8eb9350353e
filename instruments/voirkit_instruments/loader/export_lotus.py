"""``--format lotus``: the log files of LotusTrace, for its published analysis scripts (checked with
the scripts of 2024).

Each loader and rank has a folder, called ``b<batch size>_gpu<ranks>`` as the scripts require. In
it, each process has a file: ``lotustrace_log_worker_pid_<pid>`` or
``lotustrace_log_main_pid_<pid>``. Lines are ``name,start_ns,duration_ns`` on the wall clock. The
scripts identify a batch by its number, which starts again in each epoch; here the numbers continue
over epochs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby

from voirkit.errors import VoirkitError
from voirkit.report.output import STDOUT, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

    # (rank, loader, pid, category, name, start_ns, duration_ns, number, ready, raised)
    Row = tuple[int, int, int, str, str, int, int, int | None, bool, bool]

NAME, SUFFIX, IS_TEXT = "lotus", "", True
PREFIX = "lotustrace_log"
# duration that the format gives to records that have no duration
_MOMENT_NS = 1000
_READS = "Loader"

# Loader records by process and start; the numbers of batches continue from epoch to epoch.
_QUERY = """
WITH records AS (
    SELECT *, CAST(json_extract_string(args, '$.loader') AS BIGINT) AS loader,
        CAST(json_extract_string(args, '$.episode') AS BIGINT) AS episode,
        coalesce(json_extract_string(args, '$.ready') = 'true', false) AS ready,
        contains(args, '"error":') AS raised
    FROM ({events})
    WHERE kind = 'loader' AND args IS NOT NULL
        AND NOT (category = 'data' AND name = 'cpu') AND category <> 'cost'
), sizes AS (
    SELECT rank, loader, episode, max(value) + 1 AS n FROM records
    WHERE category = 'batch' OR (category = 'data' AND name = 'preprocess') GROUP BY ALL
), places AS (
    SELECT rank, loader, episode, coalesce(sum(n) OVER (
        PARTITION BY rank, loader ORDER BY episode
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::BIGINT AS before
    FROM sizes
)
SELECT rank, loader, pid, category, name, wall_ns, duration_ns, value + coalesce(before, 0), ready,
    raised
FROM records LEFT JOIN places USING (rank, loader, episode)
WHERE loader IS NOT NULL
ORDER BY rank, loader, pid, wall_ns, duration_ns DESC, category, name, value, tid
"""


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write the folders, and return the paths of the files. Raises VoirkitError: the run has no
    records of loaders, or the target is standard output, which cannot be a folder."""
    if target == STDOUT:
        raise VoirkitError(
            "it is folders of files.",
            where="--format lotus -o -",
            next="Give a folder's name with -o.",
        )
    folders = _Folders(run, target)
    try:
        paths = list(_files(run, selection, folders))
    except BaseException:
        # Remove the files if, for example, the disk is full: files with a part of the run must not
        # be taken for the whole run.
        for path in folders.files:
            if os.path.lexists(path):
                os.unlink(path)
        raise
    if not paths:
        raise VoirkitError(
            "this run has no record of a loader.",
            where="--format lotus",
            next="Record it: voirkit --loader SCRIPT",
        )
    return paths


def _files(run: Run, selection: Selection, folders: _Folders) -> Iterator[str]:
    """Write the files of one process after the other, and yield their paths."""
    query = _QUERY.format(events=run.events(selection))
    rows: Iterator[Row] = (row for batch in run.fetch(query) for row in batch)
    for (rank, loader, pid), of_process in groupby(rows, key=lambda row: row[:3]):
        folder = folders.of(rank, loader)
        folders.prepare_folder(folder)
        with ExitStack() as open_:
            files: dict[str, Callable[[str], object]] = {}
            for role, line in _lines(of_process):
                if role not in files:
                    path = os.path.join(folder, f"{PREFIX}_{role}_pid_{pid}")
                    folders.files.append(path)
                    files[role] = open_.enter_context(text(path))
                files[role](line)
        yield from folders.files[len(folders.files) - len(files) :]


class _Folders:
    """The folders of loaders, and their names. The scripts read the batch size from the name, and
    take all files in a folder for one loader's."""

    def __init__(self, run: Run, target: str) -> None:
        self._target = target
        self._facts: dict[int, dict[str, Any]] = {}  # facts of each loader, by its number
        query = (
            "SELECT DISTINCT args FROM spans WHERE kind = 'phase' AND category = 'dataloader' AND"
            " name = 'iter' AND args IS NOT NULL"
        )
        for batch in run.fetch(query):
            for (text_,) in batch:
                facts = json.loads(text_)
                self._facts.setdefault(facts.get("loader", -1), facts)
        self._ranks = len({process.rank for process in run.processes()})
        self._names: dict[str, tuple[int, int]] = {}
        self._made: set[str] = set()
        self.files: list[str] = []

    def of(self, rank: int, loader: int) -> str:
        size = self._facts.get(loader, {}).get("batch_size") or 1
        name = f"b{size if isinstance(size, int) else 1}_gpu{self._ranks}"
        if self._ranks > 1:
            name += f"_rank{rank}"
        if self._names.setdefault(name, (rank, loader)) != (rank, loader):
            name += f"_loader{loader}"
        return os.path.join(self._target, name)

    def prepare_folder(self, folder: str) -> None:
        """Make a folder, or remove the files of another run from it, which a reader would take for
        files of this run."""
        if folder in self._made:
            return
        self._made.add(folder)
        os.makedirs(folder, exist_ok=True)
        for name in os.listdir(folder):
            if name.startswith(PREFIX):
                os.unlink(os.path.join(folder, name))


def _lines(rows: Iterator[Row]) -> Iterator[tuple[str, str]]:
    """Yield the lines of one process, each with the file that it belongs to (``main`` or
    ``worker``), in the order of LotusTrace: records that end first come first; of a sample, the
    transforms come before its loading."""
    arrived: dict[int | None, int] = {}
    sample = _Sample()
    batch: tuple[str, str] | None = None
    for _, _, _, category, name, start, duration, number, ready, raised in rows:
        if category == "operation":
            sample.add(name, start, duration)
        elif category == "data":
            yield from sample.end()
            if name == "preprocess":
                if batch is not None:
                    yield batch
                batch = "worker", _line(f"SBatchPreprocessed_{number}", start, duration)
            elif name == "collate":
                yield "worker", _line("SCollation", start, duration)
        elif category == "batch":
            if name == "arrived":
                arrived[number] = start
            elif name == "wait" and not raised:
                arrived_ns = arrived.pop(number, start)
                if ready:
                    start, duration = arrived_ns, _MOMENT_NS
                yield "main", _line(f"SBatchWait_{number}", start, duration)
            elif name == "consumed" and not raised:
                yield "main", _line(f"SBatchConsumed_{number}", start, _MOMENT_NS)
            elif name == "queued":
                yield "main", _line(f"SBatchQueued_{number}", start, _MOMENT_NS)
            elif name == "pin":
                yield "main", _line(f"SBatchPinMemory_{number}", start, duration)
    yield from sample.end()
    if batch is not None:
        yield batch


class _Sample:
    """Collects the outermost operations on one sample."""

    def __init__(self) -> None:
        self._loading: list[str] = []
        self._transforms: list[str] = []
        self._start_ns = self._end_ns = self._last_ns = 0

    def add(self, name: str, start: int, duration: int) -> None:
        if start < self._last_ns:
            return  # the operation ran inside the previous one
        self._last_ns = start + duration
        if name == _READS:
            self._loading.append(_line("SLoader", start, duration))
            return
        if not self._transforms:
            self._start_ns = start
        self._end_ns = self._last_ns
        self._transforms.append(_line(f"S{name}", start, duration))

    def end(self) -> Iterator[tuple[str, str]]:
        """Yield the lines of the sample, each with its file, and begin the next sample."""
        lines = [*self._transforms, *self._loading]
        if self._transforms:
            lines.append(_line("STransform", self._start_ns, self._end_ns - self._start_ns))
        for line in lines:
            yield "worker", line
        self._loading, self._transforms = [], []


def _line(name: str, start_ns: int, duration_ns: int) -> str:
    return f"{name.replace(',', '_')},{start_ns},{duration_ns}\n"
