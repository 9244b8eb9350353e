"""What recording calls costs: a call, a training loop, the start, the bytes; and TrainCheck's beside it, where it is installed.

    python benchmarks/calls.py [--rounds 7] [--only call|loop|start|bytes|traincheck] [--traincheck PYTHON]

A call: the median over rounds of what the quickest of several batches of calls takes more with ``--calls`` on than off, by turns in one
process. The loop: CPU time of 40 steps of a 784-128-64-10 perceptron (batches of 64, Adam), which is what reference figures for TrainCheck
are of; plain python and voirkit by turns, each in a process of its own, ratios side by side. The start: CPU time of a script that imports
torch, trains nothing and ends. TrainCheck needs an environment of its own (``pip install traincheck``), whose python is named.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

from startup import cpu_ms

LOOP = """
import gc, sys, time
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 128), nn.Linear(128, 64), nn.Linear(64, 10)

    def forward(self, x):
        return F.log_softmax(self.fc3(F.relu(self.fc2(F.relu(self.fc1(x))))), dim=1)

def train(steps):
    loader = DataLoader(TensorDataset(torch.randn(64 * steps, 784), torch.randint(0, 10, (64 * steps,))), batch_size=64, shuffle=True)
    loss = None
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return loss

torch.manual_seed(0)
torch.set_num_threads(1)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
gc.collect()  # whether a full collection, 0.1 s with torch, falls into the loop is chance
first = time.process_time()
train(1)
gc.collect()
began = time.process_time()
loss = train(int(sys.argv[1]))
print(time.process_time() - began, loss.item().hex())
"""
STEPS = 40, 400
START = "import torch\n"
VARIANTS = {
    text: text.split() for text in ("--calls", "--calls torch", "--calls torch --calls-every 10")
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=["call", "loop", "start", "bytes", "traincheck"])
    parser.add_argument(
        "--traincheck", metavar="PYTHON", help="of an environment that has traincheck"
    )
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    parts: dict[str, Callable[[], None]] = {
        "call": lambda: call(options.rounds),
        "loop": lambda: loop(options.rounds),
        "start": lambda: start(options.rounds),
        "bytes": at_rest,
        "traincheck": lambda: traincheck(options.traincheck, min(options.rounds, 3)),
    }
    for name, part in parts.items():
        if options.only in (None, name):
            part()


def kinds() -> dict[str, Callable[[], Any]]:
    """What is called."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    x, w, b, one = torch.zeros(2, 2), torch.zeros(2, 2), torch.zeros(2), nn.Identity()
    tensors = [torch.zeros(2) for _ in range(6)]
    return {
        "torch.is_tensor(x)": lambda: torch.is_tensor(x),
        "F.linear(x, w, b), in C": lambda: F.linear(x, w, b),
        "F.relu(x), of Python": lambda: F.relu(x),
        "F.relu(x, inplace=False)": lambda: F.relu(x, inplace=False),
        "torch.stack of 6 tensors": lambda: torch.stack(tensors),
        "a module": lambda: one(x),
    }


def call(rounds: int) -> None:
    """Print what each kind of call costs more while it is recorded."""
    import torch

    from voirkit.trace import recorder
    from voirkit_instruments.calls.record import Tracing, engine

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        recorder.begin(place, limit=1 << 40)
        tracing = Tracing(engine(), recorder, sys.exit, ["torch"])
        tracing.start()
        figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in kinds()}
        for _ in range(rounds):
            for name, what in kinds().items():
                row = []
                for on in (False, True):
                    tracing._switch(on)
                    before = tracing._engine.totals()[0]
                    what()
                    seen = tracing._engine.totals()[0] - before
                    row.append(min(timeit.repeat(what, number=2000, repeat=7)) / 2000 * 1e6)
                figures[name].append((row[0], row[1], seen))
        tracing.end()
        recorder.end()
    print(f"{'microseconds of one':42} {'off':>8} {'on':>8} {'calls':>6} {'a call':>8}")
    for name, rows in figures.items():
        off, on, seen = (statistics.median(column) for column in zip(*rows, strict=True))
        more = statistics.median((b - a) / n for a, b, n in rows)
        print(f"{name:42} {off:8.2f} {on:8.2f} {seen:6.0f} {more:8.2f}")


def _run(command: list[str], folder: Path, env: dict[str, str]) -> tuple[float, str]:
    """What the loop says it took, in seconds of CPU, and its loss."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    seconds, loss = done.stdout.split()[-2:]
    return float(seconds), loss


def _place(place: str) -> tuple[Path, dict[str, str]]:
    folder = Path(place)
    (folder / "loop.py").write_text(LOOP)
    (folder / "start.py").write_text(START)
    env = {
        k: v
        for k, v in os.environ.items()
        if k not in ("PYTHONDONTWRITEBYTECODE", "DATA_FD", "VOIRFILE")
    }
    return folder, {**env, "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "OMP_NUM_THREADS": "1"}


def _voirkit(*options: str) -> list[str]:
    return [sys.executable, "-m", "voirkit", "--quiet", "--run-dir", "run", *options]


def loop(rounds: int) -> None:
    """Print what the loop takes with each variant, against plain python."""
    with tempfile.TemporaryDirectory() as place:
        folder, env = _place(place)
        for steps in STEPS:
            rows: list[dict[str, float]] = []
            losses = set()
            events = {}
            for _ in range(rounds + 1):
                row = {}
                ours = {name: _voirkit(*options) for name, options in VARIANTS.items()}
                for name, command in {
                    "python": [sys.executable],
                    "voirkit": _voirkit(),
                    **ours,
                }.items():
                    row[name], loss = _run([*command, "loop.py", str(steps)], folder, env)
                    losses.add(loss)
                    found = (
                        json.loads((folder / "run" / "summary.json").read_text())
                        if name != "python"
                        else {}
                    )
                    events[name] = (found.get("calls") or {}).get("events", 0)
                rows.append(row)
            del rows[0]  # it made the bytecode
            print(
                f"\n{str(steps) + ' steps of the perceptron':42} {'CPU, ms':>8} {'ratio':>7} {'calls':>7} {'us a call':>10}"
            )
            for name in rows[0]:
                took = statistics.median(row[name] for row in rows) * 1e3
                ratio = statistics.median(row[name] / row["python"] for row in rows)
                more = statistics.median(row[name] - row["voirkit"] for row in rows) * 1e6
                a_call = f"{more / events[name]:10.2f}" if events[name] else ""
                print(f"{name:42} {took:8.1f} {ratio:7.2f} {events[name]:7} {a_call}")
            print("losses are bit-identical" if len(losses) == 1 else f"LOSSES DIFFER: {losses}")


def start(rounds: int) -> None:
    """Print what the start of a script that imports torch takes."""
    with tempfile.TemporaryDirectory() as place:
        folder, env = _place(place)
        commands = {
            "voirkit": _voirkit(),
            **{name: _voirkit(*options) for name, options in VARIANTS.items()},
        }
        rows = [
            {
                name: cpu_ms([*command, "start.py"], folder, env)
                for name, command in commands.items()
            }
            for _ in range(rounds + 1)
        ]
        del rows[0]  # it made the bytecode
        print(f"\n{'a script that imports torch':42} {'CPU, ms':>8} {'more':>7}")
        for name in commands:
            more = statistics.median(row[name] - row["voirkit"] for row in rows)
            print(f"{name:42} {statistics.median(row[name] for row in rows):8.0f} {more:7.0f}")


def at_rest() -> None:
    """Print what a call takes on the disk when the run has ended."""
    with tempfile.TemporaryDirectory() as place:
        folder, env = _place(place)
        print(f"\n{'bytes of a call at rest':42} {'calls':>8} {'bytes':>9} {'a call':>7}")
        for steps in STEPS:
            for name, options in list(VARIANTS.items())[:2]:
                _run([*_voirkit("--compact", *options), "loop.py", str(steps)], folder, env)
                events = json.loads((folder / "run" / "summary.json").read_text())["calls"][
                    "events"
                ]
                trace = folder / "run" / "trace"
                size = sum(
                    file.stat().st_size
                    for kind in ("call", "operand")
                    for file in trace.glob(f"kind={kind}/**/*.parquet")
                )
                print(
                    f"{name + ', ' + str(steps) + ' steps':42} {events:8} {size:9} {size / events:7.1f}"
                )


def traincheck(python: str | None, rounds: int) -> None:
    """Print what TrainCheck's own collector makes of the same loop."""
    if python is None:
        print("\nTrainCheck is not measured: --traincheck names no python that has it.")
        return
    with tempfile.TemporaryDirectory() as place:
        folder, env = _place(place)
        collect = str(Path(python).parent / "traincheck-collect")
        plain, traced, lines = [], [], 0
        for _ in range(rounds):
            plain.append(_run([python, "loop.py", "40"], folder, env)[0])
            shutil.rmtree(folder / "out", ignore_errors=True)
            command = [collect, "-p", "loop40.py", "-t", "torch", "--output-dir", "out"]
            (folder / "loop40.py").write_text(LOOP.replace("int(sys.argv[1])", "40"))
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
            if done.returncode:  # such as where torch is built for a GPU and there is none
                print(
                    f"\nTrainCheck does not run here: {(done.stdout + done.stderr).strip().splitlines()[-1]}"
                )
                return
            output = (folder / "out" / "program_output.txt").read_text()
            traced.append(
                float(
                    next(line.split()[0] for line in reversed(output.splitlines()) if "0x" in line)
                )
            )
            lines = sum(
                file.read_bytes().count(b"\n") for file in (folder / "out").glob("trace_API_*")
            )
        ratio = statistics.median(b / a for a, b in zip(plain, traced, strict=True))
        print(
            f"\n{'TrainCheck, 40 steps':42} {statistics.median(traced) * 1e3:8.0f} {ratio:7.1f} {lines // 2:7} (with those before main())"
        )


if __name__ == "__main__":
    main()
