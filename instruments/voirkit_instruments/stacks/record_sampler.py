"""A thread that takes the stacks of this process, where py-spy cannot: by the wall clock, Python's frames alone, whenever it gets the GIL.

Must never change the program: it starts nothing in processes that are forked, sets no trace function and handles no signal.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_WRITE_S = 0.5  # how much of a run that is killed is lost
_JOIN_S = 2.0


class ThreadSampler:
    """Takes stacks and writes them, one line for each time, frame, stack and thread name.

    Args:
        path: Of the file.
        rate_hz: Times a second.
        most_bytes: What the file may take.
        warn: Called, once, with what went wrong.
    """

    def __init__(self, path: str, rate_hz: int, most_bytes: int, warn: Callable[[str], None]) -> None:
        self._path, self._period_s, self._most_bytes, self._warn = path, 1 / rate_hz, most_bytes, warn
        self._over = threading.Event()
        self._frames: dict[tuple[Any, int], int] = {}  # by code and line: a function that is gone keeps its code alive here
        self._stacks: dict[tuple[int, ...], int] = {}
        self._names: dict[int, str] = {}
        self._lines: list[str] = []
        self._written = 0
        self._thread = threading.Thread(target=self._run, name="voirkit-flame", daemon=True)
        self.took_s = 0.0
        self.late = 0
        self.cut: str | None = None

    def start(self) -> None:
        """Begin.

        Raises:
            OSError: The file cannot be written.
        """
        with open(self._path, "w", encoding="utf-8"):
            pass
        self._thread.start()

    def stop(self) -> None:
        """End, and write what is left."""
        self._over.set()
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._write()

    def _run(self) -> None:
        due = written = time.perf_counter()
        try:
            while not self._over.wait(max(due - time.perf_counter(), 0)):
                began = time.thread_time()
                waited = max(int((time.perf_counter() - due) / self._period_s), 0)
                self._sample(waited)
                now = time.perf_counter()
                if now - written > _WRITE_S:
                    self._write()
                    written = now
                missed = max(int((now - due) / self._period_s), waited)
                self.late += missed - waited
                due += self._period_s * (missed + 1)
                self.took_s += time.thread_time() - began
                if self.cut is not None:
                    return
        except Exception as exc:  # the program goes on
            self.cut = f"{type(exc).__name__}: {exc}"
        if self.cut is not None:
            self._warn(f"--flame: no more stacks are taken ({self.cut}).")

    def _sample(self, waited: int) -> None:
        """Look at all threads, after so many looks that could not be taken: who kept the GIL from this thread is seen now."""
        at, own = time.perf_counter_ns(), threading.get_ident()
        seen = []
        for ident, frame in sys._current_frames().items():
            if ident != own:
                tid = self._tid(ident)
                if tid is not None:
                    seen.append((tid, self._stack(frame)))
        self._lines.append(json.dumps({"t": at, "seen": seen, **({"waited": waited} if waited else {})}))

    def _tid(self, ident: int) -> int | None:
        """The native id of a thread, its name written once; None of voirkit's own."""
        thread = threading._active.get(ident)  # type: ignore[attr-defined]  # enumerate() takes a lock that the program may hold
        if thread is None or thread.native_id is None:
            return ident
        if thread.name.startswith("voirkit-"):
            return None
        tid: int = thread.native_id
        if self._names.get(tid) != thread.name:
            self._names[tid] = thread.name
            self._lines.append(json.dumps({"thread": tid, "name": str(thread.name)}))
        return tid

    def _stack(self, frame: Any) -> int:
        numbers = []
        while frame is not None:
            code, at = frame.f_code, frame.f_lineno or 0
            number = self._frames.get((code, at))
            if number is None:
                number = self._frames[code, at] = len(self._frames)
                name = getattr(code, "co_qualname", code.co_name)  # Python 3.11 and later know its class
                self._lines.append(json.dumps({"frame": [name, code.co_filename, at]}))
            numbers.append(number)
            frame = frame.f_back
        stack = tuple(reversed(numbers))
        found = self._stacks.get(stack)
        if found is None:
            found = self._stacks[stack] = len(self._stacks)
            self._lines.append(json.dumps({"stack": stack}))
        return found

    def _write(self) -> None:
        data = "".join(f"{line}\n" for line in self._lines).encode(errors="replace")
        self._lines.clear()
        if self._written + len(data) > self._most_bytes:
            self.cut = "what is written has reached --trace-limit"
            return
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            self._written += os.write(file, data)
        finally:
            os.close(file)
