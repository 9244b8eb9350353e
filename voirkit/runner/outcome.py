"""How a run ends, and what goes wrong in an instrument, in words for its author.

An instrument's failure never reaches the program, nor keeps others from their end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from voirkit.errors import EXIT_CHECK_FAILED, InstrumentError, VoirkitError, misspelt
from voirkit.instrument import name_of, place_of
from voirkit.phases import NotAPhase
from voirkit.runner.script import current_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Outcome:
    """How the run of a program ended.

    Attributes:
        ended: ``normal``, ``exit``, ``exception`` or ``signal``.
        script_exit_code: The script's own, as the shell sees it.
        is_refused: Whether something wrong was found before the script started.
        failures: Checks that failed.
    """

    def __init__(self) -> None:
        self.ended, self.script_exit_code = "exception", 1  # until it has come to its end
        self.is_refused = False
        self.failures: list[str] = []

    @property
    def exit_code(self) -> int:
        """The script's own, or 3 if that is 0 and a check failed."""
        return EXIT_CHECK_FAILED if self.failures and self.script_exit_code == 0 else self.script_exit_code

    def end_normally(self) -> None:
        """The program came to its end, or was stopped by an instrument."""
        self.ended, self.script_exit_code = "normal", 0

    def end_by(self, exc: BaseException) -> None:
        """An exception ended the program."""
        if isinstance(exc, SystemExit):
            code = exc.code
            self.ended, self.script_exit_code = "exit", 0 if code is None else code & 0xFF if isinstance(code, int) else 1
        elif isinstance(exc, KeyboardInterrupt):
            self.ended, self.script_exit_code = "signal", 130  # 128 + SIGINT
        else:
            self.ended, self.script_exit_code = "exception", exc.exit_code if isinstance(exc, VoirkitError) else 1


def describe_instrument(instrument: Any) -> str:
    """An instrument's name, and where it is defined."""
    place = place_of(instrument)
    return f"{name_of(instrument)} ({shorten(place)})" if place else name_of(instrument)


def shorten(path: str) -> str:
    """A path relative to the current folder, if it is below that."""
    return path.removeprefix(current_folder() + os.sep)


def text_of(exc: BaseException) -> str:
    """What an exception says, if it can."""
    try:
        return str(exc)
    except Exception:
        return ""


def as_error(exc: BaseException, instrument: Any) -> VoirkitError:
    """What an instrument raised, as an error that names it and the place."""
    if isinstance(exc, VoirkitError):
        return exc
    name, place = name_of(instrument), place_of(instrument)
    if isinstance(exc, NotAPhase):
        hint = "Write: yield ov.phases.init, parse_args, load_script, run_script or finalize"
        what = f"instrument {name} yielded {type(exc.args[0]).__name__}, which is not a phase."
        return InstrumentError(what, where=shorten(place), next=hint)
    tb, raised_at = exc.__traceback__, place
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if not file.startswith(_PACKAGE):
            raised_at = f"{file}:{tb.tb_lineno}"
            if place and file == place.rpartition(":")[0]:
                place = raised_at
        tb = tb.tb_next
    text = f"{type(exc).__name__}: {text_of(exc)}".rstrip(": ")
    hints = [misspelt(exc), f"It was raised at {raised_at}." if raised_at != place else ""]
    return InstrumentError(f"instrument {name} raised {text}.", where=shorten(place), next="\n".join(filter(None, hints)))


def run_all(steps: Iterable[Callable[[], object]], warn: Callable[[str], None]) -> None:
    """Take all steps, whatever one of them raises."""
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as exc:
            if first is not None:
                warn(f"at the end of the run there was also {type(exc).__name__}: {text_of(exc)}".rstrip(": "))
            first = first or exc
    if first is not None:
        raise first
