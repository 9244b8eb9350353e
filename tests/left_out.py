"""What a script of planted truth leaves out of its own count of a transform, measured without voirkit.

    python tests/left_out.py SCRIPT < WHAT_CHECK_PRINTED

The scripts count a transform from its first statement to its last but one: the last writes the count into a tensor. After a nap that takes
5 us on one machine and 100 us on another, which is 5 % of a transform of 2 ms. So where only such figures are off, the script is run by
plain python, with each call of a transform timed from outside as well, and the figures are held against what the call took. The tolerance
stays as it is.
"""

from __future__ import annotations

import builtins
import multiprocessing.util
import os
import re
import runpy
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

_FAULT = re.compile(r"[^ :]+ (?P<check>[^ :]+): (?P<words>.*)")
_FIGURE = re.compile(r"(\w+)\.(total_s|median_s) ([\d.]+), should be ([\d.]+) within ([\d.]+)%")
_OF = {"total_s": sum, "median_s": median}
# by transform: seconds from outside, seconds by its own count
Calls = dict[str, list[tuple[float, float]]]


def figures_off(printed: str) -> list[tuple[str, str, float, float, float]]:
    """Return transform, figure, reading, the script's own count and tolerance of each figure that is off; none if anything else is wrong."""
    faults = [fault for line in printed.splitlines() if (fault := _FAULT.fullmatch(line))]
    figures = [_FIGURE.fullmatch(words) for fault in faults for words in fault["words"].split("; ")]
    if any(fault["check"] != "loader" for fault in faults) or not all(figures):
        return []
    return [
        (figure[1], figure[2], float(figure[3]), float(figure[4]), float(figure[5]) / 100)
        for figure in figures
        if figure is not None
    ]


def is_left_out(reading: float, counted: float, tolerance: float, ratio: float) -> bool:
    """True if a reading is what a script counted, times the ratio of the whole call to what the script counts of it."""
    return abs(reading / (counted * ratio) - 1) <= tolerance


def run(script: str, folder: str) -> None:
    """Run a script in this process, and write the times of its transforms' calls into a folder, a file for each process."""
    calls: Calls = defaultdict(list)
    build_class = builtins.__build_class__

    def flush() -> None:
        rows = [f"{name} {whole} {own}\n" for name, times in calls.items() for whole, own in times]
        Path(folder, str(os.getpid())).write_text("".join(rows))

    def timed(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def __call__(self: Any, sample: Any) -> Any:
            before = sample[-1].tolist()
            begin_s = perf_counter()
            result = call(self, sample)
            whole_s = perf_counter() - begin_s
            own_s = sum(result[-1].tolist()) - sum(before)
            if not calls:
                multiprocessing.util.Finalize(None, flush, exitpriority=1)
            calls[type(self).__name__].append((whole_s, own_s))
            return result

        return __call__

    def build(body: Any, name: str, *bases: Any, **keywords: Any) -> Any:
        kind = build_class(body, name, *bases, **keywords)
        if kind.__module__ == "__main__" and "__call__" in vars(kind):
            kind.__call__ = timed(kind.__call__)
        return kind

    builtins.__build_class__ = build
    sys.path[0] = str(Path(script).parent)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


def measured(script: str) -> Calls:
    """Return the calls of each transform of a script that plain python runs."""
    calls: Calls = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, __file__, script, folder]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        for file in Path(folder).iterdir():
            for row in file.read_text().splitlines():
                name, whole_s, own_s = row.split()
                calls[name].append((float(whole_s), float(own_s)))
    return calls


def main(script: str) -> int:
    """Return 0 if each figure that is off is off by what the script leaves out."""
    figures = figures_off(sys.stdin.read())
    if not figures:
        return 1
    calls = measured(script)
    is_explained = True
    for name, figure, reading, counted, tolerance in figures:
        whole, own = zip(*calls[name], strict=True)
        ratio = _OF[figure](whole) / _OF[figure](own)
        is_so = is_left_out(reading, counted, tolerance, ratio)
        is_explained = is_explained and is_so
        print(
            f"{name}.{figure}: {reading}, and {counted * ratio:.4g} from outside of the transform, without voirkit"
            f" (the script leaves out {ratio - 1:.1%}): {'ok' if is_so else 'FAIL'}"
        )
    return 0 if is_explained else 1


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run(*sys.argv[1:])
    else:
        sys.exit(main(sys.argv[1]))
