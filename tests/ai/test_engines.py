"""All that can be tested in one process holds for the recorder in Python as for the one in C."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CLEAN

from voirkit.trace import recorder

FILES = ("arguments", "blocks", "dft_fn", "functions", "loops", "switches")


@pytest.mark.skipif(
    recorder.engine.NAME == "python",
    reason="the recorder in C is not there: the tests have used the other",
)
def test_annotations_keep_their_promises_without_the_extension():
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command,
        env={**CLEAN, "VOIRKIT_NO_EXTENSION": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout[-3000:]
