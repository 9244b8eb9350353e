"""Runs scripts under ``voirkit --dash`` on a terminal, for the tests of the view."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from terminal import Terminal

Run = Callable[..., Terminal]
HEADER = re.compile(r"── main\.py ─ 0:\d\d:\d\d(  \d+ events)? ──")
VOIRKIT = [sys.executable, "-m", "voirkit", "--quiet", "--run-dir", "run"]


@pytest.fixture
def on_terminal(tmp_path: Path) -> Iterator[Run]:
    """Run a script under ``voirkit --dash`` (or python) on a terminal."""
    started: list[Terminal] = []

    def run(
        script: str,
        *words: str,
        python: bool = False,
        voirfile: str = "",
        size: tuple[int, int] = (80, 24),
        **options: object,
    ) -> Terminal:
        (tmp_path / "main.py").write_text(dedent(script))
        if voirfile:
            (tmp_path / "voirfile.py").write_text(dedent(voirfile))
        command = [sys.executable] if python else [*VOIRKIT, "--force", "--dash"]
        started.append(Terminal(tmp_path, *command, "main.py", *words, size=size, **options))  # type: ignore[arg-type]
        return started[-1]

    yield run
    for terminal in started:
        terminal.close()


def output_of(terminal: Terminal) -> list[str]:
    """What is on the terminal and in its scrollback before the values that stay."""
    lines = terminal.scrollback()
    (start,) = [i for i, line in enumerate(lines) if HEADER.search(line)]
    while start and not lines[start - 1]:
        start -= 1
    return lines[:start]


WAIT = """
    import time
    from giving import give
    def wait(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.02)
"""

# Holds on until a line is typed, so that a test can look at the screen for as long as it likes.
HOLD = """
    import sys
    from giving import give
"""
