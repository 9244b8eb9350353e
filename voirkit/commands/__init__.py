"""The subcommands of the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from voirkit.errors import PLAIN

# For each subcommand: its function, its arguments, its description. The function is imported only
# when it is called; it takes the words after the subcommand, and returns the exit code.
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
    """Return the function of a subcommand, as ``module:function`` or a module that has ``main``;
    None if the word is not a subcommand."""
    if not word.isalpha():
        return None
    return SUBCOMMANDS[word][0] if word in SUBCOMMANDS else of_instruments().get(word)


def of_instruments() -> dict[str, str]:
    """Return the subcommands that instruments add, each with its module."""
    from voirkit.plugins import installed_instruments

    return {
        word: module
        for instrument in installed_instruments()
        for word, module in instrument.commands.items()
    }


@contextmanager
def printing() -> Iterator[None]:
    """Context manager around a command's output: characters that the encoding of stdout lacks are
    replaced, and a reader that closes the pipe (``| head``) is not an error."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors=PLAIN)
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:
        # discard the rest of the output, which Python would flush to the closed pipe when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
