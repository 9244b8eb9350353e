"""What leaving voirkit on costs: CPU and wall time of whole runs of the examples, against plain python.

    python benchmarks/overhead.py [--rounds 5] [--examples mlp,resnet,sentiment] [--others PYTHON]

In each round every variant runs once, in an order that turns with the rounds; a ratio is the median of the rounds' ratios to plain python.
CPU time is user and system time of the process and all its children, also of those that complete the run directory. ``--others`` is the
interpreter of an environment with benchmarks/others.txt: py-spy, viztracer, TraceML and torch.profiler then run the same scripts, each
against that environment's python. The voirfiles of the examples are left out, and so is the making of the resnet's images.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
WORDS = {
    "mlp": ["--epochs", "20"],
    "resnet": ["--epochs", "3", "--workers", "0", "--data", str(EXAMPLES / "resnet" / "images")],
    "sentiment": ["--epochs", "2"],
}
PROFILED = """
import runpy, sys
from torch.profiler import profile
with profile() as profiler:
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
profiler.export_chrome_trace("profile.json")
"""


def variants(script: str, words: list[str], others: str | None) -> dict[str, tuple[str, list[str]]]:
    """By name: the variant that it is compared with, and its command."""
    found = {
        "python": ("python", [sys.executable, script, *words]),
        "voirkit": ("python", [sys.executable, "-m", "voirkit", "--quiet", "--run-dir", "run", "--force", script, *words]),
    }
    if others:
        tools = Path(others).parent
        found |= {
            "python (others')": ("python (others')", [others, script, *words]),
            "torch.profiler": ("python (others')", [others, "-c", PROFILED, "-", script, *words]),
            "py-spy": ("python (others')", [str(tools / "py-spy"), "record", "-o", "spied.svg", "--", others, script, *words]),
            "viztracer": ("python (others')", [str(tools / "viztracer"), "-o", "traced.json", "--", script, *words]),
            "TraceML": ("python (others')", [str(tools / "traceml"), "run", script, "--mode", "summary", "--args", *words]),
        }
    return found


def seconds(command: list[str], folder: Path) -> tuple[float, float]:
    """(CPU, wall) of a command, seconds."""
    env = {k: v for k, v in os.environ.items() if k not in ("DATA_FD", "VOIRFILE")} | {"OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--examples", default=",".join(WORDS))
    parser.add_argument("--others", metavar="PYTHON")
    options = parser.parse_args()
    print(f"{'example':10} {'variant':18} {'CPU, s':>8} {'ratio':>7} {'of rounds':>12} {'wall, s':>8} {'ratio':>7} {'of rounds':>12}")
    for example in options.examples.split(","):
        measure(example, options.rounds, options.others)


def measure(example: str, rounds: int, others: str | None) -> None:
    """Run all variants of an example, and print their figures."""
    with tempfile.TemporaryDirectory() as place:
        script = shutil.copy(EXAMPLES / example / "main.py", place)
        commands = variants(script, WORDS[example], others)
        names = list(commands)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                with tempfile.TemporaryDirectory() as folder:
                    taken[name].append(seconds(commands[name][1], Path(folder)))
    for name, (plain, _) in commands.items():
        line = f"{example:10} {name:18}"
        for i in (0, 1):
            ratios = [mine[i] / theirs[i] for mine, theirs in zip(taken[name], taken[plain], strict=True)]
            spread = f"{min(ratios):.3f}-{max(ratios):.3f}"
            line += f" {statistics.median(row[i] for row in taken[name]):8.2f} {statistics.median(ratios):7.3f} {spread:>12}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
