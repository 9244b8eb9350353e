"""From a trace on disk to an answer, by voirkit, DFAnalyzer and HTA: seconds on the clock, CPU, and the most memory.

    python benchmarks/peers/answers.py [--events 500000]

The trace is the one of benchmarks/at_rest.py (a training loop, three processes). voirkit reads its segments (first) and what
compaction made of them (again), and answers with its report; DFAnalyzer reads the same events as ``pfw`` and answers with its layers
(preset ai). HTA reads a trace of torch.profiler with as many events, of operators and kernels, and answers with its temporal
breakdown. Each command is a process of its own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from environments import make, quiet_environment, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import at_rest

HTA = """
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir="hta")
print(len(analysis.t.get_trace(0)), "events")
print(analysis.get_temporal_breakdown(visualize=False))
"""


def run(command: list[str], folder: Path) -> tuple[list[str], str]:
    """What a command takes, as cells of the table, and its last line if it failed."""
    before = os.times()
    began = time.perf_counter()
    with open(folder / "printed", "w+") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=quiet_environment(),
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - began
        file.seek(0)
        lines = file.read().strip().splitlines() or [""]
    after = os.times()
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    error = f"failed after {seconds:.1f} s: {lines[-1][:120]}" if process.returncode else ""
    return [f"{seconds:.1f} s", f"{cpu:.1f} s", f"{used.ru_maxrss / 1024:.0f} MiB"], error


def profiler_trace(path: Path, events: int) -> None:
    """A file as torch.profiler writes it of a GPU's training, since HTA answers of kernels alone: operators, and a kernel for each."""
    found: list[dict[str, Any]] = []
    for i in range(events // 2):
        common = {"ph": "X", "ts": 10.0 * i, "dur": 9.0}
        found.append(
            common
            | {
                "cat": "cpu_op",
                "name": f"aten::op{i % 10}",
                "pid": 1,
                "tid": 1,
                "args": {"External id": i},
            }
        )
        where = {"stream": 7, "device": 0, "correlation": i, "External id": i}
        found.append(
            common
            | {
                "ts": 10.0 * i + 5,
                "cat": "kernel",
                "name": f"kernel{i % 10}",
                "pid": 0,
                "tid": 7,
                "args": where,
            }
        )
    path.parent.mkdir()
    with gzip.open(path, "wt", compresslevel=1) as file:
        json.dump({"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": found}, file)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=500_000)
    events = parser.parse_args().events
    analyzer, hta = make("dfanalyzer"), make("hta")
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        at_rest.make(folder / "run", events)
        voirkit = [sys.executable, "-m", "voirkit"]
        for what in ("report, first", "report, again"):
            cells, error = run([*voirkit, "report", "run"], folder)
            rows.append([f"voirkit {what}", *cells, error])
        _, error = run([*voirkit, "export", "run", "--format", "pfw", "-o", "pfw"], folder)
        commands = {
            f"DFAnalyzer {analyzer.version}": (analyzer, [
                analyzer.tool("dfanalyzer"), "trace_path=pfw", "analyzer/preset=ai", "analyzer.checkpoint=false", "cluster=local",
                "cluster.n_workers=2", "output=json", "output.file_path=out.json", "hydra.run.dir=hydra",
            ]),
            f"HTA {hta.version}": (hta, [str(hta.python), "-c", HTA]),
        }  # fmt: skip
        profiler_trace(folder / "hta" / "rank0.json.gz", events)
        for name, (peer, command) in commands.items():
            if peer.python is None:
                rows.append([name, "", "", "", peer.version])
                continue
            cells, error = run(command, folder)
            rows.append([name, *cells, error])
    print(f"{events:,} events, three processes\n")
    print(table(["what", "clock", "CPU, all processes", "peak memory, first process", ""], rows))


if __name__ == "__main__":
    main()
