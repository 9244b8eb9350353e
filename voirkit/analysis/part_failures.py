"""One part of a report that fails costs that part, with one line, never the report.

What a run recorded may be damaged, of another version, or like nothing that was foreseen. Whatever computes or draws a report does so
part by part, each inside ``PartFailures.attempt``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from voirkit.errors import VoirkitError

T = TypeVar("T")


class PartFailures:
    """The parts of a report that failed, by the reason.

    Attributes:
        parts_by_reason: In the order of the failures. A damaged trace fails every part that reads it: it is one line.
    """

    def __init__(self) -> None:
        self.parts_by_reason: dict[str, list[str]] = {}

    def attempt(self, part: str, compute: Callable[[], T], default: T) -> T:
        """Compute a part of the report.

        Args:
            part: What users call it.
            compute: Gives the part; may raise anything.
            default: Takes its place if it fails.

        Raises:
            BrokenPipeError: Whoever reads the report has had enough of it.
        """
        try:
            return compute()
        except BrokenPipeError:
            raise
        except Exception as exc:  # a damaged file, records that are like no known ones, an error of ours: the rest is still true
            self.add(part, exc)
            return default

    def add(self, part: str, exc: Exception) -> None:
        """Note that a part failed."""
        parts = self.parts_by_reason.setdefault(reason(exc), [])
        if part not in parts:
            parts.append(part)

    def __contains__(self, part: str) -> bool:
        return any(part in parts for parts in self.parts_by_reason.values())

    def lines(self) -> list[str]:
        """A line for each reason."""
        return [
            left_out(" and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts), why)
            for why, parts in self.parts_by_reason.items()
        ]


def left_out(part: str, why: str) -> str:
    """The line that stands for a part."""
    return f"left out of the report, since it failed: {part} ({why})."


def reason(exc: Exception) -> str:
    """An exception in one line; of voirkit's own errors where and what, of others the type too, which says more than some messages."""
    text = f"{exc.where}: {exc.what}" if isinstance(exc, VoirkitError) and exc.where else str(exc)
    first = text.strip().partition("\n")[0].rstrip(".")[:_LONGEST]
    return first if isinstance(exc, VoirkitError) else f"{type(exc).__name__}: {first}" if first else type(exc).__name__


_LONGEST = 200  # characters: DuckDB's errors may hold a whole query
