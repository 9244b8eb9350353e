"""torch's profiler (Kineto) of one thread: begun, marked, ended and written, below ``torch.profiler``.

Nothing of ``torch.profiler`` is used that the program could see: no hook, no flag of its modules. Checked with torch 2.15 on a CPU;
on a device it has not run.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MARK = "voirkit.mark"
_MARKS = 3  # at the begin and the end: the first is slow, of the others the best counts


class Kineto:
    """One recording after the other.

    Args:
        torch: The module.
        memory: Whether to record what operators allocate.

    Attributes:
        marks: For each mark of this recording, the clock before and after it, nanoseconds.
    """

    def __init__(self, torch: Any, memory: bool) -> None:
        self._torch = torch
        native, profiler = torch._C._autograd, torch._C._profiler
        self._prepare, self._enable, self._disable = native._prepare_profiler, native._enable_profiler, native._disable_profiler
        self._enabled = native._profiler_enabled
        self._activity = profiler.ProfilerActivity
        self._config = profiler.ProfilerConfig(
            profiler.ProfilerState.KINETO, False, memory, False, False, False, profiler._ExperimentalConfig()
        )
        fast = getattr(profiler, "_RecordFunctionFast", None)
        self._marking: Callable[[], Any] = (lambda: fast(MARK)) if fast else (lambda: torch.autograd.profiler.record_function(MARK))
        self.marks: list[tuple[int, int]] = []

    def is_taken(self) -> bool:
        """Whether somebody else profiles this thread."""
        return bool(self._enabled())

    def begin(self) -> None:
        """Record from now on, in this thread.

        Raises:
            RuntimeError: torch refuses.
        """
        activities = {self._activity.CPU}
        cuda = self._torch.cuda
        if cuda.is_initialized() and self._activity.CUDA in self._torch._C._autograd._supported_activities():
            activities.add(self._activity.CUDA)
        # Kineto says on stderr that it begins and ends. It looks for this once, when prepared; the program's environment is as it was.
        said = "KINETO_LOG_LEVEL" in os.environ
        if not said:
            os.putenv("KINETO_LOG_LEVEL", "99")
        try:
            self._prepare(self._config, activities)
        finally:
            if not said:
                os.unsetenv("KINETO_LOG_LEVEL")
        self._enable(self._config, activities)
        self.marks = []
        for _ in range(_MARKS):
            self.mark()

    def mark(self) -> None:
        """Leave a mark in what is recorded, and note the clock: that is how both clocks are brought together."""
        marking = self._marking()
        enter, leave, now = marking.__enter__, marking.__exit__, time.perf_counter_ns
        before = now()
        enter()
        after = now()
        leave(None, None, None)
        self.marks.append((before, after))

    def end(self) -> Any:
        """Record no more.

        Returns:
            What was recorded, which has ``save(path)``.

        Raises:
            RuntimeError: It was not this thread that began.
        """
        for _ in range(_MARKS):
            self.mark()
        cuda = self._torch.cuda
        if cuda.is_initialized():
            cuda.synchronize()  # as torch.profiler does: kernels that were started in the window belong to it
        return self._disable()

    def drop(self) -> None:
        """Take away from this thread what is left of a recording that torch has cancelled: what it has of it must not be touched."""
        self._dropped = self._disable()
