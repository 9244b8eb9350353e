"""What ``--syscalls`` costs on the sentiment example with one file a sentence: processor time of all its processes and of the tracer.

    python benchmarks/syscalls.py [REPEATS]

Runs are interleaved, ratios are medians to the same run under voirkit without the flag. Tracers that cannot be used here are left out.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "examples" / "sentiment" / "main.py"
TOOLS = {
    "without": None, "counters": ("counters", "counters"), "kernel": ("counts", "kernel"), "strace, files": ("files", "strace"),
    "strace, counts": ("counts", "strace"), "strace, full": ("full", "strace"),
}  # fmt: skip


def run(folder: Path, chosen: tuple[str, str] | None) -> tuple[float, float, dict[str, object]]:
    """Processor time, wall time, and what was recorded."""
    voirfile = folder / "voirfile.py"
    text = (
        ""
        if chosen is None
        else f"from voirkit_instruments.syscalls import syscalls\ninstrument = syscalls({chosen[0]!r}, tool={chosen[1]!r})\n"
    )
    voirfile.write_text(text.replace("instrument =", "instrument_traced ="))
    command = [
        sys.executable,
        "-m",
        "voirkit",
        "--quiet",
        "--force",
        "--run-dir",
        "run",
        str(SCRIPT),
        "--data-dir",
        "data",
        "--steps",
        "30",
        "--workers",
        "2",
    ]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "VOIRFILE": str(voirfile)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    summary = json.loads((folder / "run" / "summary.json").read_text())
    found = summary["syscalls"] or {}
    completing = summary["overhead"].get("completing_s", 0.0)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime - completing
    return (
        used + (found.get("cost", {}).get("tracer_s") or 0.0),
        took,
        {**found, "completing_s": completing},
    )


def main(repeats: int) -> None:
    """Print a line for each tracer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(folder, None)  # makes the files
        times: dict[str, list[tuple[float, float]]] = {tool: [] for tool in TOOLS}
        found: dict[str, dict[str, object]] = {}
        for _ in range(repeats):
            for tool, chosen in TOOLS.items():
                used, took, found[tool] = run(folder, chosen)
                times[tool].append((used, took))
    print(f"{'':16} {'CPU s':>7} {'ratio':>6} {'wall s':>7}   calls    a call longer   counting s")
    for tool, rows in times.items():
        if tool != "without" and not found[tool].get("calls"):
            print(f"{tool:16} cannot be used here")
            continue
        ratio = statistics.median(
            mine[0] / plain[0] for mine, plain in zip(rows, times["without"], strict=True)
        )
        cost = found[tool].get("cost") or {}
        assert isinstance(cost, dict)
        used, took = (statistics.median(row[at] for row in rows) for at in (0, 1))
        longer = cost.get("call_s") or cost.get("edge_s") or 0.0
        more = f"{found[tool].get('calls', 0)!s:>7} {longer * 1e6:13.2f} µs {found[tool]['completing_s']!s:>9}"
        print(f"{tool:16} {used:7.2f} {ratio:6.2f} {took:7.2f} {more}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
