"""Memory peaks and waiting for processors, always on; and losses that are not numbers, in a run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import Place

from voirkit_instruments import resources
from voirkit_instruments.resources import Processors, memory

SCRIPT = """
import subprocess, sys, voirkit
block = bytearray(150_000_000)
for i in range(0, len(block), 4096): block[i] = 1
del block
code = "b = bytearray({}_000_000)\\nfor i in range(0, len(b), 4096): b[i] = 1"
subprocess.run([sys.executable, "-c", code.format(250)])
for loss in (3.0, 2.0, float("nan"), float("inf")):
    voirkit.give(loss=loss)
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell less")
def test_a_run_without_flags_has_its_memory_processors_and_losses(place: Place) -> None:
    place.write(main=SCRIPT)
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (0, "done\n")
    summary = ended.summary
    assert 150e6 < summary["memory"]["process_peak"] < 250e6 < summary["memory"]["peak"] < 350e6
    assert "devices" not in summary["memory"]
    processors = summary["processors"]
    assert processors["usable"] >= 1
    assert processors["own_s"] > 0
    assert 0 <= processors["waited_share"] <= 1
    assert 0 <= processors["others_share"] <= 1
    assert summary["loss"]["not_finite"] == {"first": 2, "value": "nan", "n": 2, "of": 4}
    assert summary["loss"]["curve"] == [[0, 3.0], [1, 2.0], [2, None], [3, None]]
    assert [alert["kind"] for alert in summary["alerts"]] == ["loss-not-finite"]
    assert "voirkit: loss-not-finite: The loss is nan from loss 2 on" in ended.err
    assert summary["warnings"] == []


def test_the_peak_of_this_process_is_its_own_and_no_less_than_what_it_holds() -> None:
    found = memory()
    assert found["peak"] >= found["process_peak"] > 10e6
    assert found["units"] == "bytes"


BURNS = """
import sys, time
until = time.process_time() + 0.3
while time.process_time() < until: pass
print("done", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell nothing of it")
def test_work_of_a_child_that_still_runs_is_the_scripts_own() -> None:
    processors = Processors()
    with subprocess.Popen(
        [sys.executable, "-c", BURNS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        processors.stop()
        found = processors.figures()
        child.communicate()
    assert found is not None
    assert found["own_s"] > 0.28


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell nothing of it")
def test_work_of_what_voirkit_runs_beside_the_script_is_nobody_elses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpus = len(os.sched_getaffinity(0))
    clock, busy_s = iter((100.0, 110.0)), iter((1000.0, 1000.0 + 6 * cpus))
    monkeypatch.setattr(resources.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(resources, "_busy_s", lambda _: next(busy_s))
    monkeypatch.setattr(resources, "_running_children_s", lambda: 0.0)
    monkeypatch.setattr(resources.os, "times", lambda: (0.0, 0.0, 0.0, 0.0, 0.0))
    processors = Processors()
    processors.stop()
    found = processors.figures(helpers_s=5.0 * cpus)
    assert found is not None
    assert found["helpers_share"] == pytest.approx(0.5)
    assert found["others_share"] == pytest.approx(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell nothing of it")
def test_work_of_this_process_is_its_own() -> None:
    processors = Processors()
    sum(range(3_000_000))
    found = processors.figures()
    assert found is not None
    assert found["own_s"] >= 0
