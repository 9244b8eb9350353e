"""The command line: from the words after ``voirkit`` to a run or a subcommand."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from voirkit.errors import VoirkitError


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``voirkit`` with these arguments (those of the process if left out).

    Returns:
        The exit code. What the script raises is raised.
    """
    from voirkit.commands import run

    try:
        return run.main(sys.argv[1:] if argv is None else list(argv))
    except VoirkitError as exc:
        print(f"voirkit: {exc}", file=sys.stderr)
        return exc.exit_code
