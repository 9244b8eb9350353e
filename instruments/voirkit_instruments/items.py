"""How many items a batch holds, whatever its type: what every rate divides by a time.

Never raises, never waits for a device (only shapes and lengths are read), and never asks an unknown object for its
repr.
"""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
    tuple or list of other containers           what they agree on (fields), else their common length
                                                (``zip(*samples)``), else its own length (samples)
    dictionary, object with attributes          its first tensor that has a dimension, else its first container
    ``PackedSequence``, graph batches           the sequences, the graphs in it
    object with ``__len__``                     its length
    ==========================================  ===========================================================

    A list of unbatched images (each 3 x H x W) can not be told from a list of fields; give ``batch_size`` beside it.
    """
    try:
        return _count(batch, 0)
    except Exception:  # a foreign object may raise anything from shape, len or iteration
        return None


def _count(batch: object, depth: int) -> int | None:
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


def _count_sequence(batch: Sequence[object], depth: int) -> int | None:
    if not batch:
        return 0
    if type(batch) not in (list, tuple):
        sizes = getattr(batch, "batch_sizes", None)
        if sizes is not None:  # torch.nn.utils.rnn.PackedSequence: how many sequences go into each time step, on the CPU
            return int(sizes[0])
    shape = getattr(batch[0], "shape", None)
    if shape is not None and len(shape):  # by far the most usual
        return int(shape[0])
    start = batch[:_LOOKED_AT]
    for element in start:
        shape = getattr(element, "shape", None)
        if shape is not None and len(shape):
            return int(shape[0])
    containers = [e for e in start if isinstance(e, (tuple, list, Mapping))]
    if not containers or depth >= _DEEPEST:
        return len(batch)
    mappings = [e for e in containers if isinstance(e, Mapping)]
    if len(mappings) == len(start) > 1 and all(m.keys() == mappings[0].keys() for m in mappings):
        return len(batch)
    for sizes in ([_count(e, depth + 1) for e in containers], [len(e) for e in containers]):
        if sizes[0] is not None and sizes.count(sizes[0]) == len(sizes):
            return sizes[0]
    return len(batch)


def _count_fields(values: Iterable[object], depth: int) -> int | None:
    container = None
    single = False
    for value in values:
        shape = getattr(value, "shape", None)
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
