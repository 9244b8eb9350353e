"""What it costs to hand a batch from one process to another on this machine: a program of its own, that prints it as JSON.

torch's loaders send a tensor as a file of shared memory, whose descriptor goes through ``multiprocessing.resource_sharer``: a connection, a
handshake and a message for each. Here the same is done without torch, in the processor's time of both sides together. It takes 0.1
s.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from time import process_time_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_ROUNDS, _CALLS = 40, 1000
_PAGES = 4 << 20  # bytes of shared memory that are written
LONGEST_S = 5.0


def measure_handover() -> dict[str, int] | None:
    """``{"call_ns", "tensor_ns", "mb_ns"}``; None where that is not known.

    A call of a function of python, a file of shared memory handed over, and a million bytes of it written first.
    """
    command = [sys.executable, "-I", "-S", __file__]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LONGEST_S, check=True)
        costs = json.loads(ended.stdout)
        return {key: int(costs[key]) for key in ("call_ns", "tensor_ns", "mb_ns")}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None


def _median(work: Callable[[], None], rounds: int) -> int:
    times = []
    for _ in range(rounds):
        begin_ns = process_time_ns()
        work()
        times.append(process_time_ns() - begin_ns)
    return sorted(times)[len(times) // 2]


def _file(n_bytes: int) -> int:
    path = f"/dev/shm/voirkit_{os.getpid()}"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.unlink(path)
    os.ftruncate(descriptor, n_bytes)
    return descriptor


def main() -> None:
    """Measure, and print."""
    from multiprocessing import resource_sharer

    class Place:
        index = 0

        def call(self, index: int) -> int:
            self.index = index
            return self.index

    place = Place()

    def calls() -> None:
        for index in range(_CALLS):
            place.call(index)

    def tensor() -> None:
        descriptor = _file(4096)
        made = mmap.mmap(descriptor, 4096)
        got = resource_sharer.DupFd(descriptor).detach()
        same = mmap.mmap(got, 4096)
        for one in (made, same):
            one.close()
        for number in (descriptor, got):
            os.close(number)

    text = bytes(_PAGES)

    def pages() -> None:
        descriptor = _file(_PAGES)
        with mmap.mmap(descriptor, _PAGES) as made:
            made[:] = text
        os.close(descriptor)

    found = {
        "call_ns": _median(calls, _ROUNDS) // _CALLS,
        "tensor_ns": _median(tensor, _ROUNDS),
        "mb_ns": _median(pages, 5) * 1_000_000 // _PAGES,
    }
    resource_sharer.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
