"""What a trace costs after the run: bytes an event in Parquet, and how fast it is put to rest, read and exported.

    python benchmarks/at_rest.py [--events 2000000] [--format chrome --format pfw]

The trace is that of a training loop: a step of ten nested events of the lengths that real ones vary by, step and epoch as arguments,
two loader workers. Each command runs in a process of its own; its peak memory is that of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from voirkit.trace import layout
from voirkit.trace.reader import RECORD_TYPE

# category, name, key of the value; median and spread (of the logarithm) of its own time in microseconds; depth below the step
EVENTS = [
    ("dataloader", "fetch.iter", "count", 180, 0.9, 1),
    ("dataloader", "fetch.block", "count", 40, 0.5, 0),
    ("device", "transfer", None, 90, 0.3, 1),
    ("compute", "compute", None, 30, 0.4, 1),
    ("compute", "forward", None, 400, 0.1, 2),
    ("compute", "backward", None, 700, 0.1, 2),
    ("comm", "all_reduce", None, 120, 0.6, 3),
    ("compute", "step", None, 150, 0.2, 2),
    ("data", "preprocess.collate", None, 60, 0.4, 1),
    ("data", "item", None, 25, 0.5, 2),
]
SETTLE = "import sys; from voirkit.runs.compaction import compact; compact(sys.argv[1])"
ROWS = "import sys; from voirkit.runs.opened import open_run; print(sum(len(batch) for batch in open_run(sys.argv[1]).rows()))"


def make(run: Path, events: int) -> None:
    """Write the segments of a run, as its main process and two workers would have."""
    folder = Path(layout.folder_of(str(run)))
    folder.mkdir(parents=True)
    (run / "run.json").write_text(
        '{"schema": 1, "voirkit": "0", "ended": "normal", "exit_code": 0}'
    )
    random = np.random.default_rng(0)
    for number, (pid, names, share) in enumerate(
        (
            (1 << 30, EVENTS[:8], 0.8),
            ((1 << 30) + 1, EVENTS[8:], 0.1),
            ((1 << 30) + 2, EVENTS[8:], 0.1),
        )
    ):
        steps = max(int(events * share) // len(names), 1)
        write_process(folder, pid, number, names, steps, random)


def write_process(
    folder: Path,
    pid: int,
    number: int,
    events: list[tuple[str, str, str | None, int, float, int]],
    steps: int,
    random: np.random.Generator,
) -> None:
    """One process: a turn of events for each step."""
    stem = folder / f"{os.uname().nodename}-r0-{pid}"
    lengths = np.column_stack(
        [random.lognormal(np.log(1000 * us), spread, steps) for _, _, _, us, spread, _ in events]
    ).astype(np.int64)
    begins = np.cumsum(lengths.ravel()).reshape(lengths.shape) - lengths
    records = np.zeros(lengths.size + 1, RECORD_TYPE)
    records["name"][0], records["value"][0] = layout.THREAD, pid
    for i, (_, _, key, _, _, depth) in enumerate(events):
        row = records[1:][i :: len(events)]
        last = max(
            j
            for j in range(i, len(events))
            if j == i
            or (events[j][5] > depth and all(events[k][5] > depth for k in range(i + 1, j + 1)))
        )
        row["start_ns"] = begins[:, i] + 10**12
        row["duration_ns"] = begins[:, last] + lengths[:, last] - begins[:, i]
        row["value"] = np.arange(steps) % 1000 if key else 0
        row["name"] = i + 1
        row["args"] = 0 if number else np.arange(steps) + 1
    records[1:] = records[1:][
        np.argsort(records["start_ns"][1:] + records["duration_ns"][1:], kind="stable")
    ]
    with open(f"{stem}.names", "w") as file:
        header = {
            "schema": 1,
            "pid": pid,
            "ppid": 1,
            "rank": 0,
            "host": os.uname().nodename,
            "process": "main.py",
            "argv": ["main.py"],
        }
        file.write(
            json.dumps({**header, "clocks": {"perf_counter_ns": 10**12, "time_ns": time.time_ns()}})
            + "\n"
        )
        for i, (category, name, key, *_) in enumerate(events):
            file.write(
                json.dumps(
                    {"n": i + 1, "kind": "span", "category": category, "name": name, "value": key}
                )
                + "\n"
            )
        if not number:
            file.writelines(
                f'{{"a":{step + 1},"arguments":{{"epoch":{step // 1000},"step":{step % 1000}}}}}\n'
                for step in range(steps)
            )
    with open(f"{stem}-0.seg", "wb") as file:
        file.write(
            struct.pack(
                layout.HEADER, layout.MAGIC, layout.SCHEMA, layout.RECORD_BYTES, pid, 0, 10**12
            )
        )
        records.tofile(file)


def measured(command: list[str]) -> tuple[float, float, float]:
    """(wall seconds, CPU seconds, peak MiB) of a command."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def size(path: Path) -> int:
    """Bytes of a file, or of all in a folder."""
    return (
        sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
        if path.is_dir()
        else path.stat().st_size
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--format", action="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        make(run, options.events)
        raw = size(run / "trace")
        print(f"{options.events:,} events, {raw / options.events:.1f} bytes an event in segments")
        print(
            f"{'':24} {'events/s':>10} {'CPU, us/event':>14} {'peak, MiB':>10} {'bytes/event':>12}"
        )

        def show(what: str, command: list[str], result: Path) -> None:
            wall, cpu, peak = measured(command)
            written = f"{size(result) / options.events:12.2f}" if result.exists() else ""
            print(
                f"{what:24} {options.events / wall:10,.0f} {1e6 * cpu / options.events:14.2f} {peak:10.0f} {written}",
                flush=True,
            )

        show("put to rest", [sys.executable, "-c", SETTLE, str(run)], run / "trace")
        if not options.format:
            show("rows() in python", [sys.executable, "-c", ROWS, str(run)], Path("-"))
        for format in options.format or ("chrome", "pfw", "csv", "parquet", "arrow"):
            out = Path(place) / f"{format}-out"
            export = [
                sys.executable,
                "-m",
                "voirkit",
                "export",
                str(run),
                "--format",
                format,
                "-o",
                str(out),
            ]
            show(f"export {format}", export, out)
            show(f"export {format}, ten steps", [*export, "--force", "--steps", "500:510"], out)


if __name__ == "__main__":
    main()
