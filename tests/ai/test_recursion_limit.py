"""Annotations where Python can go no deeper: the program's exception is its own, and nothing is lost unseen."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
from annotating import counts, events

PROGRAM = """
from voirkit.trace import layout, recorder
layout.LARGEST_WINDOW = 1 << 16
from voirkit.ai import ai
entered = 0
def context():
    global entered
    ai.update(step=entered)
    with ai.compute.forward:
        entered += 1
        context()
@ai.compute.forward
def decorated():
    global entered
    entered += 1
    decorated()
for i in range(10):
    for function in (context, decorated):
        try:
            function()
        except RecursionError as exc:
            assert exc.__context__ is None, exc
print(entered, sum(recorder.end().dropped.values()))
"""


@pytest.mark.parametrize("extension", ["", "1"])
def test_spans_at_the_recursion_limit_are_recorded_and_the_exception_is_the_programs(
    tmp_path, extension
):
    if not extension and importlib.util.find_spec("voirkit.trace._recorder") is None:
        pytest.skip("the C recorder is not built here")
    env = {
        **os.environ,
        "VOIRKIT_RUN_DIR": str(tmp_path / "run"),
        "VOIRKIT_NO_EXTENSION": extension,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, env=env
    )
    assert done.returncode == 0, done.stderr
    entered, dropped = map(int, done.stdout.split())
    found = counts(events(tmp_path / "run"))["forward"]
    not_begun = 10  # the last call of each recursion is a span on Python 3.12, though the function itself could not begin
    assert found + dropped <= entered + not_begun
    assert (dropped, done.stderr) == (
        0,
        "",
    )  # the C recorder goes deeper for a moment; that in Python writes when it can again
    assert found >= entered


FIRST_RECORDS = """
import os
from voirkit.ai import ai
def deeper(levels, function):
    return deeper(levels - 1, function) if levels else function()
def context():
    with ai.compute.forward:
        context()
for level in range(40):
    child = os.fork()
    if not child:
        try:
            deeper(level, context)
        except RecursionError:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("extension", ["", "1"])
def test_the_first_record_may_come_at_any_distance_from_the_limit(tmp_path, extension):
    env = {
        **os.environ,
        "VOIRKIT_RUN_DIR": str(tmp_path / "run"),
        "VOIRKIT_NO_EXTENSION": extension,
    }
    done = subprocess.run(
        [sys.executable, "-c", FIRST_RECORDS], capture_output=True, text=True, timeout=300, env=env
    )
    assert (done.returncode, done.stderr) == (0, "")
