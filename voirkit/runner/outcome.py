"""What goes wrong in an instrument, in words for its author; and how the run of a program ended.

An instrument's failure never reaches the program, nor keeps others from their end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from voirkit.errors import InstrumentError, VoirkitError, misspelt
from voirkit.phases import NotAPhase
from voirkit.runner.script import current_folder
from voirkit.runner.voirfiles import name_of, place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def described(instrument: Any) -> str:
    """An instrument's name, and where it stands."""
    place = place_of(instrument)
    return f"{name_of(instrument)} ({shown(place)})" if place else name_of(instrument)


def shown(path: str) -> str:
    """A path as short as it is clear: relative if it is below the current folder."""
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
        wanted = "yield ov.phases.init, parse_args, load_script, run_script or finalize"
        return InstrumentError(f"instrument {name} yielded {type(exc.args[0]).__name__}, which is not a phase.",
                               where=shown(place), next=f"Write: {wanted}")  # fmt: skip
    tb, at = exc.__traceback__, place
    while tb is not None:
        if not tb.tb_frame.f_code.co_filename.startswith(_HERE):
            at = f"{tb.tb_frame.f_code.co_filename}:{tb.tb_lineno}"
            if place and tb.tb_frame.f_code.co_filename == place.rpartition(":")[0]:
                place = at
        tb = tb.tb_next
    text = f"{type(exc).__name__}: {text_of(exc)}".rstrip(": ")
    deeper = f"It was raised at {at}." if at != place else ""
    deeper = "\n".join(filter(None, (misspelt(exc), deeper)))
    return InstrumentError(f"instrument {name} raised {text}.", where=shown(place), next=deeper)


def how_it_ended(exc: BaseException) -> tuple[str, int]:
    """(``ended``, exit code as the shell sees it) of a program that an exception ended."""
    if isinstance(exc, SystemExit):
        code = exc.code
        if code is None:
            return "exit", 0
        return "exit", code & 0xFF if isinstance(code, int) else 1
    if isinstance(exc, KeyboardInterrupt):
        return "signal", 130  # 128 + SIGINT
    return "exception", exc.exit_code if isinstance(exc, VoirkitError) else 1


def do_all(steps: Iterable[Callable[[], object]], tell: Callable[[str], None]) -> None:
    """Take all steps, whatever one of them raises.

    Raises:
        BaseException: The first that a step raised; the others are told.
    """
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as exc:
            if first is not None:
                tell(f"at the end of the run there was also {type(exc).__name__}: {text_of(exc)}".rstrip(": "))
            first = first or exc
    if first is not None:
        raise first
