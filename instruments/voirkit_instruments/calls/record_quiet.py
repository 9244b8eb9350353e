"""What voirkit's own instruments call of torch is not the program's: inside ``with quiet():`` the calls instrument records nothing.

Costs nothing where calls are not recorded; imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

change: Callable[[int], object] | None = None  # of the engine, while calls are recorded


class quiet:
    """Nothing of this thread is recorded until its end; may be nested."""

    __slots__ = ("_change",)

    def __enter__(self) -> None:
        self._change = change
        if self._change is not None:
            self._change(1)

    def __exit__(self, *_: object) -> None:
        if self._change is not None:
            self._change(-1)
