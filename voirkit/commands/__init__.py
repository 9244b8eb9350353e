"""The subcommands of the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from voirkit.errors import PLAIN

# (function of its words that returns the exit code, imported only when it is called; its arguments;
# what it does) by word
SUBCOMMANDS = {
    "init": (
        "voirkit.commands.probes:write_voirfile",
        "SCRIPT",
        "write a first voirfile for a script",
    ),
    "probes": (
        "voirkit.commands.probes:list_probes",
        "SCRIPT",
        "list what can be probed in a script",
    ),
    "watch": ("voirkit.commands.watch:main", "[RUN]", "show a run while it goes on"),
    "report": ("voirkit.commands.report:report", "[RUN]", "show the summary of a run"),
    "compare": ("voirkit.commands.compare:compare", "RUN RUN", "compare two runs"),
    "explain": (
        "voirkit.commands.explain:main",
        "[KIND]",
        "explain what a report finds to be wrong",
    ),
    "export": ("voirkit.commands.export:main", "[RUN]", "write the trace of a run for other tools"),
    "completion": (
        "voirkit.commands.completion:main",
        "SHELL",
        "print the completion script of bash, zsh or fish",
    ),
}


def function_of(word: str) -> str | None:
    """Where the function of a subcommand is, as ``module:function`` or a module that has ``main``;
    None of what is not a subcommand."""
    if not word.isalpha():
        return None
    return SUBCOMMANDS[word][0] if word in SUBCOMMANDS else of_instruments().get(word)


def of_instruments() -> dict[str, str]:
    """The subcommands of instruments: a module by its word."""
    from voirkit.plugins import installed_instruments

    return {
        word: module
        for instrument in installed_instruments()
        for word, module in instrument.commands.items()
    }


@contextmanager
def printing() -> Iterator[None]:
    """Around what a command prints: what the encoding lacks is replaced, and a reader that goes
    away (``| head``) is not an error."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors=PLAIN)
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:
        # python writes what is left when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
