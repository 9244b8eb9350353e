"""The number of items in a batch and of batches in a loader, if it can be found without running
code of the program.

The functions never raise, never wait for a device (only shapes and lengths are read) and never call
the repr of an unknown object. Of an object of a class of the program, only plain fields are read.
Its ``__len__`` is called only if that does nothing but read such fields.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType

from voirkit_instruments.places import Owner, file_owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeGuard

# The fields or samples of a batch are alike, so only the first few are inspected: a list of 10^5
# numbers must not be walked at every step.
_SAMPLED = 8
_DEEPEST = 6
_SINGLE = (int, float, complex, str, bytes)


def count_items(batch: object) -> int | None:
    """Return the number of items in a batch, or None if its type does not tell.

    ============================================ ===================================================
    the batch                                    counts
    ============================================ ===================================================
    tensor, array (anything with a ``shape``)    its first dimension; 1 if it has none
    number, string                               1
    tuple or list with tensors                   the first dimension of the first tensor that has
                                                 one
    tuple or list of numbers or strings          its length
    list of dictionaries with the same keys      its length: it is a list of samples
    list of (tensor, number or dictionary …)     its length: it is a list of samples
    tuple or list of other containers            the items of each container, if all have as many
                                                 (fields); else the length of each container, if all
                                                 are as long (``zip(*samples)``); else its own
                                                 length (samples)
    dictionary, object with attributes or slots  its first tensor that has a dimension, else its
                                                 first container
    tuple of an object and something else        the items of its objects, if all have as many, else
                                                 its length
    ``PackedSequence``, graph batches            the sequences, or the graphs, in it
    object with ``__len__``                      its length; for a class of the program, only if
                                                 ``__len__`` does nothing but read plain fields
    ============================================ ===================================================

    A list of unbatched images (each 3 x H x W) cannot be distinguished from a list of fields; give
    ``batch_size`` with it.
    """
    try:
        return _count(batch, 0)
    except Exception:  # a foreign object may raise anything from shape, len or iteration
        return None


def _is_a(thing: object, kinds: type | tuple[type, ...]) -> TypeGuard[Any]:
    """True if a thing's type is one of the given types or derived from one. Unlike ``isinstance``
    this does not ask a program's object for its ``__class__``."""
    return issubclass(type(thing), kinds)


def _count(batch: object, depth: int) -> int | None:
    if is_of_program(type(batch)):
        return _count_unasked(batch, depth)
    if _is_a(batch, (tuple, list)):
        return _count_sequence(batch, depth)
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if _is_a(batch, _SINGLE):
        return 1
    if batch is None or depth > _DEEPEST:
        return None
    if _is_a(batch, Mapping):
        return _count_fields(batch.values(), depth) if batch else 0
    return _count_object(batch, depth)


def _count_object(batch: object, depth: int) -> int | None:
    """Return the items of a library's object that is none of the usual containers."""
    # attributes of batches in torch_geometric, dgl and others
    for name in ("num_graphs", "batch_size"):
        size = getattr(batch, name, None)
        if type(size) is int:
            return size
    if hasattr(type(batch), "__len__"):
        return len(batch)  # type: ignore[arg-type]  # hasattr has found ``__len__``
    return _count_plain_fields(plain_fields(batch), depth)


def _count_plain_fields(fields: dict[str, Any], depth: int) -> int | None:
    if not fields or depth >= _DEEPEST:
        return None
    return _count_fields(fields.values(), depth)


_of_program: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def is_of_program(kind: type) -> bool:
    """True if a class is the program's own: its behaviour is unknown, unlike that of a class of an
    installed library."""
    if kind.__module__ == "builtins":
        return False
    is_own = _of_program.get(kind)
    if is_own is None:
        is_own = kind.__module__ == "__main__"
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if type(file) is str:
            owner = file_owner(os.path.abspath(file))
            is_own = is_own or owner in (Owner.PROGRAM, Owner.ARCHIVE)
        _of_program[kind] = is_own
    return is_own


def _count_unasked(batch: object, depth: int) -> int | None:
    """Return the items of an object of a class of the program, without running any code of that
    class."""
    if _is_a(batch, tuple):
        return _count_sequence(tuple(tuple.__iter__(batch)), depth)
    if _is_a(batch, list):
        return _count_sequence(list(list.__iter__(batch)), depth)
    if _is_a(batch, dict):
        return _count_fields(dict.values(batch), depth) if dict.__len__(batch) else 0
    fields = plain_fields(batch)
    for name in ("num_graphs", "batch_size"):
        if type(fields.get(name)) is int:
            return int(fields[name])
    shape = _shape(batch)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if only_looks(batch):
        return len(batch)  # type: ignore[arg-type]  # it has a ``__len__`` that only reads fields
    return _count_plain_fields(fields, depth)


def _count_sequence(batch: Sequence[object], depth: int) -> int | None:
    if not batch:
        return 0
    if type(batch) not in (list, tuple):
        sizes = getattr(batch, "batch_sizes", None)
        # ``batch_sizes`` of torch.nn.utils.rnn.PackedSequence is the number of sequences in each
        # time step, on the CPU.
        if sizes is not None:
            return int(sizes[0])
    shape = _shape(batch[0])
    if shape is not None and len(shape):  # the most common case: a list or tuple of tensors
        return int(shape[0])
    first = batch[:_SAMPLED]
    for element in first:
        shape = _shape(element)
        if shape is not None and len(shape):
            return int(shape[0])
    if depth >= _DEEPEST:
        return len(batch)
    return _count_without_tensors(batch, first, depth)


def _count_without_tensors(batch: Sequence[object], first: Sequence[object], depth: int) -> int:
    """Return the items of a sequence whose first elements are not tensors."""
    containers = [element for element in first if _is_a(element, (tuple, list, Mapping))]
    if not containers:
        return _count_objects(batch, first, depth)
    if _are_samples(first) or _are_alike_mappings(first):
        return len(batch)
    size = _common([_count(container, depth + 1) for container in containers])
    if size is None:
        size = _common([len(container) for container in containers])
    return len(batch) if size is None else size


def _are_alike_mappings(elements: Sequence[Any]) -> bool:
    """True for at least two mappings with the same keys: samples that have not been collated."""
    if len(elements) < 2 or not all(_is_a(element, Mapping) for element in elements):
        return False
    keys = elements[0].keys()
    return all(element.keys() == keys for element in elements)


def _common(sizes: Sequence[int | None]) -> int | None:
    """Return the size if all sizes are the same; None if they differ."""
    if not sizes or sizes.count(sizes[0]) < len(sizes):
        return None
    return sizes[0]


def _count_objects(batch: Sequence[object], first: Sequence[object], depth: int) -> int:
    """Return the items of a sequence without tensors and containers.

    A tuple with an object that has fields and something of another type is a batch. Objects of one
    type, and the elements of a list, may be samples.
    """
    is_of_several_types = len(set(map(type, first))) > 1
    if not _is_a(batch, tuple) or not is_of_several_types:
        return len(batch)
    objects = [element for element in first if not _is_a(element, _SINGLE)]
    size = _common([_count(element, depth + 1) for element in objects if plain_fields(element)])
    return len(batch) if size is None else size


def _are_samples(elements: Sequence[Any]) -> bool:
    """True if tuples or lists are samples that have not been collated: they are alike, and each has
    both tensors and other values. In a collated batch, values of one kind are together in one
    field."""
    if not all(_is_a(element, (tuple, list)) for element in elements):
        return False
    rows = {tuple(map(type, element[:_SAMPLED])) for element in elements}
    if len(rows) > 1:
        return False
    shapes = [_shape(part) for part in elements[0][:_SAMPLED]]
    tensors = [shape is not None and len(shape) > 0 for shape in shapes]
    return any(tensors) and not all(tensors)


def plain_fields(thing: object) -> dict[str, Any]:
    """Return the values that an object stores itself, in its ``__slots__`` (those of base classes
    first) and its ``__dict__``. Runs no code of its class."""
    kind = type(thing)
    fields = {}
    for name, slot in _slots(kind):
        try:
            fields[name] = slot.__get__(thing)
        except AttributeError:  # nothing was assigned to this slot
            continue
    attributes = of_class(kind, "__dict__")
    # MemberDescriptorType: the ``__dict__`` of types written in C, such as SimpleNamespace
    if type(attributes) in (GetSetDescriptorType, MemberDescriptorType):
        fields.update(attributes.__get__(thing))
    return fields


_slots_of_classes: weakref.WeakKeyDictionary[type, list[tuple[str, MemberDescriptorType]]] = (
    weakref.WeakKeyDictionary()
)


def _slots(kind: type) -> list[tuple[str, MemberDescriptorType]]:
    """Return names and descriptors of the slots of a class, in the order in which its classes
    declare them."""
    slots = _slots_of_classes.get(kind)
    if slots is None:
        slots = [slot for owner in reversed(kind.__mro__) for slot in _own_slots(owner)]
        _slots_of_classes[kind] = slots
    return slots


def _own_slots(owner: type) -> list[tuple[str, MemberDescriptorType]]:
    """Return the slots that a class itself declares, without members of types written in C.

    ``type.__new__`` of 3.10 to 3.15 puts the descriptors into the class in alphabetical order.
    """
    members = vars(owner)
    declared = members.get("__slots__")
    if declared is None:
        return []
    slots = [
        (name, value) for name, value in members.items() if type(value) is MemberDescriptorType
    ]
    if type(declared) not in (tuple, list, dict):
        return slots
    places = {}
    for place, name in enumerate(declared):
        if type(name) is str:
            places[_mangled(name, owner)] = place
    return sorted(slots, key=lambda slot: places.get(slot[0], len(places)))


def _mangled(name: str, owner: type) -> str:
    """Return a name as the class holds it: Python stores ``__name`` as ``_Class__name``."""
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{owner.__name__.lstrip('_')}{name}" if is_private else name


def _shape(thing: Any) -> Any:
    """Return the shape of a tensor or an array; None for anything without a shape, and for objects
    whose own code would have to run to get it."""
    if not is_of_program(type(thing)):
        return getattr(thing, "shape", None)
    shape = of_class(type(thing), "shape")
    return shape.__get__(thing) if type(shape) is GetSetDescriptorType else None


def _count_fields(values: Iterable[object], depth: int) -> int | None:
    container = None
    has_single = False
    for value in values:
        shape = _shape(value)
        if shape is not None and len(shape):
            return int(shape[0])
        if shape is not None or _is_a(value, _SINGLE):
            has_single = True
        elif container is None:
            container = value
    size = None if container is None else _count(container, depth + 1)
    if size is None and has_single:
        return 1
    return size


class ItemCounter:
    """Counter of items that warns once if a batch cannot be counted.

    Args:
        warn: Called with a sentence; at most once.
        count: Another function to count with. If it raises, the number is unknown.
    """

    def __init__(
        self, warn: Callable[[str], None], count: Callable[[object], object] = count_items
    ) -> None:
        self._warn = warn
        self._count = count
        self._warned = False

    def __call__(self, batch: object) -> int | None:
        """Return the number of items in the batch; None if unknown."""
        try:
            count = self._count(batch)
            if count is not None:
                # a user's function may return anything
                return int(count)  # type: ignore[call-overload, no-any-return]
            because = "its type does not tell"
        except Exception as exc:  # the program's function may raise anything
            because = f"{type(exc).__name__}: {exc}"
        if not self._warned:
            self._warned = True
            self._warn(
                f"a batch of type {type(batch).__qualname__} cannot be counted ({because}) and is"
                " in no rate. Give batch_size=<items> beside it."
            )
        return None


# Prefixes of the opcodes for loads, operators and calls without keywords, common to Python 3.10 to
# 3.13.


_PLAIN_OPCODES = (
    "LOAD_",
    "BINARY_",
    "COMPARE_",
    "UNARY_",
    "RETURN_",
    "CALL",
    "PRECALL",
    "PUSH_NULL",
    "RESUME",
    "CACHE",
    "NOP",
    "COPY_FREE_VARS",
    "TO_BOOL",
)
_HARMLESS = {"len", "int", "sum", "min", "max"}
_PARTS = {"BINARY_SUBSCR", "sum", "min", "max"}  # operations that read the elements of a list
_LIBRARIES = ("torch", "torchvision", "numpy", "pandas")
_PLAIN = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    bool,
    type(None),
    range,
    type,
    property,
    GetSetDescriptorType,
    FunctionType,
)
_LONGEST = 64  # maximum length of a list whose elements are inspected
_DEEPEST_LENGTH = 4
_ABSENT: Any = object()


def batches(loader: Any) -> int | None:
    """Return how many batches an iterator of the loader will have, or None if that cannot be known
    without running code of the program.

    For an iterable dataset, ``len(loader)`` would make torch believe that the program had asked for
    the length. torch would then give a warning that it would not give otherwise.
    """
    from torch.utils.data import IterableDataset  # torch is imported: the loader is torch's

    if issubclass(type(loader.dataset), IterableDataset):
        return None
    fields = getattr(loader.batch_sampler, "__dict__", {})
    samplers = [loader.batch_sampler, loader.sampler, fields.get("sampler")]
    things = [loader, loader.dataset, *samplers]
    for sampler in samplers:
        if _is_library(type(sampler)):
            things.append(getattr(sampler, "__dict__", {}).get("data_source"))
    things = [thing for thing in things if thing is not None]
    # If the loader has its own ``__len__``, things without a length are not checked: such a loader
    # may repeat a sampler forever.
    if not _is_library(of_class(type(loader), "__len__")):
        things = [thing for thing in things if of_class(type(thing), "__len__") is not _ABSENT]
    return len(loader) if all(map(only_looks, things)) else None


def only_looks(thing: object, deep: int = _DEEPEST_LENGTH) -> bool:
    """True if ``len(thing)`` runs no code of the program but a ``__len__`` that only reads plain
    attributes.

    Args:
        thing: Any object; none of its code is run.
        deep: How many objects of the program may be nested.
    """
    kind = type(thing)
    length = of_class(kind, "__len__")
    if type(length) is not FunctionType:
        return type(length).__name__ == "wrapper_descriptor"  # such as that of a list or dictionary
    if deep <= 0 or type(of_class(kind, "__getattribute__")) is FunctionType:
        return False
    code, parts, cells = length.__code__, False, []
    if not _is_library(length):
        operations = _operations(code)
        if operations is None or not _HARMLESS.isdisjoint(length.__globals__):
            return False
        parts = not _PARTS.isdisjoint(operations)
        cells = [cell.cell_contents for cell in length.__closure__ or ()]
    names = [name for name in code.co_names if name not in _HARMLESS]
    values = [*cells, *_values(thing, names)]
    return all(_is_harmless(value, deep, parts, names) for value in values)


@functools.lru_cache(maxsize=128)
def _operations(code: CodeType) -> frozenset[str] | None:
    """Return the operations and names in code that calls only ``len`` and the like, and sets
    nothing; None if the code does more."""
    import dis

    operations = set(code.co_names)
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if not name.startswith(_PLAIN_OPCODES) or name in ("LOAD_METHOD", "LOAD_SUPER_ATTR"):
            return None
        if name.startswith("LOAD_GLOBAL") and instruction.argval not in _HARMLESS:
            return None
        if name == "LOAD_ATTR" and "NULL" in instruction.argrepr:
            return None
        is_part = name == "BINARY_OP" and instruction.argrepr == "[]"  # since Python 3.14
        operations.add("BINARY_SUBSCR" if is_part else name)
    return frozenset(operations)


def _values(thing: Any, names: Iterable[str]) -> list[Any]:
    """Return the values of an object under some names, its own or those of its class. ``_ABSENT``
    stands for a value that only code of the program could return."""
    kind, values = type(thing), []
    fields = vars(thing) if type(of_class(kind, "__dict__")) is GetSetDescriptorType else {}
    for name in names:
        member = of_class(kind, name)
        if type(member) is MemberDescriptorType:  # defined by ``__slots__``
            try:
                values.append(member.__get__(thing))
            except AttributeError:
                values.append(_ABSENT)
        elif type(member) is property:
            values.append(member if _is_library(member.fget) else _ABSENT)
        elif name in fields and not hasattr(type(member), "__set__"):
            values.append(fields[name])
        elif member is not _ABSENT or of_class(kind, "__getattr__") is not _ABSENT:
            values.append(member)
    return values


def _is_harmless(value: Any, deep: int, parts: bool, names: Sequence[str]) -> bool:
    """True if no code of the program runs when a value is read: its length, its attributes under
    some names, and, with ``parts``, its elements."""
    kind = type(value)
    if kind in (list, tuple, dict):
        return not parts or _are_harmless(value.values() if kind is dict else value, deep, names)
    if kind in _PLAIN or _is_library(kind):
        return True
    if of_class(kind, "__len__") is not _ABSENT:
        return only_looks(value, deep - 1)
    if value is _ABSENT or deep <= 0 or type(of_class(kind, "__getattribute__")) is FunctionType:
        return False
    return all(_is_harmless(member, deep - 1, parts, names) for member in _values(value, names))


def _are_harmless(elements: Collection[Any], deep: int, names: Sequence[str]) -> bool:
    """True if no code of the program runs when each element of a list, tuple or dictionary is
    read."""
    if len(elements) > _LONGEST:
        return False
    return all(_is_harmless(element, deep - 1, True, names) for element in elements)


def of_class(kind: type, name: str) -> Any:
    """Return the member of a class or one of its bases under a name, without binding it."""
    return next((vars(owner)[name] for owner in kind.__mro__ if name in vars(owner)), _ABSENT)


def _is_library(thing: Any) -> bool:
    """True for a class or a function of a library whose behaviour is known."""
    module = getattr(thing, "__module__", None) or ""
    return module.partition(".")[0] in _LIBRARIES
