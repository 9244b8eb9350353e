"""What ``--loader`` costs: a record, an epoch of photographs, bytes a sample at rest; beside py-spy and torch.profiler.

    python benchmarks/loader.py [--rounds 14] [--images 200] [--only record|epoch|rest|others]

Record: transforms and samples that do nothing, without and with the instrument in one process; what is more, by the number of records.
Epoch: CPU time of one epoch over JPEGs of 500x400 (RandomResizedCrop, flip, ToTensor, Normalize, batches of 32) read by the process itself,
without and with the instrument by turns; the median of the ratios of pairs, and what was recorded times the cost of a record. A second
series without it on both sides says how much of the ratio is noise. Patching, once a run, is told apart.
Rest: the size of the trace of a whole run with two workers, by samples. Others: CPU time (user and system, with children) of whole runs
with two workers, plain and under each tool, of two lengths; the ratio of what the longer took more. For its line py-spy must be there.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time_ns
from typing import Any

from startup import cpu_ms

PROGRAM = """
import sys
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
torch.set_num_threads(1)

def loader(folder, workers):
    normalize = T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    data = ImageFolder(folder, T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), normalize]))
    return DataLoader(data, batch_size=32, shuffle=True, num_workers=workers)

if __name__ == "__main__":
    data = loader(sys.argv[1], 2)
    for epoch in range(int(sys.argv[2])):
        for batch in data:
            pass
"""
PROFILED = """
import runpy, sys
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
profiler.export_chrome_trace("profile.json")
"""
EMPTY = """
from torch.utils.data import DataLoader, Dataset
class Nothing:
    def __call__(self, x):
        return x
class More(Nothing):
    def __call__(self, x):
        return x
def function(x):
    return x
def together(samples):
    return samples
class Empty(Dataset):
    def __init__(self, n):
        self.n, self.one, self.two, self.three, self.four = n, Nothing(), More(), function, lambda x: x
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        return self.four(self.three(self.two(self.one(i))))
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--only", choices=["record", "epoch", "rest", "others"])
    options = parser.parse_args()
    wanted = [options.only] if options.only else ["record", "epoch", "rest", "others"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "program.py").write_text(PROGRAM)
        (folder / "profiled.py").write_text(PROFILED)
        (folder / "empty.py").write_text(EMPTY)
        sys.path.insert(0, place)
        draw(folder / "images", options.images)
        cost_us = record(folder, options.rounds) if {"record", "epoch"} & set(wanted) else 0.0
        if "epoch" in wanted:
            epoch(folder, options.rounds, options.images, cost_us)
        if "rest" in wanted:
            rest(folder, options.images)
        if "others" in wanted:
            others(folder, options.rounds, options.images)


def draw(folder: Path, count: int) -> None:
    """Make photographs of some 77 kB: soft shapes with grain."""
    import numpy as np
    from PIL import Image

    for n in range(count):
        where = folder / "ab"[n % 2] / f"{n}.jpg"
        where.parent.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(n)
        soft = Image.fromarray(random.integers(0, 256, (10, 12, 3), dtype=np.uint8)).resize(
            (500, 400), Image.Resampling.BICUBIC
        )
        grain = random.normal(0, 11, (400, 500, 1))
        Image.fromarray((np.asarray(soft) + grain).clip(0, 255).astype(np.uint8)).save(
            where, quality=90
        )


def cpu_ns(work: Callable[[], object]) -> int:
    """CPU time of this process for some work."""
    began = process_time_ns()
    work()
    return process_time_ns() - began


def watched(folder: Path) -> Callable[[], Any]:
    """Begins to record into files, and tells how the instrument is put in place."""
    from voirkit.processes.children import this_process
    from voirkit.trace import recorder
    from voirkit_instruments.loader.record import start_recording

    if not recorder.is_recording():
        recorder.begin(str(folder / "here"))
    return lambda: start_recording(recorder, this_process(), [])


def record(folder: Path, rounds: int) -> float:
    """Microseconds of CPU a record."""
    from empty import Empty, together  # type: ignore[import-not-found]  # written above
    from torch.utils.data import DataLoader

    data, samples = Empty(10_000), 10_000
    put = watched(folder)

    def work() -> None:
        for _ in DataLoader(data, batch_size=500, collate_fn=together):
            pass

    costs = []
    for _ in range(rounds + 1):
        plain = cpu_ns(work)
        patches = put()
        work()  # the functions are compiled, and looked up again
        costs.append((cpu_ns(work) - plain) / (5 * samples) / 1000)
        patches.remove()
    cost = statistics.median(costs[1:])
    print(
        f"record     {cost:.2f} us of CPU a record (range {min(costs[1:]):.2f}-{max(costs[1:]):.2f})"
    )
    return cost


def epoch(folder: Path, rounds: int, images: int, cost_us: float) -> None:
    """An epoch without and with, alternately."""
    import torch
    from program import loader  # type: ignore[import-not-found]  # written above

    put, data = watched(folder), loader(str(folder / "images"), 0)

    def work() -> None:
        torch.manual_seed(0)
        for _ in data:
            pass

    work()
    ratios, noise, per_sample, patching = [], [], [], []
    for _ in range(rounds):
        first = cpu_ns(work)
        began = process_time_ns()
        patches = put()
        patches.prepare(data.dataset, data.collate_fn, False)
        patching.append((process_time_ns() - began) / 1e6)
        on = cpu_ns(work)
        patches.remove()
        second = cpu_ns(work)
        ratios.append(on / ((first + second) / 2))
        noise.append(second / first)
        per_sample.append(first / images / 1e6)
    sample_ms = statistics.median(per_sample)
    records = (
        6 + 4 / 32
    )  # a sample: read, four transforms, itself; a batch: prepared, its processor time, put together, waited for and had
    print(
        f"epoch      {images} images, {sample_ms:.2f} ms of CPU a sample; ratio with to without: median {statistics.median(ratios):.4f}"
    )
    print(
        f"           (range {min(ratios):.3f}-{max(ratios):.3f}; plain to plain: median {statistics.median(noise):.4f},"
    )
    print(
        f"           range {min(noise):.3f}-{max(noise):.3f}); {records:.1f} records a sample at {cost_us:.2f} us are"
    )
    print(
        f"           {records * cost_us / sample_ms / 10:.2f} % of a sample; patching, once a run: {statistics.median(patching):.0f} ms"
    )


def _environment() -> dict[str, str]:
    return {
        **{k: v for k, v in os.environ.items() if k not in ("DATA_FD", "VOIRFILE")},
        "OMP_NUM_THREADS": "1",
    }


def rest(folder: Path, images: int, epochs: int = 5) -> None:
    """Bytes a sample in the finished run directory."""
    ours = [
        sys.executable,
        "-m",
        "voirkit",
        "--quiet",
        "--loader",
        "--compact",
        "--run-dir",
        "run",
        "program.py",
        "images",
        str(epochs),
    ]
    subprocess.run(ours, cwd=folder, env=_environment(), check=True)
    kept = sum(
        file.stat().st_size
        for file in (folder / "run" / "trace" / "kind=loader").rglob("*")
        if file.is_file()
    )
    print(
        f"rest       {kept / images / epochs:.1f} bytes a sample ({kept} bytes, {images * epochs} samples, all records of the loader)"
    )


def others(folder: Path, rounds: int, images: int) -> None:
    """Whole runs under other tools."""
    python = sys.executable
    variants = {
        "plain": [python],
        "plain again": [python],
        "voirkit --loader": [
            python,
            "-m",
            "voirkit",
            "--quiet",
            "--loader",
            "--run-dir",
            "run",
            "--force",
        ],
        "torch.profiler": [python, "profiled.py"],
    }
    spy = Path(sys.executable).parent / "py-spy"
    if spy.exists():
        variants["py-spy 100 Hz"] = [
            str(spy),
            "record",
            "-s",
            "-f",
            "raw",
            "-o",
            "spied",
            "--",
            python,
        ]
    ratios: dict[str, list[float]] = {name: [] for name in variants}
    for n in range(rounds):
        took = {}
        names = list(variants)[n % len(variants) :] + list(variants)[: n % len(variants)]
        for name in names:
            long, short = (
                cpu_ms(
                    [*variants[name], "program.py", "images", str(epochs)], folder, _environment()
                )
                for epochs in (6, 1)
            )
            took[name] = long - short
        for name in names:
            ratios[name].append(took[name] / took["plain"])
    for name, found in ratios.items():
        spread = f"(range {min(found):.2f}-{max(found):.2f})"
        print(
            f"others     {name:18} {statistics.median(found):.3f} x plain {spread}, CPU of {5 * images} samples"
        )


if __name__ == "__main__":
    main()
