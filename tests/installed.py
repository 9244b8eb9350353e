"""Checks an installation of voirkit from outside: ``python tests/installed.py [--with-extensions | --pure]``, with the python that has it.

Imports nothing of the checkout and needs no test tool, so that it runs wherever a wheel is built. Exits with 1 and says what is wrong.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

EXTENSIONS = (
    "voirkit.trace._recorder",
    "voirkit.probes._entry",
    "voirkit_instruments.calls._calls",
    "voirkit_instruments.steps._steps",
)
STEPS = 60
SCRIPT = f"""
import numpy as np

def train_epoch(weights, batches):
    for batch, target in batches:
        error = batch @ weights - target
        loss = float((error**2).mean())
        weights -= 0.1 * batch.T @ error / len(batch)
    return loss

rng = np.random.default_rng(0)
truth = rng.normal(size=4)
data = [(batch, batch @ truth) for batch in rng.normal(size=({STEPS}, 16, 4))]
print(train_epoch(np.zeros(4), data))
"""
VOIRFILE = """
def instrument_probes(ov):
    ov.probe("//train_epoch > loss").give()
    ov.probe("//train_epoch(batch) > #endloop_batch as step").give()
"""


def voirkit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the ``voirkit`` beside this python, with nothing of the checkout on its path."""
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "VOIRFILE", "DATA_FD")
    }
    command = [str(Path(sys.executable).parent / "voirkit"), *words]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def problems(folder: Path, expected: str) -> list[str]:
    """What is wrong with the installation.

    Args:
        folder: An empty folder.
        expected: ``--with-extensions``, ``--pure``, or nothing where either will do.
    """
    (folder / "main.py").write_text(SCRIPT)
    (folder / "voirfile.py").write_text(VOIRFILE)
    found = []
    missing = [name for name in EXTENSIONS if not _is_importable(name)]
    if expected == "--with-extensions" and missing:
        found.append(f"cannot be imported: {', '.join(missing)}")
    if expected == "--pure" and len(missing) < len(EXTENSIONS):
        found.append(f"extensions in a wheel that should have none; missing are only: {missing}")
    for name in ("voirkit", "voirkit_instruments"):
        place = Path(str(importlib.import_module(name).__file__)).resolve()
        if not place.is_relative_to(Path(sys.prefix).resolve()):
            found.append(f"{name} is imported from {place}, not from {sys.prefix}")
    plain = subprocess.run(
        [sys.executable, "main.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    ended = voirkit(folder, "--run-dir", "run", "main.py")
    if ended.returncode or ended.stdout != plain.stdout:
        return [
            *found,
            f"the run ended with {ended.returncode}, printed {ended.stdout!r} and not {plain.stdout!r}: {ended.stderr}",
        ]
    summary = json.loads((folder / "run" / "summary.json").read_text())
    loss = summary["loss"]
    if loss["n"] != STEPS or loss["last"] != float(plain.stdout):
        found.append(f"{STEPS} losses, the last {plain.stdout.strip()}: summary.json has {loss}")
    if summary["warnings"]:
        found.append(f"warnings: {summary['warnings']}")
    report = voirkit(folder, "report", "--json", "run")
    if report.returncode or json.loads(report.stdout)["loss"] != loss:
        found.append(f"voirkit report does not show that run: {report.stderr}")
    calls = voirkit(folder, "--run-dir", "calls", "--calls", "numpy", "main.py")
    refused = "that needs voirkit's part in C, which is not there" in calls.stderr
    if (
        calls.returncode
        or calls.stdout != plain.stdout
        or refused != ("voirkit_instruments.calls._calls" in missing)
    ):
        found.append(
            f"--calls, with {len(missing)} extensions missing, ended with {calls.returncode}: {calls.stderr}"
        )
    return found


def _is_importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        wrong = problems(Path(place), "".join(sys.argv[1:2]))
    print("\n".join(wrong) or f"voirkit works here: {sys.version.split()[0]}, {sys.prefix}")
    sys.exit(1 if wrong else 0)
