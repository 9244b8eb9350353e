"""What voirkit adds to the start of a script: CPU time of ``voirkit hello.py`` against ``python hello.py``.

    python benchmarks/startup.py [--rounds 15]

The two run in turn; a ratio is the median of the rounds' ratios. CPU time is user and system time of the process and its children, so
that other work on the machine matters little. Both use compiled bytecode, as an installed package does.
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

PROBED = 'def main():\n    greeting = "hello"\n    print(greeting)\n\n\nif __name__ == "__main__":\n    main()\n'
VOIRFILE = 'def instrument_x(ov):\n    ov.probe("//main > greeting").give()\n'


def cpu_ms(command: list[str], folder: Path, env: dict[str, str]) -> float:
    """CPU time of a command in milliseconds, with its children's."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return (used.ru_utime + used.ru_stime) * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "plain").mkdir()
        (folder / "probed").mkdir()
        (folder / "plain" / "hello.py").write_text('print("hello")\n')
        (folder / "probed" / "hello.py").write_text(PROBED)
        (folder / "probed" / "voirfile.py").write_text(VOIRFILE)
        env = {
            k: v
            for k, v in os.environ.items()
            if k not in ("PYTHONDONTWRITEBYTECODE", "DATA_FD", "VOIRFILE")
        }
        env["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        ours = [sys.executable, "-m", "voirkit", "--run-dir", "run", "hello.py"]
        print(f"{'command':34} {'python, ms':>11} {'voirkit, ms':>12} {'ratio':>7}")
        for name, label in (
            ("plain", "voirkit hello.py"),
            ("probed", "voirkit hello.py with one probe"),
        ):
            rows = []
            for _ in range(rounds + 2):
                plain = cpu_ms([sys.executable, "hello.py"], folder / name, env)
                rows.append((plain, cpu_ms(ours, folder / name, env)))
            rows = rows[2:]  # the first make the bytecode
            ratio = statistics.median(b / a for a, b in rows)
            medians = [statistics.median(column) for column in zip(*rows, strict=True)]
            print(f"{label:34} {medians[0]:11.1f} {medians[1]:12.1f} {ratio:7.2f}")


if __name__ == "__main__":
    main()
