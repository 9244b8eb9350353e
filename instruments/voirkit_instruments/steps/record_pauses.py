"""Pauses that python and torch take of their own, as the steps instrument records them: garbage collection and compilation.

Kind ``phase``, ``gc.collect`` and ``compute.compile``; both call back, so that nothing of the program's is touched.
"""

from __future__ import annotations

import gc
import threading
from time import perf_counter_ns

from voirkit.imports import when_imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.steps.record_spans import Recording

# Collections of young objects take 5 to 50 us each and are many; of what a training step waits for they are nothing.
LEAST_NS = 100_000
_MODULE = "torch._dynamo.callback"


class CollectionRecording:
    """Writes pauses of python's garbage collector into the trace plane.

    The callback stands in ``gc.callbacks``, where the program can see it, the first of them: there is no other way to be told of a
    collection. It is written in C where that was built, so that no profiler or tracer of the program's has a frame of it.

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


class CompilationRecording:
    """Writes compilations of ``torch.compile`` into the trace plane.

    torch._dynamo calls back at the beginning and end of each. Checked with torch 2.15; before 2.4 there are no callbacks, and a
    compilation counts for the phase that it happens in.

    Args:
        recording: The recording that this is a part of.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._name = recording.phase("compute", "compile")
        self._handler: Any = None
        self._begun: tuple[int, int] | None = None  # the thread, and when; they are one after the other
        self._over = False

    def put(self) -> None:
        """Be told of compilations from now on; the module is imported when something is first compiled."""
        when_imported(_MODULE, self._register)

    def _register(self, module: ModuleType) -> None:
        handler: Any = getattr(module, "callback_handler", None)
        if self._over or not hasattr(handler, "remove_end_callback"):
            return
        try:
            handler.register_start_callback(self._on_start)
            handler.register_end_callback(self._on_end)
            self._handler = handler
        except Exception as exc:  # a torch that is not like any known one
            self._recording.failed("compilations", exc)

    def remove(self) -> None:
        """Be told no more."""
        self._over = True
        handler, self._handler = self._handler, None
        for name, callback in (("start", self._on_start), ("end", self._on_end)):
            if handler is not None and callback in getattr(handler, f"{name}_callbacks", ()):  # the program may have cleared them
                getattr(handler, f"remove_{name}_callback")(callback)

    # torch 2.7 and later pass what is compiled and why

    def _on_start(self, *_: object) -> None:
        self._begun = threading.get_ident(), perf_counter_ns()

    def _on_end(self, *_: object) -> None:
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] == threading.get_ident():
            self._recording.recorder.span(self._name, begun[1], perf_counter_ns())
