"""Numbers of loaders and of their iterators' episodes, 0, 1, ...: the same for all instruments of a run that speak of loaders.

An episode is what one ``iter(loader)`` begins: most often an epoch, or its validation.
"""

from __future__ import annotations

import sys
import weakref
from itertools import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any


class Ordinals:
    """Numbers objects as they come, 0, 1, ..., without keeping them alive, hashing or comparing them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}
        self._next = 0

    def of(self, thing: object) -> int:
        """The number of an object.

        Raises:
            TypeError: It cannot be referred to weakly.
        """
        key = id(thing)
        known = self._known.get(key)
        if known is None or known[0]() is not thing:
            known = self._known[key] = (weakref.ref(thing, forgetting(self._known, key)), self._next)
            self._next += 1
        return known[1]


def forgetting(table: dict[int, Any], key: int) -> Callable[[Any], None]:
    """Drops an entry, whose first part refers to an object weakly, when that object is gone."""

    def forget(reference: Any) -> None:
        if key in table and table[key][0] is reference:
            del table[key]

    return forget


class LoaderNumbers:
    """Of one run, in one process and those that are forked from it."""

    def __init__(self) -> None:
        self._loaders = Ordinals()
        self._episodes = count()
        self._begun: dict[int, tuple[Any, int]] = {}  # by identity of an iterator: itself, and the episode that nobody has settled yet

    def loader(self, loader: object) -> int:
        """The number of a loader."""
        return self._loaders.of(loader)

    def begin_episode(self, iterator: object) -> int:
        """An iterator is being made, or begins again: the number of its episode."""
        episode = next(self._episodes)
        self._begun[id(iterator)] = (weakref.ref(iterator, forgetting(self._begun, id(iterator))), episode)
        return episode

    def episode(self, iterator: object) -> int:
        """An iterator has been made, or has begun again: the number that ``begin_episode`` gave, or a new one if that was not called."""
        known = self._begun.pop(id(iterator), None)
        return known[1] if known is not None and known[0]() is iterator else next(self._episodes)


_LOADERS = ("torch.utils.data.dataloader", "torchdata.stateful_dataloader.stateful_dataloader")


def is_starting_worker() -> bool:
    """Whether a loader is about to start a worker, in this thread; true in a worker that has just been forked as well."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in _LOADERS:
            return True
        frame = frame.f_back
    return False
