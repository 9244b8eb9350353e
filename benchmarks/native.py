"""What ``--native`` costs: two forked processes read, crop and resize JPEG files of 500x400, with it and without, interleaved.

    python benchmarks/native.py [--rounds 7] [--epochs 3]

Printed are ratios to the run without the flag, medians of the rounds with the smallest and the largest: CPU time of the loop (user and
system time of the process and its workers, start and imports left out), and its wall time; and, for each second that the loop was on a
processor, what perf itself took from its start to its end, and the seconds that it took to read its file when the run had ended.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LOOP = """
import glob, os, sys, time
from PIL import Image
from voirkit.trace import recorder
READ, RESIZE = (recorder.name("operation", name, kind="loader") for name in ("Loader", "Resize"))
files, epochs = glob.glob(sys.argv[1] + "/*.jpg"), int(sys.argv[2])
def work(mine):
    for path in mine * epochs:
        at = recorder.now()
        image = Image.open(path).convert("RGB")
        then = recorder.now()
        recorder.span(READ, at, then)
        image.crop((20, 20, 470, 380)).resize((224, 224), Image.BILINEAR)
        recorder.span(RESIZE, then, recorder.now())
began, wall = os.times(), time.perf_counter()
for number in range(2):
    if os.fork() == 0:
        work(files[number::2])
        os._exit(0)
for number in range(2):
    os.wait()
print(sum(os.times()[:4]) - sum(began[:4]), time.perf_counter() - wall)
"""
IMAGES = """
import os, sys
from PIL import Image
os.makedirs(sys.argv[1])
for i in range(200):
    noise = Image.frombytes("RGB", (63, 50), os.urandom(63 * 50 * 3)).resize((500, 400), Image.BICUBIC)
    noise.save(os.path.join(sys.argv[1], f"{i}.jpg"), quality=90)
"""
FLAGS = {
    "without": [],
    "without, again": [],
    "--native": ["--native"],
    "--native=1999": ["--native=1999"],
    "--native=4999": ["--native=4999"],
}


def measured(flags: list[str], images: Path, epochs: int) -> tuple[float, float, float, float, int]:
    """(CPU of the loop, its wall time, CPU of perf, CPU of all that voirkit starts when the run has ended: seconds; samples)."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "loop.py"
        script.write_text(LOOP)
        command = [
            sys.executable,
            "-m",
            "voirkit",
            "--quiet",
            "--run-dir",
            "run",
            *flags,
            "loop.py",
            str(images),
            str(epochs),
        ]
        env = {k: v for k, v in os.environ.items() if k not in ("DATA_FD", "VOIRFILE")} | {
            "OMP_NUM_THREADS": "1"
        }
        before = os.times()
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, check=True
        )
        after = os.times()
        cpu, wall = map(float, done.stdout.split())
        whole = (
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
        known = [
            path
            for path in (Path(folder) / "run" / "native").glob("*.json")
            if not path.name.endswith(".counts.json")
        ]
        sampling = json.loads(known[0].read_text())["took_s"] if known else 0.0
        samples = (
            json.loads((Path(folder) / "run" / "native.json").read_text())["samples"]
            if known
            else 0
        )
        return cpu, wall, sampling, whole - cpu, samples


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images"
        subprocess.run([sys.executable, "-c", IMAGES, str(images)], check=True)
        names = list(FLAGS)
        taken: dict[str, list[tuple[float, float, float, float, int]]] = {
            name: [] for name in names
        }
        for turn in range(options.rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                taken[name].append(measured(FLAGS[name], images, options.epochs))
                print(turn, name, *taken[name][-1], file=sys.stderr, flush=True)
    heads = (
        f"{'variant':16} {'CPU, s':>7} {'ratio':>6} {'of rounds':>12} {'wall':>6} {'of rounds':>12}"
    )
    print(f"{heads} {'perf':>8} {'reading':>8} {'samples':>8}")
    for name, rows in taken.items():
        cells = [f"{name:16} {statistics.median(row[0] for row in rows):7.2f}"]
        for at in (0, 1):
            ratios = [
                mine[at] / plain[at] for mine, plain in zip(rows, taken["without"], strict=True)
            ]
            cells.append(
                f"{statistics.median(ratios):6.3f} {f'{min(ratios):.3f}-{max(ratios):.3f}':>12}"
            )
        perf = statistics.median(row[2] / row[0] for row in rows)
        reading = statistics.median(
            mine[3] - plain[3] for mine, plain in zip(rows, taken["without"], strict=True)
        )
        print(
            *cells, f"{perf:8.2%} {reading:7.2f}s {statistics.median(row[4] for row in rows):8.0f}"
        )


if __name__ == "__main__":
    main()
