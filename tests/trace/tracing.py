"""Runs programs that record, and reads what they recorded; the fixture ``traced`` has each run with both recorders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from textwrap import dedent

from columns import Columns, read
from left_processes import kill_with_children

# What programs begin with. Windows are small, so that they are changed often.
BEGIN = """
import contextlib, gc, os, signal, sys, threading, time
from voirkit.trace import layout, recorder
from voirkit.trace.recorder import Span, now, span
FOLDER = os.path.join(os.getcwd(), "run")
name = recorder.name
layout.LARGEST_WINDOW = 1 << 16
"""


class Traced:
    """Runs programs that record into a folder ``run``, and reads what they recorded."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder, self.engine = folder, engine
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("VOIRKIT")}
        if engine == "python":
            self.env["VOIRKIT_NO_EXTENSION"] = "1"

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / "run" / "trace").glob("*"))

    def start(self, program: str, **options: object) -> subprocess.Popen[str]:
        path = self.folder / "program.py"
        path.write_text(BEGIN + dedent(program))
        return subprocess.Popen(
            [sys.executable, str(path)], cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            **options,
        )  # fmt: skip

    def run(self, program: str, code: int = 0, timeout: float = 280, **options: object) -> str:
        """Run a program to its end; what it printed. It says nothing on stderr."""
        process = self.start(program, **options)
        out, err = ended(process, timeout)
        assert (process.returncode, err) == (code, ""), (process.returncode, err)
        return out

    def told(self, program: str, **options: object) -> tuple[str, str]:
        """Run a program to its end; what it printed on both."""
        process = self.start(program, **options)
        out, err = ended(process)
        assert process.returncode == 0, err
        return out, err

    def read(self) -> Columns:
        return read(str(self.folder / "run"))

    def counts(self) -> Counter[str]:
        """How many records of each name there are."""
        columns = self.read()
        return Counter(columns.names[code].name for code in columns["name"].tolist())


def ended(process: subprocess.Popen[str], timeout: float = 280) -> tuple[str, str]:
    """Wait for a program's end; what it wrote."""
    try:
        return process.communicate(timeout=timeout)
    except BaseException:  # its children would hold its pipes, which are read to their end
        kill_with_children(process.pid)
        process.communicate()
        raise
