"""Runs of programs that load data under ``--loader``, their records, and the rules that the records of every right run keep."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

from conftest import CLEAN

from voirkit.runs.opened import open_run


class Record(NamedTuple):
    """One record of a loader. Times in ns on one clock; ``value`` is the batch, or the index of the sample."""

    name: str
    begin: int
    end: int
    pid: int
    tid: int
    args: dict[str, Any]
    value: int

    def is_in(self, other: Record) -> bool:
        """Whether it lies in the time of another of the same thread."""
        return self.tid == other.tid and other.begin <= self.begin and self.end <= other.end


class Said(NamedTuple):
    """What a program and voirkit have said."""

    code: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    """What programs are run with."""
    return {
        **{k: v for k, v in CLEAN.items() if not k.startswith("PYTEST")},
        "OMP_NUM_THREADS": "1",
        **more,
    }


def run(folder: Path, *command: str, **env: str) -> Said:
    """Run python in a folder."""
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=280,
        stdin=subprocess.DEVNULL,
    )
    return Said(ended.returncode, ended.stdout, ended.stderr)


def under_loader(folder: Path, *more: str, program: str = "main.py", **env: str) -> Said:
    """Run a program under ``--loader``, into the run directory ``run``."""
    return run(
        folder, "-m", "voirkit", "--loader", *more, "--run-dir", "run", "--force", program, **env
    )


def write(folder: Path, **modules: str) -> Path:
    """Write modules into a folder."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(dedent(text))
    return folder


def records(folder: Path) -> list[Record]:
    """What was recorded of loaders, by begin; what contains others before them. What a batch costs beside its making is left out."""
    found = []
    with open_run(os.fspath(folder / "run")) as opened:
        for rows in opened.rows():
            for kind, category, name, start, duration, _, _, pid, tid, args in rows:
                if kind == "loader" and category != "cost":
                    args = dict(args)
                    value = next(
                        (args.pop(key) for key in ("batch", "index", "cpu_ns") if key in args), None
                    )
                    found.append(
                        Record(f"{category}.{name}", start, start + duration, pid, tid, args, value)
                    )
    return sorted(found, key=lambda record: (record.begin, -record.end))


def named(found: list[Record], *names: str) -> list[Record]:
    """Those of some names."""
    return [record for record in found if record.name in names]


def values(found: list[Record], name: str) -> list[int]:
    """The values of those of a name, in their order."""
    return [record.value for record in named(found, name)]


def episodes(found: list[Record]) -> dict[tuple[int, int], list[Record]]:
    """Records by loader and episode."""
    made: dict[tuple[int, int], list[Record]] = {}
    for record in found:
        made.setdefault((record.args["loader"], record.args["episode"]), []).append(record)
    return made


def violations(
    found: list[Record], samples: Mapping[tuple[int, int], list[int] | None] | None = None
) -> list[str]:
    """What in the records of a run cannot be; section 7 of what is known of loaders' traces.

    Args:
        found: All of them.
        samples: By loader and episode: the indices that were requested, in any order; None: not compared.
    """
    wrong = []
    for key, mine in episodes(found).items():
        asked = None if samples is None else samples.get(key)
        wrong += [f"{key}: {text}" for text in _of_episode(mine, asked)]
    return wrong


def _of_episode(found: list[Record], samples: list[int] | None) -> list[str]:
    wrong = []
    by = {name: named(found, name) for name in {record.name for record in found}}

    def of(name: str) -> list[Record]:
        return by.get(name, [])

    batches = {record.value: record for record in of("data.preprocess")}
    consumed = [record.value for record in of("batch.consumed")]
    has_workers = bool(of("batch.queued"))
    items, operations = (
        of("data.item"),
        [record for record in found if record.name.startswith("operation.")],
    )

    if samples is not None and sorted(record.value for record in items) != sorted(samples):
        wrong.append(
            f"samples {sorted(record.value for record in items)}, asked for {sorted(samples)}"
        )
    for name in (
        "data.preprocess",
        "batch.arrived",
        "batch.consumed",
        "batch.queued",
        "worker.put",
        "data.collate",
    ):
        twice = [
            value
            for value, times in Counter(record.value for record in of(name)).items()
            if times > 1
        ]
        if twice:
            wrong.append(f"{name} of batch {twice} more than once")

    # operations in items, items in batches, and together no longer
    for outer, inner in (
        (items, operations),
        (list(batches.values()), [*items, *of("data.collate")]),
    ):
        for record in inner:
            around = [other for other in outer if record.is_in(other)]
            if len(around) != 1 and not (
                outer is items and any(record.is_in(other) for other in of("data.collate"))
            ):
                wrong.append(
                    f"{record.name} {record.value} is in {len(around)} of {outer[0].name if outer else 'none'}"
                )
        for record in outer:
            total = sum(
                other.end - other.begin
                for other in _outermost([other for other in inner if other.is_in(record)])
            )
            if total > record.end - record.begin:
                wrong.append(f"what is in {record.name} {record.value} takes longer than it")
    for item in items:
        if any(record.value != item.value for record in operations if record.is_in(item)):
            wrong.append(f"an operation in sample {item.value} is told of another")

    # queue -> worker -> arrival -> consumption
    for value in consumed:
        failed = any(
            record.value == value and record.args.get("error") for record in of("batch.consumed")
        )
        for name in (
            ("data.preprocess", "batch.queued", "batch.arrived", "worker.idle", "worker.put")
            if has_workers
            else ("data.preprocess",)
        ):
            if value not in {record.value for record in of(name)} and not (
                failed and name == "data.preprocess"
            ):
                wrong.append(f"batch {value} was consumed, and has no {name}")
    for earlier, at, later, then in (
        ("batch.queued", "end", "worker.idle", "end"),
        ("worker.idle", "end", "data.preprocess", "begin"),
        ("data.preprocess", "end", "worker.put", "begin"),
        ("data.preprocess", "end", "batch.arrived", "begin"),
        ("batch.arrived", "end", "batch.pin", "never"),
        ("data.preprocess", "end", "batch.consumed", "begin"),
    ):
        before = {record.value: record for record in of(earlier)}
        for record in of(later):
            other = before.get(record.value)
            if then != "never" and other is not None and getattr(other, at) > getattr(record, then):
                wrong.append(f"batch {record.value}: {earlier} after {later}")
    queued = {record.value: record.args["worker"] for record in of("batch.queued")}
    wrong += [
        f"batch {b} was sent to worker {queued[b]}"
        for b, r in batches.items()
        if has_workers and queued[b] != r.args["worker"]
    ]
    for worker in {record.args["worker"] for record in batches.values()}:
        own = sorted(
            (r for r in batches.values() if r.args["worker"] == worker), key=lambda r: r.begin
        )
        if len({record.pid for record in own}) > 1:
            wrong.append(f"worker {worker} is several processes")
        wrong += [
            f"worker {worker} prepares two batches at once"
            for a, b in pairwise(own)
            if a.end > b.begin
        ]

    # what the program waited for
    waits = of("batch.wait")
    wrong += ["two waits overlap" for a, b in pairwise(waits) if a.end > b.begin]
    for record in waits:
        if record.args["ready"] and not any(
            a.value == record.value and a.end <= record.begin for a in of("batch.arrived")
        ):
            wrong.append(f"batch {record.value} was ready, and had not arrived")
    return wrong


def _outermost(found: list[Record]) -> list[Record]:
    return [
        record
        for record in found
        if not any(record is not other and record.is_in(other) for other in found)
    ]
