"""``voirkit watch [RUN]``: a run as it goes on, in another terminal or on another machine that sees its directory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from voirkit.errors import RunDirectoryError
from voirkit.options import ExtendedArgumentParser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.live.picture import Picture
    from voirkit.live.run import LiveRun
    from voirkit.live.terminal import BottomRows, Keys
    from voirkit.report.cells import TerminalStyle

PER_S = 2.0


def main(argv: Sequence[str]) -> int:
    """Show a run until it is over."""
    options = _parser().parse_args(argv)
    from voirkit.live.run import LiveRun
    from voirkit.runs.directory import LATEST, find

    path = find(options.RUN or LATEST)
    run = LiveRun(path)
    try:
        if options.once or not _is_terminal():
            _print(_update(run), *_paper())
        else:
            _watch(run)
    except BrokenPipeError:  # `voirkit watch | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        pass
    return 0


def _update(run: LiveRun) -> Picture:
    try:
        return run.update()
    except OSError as exc:
        raise RunDirectoryError(f"it cannot be read any more: {exc.strerror}.", where=run.path) from None


def _watch(run: LiveRun) -> None:
    from voirkit.live.frame import watch_frame
    from voirkit.live.terminal import BottomRows, Keys

    rows = BottomRows(sys.stdout.fileno(), sys.stdout.encoding or "ascii")
    style = _terminal_style(color=True)
    picture = None
    try:
        with Keys(sys.stdin.fileno(), is_shared=False) as keys:
            while True:
                picture = _update(run)
                if picture.is_over or not _show(rows, watch_frame(picture, rows.size(), style), keys):
                    break
    finally:
        rows.close()
    if picture is not None:
        _leave(rows, picture, style)


def _show(rows: BottomRows, lines: list[str], keys: Keys) -> bool:
    """Draw until the next update is due; False if the user has pressed q."""
    until = time.monotonic() + 1 / PER_S
    rows.draw(lines)
    while (left := until - time.monotonic()) > 0:
        if keys.pressed(left):
            return False
    return True


def _leave(rows: BottomRows, picture: Picture, style: TerminalStyle) -> None:
    """The last picture stays, as ordinary output."""
    from voirkit.live.frame import watch_frame

    rows.leave(watch_frame(picture, (rows.size()[0], 1000), style))


def _print(picture: Picture, columns: int, style: TerminalStyle) -> None:
    from voirkit.live.frame import watch_frame

    for line in watch_frame(picture, (columns + 1, 1000), style):
        print(line)
    sys.stdout.flush()


def _is_terminal() -> bool:
    return sys.stdout.isatty() and os.name == "posix" and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def _paper() -> tuple[int, TerminalStyle]:
    """How wide, and of what, a frame is that is printed once."""
    import shutil

    return shutil.get_terminal_size((100, 0)).columns, _terminal_style(color=False)


def _terminal_style(color: bool) -> TerminalStyle:
    from voirkit.report.cells import TerminalStyle, can_show

    return TerminalStyle(color=color and not os.environ.get("NO_COLOR"), blocks=can_show("━─▁█·µ", sys.stdout.encoding or "ascii"))


def _parser() -> ExtendedArgumentParser:
    parser = ExtendedArgumentParser(
        "voirkit watch",
        "voirkit watch [--once] [RUN]",
        description="Shows a run as it goes on: what its last steps spend their time on, rates, progress, verdict. The key q ends the "
        "watching; the run goes on. Of a run that has ended the last picture is printed; one picture too where there is no terminal.",
    )
    parser.add_argument("RUN", nargs="?", help="the run directory (default: voirkit-runs/latest)")
    parser.add_argument("--once", action="store_true", help="print one picture and end")
    return parser
