"""A picture of a run as lines for a terminal of some size: what `--dash` and `voirkit watch` draw. Pure functions.

Cells (widths, cutting, colours, small bars) by hand on rich's cell widths: a rich table costs 2 ms a frame of ten rows (measured, rich 15),
which is nearly the whole 1 % of a core that a view may use at four frames a second. This costs a tenth of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

from voirkit.live import Number, Picture
from voirkit.report import duration
from voirkit.report.overview import wall_line
from voirkit.report.sections import written
from voirkit.runs.summary import PHASES, shown_phases

# cells

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
    """One bar of parts (name, colour, share; all of them fill ``columns``): in colours, or each part of the first letter of its name."""
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


# the picture

COLOURS = dict(zip(PHASES, (RED, MAGENTA, GREEN, CYAN, BLUE, BRIGHT_RED, YELLOW), strict=True))
_MOST_RANKS = 8
_MOST_WARNINGS = 3

# (how soon it is left out where there is no room, lines); in the order in which they are drawn
_Section = tuple[int, list[str]]


def header_line(title: str, right: str, columns: int, terminal: TerminalStyle) -> str:
    """``-- main.py  0:01:23  2400 events ------``; of what does not fit the title is cut, and then only the right is there."""
    dash = "─" if terminal.blocks else "-"
    right = f" {printable(right)} "
    if width(right) + 4 > columns:
        return fitted(right.strip(), columns)
    title = fitted(f" {printable(title)} ", max(0, columns - width(right) - 3), keep_end=True)
    rest = dash * max(0, columns - width(title) - width(right) - 3)
    return "".join(
        [styled(dash * 2, DIM, terminal), styled(title, BOLD, terminal), styled(dash, DIM, terminal), right, styled(rest, DIM, terminal)]
    )


def watch_frame(picture: Picture, size: tuple[int, int], terminal: TerminalStyle) -> list[str]:
    """The lines of `voirkit watch`: none wider than the terminal less one column, as many as there is room for less two."""
    columns, room = size[0] - 1, size[1] - 2
    if columns < 10 or room < 1:
        return []
    right = "  ".join(([clock(picture.elapsed_s)] if picture.elapsed_s is not None else []) + [picture.state])
    header = header_line(picture.title, right, columns, terminal)
    return [header, *picture_lines(picture, columns, room - 1, terminal)]


def picture_lines(picture: Picture, columns: int, room: int, terminal: TerminalStyle) -> list[str]:
    """What is known of a run, without a header; what does not fit is left out, the least important first."""
    sections = list(_sections(picture, columns, terminal))
    kept, left = set(), room
    for number, (_, lines) in sorted(enumerate(sections), key=lambda pair: pair[1][0]):
        if len(lines) <= left:
            kept.add(number)
            left -= len(lines)
    return [line for number, (_, lines) in enumerate(sections) if number in kept for line in lines]


def _sections(picture: Picture, columns: int, terminal: TerminalStyle) -> Iterator[_Section]:
    steps = picture.steps
    if picture.wall:
        yield 6, _packed(wall_line(picture.wall, picture.evaluation).split(" · "), columns)
    if steps is not None:
        shares = _shares(steps)
        yield 0, [stacked([(name, COLOURS[name], share) for name, share in shares if share is not None], columns, terminal)]
        yield 1, _legend(shares, columns, terminal)
        yield 3, [_step_line(picture, steps, columns, terminal)]
        parts = _parts(steps)
        if parts:
            yield 12, [styled(fitted(f"other: {parts}", columns), DIM, terminal)]
    else:
        yield 0, [styled(fitted("no training step was recorded" if picture.is_over else "no training step yet", columns), DIM, terminal)]
    if picture.progress:
        bars = [Bar("", one.label, one.done, one.total) for one in picture.progress]
        yield 4, bar_lines(bars[:2], [one.left_s for one in picture.progress[:2]], columns, terminal)
    rates = _numbers([*picture.rates, *picture.numbers], columns, terminal)
    for place, line in enumerate(rates):
        yield 5 if place == 0 or place == len(picture.rates) else 9 + place, [line]
    if picture.workers is not None:
        yield 8, [_workers(picture, columns)]
    if picture.devices:
        yield 8, _packed([f"{one.name} {written(one.value, one.units)}" for one in picture.devices], columns)
    for number, line in enumerate(_ranks(picture.ranks, columns, terminal)):
        yield 7 if number < 5 else 14, [line]
    if picture.verdict is not None:
        first, *more = _verdict(picture.verdict, columns, terminal)
        yield 2, first
        for lines in more:
            yield 10, lines
    for text in list(picture.warnings)[:_MOST_WARNINGS]:
        said = wrap(printable(text, 400), max(columns - 9, 2)) or [""]
        yield 6, [styled("warning  ", BOLD + ";" + YELLOW, terminal) + said[0], *said[1:2]]


def _shares(steps: Mapping[str, Any]) -> list[tuple[str, float | None]]:
    known = steps.get("wait_known", True)
    return [(name, steps["phases"][name]["share"] if name != "wait" or known else None) for name in shown_phases(steps["phases"])]


def _legend(shares: Sequence[tuple[str, float | None]], columns: int, terminal: TerminalStyle) -> list[str]:
    """``wait 61%  forward 9%  …``, each in its colour or after its letter, in as many lines as it takes."""
    lines, at = [""], 0
    for name, share in shares:
        letter = "" if terminal.color else f"{LETTERS.get(name, name[:1])} "
        text = f"{letter}{name} {'?' if share is None else f'{share:.0%}'}"
        if at and at + 2 + len(text) > columns:
            lines.append("")
            at = 0
        lines[-1] += ("  " if at else "") + styled(fitted(text, columns), COLOURS[name], terminal)
        at += len(text) + (2 if at else 0)
    return lines


def _step_line(picture: Picture, steps: Mapping[str, Any], columns: int, terminal: TerminalStyle) -> str:
    """``step 12.3 ms (11.9 ms .. 14.2 ms) · the last 154 steps · 2,400 so far``."""
    time = steps["time_s"]
    texts = [f"step {seconds(time['median'], terminal)} ({seconds(time['p10'], terminal)} .. {seconds(time['p90'], terminal)})"]
    if picture.shown_s is not None:
        texts.append(f"the last {steps['n']:,} steps")
        texts.append(f"{picture.done:,} so far" if picture.is_counted else f"{picture.done:,} or more so far")
    else:
        texts.append(f"{steps['n']:,} steps")
    return fitted((" · " if terminal.blocks else ", ").join(texts), columns)


def _parts(steps: Mapping[str, Any]) -> str:
    parts = steps["phases"]["other"].get("parts", {})
    return "  ".join(f"{name} {part['share']:.0%}" for name, part in parts.items() if part["share"] >= 0.02)


def _numbers(numbers: Sequence[Number], columns: int, terminal: TerminalStyle) -> list[str]:
    """``train_rate  512 items/s  ▃▄▅``, in columns."""
    names = min(max((width(one.name) for one in numbers), default=0), max(columns // 2, 8))
    texts = [written(one.value, one.units) for one in numbers]
    values = min(max(map(len, texts), default=0), max(columns - names - 2, 4))
    lines = []
    for one, text in zip(numbers, texts, strict=True):
        shown = padded(text, values) if one.history else fitted(text, values)
        line = f"{styled(padded(printable(one.name), names), CYAN, terminal)}  {styled(shown, BOLD, terminal)}"
        room = columns - names - values - 4
        if len(one.history) > 1 and room >= 8:
            line += "  " + styled(sparkline(list(one.history)[-room:], terminal), DIM, terminal)
        lines.append(line)
    return lines


def _workers(picture: Picture, columns: int) -> str:
    """``2 loader workers: 97 % 95 % of a core``."""
    n = picture.workers
    text = "no loader workers" if n == 0 else f"{n} loader worker{'s' if n != 1 else ''}"
    if picture.worker_shares:
        busy = " ".join(f"{worker.share:.0%}" for worker in picture.worker_shares)
        text += f": {busy} of a core"
    return fitted(text, columns)


def _ranks(ranks: Sequence[Mapping[str, Any]], columns: int, terminal: TerminalStyle) -> list[str]:
    lines = []
    for rank in ranks[:_MOST_RANKS]:
        shares = [(name, COLOURS[name], rank["phases"][name]["share"]) for name in shown_phases(rank["phases"])]
        time = seconds(rank["time_s"]["median"], terminal) if rank.get("time_s") else ""
        head = padded(f"rank {rank['rank']} {printable(rank['host'])}", min(24, columns // 3)) + f"  {time:>8}  "
        room = min(columns - width(head) - 10, 40)
        tail = f"  wait {rank['phases']['wait']['share']:.0%}"
        lines.append(head + stacked(shares, room, terminal) + tail if room >= 8 else fitted(head + tail, columns))
    if len(ranks) > _MOST_RANKS:
        lines.append(styled(fitted(f"{len(ranks) - _MOST_RANKS} more ranks", columns), DIM, terminal))
    return lines


def _verdict(verdict: Mapping[str, Any], columns: int, terminal: TerminalStyle) -> list[list[str]]:
    """What it is bound by, in a line; why, in up to two; what to try, in up to three."""
    because = wrap(printable(verdict["because"], 400), columns)
    style = BOLD if verdict["kind"] in ("balanced", "unknown") else f"{BOLD};{RED}"
    kind, why = verdict["kind"], verdict["because"]
    if len(kind) + 2 + len(why) <= columns:
        sections = [[styled(kind, style, terminal) + "  " + printable(why)]]
    else:
        sections = [[styled(fitted(kind, columns), style, terminal)], because[:3]]
    advice = wrap("next  " + printable(verdict["next"], 600), columns)
    return [*sections, [styled(line, DIM, terminal) for line in advice[:4]]]


def _packed(words: Sequence[str], columns: int) -> list[str]:
    """Words in as few lines as they fit into."""
    lines: list[str] = []
    for word in words:
        if lines and width(lines[-1]) + 3 + width(word) <= columns:
            lines[-1] += "   " + word
        else:
            lines.append(fitted(printable(word), columns))
    return lines


def plain_words(picture: Picture) -> str:
    """The breakdown in a few words, for a line of a log: ``step 12.3 ms: wait 61%, forward 20% | train_rate 512 items/s``."""
    if picture.steps is None:
        return ""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in _shares(picture.steps) if share is not None and share >= 0.005)
    texts = [f"step {seconds(picture.steps['time_s']['median'], TerminalStyle(blocks=False))}: {shares}"]
    texts += [f"{one.name} {written(one.value, one.units)}" for one in picture.rates[:1]]
    texts += [f"{one.label} {one.done:g}/{one.total:g}" for one in picture.progress[:1]]
    return " | ".join(texts)


def seconds(value: float, terminal: TerminalStyle) -> str:
    """Seconds as people read them."""
    text = duration(value)
    return text if terminal.blocks else text.replace("µ", "u")
