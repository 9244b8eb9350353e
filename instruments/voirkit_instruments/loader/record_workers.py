"""Records how batches are prepared, in a worker or in the process that asks for them: idle time,
reading samples, collating them, putting the batch on the queue.

A worker prepares batches for an episode, one pass of an iterator over its loader. A forked worker
has the episode of the thread that forked it. A spawned worker gets it when the process starts
(``record.py``). A persistent worker gets the next episode with the message by which torch wakes it.

A sample (``item``) is an object that the outermost dataset returns, recorded under the requested
index; torch's own ``Subset`` does not count as outermost. A sample that this dataset reads from
another dataset is recorded as ``inner``, under the name of the other dataset's class. If a whole
batch is read at once, by ``__getitems__`` or with a list as index, the record's arguments have
``whole``. Checked with torch 2.1 and 2.15, torchdata 0.11.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import process_time_ns, thread_time_ns
from typing import Any

from voirkit.probes.around import ABSENT
from voirkit_instruments.identity import IdentityMap
from voirkit_instruments.loader.record_batches import (
    FETCH,
    ITEM,
    MAIN,
    PUTTING,
    UNKNOWN,
    WORKER,
    Episode,
    Recording,
    now,
)
from voirkit_instruments.loader.record_operations import chained_source, is_torch
from voirkit_instruments.steps.events import as_function

_SIZED, _SIZED_EVERY = 4, 64  # the size of the first 4 batches and of every 64th is recorded
_MOST_PARTS = 4096  # maximum number of objects in a batch that ``size`` looks at
_OBJECT = 16  # approximate number of bytes that pickle writes for a number
_CARRIED = "voirkit"  # the attribute of torch's ``_ResumeIteration`` that carries the episode


class Workers:
    """Callbacks around torch's functions that run in a worker, and around those that prepare
    batches in any process.

    Args:
        prepare: Called before a dataset is read, with the dataset, its collate function, and True
            if each sample is a batch. Returns ``Episode.source``.
    """

    def __init__(
        self, recording: Recording, prepare: Callable[[Any, Any, bool], dict[str, Any]]
    ) -> None:
        self._recording = recording
        self._prepare = prepare
        self._state = recording.state
        self._span = recording.span
        self._preprocess = recording.name("data", "preprocess", "batch")
        self._cpu = recording.name("data", "cpu", "cpu_ns")
        self._idle = recording.name("worker", "idle", "batch")
        self._put = recording.name("worker", "put", "batch")
        self._send, self._making, self._bytes, self._tensors = map(
            recording.cost, ("send_ns", "making_ns", "bytes", "tensors")
        )

    def around_loop(self) -> tuple[Any, Any]:
        """Return the callbacks around ``_worker_loop``."""
        state = self._state

        def enter(index_queue: Any, data_queue: Any, worker: int) -> int:
            try:
                state.inside = WORKER
                state.index_queue = index_queue
                state.data_queue = data_queue
                state.batch, state.idle, state.worked = UNKNOWN, 0, 0
                self._be(state.making or Episode(UNKNOWN, UNKNOWN), worker)
            except Exception as exc:  # another version of torch may differ; the program must go on
                self._recording.failed("a worker", exc)
            return 1

        def leave(start_ns: int, was: int) -> None:
            state.inside = was

        return enter, leave

    def _be(self, episode: Episode, worker: int) -> None:
        state = self._state
        self._recording.be_at(episode, worker)
        # Set on the class, these values hold in every thread: a dataset may read its samples in
        # threads that it starts.
        defaults: Any = type(state)
        defaults.inside, defaults.args, defaults.episode, defaults.worker, defaults.sources = (
            FETCH,
            state.args,
            episode,
            worker,
            state.sources,
        )

    def around_get(self) -> tuple[Any, Any]:
        """Return the callbacks around ``multiprocessing.queues.Queue.get``."""
        state, span, idle = self._state, self._span, self._idle

        def leave(start_ns: int, was: int, queue: Any, got: Any) -> None:
            if queue is not state.index_queue or not start_ns:
                return
            end = now()
            try:
                since = state.idle or start_ns
                if got is ABSENT:  # timeout: torch waits 5 s, then calls ``get`` again
                    state.idle = since
                    return
                state.idle = 0
                if type(got) is tuple and type(got[0]) is int:
                    state.batch = got[0]
                    if was == WORKER:
                        span(idle, since, end, state.args, got[0])
                elif was != WORKER:
                    # ``got`` is a worker's answer, which passes through the pinning thread
                    state.batch = UNKNOWN
                else:
                    carried = getattr(got, "__dict__", {}).get(_CARRIED)
                    if carried is not None:
                        episode = Episode(*carried)
                        if state.episode is not None:
                            episode.source = state.episode.source
                        self._be(episode, state.worker)
            except Exception as exc:  # another version of torch may differ; the program must go on
                self._recording.failed("a worker's queue", exc)

        return now, leave

    def around_put(self) -> tuple[Any, Any]:
        """Return the callbacks around ``multiprocessing.queues.Queue.put``."""
        state, span, number = self._state, self._span, self._put

        def leave(start_ns: int, was: int, queue: Any, item: Any) -> None:
            if was == PUTTING:
                state.sent = item
            elif queue is not state.data_queue or not start_ns:
                return
            elif type(item) is tuple and type(item[0]) is int:
                span(number, start_ns, now(), state.args, item[0])

        return now, leave

    def resume(self, original: Any) -> Any:
        """Return an ``__init__`` for ``_ResumeIteration`` that adds the episode that begins: the
        message carries it through the queue to the worker."""
        state = self._state

        def __init__(message: Any, *args: Any, **kwargs: Any) -> None:
            original(message, *args, **kwargs)
            if state.making is not None:
                object.__setattr__(message, _CARRIED, tuple(state.making.place.values()))

        return __init__

    # preparation of batches

    def preparing(self, dataset: Any, collate: Any, collates: bool) -> int:
        """Callback before a fetcher is made. ``collates``: False if each sample is a batch."""
        state = self._state
        try:
            source = self._prepare(dataset, collate, not collates)
            if state.inside == WORKER and state.episode is not None:
                state.episode.source = source
                self._be(state.episode, state.worker)
        except Exception as exc:  # another version of torch may differ; the program must go on
            self._recording.failed("what a dataset does", exc)
        return 1

    def around_fetch(self) -> tuple[Any, Any]:
        """Return the callbacks around ``_MapDatasetFetcher.fetch``."""
        state = self._state

        def enter() -> Any:
            state.inside, state.item, state.collates = FETCH, UNKNOWN, False
            return self.processor_ns(), now(), thread_time_ns()

        return enter, as_function(self._leave_fetch)

    def processor_ns(self) -> int:
        """Return the CPU time used so far: in a worker by all threads of the process, in other
        processes by this thread."""
        return thread_time_ns() if self._state.worker == MAIN else process_time_ns()

    def _leave_fetch(self, entered: Any, was: int, got: Any) -> None:
        """Record a batch that has been prepared.

        Args:
            entered: Three values from its beginning: ``processor_ns()``, the time, and the CPU
                time of this thread.
            was: The value of ``inside`` before.
            got: The batch, or ``ABSENT`` if an exception was raised.
        """
        end = now()
        state = self._state
        state.inside, state.item = was, UNKNOWN
        if not entered:
            return
        try:
            worked = self.processor_ns() - entered[0]
            args, episode = state.args, state.episode
            if episode is None:
                return  # the fetcher belongs to no loader
            if got is ABSENT:
                error = (sys.exc_info()[0] or BaseException).__name__
                args = self._recording.arguments_of(
                    episode, worker=state.worker, **episode.source, error=error
                )
            self._span(self._preprocess, entered[1], end, args, state.batch)
            self._span(self._cpu, end, end, args, worked)
            if state.worker != MAIN:
                self._span(self._making, end, end, args, thread_time_ns() - entered[2])
                # CPU time of all threads since the last batch: for sending that batch, and for
                # getting the number of this one
                if state.worked:
                    self._span(self._send, end, end, args, entered[0] - state.worked)
            if got is not ABSENT and (state.batch < _SIZED or not state.batch % _SIZED_EVERY):
                n_bytes, tensors = size(got)
                self._span(self._bytes, end, end, args, n_bytes)
                self._span(self._tensors, end, end, args, tensors)
            if state.worker != MAIN:
                state.worked = self.processor_ns()
        except Exception as exc:  # another version of torch may differ; the program must go on
            self._recording.failed("a batch's preparation", exc)


def size(batch: Any) -> tuple[int, int]:
    """Return the bytes of a batch and the number of its tensors, each of which is sent in a shared
    memory of its own.

    Looks only into plain lists, tuples and dicts, and only at plain torch tensors and numpy arrays:
    it runs no code of the program."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    tensor, array = getattr(torch, "Tensor", None), getattr(numpy, "ndarray", None)
    n_bytes = tensors = looked_at = 0
    open_ = [batch]
    # torch is not None: a batch was fetched, so torch has been imported
    with torch._C.DisableTorchFunction():  # type: ignore[union-attr]
        while open_ and looked_at < _MOST_PARTS:
            part = open_.pop()
            looked_at += 1
            kind = type(part)
            if kind is tensor:
                tensors += 1
                n_bytes += part.numel() * part.element_size()
            elif kind is array:
                n_bytes += int(part.nbytes)
            elif kind is dict:
                open_ += part.values()
            elif kind is list or kind is tuple:
                open_ += part
            elif kind is str or kind is bytes:
                n_bytes += len(part)
            else:
                n_bytes += _OBJECT
    return n_bytes, tensors


class Samples:
    """Callbacks around the functions that read samples, and around collate functions."""

    def __init__(self, recording: Recording, workers: Workers) -> None:
        self._recording, self._workers = recording, workers
        self._state, self._span = recording.state, recording.span
        self._item = recording.name("data", "item", "index")
        self._inner = recording.name("data", "inner", "index")
        self._items = recording.name("data", "items", "batch")
        self._collate = recording.name("data", "collate", "batch")
        self._iterables = IdentityMap()  # fetcher -> _SampleCount

    def around_item(self) -> tuple[Any, Any]:
        """Return the callbacks around a dataset's ``__getitem__``. If it calls itself again on the
        same dataset (``super()``, a retry), only the outer call is recorded."""
        state, span, item, inner = self._state, self._span, self._item, self._inner

        def enter(dataset: Any, index: Any) -> Any:
            if state.inside != FETCH:
                before = state.dataset
                if dataset is before:
                    return 0
                state.dataset = dataset
                number, args = _numbered(
                    index, type(dataset), state.sources.inner, state.sources.lists
                )
                return now(), args, before, number
            state.inside = ITEM
            state.dataset = dataset
            if type(index) is int:
                state.item, state.of = index, state.sources.items[type(dataset)]
            else:
                state.item, state.of = _numbered(
                    index, type(dataset), state.sources.items, state.sources.lists
                )
            return now()

        def leave(entered: Any, was: int) -> None:
            end = now()
            state.inside = was
            if type(entered) is tuple:
                span(inner, entered[0], end, entered[1], entered[3])
                state.dataset = entered[2]
            elif entered:
                span(item, entered, end, state.of, state.item)
                state.item, state.dataset = UNKNOWN, None

        return enter, leave

    def around_items(self) -> tuple[Any, Any]:
        """Return the callbacks around a dataset's ``__getitems__``, which reads all samples of a
        batch, at once or one by one."""
        state, span, items = self._state, self._span, self._items

        def enter(dataset: Any) -> Any:
            before = state.batches_of
            if dataset is before:
                return 0
            state.batches_of = dataset
            # The samples of the inner datasets are parts of this dataset's samples.
            if is_torch("StackDataset", dataset):
                state.inside, state.dataset = ITEM, dataset
            return now(), state.sources.batches[type(dataset)], before

        def leave(entered: Any, was: int) -> None:
            end = now()
            if entered:
                if state.inside != was:
                    state.inside, state.dataset = was, None
                state.batches_of = entered[2]
                span(items, entered[0], end, entered[1], state.batch)

        return enter, leave

    def around_collate(self) -> tuple[Any, Any]:
        """Return the callbacks around a collate function. Collate functions that it calls are not
        recorded."""
        state, span, collate = self._state, self._span, self._collate

        def enter() -> int:
            if state.collates:
                return 0
            state.collates, state.item = True, UNKNOWN
            return now()

        def leave(start_ns: int, was: int, *_: Any) -> None:
            end = now()
            if start_ns:
                state.collates = False
                span(collate, start_ns, end, state.args, state.batch)

        return enter, leave

    # iterable datasets

    def iterating(self, entered: int, was: int, fetcher: Any) -> None:
        """Callback after the fetcher of an iterable dataset has been made: records each sample when
        the fetcher's iterator returns it.

        The iterator, which only the fetcher holds, is wrapped in a ``map``, which adds no frame to
        tracebacks. An iterator with a ``state_dict`` (torchdata) is not wrapped."""
        try:
            iterator = fetcher.dataset_iter
            if hasattr(type(iterator), "state_dict") or type(iterator) is map:
                return
            count = _SampleCount()
            if is_torch("ChainDataset", getattr(fetcher, "dataset", None)):
                count.chain = iterator
            self._iterables[fetcher] = count
            fetcher.dataset_iter = map(self._stamp(count), iterator)
        except Exception as exc:  # another version of torch may differ; the program must go on
            self._recording.failed("an iterable dataset", exc)

    def _stamp(self, count: _SampleCount) -> Any:
        state, span, item = self._state, self._span, self._item

        def stamp(sample: Any) -> Any:
            end = now()
            args = state.args
            if count.chain is not None:
                args = count.args_of_chain(state.sources, args)
            span(item, count.since, end, args, count.n)
            count.n += 1
            state.item, count.since = count.n, now()
            return sample

        return stamp

    def around_fetch(self) -> tuple[Any, Any]:
        """Return the callbacks around ``_IterableDatasetFetcher.fetch``."""
        state = self._state

        def enter(fetcher: Any) -> Any:
            state.inside, state.item, state.collates = ITEM, UNKNOWN, False
            count: _SampleCount | None = self._iterables.get(fetcher)
            worked, worked_here = self._workers.processor_ns(), thread_time_ns()
            start_ns = now()
            if count is not None:
                state.item, count.since = count.n, start_ns
            return worked, start_ns, worked_here

        return enter, self._workers.around_fetch()[1]


class _SampleCount:
    """Counts the samples that a fetcher has received (``n``), and keeps the time since which it
    waits for the next one (``since``)."""

    n = since = 0
    chain: Any = None  # the iterator over torch's ``ChainDataset``; None for other datasets
    _delegate: Any = None
    _args = 0

    def args_of_chain(self, sources: Any, otherwise: int) -> int:
        """Return the number of the arguments of a sample that a ``ChainDataset`` has just yielded:
        they name the dataset inside. ``otherwise``: returned if that dataset is not known."""
        delegate = self.chain.gi_yieldfrom
        if delegate is None:
            return otherwise
        if delegate is not self._delegate or is_chained_generator(delegate):
            try:
                kind = chained_source(self.chain)
                self._args = otherwise if kind is None else sources.turns[kind]
            except Exception:  # another version of torch may use another generator
                self._args = otherwise
            self._delegate = delegate
        return self._args


_CHAIN = "ChainDataset.__iter__"


def is_chained_generator(generator: Any) -> bool:
    """True if the generator that a ``ChainDataset`` delegates to belongs to an inner
    ``ChainDataset``: then the dataset that samples come from can change within it."""
    code = getattr(generator, "gi_code", None)
    return getattr(code, "co_qualname", _CHAIN) == _CHAIN


def _numbered(index: Any, kind: type, sources: Any, lists: Any) -> tuple[int, int]:
    """Return the number of a sample, and the number of the arguments of its record. For an index
    that requests several samples: ``UNKNOWN``, and arguments from ``lists``."""
    if type(index) is int:
        return index, sources[kind]
    is_list = type(index) in (list, slice, range)
    if not is_list and getattr(type(index), "__module__", "") in ("numpy", "torch"):
        is_list = _is_array(index)
    if is_list:
        return UNKNOWN, lists[kind]
    return whole(index), sources[kind]


def _is_array(index: Any) -> bool:
    try:
        return bool(index.ndim == 1)
    except Exception:  # subclasses of tensors can raise anything
        return False


def whole(index: Any) -> int:
    """Return the integer that an index of numpy or torch holds; ``UNKNOWN`` for any other index.
    Runs no code of the program's own types."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    kind = type(index)
    try:
        if numpy is not None and isinstance(index, numpy.integer) and kind.__module__ == "numpy":
            return int(index)
        if torch is not None and kind is torch.Tensor:
            is_integer = index.ndim == 0 and not index.is_floating_point()
            return int(index) if is_integer else UNKNOWN
    except Exception:
        pass  # a tensor without data (device meta)
    return UNKNOWN
