"""How often ``voirkit compare`` calls equal runs different, and how often it finds a planted 5 %.

First made-up step times, then runs of two scripts: one whose steps wait (for 4 ms each), one that computes (needs torch). A run is planted
by making all its steps 5 % longer. What is recorded in FOLDER already is used; so a folder can be filled bit by bit.

    python benchmarks/compare.py [--runs N] [FOLDER]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path
from typing import Any

import numpy as np

from voirkit.analysis.document import estimates
from voirkit.analysis.run_steps import read_steps
from voirkit.analysis.significance import Estimate, difference, median_of_steps
from voirkit.analysis.summary import summary_of
from voirkit.report.comparison import STEP, Side, figures
from voirkit.runs.opened import open_run

PAIRS = 200
PLANTED = log(1.05)
GROUPS = (1, 3, 5, 10, 20)  # runs a side

WAITING = """
import time
from voirkit.trace import recorder

def span(category, name, seconds, number=0, **arguments):
    value = "items" if number else None
    begun = recorder.now()
    time.sleep(seconds)
    recorder.span(recorder.name(category, name, kind="phase", value=value), begun, recorder.now(), recorder.arguments(arguments), number)

for step in range(200):
    span("dataloader", "fetch", 0.002, 4, loader=0, episode=0)
    span("compute", "forward", 0.0005, module="Net", training=True, grad=True)
    span("compute", "backward", 0.001)
    span("compute", "step", 0.0005, optimizer="SGD", which=0)
span("dataloader", "end", 0, loader=0, episode=0)
"""

COMPUTING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64 * 400, 256), torch.randint(0, 10, (64 * 400,)))
for x, y in DataLoader(data, batch_size=64):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


def autoregressive(rng: np.random.Generator, n: int, of_last: float, spread: float) -> Any:
    """Step times each of which is like the one before, as a part."""
    shocks = rng.normal(0, spread * (1 - of_last**2) ** 0.5, n)
    values = [rng.normal(0, spread)]
    for shock in shocks[1:]:
        values.append(of_last * values[-1] + shock)
    return np.exp(values)


def bursts(rng: np.random.Generator, n: int) -> Any:
    """Step times that are half as long again for 20 steps, at 80 steps' distance on average."""
    edges = np.cumsum(rng.exponential([80, 20], (n // 20, 2)).ravel())
    return np.exp(rng.normal(0, 0.05, n)) * np.where(
        np.searchsorted(edges, np.arange(n)) % 2, 1.5, 1.0
    )


MADE_UP: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "independent, 10 % each": lambda rng, n: autoregressive(rng, n, 0, 0.1),
    "autocorrelated (0.5), 10 %": lambda rng, n: autoregressive(rng, n, 0.5, 0.1),
    "autocorrelated (0.9), 10 %": lambda rng, n: autoregressive(rng, n, 0.9, 0.1),
    "bursts": bursts,
    "a drift of 10 %": lambda rng, n: autoregressive(rng, n, 0, 0.08) * np.linspace(1, 1.1, n),
    "a tenth stalls, 5 times as long": lambda rng, n: (
        autoregressive(rng, n, 0, 0.05) + 4 * (rng.random(n) < 0.1)
    ),
    "every other 30 % longer": lambda rng, n: (
        autoregressive(rng, n, 0, 0.08) * np.where(np.arange(n) % 2, 1.3, 1.0)
    ),
}


def row(*cells: object) -> None:
    print(" | ".join(["", *map(str, cells), ""]).strip(), flush=True)


def made_up() -> None:
    """A table of made-up step times."""
    row("step times", "steps", "equal, steps alone", "equal", "5 % found", "interval")
    row(*["---"] * 6)
    for name, series in MADE_UP.items():
        for n in (300, 1000, 5000):
            rng = np.random.default_rng(n)
            alone, equal, found, reach = [], [], [], []
            for _ in range(PAIRS):
                a, b = (median_of_steps(series(rng, n)) or Estimate(0.0) for _ in range(2))
                told = difference([a], [b])
                alone.append(difference([a], [b], between=0).significant)
                equal.append(told.significant)
                found.append(difference([a], [planted(b)]).significant)
                reach.append(log(told.high / told.low) / 2)
            row(
                name,
                n,
                *(f"{np.mean(one):.1%}" for one in (alone, equal, found)),
                f"± {np.mean(reach):.1%}",
            )


def planted(estimate: Estimate) -> Estimate:
    """The same of a run whose steps are all 5 % longer."""
    return estimate._replace(value=estimate.value + PLANTED)


def record(script: str, folder: Path, n: int) -> list[Path]:
    """So many runs of a script, those that are there already among them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "main.py").write_text(script)
    runs = sorted(path.parent for path in folder.glob("*/summary.json"))
    for i in range(len(runs), n):
        words = ["--quiet", "--run-dir", f"run{i:04}", "main.py"]
        subprocess.run(
            [sys.executable, "-m", "voirkit", *words], cwd=folder, check=True, capture_output=True
        )
        runs.append(folder / f"run{i:04}")
    return runs[:n]


def side_of(path: Path) -> Side:
    """What compare reads of a run."""
    with open_run(str(path)) as run:
        return Side([summary_of(run)], [path.name], [run], [estimates(read_steps(run))])


def joined(sides: Sequence[Side]) -> Side:
    """Runs as one side."""
    parts: list[list[Any]] = [
        [one for side in sides for one in getattr(side, name)]
        for name in ("summaries", "names", "runs", "estimates")
    ]
    return Side(*parts)


def plant(side: Side) -> Side:
    """The same with steps that are all 5 % longer."""
    longer = [
        {**one, STEP: planted(step)} if (step := one.get(STEP)) is not None else one
        for one in side.estimates
    ]
    return Side(side.summaries, side.names, side.runs, longer)


def measured(name: str, runs: Sequence[Side]) -> None:
    """Rows of a table of recorded runs that follow each other: by turns one of each side, or all of one before the other's."""
    values = [step.value for one in runs if (step := one.estimates[0].get(STEP)) is not None]
    differ = f"{np.std(values, ddof=1):.1%}"
    assumed = np.mean([one.between_runs(STEP) for one in runs])
    rows_shown = [
        (size, in_turn)
        for size in GROUPS
        for in_turn in (True, False)
        if 2 * size <= len(runs) and (in_turn or size > 1)
    ]
    for size, in_turn in rows_shown:
        begins = np.unique(np.linspace(0, len(runs) - 2 * size, PAIRS).astype(int))
        equal, others, found, reach = [], [], [], []
        for rows in (runs[at : at + 2 * size] for at in begins):
            first, second = (rows[::2], rows[1::2]) if in_turn else (rows[:size], rows[size:])
            sides = joined(first), joined(second)
            told = figures(*sides)
            step = next(one.difference for one in told if one.place == STEP)
            assert step is not None
            equal.append(step.significant)
            others.append(
                any(
                    one.difference.significant
                    for one in told
                    if one.place != STEP and one.difference is not None
                )
            )
            with_plant = next(
                one.difference for one in figures(sides[0], plant(sides[1])) if one.place == STEP
            )
            found.append(with_plant is not None and with_plant.significant)
            reach.append(log(step.high / step.low) / 2)
        shares = (f"{np.mean(one):.1%}" for one in (equal, others, found))
        how = "in turn" if in_turn else "one side first"
        row(
            name,
            f"{assumed:.1%}",
            differ,
            size,
            how,
            len(begins),
            *shares,
            f"± {np.mean(reach):.1%}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--runs", type=int, default=2 * PAIRS)
    options = parser.parse_args()
    made_up()
    print()
    row(
        "script",
        "assumed",
        "runs differ by",
        "runs a side",
        "recorded",
        "comparisons",
        "equal",
        "another figure",
        "5 % found",
        "interval",
    )
    row(*["---"] * 10)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        for name, script in (("waits", WAITING), ("computes", COMPUTING)):
            measured(name, [side_of(path) for path in record(script, folder / name, options.runs)])


if __name__ == "__main__":
    main()
