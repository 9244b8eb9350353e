"""What the tests of the steps instrument share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(params=["C", "Python"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is called before and after functions of torch, in C where it was built, and in Python."""
    if request.param == "C":
        pytest.importorskip("voirkit_instruments._steps")
    monkeypatch.setenv("VOIRKIT_NO_EXTENSION", "0" if request.param == "C" else "1")
    return str(request.param)


@pytest.fixture
def kept(engine: str) -> Iterator[Any]:
    """What is recorded of torch (``phases.Kept``)."""
    from phases import watched  # it needs torch

    with watched() as watch:
        yield watch.kept
