"""``voirkit watch [RUN]``: shows the progress of a run, from another terminal or machine.

The machine needs access to the run directory.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence

from voirkit.commands import printing
from voirkit.errors import RunDirectoryError, reason
from voirkit.options import ExtendedArgumentParser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.live import Picture
    from voirkit.live.frame import TerminalStyle
    from voirkit.live.run import LiveRun
    from voirkit.live.terminal import BottomRows, Keys

PER_S = 2.0


def main(argv: Sequence[str]) -> int:
    """Show a run until it ends."""
    options = main_parser().parse_args(argv)
    from voirkit.live.frame import watch_frame
    from voirkit.live.run import LiveRun
    from voirkit.runs.directory import LATEST, find

    run = LiveRun(find(options.RUN or LATEST))
    is_terminal = (
        sys.stdout.isatty()
        and os.name == "posix"
        and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    )
    try:
        with printing():
            if is_terminal and not options.once:
                _watch(run)
            else:
                columns = shutil.get_terminal_size((100, 0)).columns
                for line in watch_frame(
                    _update(run), (columns + 1, 1000), _terminal_style(color=False)
                ):
                    print(line)
    except KeyboardInterrupt:
        pass
    except (
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        ArithmeticError,
    ) as exc:  # the run's files are not checked: damaged ones raise any of these
        fault = f"it is damaged, or of another version of voirkit ({reason(exc)})."
        raise RunDirectoryError(fault, where=run.path, next=f"voirkit report {run.path}") from None
    return 0


def _update(run: LiveRun) -> Picture:
    try:
        return run.update()
    except OSError as exc:
        raise RunDirectoryError(
            f"it cannot be read any more: {exc.strerror}.", where=run.path
        ) from None


def _watch(run: LiveRun) -> None:
    from voirkit.live.frame import watch_frame
    from voirkit.live.terminal import BottomRows, Keys

    rows = BottomRows(sys.stdout.fileno(), sys.stdout.encoding or "ascii")
    style = _terminal_style(color=True)
    try:
        with Keys(sys.stdin.fileno(), is_shared=False) as keys:
            while True:
                picture = _update(run)
                if picture.is_over or not _show(
                    rows, watch_frame(picture, rows.size(), style), keys
                ):
                    break
    finally:
        rows.close()
    # the last picture stays in the terminal, as ordinary output
    rows.leave(watch_frame(picture, (rows.size()[0], 1000), style))


def _show(rows: BottomRows, lines: list[str], keys: Keys) -> bool:
    """Draw until the next update is due; False if the user has pressed q."""
    until = time.monotonic() + 1 / PER_S
    rows.draw(lines)
    while (left := until - time.monotonic()) > 0:
        if keys.pressed(left):
            return False
    return True


def _terminal_style(color: bool) -> TerminalStyle:
    from voirkit.live.frame import TerminalStyle, can_show

    return TerminalStyle(
        color=color and not os.environ.get("NO_COLOR"),
        blocks=can_show("━─▁█·µ", sys.stdout.encoding or "ascii"),
    )


def main_parser() -> ExtendedArgumentParser:
    parser = ExtendedArgumentParser(
        "voirkit watch",
        "voirkit watch [--once] [RUN]",
        description=(
            "Shows a run as it goes on: what its last steps spend their time on, rates, progress,"
            " verdict. The key q ends the watching; the run goes on. Of a run that has ended the"
            " last picture is printed; one picture too where there is no terminal."
        ),
    )
    parser.add_argument("RUN", nargs="?", help="the run directory (default: voirkit-runs/latest)")
    parser.add_argument("--once", action="store_true", help="print one picture and end")
    return parser
