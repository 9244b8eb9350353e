"""Samples: where a dataset's ``__getitem__`` stands, which of several datasets in each other is meant, and iterable datasets.

A sample is what the outermost dataset that is not torch's own ``Subset`` gives, under the index that it was asked for.
"""

from __future__ import annotations

import sys
import weakref
from types import FunctionType

from voirkit_instruments.loader_numbers import forgetting
from voirkit_instruments.loader_record import FETCH, ITEM, UNKNOWN, now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from voirkit_instruments.loader_record import Recording
    from voirkit_instruments.loader_workers import Workers


class Items:
    """Functions that stand around what reads a sample, and what puts samples together.

    Args:
        recording: Where records go.
        workers: What records batches.
    """

    def __init__(self, recording: Recording, workers: Workers) -> None:
        self._recording, self._workers = recording, workers
        self._here, self._span = recording.here, recording.span
        self._item = recording.name("data", "item", "index")
        self._collate = recording.name("data", "collate", "batch")
        self._iterables: dict[int, tuple[Any, _Counted]] = {}  # by identity of the fetcher: itself, and its samples

    def around_item(self) -> tuple[Any, Any]:
        """Around a dataset's ``__getitem__``; not inside of another sample."""
        here, span, item = self._here, self._span, self._item

        def enter(index: Any) -> int:
            if here.inside != FETCH:
                return 0
            here.inside = ITEM
            here.item = index if type(index) is int else whole(index)
            return now()

        def leave(began: int, was: int) -> None:
            end = now()
            here.inside = was
            if began:
                span(item, began, end, here.args, here.item)
                here.item = UNKNOWN

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
        counted = _Counted()
        self._iterables[id(fetcher)] = (weakref.ref(fetcher, forgetting(self._iterables, id(fetcher))), counted)
        fetcher.dataset_iter = map(self._stamp(counted), iterator)

    def _stamp(self, counted: _Counted) -> Any:
        here, span, item = self._here, self._span, self._item

        def stamp(sample: Any) -> Any:
            end = now()
            span(item, counted.since, end, here.args, counted.n)
            counted.n += 1
            here.item, counted.since = counted.n, now()
            return sample

        return stamp

    def around_fetch(self) -> tuple[Any, Any]:
        """Around the ``fetch`` of an iterable dataset's fetcher."""
        here = self._here

        def enter(fetcher: Any) -> Any:
            here.inside, here.item, here.collates = ITEM, UNKNOWN, False
            worked, known = self._workers.processor_ns(), self._iterables.get(id(fetcher))
            began = now()
            if known is not None:
                here.item, known[1].since = known[1].n, began
            return worked, began

        return enter, self._workers.around_fetch()[1]


class _Counted:
    """How many samples a fetcher has had, and since when it asks for the next one."""

    n = since = 0


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


def reader(dataset: Any) -> tuple[type, FunctionType] | None:
    """The class and the function that read a sample, if they are written in Python.

    Args:
        dataset: The one that a loader was given.
    """
    dataset = _under(dataset, ("Subset",))
    for owner in type(dataset).__mro__:
        found = vars(owner).get("__getitem__")
        if found is not None:
            return (owner, found) if type(found) is FunctionType else None
    return None


def unread(dataset: Any) -> str | None:
    """The full name of what reads a sample where ``reader`` has none, of a class that is not python's own: ``functools.lru_cache``, C."""
    for owner in type(_under(dataset, ("Subset",))).__mro__:
        if "__getitem__" in vars(owner):
            return None if owner.__module__ == "builtins" else f"{owner.__module__}.{owner.__qualname__}.__getitem__"
    return None


def source(dataset: Any) -> str:
    """What reads the samples of a dataset, such as ``Pictures.__getitem__``: of torch's own datasets of datasets the (first) inner one."""
    kind = type(_under(dataset, ("Subset", "ConcatDataset", "ChainDataset")))
    iterable = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
    return f"{kind.__name__}.{'__iter__' if iterable is not None and issubclass(kind, iterable) else '__getitem__'}"


def _under(dataset: Any, wrappers: tuple[str, ...]) -> Any:
    """What is inside of torch's own datasets of others; of several the first."""
    data = sys.modules.get("torch.utils.data")
    kinds = [getattr(data, name, None) for name in wrappers]
    while type(dataset) in kinds:
        given = vars(dataset)
        inner = given.get("dataset", given.get("datasets"))
        dataset = inner[0] if type(inner) in (list, tuple) and inner else inner
    return dataset
