"""The command line: from the words after ``voirkit`` to a run or a subcommand."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from voirkit.errors import CommandLineError, VoirkitError

# Words that are no scripts, so that scripts written today keep running when the subcommands are there.
_RESERVED = ("probes", "init", "report", "compare", "export", "watch")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``voirkit`` with these arguments (those of the process if left out).

    Returns:
        The exit code. What the script raises is raised.
    """
    from voirkit.commands import run

    words = sys.argv[1:] if argv is None else list(argv)
    try:
        if words and words[0] in _RESERVED:
            raise CommandLineError(
                f"the subcommand {words[0]!r} is not in this version yet.", next=f"A script of that name: voirkit ./{words[0]}"
            )
        return run.main(words)
    except VoirkitError as exc:
        print(f"voirkit: {exc}", file=sys.stderr)
        return exc.exit_code
