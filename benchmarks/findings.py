"""What voirkit says of each script of ``examples/findings/``, and what mending it wins, as a table in Markdown.

    python benchmarks/findings.py [-k WORD] [--rounds 3]

Each script runs under voirkit as it is and mended: the kind that it is named after must be found in the first alone. Then both run under
plain python, in turn. A saving is the median of neighbouring runs, of the time from the start of python to its end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from advice import saved, seconds, summary_of

SCRIPTS = Path(__file__).parents[1] / "examples" / "findings"
NEEDS_CHECKS = ("padding", "dense-embedding-gradient")


def found(script: Path, argument: str, *flags: str) -> dict[str, Any] | None:
    """The finding of the kind that a script is named after; None where there is none."""
    kind = script.stem.replace("_", "-")
    findings = summary_of(script, argument, *flags)["findings"]
    return next((finding for finding in findings if finding["kind"] == kind), None)


def printed(script: Path, argument: str) -> str:
    """The last line that a script prints, its own count."""
    lines = subprocess.run([sys.executable, str(script), argument], check=True, capture_output=True, text=True).stdout.splitlines()
    return lines[-1] if lines else ""


def main() -> int:
    """Print a row a script; 1 if a finding is missing, or is there in the mended script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only scripts with this in their name")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    failed = 0
    print("| finding | what is said | the script's own count, before and after | estimated | time saved |\n|---|---|---|---|---|")
    for script in sorted(SCRIPTS.glob(f"*{options.k}*.py")):
        flags = ["--checks"] if script.stem.replace("_", "-") in NEEDS_CHECKS else []
        finding = found(script, "before", *flags)
        if finding is None or found(script, "after", *flags) is not None:
            failed += 1
            print(f"| {script.stem} | {'is not found' if finding is None else 'is found in the mended script'} |", flush=True)
            continue
        shares = []
        for _ in range(options.rounds):
            after, _ = seconds(script, "after")
            before, _ = seconds(script, "before")
            shares.append(1 - after / before)
        counts = " → ".join(printed(script, argument) for argument in ("before", "after"))
        estimated = "" if finding["gain"] is None else f"{finding['gain']:.0%}"
        said = f"{' '.join(flags)}{': ' if flags else ''}{finding['because']}"
        print(f"| {finding['kind']} | {said} | {counts} | {estimated} | {saved(shares)} |", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
