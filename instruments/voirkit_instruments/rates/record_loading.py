"""The time that a script waits for its batches: inside the iterators of the loaders it has given.

Never changes what the program sees: iterators are not replaced, only methods written in Python are wrapped, in place
and reversibly. What is written in C, and a generator, cannot be timed that way, which is reported.

Checked with torch 2.1 to 2.15 (``_BaseDataLoaderIter._next_data``, all of ``__next__`` but the profiler's range.
``__next__`` itself warns with ``stacklevel=2``: were it wrapped, that warning would name this file instead of the
user's line).
"""

from __future__ import annotations

import inspect
import time
import weakref

from voirkit.intercept import Patches, without_this_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Arrived = Callable[[str | None, int, int, object], None]


class LoaderWatch:
    """Times the batches of the loaders that it is shown, in any thread.

    Args:
        arrived: Called with the task, begin and end (``time.perf_counter_ns()``) and the batch, in the thread that
            asked for it.
        warn: Takes a sentence about a loader that cannot be observed; said once for each type.
    """

    def __init__(self, arrived: Arrived, warn: Callable[[str], None]) -> None:
        self._arrived = arrived
        self._warn = warn
        self._patches = Patches()
        self._loaders: dict[int, tuple[Callable[[], object], str | None]] = {}
        self._iterators: dict[int, tuple[Callable[[], object], str | None]] = {}
        self._asking: set[int] = set()  # iterators inside their method, which may call the one it overrides
        self._unobserved: set[str] = set()
        self._batches = 0
        self._seen: set[str] = set()

    @property
    def patches(self) -> list[str]:
        """The methods that are wrapped now."""
        return self._patches.names

    def watch(self, loader: object, task: str | None = None) -> None:
        """Time the iterators that this object makes from now on, and the one that it is or keeps."""
        kind = type(loader)
        self._seen.add(kind.__qualname__)
        reference = _reference(loader)
        if reference is None:
            self._report_unobservable(loader, "it is a built-in object")
            return
        self._loaders[id(loader)] = (reference, task)
        if hasattr(kind, "__next__"):
            self._watch_iterator(loader, task)
            return
        made = [(owner, vars(owner)["__iter__"]) for owner in kind.__mro__ if "__iter__" in vars(owner)]
        observable = [owner for owner, method in made if not inspect.isgeneratorfunction(method)]
        # Every class that may be asked, since one that overrides __iter__ usually calls the one it overrides (as
        # accelerate does).
        if not [owner for owner in observable if self._patches.wrap(owner, "__iter__", self._iter)]:
            self._report_unobservable(loader, "its __iter__ is a generator function" if made else "it has no __iter__ written in Python")
        kept = getattr(loader, "_iterator", None)  # a DataLoader with persistent workers reuses its first iterator
        if kept is not None and hasattr(type(kept), "__next__"):
            self._watch_iterator(kept, task)

    def remove(self) -> None:
        """Stop timing, and say so if nothing could be timed."""
        self._patches.remove()
        if self._seen and not self._batches and not self._unobserved:
            kinds = ", ".join(sorted(self._seen))
            self._warn(f"no batch of the given loader ({kinds}) was seen: was it iterated after it was given?")
        self._loaders.clear()
        self._iterators.clear()

    def _report_unobservable(self, loader: object, because: str) -> None:
        name = type(loader).__qualname__
        if name not in self._unobserved:
            self._unobserved.add(name)
            self._warn(f"the loading time of a {name} cannot be observed without changing the program: {because}.")

    def _watch_iterator(self, iterator: object, task: str | None) -> None:
        reference = _reference(iterator)
        owner, name = _method_of_next(type(iterator))
        if reference is None or owner is None or not self._patches.wrap(owner, name, self._next):
            self._report_unobservable(iterator, "it is an iterator that is not written in Python")
            return
        for identity in [identity for identity, (alive, _) in self._iterators.items() if alive() is None]:
            del self._iterators[identity]  # those of earlier epochs
        self._iterators[id(iterator)] = (reference, task)

    def _iter(self, wrapped: Callable[..., Any], loader: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            iterator = wrapped(*args, **kwargs)
        except BaseException as exc:
            without_this_frame(exc)
            raise
        known = self._loaders.get(id(loader))
        if known is not None and known[0]() is loader:
            try:
                self._watch_iterator(iterator, known[1])
            except Exception as exc:  # whatever an odd class does when it is looked at
                self._report_unobservable(iterator, f"{type(exc).__name__}: {exc}")
        return iterator

    def _next(self, wrapped: Callable[..., Any], iterator: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        identity = id(iterator)
        known = self._iterators.get(identity)
        timed = known is not None and known[0]() is iterator and identity not in self._asking
        if timed:
            self._asking.add(identity)
        begin = time.perf_counter_ns()
        try:
            batch = wrapped(*args, **kwargs)
        except BaseException as exc:
            without_this_frame(exc)
            raise
        finally:
            end = time.perf_counter_ns()
            if timed:
                self._asking.discard(identity)
        if known is not None and timed:
            self._batches += 1
            try:
                self._arrived(known[1], begin, end, batch)
            except Exception as exc:  # never the program's
                self._warn(f"a batch could not be counted: {type(exc).__name__}: {exc}")
        return batch


def _reference(thing: object) -> Callable[[], object] | None:
    """A reference that does not keep the object alive, or None if its type allows none."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return None


def _method_of_next(kind: type) -> tuple[type | None, str]:
    """The class and the name of the method that does the work of ``next(iterator)``, if it is written in Python."""
    for owner in kind.__mro__:
        if "__next__" not in vars(owner):
            continue
        if owner.__module__ == "torch.utils.data.dataloader":
            for inner in kind.__mro__:
                if inspect.isfunction(vars(inner).get("_next_data")):
                    return inner, "_next_data"
        return (owner if inspect.isfunction(vars(owner)["__next__"]) else None), "__next__"
    return None, "__next__"
