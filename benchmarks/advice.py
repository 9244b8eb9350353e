"""What each piece of advice wins on a script that it is for: predicted by voirkit, and reached when it is followed.

    python benchmarks/advice.py [-k WORD] [--rounds 5]

Each script of ``examples/gallery/`` that takes less time when advice is followed runs once under voirkit, which must advise what
its row of ``CASES`` names; then it runs as it is and with the advice followed, in turn. What is saved is of two neighbouring runs, from
the start of python to its end; the median is what was reached. On a machine that does other work the time of processors is the truer
figure, but where a script waits.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[1] / "examples" / "gallery"
# script: a word of the advice
CASES = {
    "whole_batches": "whole batches",
    "worker_processes": "num_workers",
    "keep_workers": "persistent_workers",
    "lower_precision": "autocast",
    "fused_optimizer": "fused=True",
    "larger_batch": "larger batch",
    "fewer_checkpoints": "less often",
    "log_less": "log_less.py",
    "evaluate_less": "half as often",
    "freeze_garbage": "gc.freeze",
    "recompiles": "compiled again",
    "late_rank": "rank 1",
}
FLAGS = {"log_less": ["--flame"]}
_RANKS = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LAUNCHERS = {"late_rank": _RANKS, "communicate_less": _RANKS}
_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def seconds(script: Path, *arguments: str) -> tuple[float, float]:
    """How long a run takes: by the clock, and of processors."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    words = [sys.executable, *LAUNCHERS.get(script.stem, ()), str(script), *arguments]
    subprocess.run(words, check=True, env=_ENVIRONMENT, stderr=subprocess.DEVNULL)
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    return ended - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def summary_of(script: Path, argument: str, *flags: str) -> dict[str, Any]:
    """The summary of a run under voirkit."""
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, "run")
        launcher = LAUNCHERS.get(script.stem, ())
        words = [
            sys.executable,
            *launcher,
            "-m",
            "voirkit",
            "--run-dir",
            run,
            *flags,
            str(script),
            argument,
        ]
        subprocess.run(words, check=True, env=_ENVIRONMENT, capture_output=True)
        summary: dict[str, Any] = json.loads(Path(run, "summary.json").read_text())
    return summary


def advised(script: Path, word: str) -> dict[str, Any] | None:
    """The advice of a run under voirkit that has a word in it."""
    advice = summary_of(script, "before", *FLAGS.get(script.stem, ()))["advice"]
    return next((one for one in advice if word in one["do"]), None)


def _predicted(advice: dict[str, Any]) -> str:
    """What is printed of a saving; of rules of thumb nothing is."""
    return "  n/a" if advice["win"] is None else f"{advice['win']:5.0%}"


def saved(shares: list[float]) -> str:
    """What is printed of the shares that pairs of runs have saved: the median, and from where to where they are."""
    return f"{statistics.median(shares):5.0%} ({min(shares):.0%} .. {max(shares):.0%})"


def main() -> int:
    """Print a row a script; 1 if an advice is not given, or wins nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only scripts with this in their name")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    failed = 0
    for name, word in CASES.items():
        if options.k not in name:
            continue
        script = SCRIPTS / f"{name}.py"
        advice = advised(script, word)
        if advice is None:
            failed += 1
            print(f"{name:20} {word!r} is not advised", flush=True)
            continue
        number = re.search(r"num_workers=(\d+)", advice["do"])
        pairs = []
        for _ in range(options.rounds):
            after = seconds(script, "after", *([number[1]] if number else []))
            pairs.append((seconds(script, "before"), after))
        clock, cpu = ([1 - after[i] / before[i] for before, after in pairs] for i in (0, 1))
        failed += max(statistics.median(clock), statistics.median(cpu)) <= 0
        row = f"{name:20} predicted {_predicted(advice)}   reached {saved(clock)} of the time, {saved(cpu)} of processor time"
        print(f"{row}   {advice['do']}")
        (before, before_cpu), (after, after_cpu) = (
            (statistics.median(one) for one in zip(*side, strict=True))
            for side in zip(*pairs, strict=True)
        )
        print(
            f"{'':20} before {before:.1f} s (processors {before_cpu:.1f} s), after {after:.1f} s ({after_cpu:.1f} s): medians",
            flush=True,
        )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
