"""What the documentation shows works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CLEAN, Place

ROOT = Path(__file__).parent.parent
SCRIPT = """
def train_epoch(loader):
    for inp in loader:
        loss = inp / 2
    return loss


def f():
    for i in range(2):
        pass


def main():
    use_cuda = False
    return train_epoch([1, 2, 3])


if __name__ == "__main__":
    main()
    f()
    for x in range(2):
        loss = x
"""
BLOCKS = [
    pytest.param(block, id=f"{path}-{n}")
    for path in ("README.md", "docs/voirfiles.md")
    for n, block in enumerate(
        re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_voirfile_of_the_documentation_runs(place: Place, block: str) -> None:
    place.write(main=SCRIPT, voirfile=block)
    ended = place.voirkit("main.py")
    assert ended.code == 0, ended.err
    assert ended.summary["warnings"] == []


def test_the_selectors_of_the_table_can_be_used(place: Place) -> None:
    table = re.findall(
        r"^\| `(//[^`]*)` \|", (ROOT / "docs/voirfiles.md").read_text(), re.MULTILINE
    )
    assert len(table) >= 5
    lines = "".join(f"    ov.probe({selector!r}).give()\n" for selector in table)
    place.write(main=SCRIPT, voirfile=f"def instrument_x(ov):\n{lines}")
    ended = place.voirkit("main.py")
    assert ended.code == 0, ended.err
    assert all(probe["events"] for probe in ended.summary["probes"])


def test_a_news_fragment_is_named_for_what_it_is_about() -> None:
    named = re.compile(r"[a-z][a-z-]*\.(feature|bugfix|doc|removal|misc)\.md|template\.md\.jinja")
    assert [
        path.name for path in (ROOT / "docs" / "news").glob("*") if not named.fullmatch(path.name)
    ] == []


def test_the_man_page_and_the_completion_files_are_those_of_the_command_line() -> None:
    # Fails after a change of options: `make format` writes them.
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "make_man_page.py", "--check"],
        env=CLEAN,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
