"""What the tests of probes in child processes share: programs that start children, and functions to probe in forked ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from conftest import Ended, Place

METHODS = ("fork", "spawn", "forkserver")


def run(place: Place, *words: str, voirkit: bool = False, **options: Any) -> Ended:
    """Run with the voirkit that is being tested, wherever python found it."""
    env = {
        **options.pop("env", {}),
        **({"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}),
    }
    return (place.voirkit if voirkit else place.python)(*words, env=env, timeout=240, **options)


def said(place: Place, program: str, *words: str) -> Any:
    """What a program says as JSON in its last line; warnings are errors in it, and it must say nothing else on stderr."""
    place.write(program=program)
    ended = run(place, "-W", "error", "program.py", *words)
    assert (ended.code, ended.err) == (0, "")
    return json.loads(ended.out.splitlines()[-1])


def forked(function: Callable[[], object], code: int = 0) -> int:
    """Run a function in a child made by fork; returns the child's process id when it has ended."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(code)
    os.waitpid(pid, 0)
    return pid


def half(n: int) -> float:
    result = n / 2
    return result


def count_to(n: int) -> None:
    for i in range(n):
        x = i  # noqa: F841
