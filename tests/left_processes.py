"""No process that a test starts outlives it.

A forked child that leaves its test, by an exception or by falling off its end, ends there: it would go on as a second pytest. What a test
has left behind when it is over is killed: a child that waits for ever keeps the pipe that pytest writes to open, and whoever reads it waits too.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Generator, Iterator

import psutil
import pytest

FORKED_CHILD_LEFT_ITS_TEST = 70
# Python's own, for the whole session: they end when the process does that they serve.
SERVERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "joblib.externals.loky",
)


# Processes that a thread of a fixture has started, and waits for, while tests run: of other tests they are none of the business.
of_fixtures: set[int] = set()
starting = threading.RLock()  # held while one is started and noted


class ForkedProcesses:
    """The processes that were forked from this one, and from those: each writes down its number, and when it began."""

    def __init__(self) -> None:
        self._file = os.memfd_create("forked")
        os.register_at_fork(after_in_child=self._note)

    def _note(self) -> None:
        try:
            os.write(self._file, f"{os.getpid()} {psutil.Process().create_time()!r}\n".encode())
        except OSError:
            pass  # a child of a test has closed the descriptor

    def take(self) -> Iterator[psutil.Process]:
        """Those noted since the last call that are there still."""
        size = os.fstat(self._file).st_size
        if not size:
            return
        lines = os.pread(self._file, size, 0).decode().splitlines()
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        for line in lines:
            number, began = line.split()
            try:
                process = psutil.Process(int(number))
            except psutil.NoSuchProcess:
                continue
            if process.create_time() == float(began):  # else the number is another's by now
                yield process


class LeftProcesses:
    """The plugin: of a session, or of each worker of one. Its wrappers are the innermost: what a child prints is captured."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.forked = ForkedProcesses()
        self.kept: set[psutil.Process] = set()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        return (yield from self._end_in_a_child())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        self.kept = set(_children())  # fixtures' own, of which some are for many tests
        return (yield from self._end_in_a_child())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        result = yield from self._end_in_a_child()
        self._kill_what_is_left()
        return result

    def _end_in_a_child(self) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            if os.getpid() != self.pid:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(FORKED_CHILD_LEFT_ITS_TEST)

    def _kill_what_is_left(self) -> None:
        with starting:
            left = {
                process
                for process in (*self.forked.take(), *_children())
                if process not in self.kept
            }
            left -= _with_children(of_fixtures)
        for process in left:
            try:
                if process.status() == psutil.STATUS_ZOMBIE or any(
                    name in word for word in process.cmdline() for name in SERVERS
                ):
                    continue
                process.kill()
            except psutil.NoSuchProcess:
                continue
            _reap(process.pid)


def _with_children(pids: set[int]) -> set[psutil.Process]:
    """Processes that are there still, with all that they have started."""
    found: set[psutil.Process] = set()
    for pid in list(pids):
        try:
            process = psutil.Process(pid)
            found |= {process, *process.children(recursive=True)}
        except psutil.NoSuchProcess:
            continue
    return found


def kill_with_children(pid: int) -> None:
    """Kill a process with all that it has started."""
    try:
        process = psutil.Process(pid)
        for one in (*process.children(recursive=True), process):
            one.kill()
    except psutil.NoSuchProcess:
        pass


def _children() -> list[psutil.Process]:
    """The children of this process, and theirs."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # which is usual, and takes a microsecond
        return []
    return psutil.Process().children(recursive=True)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass  # another's child, or one that a Popen of the test has waited for


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LeftProcesses(), "processes of tests")
