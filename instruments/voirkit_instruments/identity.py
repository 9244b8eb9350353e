"""Values and numbers for objects of the program, by identity; the objects are not kept alive.

Loaders and the episodes of their iterators are numbered in this way. All instruments of a run that
report on loaders use the same numbers. An episode is one pass that ``iter(loader)`` begins: usually
an epoch of training, or a validation.
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
    """A map from objects to values. The objects are not kept alive, hashed or compared."""

    def __init__(self) -> None:
        # by id of the object: a weak reference to it, and its value
        self._entries: dict[int, tuple[Any, Any]] = {}

    def __setitem__(self, thing: object, value: object) -> None:
        """Set the value of an object. Raises TypeError: the object cannot be weakly referenced."""
        key, entries = id(thing), self._entries

        def forget(reference: Any) -> None:
            if key in entries and entries[key][0] is reference:
                del entries[key]

        entries[key] = (weakref.ref(thing, forget), value)

    def get(self, thing: object) -> Any:
        """Return the value of an object; None if it has none."""
        entry = self._entries.get(id(thing))
        if entry is None:
            return None
        reference, value = entry
        return value if reference() is thing else None

    def items(self) -> list[tuple[Any, Any]]:
        """Return the objects that are alive, with their values."""
        return [
            (thing, value)
            for reference, value in list(self._entries.values())
            if (thing := reference()) is not None
        ]


class Ordinals:
    """Numbers for objects in order of first use, 0, 1, ...; the objects are not kept alive, hashed
    or compared."""

    def __init__(self) -> None:
        self._known = IdentityMap()
        self._next = 0

    def of(self, thing: object) -> int:
        """Return the number of an object. Raises TypeError: it cannot be weakly referenced."""
        number: int | None = self._known.get(thing)
        if number is None:
            number = self._known[thing] = self._next
            self._next += 1
        return number


class LoaderNumbers:
    """Numbers of the loaders and episodes of one run, in one process and those forked from it."""

    def __init__(self) -> None:
        self._loaders = Ordinals()
        self._episodes = count()
        # by iterator: the number of its newest episode; None once ``episode`` has returned it
        self._begun = IdentityMap()

    def loader(self, loader: object) -> int:
        return self._loaders.of(loader)

    def begin_episode(self, iterator: object) -> int:
        """Return the number of a new episode, when an iterator is made or begins again."""
        episode = self._begun[iterator] = next(self._episodes)
        return episode

    def episode(self, iterator: object) -> int:
        """Return the episode of an iterator that has been made, or has begun again: the number that
        ``begin_episode`` gave, or a new one if that was not called."""
        episode: int | None = self._begun.get(iterator)
        if episode is None:
            return next(self._episodes)
        self._begun[iterator] = None
        return episode


_LOADERS = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader.stateful_dataloader")


def is_starting_worker() -> bool:
    """True if this thread is inside a loader that starts a worker, or in a worker that was just
    forked."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in _LOADERS:
            return True
        frame = frame.f_back
    return False
