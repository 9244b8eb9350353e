"""What recording costs, next to ``append((name, t0, t1))`` to a list with two clock reads; and how fast records are read.

    python benchmarks/trace.py [--rounds 25] [--events 20000] [--dftracer PYTHON]

Each column is a process of its own, in which all rows and the append are interleaved in rounds; a figure is the median over the rounds of
the ratio to the append of the same round. ``--dftracer`` names the python of an environment with dftracer 2.2.0 (pydftracer 2.0.6).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from time import perf_counter_ns as now
from time import process_time
from typing import Any

Timed = Callable[[int], None]  # does something so many times

# The rows, and the most that each may cost.
LIMITS: dict[str, float] = {
    "recorder, one span": 1.5,
    "recorder, with span": 3.0,
    "recorder, with span, disabled": 1.0,
    "recorder, with span, nothing is recorded": 1.0,
}
DECODED = 20e6  # events that a core must read in a second


def append(n: int) -> None:
    """What everything is compared with."""
    out: list[Any] = []
    add = out.append
    for _ in range(n):
        t0 = now()
        add((1, t0, now()))


def loop(n: int) -> None:
    """What is subtracted."""
    for _ in range(n):
        pass


def entering(node: Any) -> Timed:
    """``with node: pass``"""

    def run(n: int) -> None:
        for _ in range(n):
            with node:
                pass

    return run


# columns: each gives, for rows that it has, what is to be timed


def recorder_rows(folder: str) -> dict[str, Timed]:
    """The recorder by itself."""
    from voirkit.trace import recorder

    recorder.begin(folder)
    name = recorder.name("compute", "forward")
    off = recorder.Span(name)
    off.enabled = False

    def one(n: int) -> None:
        span = recorder.span
        for _ in range(n):
            t0 = now()
            span(name, t0, now())

    def stopped(n: int) -> None:
        recorder.engine.switch(0)
        entering(off)(n)
        recorder.engine.switch(1)

    return {
        "recorder, one span": one,
        "recorder, with span": entering(recorder.Span(name)),
        "recorder, with span, disabled": entering(off),
        "recorder, with span, nothing is recorded": stopped,
    }


def voirkit_column(folder: str) -> dict[str, Timed]:
    """All rows of voirkit."""
    return {**recorder_rows(folder)}  # the rows of voirkit.ai come here


def dftracer_column(folder: str) -> dict[str, Timed]:
    """The rows that dftracer has."""
    from dftracer.python import ai, dftracer  # type: ignore[import-not-found]

    dftracer.initialize_log(logfile=f"{folder}/trace.pfw", data_dir=folder, process_id=-1)
    return {"recorder, with span": entering(ai.compute.forward)}


COLUMNS: dict[str, tuple[Callable[[str], dict[str, Timed]], dict[str, str]]] = {
    "voirkit": (voirkit_column, {"VOIRKIT_NO_EXTENSION": "0"}),
    "voirkit in Python": (voirkit_column, {"VOIRKIT_NO_EXTENSION": "1"}),
    "dftracer": (dftracer_column, {"DFTRACER_ENABLE": "1", "DFTRACER_INC_METADATA": "1"}),
}


def measure(column: str, rounds: int, events: int) -> dict[str, tuple[float, float]]:
    """In this process: for each row the ratio to the append, and nanoseconds."""
    with tempfile.TemporaryDirectory() as folder:
        rows = {"append": append, **COLUMNS[column][0](folder)}
        times: dict[str, list[float]] = {row: [] for row in rows}
        gc.disable()
        for turn in range(rounds + 2):
            empty = timed(loop, events)
            for row, function in rows.items():
                took = timed(function, events) - empty
                if turn >= 2:  # the first make files and warm up
                    times[row].append(took)
        return {
            row: (
                statistics.median(a / b for a, b in zip(took, times["append"], strict=True)),
                statistics.median(took) / events,
            )
            for row, took in times.items()
        }


def timed(function: Timed, n: int) -> float:
    """Nanoseconds that it takes."""
    began = now()
    function(n)
    return now() - began


def decoding(events: int) -> float:
    """Events that one core reads in a second of its time, from files that are in memory."""
    from voirkit.trace import recorder
    from voirkit.trace.reader import Pieces, files

    with tempfile.TemporaryDirectory() as folder:
        recorder.begin(folder)
        names = [recorder.name("compute", f"n{i}") for i in range(8)]
        span = recorder.span
        for i in range(events):
            span(
                names[i & 7],
                i,
                i + 5,
                recorder.arguments({"step": i // 1000}) if i % 1000 == 0 else 0,
                i,
            )
        recorder.end()
        best = float("inf")
        for _ in range(6):
            began = process_time()  # of one core: numpy computes these in one thread
            rows = sum(len(piece.columns["tid"]) for piece in Pieces(files(folder)))
            best = min(best, process_time() - began)
            assert rows == events
    return events / best


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--dftracer", metavar="PYTHON")
    parser.add_argument("--column", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.column == "decoding":
        print(json.dumps(decoding(4_000_000)))
        return 0
    if options.column:
        print(json.dumps(measure(options.column, options.rounds, options.events)))
        return 0
    results = {}
    for column, (_, environment) in COLUMNS.items():
        if column != "dftracer" or options.dftracer:
            python = options.dftracer if column == "dftracer" else sys.executable
            results[column] = child(python, column, options, environment)
    print(
        f"{'times append((name, t0, t1))':42}"
        + "".join(f"{column:>26}" for column in results)
        + f"{'limit':>9}"
    )
    rows = list(dict.fromkeys(row for result in results.values() for row in result))
    missed = []
    for row in rows:
        cells = [
            f"{r[row][0]:12.2f} ({r[row][1]:8.0f} ns)" if row in r else "" for r in results.values()
        ]
        limit = LIMITS.get(row)
        print(
            f"{row:42}"
            + "".join(f"{cell:>26}" for cell in cells)
            + (f"{limit:9.1f}" if limit else "")
        )
        if limit and row in results["voirkit"] and results["voirkit"][row][0] > limit:
            missed.append(row)
    rate = child(sys.executable, "decoding", options, {})
    print(
        f"{'read, million events a second and core':42}{rate / 1e6:26.1f}"
        + " " * 26 * (len(results) - 1)
        + f"{DECODED / 1e6:9.1f}"
    )
    if rate < DECODED:
        missed.append("read")
    if missed:
        print("beyond the limit: " + ", ".join(missed))
    return 1 if missed else 0


def child(
    python: str, column: str, options: argparse.Namespace, environment: dict[str, str]
) -> Any:
    """A column, from a process of its own."""
    command = [
        python,
        __file__,
        "--column",
        column,
        "--rounds",
        str(options.rounds),
        "--events",
        str(options.events),
    ]
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
