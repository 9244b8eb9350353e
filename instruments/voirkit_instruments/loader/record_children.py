"""The loader instrument in the processes of a run: in the one that trains, and in those that multiprocessing starts anew to load data.

Such a process is handed, with what it is to do, the operations that the user named and the episode whose worker it is.
"""

from __future__ import annotations

from voirkit_instruments.loader.record_spans import Episode, Recording
from voirkit_instruments.loader.record_torch import LoaderTorch
from voirkit_instruments.loader_numbers import LoaderNumbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

BEGIN = "voirkit_instruments.loader.record_children:begin"

_here: tuple[LoaderTorch, list[str]] | None = None


def watched(recorder: Any, warn: Callable[[str], None], numbers: LoaderNumbers, named: Sequence[str]) -> LoaderTorch:
    """Begin in this process."""
    global _here
    made = LoaderTorch(Recording(recorder, warn, numbers), named)
    _here = made, list(named)
    made.put()
    return made


def offered() -> dict[str, Any] | None:
    """What a process needs that is started anew from this thread."""
    if _here is None:
        return None
    torch, named = _here
    making = torch.recording.here.making
    return {"named": named, "place": None if making is None else making.place}


def begin(offer: dict[str, Any]) -> None:
    """In such a process: record as the parent does."""
    from voirkit.processes.children import this_process
    from voirkit.trace import recorder

    if _here is not None or not recorder.is_recording():
        return
    process = this_process()
    made = watched(recorder, process.warn, process.shared(LoaderNumbers), offer["named"])  # the steps of this process have the same numbers
    place = offer["place"]
    if place is not None:
        made.recording.here.making = Episode(place["loader"], place["episode"])
