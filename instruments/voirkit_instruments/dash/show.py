"""Views of a running script: one for terminals, and one for any other output, each drawn by a timer
thread.

No error may reach the program: it ends the view, is reported once, and the run continues.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from voirkit.live import Picture
from voirkit.live.frame import (
    BOLD,
    CYAN,
    DIM,
    PLAIN,
    YELLOW,
    Bar,
    TerminalStyle,
    bar_lines,
    can_show,
    clock,
    fitted,
    header_line,
    number_text,
    padded,
    picture_lines,
    plain_words,
    printable,
    styled,
    width,
)
from voirkit.live.terminal import BottomRows, Keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit_instruments.dash.record import Board, Row

# lines of the terminal that are left to the script: its last ten lines and the line of the cursor
KEPT_FOR_OUTPUT = 11
MOST_LINES = 40


class Header(NamedTuple):
    """Contents of the first line of a frame."""

    title: str
    elapsed_s: float
    events: int


def frame(
    header: Header,
    bars: Sequence[Bar],
    rows: Sequence[Row],
    left_s: Sequence[float | None],
    size: tuple[int, int],
    terminal: TerminalStyle,
    picture: Picture | None = None,
) -> list[str]:
    """Return the lines of the view.

    Args:
        left_s: For each bar, the seconds until it is full; None if unknown.
        size: Columns and lines of the terminal. The view leaves eleven lines to the script's
            output, or half of the lines in a low terminal.
        picture: Recorded steps, rates and progress; None if there are none.

    Returns:
        Lines with colour codes, narrower than the terminal by at least one column; no lines if the
        terminal is too small.
    """
    columns, height = size[0] - 1, min(MOST_LINES, max(size[1] - KEPT_FOR_OUTPUT, size[1] // 2))
    if columns < 10 or height < 2:
        return []
    given = f"  {header.events} events" if bars or rows else ""
    lines = [header_line(header.title, f"{clock(header.elapsed_s)}{given}", columns, terminal)]
    if picture is not None:
        lines += steps_lines(picture, bars, rows, columns, height - 1, terminal)
        height = max(height, len(lines))
    first_bar = max(0, len(bars) - max(1, (height - len(lines)) // 2))
    lines += bar_lines(bars[first_bar:], left_s[first_bar:], columns, terminal)
    room = height - len(lines)
    if len(rows) > room > 0:
        # Rows that do not fit are left out: first strings such as types, since they hardly change,
        # then the numbers that appeared last.
        numbers_first = sorted(range(len(rows)), key=lambda i: not rows[i].is_number)
        indices = sorted(numbers_first[: room - 1])
        lines += row_lines([rows[i] for i in indices], columns, terminal)
        lines.append(styled(fitted(f"... {len(rows) - len(indices)} more", columns), DIM, terminal))
    elif room > 0:
        lines += row_lines(rows, columns, terminal)
    return lines


def steps_lines(
    picture: Picture,
    bars: Sequence[Bar],
    rows: Sequence[Row],
    columns: int,
    room: int,
    terminal: TerminalStyle,
) -> list[str]:
    """Return the lines about recorded steps, rates and progress. They get what the given values
    leave of ``room``, which is at least half of it."""
    given = {row.key for row in rows}
    remaining = replace(picture, rates=[rate for rate in picture.rates if rate.name not in given])
    return picture_lines(remaining, columns, room - min(len(bars) + len(rows), room // 2), terminal)


def row_lines(rows: Sequence[Row], columns: int, terminal: TerminalStyle) -> list[str]:
    """Return the lines of the table: task (if any row has one), key, value, count."""
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
            cells.append(
                styled(
                    padded(printable(row.task) if row.task != before else "", tasks),
                    YELLOW,
                    terminal,
                )
            )
        cells.append(styled(padded(printable(row.key), keys), CYAN, terminal))
        cells.append(
            styled(padded(row.text, max(1, values)), BOLD if row.is_number else PLAIN, terminal)
        )
        if counts:
            cells.append(styled(f"{row.given}x".rjust(counts), DIM, terminal))
        lines.append("  ".join(cells))
        before = row.task
    return lines


def plain_line(elapsed_s: float, bars: Sequence[Bar], rows: Sequence[Row], steps: str = "") -> str:
    """Return the numbers as one line, steps first, each with its task if it has one: ``[12.3s] loss
    0.412 | train_rate 512 items/s | 120/400``."""
    parts = [steps] if steps else []
    parts += [
        " ".join(word for word in (row.task, row.key, row.text) if word)
        for row in rows
        if row.is_number
    ]
    parts += [
        " ".join(
            word
            for word in (bar.task, bar.label, f"{number_text(bar.n)}/{number_text(bar.total)}")
            if word
        )
        for bar in bars
    ]
    return printable(f"[{elapsed_s:.1f}s] " + " | ".join(parts), limit=500)


# share of a core that the drawing thread may use: after a slow drawing the thread waits longer
MOST_OF_A_CORE = 0.008
# longest wait after a slow drawing: the first drawing is slow because it imports modules
LONGEST_S = 2.0

Steps = Callable[[], "Picture | None"]


class View:
    """A view of a board as lines on standard error, at most one per second; drawn only if something
    has changed.

    ``complain`` is called once, with a sentence, if drawing fails. ``steps`` returns a picture of
    the steps recorded so far.
    """

    per_s = 1.0  # largest number of drawings per second

    def __init__(self, board: Board, complain: Callable[[str], None], steps: Steps) -> None:
        self.board, self._steps = board, steps
        self._interval_s = 1.0 / self.per_s
        self._complain = complain
        self._last = ""
        self._began = time.perf_counter()
        self._pid = os.getpid()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="voirkit-dash", daemon=True)
        self._drawn: object = None

    def start(self) -> None:
        atexit.register(self.stop)
        self._thread.start()

    def stop(self) -> None:
        """Stop drawing, and restore the terminal for later output. May be called again."""
        if os.getpid() != self._pid or self._over.is_set():
            return
        self._over.set()
        if self._thread.ident is not None:
            # not without a timeout: the thread may hang in a terminal that was stopped with Ctrl-S
            self._thread.join(timeout=1.0)
        self._close()
        atexit.unregister(self.stop)

    def finish(self) -> None:
        """Print the last values, once all were given; to be called after ``stop``."""
        if os.getpid() == self._pid and self.board.events:
            self.board.settle()
            if self.board.rows() or self.board.bars():
                self._attempt(self._leave)

    def elapsed_s(self) -> float:
        """Return the seconds since the view was made."""
        return time.perf_counter() - self._began

    def _run(self) -> None:
        wait_s = self._interval_s
        while not self._over.wait(wait_s):
            begun_s = time.thread_time()
            if not self._attempt(self._refresh) or self._is_dismissed():
                self._close()
                return
            wait_s = max(
                self._interval_s, min((time.thread_time() - begun_s) / MOST_OF_A_CORE, LONGEST_S)
            )

    def _attempt(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except Exception as error:
            # any error of the drawing ends only the view, not the run
            self._complain(f"--dash: the view ended: {type(error).__name__}: {error}")
            return False
        return True

    def _refresh(self) -> None:
        state = self._state()
        if state != self._drawn and self._draw():
            self._drawn = state

    def _is_dismissed(self) -> bool:
        """True if the user has closed the view."""
        return False

    def _state(self) -> object:
        """Return a value that changes whenever a new drawing would look different."""
        return self.board.events, int(self.elapsed_s())

    def _draw(self) -> bool:
        """Draw the view; False if that was not possible now."""
        bars, rows = self.board.bars(), self.board.rows()
        picture = self._steps()
        steps = plain_words(picture) if picture is not None else ""
        numbers = plain_line(0.0, bars, rows, steps)
        if (steps or bars or any(row.is_number for row in rows)) and numbers != self._last:
            self._last = numbers
            write_line(plain_line(self.elapsed_s(), bars, rows, steps))
        return True

    def _close(self) -> None:
        """Restore whatever the view has changed; this view changes nothing."""

    def _leave(self) -> None:
        self._draw()


class TerminalView(View):
    """A table at the bottom of a terminal, below the script's own output."""

    per_s = 4.0

    def __init__(
        self,
        board: Board,
        title: str,
        fd: int,
        encoding: str,
        complain: Callable[[str], None],
        steps: Steps,
    ) -> None:
        super().__init__(board, complain, steps)
        self._title = title
        self._keys = Keys(fd, is_shared=True)
        self._left = False
        self._rows = BottomRows(fd, encoding)
        self._look = TerminalStyle(
            color=not os.environ.get("NO_COLOR"), blocks=can_show("━─", encoding)
        )
        self._seen: dict[tuple[str, str], tuple[float, float, float]] = {}

    def _state(self) -> object:
        return super()._state(), self._rows.size()

    def start(self) -> None:
        self._keys.start()
        super().start()

    def _frame(self, size: tuple[int, int], picture: Picture | None = None) -> list[str]:
        bars = self.board.bars()
        header = Header(self._title, self.elapsed_s(), self.board.events)
        return frame(
            header,
            bars,
            self.board.rows(),
            [self._left_s(bar) for bar in bars],
            size,
            self._look,
            picture,
        )

    def _left_s(self, bar: Bar) -> float | None:
        """Return the seconds until a bar is full, at its speed so far; None if unknown. The speed
        is measured from the start again when the bar starts over."""
        now, key = time.perf_counter(), (bar.task, bar.label)
        first, since, last = self._seen.get(key, (bar.n, now, bar.n))
        if bar.n < last:
            first, since = bar.n, now
        self._seen[key] = (first, since, bar.n)
        speed = (bar.n - first) / (now - since) if now > since else 0.0
        return (bar.total - bar.n) / speed if speed > 0 and bar.total > bar.n else None

    def _draw(self) -> bool:
        return self._rows.draw(self._frame(self._rows.size(), self._steps()))

    def _is_dismissed(self) -> bool:
        self._left = self._left or self._keys.pressed()
        return self._left

    def _close(self) -> None:
        self._rows.close()
        self._keys.end()

    def _leave(self) -> None:
        if self._left:
            return
        # the last frame becomes ordinary output, which may scroll
        self._rows.leave(self._frame((self._rows.size()[0], 1000)))


def view_for(
    board: Board, title: str, complain: Callable[[str], None], steps: Steps = lambda: None
) -> View:
    """Return the view for the present standard error: a terminal or not."""
    stream = sys.stderr
    try:
        fd = stream.fileno()
        terminal = (
            os.isatty(fd)
            and os.name == "posix"
            and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        )
    except (AttributeError, OSError, ValueError):  # no stream, or one that is not a file
        terminal = False
    if terminal:
        return TerminalView(board, title, fd, stream.encoding, complain, steps)
    return View(board, complain, steps)


def write_line(line: str) -> None:
    """Write a line to standard error, bypassing the stream's buffer: a process that is forked at
    this moment must not inherit a locked buffer."""
    stream = sys.stderr
    if stream is None:
        return
    try:
        os.write(stream.fileno(), f"{line}\n".encode(stream.encoding or "utf-8", "replace"))
    except (AttributeError, OSError, ValueError):
        stream.write(f"{line}\n")
