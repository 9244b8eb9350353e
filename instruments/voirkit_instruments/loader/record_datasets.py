"""The datasets of a program: those in each other, which of them read samples and by which functions, and where their transforms are.

Transforms are found in a dataset's attributes and its class's, in globals that its ``__getitem__`` names, in lists of them, and in the
attributes of transforms and of datasets inside it. Looks at attributes of objects without asking the objects: no property and no
``__getattr__`` of the program runs. Checked with torch 2.1 and 2.15, datasets 5.2.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections import OrderedDict
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from voirkit_instruments.loader.record_operations import Operations

_DEEPEST = 6
_FEW = 64  # elements of a list that are looked at; a list of datasets is looked at whole
_LIBRARIES = tuple({sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib")})

SAMPLE, BATCH, TURNS = "__getitem__", "__getitems__", "__iter__"


def datasets(dataset: Any) -> Iterator[Any]:
    """A dataset and those that it holds, one of each class and what it holds; torch's ``Subset``, which reads nothing itself, left out."""
    visited: set[int] = set()
    kinds: set[type] = set()
    open_: list[tuple[Any, int]] = [(dataset, _DEEPEST)]
    while open_:
        one, deep = open_.pop()
        if id(one) in visited:
            continue
        visited.add(id(one))
        if not _is_torch("Subset", one) and type(one) not in kinds:
            kinds.add(type(one))
            yield one
        if deep > 0:
            for name, value in attributes(one):
                open_ += [(inner, deep - 1) for inner in _inner_datasets(name, value)]


def _inner_datasets(name: str, value: Any) -> Iterator[Any]:
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


def own_method(dataset: Any, name: str) -> tuple[type, FunctionType] | None:
    """The class and the function that a dataset's class has under a name, if it is written in Python."""
    for owner in type(dataset).__mro__:
        found = vars(owner).get(name)
        if found is not None:
            return (owner, found) if type(found) is FunctionType else None
    return None


def unreadable_method(dataset: Any) -> str | None:
    """The full name of what reads a sample where it is not written in Python, of a class that is not python's own:
    ``functools.lru_cache``, C."""
    for owner in type(dataset).__mro__:
        if SAMPLE in vars(owner):
            found = type(vars(owner)[SAMPLE]) is not FunctionType and owner.__module__ != "builtins"
            return f"{owner.__module__}.{owner.__qualname__}.{SAMPLE}" if found else None
    return None


def source_name(dataset: Any) -> str:
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


_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, ModuleType, BuiltinFunctionType)
_LISTS = (list, tuple, dict, OrderedDict)  # torch 2.1 keeps modules in the last
_MOST = 64  # a longer list holds samples


class Finder:
    """Finds transforms and hands them on.

    Args:
        operations: Who gets them.
    """

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def dataset(self, dataset: Any) -> None:
        """Look through a dataset."""
        self._search(dataset, _DEEPEST, set())

    def transform(self, transform: Any) -> None:
        """Look at one transform, and at what it calls."""
        self._value(transform, _DEEPEST, set(), True)

    def _search(self, thing: Any, deep: int, visited: set[int]) -> None:
        """The attributes of a dataset."""
        if deep <= 0 or id(thing) in visited:
            return
        visited.add(id(thing))
        is_folder = is_instance_of(thing, "torchvision.datasets.folder", "DatasetFolder")
        for name, value in attributes(thing):
            if is_folder and name == "loader":
                self._operations.function(value, "Loader")
            else:
                self._value(value, deep - 1, visited, not name.startswith("__"))
        for value in reachable_values(type(thing)):
            self._value(value, deep - 1, visited, False)

    def _value(self, value: Any, deep: int, visited: set[int], functions: bool) -> None:
        kind = type(value)
        if issubclass(kind, _PLAIN) or deep <= 0:
            return
        if kind is functools.partial:
            self._value(value.func, deep, visited, functions)
        elif kind is FunctionType or kind is MethodType:
            if functions and not is_foreign(value):
                self._operations.function(value)
        elif kind in _LISTS or is_instance_of(value, "torch.nn.modules.container", "ModuleList"):
            self._list(value, deep, visited, functions)
        elif is_instance_of(value, "torch.utils.data.dataset", "Dataset"):
            self._search(value, deep, visited)
        elif not is_foreign(kind):
            if hasattr(kind, "__getitem__") and not callable(value):
                self._search(value, deep, visited)
            else:
                self._object(value, kind, deep, visited)

    def _list(self, values: Any, deep: int, visited: set[int], functions: bool) -> None:
        if type(values) not in _LISTS:
            values = vars(values).get("_modules", {})
        if id(values) in visited or not 0 < len(values) <= _MOST:
            return
        visited.add(id(values))
        for value in list(values.values()) if isinstance(values, dict) else list(values):
            self._value(value, deep - 1, visited, functions)

    def _object(self, value: Any, kind: type, deep: int, visited: set[int]) -> None:
        if id(value) in visited:
            return
        given = dict(attributes(value))
        sequential = is_instance_of(value, "torch.nn.modules.container", "Sequential")
        inner = given.get("_modules") if sequential else given.get("transforms")
        if callable(value) and (
            sequential or type(inner) in (list, tuple) or is_instance_of(inner, "torch.nn.modules.container", "ModuleList")
        ):
            visited.add(id(value))
            self._list(inner, deep, visited, True)
            return
        if callable(value):
            self._operations.kind(kind)
        visited.add(id(value))
        for part in given.values():  # other transforms, but no function, whose time is its own
            self._value(part, deep - 1, visited, False)


def reachable_values(kind: type) -> Iterator[Any]:
    """What objects of a class may use that is not their own: attributes of the class, and globals that its reading of samples names."""
    for owner in kind.__mro__:
        if is_foreign(owner):
            continue
        yield from list(vars(owner).values())
        for name in ("__getitem__", "__getitems__", "__iter__"):
            function = vars(owner).get(name)
            if type(function) is FunctionType:
                names = function.__globals__
                yield from [names[used] for used in function.__code__.co_names if used in names]


def attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of an object's own attributes, those in slots with them."""
    try:
        found = object.__getattribute__(thing, "__dict__")
        if type(found) is dict:
            yield from list(found.items())
    except AttributeError:
        pass
    for owner in type(thing).__mro__:
        for name, member in list(vars(owner).items()):
            if type(member) is MemberDescriptorType:
                try:
                    yield name, member.__get__(thing)
                except AttributeError:
                    pass  # not set


def is_instance_of(thing: Any, module: str, name: str) -> bool:
    """Whether an object is of a class that is only known if its module has been imported; asks the type alone."""
    kind: Any = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and issubclass(type(thing), kind)


# Of these nothing that a dataset keeps is a transform, but a model may be, and torchvision's are.
_FOREIGN = {
    "PIL", "_thread", "asyncio", "builtins", "collections", "concurrent", "contextlib", "h5py", "io", "lmdb", "logging", "multiprocessing",
    "numpy", "pandas", "pathlib", "random", "re", "sqlite3", "tarfile", "threading", "torch", "weakref", "zipfile",
}  # fmt: skip


def is_foreign(thing: Any) -> bool:
    """Whether a class or function is of a library whose objects are no transforms."""
    name = getattr(thing, "__module__", None)
    if type(name) is not str:
        return True
    return name.partition(".")[0] in _FOREIGN and not name.startswith("torch.nn")
