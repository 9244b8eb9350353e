"""What the tests of call hooks share."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from voirkit.probes.call_hooks import CallHooks

Event = tuple[Any, ...]


class Told:
    """Notes what is told of functions, which are numbered from 0."""

    def __init__(self, *functions: object) -> None:
        self.events: list[Event] = []
        self.entry = CallHooks((self._begin, self._end, self._failed))
        self.entry.add(dict(enumerate(functions)))

    def _begin(self, number: int, _: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        self.events.append((number, "begin", args, kwargs))
        return True

    def _end(self, number: int, value: object) -> None:
        self.events.append((number, "end", value))

    def _failed(self, number: int, exc: BaseException) -> None:
        self.events.append((number, "failed", exc))

    def began(self, number: int = 0) -> int:
        return sum(event[:2] == (number, "begin") for event in self.events)


@contextmanager
def told(*functions: object) -> Iterator[Told]:
    """Functions while they are entered; all are back as they were afterwards."""
    found = Told(*functions)
    found.entry.on()
    try:
        yield found
    finally:
        found.entry.remove()


def run(program: str) -> str:
    """What a program prints in a process of its own, which must end well and say nothing else."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
