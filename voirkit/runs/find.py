"""Finds the run directory that a user means, and says what is wrong when it is none."""

from __future__ import annotations

import json
import os

from voirkit.errors import RunDirectoryError, did_you_mean
from voirkit.runs import directory
from voirkit.runs.manifest import SCHEMA
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
        raise RunDirectoryError(f"it cannot be read: {exc.strerror}.", where=path) from None
    if directory.MANIFEST not in there and not any(layout(path)):
        raise RunDirectoryError(f"this is no run directory: it has no {directory.MANIFEST}.", where=path, next=_runs_in(path) or hint)
    manifest = _document(os.path.join(path, directory.MANIFEST))
    if isinstance(manifest, dict) and manifest and "voirkit" not in manifest:
        raise RunDirectoryError(f"this is no run directory: its {directory.MANIFEST} is not voirkit's.", where=path, next=hint)
    return os.path.realpath(path)


def check_manifest(path: str) -> list[str]:
    """What whoever reads a run directory is to say of its manifest, a line at most; a damaged one is among what ``Run`` warns of."""
    file = os.path.join(path, directory.MANIFEST)
    if not os.path.lexists(file):
        return [f"{file} is missing: what was run, and how it ended, is not known."]
    manifest = _document(file)
    if not isinstance(manifest, dict):
        return []
    if manifest.get("schema") != SCHEMA:
        return [f"{file} has schema {manifest.get('schema')!r}, this voirkit knows {SCHEMA}: a newer voirkit may read more of it."]
    if len(os.listdir(path)) == 1 and manifest.get("ended") != "running":
        return [f"{path} holds nothing but its manifest: nothing that was recorded is left."]
    return []


def _document(path: str) -> object:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError):
        return None


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
