"""Recording of data for ``--checks``: epochs of loaders, random generators of the processes that
prepare batches, and ranks.

Only what torch itself requests from samplers is observed. Generators are only read: Python's,
numpy's and torch's own, and those that the dataset keeps. No random number is drawn, and no code of
the program is called. The facts:

- ``epoch``: all batches of a loader were drawn. The fact says which samples were requested, in
  which order and with which labels. The loader's iterator has no more batches, or as many were
  drawn as ``len(loader)`` returned to the program or as torch's own samplers have indices for;
- ``drawn``: the state of a generator before a worker's first batch, and after the first batch that
  drew from it;
- ``held``: a digest of each of the first batches that a worker reads from an iterable dataset;
- ``padding``: how much of a batch of token ids is padding, if the batch was trained on;
- only with several ranks: ``world``, the number of ranks; ``weights``, the sizes of their
  parameters; ``parallel``, a call of a DistributedDataParallel; ``collective``, the program itself
  sends tensors of more than one number between ranks.
"""

from __future__ import annotations

import random
import sys
import time
import weakref
from array import array
from collections.abc import Iterator
from itertools import chain, count, pairwise
from pickle import dumps
from types import ModuleType
from typing import Any
from zlib import crc32

from voirkit.probes.around import ABSENT
from voirkit.runs.manifest import rank_and_world_size
from voirkit_instruments.checks.record_facts import Facts, Watcher, digests, is_quiet, never_raises
from voirkit_instruments.checks.record_padding import RowPadding, inspect_padding
from voirkit_instruments.identity import IdentityMap, Ordinals
from voirkit_instruments.loader.record_workers import whole
from voirkit_instruments.steps.batch_sizes import only_looks
from voirkit_instruments.values import is_readable, quiet

now = time.perf_counter_ns

_MOST = 4_000_000  # most indices of an epoch that are kept, at 8 bytes each
_MOST_PASSES = 5000
# The first ``_FIRST_BATCHES`` batches of a loader are all inspected for padding; later, at most
# ``_RARELY`` batches lie between two inspections.
_FIRST_BATCHES, _RARELY = 4, 1024
_MOST_LABELS, _MOST_CLASSES = 1_000_000, 4096
# number of first batches of an epoch, or of a worker, of which a digest is kept, to find out if
# another rank or worker reads the same
_CONTENTS = 2


class Epoch:
    """One pass over a loader; ``args`` are the arguments of its fact."""

    def __init__(self, loader: int, where: str | None, args: dict[str, Any]) -> None:
        self.loader = loader
        self.where = where
        self.args = args
        self.start_ns = now()
        # the indices requested so far; None if they are not whole numbers, if there are too many,
        # or for an iterable dataset
        self.indices: array[int] | None = array("q") if args["map"] else None
        self.ends: list[int] = []  # number of indices after each batch
        self.exhausted = False  # True if the sampler has no more indices
        self.batches = 0
        # number of samples of each label; None if no labels are known
        self.classes: dict[Any, int] | None = {} if args["map"] else None
        self.runs = 0  # number of runs (unbroken sequences) of equal labels
        self.last_label: Any = None
        self.contents: list[int | None] = []  # digests of the first batches
        self.written_down = False
        self.made_by: weakref.ref[Any] | None = None  # a weak reference to the loader
        self.n_indices = -1  # number of indices of the loader's sampler; -1 if unknown
        # time of the last batch; 0 before, or if the number of batches is unknown
        self.complete_ns = 0
        # number of batches after which an optimizer stepped before any other batch was drawn
        self.trained = 0


class Epochs(Watcher):
    """Code that runs around functions of loaders and their iterators, and records epochs."""

    def __init__(self, facts: Facts, torch: ModuleType, drawing: Drawing) -> None:
        super().__init__(facts, torch)
        self._drawing = drawing
        self._name = facts.name("epoch")
        self._ordinals = Ordinals()
        self._numbers = count()
        self._of_several = rank_and_world_size()[1] > 1
        # by loader: the line where the loader was made, and its argument ``shuffle``
        self._made = IdentityMap()
        self._lengths = IdentityMap()  # by loader: the last result of ``len(loader)``
        self._passes = IdentityMap()  # by iterator: its epoch
        # Epochs of which all batches were drawn. They are written when the iterator has no more
        # batches. They are also written when a batch of another iterator, or a new iterator, is
        # requested, which shows that the program has left the loop over the epoch.
        self._complete: list[Epoch] = []
        self._latest: Epoch | None = None  # epoch of the batch that was drawn last
        self._steps_before = 0  # number of optimizer steps before the last batch was drawn
        self._batches: dict[int, int] = {}  # number of drawn batches, by loader
        # of the batch drawn last: epoch, padding, and number of backward passes before the batch
        self._padding: tuple[Epoch, RowPadding, int] | None = None

    def enter_made(self, shuffle: Any) -> Any:
        """Keep ``shuffle`` before ``DataLoader.__init__``, which turns it into a bool."""
        return (shuffle,)

    @never_raises("a loader")
    def leave_made(self, given: Any, _was: int, loader: Any) -> None:
        shuffle = given[0] if given and type(given[0]) is bool else None
        self._made[loader] = (self._facts.where(), shuffle)

    @never_raises("a loader's length")
    def leave_len(self, _start_ns: int, _was: int, loader: Any, value: Any) -> None:
        if type(value) is int:
            self._lengths[loader] = value

    @never_raises("a loader's iterator")
    def enter_iterator(self, iterator: Any, loader: Any) -> int:
        self._write_complete()
        number = next(self._numbers)
        if number < _MOST_PASSES:
            length = self._lengths.get(loader)
            args = {"iterator": number, **self._describe(loader), "turn": 0}
            args["said"] = -1 if length is None else length
            epoch = Epoch(self._ordinals.of(loader), self._facts.where(), args)
            epoch.made_by = weakref.ref(loader)
            epoch.n_indices = count_indices(loader)
            self._passes[iterator] = epoch
            self._drawing.making = number
        return 1

    @never_raises("a loader's iterator")
    def enter_again(self, iterator: Any, first_iter: Any) -> int:
        """Begin a new epoch before ``_BaseDataLoaderIter._reset``, by which an iterator with
        persistent workers starts again."""
        self._write_complete()
        before = None if first_iter else self._epoch(iterator)
        if before is not None:
            args = {**before.args, "turn": before.args["turn"] + 1}
            epoch = Epoch(before.loader, self._facts.where(), args)
            epoch.made_by = before.made_by
            epoch.n_indices = before.n_indices
            self._passes[iterator] = epoch
        return 1

    @never_raises("a sampler")
    def leave_index(self, _start_ns: int, _was: int, iterator: Any, value: Any) -> None:
        """Add the index, or the indices of a batch, that the sampler has given; or note its end."""
        epoch = self._epoch(iterator)
        if epoch is None or epoch.exhausted:
            return
        if value is ABSENT:
            epoch.exhausted = sys.exc_info()[0] is StopIteration
        elif epoch.indices is not None:
            _add(epoch, value)

    @never_raises("a batch")
    def leave_next(self, _start_ns: int, _was: int, iterator: Any, value: Any) -> None:
        epoch = self._epoch(iterator)
        if epoch is None:
            return
        if value is ABSENT:
            if sys.exc_info()[0] is StopIteration:
                self._write(epoch)
            return
        self._note_drawn(epoch)
        epoch.batches += 1
        self._look_for_padding(epoch, value)
        if len(epoch.contents) < _CONTENTS and self._of_several:
            epoch.contents.append(content(self._torch, value))
        if epoch.classes is not None:
            self._count_labels(epoch, value)
        if self._has_all(epoch):
            epoch.complete_ns = now()
            self._complete.append(epoch)

    def _note_drawn(self, epoch: Epoch) -> None:
        """Note that a batch was drawn. Epochs that were complete before it are written, except the
        batch's own, which was not complete."""
        self._mark_padding()
        steps = self._facts.n_steps
        if self._latest is not None and steps > self._steps_before and not self._latest.complete_ns:
            self._latest.trained += 1
        self._latest, self._steps_before = epoch, steps
        if self._complete:
            self._complete = [other for other in self._complete if other is not epoch]
            self._write_complete()

    def _look_for_padding(self, epoch: Epoch, batch: Any) -> None:
        """Inspect a few of a loader's batches for padding."""
        n = self._batches[epoch.loader] = self._batches.get(epoch.loader, 0) + 1
        if n > _FIRST_BATCHES and n & (n - 1) and n % _RARELY:
            return
        start_ns = now()
        padding = inspect_padding(self._torch, batch)
        if padding is not None:
            self._padding = (epoch, padding, self._facts.n_passes)
        self._facts.cost.add(start_ns, now())

    def _mark_padding(self) -> None:
        """Record the padding that the last inspection found, if its batch was trained on."""
        if self._padding is None:
            return
        epoch, padding, passes = self._padding
        self._padding = None
        if self._facts.n_passes > passes:
            where = epoch.args["made"] or epoch.where
            self._facts.mark("padding", where, epoch.loader, **padding.document())

    def _has_all(self, epoch: Epoch) -> bool:
        """True if all batches of an epoch were drawn, as far as their number is known."""
        n = -1 if epoch.indices is None else len(epoch.indices)
        if n >= 0 and n == epoch.n_indices and epoch.batches == len(epoch.ends):
            epoch.exhausted = True
            return True
        loader = None if epoch.made_by is None else epoch.made_by()
        return loader is not None and epoch.batches == self._lengths.get(loader)

    def _write_complete(self) -> None:
        complete, self._complete = self._complete, []
        for epoch in complete:
            self._write(epoch, by_count=True)

    @never_raises("an epoch")
    def finish(self) -> None:
        """Write the remaining facts when the program has ended."""
        self._mark_padding()
        self._write_complete()

    def _epoch(self, iterator: Any) -> Epoch | None:
        epoch: Epoch | None = self._passes.get(iterator)
        return epoch

    def _describe(self, loader: Any) -> dict[str, Any]:
        """Return the arguments about a loader and its parts, read only from stored attributes."""
        fields = vars(loader)
        data = sys.modules["torch.utils.data"]
        dataset, batch_sampler = fields.get("dataset"), fields.get("batch_sampler")
        of_batches = _attributes(batch_sampler)
        sampler = batch_sampler
        if batch_sampler is None:
            sampler = fields.get("sampler")
        elif type(batch_sampler) is data.BatchSampler:
            sampler = of_batches.get("sampler")
        of_sampler = _attributes(sampler)
        where, shuffle = self._made.get(loader) or (None, None)
        batch_size = of_batches.get("batch_size", fields.get("batch_size"))
        kind, sampler_kind = type(dataset), type(sampler)
        replicas = _whole(of_sampler.get("num_replicas"))
        workers = _whole(fields.get("num_workers"))
        return {
            "made": where,
            "shuffle": shuffle,
            "map": not issubclass(kind, data.IterableDataset),
            "dataset": kind.__qualname__,
            "sampler": f"{sampler_kind.__module__}.{sampler_kind.__qualname__}",
            "replacement": of_sampler.get("replacement") is True,
            "replicas": replicas,
            "workers": workers,
            "batch_size": _whole(batch_size),
            "size": size_of(dataset),
            "ordered": is_ascending(data, dataset),
        }

    def _count_labels(self, epoch: Epoch, batch: Any) -> None:
        batch_labels, classes = labels(self._torch, batch), epoch.classes
        if batch_labels is None or classes is None or len(classes) > _MOST_CLASSES:
            epoch.classes = None  # count no labels: those of a part of the samples prove nothing
            return
        if epoch.batches * len(batch_labels) > _MOST_LABELS:
            epoch.classes = None
            return
        for label in batch_labels:
            epoch.runs += label != epoch.last_label or not classes
            epoch.last_label = label
            classes[label] = classes.get(label, 0) + 1

    def _write(self, epoch: Epoch, by_count: bool = False) -> None:
        if epoch.written_down:
            return
        epoch.written_down = True
        args = {**epoch.args, "batches": epoch.batches, "exhausted": epoch.exhausted}
        # Record how many batches were trained on, because the epoch may not be a training epoch: a
        # loop that trains on one loader's batches may draw validation batches one by one.
        if by_count:
            args["trained"] = epoch.trained
        if epoch.indices is not None:
            args |= _figures(epoch.indices, epoch.ends, args["size"])
        if epoch.classes:
            sizes = epoch.classes.values()
            n = sum(sizes)
            # expected number of runs of equal labels if the order is random
            random_runs = n + 1 - sum(size * size for size in sizes) / n
            args["labels"] = n
            args["classes"] = len(sizes)
            args["runs"] = epoch.runs
            args["random_runs"] = round(random_runs, 1)
        contents = [value for value in epoch.contents if value is not None]
        if contents and len(contents) == len(epoch.contents):
            args["content"] = crc32(array("q", contents).tobytes())
        end_ns = epoch.complete_ns if by_count else now()
        arguments = self._facts.arguments(epoch.where, **args)
        self._facts.span(self._name, epoch.start_ns, end_ns, arguments, epoch.loader)


def _add(epoch: Epoch, value: Any) -> None:
    """Add requested indices to an epoch: one index, or those of a batch."""
    indices = epoch.indices
    assert indices is not None
    more = value if type(value) in (list, tuple) else [value]
    if set(map(type, more)) - {int}:
        more = [whole(index) for index in more]
        if -1 in more:  # an index is not a whole number, but a name, a pair ...
            epoch.indices = epoch.classes = None
            return
    n = len(indices)
    in_order = range(n, n + len(more))
    if epoch.classes is not None and list(more) != list(in_order):
        epoch.classes = None  # count no labels: they are only useful in the order of the dataset
    indices.extend(more)
    epoch.ends.append(len(indices))
    if len(indices) > _MOST:
        epoch.indices = None


def _figures(indices: array[int], ends: list[int], size: int) -> dict[str, Any]:
    """Return the arguments about an epoch's indices. ``ends`` is the number of indices after each
    batch; ``size`` is the number of samples in the dataset, -1 if unknown."""
    n = len(indices)
    distinct, missed, first_missed, digest = _count_distinct(indices, size)
    is_sequential = n > 1 and indices[-1] - indices[0] == n - 1
    if is_sequential:
        is_sequential = indices == array("q", range(indices[0], indices[0] + n))
    seams = [end for end in ends[:-1] if 0 < end < n]
    n_repeated = sum(indices[end - 1] == indices[end] for end in seams)
    figures = {
        "n": n,
        "distinct": distinct,
        "order": crc32(indices.tobytes()),
        "set": digest,
        "sequential": is_sequential,
        "at_seams": n_repeated,
    }
    if size >= 0:
        figures["missed"] = missed
        figures["missed_first"] = first_missed
    return figures


def _count_distinct(indices: array[int], size: int) -> tuple[int, int, int, int]:
    """Return the number of distinct indices, the number of missing indices below ``size``, the
    first missing index (or -1), and a digest of the set of indices."""
    numpy = sys.modules.get("numpy")
    missing: Any = []
    if numpy is None or not indices:
        distinct = set(indices)
        present: Any = sorted(distinct)
        if len(distinct) < size:
            missing = [index for index in range(size) if index not in distinct]
        digest = crc32(array("q", present).tobytes())
    else:  # with numpy, which takes 0.1 s for a million indices
        present = numpy.unique(numpy.frombuffer(indices, dtype=numpy.int64))
        if len(present) < size:
            missing = numpy.setdiff1d(numpy.arange(size), present, assume_unique=True)
        digest = crc32(present.tobytes())
    first_missing = int(missing[0]) if len(missing) else -1
    return len(present), len(missing), first_missing, digest


def _attributes(thing: Any) -> dict[str, Any]:
    """Return the attributes that an object stores itself; computed ones are not read."""
    try:
        attributes: dict[str, Any] = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return attributes


def _whole(value: Any) -> int:
    return value if type(value) is int else -1


_FETCHES = 16  # number of first batches of a fetcher after each of which generators are compared
_MOST_EPOCHS = 200
# limits of the search in a dataset for generators
_MOST_OBJECTS, _MOST_PARTS, _DEEPEST = 200, 50, 3


class Fetching:
    """The state of one fetcher, which prepares the batches of one epoch in one worker."""

    def __init__(self, place: dict[str, int], before: dict[str, int]) -> None:
        # ``iterator``: its number; ``turn``: how many epochs the iterator had before; ``worker``:
        # the worker's number, -1 without workers
        self.place = place
        # by generator: its state at the start; removed once the state has changed
        self.before = before
        self.n = 0  # number of batches that the fetcher has prepared


class Drawing(Watcher):
    """Code that runs around fetchers, and records random draws."""

    # number of the iterator that was made last; in a worker, of the iterator that the worker is for
    making = -1

    def __init__(self, facts: Facts, torch: ModuleType) -> None:
        super().__init__(facts, torch)
        self._turns: dict[int, int] = {}
        self._fetching = IdentityMap()

    @never_raises("a worker's generators")
    def enter_made(self, fetcher: Any, dataset: Any) -> int:
        """Note the states of generators before ``_BaseDatasetFetcher.__init__``, when a worker has
        seeded them and is about to begin."""
        info = sys.modules["torch.utils.data"].get_worker_info()
        turn = self._turns[self.making] = self._turns.get(self.making, -1) + 1
        if max(self.making, turn) < _MOST_EPOCHS:
            worker = -1 if info is None else info.id
            place = {"iterator": self.making, "turn": turn, "worker": worker}
            self._fetching[fetcher] = Fetching(place, states(self._torch, dataset))
        return 1

    @never_raises("a worker's generators")
    def leave_fetch(self, _start_ns: int, _was: int, fetcher: Any, value: Any) -> None:
        fetching: Fetching | None = self._fetching.get(fetcher)
        if fetching is None or value is ABSENT or fetching.n >= _FETCHES:
            return
        fetching.n += 1
        if fetching.before:
            self._compare_states(fetching, fetcher.dataset)
        if fetching.n > _CONTENTS or fetching.place["worker"] < 0:
            return
        if hasattr(fetcher, "dataset_iter"):
            digest = content(self._torch, value)
            if digest is not None:
                self._facts.mark("held", None, digest, **fetching.place, batch=fetching.n)

    def _compare_states(self, fetching: Fetching, dataset: Any) -> None:
        after = states(self._torch, dataset)
        for generator, before in list(fetching.before.items()):
            if after.get(generator) == before:
                continue
            del fetching.before[generator]
            if generator in after:
                self._facts.mark(
                    "drawn",
                    **fetching.place,
                    which=generator,
                    before=before,
                    after=after[generator],
                    batch=fetching.n,
                )


def states(torch: ModuleType, dataset: Any) -> dict[str, int]:
    """Return a dict from name to a digest of its state, for all generators that a dataset may draw
    from."""
    digests_by_name = {"random": crc32(array("Q", random.getstate()[1]).tobytes())}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        digests_by_name["numpy.random"] = crc32(dumps(numpy.get_state()))
    if is_quiet(torch):
        with quiet(), torch._C.DisableTorchFunction():
            digests_by_name["torch"] = crc32(torch.get_rng_state().numpy())
    for name, generator in _generators(torch, dataset):
        state = _state(torch, generator)
        if state is not None:
            digests_by_name[name] = state
    return digests_by_name


def _state(torch: ModuleType, generator: Any) -> int | None:
    numpy = sys.modules.get("numpy.random")
    if type(generator) is random.Random:
        return crc32(array("Q", generator.getstate()[1]).tobytes())
    if numpy is not None and type(generator) is numpy.Generator:
        return crc32(dumps(generator.bit_generator.state))
    if numpy is not None and type(generator) is numpy.RandomState:
        return crc32(dumps(generator.get_state()))
    if type(generator) is torch.Generator and generator.device.type == "cpu":
        return crc32(generator.get_state().numpy())
    return None


def _generators(torch: ModuleType, dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield the generators that a dataset and its parts (transforms, datasets) keep, with the path
    to each."""
    numpy = sys.modules.get("numpy.random")
    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if numpy is not None:
        kinds = (*kinds, numpy.Generator, numpy.RandomState)
    visited: set[int] = set()
    queue: list[tuple[str, Any, int]] = [("dataset", dataset, 0)]
    while queue and len(visited) < _MOST_OBJECTS:
        path, thing, depth = queue.pop(0)
        if id(thing) in visited:
            continue
        if isinstance(thing, type | ModuleType | torch.Tensor | str | bytes):
            continue
        visited.add(id(thing))
        if type(thing) in kinds:
            yield path, thing
        elif depth < _DEEPEST:
            queue += [(f"{path}{name}", part, depth + 1) for name, part in _parts(thing)]


def _parts(thing: Any) -> list[tuple[str, Any]]:
    """Return the elements of a short list, or the first attributes of an object, with their
    names."""
    kind = type(thing)
    if kind in (list, tuple):
        if len(thing) > _MOST_PARTS:
            return []
        return [(f"[{index}]", element) for index, element in enumerate(thing)]
    if kind in (dict, int, float, bool, type(None)):
        return []
    attributes = list(_attributes(thing).items())[:_MOST_PARTS]
    return [(f".{name}", value) for name, value in attributes]


_MOST_SIZES = 48  # most parameters of which the size is recorded


class Ranks(Watcher):
    """Code that runs around functions that keep ranks alike, ``DistributedDataParallel`` and
    collectives. It also records the sizes of each rank's parameters."""

    def __init__(self, facts: Facts, torch: ModuleType) -> None:
        super().__init__(facts, torch)
        self._written: set[str] = set()
        self._world = rank_and_world_size()[1]
        if self._world > 1:
            facts.mark("world", None, self._world)

    @never_raises("a parallel model")
    def enter_parallel(self, *_: Any) -> int:
        return self._mark_once("parallel")

    @never_raises("a collective")
    def enter_collective(self, tensor: Any) -> int:
        """Record a collective called by the program itself; one number, such as a loss, does not
        count."""
        if "collective" not in self._written and getattr(tensor, "numel", int)() > 1:
            self._mark_once("collective")
        return 1

    def _mark_once(self, name: str) -> int:
        if name not in self._written:
            self._written.add(name)
            self._facts.mark(name, self._facts.where())
        return 1

    @never_raises("parameters of ranks")
    def compare(self, optimizer: int, n: int, where: str | None, parameters: list[Any]) -> None:
        """Record the sizes of an optimizer's parameters, for a comparison of ranks; called when the
        optimizer was examined after ``n`` steps, with all parameters that it holds."""
        if self._world < 2:
            return
        shapes = repr([tuple(parameter.shape) for parameter in parameters])
        sizes = digests(self._torch, parameters[:_MOST_SIZES])
        if sizes and min(sizes) >= 0:
            joined = ",".join(map(repr, sizes))
            self._facts.mark(
                "weights",
                where,
                n,
                optimizer=optimizer,
                shapes=crc32(shapes.encode()),
                parameters=len(parameters),
                sizes=joined,
            )


# Reading of datasets and batches

_MOST_INDICES = 10_000
_MOST_ELEMENTS = 1 << 16  # of a tensor with more elements, only the first part is digested
_LABELS = ("labels", "label", "target", "targets", "y", "class", "classes")


def size_of(dataset: Any) -> int:
    """Return the number of samples in a dataset, if it is known without running code of the
    program; otherwise -1."""
    try:
        return len(dataset) if only_looks(dataset) else -1
    except Exception:  # the program's ``__len__`` may raise anything
        return -1


def count_indices(loader: Any) -> int:
    """Return the number of samples that a pass over a loader requests, if it is known without
    running code of the program; otherwise -1."""
    data = sys.modules["torch.utils.data"]
    fields = vars(loader)
    batch_sampler = fields.get("batch_sampler")
    of_batches = _attributes(batch_sampler)
    sampler = of_batches.get("sampler")
    if batch_sampler is None:
        sampler = fields.get("sampler")
    elif type(batch_sampler) is not data.BatchSampler:
        return -1
    n = _count_of_sampler(data, sampler)
    size = _whole(of_batches.get("batch_size"))
    if n > 0 and size > 0 and of_batches.get("drop_last") is True:
        return n - n % size
    return n


def _count_of_sampler(data: ModuleType, sampler: Any) -> int:
    """Return the number of indices that one of torch's own samplers gives; -1 if unknown."""
    kind, attributes = type(sampler), _attributes(sampler)
    if kind is data.RandomSampler and attributes.get("_num_samples") is not None:
        return -1
    if kind in (data.SequentialSampler, data.RandomSampler):
        return size_of(attributes.get("data_source"))
    if kind is data.SubsetRandomSampler:
        return size_of(attributes.get("indices"))
    if kind in (data.DistributedSampler, data.WeightedRandomSampler):
        return _whole(attributes.get("num_samples"))
    return -1


def is_ascending(data: ModuleType, dataset: Any) -> bool:
    """True if a dataset keeps the order of the dataset that it is a subset of, as far as is
    known."""
    try:
        while type(dataset) is data.Subset:
            indices, dataset = vars(dataset)["indices"], vars(dataset)["dataset"]
            if type(indices) is range:
                continue
            if type(indices) not in (list, tuple) and not _is_array(indices):
                return False
            first = indices[:_MOST_INDICES]
            if type(first) not in (list, tuple):
                first = first.tolist()
            if any(after < before for before, after in pairwise(first)):
                return False
    except Exception:  # indices may be any objects, and code of the program may compare them
        return False
    return True


def _is_array(thing: Any) -> bool:
    """True for a readable tensor or a numpy array; False for subclasses of either."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    if type(thing) is torch.Tensor:
        return is_readable(torch, thing)
    return numpy is not None and type(thing) is numpy.ndarray


def labels(torch: ModuleType, batch: Any) -> list[Any] | None:
    """Return the classes of a batch's samples; None if it has none. They are its last tensor of
    whole numbers with one per sample, or an entry with a name in ``_LABELS``."""
    parts: list[Any]
    if type(batch) in (list, tuple):
        parts = list(reversed(batch))
    elif type(batch) is dict:
        parts = [batch[name] for name in _LABELS if name in batch]
    else:
        return None
    for part in parts:
        if _are_labels(torch, part):
            with torch._C.DisableTorchFunction():
                return list(part.tolist())
    return None


def _are_labels(torch: ModuleType, part: Any) -> bool:
    """True for a tensor on the host with one whole number for each sample."""
    if type(part) is not torch.Tensor or part.device.type != "cpu":
        return False
    if not is_readable(torch, part) or part.ndim != 1 or not len(part):
        return False
    if part.is_floating_point() or part.is_complex():
        return False
    return part.dtype is not torch.bool


def content(torch: ModuleType, batch: Any) -> int | None:
    """Return a digest of a batch's contents, the same in all processes; None if that is
    impossible."""
    try:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            return _digest(torch, batch, 0, 0)
    except Exception:  # a batch of the program may hold anything
        return None


def _digest(torch: ModuleType, part: Any, digest: int, depth: int) -> int:
    """Return a digest of ``part``, continued from ``digest``. Raises TypeError: it has none."""
    kind = type(part)
    if kind is torch.Tensor:
        return _digest_of_tensor(torch, part, digest)
    numpy = sys.modules.get("numpy")
    if numpy is not None and (kind is numpy.ndarray or isinstance(part, numpy.generic)):
        if part.dtype.hasobject or part.size > _MOST_ELEMENTS:
            raise TypeError
        return crc32(part.tobytes(), digest)
    if kind in (int, float, str, bytes, bool, type(None)):
        return crc32(repr(part).encode(), digest)
    if depth >= 4:
        raise TypeError
    for element in _elements(part):
        digest = _digest(torch, element, digest, depth + 1)
    return digest


def _elements(part: Any) -> Iterator[Any]:
    """Return the elements of a list or tuple, or the keys and values of a dictionary, without
    running code of the program. Raises TypeError: another type."""
    kind: Any = type(part)
    elements: Iterator[Any]
    if kind is dict:
        elements = chain.from_iterable(part.items())
    elif isinstance(part, tuple) and kind.__iter__ is tuple.__iter__:
        elements = tuple.__iter__(part)
    elif isinstance(part, list) and kind.__iter__ is list.__iter__:
        elements = list.__iter__(part)
    else:
        raise TypeError
    return elements


def _digest_of_tensor(torch: ModuleType, tensor: Any, digest: int) -> int:
    if tensor.device.type != "cpu" or not is_readable(torch, tensor):
        raise TypeError
    while tensor.numel() > _MOST_ELEMENTS:
        tensor = tensor[: _MOST_ELEMENTS // 4] if tensor.ndim == 1 else tensor[0]
    # digest a copy, because a tensor whose memory numpy has seen cannot be resized any more
    copy = tensor.detach().clone().contiguous()
    data = copy.view(-1).view(torch.uint8).numpy() if copy.numel() else b""
    return crc32(data, digest)
