"""From the records of samples to what each operation took, and how much of the training's wait it caused; in one pass, by chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from voirkit.analysis.nesting import Array, parents, without_children
from voirkit_instruments.loader.analysis.lives import NONE, Lives
from voirkit_instruments.loader.analysis.records import EMPTY, Columns, Recorded
from voirkit_instruments.loader.analysis.sources import Sources
from voirkit_instruments.loader.analysis.tally import Tally

# What a record is, by its level: a batch holds samples and their collation; a sample holds operations, and what its dataset asks of others
# (inner). What reads all samples of a batch by one call (items) may hold samples.
PREPROCESS, ITEMS, ITEM, INNER, COLLATE, OPERATION = range(6)
READING = (ITEMS, ITEM, INNER)
_LEVELS = {
    ("data", "preprocess"): PREPROCESS, ("data", "items"): ITEMS, ("data", "item"): ITEM, ("data", "inner"): INNER,
    ("data", "collate"): COLLATE,
}  # fmt: skip


@dataclass
class Operation:
    """One kind of work of one loader.

    Attributes:
        spans: Its runs, each with what lies in it; of samples the time that is in no operation and in no other dataset.
        waited_ns: How much of the time in which training waited the worker that made the awaited batch spent on it.
        offset_ns: Sum of the times from the beginning of the sample to that of the run.
        by_episode: Runs and nanoseconds by the iterator's number.
        of_batches: How many of its runs gave all samples of a batch at once.
    """

    spans: Tally = field(default_factory=Tally)
    waited_ns: float = 0.0
    offset_ns: float = 0.0
    by_episode: dict[int, tuple[int, float]] = field(default_factory=dict)
    of_batches: int = 0


# (loader, level, name, the operation in which it lies or ""): the name is that of an operation, or of what reads samples
Kind = tuple[int, int, str, str]


def operations(recorded: Recorded, sources: Sources, lives: Lives, chunk: int | None = None) -> dict[Kind, Operation]:
    """What each operation of each loader of a rank took.

    Args:
        recorded: The rank's records.
        sources: Its loaders.
        lives: Its batches: which worker made each, and when it was waited for.
        chunk: How many records are held at a time; by default as ``Recorded`` has it.
    """
    level = levels(recorded)
    waits = _waits(lives)
    found: dict[Kind, Operation] = {}
    for part in whole_batches(recorded.of_samples(*([] if chunk is None else [chunk])), level):
        pieces = [_Piece(own, level[own.name], waits.get(thread)) for thread, own in by_thread(part, level)]
        _add(found, recorded, sources, _Piece.joined(pieces))
    return found


def levels(recorded: Recorded) -> Array:
    """The level of each name."""
    return np.array([_LEVELS.get(name, OPERATION) for name in recorded.names], np.int64)


def _waits(lives: Lives) -> dict[int, tuple[Array, Array]]:
    """By thread: when training waited for the batches that it made, as edges of time and the time waited up to each."""
    found = {}
    known = (lives["thread"] != NONE) & (lives["asked_ns"] != NONE)
    for thread in np.unique(lives["thread"][known]).tolist():
        own = known & (lives["thread"] == thread)
        begun, ended = lives["asked_ns"][own], lives["came_ns"][own]
        order = np.argsort(begun)
        begun, ended = begun[order], np.maximum.accumulate(ended[order])
        begun[1:] = np.maximum(begun[1:], ended[:-1])  # waits for several loaders in turn never overlap; be sure
        edges = np.stack([begun, ended], axis=1).reshape(-1)
        spent = np.stack([np.zeros(len(begun), np.int64), ended - begun], axis=1).reshape(-1)
        found[thread] = edges, np.cumsum(spent)
    return found


def whole_batches(chunks: Iterable[Columns], level: Array) -> Iterator[Columns]:
    """The same records, cut anew so that of each thread what lies in a batch comes with the batch."""
    held = EMPTY
    for chunk in chunks:
        part = held.followed_by(chunk)
        batches = level[part.name] == PREPROCESS
        last = np.full(int(part.thread.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        starts = np.full(len(last), NONE)
        np.maximum.at(starts, part.thread[batches], part.start_ns[batches])
        last[starts != NONE] = starts[starts != NONE]
        open_ = part.start_ns >= last[part.thread]
        held = part.take(open_)
        yield part.take(~open_)
    yield held


def by_thread(part: Columns, level: Array) -> Iterator[tuple[int, Columns]]:
    """The records of each thread by their start; of those that start together the longer first, of equal ones what holds others.

    Args:
        part: Records, in any order.
        level: Of each name.
    """
    order = np.lexsort((level[part.name], -part.duration_ns, part.start_ns, part.thread))
    part = part.take(order)
    edges = np.flatnonzero(np.diff(part.thread, prepend=NONE))
    for low, high in zip(edges.tolist(), [*edges.tolist()[1:], len(part)], strict=False):  # no edge of nothing
        yield int(part.thread[low]), part.take(slice(low, high))


class _Piece:
    """Records of one thread (or of several, joined) with what is known of each."""

    def __init__(self, own: Columns, level: Array, waits: tuple[Array, Array] | None) -> None:
        self.own, self.level = own, level
        parent = parents(own.start_ns, own.duration_ns)
        waited = _during(own, waits)
        is_operation = level == OPERATION
        self.spent, self.waited = own.duration_ns.copy(), waited.copy()
        # Of all but operations, what lies in no other record.
        self.spent[~is_operation] = without_children(own.duration_ns, parent)[~is_operation]
        self.waited[~is_operation] = without_children(waited, parent)[~is_operation]
        outer = np.where(parent >= 0, parent, 0)
        self.inside = np.where((parent >= 0) & is_operation & is_operation[outer], own.name[outer], NONE)
        self.again = _again(own.name, parent, is_operation)
        sample = _sample(parent, level)
        self.offset = np.where(sample != NONE, own.start_ns - own.start_ns[np.maximum(sample, 0)], 0)

    @classmethod
    def joined(cls, pieces: list[_Piece]) -> _Piece:
        """One of all."""
        made = cls.__new__(cls)
        made.own = EMPTY
        if pieces:
            made.own = Columns(*(np.concatenate(columns) for columns in zip(*(_columns(p.own) for p in pieces), strict=True)))
        for key in ("level", "spent", "waited", "inside", "again", "offset"):
            setattr(made, key, np.concatenate([getattr(p, key) for p in pieces]) if pieces else np.zeros(0, np.int64))
        return made


def _columns(own: Columns) -> tuple[Array, ...]:
    return own.start_ns, own.duration_ns, own.name, own.args, own.thread, own.value


def _during(own: Columns, waits: tuple[Array, Array] | None) -> Array:
    """How much of each span lies in the waits of its thread."""
    if waits is None:
        return np.zeros(len(own), np.int64)
    edges, spent = waits
    base = int(edges[0])
    upto = (np.interp(at - base, edges - base, spent) for at in (own.start_ns, own.end_ns))
    begun, ended = upto
    return np.rint(ended - begun).astype(np.int64)


def _again(name: Array, parent: Array, is_operation: Array) -> Array:
    """Which operations lie in one of the same name, at any depth: they are counted with it."""
    found = np.zeros(len(name), bool)
    above = np.where(is_operation, parent, NONE)
    while (reached := above >= 0).any():
        at = np.flatnonzero(reached)
        found[at] |= is_operation[above[at]] & (name[above[at]] == name[at])
        above[at] = parent[above[at]]
    return found


def _sample(parent: Array, level: Array) -> Array:
    """The sample that each lies in; ``NONE`` for none."""
    found, above = np.full(len(parent), NONE), parent.copy()
    while (reached := above >= 0).any():
        at = np.flatnonzero(reached)
        found[at] = np.where(level[above[at]] == ITEM, above[at], found[at])
        above[at] = np.where(level[above[at]] == ITEM, NONE, parent[above[at]])
    return found


def _add(found: dict[Kind, Operation], recorded: Recorded, sources: Sources, piece: _Piece) -> None:
    own, is_operation = piece.own, piece.level == OPERATION
    source = sources.of(own)
    readers = len(recorded.names) + recorded.reader[own.args]
    name = np.where(is_operation, own.name, np.where(np.isin(piece.level, READING), readers, NONE))
    counted = (source >= 0) & ~piece.again.astype(bool)
    at, kinds, edges = _grouped(np.flatnonzero(counted), source, piece.level, name, piece.inside)
    names = [*(name for _, name in recorded.names), *recorded.readers]
    whole = recorded.of_whole_batches[own.args]
    for i, (which, level, code, inside) in enumerate(kinds):
        rows = at[edges[i] : edges[i + 1]]
        kind = (which, level, "" if code == NONE else names[code], "" if inside == NONE else names[inside])
        operation = found.setdefault(kind, Operation())
        operation.spans.add(piece.spent[rows])
        operation.waited_ns += float(piece.waited[rows].sum())
        operation.offset_ns += float(piece.offset[rows].sum())
        operation.of_batches += int(whole[rows].sum())
        counts, sums = np.bincount(own.args[rows]), np.bincount(own.args[rows], weights=piece.spent[rows])
        for args in np.flatnonzero(counts).tolist():
            episode = int(sources.episode[args])
            n, spent = operation.by_episode.get(episode, (0, 0.0))
            operation.by_episode[episode] = n + int(counts[args]), spent + float(sums[args])


def _grouped(rows: Array, *columns: Array) -> tuple[Array, list[tuple[int, ...]], Array]:
    """Rows in order of their values in some columns of small numbers from -1 on: the rows, the values of each group, the groups' edges."""
    key = np.zeros(len(rows), np.int64)
    widths = [int(column.max(initial=-1)) + 2 for column in columns]
    for column, width in zip(columns, widths, strict=True):
        key = key * width + column[rows] + 1
    present = np.flatnonzero(np.bincount(key, minlength=1))
    dense = np.zeros(int(key.max(initial=0)) + 1, np.uint16)  # numpy sorts short numbers in one pass, ten times as fast
    dense[present] = np.arange(len(present))
    group = dense[key]
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(present) + 1))
    values = []
    for number in present.tolist() if len(rows) else ():
        parts = []
        for width in reversed(widths):
            number, part = divmod(number, width)
            parts.append(part - 1)
        values.append(tuple(reversed(parts)))
    return rows[order], values, edges
