"""Padding in batches: how many elements of a tensor of token ids repeat one id at the end or the
beginning of rows.

Only a few batches are read, and only a few rows of a tensor. No code of the program is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from types import ModuleType
from typing import Any

from voirkit_instruments.checks.record_facts import is_quiet
from voirkit_instruments.steps.batch_sizes import plain_fields
from voirkit_instruments.values import is_readable, quiet

FEWEST_COLUMNS, FEWEST_ROWS = 8, 2
_MOST_ELEMENTS, _MOST_ROWS, _ROWS_OF_IDS = 1 << 17, 64, 8
# least number of distinct ids, beside padding, in a tensor of token ids; a mask or a one-hot row
# has fewer
_FEWEST_IDS = 8
# largest share of the elements outside the padding that may equal the padding id: an
# end-of-sequence id, which occurs there, is also used as padding
_INSIDE = 0.05
_DEEPEST, _MOST_FIELDS = 3, 64


@dataclass(frozen=True)
class RowPadding:
    """Padding in some rows of a tensor.

    Attributes:
        tokens: Number of elements that were read.
        padding: How many of these elements are padding.
        columns: Length of a row.
        longest: The largest number of elements in a row that are not padding.
        shortest: The smallest number of elements in a row that are not padding.
        token: The id used as padding; -1 without padding.
        side: The side of the rows where the padding is: ``end`` or ``begin``.
    """

    tokens: int
    padding: int
    columns: int
    longest: int
    shortest: int
    token: int
    side: str

    def document(self) -> dict[str, Any]:
        """Return the arguments of a ``padding`` fact."""
        return asdict(self)


def inspect_padding(torch: ModuleType, batch: Any) -> RowPadding | None:
    """Return the padding in a batch, from the tensor of token ids that has the most; None if no
    tensor can hold token ids."""
    inspected = []
    with quiet(), torch._C.DisableTorchFunction():
        if not is_quiet(torch):
            return None
        with torch.no_grad():
            for tensor in _tensors(torch, batch, _DEEPEST):
                padding = _padding_of_rows(torch, tensor)
                if padding is not None:
                    inspected.append(padding)
    return max(inspected, key=lambda rows: (rows.padding, rows.tokens), default=None)


def _tensors(torch: ModuleType, part: Any, depth: int) -> Iterator[Any]:
    """Yield the tensors in a batch that may hold token ids: int32 or int64, two-dimensional, on the
    CPU."""
    if type(part) is torch.Tensor:
        is_whole = part.dtype in (torch.int64, torch.int32)
        if is_whole and part.ndim == 2 and part.device.type == "cpu" and is_readable(torch, part):
            rows, columns = part.shape
            if rows >= FEWEST_ROWS and columns >= FEWEST_COLUMNS:
                yield part
        return
    if not depth:
        return
    for field in islice(_fields(part), _MOST_FIELDS):
        yield from _tensors(torch, field, depth - 1)


def _fields(part: Any) -> Iterator[Any]:
    """The elements of a container, read with Python's own methods: a class of the program may
    override them."""
    kind = type(part)
    if issubclass(kind, tuple):
        return tuple.__iter__(part)
    if issubclass(kind, list):
        return list.__iter__(part)
    if issubclass(kind, dict):
        return iter(dict.values(part))
    # a transformers.BatchEncoding keeps its dictionary in ``data``
    return iter(plain_fields(part).values())


def _padding_of_rows(torch: ModuleType, tensor: Any) -> RowPadding | None:
    """Return the padding at the end or beginning of a tensor's rows. Zero padding is returned if
    the rows do not look padded, and None if they hold no token ids."""
    most_rows = max(FEWEST_ROWS, min(_MOST_ROWS, _MOST_ELEMENTS // tensor.shape[1]))
    rows = tensor[:: -(-len(tensor) // most_rows)]
    if int(rows.min()) < 0:
        return None
    columns = rows.shape[1]
    kinds = []
    for side, ordered in (("end", rows.flip(1)), ("begin", rows)):
        token = int(ordered[:, 0].mode().values)
        same = ordered == token
        lengths = same.long().cumprod(1).sum(1)
        inside = int(same.sum()) - int(lengths.sum())
        kinds.append((int(lengths.sum()), inside, token, side, lengths))
    padding, inside, token, side, lengths = max(kinds, key=lambda kind: kind[0])
    tokens = rows.numel()
    ids = torch.unique(rows[:_ROWS_OF_IDS])
    if len(ids) - 1 < _FEWEST_IDS:
        return None
    shortest, longest = columns - int(lengths.max()), columns - int(lengths.min())
    # no padding if the id is too frequent among the tokens, or fills a whole row: a row that
    # repeats one id throughout holds no tokens
    if inside > _INSIDE * (tokens - padding) or not shortest:
        return RowPadding(tokens, 0, columns, columns, columns, -1, side)
    return RowPadding(tokens, padding, columns, longest, shortest, token, side)
