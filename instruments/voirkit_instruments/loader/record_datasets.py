"""Datasets in each other: which of them read samples, by which functions, and what their records are called.

Reads attributes of objects without asking the objects. Checked with torch 2.1 and 2.15, datasets 5.2.
"""

from __future__ import annotations

import sys
import sysconfig
from types import FunctionType

from voirkit_instruments.loader.record_find import attributes, is_foreign, is_instance_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_DEEPEST = 6
_FEW = 64  # elements of a list that are looked at; a list of datasets is looked at whole
_LIBRARIES = tuple({sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib")})

SAMPLE, BATCH, TURNS = "__getitem__", "__getitems__", "__iter__"


def datasets(dataset: Any) -> Iterator[Any]:
    """A dataset and those that it holds, one of each class and what it holds; torch's ``Subset``, which reads nothing itself, left out."""
    seen: set[int] = set()
    kinds: set[type] = set()
    open_: list[tuple[Any, int]] = [(dataset, _DEEPEST)]
    while open_:
        one, deep = open_.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if not _is_torch("Subset", one) and type(one) not in kinds:
            kinds.add(type(one))
            yield one
        if deep > 0:
            for name, value in attributes(one):
                open_ += [(inner, deep - 1) for inner in _held(name, value)]


def _held(name: str, value: Any) -> Iterator[Any]:
    """The datasets that an attribute holds: itself, those in a list of it, or that of a loader behind it.

    fastai (2.8) hands torch a stand-in whose attribute ``d`` is the loader, and the dataset is that one's.
    """
    if is_dataset(value) or (name == "dataset" and _is_indexed(type(value))):
        yield value
        return
    if not is_foreign(type(value)) and type(behind := dict(attributes(value)).get("dataset")) is not type(None):
        if is_dataset(behind) or _is_indexed(type(behind)):
            yield behind
        return
    if type(value) is dict:
        value = list(value.values())
    if type(value) in (list, tuple):
        few = [one for one in value[:_FEW] if is_dataset(one)]
        yield from (one for one in value if is_dataset(one)) if len(few) == len(value[:_FEW]) else few


def is_dataset(value: Any) -> bool:
    """Whether an object is a dataset: of torch's class, or one of the program's own (or ``__getitems__`` says it) that is indexed."""
    kind = type(value)
    if is_instance_of(value, "torch.utils.data.dataset", "Dataset"):
        return True
    return _is_indexed(kind) and not callable(value) and (hasattr(kind, BATCH) or not _is_of_a_library(kind))


def _is_indexed(kind: type) -> bool:
    return not is_foreign(kind) and hasattr(kind, SAMPLE) and hasattr(kind, "__len__") and not hasattr(kind, "keys")


def _is_of_a_library(kind: type) -> bool:
    where = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ != "__main__" and (where is None or where.startswith(_LIBRARIES))


def method(dataset: Any, name: str) -> tuple[type, FunctionType] | None:
    """The class and the function that a dataset's class has under a name, if it is written in Python."""
    for owner in type(dataset).__mro__:
        found = vars(owner).get(name)
        if found is not None:
            return (owner, found) if type(found) is FunctionType else None
    return None


def unread(dataset: Any) -> str | None:
    """The full name of what reads a sample where it is not written in Python, of a class that is not python's own:
    ``functools.lru_cache``, C."""
    for owner in type(dataset).__mro__:
        if SAMPLE in vars(owner):
            found = type(vars(owner)[SAMPLE]) is not FunctionType and owner.__module__ != "builtins"
            return f"{owner.__module__}.{owner.__qualname__}.{SAMPLE}" if found else None
    return None


def source(dataset: Any) -> str:
    """What reads the samples of a dataset, such as ``Pictures.__getitem__``: of ``Subset`` what is inside."""
    while _is_torch("Subset", dataset):
        dataset = vars(dataset).get("dataset")
    iterable = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
    kind = type(dataset)
    is_iterated = (iterable is not None and issubclass(kind, iterable)) or not hasattr(kind, SAMPLE)
    return f"{kind.__name__}.{TURNS if is_iterated else SAMPLE}"


def _is_torch(name: str, dataset: Any) -> bool:
    return type(dataset) is getattr(sys.modules.get("torch.utils.data"), name, None)


def is_stacked(dataset: Any) -> bool:
    """Whether a sample of a dataset is put together of samples of several others by torch."""
    return _is_torch("StackDataset", dataset)


def is_chained(dataset: Any) -> bool:
    """Whether torch iterates over several datasets one after the other."""
    return _is_torch("ChainDataset", dataset)


def chained_source(iterator: Any) -> type | None:
    """The class of the dataset that an iterator of a ``ChainDataset`` gives samples of at the moment.

    Its generator delegates to that of one dataset (``yield from``), the variable ``d`` of torch 2.1 to 2.15; None if it is another.
    """
    frame = getattr(iterator, "gi_frame", None)
    dataset = None if frame is None else frame.f_locals.get("d")
    if is_chained(dataset):
        return chained_source(iterator.gi_yieldfrom)
    return None if dataset is None else type(dataset)
