"""What a test has started does not outlive it, and a forked child of it does not go on as a second pytest."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
from conftest import Ended, Place

pytestmark = pytest.mark.long

FORKS = """
import os, pathlib, subprocess, time
def note(pid):
    with open("children.txt", "a") as file:
        file.write(f"{pid}\\n")
def lasts():
    note(os.getpid())
    while True:
        time.sleep(60)
"""


def session(place: Place, *words: str, **files: str) -> Ended:
    """Run pytest with the plugin alone on files that it collects."""
    place.write({"pytest.ini": "[pytest]\n", "forks.py": FORKS}, **files)
    return place.python(
        "-m",
        "pytest",
        "-p",
        "left_processes",
        "-p",
        "no:cacheprovider",
        *words,
        env={"PYTHONPATH": str(Path(__file__).parent)},
        timeout=120,
    )


def children(place: Place) -> list[int]:
    """The processes that the tests noted, of which none may be there still."""
    return [int(line) for line in (place.folder / "children.txt").read_text().split()]


def assert_all_ended(pids: list[int]) -> None:
    limit = time.monotonic() + 60
    while any(map(_lives, pids)):
        assert time.monotonic() < limit
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["alone", "worker"])
def test_a_child_that_raises_ends_with_its_test_and_runs_no_other(
    place: Place, workers: list[str]
) -> None:
    main = """
    from forks import *
    def test_forks():
        pid = os.fork()
        if pid == 0:
            raise ValueError("of the child")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    def test_after_it():
        note(os.getpid())
    """
    ended = session(place, *workers, test_it=main)
    assert "1 failed, 1 passed" in ended.out
    assert "ValueError: of the child" in ended.out
    assert len(children(place)) == 1


@pytest.mark.parametrize("fails", [True, False])
def test_a_child_that_waits_for_ever_ends_with_its_test(place: Place, fails: bool) -> None:
    main = f"""
    from forks import *
    def test_forks():
        if os.fork() == 0:
            lasts()
        while not pathlib.Path("children.txt").exists():
            time.sleep(0.01)
        assert not {fails}
    """
    ended = session(place, test_it=main)
    assert ended.code == int(fails)
    assert_all_ended(children(place))


def test_a_child_whose_parent_has_ended_ends_with_the_test(place: Place) -> None:
    main = """
    from forks import *
    def test_forks():
        if os.fork() == 0:
            if os.fork() == 0:
                lasts()
            os._exit(0)
        os.wait()
        while not pathlib.Path("children.txt").exists():
            time.sleep(0.01)
    """
    assert session(place, test_it=main).code == 0
    assert_all_ended(children(place))


def test_a_program_that_a_test_has_left_ends_with_it_and_that_of_a_fixture_does_not(
    place: Place,
) -> None:
    main = """
    import sys, pytest
    from forks import *
    @pytest.fixture(scope="module")
    def server():
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        yield process
        assert process.poll() is None
        process.kill()
        process.wait()
    def test_one(server):
        note(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
    def test_other(server):
        assert server.poll() is None
    """
    assert session(place, test_it=main).code == 0
    assert_all_ended(children(place))
