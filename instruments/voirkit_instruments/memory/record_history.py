"""CUDA's history of allocations, kept from the moment at which the program first uses a device; and what held the memory when it ran out.

Nothing here initializes CUDA: torch itself calls what waits for that. Written against torch's functions and tested with a fake of them
only: it has never run on a GPU. Checked with the signatures of torch 2.1 and 2.15.
"""

from __future__ import annotations

import os
from collections import Counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Any

MOST_ENTRIES = 100_000  # the last allocations; some 100 MB of a file
_MOST_LINES, _MOST_READ = 5, 3  # lines that are named; how often a program that catches the error is looked at
_PHASES = (  # by the file of torch's in which a phase is, the innermost first
    (os.path.join("torch", "autograd", ""), "backward"),
    (os.path.join("torch", "optim", ""), "optimizer"),
    (os.path.join("torch", "utils", "data", ""), "wait"),
    (os.path.join("torch", "nn", ""), "forward"),
)
_LIBRARIES = (os.sep + os.path.join("torch", ""), os.sep + "voirkit", os.sep + os.path.join("lib", "python"))
_ERRORS = ("OutOfMemoryError", "MemoryError")
_OF_CPU = ("DefaultCPUAllocator", "not enough memory")


class History:
    """The history of one process.

    Args:
        torch: The module.
        begun: Called when it has begun.
        warn: Told if there can be none.

    Attributes:
        is_kept: Whether the program has used a device, and it is kept.
        held_by: When memory ran out last, how many bytes were held by tensors of each line, the most first; None: it has not.
    """

    def __init__(self, torch: Any, begun: Callable[[], None], warn: Callable[[str], None]) -> None:
        self._core, self._cuda, self._begun, self._warn = torch._C, torch.cuda, begun, warn
        self._pid, self._reads = os.getpid(), 0
        self._over = False
        self.is_kept = False
        self.held_by: list[dict[str, Any]] | None = None
        try:
            self._cuda._lazy_call(self._begin)
        except Exception as exc:
            self._failed(exc)

    def _failed(self, exc: Exception) -> None:
        self.is_kept = False
        self._warn(f"--memory-snapshot: this torch keeps no history of allocations ({type(exc).__name__}: {exc}).")

    def _begin(self) -> None:
        if self._over or os.getpid() != self._pid:
            return
        try:
            self._cuda.memory._record_memory_history(max_entries=MOST_ENTRIES)
            self.is_kept = True
            self._begun()
        except Exception as exc:  # torch calls this while it initializes CUDA: nothing must come out there
            self._failed(exc)
            return
        attach = getattr(self._core, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            attach(self._ran_out)

    def _ran_out(self, *_: object) -> None:
        """An allocation has failed; what the program still holds is there. In the thread that asked for it."""
        if self._over or self._reads >= _MOST_READ:
            return
        self._reads += 1
        try:
            self.held_by = held_by(self._cuda.memory._snapshot())
        except Exception:
            self.held_by = None

    def end(self, path: str) -> None:
        """Write the history, and keep no more.

        Raises:
            Exception: It cannot be written.
        """
        self._over = True
        if self.is_kept:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._cuda.memory._dump_snapshot(path)
            self._cuda.memory._record_memory_history(enabled=None)


def held_by(snapshot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Bytes of living tensors by the line of the program that made them (``where``, ``bytes``), the most first.

    Args:
        snapshot: As ``torch.cuda.memory._snapshot()`` gives it.
    """
    sums: Counter[str] = Counter()
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                own = next((frame for frame in block.get("frames", ()) if _is_programs(frame["filename"])), None)
                where = "unknown" if own is None else f"{os.path.basename(own['filename'])}:{own['line']}"
                sums[where] += block["size"]
    return [{"where": where, "bytes": n} for where, n in sums.most_common(_MOST_LINES)]


def is_out_of_memory(exc: BaseException | None) -> bool:
    """Whether a program ended because memory, of a device or of the host, ran out."""
    if exc is None:
        return False
    return type(exc).__name__ in _ERRORS or (isinstance(exc, RuntimeError) and any(word in str(exc) for word in _OF_CPU))


def place_of(trace: TracebackType | None) -> tuple[str, str | None]:
    """The phase in which an exception was raised, and the innermost line of the program: ``("backward", "main.py:12")``."""
    phase, where = "other", None
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        phase = next((name for part, name in _PHASES if part in path), phase)
        if _is_programs(path):
            where = f"{os.path.basename(path)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return phase, where


def _is_programs(path: str) -> bool:
    return path.endswith(".py") and not any(part in path for part in _LIBRARIES)
