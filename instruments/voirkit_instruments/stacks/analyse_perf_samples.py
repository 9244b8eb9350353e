"""What ``perf script`` prints, as batches of arrays: memory does not grow with the length of the recording."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit_instruments.stacks.analyse_perf import lost, parse

BATCH = 100_000  # samples; some 3 MB
_FIELDS = "pid,tid,time,event,period,ip,sym,dso"


class Code(NamedTuple):
    """What a sample was found in.

    Attributes:
        function: Its name; None if the library has none for it.
        library: The file's name.
        kernel: Whether it is the kernel's.
    """

    function: str | None
    library: str
    kernel: bool


class Batch(NamedTuple):
    """Samples; arrays of shape (n,), in the order in which they were taken.

    Attributes:
        time_ns: When.
        pid: Process.
        tid: Thread.
        code: Index into ``Reading.codes``.
        event: Index into ``Reading.events``.
        period: How much of the event each stands for.
    """

    time_ns: Array
    pid: Array
    tid: Array
    code: Array
    event: Array
    period: Array


@dataclass
class Reading:
    """What is learned while lines are read.

    Attributes:
        codes: By number.
        events: Names by number.
        samples: How many there were.
        lost: How many perf says that it lost.
        unread: Lines that are none of a sample, and not of a loss.
        user_only: Whether the kernel was left out.
    """

    codes: dict[Code, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    lost: int = 0
    unread: int = 0
    user_only: bool = False

    def batches(self, lines: Iterable[str], size: int = BATCH) -> Iterator[Batch]:
        """Batches of at most so many samples."""
        rows: list[tuple[int, int, int, int, int, int]] = []
        for line in lines:
            sample = parse(line)
            if sample is None:
                gone = lost(line)
                self.lost += gone
                self.unread += bool(not gone and line.strip())
                continue
            self.user_only |= sample.user_only
            code = self.codes.setdefault(Code(sample.function, sample.library, sample.kernel), len(self.codes))
            event = self.events.setdefault(sample.event, len(self.events))
            rows.append((sample.time_ns, sample.pid, sample.tid, code, event, sample.period))
            if len(rows) == size:
                yield self._batch(rows)
                rows = []
        if rows:
            yield self._batch(rows)

    def _batch(self, rows: list[tuple[int, int, int, int, int, int]]) -> Batch:
        self.samples += len(rows)
        return Batch(*np.array(rows, dtype=np.int64).T)


def printed(data: str, perf: str = "perf") -> Iterator[str]:
    """The lines that perf prints of what it has recorded.

    Args:
        data: The file.
        perf: The program.

    Raises:
        OSError: perf can not be run, or can not read the file; the text says what it said.
    """
    command = [perf, "script", "--force", "--show-lost-events", "--ns", "--input", data, "--fields", _FIELDS]
    # Neither the user's settings nor a server of symbols: what a file does not say stays unknown.
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PERF_CONFIG": os.devnull, "PAGER": "cat"}
    environment.pop("DEBUGINFOD_URLS", None)
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said,
            env=environment, encoding="utf-8", errors="replace",
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        yield from process.stdout
        code = process.wait()
        said.seek(0)
        words = said.read().decode(errors="replace").strip()
    if code:
        raise OSError(f"{' '.join(command[:2])} ended with {code}: {words[-300:] or 'it said nothing'}")
