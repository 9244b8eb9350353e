"""Instruments of which a run has one: started by a flag and by a voirfile too, or twice by voirfiles, it is the first that records."""

from __future__ import annotations

from functools import wraps
from reprlib import repr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from voirkit.runner.overseer import Overseer

    Instrument = Callable[..., Any]


class _Started(dict[str, str]):
    """The instruments that a run has started: the flag, and how it was asked for."""


def once(flag: str) -> Callable[[Instrument], Instrument]:
    """Have an instrument run once in a run: whoever starts it again is told which one runs, and nothing else happens.

    Two that record the same would record it twice, or each the other, or into one file. It stands below ``instrument_definition``.

    Args:
        flag: What the instrument is known by to the user.
    """

    def decorate(instrument: Instrument) -> Instrument:
        @wraps(instrument)
        def start(ov: Overseer, *args: Any, **kwargs: Any) -> Any:
            taken, asked = ov.shared(_Started), _as_called(instrument.__name__, args, kwargs)
            if flag in taken:
                ov.warn(
                    f"{flag}: it is started twice, by the flag and a voirfile, or by voirfiles.\n"
                    f"  {taken[flag]} is what runs; {asked} does nothing."
                )
                return None
            taken[flag] = asked
            return instrument(ov, *args, **kwargs)

        return start

    return decorate


def started(ov: Overseer, flag: str) -> bool:
    """Whether an instrument has been started in a run, by its flag or a voirfile."""
    return flag in ov.shared(_Started)


def _as_called(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return f"{name}({', '.join([*map(repr, args), *(f'{key}={repr(value)}' for key, value in kwargs.items())])})"
