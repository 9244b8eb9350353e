"""What ``--what-if read-ahead`` does to a loader that reads a file a sample: cold (dropped from memory) and warm.

Each setting runs in processes of its own, the two variants in turn, five times; epochs to learn in, then one of each kind that is timed.
The files are made below the current folder, or the one given, which must be on a disk.

    python benchmarks/what_if_read.py [FOLDER]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TURNS = 5
VARIANTS = ("plain", "read-ahead")
SIZES = {2 << 10: 2000, 64 << 10: 1000, 512 << 10: 200}
BATCH = 50


class Files:
    """A file for each sample."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> int:
        with open(self.paths[i], "rb") as file:
            return len(file.read())


def drop(paths: list[str]) -> None:
    """Have the kernel forget what is in files."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def measure(variant: str, folder: str, workers: int) -> list[float]:
    """Seconds of a cold and of a warm epoch."""
    import torch
    from torch.utils.data import DataLoader

    from voirkit.intercept import Patches
    from voirkit_instruments.what_if.record_changes import make_change

    torch.manual_seed(0)
    paths = [str(path) for path in sorted(Path(folder).iterdir())]
    if variant != "plain":
        make_change(variant, None).install(Patches())
    more = {"persistent_workers": True} if workers else {}
    loader = DataLoader(Files(paths), batch_size=BATCH, shuffle=True, num_workers=workers, **more)
    sum(1 for _ in loader)
    if workers:
        time.sleep(0.6)  # workers look twice a second at what others have learned
        sum(1 for _ in loader)
    found = []
    for cold in (True, False):
        if cold:
            drop(paths)
        began = time.perf_counter()
        sum(1 for _ in loader)
        found.append(time.perf_counter() - began)
    return found


def main() -> None:
    """Print µs a file."""
    if len(sys.argv) == 5 and sys.argv[1] == "--measure":
        print(*measure(sys.argv[2], sys.argv[3], int(sys.argv[4])))
        return
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as top:
        for size, n in SIZES.items():
            folder = os.path.join(top, str(size))
            os.mkdir(folder)
            for i in range(n):
                with open(os.path.join(folder, f"{i}"), "wb") as file:
                    file.write(os.urandom(size))
                    os.fsync(file.fileno())
            for workers in (0, 2):
                times: dict[str, list[list[float]]] = {variant: [] for variant in VARIANTS}
                for turn in range(TURNS):
                    for variant in VARIANTS if turn % 2 else VARIANTS[::-1]:
                        words = [
                            sys.executable,
                            __file__,
                            "--measure",
                            variant,
                            folder,
                            str(workers),
                        ]
                        times[variant].append(
                            [
                                float(one)
                                for one in subprocess.check_output(words, text=True).split()
                            ]
                        )
                for k, kind in enumerate(("cold", "warm")):
                    said = f"{size >> 10:>4} KiB {workers} workers {kind}"
                    for variant in VARIANTS:
                        those = [1e6 * one[k] / n for one in times[variant]]
                        ratio = statistics.median(
                            a[k] / b[k] for a, b in zip(times[variant], times["plain"], strict=True)
                        )
                        said += f"   {variant} {statistics.median(those):7.1f} ({min(those):.1f}..{max(those):.1f}) {ratio:4.2f}x"
                    print(said, flush=True)


if __name__ == "__main__":
    main()
