"""Where events go: the one function that a probe's taps call, what they count, and what raw events are made of.

The function sits in a cell that all taps of the probe share, so that it can be changed under them: to the only
subscriber itself, to the stream, to nothing.  What a subscriber raises never gets into the program.
"""

from __future__ import annotations

import threading
from types import CellType
from typing import TYPE_CHECKING, Any

from voirkit.interruptions import is_from_handler
from voirkit.probes.language import ABSENT
from voirkit.streams import MEANT, in_turn, threads

if TYPE_CHECKING:
    from collections.abc import Callable


class Off(Exception):
    """Raised to a tap that nobody wants: in a frame that was running when the probe left, or among many others."""


def off(event: Any) -> None:
    raise Off


class Outlet:
    """What the taps of one probe share.

    Attributes:
        emit: A cell with the function that takes an event.
        failed: A cell with the function that takes what it raised, and says whether that is for the program.
        count: A cell with the number of events.
        begin, end: Cells with what takes the begin and the end of a pair, if the begin needs no event; else with None.
        drop: What then takes that a begin will have no end, or None.
    """

    def __init__(self, failed: Callable[[BaseException], None], complain: Callable[[Exception], None]) -> None:
        self.emit, self.count = CellType(off), CellType(0)
        self.failed, self.begin, self.end = CellType(self._failed), CellType(None), CellType(None)
        self._told, self.complain = failed, complain
        self.drop: Callable[[Any], None] | None = None
        self._slot = threading.local()

    def _failed(self, exc: BaseException) -> bool:
        # At the recursion limit it is the program that is at fault, and will be told so itself.
        if isinstance(exc, Off | RecursionError):
            return False
        if is_from_handler(exc):
            return True
        try:
            self._told(exc)
        except RecursionError:
            pass  # the next event that fails, with more room, tells it
        return False

    def open(self, emit: Callable[[Any], None], pair: Any) -> None:
        """Send events to a function."""
        self.emit.cell_contents = emit
        self.begin.cell_contents, self.end.cell_contents, self.drop = pair or (None, None, None)

    def close(self) -> None:
        """No more events, whatever still runs."""
        self.open(off, None)

    def fire(self, event: Any) -> None:
        """Send an event."""
        try:
            if threads():
                in_turn(self.emit.cell_contents, event)
            else:
                self.emit.cell_contents(event)
            self.count.cell_contents += 1
        except MEANT:
            raise
        except BaseException as exc:
            if self.failed.cell_contents(exc):
                raise

    def dropped(self, key: Any) -> None:
        """A pair that may have begun will have no end."""
        if self.drop is None:
            return
        try:
            in_turn(self.drop, key)
        except MEANT:
            raise
        except BaseException as exc:
            if self.failed.cell_contents(exc):
                raise

    def ask(self, event: Any, value: Any) -> Any:
        """Send an event whose subscribers may replace the value; returns the value, or what replaces it."""
        slot = self._slot
        before = getattr(slot, "value", ABSENT)
        slot.value = ABSENT
        try:
            self.fire(event)
            return value if slot.value is ABSENT else slot.value
        finally:
            slot.value = before

    def replace(self, value: Any) -> None:
        """Replace the value; called by a subscriber, while the event is being sent."""
        self._slot.value = value

    def passes(self, checks: Any, values: Any) -> bool:
        """Whether values pass their checks; one that raises is told, and counts as not passed, as when nobody wants to know."""
        if self.emit.cell_contents is off:
            return False
        try:
            return all(check(value) for check, value in zip(checks, values, strict=True))
        except Exception as exc:
            if is_from_handler(exc):
                raise
            if not isinstance(exc, RecursionError):
                self.complain(exc)
            return False


class Capture:
    """What a raw event holds for each capture.

    Attributes:
        element: The part of the selector that captured (ptera's ``Element``).
        capture: Its name in the event.
        names: The names of the variables captured.
        values: Their values.
    """

    __slots__ = ("capture", "element", "names", "values")

    def __init__(self, element: Any, capture: str, names: list[str], values: list[Any]) -> None:
        self.element, self.capture, self.names, self.values = element, capture, names, values

    @property
    def name(self) -> str:
        """The variable's name.

        Raises:
            ValueError: None or several were captured.
        """
        named = getattr(self.element, "name", None)
        return str(named) if named is not None else str(self._only(self.names, "name"))

    @property
    def value(self) -> Any:
        """The value.

        Raises:
            ValueError: None or several were captured.
        """
        return self._only(self.values, "value")

    def _only(self, found: list[Any], what: str) -> Any:
        if len(found) != 1:
            raise ValueError(f"{'Several' if found else 'No'} {what}s for capture '{self.capture}'")
        return found[0]

    def __repr__(self) -> str:
        return f"Capture({self.capture}, names={self.names})"
