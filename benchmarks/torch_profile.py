"""What ``--torch-profile`` and ``--memory-snapshot`` cost, beside ``torch.profiler`` in the script itself.

    python benchmarks/torch_profile.py [--rounds 5] [--steps 300]

A small transformer is trained on the CPU in one thread, in interleaved processes; each step tells the processor time of its thread. The
window is steps 100 to 109. Printed: milliseconds of a step outside and in the window (medians over all rounds), their ratio, and the
processor time of the loop that is in no step: batches, and beginning, ending and writing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

FIRST, LAST = 100, 110
SCRIPT = """
import json, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
steps, bare = int(sys.argv[1]), sys.argv[2] == "bare"
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(16 * steps, 12, 64), torch.randint(0, 4, (16 * steps, 12)))
profile = None
def written(profile):
    profile.export_chrome_trace("bare.json")
if bare:
    schedule = torch.profiler.schedule(skip_first=100, wait=0, warmup=0, active=10, repeat=1)
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule, on_trace_ready=written)
    profile.start()
took, began_all = [], time.thread_time_ns()
for x, y in DataLoader(data, batch_size=16):
    began = time.thread_time_ns()
    loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    took.append(time.thread_time_ns() - began)
    if profile is not None:
        profile.step()
if profile is not None:
    profile.stop()
all_ns = time.thread_time_ns() - began_all
with open(sys.argv[3], "w") as file:
    json.dump({"took": took, "all": all_ns, "loss": loss.item().hex()}, file)
"""
WINDOW = f"{FIRST}:0:{LAST - FIRST}"
VARIANTS = {
    "plain python": (None, "no"),
    "plain python, again": (None, "no"),
    "torch.profiler in the script": (None, "bare"),
    "voirkit": ([], "no"),
    "--torch-profile": ([f"--torch-profile={WINDOW}"], "no"),
    "--torch-profile --memory-snapshot": ([f"--torch-profile={WINDOW}", "--memory-snapshot"], "no"),
    "--memory-snapshot": (["--memory-snapshot"], "no"),
    "--memory-snapshot=tracemalloc": (["--memory-snapshot=tracemalloc"], "no"),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "main.py"), "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        for _ in range(options.rounds):
            for name, (flags, bare) in VARIANTS.items():
                found[name].append(run(folder, flags, bare, options.steps))
    losses = {one["loss"] for runs in found.values() for one in runs}
    print(f"losses at the end: {'bit-identical' if len(losses) == 1 else losses}")
    print(f"{'variant':36} {'outside ms':>10} {'in ms':>8} {'ratio':>6} {'begin+end ms':>13}")
    for name, runs in found.items():
        outside = (
            statistics.median(
                ns for one in runs for ns in one["took"][20:FIRST] + one["took"][LAST + 1 :]
            )
            / 1e6
        )
        inside = statistics.median(ns for one in runs for ns in one["took"][FIRST:LAST]) / 1e6
        rest = statistics.median(one["all"] - sum(one["took"]) for one in runs) / 1e6
        print(f"{name:36} {outside:10.3f} {inside:8.3f} {inside / outside:6.2f} {rest:13.1f}")


def run(folder: str, flags: list[str] | None, bare: str, steps: int) -> dict[str, Any]:
    """One run; what its script told."""
    told = os.path.join(folder, "told.json")
    before = (
        [sys.executable]
        if flags is None
        else [sys.executable, "-m", "voirkit", "--quiet", "--force", "--run-dir", "run", *flags]
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*before, "main.py", str(steps), bare, told],
        cwd=folder,
        check=True,
        env=environment,
        capture_output=True,
        timeout=600,
    )
    with open(told, encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


if __name__ == "__main__":
    main()
