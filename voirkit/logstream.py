"""The log: a stream of what should leave the process, and where it leaves to.

Costs nothing beyond the sinks until somebody uses it as a stream; only then is giving imported.
"""

from __future__ import annotations

from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class LogStream:
    """``ov.log``: call it with a dictionary to log it; use it as any giving stream to read what is logged.

    The sinks (files, descriptors) get what is logged before the streams' subscribers, so that a subscriber that fails loses nothing.
    """

    def __init__(self) -> None:
        self._sinks: list[Callable[[Any], None]] = []
        self._stream: Any = None

    def __call__(self, data: dict[str, Any]) -> None:
        for sink in self._sinks:
            sink(data)
        if self._stream is not None:
            self._stream._push(data)

    def to(self, sink: Callable[[Any], None]) -> None:
        """Send all that is logged from now on to a function as well."""
        self._sinks.append(sink)

    def end(self) -> None:
        """End the stream; what is logged later still reaches the sinks."""
        if self._stream is not None:
            self._stream._end()

    @property
    def stream(self) -> Any:
        """The log as a giving stream."""
        if self._stream is None:
            from voirkit.streams import Stream

            self._stream = Stream(label="the log")
        return self._stream

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.stream, name)

    def __rshift__(self, subscriber: Any) -> Any:
        return self.stream >> subscriber

    def __getitem__(self, keys: Any) -> Any:
        return self.stream[keys]

    def __or__(self, other: Any) -> Any:
        return self.stream | other
