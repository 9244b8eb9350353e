"""The views of a run while it goes on: one for terminals, one for everything else, each drawn by a timer thread.

Nothing here may reach the program: an error ends the view, is told once, and the run goes on.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable

from voirkit.live.frame import plain_words
from voirkit.live.picture import Picture
from voirkit.live.terminal import BottomRows, Keys
from voirkit.report.cells import Bar, Look, can_show
from voirkit_instruments.dash.board import Board
from voirkit_instruments.dash.show import Header, frame, plain_line

FRAMES_PER_S = 4.0
LINES_PER_S = 1.0
MOST_OF_A_CORE = 0.008  # what the drawing thread may use: it waits so much longer after what took long
LONGEST_S = 2.0  # the first drawing loads what it needs: that is no reason to stand still

Steps = Callable[[], "Picture | None"]


class View:
    """Draws a board at most so often, and only when something changed.

    Args:
        board: What to show.
        per_s: The most drawings in a second.
        complain: Told once, in a sentence, if drawing fails.
        steps: What was recorded, by now.
    """

    def __init__(self, board: Board, per_s: float, complain: Callable[[str], None], steps: Steps) -> None:
        self.board, self._steps = board, steps
        self._interval_s = 1.0 / per_s
        self._complain = complain
        self._began = time.perf_counter()
        self._pid = os.getpid()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="voirkit-dash", daemon=True)
        self._drawn: object = None

    def start(self) -> None:
        """Begin to draw."""
        atexit.register(self.stop)
        self._thread.start()

    def stop(self) -> None:
        """End drawing; what is printed from now on finds things as they were. May be called again."""
        if os.getpid() != self._pid or self._over.is_set():
            return
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=1.0)  # it may be stuck in a terminal that was stopped with Ctrl-S
        self._close()
        atexit.unregister(self.stop)

    def finish(self) -> None:
        """Leave the last values, once all have been given. After ``stop``."""
        if os.getpid() == self._pid and self.board.events:
            self.board.settle()
            if self.board.rows() or self.board.bars():
                self._attempt(self._leave)

    def elapsed_s(self) -> float:
        """Since the view was made."""
        return time.perf_counter() - self._began

    def _run(self) -> None:
        wait_s = self._interval_s
        while not self._over.wait(wait_s):
            begun_s = time.thread_time()
            if not self._attempt(self._refresh) or self._is_dismissed():
                self._close()
                return
            wait_s = max(self._interval_s, min((time.thread_time() - begun_s) / MOST_OF_A_CORE, LONGEST_S))

    def _attempt(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except Exception as error:  # whatever it is, the run is worth more than its view
            self._complain(f"--dash: the view ended: {type(error).__name__}: {error}")
            return False
        return True

    def _refresh(self) -> None:
        state = self._state()
        if state != self._drawn and self._draw():
            self._drawn = state

    def _is_dismissed(self) -> bool:
        """Whether the user wants to see no more of it."""
        return False

    def _state(self) -> object:
        """Equal as long as a new drawing would look the same."""
        return self.board.events

    def _draw(self) -> bool:
        """False if it could not be done now."""
        raise NotImplementedError

    def _close(self) -> None:
        """Put things back."""

    def _leave(self) -> None:
        self._draw()


class TerminalView(View):
    """A table at the bottom of a terminal, below the script's own output."""

    def __init__(self, board: Board, title: str, fd: int, encoding: str, complain: Callable[[str], None], steps: Steps) -> None:
        super().__init__(board, FRAMES_PER_S, complain, steps)
        self._title = title
        self._keys = Keys(fd, is_shared=True)
        self._left = False
        self._rows = BottomRows(fd, encoding)
        self._look = Look(color=not os.environ.get("NO_COLOR"), blocks=can_show("━─", encoding))
        self._seen: dict[tuple[str, str], tuple[float, float, float]] = {}

    def _state(self) -> object:
        return self.board.events, int(self.elapsed_s()), self._rows.size()

    def start(self) -> None:
        """Begin to draw, and to look for the key q."""
        self._keys.begin()
        super().start()

    def _frame(self, size: tuple[int, int], picture: Picture | None = None) -> list[str]:
        bars = self.board.bars()
        header = Header(self._title, self.elapsed_s(), self.board.events)
        return frame(header, bars, self.board.rows(), [self._left_s(bar) for bar in bars], size, self._look, picture)

    def _left_s(self, bar: Bar) -> float | None:
        """Seconds that a bar still needs at its speed so far, which is measured anew whenever it starts over."""
        now, key = time.perf_counter(), (bar.task, bar.label)
        first, since, last = self._seen.get(key, (bar.done, now, bar.done))
        if bar.done < last:
            first, since = bar.done, now
        self._seen[key] = (first, since, bar.done)
        speed = (bar.done - first) / (now - since) if now > since else 0.0
        return (bar.total - bar.done) / speed if speed > 0 and bar.total > bar.done else None

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
        self._rows.leave(self._frame((self._rows.size()[0], 1000)))  # ordinary output: it may scroll


class PlainView(View):
    """A line on standard error at most once a second."""

    def __init__(self, board: Board, complain: Callable[[str], None], steps: Steps) -> None:
        super().__init__(board, LINES_PER_S, complain, steps)
        self._last = ""

    def _state(self) -> object:
        return self.board.events, int(self.elapsed_s())

    def _draw(self) -> bool:
        bars, rows = self.board.bars(), self.board.rows()
        picture = self._steps()
        steps = plain_words(picture) if picture is not None else ""
        numbers = plain_line(0.0, bars, rows, steps)
        if (steps or bars or any(row.is_number for row in rows)) and numbers != self._last:
            self._last = numbers
            write_line(plain_line(self.elapsed_s(), bars, rows, steps))
        return True


def view_for(board: Board, title: str, complain: Callable[[str], None], steps: Steps = lambda: None) -> View:
    """The view that suits where standard error goes."""
    stream = sys.stderr
    try:
        fd = stream.fileno()
        terminal = os.isatty(fd) and os.name == "posix" and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    except (AttributeError, OSError, ValueError):  # no stream, or one that is no file
        terminal = False
    if terminal:
        return TerminalView(board, title, fd, stream.encoding, complain, steps)
    return PlainView(board, complain, steps)


def write_line(line: str) -> None:
    """A line on standard error, past the buffer of the stream: a process forked at this moment must not inherit a locked one."""
    stream = sys.stderr
    if stream is None:
        return
    try:
        os.write(stream.fileno(), f"{line}\n".encode(stream.encoding or "utf-8", "replace"))
    except (AttributeError, OSError, ValueError):
        stream.write(f"{line}\n")
