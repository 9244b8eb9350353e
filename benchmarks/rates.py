"""What ``--train-rate`` costs on the mlp example: CPU time against the same run without the flag, without probes, and under python.

    python benchmarks/rates.py [--rounds 5] [--epochs 10]

The variants run in turn; a figure is the median over the rounds of what a round's runs give. CPU time is user and system time of the
process. A step is one batch; the microseconds are the CPU time beyond the variant before, less what start-up adds, by step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from startup import cpu_ms

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = str(ROOT / "examples" / "mlp" / "main.py")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    voirkit = [sys.executable, "-m", "voirkit", "--quiet", "--run-dir", "run"]
    variants = {
        "python": ([sys.executable], {}),
        "voirkit, no voirfile": (voirkit, {"VOIRFILE": ""}),
        "voirkit, probes": (voirkit, {}),
        "voirkit, probes, --train-rate": ([*voirkit, "--train-rate"], {}),
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        env = {
            k: v
            for k, v in os.environ.items()
            if k not in ("PYTHONDONTWRITEBYTECODE", "DATA_FD", "VOIRFILE")
        }
        env.update(PYTHONPYCACHEPREFIX=str(folder / "bytecode"), OMP_NUM_THREADS="1")
        rows: list[dict[str, tuple[float, float]]] = []
        for _ in range(options.rounds + 1):
            row = {}
            for name, (command, more) in variants.items():
                long = cpu_ms(
                    [*command, SCRIPT, "--epochs", str(options.epochs)], folder, {**env, **more}
                )
                short = cpu_ms([*command, SCRIPT, "--epochs", "1"], folder, {**env, **more})
                row[name] = long, (long - short) / (options.epochs - 1)
                if name.endswith("--train-rate"):
                    steps = json.loads((folder / "run" / "summary.json").read_text())["given"][
                        "step"
                    ]
            rows.append(row)
        del rows[0]  # it made the bytecode
        print(f"{steps} steps an epoch, {options.epochs} epochs")
        print(
            f"{'variant':32} {'CPU, s':>8} {'to python':>10} {'to the one before':>18} {'µs a step more':>15}"
        )
        before = "python"
        for name in variants:
            cpu = statistics.median(row[name][0] for row in rows) / 1000
            to_python = statistics.median(row[name][0] / row["python"][0] for row in rows)
            to_before = statistics.median(row[name][0] / row[before][0] for row in rows)
            more_us = statistics.median(
                (row[name][1] - row[before][1]) * 1000 / steps for row in rows
            )
            print(f"{name:32} {cpu:8.2f} {to_python:10.3f} {to_before:18.3f} {more_us:15.1f}")
            before = name


if __name__ == "__main__":
    main()
