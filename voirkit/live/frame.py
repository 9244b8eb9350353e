"""Drawing of a run's ``Picture`` as lines for a terminal of a given size, for `--dash` and `voirkit
watch`. Pure functions.

This module itself cuts and colours text and draws bars; it uses only the cell widths of rich. A
rich table takes 2 ms for a frame of ten rows (measured, rich 15), nearly all of the 1 % of a core
that a view may use at four frames per second. This module takes a tenth of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

from voirkit.live import Number, Picture
from voirkit.phase_table import TABLE, shown_phases
from voirkit.report import duration
from voirkit.report.overview import wall_line
from voirkit.report.sections import written

# text in the cells of a terminal: its style and width

BOLD, DIM, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN, BRIGHT_RED, PLAIN = (
    "1",
    "2",
    "31",
    "32",
    "33",
    "34",
    "35",
    "36",
    "91",
    "",
)
LETTERS = {"other": "."}  # letters of phases in place of colours; default: the first letter
_SPARKS = "▁▂▃▄▅▆▇█"
_SPARKS_ASCII = "_.-=*#"


class TerminalStyle(NamedTuple):
    """The abilities of the terminal."""

    color: bool = True
    blocks: bool = True  # True if it can show line drawing characters (a Unicode encoding)


class Bar(NamedTuple):
    """Progress of a task: ``n`` of ``total``, as the caller gave them."""

    task: str
    label: str
    n: float
    total: float


def bar_lines(
    bars: Sequence[Bar], left_s: Sequence[float | None], columns: int, terminal: TerminalStyle
) -> list[str]:
    """Return lines such as ``train  ━━━━━━━────  120/400  30%  0:00:42 left``. If a line is too
    long, it is shortened from the right, and the bar is left out last."""
    names = [printable(" ".join(word for word in (bar.task, bar.label) if word)) for bar in bars]
    name_width = min(max(map(width, names), default=0), columns // 3)
    full_block, empty_block = ("━", "─") if terminal.blocks else ("#", "-")
    lines = []
    for bar, name, remaining_s in zip(bars, names, left_s, strict=True):
        share = min(1.0, max(0.0, bar.n / bar.total)) if bar.total > 0 else 0.0
        words = [f"{number_text(bar.n)}/{number_text(bar.total)}", f"{share:.0%}"]
        if remaining_s is not None and remaining_s >= 1:
            words.append(f"{clock(remaining_s)} left")
        head = padded(name, name_width) + "  " if name_width else ""
        room = columns - width(head) - 2
        while len(words) > 1 and room - len("  ".join(words)) < 10:
            words.pop()
        tail = "  ".join(words)
        length = min(40, room - len(tail))
        if length < 5:
            lines.append(fitted(head + tail, columns))
            continue
        n_full = round(share * length)
        full = styled(full_block * n_full, GREEN, terminal)
        empty = styled(empty_block * (length - n_full), DIM, terminal)
        lines.append(f"{head}{full}{empty}  {tail}")
    return lines


def sparkline(values: Sequence[float], terminal: TerminalStyle) -> str:
    """Return values as a curve such as ``▁▃▅█``, from 0 (or the smallest value if negative) to the
    largest value."""
    levels = _SPARKS if terminal.blocks else _SPARKS_ASCII
    finite = [value for value in values if -float("inf") < value < float("inf")]
    most, least = max(finite, default=0.0), min([*finite, 0.0])
    span = most - least
    if span <= 0:
        return levels[0] * len(finite)
    n_levels = len(levels)
    numbers = (int((value - least) / span * n_levels) for value in finite)
    return "".join(levels[min(number, n_levels - 1)] for number in numbers)


def stacked(shares: Sequence[tuple[str, str, float]], columns: int, terminal: TerminalStyle) -> str:
    """Return one bar that is divided into parts (name, colour, share); all parts together fill
    ``columns``. A part is drawn in its colour, or with its letter if there are no colours."""
    pieces = []
    column, sum_ = 0, 0.0
    for name, colour, share in shares:
        sum_ += share
        end_column = min(round(sum_ * columns), columns)
        if end_column > column:
            block = "█" if terminal.blocks and terminal.color else _letter(name)
            pieces.append(styled(block * (end_column - column), colour, terminal))
            column = end_column
    return "".join(pieces)


def _letter(phase: str) -> str:
    return LETTERS.get(phase, phase[:1])


def number_text(number: float) -> str:
    """Return a number as text: ``400``, ``2.5``."""
    return str(number) if isinstance(number, int) else f"{number:g}"


def clock(seconds: float) -> str:
    """Return a duration as ``0:01:23``."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def printable(text: str, limit: int = 200) -> str:
    """Return the beginning of a text, with blanks for characters that would move the cursor."""
    return "".join(c if c.isprintable() else " " for c in text[:limit])


def width(text: str) -> int:
    """Return the columns that a text takes: two for most CJK characters and emoji."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # importing it takes 13 ms; most runs show only ASCII

    return cell_len(text)


def fitted(text: str, columns: int, keep_end: bool = False) -> str:
    """Return the text cut to at most that many columns, with dots where something was cut off."""
    if width(text) <= columns:
        return text
    if columns <= 2:
        return "." * max(0, columns)
    part = text[::-1] if keep_end else text
    while width(part) > columns - 2:
        if len(part) <= 1:
            part = ""
            break
        n_cut = max(1, (width(part) - columns) // 2)
        part = part[: max(1, len(part) - n_cut)]
    return ".." + part[::-1] if keep_end else part + ".."


def padded(text: str, columns: int) -> str:
    """Return the text cut or padded to exactly that many columns."""
    text = fitted(text, columns)
    return text + " " * (columns - width(text))


def styled(text: str, style: str, terminal: TerminalStyle) -> str:
    """Return the text in a style; unchanged if the terminal has no colours."""
    return f"\033[{style}m{text}\033[0m" if terminal.color and style and text else text


def can_show(text: str, encoding: str) -> bool:
    """True if an encoding has these characters."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


# the lines that show a ``Picture``

_CODES = {
    "red": RED,
    "magenta": MAGENTA,
    "green": GREEN,
    "cyan": CYAN,
    "blue": BLUE,
    "bright_red": BRIGHT_RED,
    "yellow": YELLOW,
}
COLOURS = {phase.name: _CODES[phase.terminal_colour] for phase in TABLE if phase.terminal_colour}
_MOST_RANKS = 8
_MOST_WARNINGS = 3

# (priority number, lines), in the order in which sections are drawn: if there is no room, sections
# with the highest number are left out first
_Section = tuple[int, list[str]]


def header_line(title: str, right: str, columns: int, terminal: TerminalStyle) -> str:
    """Return a line such as ``-- main.py  0:01:23  2400 events ------``. If it does not fit, the
    title is cut, and then left out."""
    dash = "─" if terminal.blocks else "-"
    right = f" {printable(right)} "
    if width(right) + 4 > columns:
        return fitted(right.strip(), columns)
    title = fitted(f" {printable(title)} ", max(0, columns - width(right) - 3), keep_end=True)
    n_dashes = max(0, columns - width(title) - width(right) - 3)
    before_title, after_title = styled(dash * 2, DIM, terminal), styled(dash, DIM, terminal)
    after_right = styled(dash * n_dashes, DIM, terminal)
    return f"{before_title}{styled(title, BOLD, terminal)}{after_title}{right}{after_right}"


def watch_frame(picture: Picture, size: tuple[int, int], terminal: TerminalStyle) -> list[str]:
    """Return the lines of `voirkit watch`. They leave at least one column and two rows of the
    terminal free."""
    columns, room = size[0] - 1, size[1] - 2
    if columns < 10 or room < 1:
        return []
    right = picture.state
    if picture.elapsed_s is not None:
        right = f"{clock(picture.elapsed_s)}  {right}"
    header = header_line(picture.title, right, columns, terminal)
    return [header, *picture_lines(picture, columns, room - 1, terminal)]


def picture_lines(picture: Picture, columns: int, room: int, terminal: TerminalStyle) -> list[str]:
    """Return the picture's lines without a header. If there is no room for all sections, the least
    important ones are left out."""
    sections = list(_sections(picture, columns, terminal))
    fitting = set()
    for number, (_, lines) in sorted(enumerate(sections), key=lambda pair: pair[1][0]):
        if len(lines) <= room:
            fitting.add(number)
            room -= len(lines)
    result = []
    for number, (_, lines) in enumerate(sections):
        if number in fitting:
            result += lines
    return result


def _sections(picture: Picture, columns: int, terminal: TerminalStyle) -> Iterator[_Section]:
    if picture.wall:
        yield 6, _packed(wall_line(picture.wall, picture.evaluation).split(" · "), columns)
    if picture.steps is not None:
        yield from _step_sections(picture, picture.steps, columns, terminal)
    else:
        when = "was recorded" if picture.is_over else "yet"
        yield 0, [styled(fitted(f"no training step {when}", columns), DIM, terminal)]
    if picture.progress:
        progress = picture.progress[:2]
        bars = [Bar("", task.label, task.n, task.total) for task in progress]
        yield 4, bar_lines(bars, [task.left_s for task in progress], columns, terminal)
    rates = _numbers([*picture.rates, *picture.numbers], columns, terminal)
    for place, line in enumerate(rates):
        is_first = place in (0, len(picture.rates))
        yield 5 if is_first else 9 + place, [line]
    if picture.workers is not None:
        yield 8, [_workers(picture, columns)]
    if picture.devices:
        devices = [
            f"{device.name} {written(device.value, device.units)}" for device in picture.devices
        ]
        yield 8, _packed(devices, columns)
    for number, line in enumerate(_ranks(picture.ranks, columns, terminal)):
        yield 7 if number < 5 else 14, [line]
    if picture.verdict is not None:
        first, *more = _verdict(picture.verdict, columns, terminal)
        yield 2, first
        for lines in more:
            yield 10, lines
    for text in list(picture.warnings)[:_MOST_WARNINGS]:
        yield 6, _warning(text, columns, terminal)


def _step_sections(
    picture: Picture, steps: Mapping[str, Any], columns: int, terminal: TerminalStyle
) -> Iterator[_Section]:
    """Yield the sections about steps: the phases of a step, its time, and the parts of phase
    ``other``."""
    shares = _shares(steps)
    bar = [(name, COLOURS[name], share) for name, share in shares if share is not None]
    yield 0, [stacked(bar, columns, terminal)]
    yield 1, _legend(shares, columns, terminal)
    yield 3, [_step_line(picture, steps, columns, terminal)]
    parts = _parts(steps)
    if parts:
        yield 12, [styled(fitted(f"other: {parts}", columns), DIM, terminal)]


def _warning(text: str, columns: int, terminal: TerminalStyle) -> list[str]:
    """Return a warning in up to two lines."""
    lines = wrap(printable(text, 400), max(columns - 9, 2)) or [""]
    head = styled("warning  ", f"{BOLD};{YELLOW}", terminal)
    return [head + lines[0], *lines[1:2]]


def _shares(steps: Mapping[str, Any]) -> list[tuple[str, float | None]]:
    """Return the share of each phase; None for an unknown wait."""
    shares: list[tuple[str, float | None]] = []
    for name in shown_phases(steps["phases"]):
        is_known = name != "wait" or steps.get("wait_known", True)
        shares.append((name, steps["phases"][name]["share"] if is_known else None))
    return shares


def _legend(
    shares: Sequence[tuple[str, float | None]], columns: int, terminal: TerminalStyle
) -> list[str]:
    """Return ``wait 61%  forward 9%  …`` in as many lines as needed. Each phase has its colour, or
    its letter before it if there are no colours."""
    lines: list[str] = []
    length = 0  # length of the last line, without escape sequences
    for name, share in shares:
        letter = "" if terminal.color else f"{_letter(name)} "
        percent = "?" if share is None else f"{share:.0%}"
        text = f"{letter}{name} {percent}"
        entry = styled(fitted(text, columns), COLOURS[name], terminal)
        if lines and length + 2 + len(text) <= columns:
            lines[-1] += f"  {entry}"
            length += 2 + len(text)
        else:
            lines.append(entry)
            length = len(text)
    return lines or [""]


def _step_line(
    picture: Picture, steps: Mapping[str, Any], columns: int, terminal: TerminalStyle
) -> str:
    """Return ``step 12.3 ms (11.9 ms .. 14.2 ms) · the last 154 steps · 2,400 so far``: the median,
    10th and 90th percentile of a step's time, and the number of steps."""
    median, p10, p90 = (seconds(steps["time_s"][key], terminal) for key in ("median", "p10", "p90"))
    texts = [f"step {median} ({p10} .. {p90})"]
    if picture.shown_s is not None:
        or_more = "" if picture.is_counted else " or more"
        texts.append(f"the last {steps['n']:,} steps")
        texts.append(f"{picture.n_steps:,}{or_more} so far")
    else:
        texts.append(f"{steps['n']:,} steps")
    return fitted((" · " if terminal.blocks else ", ").join(texts), columns)


def _parts(steps: Mapping[str, Any]) -> str:
    parts = steps["phases"]["other"].get("parts", {})
    return "  ".join(
        f"{name} {part['share']:.0%}" for name, part in parts.items() if part["share"] >= 0.02
    )


def _numbers(numbers: Sequence[Number], columns: int, terminal: TerminalStyle) -> list[str]:
    """Return lines such as ``train_rate  512 items/s  ▃▄▅``, aligned in columns."""
    longest_name = max((width(number.name) for number in numbers), default=0)
    name_width = min(longest_name, max(columns // 2, 8))
    texts = [written(number.value, number.units) for number in numbers]
    value_width = min(max(map(len, texts), default=0), max(columns - name_width - 2, 4))
    room = columns - name_width - value_width - 4
    lines = []
    for number, text in zip(numbers, texts, strict=True):
        value = padded(text, value_width) if number.history else fitted(text, value_width)
        name = styled(padded(printable(number.name), name_width), CYAN, terminal)
        line = f"{name}  {styled(value, BOLD, terminal)}"
        if len(number.history) > 1 and room >= 8:
            curve = sparkline(list(number.history)[-room:], terminal)
            line += "  " + styled(curve, DIM, terminal)
        lines.append(line)
    return lines


def _workers(picture: Picture, columns: int) -> str:
    """Return a line such as ``2 loader workers: 97% 95% of a core``."""
    n = picture.workers
    text = "no loader workers" if n == 0 else f"{n} loader worker{'s' if n != 1 else ''}"
    if picture.worker_shares:
        busy = " ".join(f"{worker.share:.0%}" for worker in picture.worker_shares)
        text += f": {busy} of a core"
    return fitted(text, columns)


def _ranks(ranks: Sequence[Mapping[str, Any]], columns: int, terminal: TerminalStyle) -> list[str]:
    lines = []
    for rank in ranks[:_MOST_RANKS]:
        phases = rank["phases"]
        shares = [(name, COLOURS[name], phases[name]["share"]) for name in shown_phases(phases)]
        time = seconds(rank["time_s"]["median"], terminal) if rank.get("time_s") else ""
        name = padded(f"rank {rank['rank']} {printable(rank['host'])}", min(24, columns // 3))
        head = f"{name}  {time:>8}  "
        tail = f"  wait {phases['wait']['share']:.0%}"
        room = min(columns - width(head) - 10, 40)
        if room >= 8:
            lines.append(f"{head}{stacked(shares, room, terminal)}{tail}")
        else:
            lines.append(fitted(head + tail, columns))
    if len(ranks) > _MOST_RANKS:
        words = f"{len(ranks) - _MOST_RANKS} more ranks"
        lines.append(styled(fitted(words, columns), DIM, terminal))
    return lines


def _verdict(verdict: Mapping[str, Any], columns: int, terminal: TerminalStyle) -> list[list[str]]:
    """Return the sections of a verdict: its kind, in one line; the reason, in up to three lines, or
    beside the kind if it fits; what to try, in up to four lines."""
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
    """Return the words in as few lines as possible."""
    lines: list[str] = []
    for word in words:
        if lines and width(lines[-1]) + 3 + width(word) <= columns:
            lines[-1] += "   " + word
        else:
            lines.append(fitted(printable(word), columns))
    return lines


def plain_words(picture: Picture) -> str:
    """Return the breakdown in a few words, for a line of a log:
    ``step 12.3 ms: wait 61%, forward 20% | train_rate 512 items/s``."""
    if picture.steps is None:
        return ""
    shares = ", ".join(
        f"{name} {share:.0%}"
        for name, share in _shares(picture.steps)
        if share is not None and share >= 0.005
    )
    median = seconds(picture.steps["time_s"]["median"], TerminalStyle(blocks=False))
    texts = [f"step {median}: {shares}"]
    texts += [f"{rate.name} {written(rate.value, rate.units)}" for rate in picture.rates[:1]]
    texts += [f"{task.label} {task.n:g}/{task.total:g}" for task in picture.progress[:1]]
    return " | ".join(texts)


def seconds(value: float, terminal: TerminalStyle) -> str:
    """Return a duration in a readable unit, such as ``12.3 ms``."""
    text = duration(value)
    return text if terminal.blocks else text.replace("µ", "u")
