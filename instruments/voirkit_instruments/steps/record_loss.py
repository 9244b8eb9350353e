"""Always on: the loss from first to last, for the summary: its curve in a bounded number of points, and where it is no number.

It is the given ``loss``, or, if none is given, what ``backward`` is called on.

Keeps no graph alive and never waits for a device while the script runs: what lies on one is read at the end, and only for the curve.
"""

from __future__ import annotations

from voirkit.imports import when_imported
from voirkit_instruments.values import may_be_read, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer

MOST_POINTS = 256
_INFINITE = float("inf")


class Losses:
    """The first and the last loss, how many there were, and some between.

    Every loss is kept at first; when there are 256, every second, then every fourth ...: a long run costs no more than a short one.

    Attributes:
        n: How many losses there were.
    """

    def __init__(self) -> None:
        self.n = 0
        self._first: Any = None
        self._last: Any = None
        self._every = 1
        self._kept: list[tuple[int, Any]] = []
        self._read = self._bad = 0
        self._first_bad: tuple[int, float] | None = None

    def on_event(self, event: dict[str, Any]) -> None:
        """Look at a given event."""
        if "loss" in event:
            self.add(event["loss"])

    def add(self, loss: Any) -> None:
        """Take in the next loss: a number, a tensor or an array. Waits for no device."""
        if type(loss) is float and self.n and -_INFINITE < loss < _INFINITE:  # at each step: without the calls below
            self._read += 1
            if self.n % self._every == 0:
                self._sample(loss)
            self._last = loss
            self.n += 1
            return
        if type(loss) is not float:
            plain = number(loss, wait=False)
            if plain is not None:
                loss = float(plain)
            elif not may_be_read(loss):
                loss = None
            elif hasattr(loss, "detach"):
                loss = loss.detach()  # the graph behind it is the program's to free
        if type(loss) is float:
            self._check(self.n, loss)
        if self.n % self._every == 0:
            self._sample(loss)
        if self.n == 0:
            self._first = self._kept[0][1]
        self._last = loss  # the last is read before the program can write over it
        self.n += 1

    def _sample(self, loss: Any) -> None:
        self._kept.append((self.n, loss.clone() if hasattr(loss, "clone") else loss))  # the program may write over it
        if len(self._kept) >= MOST_POINTS:
            del self._kept[1::2]
            self._every *= 2

    def _check(self, index: int, loss: float) -> None:
        self._read += 1
        if not abs(loss) < _INFINITE:
            self._bad += 1
            if self._first_bad is None:
                self._first_bad = index, loss

    def summary(self) -> dict[str, Any] | None:
        """``first``, ``last``, ``n``, ``not_finite``, ``curve``; None if no loss was given, or none that is a number.

        ``curve`` is pairs of (number of the loss, from 0; loss or None if it is no finite number). ``not_finite`` is None, or ``first``
        (the number of the first loss that is not), its ``value``, ``n``, and ``of`` how many: of losses on a device only those of the
        curve are looked at.
        """
        first, last = number(self._first), number(self._last)
        if first is None or last is None:
            return None
        curve = []
        for at, kept in self._kept:
            plain = number(kept)
            if plain is not None:
                if type(kept) is not float:
                    self._check(at, float(plain))
                curve.append((at, float(plain) if abs(plain) < _INFINITE else None))
        bad = None
        if self._first_bad is not None:
            at, value = self._first_bad
            bad = {"first": at, "value": str(value), "n": self._bad, "of": self._read}
        return {"first": float(first), "last": float(last), "n": self.n, "not_finite": bad, "curve": curve}

    def means(self) -> tuple[float, float] | None:
        """Mean of the first and of the last quarter of those kept; None with less than two losses that are numbers.

        Of a loss for each sample its mean counts.
        """
        values = [value for _, kept in self._kept if (value := _as_float(kept)) is not None]
        quarter = max(1, len(values) // 4)
        if len(values) < 2:
            return None
        return sum(values[:quarter]) / quarter, sum(values[-quarter:]) / quarter


def _as_float(loss: Any) -> float | None:
    plain = number(loss)
    if plain is not None:
        return float(plain)
    try:  # one loss for each sample
        return None if not may_be_read(loss) else float((loss.float() if hasattr(loss, "float") else loss).mean())
    except Exception:  # not a number of any kind
        return None


class LossOfRun:
    """The losses of one run: those that are given win over those that the recorder sees."""

    def __init__(self) -> None:
        self._given, self.seen = Losses(), Losses()

    def on_event(self, event: dict[str, Any]) -> None:
        """Look at a given event."""
        if "$recorder" not in event:
            self._given.on_event(event)

    def summary(self) -> dict[str, Any] | None:
        """As ``Losses.summary``."""
        return self._given.summary() or self.seen.summary()


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Put the losses into the summary, and give what the recorder sees of the training to those who listen."""
    losses = LossOfRun()
    ov.when_given(lambda given: given.subscribe(losses.on_event))
    no_steps = ov.argparser.value(ov.options, "--no-steps")

    def start(torch: Any) -> None:
        listened = ov.may_be_listened_to
        if listened or not no_steps:
            from voirkit_instruments.steps.record_values import values_of

            values_of(ov).start(torch, losses.seen, listened)

    if no_steps and ov.may_be_listened_to:
        from voirkit_instruments.steps.events import LOSS, StepEvents

        ov.shared(StepEvents).subscribe(LOSS)  # the steps instrument is to watch torch all the same
    when_imported("torch", start)
    yield ov.phases.finalize
    ov.summary["loss"] = losses.summary()
