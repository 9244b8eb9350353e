"""The search for operations (transforms, and functions that the user names) in datasets and
libraries, and the patches that record their calls.

A transform is recorded under its class's name, a function under its own name. An object that only
calls other transforms in turn (a Compose, a ``nn.Sequential``, an object with a list
``transforms``) is not an operation itself. The patch is on the function of the class, never on an
object, and each function is patched once.

The transforms of torchvision and albumentations are recorded wherever a program calls them, once
these libraries have been imported. The transforms of a dataset are searched for in:

- the attributes of the dataset and of its class;
- the globals that its ``__getitem__`` names;
- lists of transforms;
- the attributes of transforms, and of datasets inside it.

Attributes are read without running code of the program: no property and no ``__getattr__``.

Checked with torch 2.1 and 2.15, torchvision 0.16 and 0.29, albumentations 2.0, datasets 5.2.
"""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from voirkit_instruments.loader.record_batches import FETCH, Recording, now
from voirkit_instruments.steps.batch_sizes import is_of_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit_instruments.loader.record_torch import LoaderPatches


_DEEPEST = 6
_FEW = 64  # most elements of a list that are inspected; if they are datasets, all are inspected

SAMPLE, BATCH, TURNS = "__getitem__", "__getitems__", "__iter__"


def datasets(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and the datasets that it holds, to a limited depth; one of each class.

    Leaves out torch's ``Subset``, which reads nothing itself."""
    visited: set[int] = set()
    kinds: set[type] = set()
    open_: list[tuple[Any, int]] = [(dataset, _DEEPEST)]
    while open_:
        outer, depth = open_.pop()
        if id(outer) in visited:
            continue
        visited.add(id(outer))
        if not is_torch("Subset", outer) and type(outer) not in kinds:
            kinds.add(type(outer))
            yield outer
        if depth > 0:
            for name, value in attributes(outer):
                open_ += [(inner, depth - 1) for inner in _inner_datasets(name, value)]


def _inner_datasets(name: str, value: Any) -> Iterator[Any]:
    """Yield the datasets that an attribute holds: its value, the elements of its list or dict, or
    the ``dataset`` of the loader that is its value.

    fastai (2.8) gives torch a stand-in for the loader. Its attribute ``d`` is the real loader,
    which has the dataset."""
    if is_dataset(value) or (name == "dataset" and _is_indexed(type(value))):
        yield value
        return
    if not is_foreign(type(value)):
        behind = dict(attributes(value)).get("dataset")
        if type(behind) is not type(None):
            if is_dataset(behind) or _is_indexed(type(behind)):
                yield behind
            return
    if type(value) is dict:
        value = list(value.values())
    if type(value) in (list, tuple):
        yield from _listed_datasets(value)


def _listed_datasets(values: Sequence[Any]) -> Iterator[Any]:
    """Yield the datasets among the first ``_FEW`` elements of a list. If all of these are datasets,
    yield the datasets of the whole list."""
    first = values[:_FEW]
    datasets = [value for value in first if is_dataset(value)]
    if len(datasets) < len(first):
        yield from datasets
    else:
        yield from (value for value in values if is_dataset(value))


def is_dataset(value: Any) -> bool:
    """True if an object is a dataset: an instance of torch's ``Dataset``, or an object with a
    length and an index whose class is the program's own or has ``__getitems__``."""
    kind = type(value)
    if is_instance_of(value, "torch.utils.data.dataset", "Dataset"):
        return True
    if not _is_indexed(kind) or callable(value):
        return False
    return hasattr(kind, BATCH) or is_of_program(kind)


def _is_indexed(kind: type) -> bool:
    return (
        not is_foreign(kind)
        and hasattr(kind, SAMPLE)
        and hasattr(kind, "__len__")
        and not hasattr(kind, "keys")
    )


def source_name(dataset: Any) -> str:
    """Return the name of the method that reads the samples of a dataset, such as
    ``Pictures.__getitem__``. For torch's ``Subset``, it is the method of the dataset inside."""
    while is_torch("Subset", dataset):
        dataset = vars(dataset).get("dataset")
    iterable = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", None)
    kind = type(dataset)
    is_iterated = (iterable is not None and issubclass(kind, iterable)) or not hasattr(kind, SAMPLE)
    return f"{kind.__name__}.{TURNS if is_iterated else SAMPLE}"


def is_torch(name: str, dataset: Any) -> bool:
    """True if a dataset is of the class of this name in ``torch.utils.data``, not of a subclass.

    The names in use are ``Subset``; ``StackDataset``, whose sample consists of one sample of each
    of several datasets; and ``ChainDataset``, which iterates over several datasets."""
    return type(dataset) is getattr(sys.modules.get("torch.utils.data"), name, None)


def chained_source(iterator: Any) -> type | None:
    """Return the class of the dataset from which an iterator over a ``ChainDataset`` yields samples
    at the moment; None if it cannot be read.

    The iterator is a generator that delegates to one dataset after another (``yield from``). In
    torch 2.1 to 2.15 its local variable ``d`` is that dataset."""
    frame = getattr(iterator, "gi_frame", None)
    dataset = None if frame is None else frame.f_locals.get("d")
    if is_torch("ChainDataset", dataset):
        return chained_source(iterator.gi_yieldfrom)
    return None if dataset is None else type(dataset)


_PLAIN = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    bool,
    type(None),
    type,
    ModuleType,
    BuiltinFunctionType,
)
_LISTS = (list, tuple, dict, OrderedDict)  # torch 2.1 keeps modules in an OrderedDict
_MOST = 64  # most elements of a list of transforms; a longer list is one of samples


class Finder:
    """Searches datasets and transforms for operations, and passes each to ``Operations``."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def dataset(self, dataset: Any) -> None:
        """Search a dataset for transforms."""
        self._search(dataset, _DEEPEST, set())

    def transform(self, transform: Any) -> None:
        """Record a transform, and search its attributes or its list for more."""
        self._value(transform, _DEEPEST, set(), True)

    def _search(self, thing: Any, deep: int, visited: set[int]) -> None:
        """Search the attributes of a dataset, and the values that its class uses."""
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
        visited.add(id(value))
        parts = dict(attributes(value))
        is_sequential = is_instance_of(value, "torch.nn.modules.container", "Sequential")
        inner = parts.get("_modules") if is_sequential else parts.get("transforms")
        is_list = type(inner) in (list, tuple) or is_instance_of(
            inner, "torch.nn.modules.container", "ModuleList"
        )
        if callable(value):
            if is_sequential or is_list:
                self._list(inner, deep, visited, True)
                return
            self._operations.kind(kind)
        # record transforms, but no functions: the time of functions counts for this object
        for part in parts.values():
            self._value(part, deep - 1, visited, False)


def reachable_values(kind: type) -> Iterator[Any]:
    """Yield the values that objects of a class may use beside their own attributes: the attributes
    of the class, and the globals that its methods for reading samples name."""
    for owner in kind.__mro__:
        if is_foreign(owner):
            continue
        yield from list(vars(owner).values())
        for name in ("__getitem__", "__getitems__", "__iter__"):
            function = vars(owner).get(name)
            if type(function) is FunctionType:
                values = function.__globals__
                yield from [values[key] for key in function.__code__.co_names if key in values]


def attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of an object's own attributes, in its ``__dict__`` and slots."""
    try:
        namespace = object.__getattribute__(thing, "__dict__")
        if type(namespace) is dict:
            yield from list(namespace.items())
    except AttributeError:
        pass
    for owner in type(thing).__mro__:
        for name, member in list(vars(owner).items()):
            if type(member) is MemberDescriptorType:
                try:
                    yield name, member.__get__(thing)
                except AttributeError:
                    pass  # the attribute is not set


def is_instance_of(thing: Any, module: str, name: str) -> bool:
    """True if an object is an instance of a class, given by its module and name; False if that
    module has not been imported. Only the type of the object is looked at."""
    kind: Any = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and issubclass(type(thing), kind)


# Objects of these packages in a dataset are not transforms. ``is_foreign`` makes an exception for
# torch.nn, since a module may be a transform and torchvision's transforms are modules.
_FOREIGN = {
    "PIL",
    "_thread",
    "asyncio",
    "builtins",
    "collections",
    "concurrent",
    "contextlib",
    "h5py",
    "io",
    "lmdb",
    "logging",
    "multiprocessing",
    "numpy",
    "pandas",
    "pathlib",
    "random",
    "re",
    "sqlite3",
    "tarfile",
    "threading",
    "torch",
    "weakref",
    "zipfile",
}


def is_foreign(thing: Any) -> bool:
    """True if a class or function is of a library whose objects are not transforms."""
    name = getattr(thing, "__module__", None)
    if type(name) is not str:
        return True
    return name.partition(".")[0] in _FOREIGN and not name.startswith("torch.nn")


def innermost(function: Any) -> Any:
    """Return the function of a method, or the one inside decorators written in Python."""
    if type(function) is MethodType:
        function = function.__func__
    while (
        type(function) is FunctionType
        and type(function.__dict__.get("__wrapped__")) is FunctionType
    ):
        function = function.__dict__["__wrapped__"]
    return function


def parameter(function: FunctionType, index: int) -> tuple[str, bool] | None:
    """Return the name of the parameter at a position, and whether it is ``*args``; None if the
    function has no such parameter."""
    code = function.__code__
    if code.co_argcount > index:
        return code.co_varnames[index], False
    if code.co_flags & 0x04:  # CO_VARARGS: the function has ``*args``
        return code.co_varnames[code.co_argcount + code.co_kwonlyargcount], True
    return None


# functions that are not recorded, because they only call another function that is recorded
_PASSING = {("torchvision.datasets.folder", "default_loader")}


class Operations:
    """Patches functions and classes so that their calls are recorded as operations."""

    def __init__(self, recording: Recording, patches: LoaderPatches) -> None:
        self._recording, self._patches = recording, patches
        self._kinds: set[type] = set()  # classes that have been inspected
        self._leave = self._leaving()

    def _leaving(self) -> Any:
        state, span = self._recording.state, self._recording.span

        def leave(entered: Any, was: int, *_: Any) -> None:
            end = now()
            if entered:
                span(entered[1], entered[0], end, state.args, state.item)

        return leave

    # Functions that are recorded as operations

    def function(self, function: Any, name: str | None = None) -> bool:
        """Record the calls of a function; returns whether it could be patched."""
        function = innermost(function)
        if (
            type(function) is not FunctionType
            or (function.__module__, function.__name__) in _PASSING
        ):
            return False
        if self._patches.has(function):
            return True
        number = self._recording.operation(name or function.__name__)

        def enter() -> Any:
            return now(), number

        where = f"{function.__module__}.{function.__qualname__}"
        return self._patches.record_around(
            where, function, enter, self._leave, FETCH, anywhere=True
        )

    # Classes whose objects are operations

    def kind(self, kind: type) -> None:
        """Record the calls of the objects of a class of transforms."""
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        method = call_method(kind)
        if method is not None:
            self.method(*method)

    def method(self, owner: type, name: str, suffix: str = "") -> bool:
        """Record the calls of a method as an operation; returns whether it is written in Python and
        can be patched. ``suffix``: is appended to the name of the object's class to name the
        operation."""
        function = innermost(vars(owner).get(name))
        if type(function) is not FunctionType or self._patches.has(function):
            return type(function) is FunctionType
        first = parameter(function, 0)
        if first is None:
            return False
        names = _OperationNumbers(self, owner, name, suffix)

        def enter(self: Any) -> Any:
            number = names[type(self)]
            return (now(), number) if number else 0

        def enter_all(arguments: tuple[Any, ...]) -> Any:
            return enter(arguments[0]) if arguments else 0

        where = f"{owner.__module__}.{owner.__qualname__}.{name}"
        return self._patches.record_around(
            where,
            function,
            enter_all if first[1] else enter,
            self._leave,
            FETCH,
            (first[0],),
            anywhere=True,
        )

    def named(self, kind: type, owner: type, name: str, suffix: str) -> int:
        """Return the number of the operation that calls of a method on objects of a class are
        recorded as. 0 if another method, which calls this one, is recorded instead."""
        if not suffix:
            method = call_method(kind)
            if method is not None and method != (owner, name):
                self.kind(kind)
                return 0
        return self._recording.operation(f"{kind.__name__}{suffix}")

    # Containers that call their transforms one after the other

    def container(self, owner: type, name: str, learn: Any) -> None:
        """Look at the list ``transforms`` of each object of a class whenever its method is called:
        transforms may be added to the list later. ``learn`` is called with each transform whose
        class has not been looked at."""
        kinds, patches = self._kinds, self._patches
        self._kinds.add(owner)

        def enter(self: Any) -> int:
            try:
                for transform in self.transforms:
                    kind = type(transform)
                    if kind not in kinds and not (kind is FunctionType and patches.has(transform)):
                        learn(transform)
            except Exception:
                pass  # ``transforms`` is not a list: the program's own loop is about to raise
            return 1

        def leave(entered: int, was: int) -> None:
            pass

        function = innermost(vars(owner).get(name))
        first = parameter(function, 0) if type(function) is FunctionType else None
        if first is not None and not first[1]:
            self._patches.record_around(
                f"{owner.__module__}.{owner.__qualname__}.{name}",
                function,
                enter,
                leave,
                FETCH,
                (first[0],),
                anywhere=True,
            )


class _OperationNumbers(dict[type, int]):
    """The number of the operation that a method is recorded as, by the class of the object."""

    def __init__(self, operations: Operations, owner: type, name: str, suffix: str) -> None:
        self._operations, self._of = operations, (owner, name, suffix)

    def __missing__(self, kind: type) -> int:
        try:
            number = self._operations.named(kind, *self._of)
        except Exception:  # a class with an odd name: its runs are not recorded
            number = 0
        self[kind] = number
        return number


def call_method(kind: type) -> tuple[type, str] | None:
    """Return the class and the name of the method that does the work of ``object(...)``: its
    ``__call__``, or the ``forward`` of a torch module. None if it is not written in Python."""
    module = getattr(sys.modules.get("torch.nn"), "Module", None)
    for name in ("__call__", "forward"):
        owner = next((above for above in kind.__mro__ if name in vars(above)), None)
        if owner is not None and owner is not module:
            return (owner, name) if type(vars(owner)[name]) is FunctionType else None
        if module is None or not issubclass(kind, module):
            break
    return None


_FAMILIES = (
    "torchvision.transforms",
    "albumentations.core.composition",
    "albumentations.core.transforms_interface",
)
_IN_TURN = ("Compose", "ReplayCompose", "Sequential")  # these classes only call other transforms
_NOT = ("BaseCompose",)
# Functions that read and decode files, by module: the loaders of a folder dataset are recorded
# under one name, the others (None) under their own.
_READING: dict[str, dict[str, str | None]] = {
    "torchvision.datasets.folder": {"pil_loader": "Loader", "accimage_loader": "Loader"},
    "torchvision.io.image": dict.fromkeys(
        ("read_image", "decode_image", "decode_jpeg", "decode_png", "decode_gif", "decode_webp")
    ),
}


class Libraries:
    """Patches the transforms of libraries. ``learn`` is called with each transform in a container
    of these libraries whose class has not been looked at."""

    def __init__(self, operations: Operations, learn: Callable[[Any], None]) -> None:
        self._operations, self._learn = operations, learn
        self._looked: set[str] = set()
        self._imported: tuple[int, str] | None = None

    def update(self) -> None:
        """Patch the libraries that have been imported since the last call.

        Called at each ``iter(loader)``: it returns at once if no module was imported since, because
        there may be thousands of modules."""
        names = list(sys.modules)
        imported = len(names), names[-1]
        if imported == self._imported:
            return
        self._imported = imported
        for name, module in list(sys.modules.items()):
            if (
                name.startswith(_FAMILIES)
                and name not in self._looked
                and ".functional" not in name
            ):
                self._looked.add(name)
                self._classes(name, vars(module))
        for name, functions in _READING.items():
            if name in sys.modules and name not in self._looked:
                self._looked.add(name)
                for function, called_by in functions.items():
                    self._operations.function(vars(sys.modules[name]).get(function), called_by)

    def _classes(self, name: str, namespace: dict[str, Any]) -> None:
        for kind in list(namespace.values()):
            if not isinstance(kind, type) or kind.__module__ != name or kind.__name__ in _NOT:
                continue
            if kind.__name__ in _IN_TURN:
                does = call_method(kind)
                if does is not None:
                    self._operations.container(*does, self._learn)
            else:
                self._operations.kind(kind)
