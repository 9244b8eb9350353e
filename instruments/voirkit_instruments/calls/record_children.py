"""The calls instrument in the processes of a run: the one that trains, forked children, and those that multiprocessing starts anew."""

from __future__ import annotations

from voirkit_instruments.calls.record_tracing import NOT_BUILT, Tracing, engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

BEGIN = "voirkit_instruments.calls.record_children:begin"

_here: Tracing | None = None


def watched(recorder: Any, warn: Callable[[str], None], asked: Sequence[str], every: int, warmup: int) -> Tracing | None:
    """Begin in this process; None, and a warning, where the engine was not built."""
    global _here
    in_c = engine()
    if in_c is None:
        warn(f"{NOT_BUILT}\n  The run goes on without it.")
        return None
    _here = Tracing(in_c, recorder, warn, asked, every, warmup)
    _here.begin()
    return _here


def offered() -> dict[str, Any] | None:
    """What a process needs that is started anew from here."""
    return None if _here is None or _here.over else {"asked": list(_here.asked), "every": _here.every, "warmup": _here.warmup}


def begin(offer: dict[str, Any]) -> None:
    """In such a process: record as the parent does."""
    from voirkit.errors import tell
    from voirkit.trace import recorder

    if _here is None and recorder.is_recording():
        watched(recorder, tell, **offer)
