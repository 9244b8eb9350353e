"""What leaving voirkit on costs: CPU and wall time of whole runs of the examples, against plain python.

    python benchmarks/overhead.py [--rounds 5] [--examples mlp,resnet,sentiment] [--others PYTHON [--others-rounds 1]]

In each round every variant runs twice, with few steps and with many, in an order that turns with the rounds. Of a round come three figures:
the ratio of the long runs as they are; that of what the long runs took more than the short ones, which is what a step costs; and what is
left, the cost of a run without any step (start, patches, completing the run directory). The figure printed is the median of the rounds.
From the last two follows how long a run has to be before all of it costs no more than the limit.

CPU time is user and system time of the process and all its children, also of those that complete the run directory. Compiled bytecode is
used and kept in .cache. ``--others`` is the interpreter of an environment with benchmarks/others.txt: py-spy, viztracer, TraceML and
torch.profiler then run the same scripts, each against that environment's python. The voirfiles of the examples are left out.

The default, with the others, is 13 minutes of processor time.
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
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
IMAGES = str(EXAMPLES / "resnet" / "images")
PROFILED = """
import runpy, sys
from torch.profiler import profile
with profile() as profiler:
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
profiler.export_chrome_trace("profile.json")
"""


class Example(NamedTuple):
    """A script, short and long.

    Attributes:
        steps: Of the short run and of the long one.
        limit: Of the whole run, to python.
    """

    short: list[str]
    long: list[str]
    steps: tuple[int, int]
    limit: float


TRAININGS = {
    "mlp": Example(["--epochs", "1"], ["--epochs", "31"], (200, 6200), 1.02),
    "resnet": Example(
        ["--epochs", "1", "--limit", "2", "--workers", "0", "--data", IMAGES],
        ["--epochs", "1", "--workers", "0", "--data", IMAGES],
        (2, 12),
        1.005,
    ),
    "sentiment": Example(["--steps", "20"], ["--steps", "320"], (20, 320), 1.005),
}

Cost = tuple[float, float]  # seconds: CPU, wall


def variants(script: str, others: str | None) -> dict[str, tuple[str, list[str]]]:
    """By name: the variant that it is compared with, and its command without the script's own words."""
    found = {
        "python": ("python", [sys.executable, script]),
        "voirkit": ("python", [sys.executable, "-m", "voirkit", "--quiet", "--run-dir", "run", "--force", script]),
    }
    if others:
        tools = Path(others).parent
        found |= {
            "python (others')": ("python (others')", [others, script]),
            "torch.profiler": ("python (others')", [others, "-c", PROFILED, "-", script]),
            "py-spy": ("python (others')", [str(tools / "py-spy"), "record", "-o", "spied.svg", "--", others, script]),
            "viztracer": ("python (others')", [str(tools / "viztracer"), "-o", "traced.json", "--", script]),
            "TraceML": ("python (others')", [str(tools / "traceml"), "run", script, "--mode", "summary", "--args"]),
        }
    return found


def cost(command: list[str]) -> Cost | None:
    """What a command takes, in a folder of its own; None if it fails."""
    env = {k: v for k, v in os.environ.items() if k not in ("DATA_FD", "VOIRFILE", "PYTHONDONTWRITEBYTECODE")}
    env |= {"OMP_NUM_THREADS": "1", "VOIRFILE": "", "PYTHONPYCACHEPREFIX": str(ROOT / ".cache" / "bytecode")}
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "said"), "w+b") as said:
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=said, stderr=said, start_new_session=True)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            last = (said.read().decode(errors="replace").strip().splitlines() or ["nothing was said"])[-1]
            print(f"{' '.join(command)[:160]} ended with {process.returncode}: {last}", file=sys.stderr)
            return None
    return used.ru_utime + used.ru_stime, wall


def measure(name: str, rounds: int, others_rounds: int, others: str | None) -> None:
    """Run all variants of an example, and print their figures."""
    example = TRAININGS[name]
    with tempfile.TemporaryDirectory() as place:
        commands = variants(shutil.copy(EXAMPLES / name / "main.py", place), others)
        taken: dict[str, list[tuple[Cost, Cost]]] = {variant: [] for variant in commands}
        failed = {variant for variant in commands if cost([*commands[variant][1], *example.short]) is None}  # makes the bytecode as well
        for turn in range(rounds):
            names = [v for v in commands if v not in failed and (v in ("python", "voirkit") or turn < others_rounds)]
            for variant in names[turn % len(names) :] + names[: turn % len(names)]:
                short, long = (cost([*commands[variant][1], *words]) for words in (example.short, example.long))
                if short is not None and long is not None:
                    taken[variant].append((short, long))
    for variant, (plain, _) in commands.items():
        if taken[variant]:
            print(line(name, variant, example, taken[variant], taken[plain]), flush=True)
        else:
            print(f"{name:10} {variant:17} failed", flush=True)


def line(name: str, variant: str, example: Example, own: list[tuple[Cost, Cost]], plain: list[tuple[Cost, Cost]]) -> str:
    """The figures of a variant."""
    rounds = list(zip(own, plain, strict=False))
    text = f"{name:10} {variant:17}"
    for i in (0, 1):
        whole = [mine[1][i] / theirs[1][i] for mine, theirs in rounds]
        text += f" {statistics.median(mine[1][i] for mine in own):7.2f} {statistics.median(whole):7.3f}"
        text += f" {f'{min(whole):.3f}-{max(whole):.3f}':>12}"
        if i == 0:
            few, many = example.steps
            steps = [(mine[1][0] - mine[0][0]) / (theirs[1][0] - theirs[0][0]) for mine, theirs in rounds]
            a_step = statistics.median((theirs[1][0] - theirs[0][0]) / (many - few) for _, theirs in rounds)
            fixed = [mine[0][0] - theirs[0][0] - (ratio - 1) * a_step * few for (mine, theirs), ratio in zip(rounds, steps, strict=True)]
            text += f" {statistics.median(steps):7.3f} {f'{min(steps):.3f}-{max(steps):.3f}':>12} {statistics.median(fixed):6.2f}"
            spare = example.limit - statistics.median(steps)
            long_enough = f"{statistics.median(fixed) / spare:.0f} s" if spare > 0 else "never"
            text += f" {long_enough if variant == 'voirkit' else '':>7}"
    return text


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--examples", default=",".join(TRAININGS))
    parser.add_argument("--others", metavar="PYTHON", type=os.path.abspath)
    parser.add_argument("--others-rounds", type=int, default=1)
    options = parser.parse_args()
    print(
        f"{'example':10} {'variant':17} {'CPU, s':>7} {'ratio':>7} {'of rounds':>12} {'a step':>7} {'of rounds':>12} {'fixed':>6}"
        f" {'from':>7} {'wall, s':>7} {'ratio':>7} {'of rounds':>12}"
    )
    for example in options.examples.split(","):
        measure(example, options.rounds, options.others_rounds, options.others)


if __name__ == "__main__":
    main()
