"""What ``--flame`` costs: a loop of Python calls 12 deep, with it, without, and under py-spy alone, interleaved.

    python benchmarks/flame.py [--rounds 7] [--turns 3000000]

Printed are ratios to the run without the flag, medians of the rounds with the smallest and the largest: CPU time of the loop (start and
imports left out), its wall time; and what py-spy itself took for each second that the loop lasted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

LOOP = """
import sys, time
def call(n):
    return call(n - 1) + 1 if n else sum(range(40))
began, wall = time.process_time(), time.perf_counter()
for _ in range(int(sys.argv[1])):
    call(12)
print(time.process_time() - began, time.perf_counter() - wall)
"""
VOIRKIT = [sys.executable, "-m", "voirkit", "--quiet", "--run-dir", "run"]
SAMPLER = """
import sys
import voirkit_instruments.stacks.record_py_spy as spy
spy.program = lambda: None
from voirkit.cli import main
sys.exit(main(sys.argv[1:]))
"""
PY_SPY = [
    os.path.join(sysconfig.get_path("scripts"), "py-spy"),
    "record",
    "--format",
    "raw",
    "--output",
    "run.txt",
    "--rate",
    "97",
]
VARIANTS = {
    "without": VOIRKIT,
    "without, again": VOIRKIT,
    "--flame": [*VOIRKIT, "--flame"],
    "--flame=499": [*VOIRKIT, "--flame=499"],
    "--flame --gil": [*VOIRKIT, "--flame", "--gil"],
    "--flame --native": [*VOIRKIT, "--flame", "--native"],
    "--flame, sampler": [sys.executable, "-c", SAMPLER, *VOIRKIT[3:], "--flame"],
    "py-spy alone": [*PY_SPY, "--", sys.executable],
    "py-spy --nonblocking": [*PY_SPY, "--nonblocking", "--", sys.executable],
}


def measured(command: list[str], turns: int) -> tuple[float, float, float, int]:
    """(CPU of the loop, its wall time, CPU of py-spy: seconds; stacks)."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "loop.py").write_text(LOOP)
        env = {k: v for k, v in os.environ.items() if k not in ("DATA_FD", "VOIRFILE")}
        done = subprocess.run(
            [*command, "loop.py", str(turns)],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        cpu, wall = map(
            float,
            done.stdout.split("\n")[-2 if command[0] != PY_SPY[0] else _line(done.stdout)].split(),
        )
        summary = Path(folder) / "run" / "summary.json"
        found = json.loads(summary.read_text())["flame"] if summary.exists() else None
        return (
            cpu,
            wall,
            (found["cost"]["tool_s"] or 0.0) if found else 0.0,
            found["samples"] if found else 0,
        )


def _line(said: str) -> int:
    """The line of what the loop printed, among what py-spy says."""
    return next(
        at
        for at, line in enumerate(said.split("\n"))
        if line.replace(".", "").replace(" ", "").isdigit()
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turns", type=int, default=3_000_000)
    options = parser.parse_args()
    names = list(VARIANTS)
    taken: dict[str, list[tuple[float, float, float, int]]] = {name: [] for name in names}
    for turn in range(options.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken[name].append(measured(VARIANTS[name], options.turns))
            print(turn, name, *taken[name][-1], file=sys.stderr, flush=True)
    print(
        f"{'variant':20} {'CPU, s':>7} {'ratio':>6} {'of rounds':>12} {'wall':>6} {'of rounds':>12} {'py-spy':>7} {'stacks':>7}"
    )
    for name, rows in taken.items():
        cells = [f"{name:20} {statistics.median(row[0] for row in rows):7.2f}"]
        for at in (0, 1):
            ratios = [
                mine[at] / plain[at] for mine, plain in zip(rows, taken["without"], strict=True)
            ]
            cells.append(
                f"{statistics.median(ratios):6.3f} {f'{min(ratios):.3f}-{max(ratios):.3f}':>12}"
            )
        spy = statistics.median(row[2] / row[1] for row in rows)
        print(*cells, f"{spy:7.1%} {statistics.median(row[3] for row in rows):7.0f}")


if __name__ == "__main__":
    main()
