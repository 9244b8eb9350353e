"""How many items a batch holds, whatever its type: what every rate divides by a time.

Never raises, never waits for a device (only shapes and lengths are read), never asks an unknown object for its repr, and runs no code of
the program: of an object of a class of its own only plain fields are looked at, and a length that does nothing but look at such.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping
from types import GetSetDescriptorType

from voirkit_instruments.steps.record_lengths import of_class, only_looks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

# A batch's fields or samples look alike: the first few tell, and a list of 10^5 numbers must not be walked at every
# step.
_LOOKED_AT = 8
_DEEPEST = 6
_SINGLE = (int, float, complex, str, bytes)


def count_items(batch: object) -> int | None:
    """The number of items in a batch, or None if its type does not tell.

    ==========================================  ===========================================================
    the batch                                   counts
    ==========================================  ===========================================================
    tensor, array (anything with a ``shape``)   its first dimension; 1 if it has none
    number, string                              1
    tuple or list with tensors                  the first dimension of the first tensor that has one
    tuple or list of numbers or strings         its length
    list of dictionaries with the same keys     its length: it is a list of samples
    list of (tensor, number or dictionary …)    its length: the same
    tuple or list of other containers           what they agree on (fields), else their common length
                                                (``zip(*samples)``), else its own length (samples)
    dictionary, object with attributes          its first tensor that has a dimension, else its first container
    ``PackedSequence``, graph batches           the sequences, the graphs in it
    object with ``__len__``                     its length; of a class of the program, if that only looks at plain fields
    ==========================================  ===========================================================

    A list of unbatched images (each 3 x H x W) can not be told from a list of fields; give ``batch_size`` beside it.
    """
    try:
        return _count(batch, 0)
    except Exception:  # a foreign object may raise anything from shape, len or iteration
        return None


def _count(batch: object, depth: int) -> int | None:
    if is_of_program(type(batch)):
        return _count_unasked(batch, depth)
    if isinstance(batch, (tuple, list)):
        return _count_sequence(batch, depth)
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if isinstance(batch, _SINGLE):
        return 1
    if batch is None or depth > _DEEPEST:
        return None
    if isinstance(batch, Mapping):
        return _count_fields(batch.values(), depth) if batch else 0
    for name in ("num_graphs", "batch_size"):  # torch_geometric, dgl and the like say it themselves
        size = getattr(batch, name, None)
        if type(size) is int:
            return size
    if hasattr(type(batch), "__len__"):
        return len(batch)  # type: ignore[arg-type]  # hasattr has just looked
    attributes = getattr(batch, "__dict__", None)
    return _count_fields(attributes.values(), depth) if attributes and depth < _DEEPEST else None


_of_program: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def is_of_program(kind: type) -> bool:
    """Whether a class is the program's own: what it does when it is asked something is not known, as it is of an installed library's."""
    if kind.__module__ == "builtins":
        return False
    found = _of_program.get(kind)
    if found is None:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        is_library = file is None or "site-packages" in file or "dist-packages" in file or file.startswith(os.path.dirname(os.__file__))
        found = _of_program[kind] = kind.__module__ == "__main__" or not is_library
    return found


def _count_unasked(batch: object, depth: int) -> int | None:
    """The items of an object of a class of the program, without running any code of that class."""
    if isinstance(batch, tuple):
        return _count_sequence(tuple(tuple.__iter__(batch)), depth)
    if isinstance(batch, list):
        return _count_sequence(list(list.__iter__(batch)), depth)
    if isinstance(batch, dict):
        return _count_fields(dict.values(batch), depth) if dict.__len__(batch) else 0
    own = of_class(type(batch), "__dict__")
    fields = own.__get__(batch) if type(own) is GetSetDescriptorType else {}
    for name in ("num_graphs", "batch_size"):
        if type(fields.get(name)) is int:
            return int(fields[name])
    shape = _shape(batch)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if only_looks(batch):
        return len(batch)  # type: ignore[arg-type]  # it has one, and it only looks
    return _count_fields(fields.values(), depth) if fields and depth < _DEEPEST else None


def _count_sequence(batch: Sequence[object], depth: int) -> int | None:
    if not batch:
        return 0
    if type(batch) not in (list, tuple):
        sizes = getattr(batch, "batch_sizes", None)
        if sizes is not None:  # torch.nn.utils.rnn.PackedSequence: how many sequences go into each time step, on the CPU
            return int(sizes[0])
    shape = _shape(batch[0])
    if shape is not None and len(shape):  # by far the most usual
        return int(shape[0])
    start = batch[:_LOOKED_AT]
    for element in start:
        shape = _shape(element)
        if shape is not None and len(shape):
            return int(shape[0])
    containers = [e for e in start if isinstance(e, (tuple, list, Mapping))]
    if not containers or depth >= _DEEPEST:
        return len(batch)
    if _are_samples(start):
        return len(batch)
    mappings = [e for e in containers if isinstance(e, Mapping)]
    if len(mappings) == len(start) > 1 and all(m.keys() == mappings[0].keys() for m in mappings):
        return len(batch)
    for sizes in ([_count(e, depth + 1) for e in containers], [len(e) for e in containers]):
        if sizes[0] is not None and sizes.count(sizes[0]) == len(sizes):
            return sizes[0]
    return len(batch)


def _are_samples(elements: Sequence[object]) -> bool:
    """Whether tuples or lists are samples that nothing has collated: alike, and each a tensor beside what is none.

    Collated, fields of one kind lie together.
    """
    if not all(isinstance(e, (tuple, list)) for e in elements):
        return False
    rows = [tuple(type(part) for part in e[:_LOOKED_AT]) for e in elements]  # type: ignore[index]  # just looked at
    if len(set(rows)) > 1:
        return False
    tensors = [(shape := _shape(part)) is not None and len(shape) > 0 for part in elements[0][:_LOOKED_AT]]  # type: ignore[index]
    return any(tensors) and not all(tensors)


def _shape(thing: Any) -> Any:
    """The shape of a tensor or an array; None of what has none, and of what would have to be asked for it."""
    if not is_of_program(type(thing)):
        return getattr(thing, "shape", None)
    shape = of_class(type(thing), "shape")
    return shape.__get__(thing) if type(shape) is GetSetDescriptorType else None


def _count_fields(values: Iterable[object], depth: int) -> int | None:
    container = None
    single = False
    for value in values:
        shape = _shape(value)
        if shape is not None and len(shape):
            return int(shape[0])
        single = single or shape is not None or isinstance(value, _SINGLE)
        if container is None and value is not None and not isinstance(value, _SINGLE) and shape is None:
            container = value
    counted = _count(container, depth + 1) if container is not None else None
    return counted if counted is not None else 1 if single else None


class ItemCounter:
    """Counts items, and says once that a batch's type does not tell.

    Args:
        warn: Takes the sentence to be said; called at most once.
        count: Another way to count; whatever it raises counts as unknown.
    """

    def __init__(self, warn: Callable[[str], None], count: Callable[[object], object] = count_items) -> None:
        self._warn = warn
        self._count = count
        self._warned = False

    def __call__(self, batch: object) -> int | None:
        """The items in the batch; None if unknown."""
        try:
            counted = self._count(batch)
            if counted is not None:
                return int(counted)  # type: ignore[call-overload, no-any-return]  # a user's function may return anything
            because = "its type does not tell"
        except Exception as exc:
            because = f"{type(exc).__name__}: {exc}"
        if not self._warned:
            self._warned = True
            self._warn(
                f"a batch of type {type(batch).__qualname__} can not be counted ({because}) and is in no rate. "
                "Give batch_size=<items> beside it."
            )
        return None
