"""Which steps are profiled: ``SKIP:WAIT:ACTIVE[:REPEAT]``, and where a step begins as the program runs (docs/steps.md)."""

from __future__ import annotations

import threading
import weakref

from voirkit.probes.around import ABSENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_ACTIVE = 1000
_FORM = "give SKIP:WAIT:ACTIVE, such as 5:0:3: steps to leave out, to wait, and to record"


class Window:
    """The steps of one profile: ``skip`` are left out; then, ``repeat`` times, ``wait`` are left out and ``active`` recorded."""

    __slots__ = ("active", "repeat", "skip", "wait")

    def __init__(self, skip: int, wait: int, active: int, repeat: int = 1) -> None:
        self.skip, self.wait, self.active, self.repeat = skip, wait, active, repeat

    def __repr__(self) -> str:
        return ":".join(map(str, self.document().values()))

    def __contains__(self, n: int) -> bool:
        """Whether the step with this number, the first is 0, is recorded."""
        turn, at = divmod(n - self.skip, self.wait + self.active)
        return 0 <= turn < self.repeat and at >= self.wait

    @property
    def first(self) -> int:
        """The number of the first step that is recorded."""
        return self.skip + self.wait

    @property
    def total(self) -> int:
        """How many steps are recorded in all."""
        return self.active * self.repeat

    @property
    def end(self) -> int:
        """The number of the first step after the last that is recorded."""
        return self.skip + (self.wait + self.active) * self.repeat

    def document(self) -> dict[str, int]:
        """As the summary has it."""
        return {name: getattr(self, name) for name in ("skip", "wait", "active", "repeat")}


DEFAULT = Window(5, 0, 3)


def parse_window(text: str) -> Window:
    """What the option says.

    Raises:
        ValueError: It has another form, or records no step.
    """
    parts = text.split(":")
    if not 3 <= len(parts) <= 4 or not all(part.isascii() and part.isdigit() and int(part) <= 1_000_000_000 for part in parts):
        raise ValueError(f"{text!r} is no window of steps; {_FORM}.")
    skip, wait, active, repeat = (*map(int, parts), 1)[:4]
    if not 0 < active * repeat <= MOST_ACTIVE:
        raise ValueError(f"{text!r} records {active * repeat} steps; the third number must be 1 to {MOST_ACTIVE}.")
    return Window(skip, wait, active, repeat)


class StepCounter:
    """Counts the steps of the thread that trains.

    A step begins where a loader is asked for a batch after something was trained; in a thread that asks no loader, where the optimizer that
    stepped first has stepped.

    Args:
        edge: Called where a step begins or may, with how many there were before it.
        pause: Called where a loader has no more.

    Attributes:
        n: How many steps are over.
    """

    def __init__(self, edge: Callable[[int], None], pause: Callable[[], None]) -> None:
        self._edge, self._pause = edge, pause
        self._trained = self._asked = self._stepped = False
        self._leader: Any = None
        self._thread: int | None = None  # the one that trains, once that is known; the main thread until then
        self.n = 0

    def _is_here(self) -> bool:
        if self._thread is None:
            return threading.current_thread() is threading.main_thread()
        return threading.get_ident() == self._thread

    def before_batch(self, *_: object) -> None:
        """A loader is about to be asked for a batch."""
        if self._is_here():
            self._asked = True
            if self._trained:
                self._trained = False
                self.n += 1
            self._edge(self.n)

    def after_batch(self, _: object, batch: object = ABSENT) -> None:
        """A loader has been asked for a batch."""
        if batch is ABSENT and self._is_here():
            self._pause()

    def after_backward(self, *_: object) -> None:
        """Something has been trained: backward."""
        if self._thread is None:
            self._thread = threading.get_ident()
        self._trained = True

    def after_optimizer_step(self, optimizer: object) -> None:
        """An optimizer has stepped."""
        if self._thread is None:
            self._thread = threading.get_ident()
        if self._leader is None:
            self._leader = weakref.ref(optimizer)
        self._trained = True
        if self._leader() is not optimizer:
            return
        asked, self._asked = self._asked, False
        if not asked and self._is_here():
            self._trained = False
            self.n += self._stepped
            self._edge(self.n)
        self._stepped = True
