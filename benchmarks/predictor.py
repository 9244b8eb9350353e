"""How far the rates hold that ``--loader`` predicts for other numbers of workers: six kinds of datasets, predicted and measured.

    python benchmarks/predictor.py [--kinds tiny,slow,...] [--workers 0,1,2,4] [--from 0,2] [--rounds 3] [--steps 60]

Each script is run with ``--loader`` and as many workers as ``--from`` says, for the prediction, and in turn without it for each number of
workers, as ``--what-if workers=N --stop STEPS`` does; the rate measured is the median of the rounds. Run it on a machine that has nothing
else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from typing import Any

import duckdb

from voirkit_instruments.what_if.record import started_with

_BEGIN = """
import io, sys, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.set_num_threads(1)
"""
_TRAIN = """
if __name__ == "__main__":
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    optimizer = None
    while True:
        for x, y in DataLoader(data, batch_size=SIZE, collate_fn=collate, num_workers=0, persistent_workers=False):
            x = x.float()
            if optimizer is None:
                model(x)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
"""
KINDS = {
    "tiny": """
SIZE, WIDTH, collate = 64, 64, None
data = TensorDataset(torch.randn(64 * 400, 32), torch.arange(64 * 400) % 2)
""",
    "slow python": """
class Data(Dataset):
    def __len__(self): return 16 * 400
    def __getitem__(self, i):
        total = 0
        for k in range(20_000): total += k * i % 7
        return torch.full((32,), float(total % 5)), i % 2
SIZE, WIDTH, collate, data = 16, 256, None, Data()
""",
    "decode": """
from PIL import Image
class Data(Dataset):
    def __init__(self):
        self.files = []
        for seed in range(16):
            file = io.BytesIO()
            Image.fromarray(np.random.default_rng(seed).integers(0, 255, (160, 200, 3), np.uint8)).resize((500, 400)).save(file, "jpeg")
            self.files.append(file.getvalue())
    def __len__(self): return 16 * 400
    def __getitem__(self, i):
        picture = Image.open(io.BytesIO(self.files[i % 16])).convert("RGB").resize((64, 64))
        return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1), i % 2
SIZE, WIDTH, collate, data = 16, 64, None, Data()
""",
    "waiting": """
class Data(Dataset):
    def __len__(self): return 8 * 400
    def __getitem__(self, i):
        time.sleep(0.004)
        return torch.ones(32), i % 2
SIZE, WIDTH, collate, data = 8, 64, None, Data()
""",
    "large": """
class Data(Dataset):
    def __len__(self): return 4 * 400
    def __getitem__(self, i): return torch.full((1 << 19,), float(i)), i % 2
SIZE, WIDTH, collate, data = 4, 2, None, Data()
""",
    "tokenizing collate": """
class Data(Dataset):
    def __len__(self): return 32 * 400
    def __getitem__(self, i): return " ".join(f"word{(i * k) % 997}" for k in range(120)), i % 2
vocabulary = {f"word{k}": k for k in range(997)}
def collate(samples):
    rows = [[vocabulary.get(word.strip(".,").lower(), 0) for word in text.split()] for text, _ in samples]
    return torch.tensor(rows), torch.tensor([y for _, y in samples])
SIZE, WIDTH, data = 32, 256, Data()
""",
}


def run(folder: str, script: str, steps: int, workers: int, *flags: str) -> str:
    """Run a script once with some workers; returns its run directory."""
    run_dir = os.path.join(folder, "run")
    shutil.rmtree(run_dir, ignore_errors=True)
    setting = ["--what-if-setting", f"workers={workers}", "--stop", str(steps)]
    words = ["--compact", *setting, *flags, script]
    subprocess.run(**started_with(run_dir, words), stdout=subprocess.DEVNULL, check=True)
    return run_dir


def predict(run_dir: str) -> dict[int, float]:
    """The rate that ``--loader`` predicts for each number of workers."""
    with open(os.path.join(run_dir, "summary.json"), encoding="utf-8") as file:
        summary: dict[str, Any] = json.load(file)
    return {row["workers"]: row["rate"] for row in summary["loader"]["predicted"]}


def measure(run_dir: str) -> float:
    """Items per second of all steps but the first quarter, in which workers start and the queue is filled."""
    steps = os.path.join(run_dir, "steps", "rank=0.parquet")
    query = "SELECT items, time_ns FROM read_parquet(?) WHERE task = 'train' ORDER BY start_ns"
    rows = duckdb.execute(query, [steps]).fetchall()
    rows = rows[len(rows) // 4 :]
    items, time_ns = (sum(row[i] for row in rows) for i in range(2))
    return items / time_ns * 1e9 if time_ns else float("nan")


def main() -> None:
    """Run, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--workers", default="0,1,2,4")
    parser.add_argument("--from", default="0,2", dest="begun")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    workers, begun = (
        [int(n) for n in text.split(",")] for text in (options.workers, options.begun)
    )
    print(
        f"{'items/s':>20}{'workers':>9}{'measured':>11}"
        + "".join(f"{f'from {n}':>11}{'off':>7}" for n in begun),
        flush=True,
    )
    off: dict[int, list[float]] = {n: [] for n in begun}
    with tempfile.TemporaryDirectory(prefix="voirkit-predictor-") as folder:
        for kind in options.kinds.split(","):
            script = os.path.join(folder, f"{kind.replace(' ', '_')}.py")
            with open(script, "w", encoding="utf-8") as file:
                file.write(_BEGIN + KINDS[kind] + _TRAIN)
            rates: dict[int, list[float]] = {n: [] for n in workers}
            tables: dict[int, list[dict[int, float]]] = {n: [] for n in begun}
            for _ in range(options.rounds):
                for n in begun:
                    tables[n].append(predict(run(folder, script, options.steps, n, "--loader")))
                for n in workers:
                    rates[n].append(measure(run(folder, script, options.steps, n)))
            for n in workers:
                measured = statistics.median(rates[n])
                line = f"{kind:>20}{n:>9}{measured:>11,.0f}"
                for first in begun:
                    predicted = statistics.median(one[n] for one in tables[first])
                    off[first].append(predicted / measured - 1)
                    line += f"{predicted:>11,.0f}{off[first][-1]:>+7.0%}"
                print(line, flush=True)
    for n, shares in off.items():
        within = sum(abs(share) <= 0.25 for share in shares)
        print(
            f"from {n} workers: {within} of {len(shares)} within 25 %, the median {statistics.median(map(abs, shares)):.0%} off"
        )


if __name__ == "__main__":
    main()
