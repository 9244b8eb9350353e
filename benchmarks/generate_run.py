"""Writes the run directory that a training of many ranks leaves, and measures what reading it takes.

    python benchmarks/generate_run.py --ranks 1000 --steps 1000 RUN [--nodes 125] [--state segments|compacted|rolled-up] [--report] [--scan]

Each rank trains on batches of 32 from one loader, with DDP: a step is a request, forward, loss, backward with two reductions in it, the
optimizer's step and zero_grad; every tenth ends with two small reductions, of what is logged. All ranks leave a step's backward when the
last one has come; one rank in 1,000, from rank 1 on, waits 20 % of a step longer for its batches. The same arguments write the same
records. ``--nodes N`` writes RUN0 to RUN<N-1>, as machines without a shared disk do.
``--report`` prints the CPU time, the wall time and the peak memory of ``voirkit report --json``. ``--scan`` prints them, with records a
second, for it as the first to read the run, without the roll-ups, and with them; for a query over all records, and for one rank's export.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from voirkit.analysis.run_steps import read_steps
from voirkit.runs.opened import open_run
from voirkit.runs.summary import empty
from voirkit.trace import layout
from voirkit.trace.reader import RECORD_TYPE

RANKS_OF_NODE = 8
BEGAN_NS, BOOTED_NS = (
    1_700_000_000_000_000_000,
    3_600_000_000_000,
)  # when the run began, on the wall clock and on that of the first host
START_NS = 2_000_000_000  # from there to the first step
# category, name, key of the value, median in nanoseconds; a step is these one after the other, 20 us apart
EVENTS = [
    ("dataloader", "fetch", "items", 2_000_000),
    ("compute", "forward", None, 20_000_000),
    ("compute", "loss", None, 300_000),
    ("compute", "backward", None, 45_000_000),
    ("compute", "step", None, 4_000_000),
    ("compute", "zero_grad", None, 200_000),
]
ONCE = [("dataloader", "iter", None), ("dataloader", "end", None), ("pipeline", "epoch", None)]
LOADER = {"loader": 0, "episode": 0}
ARGUMENTS: list[dict[str, Any]] = [
    LOADER,
    {
        **LOADER,
        "workers": 4,
        "batch_size": 32,
        "length": 0,
        "dataset": "ImageFolder",
        "pin_memory": True,
        "persistent": False,
    },
    {"module": "DistributedDataParallel", "training": True, "grad": True},
    {"optimizer": "AdamW", "which": 0, "fused": True, "device": "cuda"},
]
ARGUMENTS_OF = np.array([1, 3, 0, 0, 4, 0])
REDUCED_AT, REDUCED_BYTES = (
    (0.4, 0.99),
    (26_214_400, 8_388_608),
)  # after which share of its own backward a rank reduces how much
LOGGED_EVERY, LOGGED_AFTER_NS = 10, np.array([50_000, 150_000])  # since a step's last event
LOGGED_NS = 300_000  # as much longer is a step with them
ARGUMENTS += [
    {"group": "0", "description": "default_pg", "bytes": one} for one in (*REDUCED_BYTES, 4)
]
REDUCTION = ("gloo", "all_reduce", "number", "collective")
BACKWARD = 3  # of ``EVENTS``
GAP_NS = 20_000


def durations(ranks: int, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """When each step begins, shape (steps,), how long each of ``EVENTS`` takes in it, shape (ranks, steps, events), and a rank's own part
    of its backward, shape (ranks, steps); nanoseconds."""
    random = np.random.default_rng(0)
    took = np.empty((ranks, steps, len(EVENTS)), np.int32)
    for i, (_, _, _, median) in enumerate(EVENTS):
        took[:, :, i] = median * np.exp(random.normal(0, 0.05, (ranks, steps)).astype(np.float32))
    took[1::1000, :, 0] += round(0.2 * sum(event[3] for event in EVENTS))
    exchanges, own = took[:, :, : BACKWARD + 1].sum(axis=2), took[:, :, BACKWARD].copy()
    took[:, :, BACKWARD] += exchanges.max(axis=0) - exchanges
    took[:, :, 4:] = took[0, :, 4:]
    step = took.sum(axis=2).max(axis=0).astype(np.int64) + GAP_NS * len(EVENTS)
    step[LOGGED_EVERY - 1 :: LOGGED_EVERY] += LOGGED_NS
    return np.cumsum(step) - step, took, own


def write_rank(
    run: Path, rank: int, ranks: int, begins: np.ndarray, took: np.ndarray, own: np.ndarray
) -> None:
    """The segment and the names of a rank."""
    folder = run / "trace"
    folder.mkdir(parents=True, exist_ok=True)
    host, pid, steps = f"node{rank // RANKS_OF_NODE:03d}", 1000 + rank, len(begins)
    clock_ns = BOOTED_NS * (
        1 + rank // RANKS_OF_NODE
    )  # each machine was switched on at another time
    offsets = np.concatenate(
        (np.zeros((steps, 1), np.int64), np.cumsum(took[:, :-1] + GAP_NS, axis=1)), axis=1
    )
    records = np.zeros(
        1
        + len(ONCE)
        + took.size
        + steps * len(REDUCED_AT)
        + steps // LOGGED_EVERY * len(LOGGED_AFTER_NS),
        RECORD_TYPE,
    )
    records[0] = (0, 0, pid, 0, layout.THREAD)
    inner = records[2 : 2 + took.size].reshape(steps, len(EVENTS))
    inner["start_ns"] = clock_ns + START_NS + begins[:, None] + offsets
    inner["duration_ns"], inner["name"], inner["args"] = (
        took,
        np.arange(1, 1 + len(EVENTS)),
        ARGUMENTS_OF,
    )
    inner["value"][:, 0] = 32
    ends = (
        inner["start_ns"][LOGGED_EVERY - 1 :: LOGGED_EVERY, [-1]]
        + took[LOGGED_EVERY - 1 :: LOGGED_EVERY, [-1]]
    )
    of_steps = inner["start_ns"][:, [BACKWARD]] + (own[:, None] * REDUCED_AT).astype(np.int64)
    begun = np.concatenate((of_steps.ravel(), (ends[:, None] + LOGGED_AFTER_NS).ravel()))
    which = np.concatenate(
        (
            np.tile(np.arange(len(REDUCED_AT)), steps),
            np.full(len(begun) - of_steps.size, len(REDUCED_AT)),
        )
    )
    order, reduced = np.argsort(begun), records[2 + took.size : -2]
    reduced["start_ns"], reduced["args"] = (
        begun[order],
        len(ARGUMENTS) - len(REDUCED_AT) + which[order],
    )
    reduced["value"], reduced["name"] = np.arange(1, 1 + len(begun)), 1 + len(EVENTS) + len(ONCE)
    first, last = (
        int(inner["start_ns"][0, 0]),
        int(inner["start_ns"][-1, -1]) + int(took[-1, -1]) + GAP_NS,
    )
    records[1] = (first - 1_000_000, 900_000, 0, 2, 1 + len(EVENTS))
    records[-2] = (last, 50_000, 0, 1, 2 + len(EVENTS))
    records[-1] = (first - 1_000_000, last + 60_000 - first + 1_000_000, 0, 1, 3 + len(EVENTS))
    stem = folder / f"{host}-r{rank}-{pid}"
    data = (
        struct.pack(
            layout.HEADER, layout.MAGIC, layout.SCHEMA, layout.RECORD_BYTES, pid, 0, clock_ns
        )
        + records.tobytes()
    )
    Path(f"{stem}-0.seg").write_bytes(data)
    header = {
        "schema": layout.SCHEMA,
        "pid": pid,
        "ppid": 999,
        "rank": rank,
        "world_size": ranks,
        "host": host,
        "job": "generated",
    }
    header |= {
        "clocks": {"perf_counter_ns": clock_ns, "time_ns": BEGAN_NS},
        "process": "main.py",
        "argv": ["main.py"],
    }
    lines: list[dict[str, Any]] = [header]
    for number, (category, name, value, *rest) in enumerate([*EVENTS, *ONCE, REDUCTION], 1):
        kind = "collective" if "collective" in rest else "phase"
        lines.append(
            {layout.NAME: number, "kind": kind, "category": category, "name": name, "value": value}
        )
    lines += [
        {layout.ARGUMENTS: number, "arguments": {**one}} for number, one in enumerate(ARGUMENTS, 1)
    ]
    lines += [{layout.THREAD_NAME: pid, "thread": "MainThread"}, {layout.ENDS: {"0": len(data)}}]
    Path(f"{stem}.names").write_text(
        "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    )


def generate(run: str, ranks: int, steps: int, nodes: int = 0) -> list[Path]:
    """Write the run directory, or one for each machine; the first has the manifest and the summary, as rank 0 writes them."""
    folders = [Path(f"{run}{i}") for i in range(nodes)] or [Path(run)]
    for folder in folders:
        folder.mkdir(parents=True)
    begins, took, own = durations(ranks, steps)
    for rank in range(ranks):
        write_rank(
            folders[rank // RANKS_OF_NODE % len(folders)],
            rank,
            ranks,
            begins,
            took[rank],
            own[rank],
        )
    duration_ns = START_NS + int(begins[-1]) + int(took[0, -1].sum()) + 1_000_000_000
    manifest = {
        "schema": 1, "voirkit": "0.1.0", "command": ["main.py"], "voirkit_options": [], "host": "node000", "cpus": 96, "pid": 1000,
        "rank": 0, "world_size": ranks, "job": "generated", "restart": 0, "ended": "normal", "exit_code": 0,
        "clocks": {"perf_counter_ns": BOOTED_NS, "time_ns": BEGAN_NS},
        "moments": {"begun_ns": BOOTED_NS, "script_ns": BOOTED_NS + 400_000_000, "script_ended_ns": BOOTED_NS + duration_ns - 100_000_000},
    }  # fmt: skip
    (folders[0] / "run.json").write_text(json.dumps(manifest, indent=1))
    own = {
        **empty("0.1.0"),
        "command": ["main.py"],
        "world_size": ranks,
        "ended": "normal",
        "exit_code": 0,
        "duration_s": duration_ns / 1e9,
    }
    (folders[0] / "summary.json").write_text(json.dumps({**own, "overhead": None}, indent=1))
    return folders


def main() -> None:
    """Write a run, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument(
        "--nodes", type=int, default=0, help="a directory for each of so many machines"
    )
    parser.add_argument(
        "--state", choices=["segments", "compacted", "rolled-up"], default="segments"
    )
    parser.add_argument("--report", action="store_true", help="measure voirkit report")
    parser.add_argument(
        "--scan", action="store_true", help="measure what reads all records, or a window"
    )
    parser.add_argument("RUN")
    options = parser.parse_args()
    folders = generate(options.RUN, options.ranks, options.steps, options.nodes)
    if options.state != "segments":
        for folder in folders:
            with open_run(folder) as run:
                run.recorded("phase")
                if options.state == "rolled-up":
                    read_steps(run)
    report = [sys.executable, "-m", "voirkit", "report", "--json", *map(str, folders)]
    if options.report:
        measure("report", report)
    if options.scan:
        first = str(folders[0])
        n = (
            sum(path.stat().st_size for folder in folders for path in folder.glob("trace/*.seg"))
            // layout.RECORD_BYTES
        )
        measure("report, first", report, n)
        for folder in (path for one in folders for path in (one / "steps", one / "collectives")):
            shutil.rmtree(folder, ignore_errors=True)
        measure("report, without roll-ups", report, n)
        measure("report, again", report, n)
        measure("query", [sys.executable, "-c", QUERY, first], n)
        export = [
            sys.executable,
            "-m",
            "voirkit",
            "export",
            first,
            "--format",
            "csv",
            "--ranks",
            "0",
            "-o",
            "-",
        ]
        measure("export of rank 0", export, n // options.ranks)


QUERY = """import sys
from voirkit.runs.opened import open_run
with open_run(sys.argv[1]) as run:
    found = run.connection().execute("SELECT category, name, count(*), sum(duration_ns), max(duration_ns) FROM spans GROUP BY ALL")
    print(found.fetchall())
"""


def measure(what: str, command: list[str], records: int = 0) -> None:
    """Run a command, and print what it took."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    rate = f", {records / wall / 1e6:.2f} million records/s" if records else ""
    print(
        f"{what}: {used.ru_utime + used.ru_stime:.2f} s of CPU, {wall:.2f} s, {used.ru_maxrss / 1e6:.2f} GB at most{rate}",
        flush=True,
    )


if __name__ == "__main__":
    main()
