"""What the steps instrument costs: each call that it stands around, and whole runs of the mlp example.

    python benchmarks/steps.py [--rounds 7] [--epochs 10] [--only step|calls|runs]

A step: the training step of the mlp example, blocks of 180 without and with the instrument by turns in one process, after 20 that are
not counted (patching makes python look all methods of tensors and modules up again, once a run); medians over the pairs of blocks.
Calls: the median over rounds of the quickest of several batches of calls, without and with the instrument in turn, in one process.
Runs: CPU time (user and system) of the mlp example, without (``--no-steps``) and with the instrument in turn; the ratio is the median
over the rounds of the ratio of a round, and the microseconds a step are what a long run takes beyond a short one, so that start-up is
not in them.
"""

from __future__ import annotations

import argparse
import os
import runpy
import statistics
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from time import process_time_ns
from typing import Any

from startup import cpu_ms

from voirkit.phases import SharedState

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = str(ROOT / "examples" / "mlp" / "main.py")

RECORDS = """
from voirkit.trace import recorder

def instrument_record(ov):
    yield ov.phases.load_script(priority=100)
    if not recorder.is_recording():
        recorder.begin(ov.run_dir)
    yield ov.phases.finalize
    recorder.end()
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--only", choices=["step", "calls", "runs"])
    options = parser.parse_args()
    if options.only in (None, "step"):
        step(options.rounds * 4)
    if options.only in (None, "calls"):
        calls(options.rounds)
    if options.only in (None, "runs"):
        runs(options.rounds, options.epochs)


class Overseer(SharedState):
    """What the instrument needs of one."""

    def __init__(self) -> None:
        self.summary: dict[str, Any] = {"dropped": {}}

    def warn(self, text: str) -> None:
        """Nothing is to be warned of."""
        raise SystemExit(text)


def step(pairs: int) -> None:
    """Print what the instrument adds to a step of the mlp example."""
    import torch
    from torch.utils.data import DataLoader

    from voirkit.trace import recorder
    from voirkit_instruments.steps.record import Steps

    torch.set_num_threads(1)
    mlp = runpy.run_path(SCRIPT)
    dataset = mlp["make_dataset"](12800, 0)
    model, criterion = mlp["make_model"](128), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    warm, batches = 20, 180

    def train(steps: int) -> None:
        chosen = torch.utils.data.Subset(dataset, range(steps * 64))
        mlp["train_epoch"](
            model, criterion, optimizer, DataLoader(chosen, batch_size=64), torch.device("cpu")
        )

    def block() -> float:
        train(warm)
        began = process_time_ns()
        train(batches)
        return (process_time_ns() - began) / 1e3 / batches

    rows = []
    with tempfile.TemporaryDirectory() as place:
        recorder.begin(place)
        overseer: Any = Overseer()
        for i in range(pairs + 2):
            row = {}
            for on in (False, True) if i % 2 else (True, False):
                steps = Steps(overseer)
                if on:
                    steps.start(torch)
                row[on] = block()
                own = steps._torch.recording.hot if steps._torch is not None else None
                if own is not None:
                    row["own"] = own.own_ns / 1e3 / (warm + batches)
                steps.end()
            rows.append(row)
        recorder.end()
    del rows[:2]
    middle = statistics.median
    print(f"a step of mlp, CPU: {middle(r[False] for r in rows):.0f} us without, ", end="")
    print(
        f"{middle(r[True] - r[False] for r in rows):.1f} us more with, ratio {middle(r[True] / r[False] for r in rows):.4f}; ",
        end="",
    )
    print(f"its own count says {middle(r['own'] for r in rows):.1f} us")


def kinds() -> dict[str, tuple[Callable[[], Any], int]]:
    """What is called, and how many of that are in one call."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    x, one = torch.zeros(2, 2), nn.Identity()
    deep = nn.Sequential(*[nn.Identity() for _ in range(100)])
    shallow = nn.Sequential()
    w = torch.zeros(1, requires_grad=True)
    y = (w * 1).sum()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    batches = iter(DataLoader(torch.zeros(1 << 22, 1), batch_size=None))
    return {
        "module call, outermost": (lambda: one(x), 1),
        "module call, one of 100 inside another": (lambda: deep(x), 100),
        "empty Sequential (for the line above)": (lambda: shallow(x), 1),
        "Tensor.to that copies nothing": (lambda: x.to("cpu"), 1),
        "Tensor.to that copies": (lambda: x.to(torch.float64), 1),
        "request for a batch": (lambda: next(batches), 1),
        "backward": (lambda: torch.autograd.backward(y, retain_graph=True), 1),
        "Optimizer.step": (optimizer.step, 1),
        "Optimizer.zero_grad": (optimizer.zero_grad, 1),
    }


def calls(rounds: int) -> None:
    """Print what each kind of call costs."""
    import torch

    from voirkit.trace import recorder
    from voirkit_instruments.steps.record import Steps

    overseer: Any = Overseer()
    torch.set_num_threads(1)
    figures: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in kinds()}
    with tempfile.TemporaryDirectory() as place:
        recorder.begin(place)
        for _ in range(rounds):
            for on in (0, 1):
                steps = Steps(overseer)
                if on:
                    steps.start(torch)
                for name, (call, many) in kinds().items():
                    quickest = min(timeit.repeat(call, number=2000 // many, repeat=5)) / (
                        2000 // many
                    )
                    figures[name][on].append(quickest / many * 1e6)
                steps.end()
        recorder.end()
    print(f"{'microseconds of one':42} {'without':>9} {'with':>9} {'more':>9}")
    for name, (without, with_) in figures.items():
        more = statistics.median(b - a for a, b in zip(without, with_, strict=True))
        print(
            f"{name:42} {statistics.median(without):9.2f} {statistics.median(with_):9.2f} {more:9.2f}"
        )


def runs(rounds: int, epochs: int) -> None:
    """Print what the instrument adds to the mlp example."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "records.py").write_text(RECORDS)
        env = {
            k: v
            for k, v in os.environ.items()
            if k not in ("PYTHONDONTWRITEBYTECODE", "DATA_FD", "VOIRFILE")
        }
        env.update(
            PYTHONPYCACHEPREFIX=str(folder / "bytecode"),
            OMP_NUM_THREADS="1",
            VOIRFILE=str(folder / "records.py"),
        )
        voirkit = [sys.executable, "-m", "voirkit", "--quiet", "--run-dir", "run"]
        variants = {
            "python": [sys.executable],
            "voirkit --no-steps": [*voirkit, "--no-steps"],
            "voirkit": voirkit,
        }
        rows: list[dict[str, tuple[float, float]]] = []
        for _ in range(rounds + 1):
            row = {}
            for name, command in variants.items():
                long = cpu_ms([*command, SCRIPT, "--epochs", str(epochs)], folder, env)
                short = cpu_ms([*command, SCRIPT, "--epochs", "1"], folder, env)
                row[name] = (
                    long,
                    (long - short) / (epochs - 1) / 200,
                )  # 12 800 points in batches of 64
            rows.append(row)
        del rows[0]  # it made the bytecode
    print(
        f"\n{'mlp, ' + str(epochs) + ' epochs of 200 steps':42} {'CPU, s':>9} {'to python':>10} {'a step, µs':>11} {'more, µs':>9}"
    )
    before = "python"
    for name in variants:
        cpu = statistics.median(row[name][0] for row in rows) / 1000
        ratio = statistics.median(row[name][0] / row["python"][0] for row in rows)
        step = statistics.median(row[name][1] for row in rows) * 1000
        more = statistics.median(row[name][1] - row[before][1] for row in rows) * 1000
        print(f"{name:42} {cpu:9.2f} {ratio:10.3f} {step:11.0f} {more:9.1f}")
        before = name


if __name__ == "__main__":
    main()
