"""Programs, pipes and fixtures for the tests of the multiplexer."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from voirkit.multiplexer import LogEntry, Multiplexer

if TYPE_CHECKING:
    from collections.abc import Iterator

# What every program of these tests may use: `log` writes a line of data as any program for such a harness would.
PREAMBLE = """
import json, os, subprocess, sys, time
def log(data):
    os.write(int(os.environ["DATA_FD"]), (json.dumps(data) + "\\n").encode())
"""


@pytest.fixture(autouse=True)
def no_descriptor_is_leaked() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert open_descriptors() == before


@pytest.fixture(params=["pidfd", "ticks"])
def watching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the kernel telling when a process ends, and without."""
    if request.param == "ticks":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    return str(request.param)


def open_descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else []


def program(code: str) -> list[str]:
    return [sys.executable, "-c", PREAMBLE + textwrap.dedent(code)]


def events(multiplexer: Multiplexer) -> list[LogEntry]:
    with multiplexer:
        return [entry for entry in multiplexer if entry is not None]


def of_pipe(entries: list[LogEntry], pipe: str) -> list[Any]:
    return [entry.data for entry in entries if entry.pipe == pipe]


def ended(entries: list[LogEntry]) -> int:
    assert entries[-1].event == "end"
    return int(entries[-1].data["return_code"])


class Gate:
    """A pipe that holds programs up: they `os.read(fd, 1)` until it is opened."""

    def __init__(self) -> None:
        self.fd, self._held = os.pipe()

    def open(self) -> None:
        os.close(self._held)
        os.close(self.fd)


@pytest.fixture
def gate(no_descriptor_is_leaked: None) -> Iterator[Gate]:
    gate = Gate()
    yield gate
    with contextlib.suppress(OSError):
        gate.open()


@dataclass
class NamedEntry(LogEntry):
    """An entry with the name of its run."""

    name: str = ""
