"""From what was given to the lines of the view: the frame for a terminal of some size, and the plain line for anything else.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from voirkit.live.frame import header_line, picture_lines
from voirkit.live.picture import Picture
from voirkit.report.cells import (
    BOLD,
    CYAN,
    DIM,
    PLAIN,
    YELLOW,
    Bar,
    Look,
    bar_lines,
    clock,
    fitted,
    number_text,
    padded,
    printable,
    styled,
    width,
)
from voirkit_instruments.dash.board import Row

KEPT_FOR_OUTPUT = 11  # lines of the terminal that stay the script's: its last ten lines and the one with the cursor
MOST_LINES = 40


class Header(NamedTuple):
    """The first line of a frame."""

    title: str
    elapsed_s: float
    events: int


def frame(
    header: Header,
    bars: Sequence[Bar],
    rows: Sequence[Row],
    left_s: Sequence[float | None],
    size: tuple[int, int],
    look: Look,
    picture: Picture | None = None,
) -> list[str]:
    """The lines of the view.

    Args:
        header: Its first line.
        bars: The progress bars.
        rows: The table.
        left_s: For each bar, the seconds that it will still take, or None.
        size: Columns and lines of the terminal; the view leaves eleven lines to the script's output, in a low terminal half of them.
        look: What the terminal can show.
        picture: Steps, rates and progress that were recorded, if there are any.

    Returns:
        Lines with colours in them, none wider than the terminal less one column; none at all if it is too small for anything.
    """
    columns, height = size[0] - 1, min(MOST_LINES, max(size[1] - KEPT_FOR_OUTPUT, size[1] // 2))
    if columns < 10 or height < 2:
        return []
    given = f"  {header.events} events" if bars or rows else ""
    lines = [header_line(header.title, f"{clock(header.elapsed_s)}{given}", columns, look)]
    if picture is not None:
        lines += steps_lines(picture, bars, rows, columns, height - 1, look)
        height = max(height, len(lines))
    shown_bars = min(len(bars), max(1, (height - len(lines)) // 2))
    lines += bar_lines(bars[-shown_bars:] if bars else [], left_s[-shown_bars:] if bars else [], columns, look)
    room = height - len(lines)
    if len(rows) > room > 0:
        # What does not fit is left out: types first, since they hardly change, then the numbers that came up last.
        kept = sorted(sorted(range(len(rows)), key=lambda i: not rows[i].is_number)[: room - 1])
        lines += row_lines([rows[i] for i in kept], columns, look)
        lines.append(styled(fitted(f"... {len(rows) - len(kept)} more", columns), DIM, look))
    elif room > 0:
        lines += row_lines(rows, columns, look)
    return lines


def steps_lines(picture: Picture, bars: Sequence[Bar], rows: Sequence[Row], columns: int, room: int, look: Look) -> list[str]:
    """What was recorded, in what room the given values leave, which have half of it at most."""
    given = {row.key for row in rows}
    shown = replace(picture, rates=[rate for rate in picture.rates if rate.name not in given])
    return picture_lines(shown, columns, room - min(len(bars) + len(rows), room // 2), look)


def row_lines(rows: Sequence[Row], columns: int, look: Look) -> list[str]:
    """The table: task (if there is more than none), key, value, count."""
    tasks = min(max((width(row.task) for row in rows), default=0), columns // 5)
    keys = min(max((width(row.key) for row in rows), default=0), columns // 3)
    counts = max((len(f"{row.given}x") for row in rows), default=0)
    values = columns - keys - 2 - (tasks + 2 if tasks else 0) - counts - 2
    if values < 8:
        counts, values = 0, values + counts + 2
    values = min(values, max(24, max((width(row.text) for row in rows), default=0)))
    lines, before = [], None
    for row in rows:
        cells = []
        if tasks:
            cells.append(styled(padded(printable(row.task) if row.task != before else "", tasks), YELLOW, look))
        cells.append(styled(padded(printable(row.key), keys), CYAN, look))
        cells.append(styled(padded(row.text, max(1, values)), BOLD if row.is_number else PLAIN, look))
        if counts:
            cells.append(styled(f"{row.given}x".rjust(counts), DIM, look))
        lines.append("  ".join(cells))
        before = row.task
    return lines


def plain_line(elapsed_s: float, bars: Sequence[Bar], rows: Sequence[Row], steps: str = "") -> str:
    """``[12.3s] loss 0.412 | train_rate 512 items/s | 120/400``: the numbers only, each with its task if it has one; steps first."""
    parts = [steps] if steps else []
    parts += [" ".join(word for word in (row.task, row.key, row.text) if word) for row in rows if row.is_number]
    parts += [" ".join(word for word in (bar.task, bar.label, f"{number_text(bar.done)}/{number_text(bar.total)}") if word) for bar in bars]
    return printable(f"[{elapsed_s:.1f}s] " + " | ".join(parts), limit=500)
