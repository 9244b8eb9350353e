"""Finds the run directory that a user means, and says what is wrong when it is none."""

from __future__ import annotations

import os

from voirkit.errors import RunDirectoryError, did_you_mean
from voirkit.runs import directory
from voirkit.runs.trace_files import layout

LATEST = os.path.join(directory.PARENT, "latest")


def find(path: str) -> str:
    """The absolute path of a run directory.

    Raises:
        RunDirectoryError: It is none.
    """
    hint = "A run directory is made by: voirkit SCRIPT"
    if path == LATEST and not os.path.lexists(path):
        raise RunDirectoryError("there is no run in this folder.", where=path, next=f"Name a run directory, or record one.  {hint}")
    if not os.path.exists(path):
        raise RunDirectoryError("there is no such folder.", where=path, next=_others(path) or hint)
    if not os.path.isdir(path):
        raise RunDirectoryError("this is a file, not a run directory.", where=path, next=hint)
    try:
        there = os.listdir(path)
    except OSError as exc:
        raise RunDirectoryError(f"it can not be read: {exc.strerror}.", where=path) from None
    if directory.MANIFEST not in there and not any(layout(path)):
        raise RunDirectoryError(f"this is no run directory: it has no {directory.MANIFEST}.", where=path, next=_runs_in(path) or hint)
    return os.path.realpath(path)


def _others(path: str) -> str:
    """What is near a path that does not exist."""
    parent, name = os.path.split(path.rstrip("/"))
    try:
        there = [one for one in os.listdir(parent or ".") if os.path.isdir(os.path.join(parent, one))]
    except OSError:
        return ""
    return did_you_mean(name, there)


def _runs_in(path: str) -> str:
    """What to do about a folder that is not a run, but may hold some."""
    runs = sorted(one for one in os.listdir(path) if os.path.exists(os.path.join(path, one, directory.MANIFEST)))
    return f"It holds runs: {', '.join(os.path.join(path, one) for one in runs[-3:])}" if runs else ""
