"""Text in the cells of a terminal: widths, cutting, colours, small bars. What a live view is drawn with.

By hand on rich's cell widths: a rich table costs 2 ms a frame of ten rows (measured, rich 15), which is nearly the whole 1 % of a core that
a view may use at four frames a second. This costs a tenth of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BOLD, DIM, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN, BRIGHT_RED, PLAIN = "1", "2", "31", "32", "33", "34", "35", "36", "91", ""
LETTERS = {"other": "."}  # in place of a colour; else the first
_SPARKS = "▁▂▃▄▅▆▇█"
_SPARKS_ASCII = "_.-=*#"


class TerminalStyle(NamedTuple):
    """What the terminal can show."""

    color: bool = True
    blocks: bool = True  # line drawing characters, that is: its encoding is a Unicode one


class Bar(NamedTuple):
    """How far a task is; ``done`` and ``total`` as given."""

    task: str
    label: str
    done: float
    total: float


def bar_lines(bars: Sequence[Bar], left_s: Sequence[float | None], columns: int, terminal: TerminalStyle) -> list[str]:
    """``train  ━━━━━━━────  120/400  30%  0:00:42 left``; what does not fit is left out from the right, the bar last."""
    names = [printable(" ".join(word for word in (bar.task, bar.label) if word)) for bar in bars]
    name_width = min(max(map(width, names), default=0), columns // 3)
    full_block, empty_block = ("━", "─") if terminal.blocks else ("#", "-")
    lines = []
    for bar, name, left in zip(bars, names, left_s, strict=True):
        share = min(1.0, max(0.0, bar.done / bar.total)) if bar.total > 0 else 0.0
        words = [f"{number_text(bar.done)}/{number_text(bar.total)}", f"{share:.0%}"]
        if left is not None and left >= 1:
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
        drawn = styled(full_block * full, GREEN, terminal) + styled(empty_block * (length - full), DIM, terminal)
        lines.append(f"{head}{drawn}  {tail}")
    return lines


def sparkline(values: Sequence[float], terminal: TerminalStyle) -> str:
    """``▁▃▅█``: values between 0 and the largest of them."""
    levels = _SPARKS if terminal.blocks else _SPARKS_ASCII
    finite = [value for value in values if -float("inf") < value < float("inf")]
    most, least = max(finite, default=0.0), min([*finite, 0.0])
    span = most - least
    if span <= 0:
        return levels[0] * len(finite)
    return "".join(levels[min(int((value - least) / span * len(levels)), len(levels) - 1)] for value in finite)


def stacked(shares: Sequence[tuple[str, str, float]], columns: int, terminal: TerminalStyle) -> str:
    """One bar of several parts: in colours, or each part of the first letter of its name.

    Args:
        shares: Name, colour and share of each part.
        columns: How wide a bar of all shares is.
        terminal: What it can show.
    """
    drawn, at, sum_ = [], 0, 0.0
    for name, colour, share in shares:
        sum_ += share
        end = min(round(sum_ * columns), columns)
        if end > at:
            block = "█" if terminal.blocks and terminal.color else LETTERS.get(name, name[:1])
            drawn.append(styled(block * (end - at), colour, terminal))
            at = end
    return "".join(drawn)


def number_text(number: float) -> str:
    """``400``, ``2.5``."""
    return str(number) if isinstance(number, int) else f"{number:g}"


def clock(seconds: float) -> str:
    """``0:01:23``."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def printable(text: str, limit: int = 200) -> str:
    """The beginning of a text with what would move the cursor replaced by blanks."""
    return "".join(c if c.isprintable() else " " for c in text[:limit])


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


def styled(text: str, style: str, terminal: TerminalStyle) -> str:
    """The text in a style, if the terminal has colours."""
    return f"\033[{style}m{text}\033[0m" if terminal.color and style and text else text


def can_show(text: str, encoding: str) -> bool:
    """Whether an encoding has these characters."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
