"""Always on: the first and the last given ``loss``, for the summary.

Keeps no graph alive and never waits for a device while the script runs: the numbers are read at the end.
"""

from __future__ import annotations

from voirkit_instruments.values import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit.overseer import Overseer


class Losses:
    """The first and the last loss, and how many there were."""

    def __init__(self) -> None:
        self.n = 0
        self._first: Any = None
        self._last: Any = None

    def add(self, event: dict[str, Any]) -> None:
        """Look at a given event."""
        if "loss" not in event:
            return
        loss = event["loss"]
        if hasattr(loss, "detach"):
            loss = loss.detach()  # the graph behind it is the program's to free
            if self.n == 0:
                loss = loss.clone()  # the program may write over it; the last is read before it can
        if self.n == 0:
            self._first = loss
        self._last = loss
        self.n += 1

    def summary(self) -> dict[str, Any] | None:
        """``{"first", "last", "n"}``; None if no loss was given, or none that is a number."""
        first, last = number(self._first), number(self._last)
        return None if first is None or last is None else {"first": float(first), "last": float(last), "n": self.n}


def instrument_loss(ov: Overseer) -> Any:
    """Put the first and the last loss into the summary."""
    losses = Losses()
    ov.when_given(lambda given: given.subscribe(losses.add))
    yield ov.phases.finalize
    ov.summary["loss"] = losses.summary()
