"""Pages of the documentation that can be followed: the files and commands that a page shows, and whether the commands print what it shows.

A code block whose first line is a comment with a file's name, such as ``# train.py``, is that file; so is one below a line that ends with
the name, "`train.py`:", and a ``diff`` block there changes it. A ``console`` block below the comment ``<!-- run -->`` is followed: its commands run one after the other in a folder with the page's files, and what it shows of their output
must be in their output, in this order. Figures differ from run to run and are not compared, but for counts of steps, items and the like;
``...`` stands for what is left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from conftest import CLEAN

DOCS = Path(__file__).parent.parent / "docs"
_BLOCK = re.compile(
    r"^(?:[^\n]*`(?P<name>[^`\n]+)`:\n\n)?(?P<marked><!-- run -->\n)?(?P<fence>`{3,})(?P<language>\w+)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# (?P<name>[\w./-]+\.\w+)\n")
_FIGURE = re.compile(
    r"[-+±]?\d[\d,.]*(?:T\d+Z)?(?: ?(?:ns|µs|ms|s|min|h|%|x|bytes|kB|MB|GB|TB)\b|%)?|0x[0-9a-f]+"
)
_COUNT = re.compile(
    r"\d[\d,]*(?= (?:steps|items|evaluation batches|ranks|values)\b(?!/))"
)  # the same in each run
_LETTERS = str.maketrans("0123456789,", "ABCDEFGHIJ_")
_LEFT_OUT = re.compile(r"\.\.\.|…")


class Block(NamedTuple):
    """A code block of a page; ``is_run``: whether its commands are to be run; ``name``: what the line above it names."""

    language: str
    text: str
    is_run: bool
    name: str | None = None

    @property
    def file(self) -> str | None:
        """The name of the file that it shows, or changes."""
        named = _FILE.match(self.text) if self.language not in ("console", "diff") else None
        return named["name"] if named else self.name

    @property
    def commands(self) -> list[str]:
        """What stands behind the prompts, lines that end in a backslash joined."""
        return re.findall(r"^\$ ((?:.*\\\n)*.*)$", self.text, re.MULTILINE)

    @property
    def shown(self) -> list[str]:
        """What it shows of their output, in pieces between which something is left out."""
        output = re.sub(r"^\$ (?:.*\\\n)*.*\n", "", self.text, flags=re.MULTILINE)
        return [piece for part in _LEFT_OUT.split(output) if (piece := comparable(part))]


def blocks(page: str) -> list[Block]:
    """The code blocks of a page, by its text."""
    return [
        Block(found["language"], found["text"], found["marked"] is not None, found["name"])
        for found in _BLOCK.finditer(page)
    ]


_ESTIMATE = re.compile(r" \([^()]*#[^()]*\)")  # of comparable output


def comparable(output: str) -> str:
    """Output without what differs from run to run or with the width of a terminal: figures but for counts, bars, white space."""
    counted = _COUNT.sub(
        lambda count: count[0].translate(_LETTERS), re.sub(r"[▁-█░-▓─━]+", " ", output)
    )
    return " ".join(_FIGURE.sub("#", counted).split())


def changed(text: str, diff: str) -> str:
    """A text after a diff without line numbers, which fits at one place."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++", "@@"))]
    old, new = ("\n".join(line[1:] for line in lines if not line.startswith(sign)) for sign in "+-")
    assert text.count(old) == 1, f"{text.count(old)} places for:\n{old}"
    return text.replace(old, new)


def follow(
    page: Path, folder: Path, env: Mapping[str, str] | None = None
) -> Iterator[tuple[Block, str]]:
    """Write the files of a page into a folder, and run its commands there.

    Yields:
        Each block that is run, and what its commands have printed, standard output and errors as they came.

    Raises:
        AssertionError: A command has failed, and the page does not show its exit code.
    """
    for block in blocks(page.read_text()):
        if block.file:
            target = folder / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(
                changed(target.read_text(), block.text) if block.language == "diff" else block.text
            )
        if block.is_run:
            commands = [] if any("echo $?" in command for command in block.commands) else ["set -e"]
            ended = subprocess.run(
                ["bash", "-c", "\n".join([*commands, *block.commands])], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=280, check=False,
                env={**CLEAN, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{CLEAN['PATH']}", **(env or {})},
            )  # fmt: skip
            assert ended.returncode == 0, f"{block.commands}\n{ended.stdout}"
            yield block, ended.stdout


def check(page: Path, folder: Path, env: Mapping[str, str] | None = None) -> None:
    """Assert that a page does what it says."""
    for block, output in follow(page, folder, env):
        rest = comparable(output)
        pieces = block.shown
        if "busy-machine" in output:  # where estimates are left out
            rest, *pieces = (_ESTIMATE.sub("", text) for text in (rest, *pieces))
        for piece in pieces:
            assert piece in rest, (
                f"{page.name}: {piece!r} is not in the output, or not in this place, of {block.commands}:\n{output}"
            )
            rest = rest[rest.index(piece) + len(piece) :]


if (
    __name__ == "__main__"
):  # python tests/pages.py PAGE FOLDER: prints what its commands print, to be shown in it
    for followed, printed in follow(Path(sys.argv[1]).absolute(), Path(sys.argv[2])):
        print(*(f"$ {command}" for command in followed.commands), printed, sep="\n")
