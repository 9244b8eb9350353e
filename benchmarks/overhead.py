"""What leaving voirkit on costs: CPU and wall time of whole runs of the examples, against plain python.

    python benchmarks/overhead.py [--rounds 5] [--examples mlp,resnet,sentiment] [--peers [--peer-rounds 1]]

In each round every variant runs twice, with few steps and with many, in an order that turns with the rounds. Of a round come three
figures: the ratio of the long runs as they are; that of what the long runs took more than the short ones, which is what a step costs;
and what is left, the cost of a run without any step (start, patches, completing the run directory). The figure printed is the median
of the rounds. From the last two follows how long a run has to be before all of it costs no more than the limit.

CPU time is user and system time of the process and all its children, also of those that complete the run directory. Compiled bytecode
is used and kept in .cache. ``--peers`` runs the same scripts under voir, py-spy, scalene, viztracer, TraceML, torch.profiler and
CPython 3.15's sampler, each against the python of its own environment (benchmarks/peers/environments.py). The voirfiles of the
examples are left out.

The default, with the peers, is some 20 minutes of processor time.
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
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).with_name("peers")))
from environments import Peer, make, newest_sampler, quiet_environment

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


def variants(
    script: str, with_peers: bool
) -> tuple[dict[str, tuple[str, list[str]]], dict[str, str]]:
    """By name: the variant that it is compared with, and its command without the script's own words; and why a peer is left out."""
    chosen = {
        "python": ("python", [sys.executable, script]),
        "voirkit": (
            "python",
            [sys.executable, "-m", "voirkit", "--quiet", "--run-dir", "run", "--force", script],
        ),
    }
    absent: dict[str, str] = {}
    if not with_peers:
        return chosen, absent
    commands: dict[str, tuple[Peer, Callable[[Peer], list[str]]]] = {
        "voir": (make("voir"), lambda peer: [peer.tool("voir"), script]),
        "torch.profiler": (
            make("py-spy"),
            lambda peer: [str(peer.python), "-c", PROFILED, "-", script],
        ),
        "py-spy": (
            make("py-spy"),
            lambda peer: [
                peer.tool("py-spy"),
                "record",
                "-o",
                "spied.svg",
                "--",
                str(peer.python),
                script,
            ],
        ),
        "scalene": (
            make("scalene"),
            lambda peer: [
                peer.tool("scalene"),
                "run",
                "--cpu-only",
                "-o",
                "scalene.json",
                script,
                "---",
            ],
        ),
        "viztracer": (
            make("viztracer"),
            lambda peer: [peer.tool("viztracer"), "-o", "traced.json", "--", script],
        ),
        "TraceML": (
            make("traceml"),
            lambda peer: [peer.tool("traceml"), "run", script, "--mode", "summary", "--args"],
        ),
        "CPython 3.15's sampler": (
            newest_sampler(),
            lambda peer: [
                str(peer.python),
                "-m",
                "profiling.sampling",
                "run",
                "-o",
                "samples",
                script,
            ],
        ),
    }
    for name, (peer, command) in commands.items():
        if peer.python is None:
            absent[name] = peer.version
            continue
        plain = f"python of {name}"
        chosen[plain] = (plain, [peer.python, script])
        chosen[f"{name} {peer.version}" if name != "torch.profiler" else name] = (
            plain,
            command(peer),
        )
    return chosen, absent


def cost(command: list[str]) -> Cost | None:
    """What a command takes, in a folder of its own; None if it fails."""
    env = quiet_environment() | {"PYTHONPYCACHEPREFIX": str(ROOT / ".cache" / "bytecode")}
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "said"), "w+b") as said:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdout=said, stderr=said, start_new_session=True
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            last = (
                said.read().decode(errors="replace").strip().splitlines() or ["nothing was said"]
            )[-1]
            print(
                f"{' '.join(command)[:160]} ended with {process.returncode}: {last}",
                file=sys.stderr,
            )
            return None
    return used.ru_utime + used.ru_stime, wall


def measure(name: str, rounds: int, peer_rounds: int, with_peers: bool) -> None:
    """Run all variants of an example, and print their figures."""
    example = TRAININGS[name]
    with tempfile.TemporaryDirectory() as place:
        commands, absent = variants(shutil.copy(EXAMPLES / name / "main.py", place), with_peers)
        taken: dict[str, list[tuple[Cost, Cost]]] = {variant: [] for variant in commands}
        failed = {
            variant for variant in commands if cost([*commands[variant][1], *example.short]) is None
        }  # this first run also compiles the bytecode
        for turn in range(rounds):
            names = [
                v
                for v in commands
                if v not in failed and (v in ("python", "voirkit") or turn < peer_rounds)
            ]
            for variant in names[turn % len(names) :] + names[: turn % len(names)]:
                short, long = (
                    cost([*commands[variant][1], *words]) for words in (example.short, example.long)
                )
                if short is not None and long is not None:
                    taken[variant].append((short, long))
    for variant, (plain, _) in commands.items():
        if taken[variant]:
            print(line(name, variant, example, taken[variant], taken[plain]), flush=True)
        else:
            print(f"{name:10} {variant:28} failed", flush=True)
    for variant, why in absent.items():
        print(f"{name:10} {variant:28} {why}", flush=True)


def line(
    name: str,
    variant: str,
    example: Example,
    own: list[tuple[Cost, Cost]],
    plain: list[tuple[Cost, Cost]],
) -> str:
    """The figures of a variant."""
    rounds = list(zip(own, plain, strict=False))
    text = f"{name:10} {variant:28}"
    for i in (0, 1):
        whole = [mine[1][i] / theirs[1][i] for mine, theirs in rounds]
        text += (
            f" {statistics.median(mine[1][i] for mine in own):7.2f} {statistics.median(whole):7.3f}"
        )
        text += f" {f'{min(whole):.3f}-{max(whole):.3f}':>12}"
        if i == 0:
            few, many = example.steps
            steps = [
                (mine[1][0] - mine[0][0]) / (theirs[1][0] - theirs[0][0]) for mine, theirs in rounds
            ]
            a_step = statistics.median(
                (theirs[1][0] - theirs[0][0]) / (many - few) for _, theirs in rounds
            )
            fixed = [
                mine[0][0] - theirs[0][0] - (ratio - 1) * a_step * few
                for (mine, theirs), ratio in zip(rounds, steps, strict=True)
            ]
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
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--peer-rounds", type=int, default=1)
    options = parser.parse_args()
    print(
        f"{'example':10} {'variant':28} {'CPU, s':>7} {'ratio':>7} {'of rounds':>12} {'a step':>7} {'of rounds':>12} {'fixed':>6}"
        f" {'from':>7} {'wall, s':>7} {'ratio':>7} {'of rounds':>12}"
    )
    for example in options.examples.split(","):
        measure(example, options.rounds, options.peer_rounds, options.peers)


if __name__ == "__main__":
    main()
