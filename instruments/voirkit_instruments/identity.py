"""Objects of the program by their identity, none of them kept alive: values by object, and numbers
for objects as they come.

Loaders and their iterators' episodes are numbered so, the same for all instruments of a run that
speak of loaders. An episode is what one ``iter(loader)`` begins: most often an epoch, or its
validation.
"""

from __future__ import annotations

import sys
import weakref
from itertools import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any


class IdentityMap:
    """Values by objects that are not kept alive, hashed or compared."""

    def __init__(self) -> None:
        # by identity: a reference to the object, and the value
        self._entries: dict[int, tuple[Any, Any]] = {}

    def __setitem__(self, thing: object, value: object) -> None:
        """As of a dictionary. Raises TypeError: it cannot be referred to weakly."""
        key, entries = id(thing), self._entries

        def forget(reference: Any) -> None:
            if key in entries and entries[key][0] is reference:
                del entries[key]

        entries[key] = (weakref.ref(thing, forget), value)

    def get(self, thing: object) -> Any:
        """The value of an object; None without."""
        entry = self._entries.get(id(thing))
        if entry is None:
            return None
        reference, value = entry
        return value if reference() is thing else None

    def items(self) -> list[tuple[Any, Any]]:
        """The objects that are alive, and their values."""
        return [
            (thing, value)
            for reference, value in list(self._entries.values())
            if (thing := reference()) is not None
        ]


class Ordinals:
    """Numbers objects as they come, 0, 1, ..., without keeping them alive, hashing or comparing
    them."""

    def __init__(self) -> None:
        self._known = IdentityMap()
        self._next = 0

    def of(self, thing: object) -> int:
        """The number of an object. Raises TypeError: it cannot be referred to weakly."""
        number: int | None = self._known.get(thing)
        if number is None:
            number = self._known[thing] = self._next
            self._next += 1
        return number


class LoaderNumbers:
    """Of one run, in one process and those that are forked from it."""

    def __init__(self) -> None:
        self._loaders = Ordinals()
        self._episodes = count()
        self._begun = IdentityMap()  # of an iterator the episode that nobody has settled yet

    def loader(self, loader: object) -> int:
        return self._loaders.of(loader)

    def begin_episode(self, iterator: object) -> int:
        """An iterator is being made, or begins again: the number of its episode."""
        episode = self._begun[iterator] = next(self._episodes)
        return episode

    def episode(self, iterator: object) -> int:
        """An iterator has been made, or has begun again: the number that ``begin_episode`` gave, or
        a new one if that was not called."""
        episode: int | None = self._begun.get(iterator)
        if episode is None:
            return next(self._episodes)
        self._begun[iterator] = None
        return episode


_LOADERS = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader.stateful_dataloader")


def is_starting_worker() -> bool:
    """Whether a loader is about to start a worker, in this thread; true in a worker that has just
    been forked as well."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in _LOADERS:
            return True
        frame = frame.f_back
    return False
