"""What the end of a run costs: CPU time of the process that completes its record, by what was recorded.

    python benchmarks/ending.py [--rounds 7]

Runs of the mlp example are recorded once; each is completed anew in every round, with its table, from a copy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from startup import cpu_ms

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = str(ROOT / "examples" / "mlp" / "main.py")
KEEPS = """
import os, shutil
from voirkit.runs import traces

def finish(path, *_):
    shutil.copytree(path, os.environ["KEPT"])
    return None, ""

def instrument_keep(ov):
    yield ov.phases.init
    traces.finish = finish
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print(f"{'epochs of 200 steps':>20} {'records':>9} {'CPU, ms':>9}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "keeps.py").write_text(KEEPS)
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "VOIRFILE": str(folder / "keeps.py")}
        for epochs in (1, 10, 50):
            kept = folder / f"kept-{epochs}"
            command = [sys.executable, "-m", "voirkit", "--quiet", "--run-dir", f"run-{epochs}", SCRIPT, "--epochs", str(epochs)]
            subprocess.run(command, cwd=folder, env={**env, "KEPT": str(kept)}, stdout=subprocess.DEVNULL, check=True)
            size = sum(path.stat().st_size for path in kept.glob("trace/*.seg")) // 32
            took = []
            for _ in range(rounds + 1):
                shutil.rmtree(folder / "copy", ignore_errors=True)
                shutil.copytree(kept, folder / "copy")
                finish = [sys.executable, "-m", "voirkit.report.finish", "copy", "--pid", "1", "--draw", "100", "--shown", "run"]
                took.append(cpu_ms(finish, folder, env))
            print(f"{epochs:20} {size:9} {statistics.median(took[1:]):9.0f}")


if __name__ == "__main__":
    main()
