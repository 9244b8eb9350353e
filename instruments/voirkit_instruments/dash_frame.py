"""From what was given to the lines of the view: the frame for a terminal of some size, and the plain line for anything else.

Pure functions. Built by hand on rich's cell widths, because a rich table costs 2 ms a frame of ten rows (measured, rich 15): at four
frames a second alone nearly the whole 1 % of a core that the view may use. This costs a tenth of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .dash_board import Bar, Row, printable

BOLD, DIM, GREEN, YELLOW, CYAN, PLAIN = "1", "2", "32", "33", "36", ""
KEPT_FOR_OUTPUT = 11  # lines of the terminal that stay the script's: its last ten lines and the one with the cursor
MOST_LINES = 40


class Look(NamedTuple):
    """What the terminal can show."""

    color: bool = True
    blocks: bool = True  # line drawing characters, that is: its encoding is a Unicode one


class Header(NamedTuple):
    """The first line of a frame."""

    title: str
    elapsed_s: float
    events: int


def frame(
    header: Header, bars: Sequence[Bar], rows: Sequence[Row], left_s: Sequence[float | None], size: tuple[int, int], look: Look
) -> list[str]:
    """The lines of the view.

    Args:
        header: Its first line.
        bars: The progress bars.
        rows: The table.
        left_s: For each bar, the seconds that it will still take, or None.
        size: Columns and lines of the terminal; the view leaves eleven lines to the script's output, in a low terminal half of them.
        look: What the terminal can show.

    Returns:
        Lines with colours in them, none wider than the terminal less one column; none at all if it is too small for anything.
    """
    columns, height = size[0] - 1, min(MOST_LINES, max(size[1] - KEPT_FOR_OUTPUT, size[1] // 2))
    if columns < 10 or height < 2:
        return []
    lines = [header_line(header, columns, look)]
    shown_bars = min(len(bars), max(1, (height - 1) // 2))
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


def header_line(header: Header, columns: int, look: Look) -> str:
    """``-- main.py  0:01:23  2400 events ------``."""
    dash = "─" if look.blocks else "-"
    right = f" {clock(header.elapsed_s)}  {header.events} events "
    if width(right) + 4 > columns:
        return fitted(clock(header.elapsed_s), columns)
    title = fitted(f" {printable(header.title)} ", max(0, columns - width(right) - 3), keep_end=True)
    rest = dash * max(0, columns - width(title) - width(right) - 3)
    return "".join([styled(dash * 2, DIM, look), styled(title, BOLD, look), styled(dash, DIM, look), right, styled(rest, DIM, look)])


def bar_lines(bars: Sequence[Bar], left_s: Sequence[float | None], columns: int, look: Look) -> list[str]:
    """``train  ━━━━━━━────  120/400  30%  0:00:42 left``; what does not fit is left out from the right, the bar last."""
    names = [printable(" ".join(word for word in (bar.task, bar.label) if word)) for bar in bars]
    name_width = min(max(map(width, names), default=0), columns // 3)
    full_block, empty_block = ("━", "─") if look.blocks else ("#", "-")
    lines = []
    for bar, name, left in zip(bars, names, left_s, strict=True):
        share = min(1.0, max(0.0, bar.done / bar.total)) if bar.total > 0 else 0.0
        words = [f"{number_text(bar.done)}/{number_text(bar.total)}", f"{share:.0%}"]
        if left is not None:
            words.append(f"{clock(left)} left")
        head = padded(name, name_width) + "  " if name_width else ""
        room = columns - width(head) - 2
        while len(words) > 1 and room - len("  ".join(words)) < 10:
            words.pop()
        tail = "  ".join(words)
        length = min(40, room - len(tail))
        if length < 5:
            lines.append(fitted(head + tail, columns))
            continue
        full = round(share * length)
        drawn = styled(full_block * full, GREEN, look) + styled(empty_block * (length - full), DIM, look)
        lines.append(f"{head}{drawn}  {tail}")
    return lines


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


def plain_line(elapsed_s: float, bars: Sequence[Bar], rows: Sequence[Row]) -> str:
    """``[12.3s] loss 0.412 | train_rate 512 items/s | 120/400``: the numbers only, each with its task if it has one."""
    parts = [" ".join(word for word in (row.task, row.key, row.text) if word) for row in rows if row.is_number]
    parts += [" ".join(word for word in (bar.task, bar.label, f"{number_text(bar.done)}/{number_text(bar.total)}") if word) for bar in bars]
    return printable(f"[{elapsed_s:.1f}s] " + " | ".join(parts), limit=500)


def number_text(number: float) -> str:
    """``400``, ``2.5``."""
    return str(number) if isinstance(number, int) else f"{number:g}"


def clock(seconds: float) -> str:
    """``0:01:23``."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def width(text: str) -> int:
    """Columns that a text takes: two for most CJK characters and emoji."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # 13 ms, and most runs give ASCII only

    return cell_len(text)


def fitted(text: str, columns: int, keep_end: bool = False) -> str:
    """The text cut to at most that many columns, with dots where something was cut off."""
    if width(text) <= columns:
        return text
    if columns <= 2:
        return "." * max(0, columns)
    part = text[::-1] if keep_end else text
    while width(part) > columns - 2:
        part = part[: max(1, len(part) - max(1, (width(part) - columns) // 2))] if len(part) > 1 else ""
    return ".." + part[::-1] if keep_end else part + ".."


def padded(text: str, columns: int) -> str:
    """The text at exactly that many columns."""
    text = fitted(text, columns)
    return text + " " * (columns - width(text))


def styled(text: str, style: str, look: Look) -> str:
    """The text in a style, if the terminal has colours."""
    return f"\033[{style}m{text}\033[0m" if look.color and style and text else text
