"""Which part of a run is asked for: some of its steps, some of its ranks."""

from __future__ import annotations

from voirkit.errors import CommandLineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final


class Selection:
    """A part of a run.

    Args:
        steps: ``(first, end)``, half open; either may be None for no bound. None for all steps.
        ranks: The ranks, or None for all.

    An event belongs to the step in its argument ``step``. An event without one belongs to the steps during which it happened: it is
    part of the selection if it lies, from start to end, within the time of the chosen steps of its rank.
    """

    __slots__ = ("ranks", "steps")

    def __init__(self, steps: tuple[int | None, int | None] | None = None, ranks: frozenset[int] | None = None) -> None:
        self.steps, self.ranks = steps, ranks

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return self.steps is None and self.ranks is None


EVERYTHING: Final = Selection()


def selection(steps: str | None = None, ranks: str | None = None) -> Selection:
    """What the options ``--steps`` and ``--ranks`` say.

    Raises:
        CommandLineError: One of them cannot be read.
    """
    return Selection(None if steps is None else read_steps(steps), None if ranks is None else read_ranks(ranks))


def read_steps(text: str) -> tuple[int | None, int | None]:
    """``10:20``, ``10:``, ``:20`` or ``10`` as ``(first, end)``, half open.

    Raises:
        CommandLineError: It has another form, or no step can lie in it.
    """
    first, colon, end = text.strip().partition(":")
    try:
        low = int(first) if first.strip() else None
        high = int(end) if end.strip() else None
    except ValueError:
        raise _no_steps(text) from None
    if not colon:
        if low is None:
            raise _no_steps(text)
        return low, low + 1
    if low is not None and high is not None and high <= low:
        raise CommandLineError("no step lies in it: the second number is the first step left out.", where=f"--steps {text}", next=_STEPS)
    return low, high


_STEPS = "Steps 10 to 19: --steps 10:20   From step 10 on: --steps 10:   Up to step 19: --steps :20"
_RANKS = "Ranks 0, 2 and 3: --ranks 0,2-3"


def _no_steps(text: str) -> CommandLineError:
    return CommandLineError(f"{text!r} is no range of steps.", where="--steps", next=_STEPS)


def read_ranks(text: str) -> frozenset[int]:
    """``0,2-3`` as a set of ranks; both ends of a range belong to it.

    Raises:
        CommandLineError: It has another form.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_number(first) or (dash and not _is_number(last)):
            raise CommandLineError(f"{text!r} is no list of ranks.", where="--ranks", next=_RANKS)
        low, high = int(first), int(last or first)
        if high < low or high - low > 1_000_000:
            raise CommandLineError(f"{part.strip()!r} is no range of ranks.", where=f"--ranks {text}", next=_RANKS)
        found.update(range(low, high + 1))
    return frozenset(found)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
