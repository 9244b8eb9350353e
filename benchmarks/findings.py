"""What voirkit says of each example of the catalogue of findings, and what mending it wins, as a table in Markdown.

    python benchmarks/findings.py [-k WORD] [--rounds 3]

Each script runs under voirkit as it is and mended: the kind that it is an example of must be said of the first alone (advice may be
given of what is mended, too: of less). Then both run under plain python, in turn. A saving is the median of neighbouring runs, of the time
from the start of python to its end. Those of ``examples/gallery/`` are in ``benchmarks/advice.py``.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from advice import saved, seconds, summary_of

from voirkit.findings import CATALOGUE, Severity

PROJECT = Path(__file__).parents[1]


WITHOUT_GAIN = {
    "rank-ended",
    "memory-creep",
}  # one ends with an error, the other runs for a given time


def examples() -> dict[str, tuple[Path, list[str]]]:
    """Script and flags of each kind that names a script of ``examples/findings`` that has a mended form."""
    found = {}
    for kind in CATALOGUE.values():
        words = shlex.split(kind.example)
        if (
            kind.severity != Severity.VERDICT
            and kind.name not in WITHOUT_GAIN
            and words[-1:] == ["before"]
            and Path(words[-2]).parent.name == "findings"
        ):
            found[kind.name] = PROJECT / words[-2], words[words.index("voirkit") + 1 : -2]
    return found


def found(kind: str, script: Path, argument: str, *flags: str) -> dict[str, Any] | None:
    """The finding of a kind; None where there is none."""
    summary = summary_of(script, argument, *flags)
    return next(
        (said for part in ("findings", "advice") for said in summary[part] if said["kind"] == kind),
        None,
    )


def printed(script: Path, argument: str) -> str:
    """The last line that a script prints, its own count."""
    lines = subprocess.run(
        [sys.executable, str(script), argument], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return lines[-1] if lines else ""


def main() -> int:
    """Print a row a script; 1 if a finding is missing, or is there in the mended script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only kinds with this in their name")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    failed = 0
    print(
        "| finding | what is said | the script's own count, before and after | estimated | time saved |\n|---|---|---|---|---|"
    )
    for kind, (script, flags) in examples().items():
        if options.k not in kind:
            continue
        finding = found(kind, script, "before", *flags)
        is_advice = CATALOGUE[kind].severity is Severity.ADVICE
        if finding is None or (not is_advice and found(kind, script, "after", *flags) is not None):
            failed += 1
            print(
                f"| {kind} | {'is not found' if finding is None else 'is found in the mended script'} |",
                flush=True,
            )
            continue
        shares = []
        for _ in range(options.rounds):
            after, _ = seconds(script, "after")
            before, _ = seconds(script, "before")
            shares.append(1 - after / before)
        counts = " → ".join(printed(script, argument) for argument in ("before", "after"))
        gain = finding["win" if is_advice else "gain"]
        estimated = "" if gain is None else f"{gain:.0%}"
        said = f"{' '.join(flags)}{': ' if flags else ''}{finding['because']}"
        print(f"| {kind} | {said} | {counts} | {estimated} | {saved(shares)} |", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
