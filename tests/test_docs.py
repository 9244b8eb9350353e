"""What the documentation shows works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Place

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
    for n, block in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_voirfile_of_the_documentation_runs(place: Place, block: str) -> None:
    place.write(main=SCRIPT, voirfile=block)
    ended = place.voirkit("main.py")
    assert ended.code == 0, ended.err
    assert ended.summary["warnings"] == []


def test_the_selectors_of_the_table_can_be_used(place: Place) -> None:
    table = re.findall(r"^\| `(//[^`]*)` \|", (ROOT / "docs/voirfiles.md").read_text(), re.MULTILINE)
    assert len(table) >= 5
    lines = "".join(f"    ov.probe({selector!r}).give()\n" for selector in table)
    place.write(main=SCRIPT, voirfile=f"def instrument_x(ov):\n{lines}")
    ended = place.voirkit("main.py")
    assert ended.code == 0, ended.err
    assert all(probe["events"] for probe in ended.summary["probes"])
