"""Entry point of the command line: ``voirkit`` starts a run or a subcommand."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from voirkit.commands import SUBCOMMANDS, function_of, of_instruments
from voirkit.errors import CommandLineError, VoirkitError, did_you_mean, tell


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``voirkit`` with the given arguments (default: ``sys.argv[1:]``).

    Returns:
        The exit code. An exception of the script is passed on.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    word = words[0] if words else ""
    try:
        reference = function_of(word)
        if reference is not None:
            module, _, name = reference.partition(":")
            return int(getattr(__import__(module, fromlist=["_"]), name or "main")(words[1:]))
        _refuse_misspelt(word)
    except VoirkitError as exc:
        tell(str(exc))
        return exc.exit_code
    from voirkit.commands import run

    return run.main(words, with_process=argv is None)


def _refuse_misspelt(word: str) -> None:
    """Raise CommandLineError if a word is not a script but resembles a subcommand."""
    if word.isalpha() and not os.path.exists(word):
        hint = did_you_mean(word, [*SUBCOMMANDS, *of_instruments()])
        if hint:
            raise CommandLineError(f"{word!r} is neither a script nor a subcommand.", next=hint)
