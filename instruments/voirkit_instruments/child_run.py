"""Runs of the script that an experiment starts: under voirkit, quiet, each in a process of its own, without the user's voirfile."""

from __future__ import annotations

import os
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from typing import Any

_NOT_FOR_IT = ("VOIRKIT_RUN_DIR", "DATA_FD")  # they are of the run that starts it


def program_words(options: Namespace) -> list[str]:
    """The script or module of a command line, and its arguments."""
    return [*(["-m", options.MODULE] if options.SCRIPT is None else [options.SCRIPT]), *options.ARGV]


def started_with(run_dir: str, words: Sequence[str]) -> dict[str, Any]:
    """What ``subprocess`` starts such a run with; where it prints is the caller's.

    Args:
        run_dir: Its run directory.
        words: Options, and the script with its arguments.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_FOR_IT}
    return {
        "args": [sys.executable, "-m", "voirkit", "--quiet", "--run-dir", run_dir, *words],
        "env": {**environment, "VOIRFILE": ""},
        "stdin": subprocess.DEVNULL,
    }
