"""Samples: where a dataset's ``__getitem__`` stands, which of several datasets in each other is meant, and iterable datasets.

A sample (``item``) is what the outermost dataset that is not torch's own ``Subset`` gives, under the index that it was asked for. What that
dataset asks of others is ``inner``, each under the name of its own class. Where ``__getitems__`` or a list as index asks for a whole batch,
the record's arguments have ``whole``.
"""

from __future__ import annotations

import sys
import weakref
from time import thread_time_ns

from voirkit_instruments.loader.record_datasets import chained_source, is_chained, is_stacked
from voirkit_instruments.loader.record_spans import FETCH, ITEM, UNKNOWN, now
from voirkit_instruments.loader_numbers import forgetting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit_instruments.loader.record_spans import Recording
    from voirkit_instruments.loader.record_workers import Workers


class Samples:
    """Functions that stand around what reads a sample, and what puts samples together.

    Args:
        recording: Where records go.
        workers: What records batches.
    """

    def __init__(self, recording: Recording, workers: Workers) -> None:
        self._recording, self._workers = recording, workers
        self._here, self._span = recording.here, recording.span
        self._item = recording.name("data", "item", "index")
        self._inner = recording.name("data", "inner", "index")
        self._items = recording.name("data", "items", "batch")
        self._collate = recording.name("data", "collate", "batch")
        self._iterables: dict[int, tuple[Any, _SampleCount]] = {}  # by identity of the fetcher: itself, and its samples

    def around_item(self) -> tuple[Any, Any]:
        """Around a dataset's ``__getitem__``; one that calls it again for the same sample (``super()``, another try) is recorded once."""
        here, span, item, inner = self._here, self._span, self._item, self._inner

        def enter(dataset: Any, index: Any) -> Any:
            if here.inside != FETCH:
                before = here.dataset
                if dataset is before:
                    return 0
                here.dataset = dataset
                number, args = _numbered(index, type(dataset), here.sources.inner, here.sources.lists)
                return now(), args, before, number
            here.inside = ITEM
            here.dataset = dataset
            if type(index) is int:
                here.item, here.of = index, here.sources[type(dataset)]
            else:
                here.item, here.of = _numbered(index, type(dataset), here.sources, here.sources.lists)
            return now()

        def leave(began: Any, was: int) -> None:
            end = now()
            here.inside = was
            if type(began) is tuple:
                span(inner, began[0], end, began[1], began[3])
                here.dataset = began[2]
            elif began:
                span(item, began, end, here.of, here.item)
                here.item, here.dataset = UNKNOWN, None

        return enter, leave

    def around_items(self) -> tuple[Any, Any]:
        """Around a dataset's ``__getitems__``, which reads the samples of a batch at once, or asks for each of them."""
        here, span, items = self._here, self._span, self._items

        def enter(dataset: Any) -> Any:
            before = here.batches_of
            if dataset is before:
                return 0
            here.batches_of = dataset
            if is_stacked(dataset):  # the samples of the others are parts of its own
                here.inside, here.dataset = ITEM, dataset
            return now(), here.sources.batches[type(dataset)], before

        def leave(began: Any, was: int) -> None:
            end = now()
            if began:
                if here.inside != was:
                    here.inside, here.dataset = was, None
                here.batches_of = began[2]
                span(items, began[0], end, began[1], here.batch)

        return enter, leave

    def around_collate(self) -> tuple[Any, Any]:
        """Around what puts samples together, which may call what others use for that."""
        here, span, collate = self._here, self._span, self._collate

        def enter() -> int:
            if here.collates:
                return 0
            here.collates, here.item = True, UNKNOWN
            return now()

        def leave(began: int, was: int, *_: Any) -> None:
            end = now()
            if began:
                here.collates = False
                span(collate, began, end, here.args, here.batch)

        return enter, leave

    # iterable datasets

    def iterating(self, fetcher: Any) -> None:
        """An iterable dataset's fetcher has been made: a sample is there when its iterator returns.

        Its iterator, which nobody else has, is put into a ``map``: that is no frame in a traceback. One that keeps a state (torchdata) is
        left as it is.
        """
        iterator = fetcher.dataset_iter
        if hasattr(type(iterator), "state_dict") or type(iterator) is map:
            return
        count = _SampleCount()
        if is_chained(getattr(fetcher, "dataset", None)):
            count.chain = iterator
        self._iterables[id(fetcher)] = (weakref.ref(fetcher, forgetting(self._iterables, id(fetcher))), count)
        fetcher.dataset_iter = map(self._stamp(count), iterator)

    def _stamp(self, count: _SampleCount) -> Any:
        here, span, item = self._here, self._span, self._item

        def stamp(sample: Any) -> Any:
            end = now()
            args = here.args
            if count.chain is not None:
                args = count.args_of_chain(here.sources, args)
            span(item, count.since, end, args, count.n)
            count.n += 1
            here.item, count.since = count.n, now()
            return sample

        return stamp

    def around_fetch(self) -> tuple[Any, Any]:
        """Around the ``fetch`` of an iterable dataset's fetcher."""
        here = self._here

        def enter(fetcher: Any) -> Any:
            here.inside, here.item, here.collates = ITEM, UNKNOWN, False
            known = self._iterables.get(id(fetcher))
            worked, worked_here = self._workers.processor_ns(), thread_time_ns()
            began = now()
            if known is not None:
                here.item, known[1].since = known[1].n, began
            return worked, began, worked_here

        return enter, self._workers.around_fetch()[1]


class _SampleCount:
    """How many samples a fetcher has had, and since when it asks for the next one.

    Attributes:
        chain: The iterator of torch's ``ChainDataset``, if that is what samples are of.
    """

    n = since = 0
    chain: Any = None
    _delegate: Any = None
    _args = 0

    def args_of_chain(self, sources: Any, otherwise: int) -> int:
        """The arguments of a sample that has just come of one of several datasets."""
        delegate = self.chain.gi_yieldfrom
        if delegate is None:
            return otherwise
        if delegate is not self._delegate or is_chained_generator(delegate):
            try:
                kind = chained_source(self.chain)
                self._args = otherwise if kind is None else sources.turns[kind]
            except Exception:
                self._args = otherwise
            self._delegate = delegate
        return self._args


def is_chained_generator(generator: Any) -> bool:
    """Whether a generator is that of a ``ChainDataset``, in another one: what it gives samples of changes within it."""
    return getattr(getattr(generator, "gi_code", None), "co_qualname", "ChainDataset.__iter__") == "ChainDataset.__iter__"


def _numbered(index: Any, kind: type, sources: Any, lists: Any) -> tuple[int, int]:
    """The number of a sample, and the arguments of its record, which say so if the index asks for many samples."""
    if type(index) is int:
        return index, sources[kind]
    if type(index) in (list, slice, range) or (getattr(type(index), "__module__", "") in ("numpy", "torch") and _is_array(index)):
        return UNKNOWN, lists[kind]
    return whole(index), sources[kind]


def _is_array(index: Any) -> bool:
    try:
        return bool(index.ndim == 1)
    except Exception:
        return False


def whole(index: Any) -> int:
    """An index that is a whole number of numpy's or torch's; else unknown. Asks nothing of types of the program's own."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    try:
        if numpy is not None and isinstance(index, numpy.integer) and type(index).__module__ == "numpy":
            return int(index)
        if torch is not None and type(index) is torch.Tensor and index.ndim == 0 and not index.is_floating_point():
            return int(index)
    except Exception:
        pass  # a number that is not there yet (meta)
    return UNKNOWN
