"""Recorder of data loaders for the steps instrument: creation of their iterators, each request for
a batch, and the request that finds no batch left.

It reads attributes of torch's own loaders and iterators only, and avoids attributes that may run
code of the program. The exception is the length of a dataset whose ``__len__`` plainly only reads
attributes. Checked with torch 2.1 and 2.15.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from hashlib import blake2b
from typing import Any

from voirkit.probes.around import ABSENT
from voirkit.trace.layout import BATCH_KIND
from voirkit_instruments.identity import IdentityMap, Ordinals
from voirkit_instruments.steps.batch_sizes import batches
from voirkit_instruments.steps.record_phases import now
from voirkit_instruments.steps.record_spans import UNKNOWN, Recording


class Episode:
    """One pass over a loader, from the creation of its iterator to its end.

    Attributes:
        ref: Weak reference to the iterator.
        args: Number of the interned ``place``.
        place: The arguments of the iterator's records: its loader and episode numbers.
        began_ns: When the iterator was created.
        before: Number of backward passes and optimizer steps, and of module calls, until then.
        since_ns: When the next loop began, if this loop only evaluates and has not requested a
            batch since. The program may keep the iterator long after the loop has ended.
    """

    __slots__ = ("args", "before", "began_ns", "over", "pid", "place", "ref", "since_ns")

    def __init__(
        self, ref: Any, args: int, place: dict[str, Any], began_ns: int, before: tuple[int, int]
    ) -> None:
        self.ref = ref
        self.args = args
        self.place = place
        self.began_ns = began_ns
        self.before = before
        self.pid = os.getpid()
        self.over = False  # True once the end of the episode has been recorded
        self.since_ns: int | None = None


class LoaderRecording:
    """Writer of data loader activity into the trace.

    When a loop over a loader is over, it becomes a span: ``pipeline.epoch`` if the loop trained,
    ``pipeline.evaluate`` if it only called models. A loop ends with the request that finds no
    batch, or when its iterator is released (``break``). If an iterator is released before any
    training or model call (``batch = next(iter(loader))``), a ``dataloader.left`` record is
    written: its batch may still be used for training later.

    Args:
        recording: The state of the steps instrument, which this object is a part of.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._here = recording.hot.here
        self._span = recording.recorder.span
        self._arguments = recording.recorder.arguments
        self._iter = recording.phase("dataloader", "iter")
        self._fetch = recording.phase("dataloader", "fetch", "items")
        self._end = recording.phase("dataloader", "end")
        self._left = recording.phase("dataloader", "left")
        self._epoch = recording.phase("pipeline", "epoch")
        self._evaluate = recording.phase("pipeline", "evaluate")
        self._train = recording.phase("pipeline", "train")
        self._queue = recording.phase("dataloader", "queue", "got")
        self._indices = recording.recorder.name(
            "dataloader", "indices", kind=BATCH_KIND, value="digest"
        )
        self._start = recording.phase("dataloader", "start_workers")
        self._stop = recording.phase("dataloader", "stop_workers")
        # by id of an iterator: when the start of its workers began, and the record's interned
        # arguments
        self._starting: dict[int, tuple[int, int]] = {}
        self._workers = IdentityMap()  # interned arguments, by iterator with workers
        # threads other than the main one that have iterated over loaders
        self._elsewhere: set[int] = set()
        self._trained: tuple[int, int] | None = None  # start of the first epoch, end of the last
        self._numbers = recording.numbers
        self._iterators: dict[int, Episode] = {}  # by id of the iterator

    def _leave_iter(self, start_ns: int, was: int, loader: Any, iterator: Any) -> None:
        end = now()
        self._here.inside = was
        if not start_ns:
            return
        try:
            number = self._numbers.loader(loader)
            if iterator is ABSENT:
                place: dict[str, Any] = {"loader": number, **_error()}
            else:
                place = {"loader": number, "episode": self._numbers.episode(iterator)}
                # Cached descriptions are dropped: with persistent workers the iterator may be a
                # reused one.
                self._recording.hot.forget()
                self._next_loop(start_ns)
                self._start_episode(iterator, place, start_ns)
            # Function modes and subclasses are off: a dataset's length may come from a tensor.
            with self._recording.torch._C.DisableTorchFunction():
                description = _described(loader)
            self._span(self._iter, start_ns, end, self._arguments({**place, **description}))
        except Exception as exc:  # a length or attribute that the program computes may raise
            self._recording.failed("a loader's iterator", exc)

    def after_iter(self) -> Any:
        """Return the callback to run after ``DataLoader.__iter__``, where an iterator was created
        or restarted."""

        def leave(start_ns: int, was: int, loader: Any, iterator: Any) -> None:
            self._leave_iter(start_ns, was, loader, iterator)

        return leave

    def after_init(self) -> Any:
        """Return the callback to run after the ``__init__`` of a loader's iterator. It covers
        iterators that were not made by ``DataLoader.__iter__``: the loader caches them, or is not
        torch's."""

        def leave(start_ns: int, was: int, iterator: Any, loader: Any) -> None:
            # In torch 2.1 to 2.15, ``__init__`` sets ``_base_seed`` last before the part that may
            # fail.
            is_made = "_base_seed" in getattr(iterator, "__dict__", {})
            self._leave_iter(start_ns, was, loader, iterator if is_made else ABSENT)

        return leave

    def after_next(self) -> Any:
        """Return the callback to run after a loader's iterator was asked for a batch."""
        recording, span, intern = self._recording, self._span, self._arguments
        fetch, end_of_data = self._fetch, self._end

        def describe(iterator: Any) -> tuple[int, int]:
            self._note_thread()
            return fetch, self._episode_of(iterator).args

        def other(start_ns: int, end: int, iterator: Any, batch: Any) -> None:
            try:
                self._note_thread()
                episode = self._episode_of(iterator)
                if batch is not ABSENT:
                    name, args, value = fetch, episode.args, recording.items(batch)
                    self._here.items = value
                else:
                    error = sys.exc_info()[0]
                    if error is not None and issubclass(error, StopIteration):
                        name, args, value = end_of_data, episode.args, 0
                    else:
                        name, args, value = fetch, intern({**episode.place, **_error()}), UNKNOWN
            except Exception as exc:  # another library's iterator may not support weak references
                recording.failed("a batch", exc)
            else:
                span(name, start_ns, end, args, value)
                if name == end_of_data:
                    self._over(episode, start_ns, is_left=False)

        torch = recording.torch
        modes = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
        return recording.hot.leave_fetch(describe, other, torch.Tensor, modes)

    def before_start(self) -> tuple[Any, Any]:
        """Return the callbacks around ``_BaseDataLoaderIter.__init__``. An iterator with workers
        starts them after it."""
        thread = self._here

        def leave(start_ns: int, was: int, iterator: Any, loader: Any) -> None:
            thread.inside = was
            try:
                workers = vars(iterator).get("_num_workers")
                if workers:
                    description = {"loader": self._numbers.loader(loader), "processes": workers}
                    self._starting[id(iterator)] = now(), self._arguments(description)
            except Exception as exc:  # another library's loader: its workers are not recorded
                self._recording.failed("workers that start", exc)

        return _always, leave

    def after_start(self) -> tuple[Any, Any]:
        """Return the callbacks around ``_BaseDataLoaderIter._reset``, which sends newly started
        workers their first indices."""
        thread = self._here

        def enter(iterator: Any, first_iter: Any) -> int:
            try:
                starting = self._starting.pop(id(iterator), None)
                if starting is not None and first_iter:
                    start_ns, args = starting
                    self._workers[iterator] = args
                    self._span(self._start, start_ns, now(), args)
            except Exception as exc:  # another library's iterator may not support weak references
                self._recording.failed("the start of workers", exc)
            return 1

        def leave(start_ns: int, was: int, iterator: Any, first_iter: Any) -> None:
            thread.inside = was

        return enter, leave

    def around_stop(self) -> tuple[Any, Any]:
        """Return the callbacks around ``_shutdown_workers``. It runs again when the iterator is
        released; only the first call is recorded."""
        thread = self._here

        def enter(iterator: Any) -> int:
            return 0 if vars(iterator).get("_shutdown", True) else now()

        def leave(start_ns: int, was: int, iterator: Any) -> None:
            end = now()
            thread.inside = was
            if not start_ns:
                return
            try:
                self._span(self._stop, start_ns, end, self._workers.get(iterator) or 0)
            except Exception as exc:  # another library's iterator may lack these attributes
                self._recording.failed("the stop of workers", exc)

        return enter, leave

    def after_indices(self) -> Any:
        """Return the callback to run after the sampler of a map-style loader has returned the
        indices of a batch. It records a digest of the indices, within the request for the batch.
        For iterable datasets no indices exist at this point."""

        def other(indices: Any) -> None:
            try:
                text = _as_text(indices)
                if text is not None:
                    at_ns = now()
                    self._span(self._indices, at_ns, at_ns, 0, _digest(text))
            except Exception as exc:  # the program's own sampler may return anything
                self._recording.failed("indices of a batch", exc)

        return self._recording.hot.leave_indices(self._indices, other)

    def after_get(self) -> Any:
        """Return the callback to run after ``queue.Queue.get``. The call counts as a wait for a
        batch if another thread iterates over a loader and passes batches on through queues."""
        thread, span, name = self._here, self._span, self._queue
        elsewhere, ident = self._elsewhere, threading.get_ident
        ordinals = Ordinals()
        arguments: dict[int, int] = {}  # interned arguments, by number of the queue

        def describe(queue: Any) -> int:
            number = ordinals.of(queue)
            if number not in arguments:
                arguments[number] = self._arguments({"queue": number})
            return arguments[number]

        def leave(start_ns: int, was: int, queue: Any, got: Any) -> None:
            end = now()
            thread.inside = was
            if not start_ns or not elsewhere or ident() in elsewhere:
                return
            try:
                args = describe(queue)
            except Exception as exc:  # another library's queue may not support weak references
                self._recording.failed("a get from a queue", exc)
            else:
                span(name, start_ns, end, args, int(got is not ABSENT))

        return leave

    def _note_thread(self) -> None:
        """Record that this thread requests batches from loaders, if it is not the main thread.
        Objects that other threads get from queues may then be these batches."""
        ident = threading.get_ident()
        if ident != threading.main_thread().ident:
            self._elsewhere.add(ident)

    def _episode_of(self, iterator: Any) -> Episode:
        episode = self._iterators.get(id(iterator))
        if episode is None or episode.ref() is not iterator:
            # The iterator was made before recording began, or in an unknown way: its loader is
            # unknown.
            episode = self._start_episode(
                iterator, {"loader": None, "episode": self._numbers.episode(iterator)}, now()
            )
        episode.since_ns = None
        return episode

    def _start_episode(self, iterator: Any, place: dict[str, Any], began_ns: int) -> Episode:
        key = id(iterator)
        before = self._iterators.get(key)
        if before is not None:
            self._over(before, began_ns)
        episode = Episode(None, self._arguments(place), place, began_ns, self._progress_since())
        episode.ref = weakref.ref(iterator, self._letting_go(key))
        self._iterators[key] = episode
        return episode

    def _letting_go(self, key: int) -> Any:
        def let_go(reference: Any) -> None:
            episode = self._iterators.get(key)
            if episode is not None and episode.ref is reference:
                del self._iterators[key]
                self._over(episode, now())

        return let_go

    def _next_loop(self, began_ns: int) -> None:
        for episode in list(self._iterators.values()):
            trained, called = self._progress_since(episode.before)
            if called and not trained and episode.since_ns is None:
                episode.since_ns = began_ns

    def _progress_since(self, before: tuple[int, int] = (0, 0)) -> tuple[int, int]:
        """Return how many backward passes and optimizer steps, and how many module calls, were
        recorded since ``before``."""
        hot = self._recording.hot
        return hot.trained - before[0], hot.called - before[1]

    def _over(self, episode: Episode, end_ns: int, is_left: bool = True) -> None:
        """Record a finished loop as a span of the pipeline, at most once. ``is_left``: True if its
        iterator was released before its data ended."""
        if episode.over or episode.pid != os.getpid():
            return
        episode.over = True
        try:
            trained, called = self._progress_since(episode.before)
            if episode.since_ns is not None:
                self._span(self._evaluate, episode.began_ns, episode.since_ns, episode.args)
            elif trained:
                self._span(self._epoch, episode.began_ns, end_ns, episode.args)
                start_ns = episode.began_ns
                if self._trained is not None:
                    start_ns = min(self._trained[0], start_ns)
                # The time is taken last, so that the training's span encloses those of its epochs.
                self._trained = start_ns, now()
            elif called:
                self._span(self._evaluate, episode.began_ns, end_ns, episode.args)
            elif is_left:
                self._span(self._left, end_ns, end_ns, episode.args)
        except Exception as exc:  # runs while an iterator is released: it must not raise
            self._recording.failed("an epoch", exc)

    def finish(self, completed: bool) -> None:
        """Record the training as one span, when the program has ended. If the program
        ``completed``, loops that are still open end now."""
        open_ = sorted(self._iterators.values(), key=lambda episode: -episode.began_ns)
        self._iterators = {}
        if completed:
            for episode in open_:
                self._over(episode, now())
        if self._trained is not None:
            self._span(self._train, *self._trained)


def _always(*_: object) -> int:
    return 1


_MOST_NESTED = 4  # maximum nesting of indices, as of several datasets, or of a frame in a video


def _as_text(indices: Any, depth: int = 0) -> str | None:
    """Return the indices of a batch as a text that is the same in every run; None if their type is
    not known to allow it. Runs no code of the program."""
    kind = type(indices)
    if kind in (int, str, float, bool):
        return repr(indices)
    if kind.__module__ == "numpy" and getattr(kind, "__name__", "").startswith(("int", "uint")):
        return repr(int(indices))
    if kind in (list, tuple) and depth < _MOST_NESTED:
        texts = [_as_text(index, depth + 1) for index in indices]
        return None if None in texts else f"[{','.join(map(str, texts))}]"
    return None


def _digest(text: str) -> int:
    data = text.encode("utf-8", "backslashreplace")
    digest = blake2b(data, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _error() -> dict[str, Any]:
    error = sys.exc_info()[0]  # raised by the function that has just run
    return {"error": error.__name__ if error is not None else None}


def _described(loader: Any) -> dict[str, Any]:
    from torch.utils.data import DataLoader  # imported already: its iterators are in use

    if not isinstance(loader, DataLoader):
        return _described_by_attributes(loader)
    batch_size = loader.batch_size
    if not batch_size:
        batch_size = getattr(loader.batch_sampler, "__dict__", {}).get("batch_size")
    kind = type(loader.dataset)
    sampler = loader.__dict__.get("sampler")
    return {
        "workers": loader.num_workers,
        "batch_size": batch_size,
        "length": batches(loader),
        "dataset": kind.__name__,
        "pin_memory": bool(loader.pin_memory),
        "persistent": bool(loader.persistent_workers),
        "whole_batches": hasattr(kind, "__getitems__"),
        "sampler": type(sampler).__name__,
    }


def _described_by_attributes(loader: Any) -> dict[str, Any]:
    """Describe an object that torch's iterator was created from although it is not a torch
    ``DataLoader``. Only plain attributes are read. fastai (2.8) passes torch a stand-in that is its
    own dataset; the real loader is the stand-in's ``d``, and its batch size is ``bs``."""
    fields = getattr(loader, "__dict__", {})
    behind = getattr(fields.get("d"), "__dict__", {}) if fields.get("dataset") is loader else {}
    dataset = behind.get("dataset", fields.get("dataset"))
    sizes = (fields.get("batch_size"), behind.get("bs"))
    batch_size = next((size for size in sizes if type(size) is int), None)
    return {
        "workers": fields.get("num_workers"),
        "batch_size": batch_size,
        "length": None,
        "dataset": type(dataset).__name__,
        "pin_memory": fields.get("pin_memory") is True,
    }
