"""What kept a file from being written: told by DuckDB as python would tell it, and to a user whose folder of temporary files is full."""

from __future__ import annotations

import os
import re

from voirkit.errors import VoirkitError


def of_the_system(exc: Exception, path: str) -> OSError | None:
    """The error of the operating system in DuckDB's, if it is about that file; checked with duckdb 1.3.2 to 2.0."""
    text = str(exc)
    if os.path.basename(path) not in text:
        return None
    found = re.search(r'"errno": *"(\d+)"', text)
    number = int(found[1]) if found else next((n for n in range(1, 134) if text.rstrip('"}').endswith(f": {os.strerror(n)}")), 0)
    return OSError(number, os.strerror(number), path) if number else None


def no_room(exc: OSError, folder: str) -> VoirkitError:
    """The error for what could not be put into a folder of temporary files."""
    hint = "Choose another folder for temporary files: TMPDIR=FOLDER voirkit ..."
    return VoirkitError(f"temporary files cannot be written there: {exc.strerror or exc}.", where=folder, next=hint)
