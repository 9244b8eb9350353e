"""Pauses of python's garbage collector, as the steps instrument records them: kind ``phase``, ``gc.collect``.

The callback stands in ``gc.callbacks``, where the program can see it, the first of them: there is no other way to be told of a
collection. It is written in C where that was built, so that no profiler or tracer of the program's has a frame of it.
"""

from __future__ import annotations

import gc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit_instruments.steps_record import Recording

# Collections of young objects take 5 to 50 us each and are many; of what a training step waits for they are nothing.
LEAST_NS = 100_000


class CollectionRecording:
    """Writes pauses into the trace plane.

    Args:
        recording: The recording that this is a part of.
    """

    def __init__(self, recording: Recording) -> None:
        self._arguments = recording.recorder.arguments
        self._by_generation: dict[int, int] = {}
        self._callback: Any = recording.hot.collection(recording.phase("gc", "collect", "collected"), self._describe, LEAST_NS)

    def _describe(self, generation: int) -> int:
        args = self._by_generation.get(generation)
        if args is None:
            args = self._by_generation[generation] = self._arguments({"generation": generation})
        return args

    def put(self) -> None:
        """Be told of collections from now on."""
        gc.callbacks.insert(0, self._callback)

    def remove(self) -> None:
        """Be told no more."""
        if self._callback in gc.callbacks:  # the program may have emptied the list
            gc.callbacks.remove(self._callback)
