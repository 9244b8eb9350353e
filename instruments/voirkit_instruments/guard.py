"""What an instrument does in the program's own calls: it fails once, for the run, and never for the
program."""

from __future__ import annotations

from typing import Any

from voirkit.streams import is_from_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Guard:
    """Functions of one instrument that are switched off together: by hand, or when one of them
    fails.

    Args:
        warn: Told of the first failure.
        consequence: What is not done any more; the beginning of that sentence.

    Attributes:
        is_off: Whether none of them does anything any more.
    """

    def __init__(self, warn: Callable[[str], None], consequence: str) -> None:
        self._warn = warn
        self._consequence = consequence
        self.is_off = False

    def guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """A function that does the same, and does not raise. What ends a run on purpose is no
        failure."""

        def guarded(*arguments: Any) -> None:
            if self.is_off:
                return
            try:
                function(*arguments)
            except Exception as exc:  # the instrument fails, not the program
                if is_from_handler(exc):
                    raise
                self.is_off = True
                self._warn(f"{self._consequence} ({type(exc).__name__}: {exc}).")

        return guarded
