"""Finds the transforms of a dataset: in its attributes and its class's, in globals that its ``__getitem__`` names, in lists of them, and in
the attributes of transforms and of datasets inside it.

Looks at attributes of objects without asking the objects: no property and no ``__getattr__`` of the program runs.
"""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from voirkit_instruments.loader.record_operations import Operations

_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, ModuleType, BuiltinFunctionType)
_LISTS = (list, tuple, dict, OrderedDict)  # torch 2.1 keeps modules in the last
_MOST = 64  # a longer list holds samples
_DEEPEST = 6


class Finder:
    """Finds transforms and hands them on.

    Args:
        operations: Who gets them.
    """

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def dataset(self, dataset: Any) -> None:
        """Look through a dataset."""
        self._look(dataset, _DEEPEST, set())

    def transform(self, transform: Any) -> None:
        """Look at one transform, and at what it calls."""
        self._value(transform, _DEEPEST, set(), True)

    def _look(self, thing: Any, deep: int, seen: set[int]) -> None:
        """The attributes of a dataset."""
        if deep <= 0 or id(thing) in seen:
            return
        seen.add(id(thing))
        is_folder = is_instance_of(thing, "torchvision.datasets.folder", "DatasetFolder")
        for name, value in attributes(thing):
            if is_folder and name == "loader":
                self._operations.function(value, "Loader")
            else:
                self._value(value, deep - 1, seen, not name.startswith("__"))
        for value in around(type(thing)):
            self._value(value, deep - 1, seen, False)

    def _value(self, value: Any, deep: int, seen: set[int], functions: bool) -> None:
        kind = type(value)
        if issubclass(kind, _PLAIN) or deep <= 0:
            return
        if kind is functools.partial:
            self._value(value.func, deep, seen, functions)
        elif kind is FunctionType or kind is MethodType:
            if functions and not is_foreign(value):
                self._operations.function(value)
        elif kind in _LISTS or is_instance_of(value, "torch.nn.modules.container", "ModuleList"):
            self._list(value, deep, seen, functions)
        elif is_instance_of(value, "torch.utils.data.dataset", "Dataset"):
            self._look(value, deep, seen)
        elif not is_foreign(kind):
            if hasattr(kind, "__getitem__") and not callable(value):
                self._look(value, deep, seen)
            else:
                self._object(value, kind, deep, seen)

    def _list(self, values: Any, deep: int, seen: set[int], functions: bool) -> None:
        if type(values) not in _LISTS:
            values = vars(values).get("_modules", {})
        if id(values) in seen or not 0 < len(values) <= _MOST:
            return
        seen.add(id(values))
        for value in list(values.values()) if isinstance(values, dict) else list(values):
            self._value(value, deep - 1, seen, functions)

    def _object(self, value: Any, kind: type, deep: int, seen: set[int]) -> None:
        if id(value) in seen:
            return
        given = dict(attributes(value))
        sequential = is_instance_of(value, "torch.nn.modules.container", "Sequential")
        inner = given.get("_modules") if sequential else given.get("transforms")
        if callable(value) and (
            sequential or type(inner) in (list, tuple) or is_instance_of(inner, "torch.nn.modules.container", "ModuleList")
        ):
            seen.add(id(value))
            self._list(inner, deep, seen, True)
            return
        if callable(value):
            self._operations.kind(kind)
        seen.add(id(value))
        for part in given.values():  # other transforms, but no function, whose time is its own
            self._value(part, deep - 1, seen, False)


def around(kind: type) -> Iterator[Any]:
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
