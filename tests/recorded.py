"""Runs that tests record: by a process of their own, with nothing but the recorder of the trace plane."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

from conftest import CLEAN

from voirkit.export import formats

OF_OTHER_RUNS = frozenset(name for name, (_, text) in formats().items() if "of runs with" in text)
"""Formats of what only some instruments record: these runs have nothing for them, and they have tests of their own."""

HEAD = """
import os, sys, threading, time
from voirkit.trace import recorder
recorder.begin(sys.argv[1], rank=int(os.environ.get("RANK", "0")))
names = {}
def span(category, name, start, end, value=None, kind="span", **arguments):
    key = (category, name, kind, value[0] if value else None)
    recorder.span(recorder.name(*key), start, end, recorder.arguments(arguments), value[1] if value else 0)
def mark(category, name, at, kind="mark", **arguments):
    recorder.mark(recorder.name(category, name, kind), at, recorder.arguments(arguments))
def counter(category, name, at, value):
    recorder.counter(recorder.name(category, name, "counter"), at, value)
NOW = recorder.now()
US = 1000
"""
# Two epochs of three steps; events in the order of their ends, as they are recorded.
LOOP = """
t = NOW
for epoch in range(2):
    begun = t
    for step in range(3):
        span("dataloader", "fetch.iter", t, t + 100 * US, ("count", step + 1), epoch=epoch, step=step)
        span("compute", "forward", t + 150 * US, t + 250 * US, epoch=epoch, step=step)
        span("io", "read", t + 160 * US, t + 170 * US)
        span("compute", "compute", t + 150 * US, t + 300 * US, epoch=epoch, step=step)
        t += 1000 * US
    span("pipeline", "evaluate", t, t + 500 * US)
    t += 1000 * US
    span("pipeline", "epoch.block", begun, t, ("count", epoch + 1), epoch=epoch)
mark("pipeline", "done", t, why="end")
counter("system", "cpu", t, 12.5)
mark("pipeline", "epoch.start", t, kind="meta")
"""
LOOP_EVENTS = 2 * (3 * 4 + 2) + 3


def start(run: Path, body: str, **env: str) -> subprocess.Popen[str]:
    """A process that records; its output can be read."""
    command = [sys.executable, "-c", dedent(HEAD) + dedent(body), str(run)]
    return subprocess.Popen(
        command, env={**CLEAN, **env}, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )


def record(run: Path, body: str = LOOP, **env: str) -> Path:
    """Record a run, to its end."""
    process = start(run, body, **env)
    process.communicate(timeout=240)
    assert process.returncode == 0
    return run


def record_with_manifest(run: Path, body: str = LOOP, **env: str) -> Path:
    """The same, with the manifest that voirkit's runner writes."""
    record(run, body, **env)
    (run / "run.json").write_text(
        '{"schema": 1, "voirkit": "0", "ended": "normal", "exit_code": 0}'
    )
    return run


def rows(run: Any, *selection: Any) -> list[Any]:
    """All rows of an opened run."""
    return [row for batch in run.rows(*selection) for row in batch]


def files(run: Path) -> set[str]:
    """The files in a folder, relative to it."""
    return {
        os.path.relpath(os.path.join(folder, name), run)
        for folder, _, names in os.walk(run)
        for name in names
    }
