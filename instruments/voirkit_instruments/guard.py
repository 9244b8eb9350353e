"""A guard for functions of an instrument that run inside the program's own calls. The first failure
switches them off for the rest of the run, and is never raised in the program."""

from __future__ import annotations

from typing import Any

from voirkit.streams import is_from_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Guard:
    """A group of functions of one instrument that are switched off together: on request, or when
    one of them fails.

    Args:
        warn: Called with a message at the first failure.
        consequence: What no longer happens after a failure; the message begins with it.

    Attributes:
        is_off: True if the functions no longer do anything.
    """

    def __init__(self, warn: Callable[[str], None], consequence: str) -> None:
        self._warn = warn
        self._consequence = consequence
        self.is_off = False

    def guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """Wrap ``function`` so that it does not raise. Exceptions that end a run on purpose, and
        those of the program's signal handlers, are not failures and are passed on."""

        def guarded(*arguments: Any) -> None:
            if self.is_off:
                return
            try:
                function(*arguments)
            except Exception as exc:  # an error of the instrument must not stop the program
                if is_from_handler(exc):
                    raise
                self.is_off = True
                self._warn(f"{self._consequence} ({type(exc).__name__}: {exc}).")

        return guarded
