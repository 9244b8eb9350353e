"""Whether a process that recorded is still there; in doubt it is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from voirkit.runs import other_processes
from voirkit.runs.other_processes import goes_on, is_alive

NOW = (time.perf_counter_ns(), time.time_ns())
MANIFEST = {
    "ended": "running", "host": os.uname().nodename, "pid": os.getpid(), "clocks": {"perf_counter_ns": NOW[0], "time_ns": NOW[1]},
}  # fmt: skip
HOUR = 3600 * 10**9


def test_this_process_is_alive() -> None:
    assert is_alive(os.getpid(), *NOW)


def test_one_that_has_ended_is_not() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not is_alive(process.pid, *NOW)


def test_one_that_nobody_has_waited_for_is_not() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(process.pid, *NOW)
    process.wait()


@pytest.mark.parametrize("pid", [0, -1, 2**40])
def test_numbers_that_no_process_has_are_not(pid: int) -> None:
    assert not is_alive(pid, *NOW)


def test_a_younger_process_of_the_same_number_is_another() -> None:
    with open("/proc/self/stat") as file:
        began_ns = (
            int(file.read().rpartition(")")[2].split()[19]) * 10**9 // os.sysconf("SC_CLK_TCK")
        )
    before = began_ns - 60 * 10**9
    assert before > 0, "the system has just been started"
    assert not is_alive(os.getpid(), before, NOW[1] - NOW[0] + before)


def test_a_clock_that_was_set_meanwhile_does_not_make_it_another() -> None:
    assert is_alive(os.getpid(), NOW[0], NOW[1] - 5 * HOUR)


def test_one_from_before_the_systems_start_is_gone() -> None:
    assert not is_alive(os.getpid(), NOW[0] + 100 * HOUR, NOW[1])


def test_where_there_is_no_proc_the_process_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_processes, "sys", SimpleNamespace(platform="darwin"))
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert is_alive(os.getpid(), *NOW)
    assert is_alive(1, *NOW)
    assert not is_alive(process.pid, *NOW)


@pytest.mark.parametrize(
    ("changed", "live"),
    [({}, True), ({"ended": "normal"}, False), ({"host": "another"}, True), ({"pid": 2**40}, False), ({"pid": "x"}, False), ({"clocks": None}, False)],
)  # fmt: skip
def test_a_run_goes_on_as_long_as_its_process(changed: dict[str, Any], live: bool) -> None:
    assert goes_on({**MANIFEST, **changed}) is live


def test_without_a_manifest_nothing_goes_on() -> None:
    assert not goes_on(None)
    assert not goes_on({})
