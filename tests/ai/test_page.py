"""The page about annotations is right: its programs run, and its table has all the nodes."""

from __future__ import annotations

import re
from pathlib import Path

from annotating import counts, rows

PAGE = (Path(__file__).parent.parent.parent / "docs" / "annotations.md").read_text()
FIRST, FOR_DFTRACER = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_first_program_is_recorded(place):
    place.write(main=FIRST)
    ended = place.voirkit("--quiet", "main.py")
    assert (ended.code, ended.err) == (0, "")
    assert counts(rows(place.folder / "run")) == {
        "item": 8, "fetch.iter": 4, "fetch.block": 4, "forward": 4, "backward": 4, "epoch.iter": 2, "epoch.block": 2,
    }  # fmt: skip


def test_the_program_for_dftracer_gives_a_trace(place):
    place.write(main=FOR_DFTRACER)
    assert place.python("main.py").err == ""
    assert '"name":"load"' in (place.folder / "trace.pfw").read_text()


def test_the_table_has_all_nodes(ai):
    table = re.findall(r"^\| `ai\.(\w+)` \| (.*?) \|", PAGE, re.MULTILINE)
    named = {category: re.findall(r"`(\w+)`", below) for category, below in table}
    nodes = {
        c: [w for w in vars(getattr(ai, c)) if w in type(getattr(ai, c)).__annotations__]
        for c in type(ai).__annotations__
    }
    assert named == nodes
