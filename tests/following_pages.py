"""A page of the documentation as somebody follows it: its files are written, its changes made and its commands run, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from conftest import CLEAN

# a line that ends with "`main.py`:" before a block names its file
_BLOCK = re.compile(r"(?:`([^`\n]+)`:\n\n)?```(python|diff|console)\n(.*?)```", re.DOTALL)
_OUTPUT_WIDTH = "88"


@dataclass
class Command:
    """A command of a console block: what the page shows of its output, and what it printed here."""

    line: str
    shown: str
    printed: str = ""
    code: int = 0


@dataclass
class Page:
    """What a page's blocks have done to a folder."""

    folder: Path
    commands: list[Command] = field(default_factory=list)

    def command(self, line: str) -> Command:
        """The first that begins so."""
        return next(one for one in self.commands if one.line.startswith(line))


def commands(block: str) -> Iterator[Command]:
    """The commands of a console block, and what stands below each."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        yield Command(line, shown)


def change(text: str, diff: str) -> str:
    """A text after a diff without line numbers, which fits at one place."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++", "@@"))]
    old, new = ("\n".join(line[1:] for line in lines if not line.startswith(sign)) for sign in "+-")
    assert text.count(old) == 1, f"{text.count(old)} places for:\n{old}"
    return text.replace(old, new)


def follow(text: str, folder: Path) -> Page:
    """Do what a page says. ``pip install`` is left out: the tests have what it installs."""
    page = Page(folder)
    for name, language, block in _BLOCK.findall(text):
        if language == "python" and name:
            (folder / name).write_text(block)
        elif language == "diff" and name:
            (folder / name).write_text(change((folder / name).read_text(), block))
        elif language == "console":
            for command in commands(block):
                if not command.line.startswith("pip install"):
                    _run(command, folder)
                page.commands.append(command)
    return page


def _run(command: Command, folder: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        ["sh", "-c", command.line], cwd=folder, env={**CLEAN, "PATH": path, "COLUMNS": _OUTPUT_WIDTH}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280,
    )  # fmt: skip
    command.printed, command.code = done.stdout, done.returncode
