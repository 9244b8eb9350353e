"""Lines of a comparison about the first loss and the first batch in which two runs differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from voirkit.analysis.first_difference import (
    CurveDifference,
    FirstDifference,
    RankDifference,
    curves_differ,
)
from voirkit.report.comparison import Side
from voirkit.report.sections import Text


def losses_and_batches(
    first: Side, second: Side, differences: Sequence[RankDifference]
) -> Iterator[Text]:
    """Yield one line for the losses and one for the batches, if they were recorded. They are about
    the first run of each side."""
    runs = ""
    if len(first.names) + len(second.names) > 2:
        runs = f" ({first.names[0]} and {second.names[0]})"
    lines = {"losses": _losses(first, second, differences), "batches": _batches(differences)}
    for label, line in lines.items():
        if line is not None:
            yield line._replace(text=f"{line.text}{runs}.", label=label)


_Parts = Sequence[tuple[int, FirstDifference]]


def _losses(first: Side, second: Side, differences: Sequence[RankDifference]) -> Text | None:
    parts = [(rank.rank, rank.losses) for rank in differences if rank.losses is not None]
    if any(part.compared for _, part in parts):
        return _line(parts, "backward passes", _pass_place)
    if not parts:
        return None
    curves = curves_differ(first.summaries[0].get("loss"), second.summaries[0].get("loss"))
    return Text("not known of both runs") if curves is None else _curves(curves)


def _batches(differences: Sequence[RankDifference]) -> Text | None:
    """Return the line for the batches; None if no sampler indices were recorded: iterable datasets,
    no data loader, or a run of an older version."""
    parts = [(rank.rank, rank.batches) for rank in differences if rank.batches is not None]
    parts = [(rank, part) for rank, part in parts if part.compared]
    return _line(parts, "batches", _batch_place) if parts else None


def _line(parts: _Parts, unit: str, place: Callable[[FirstDifference], str]) -> Text:
    apart = [(rank, part) for rank, part in parts if part.index is not None]
    if not apart:
        return Text(_equal([part for _, part in parts], unit))
    rank, part = min(apart, key=lambda pair: pair[1].index or 0)
    words = f"{place(part)}{_later_differences(part, unit)}"
    if len(parts) > 1:
        words += f", first on rank {rank} ({len(apart)} of {len(parts)} ranks differ)"
    return Text(words, mood="warning")


def _equal(parts: Sequence[FirstDifference], unit: str) -> str:
    most = max(parts, key=lambda part: part.compared)
    n, lengths = most.compared, most.lengths
    equal = "the same indices" if unit == "batches" else "equal"
    if n == max(lengths):
        return f"{equal} in all {n:,} {unit}"
    extent = "both have" if n == min(lengths) else "are known of both"
    return f"{equal} in the {n:,} {unit} that {extent} ({lengths[0]:,} and {lengths[1]:,})"


def _pass_place(part: FirstDifference) -> str:
    assert part.values is not None
    return f"{_where(part)} ({' / '.join(_apart(*part.values))})"


def _batch_place(part: FirstDifference) -> str:
    return f"{_where(part)} (other indices)"


def _where(part: FirstDifference) -> str:
    """Return the place of the first difference as text: ``equal to step 4; differ from step 5
    on``."""
    if part.step is None:
        return f"equal up to number {part.index}, outside of the steps; differ from there on"
    if part.step == 0:
        return "differ from step 0 on"
    return f"equal to step {part.step - 1:,}; differ from step {part.step:,} on"


def _later_differences(part: FirstDifference, unit: str) -> str:
    """Return a text with the number of values that differ, counted from the first difference on;
    empty if all of those differ."""
    assert part.index is not None
    later = min(part.lengths) - part.index
    return f", in {part.differing:,} of {later:,} {unit}" if part.differing < later else ""


_MOST_DIGITS = 17  # significant digits that tell any two float64 numbers apart


def _apart(first: float, second: float) -> tuple[str, str]:
    """Return two numbers as strings, with the fewest digits (at least four) that tell them
    apart."""
    texts = [
        (f"{first:.{digits}g}", f"{second:.{digits}g}") for digits in range(4, _MOST_DIGITS + 1)
    ]
    return next((pair for pair in texts if pair[0] != pair[1]), texts[-1])


def _curves(curves: CurveDifference) -> Text:
    """Return the line for losses on a device. Only the losses of the loss curve are known for
    these, since voirkit reads them after the script has ended."""
    extent = f"known are {curves.compared:,} of {curves.losses:,}, since they lie on a device"
    if curves.first_different is None or curves.values is None:
        return Text(f"equal as far as they are known; {extent}")
    first, second = (float("nan") if value is None else value for value in curves.values)
    values = " / ".join(_apart(first, second))
    before = f"equal to loss {curves.last_equal:,}; " if curves.last_equal is not None else ""
    return Text(
        f"{before}differ at loss {curves.first_different:,} or before ({values}); {extent}",
        mood="warning",
    )
