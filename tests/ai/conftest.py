"""A tree of its own for a test, and what it records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from recorded import Event, events

from voirkit.ai import node, tree
from voirkit.trace import recorder


@pytest.fixture
def ai() -> tree.AI:
    """A tree that no other test has touched."""
    return tree.grow()


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Callable[[], list[Event]]]:
    """Recording goes on in this process; called, it ends and what was recorded is returned."""
    node.allow(True)
    recorder.begin(str(tmp_path / "run"))

    def end() -> list[Event]:
        recorder.end()
        return events(tmp_path / "run")

    yield end
    recorder.end()
