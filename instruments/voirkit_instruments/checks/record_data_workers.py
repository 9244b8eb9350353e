"""What the processes that prepare batches draw from random generators, and whether two of them read the same.

Generators are only read: python's, numpy's and torch's own, and those that the dataset keeps. One that a dataset does not draw from is not
told of. Facts: ``drawn`` (the state of a generator before the first batch and after the first that drew from it), ``held`` (a digest of
each of a worker's first batches of an iterable dataset).
"""

from __future__ import annotations

import random
import sys
import weakref
from array import array
from pickle import dumps
from types import ModuleType as Module
from zlib import crc32

from voirkit.probes.around import ABSENT
from voirkit_instruments.calls.record_quiet import quiet
from voirkit_instruments.checks.record_data_values import content
from voirkit_instruments.checks.record_norms import is_quiet
from voirkit_instruments.loader_numbers import forgetting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

    from voirkit_instruments.checks.record_facts import Facts

_FETCHES, _CONTENTS = 16, 2  # batches of a fetcher after which generators are looked at; whose content is told
_MOST_EPOCHS = 200
_MOST_OBJECTS, _MOST_PARTS, _DEEPEST = 200, 50, 3  # of a dataset that are searched for generators


class Fetching:
    """What is known of one fetcher: an epoch of one worker.

    Attributes:
        place: Which iterator's, which of its turns, which worker; -1: no worker.
        before: The state of each generator, of which nothing is told yet.
        n: How many batches it has prepared.
    """

    __slots__ = ("before", "n", "place")

    def __init__(self, place: dict[str, int], before: dict[str, int]) -> None:
        self.place, self.before, self.n = place, before, 0


class Drawing:
    """Functions that stand around those of fetchers.

    Args:
        facts: Where facts are written.
        torch: The module.

    Attributes:
        making: The number of the iterator that was made last; in a worker that is its own.
    """

    making = -1

    def __init__(self, facts: Facts, torch: ModuleType) -> None:
        self._facts, self._torch = facts, torch
        self._turns: dict[int, int] = {}
        self._fetching: dict[int, tuple[Any, Fetching]] = {}

    def enter(self, *_: Any) -> int:
        """Before what is only to be known of after."""
        return 1

    def leave(self, _began: int, _was: int, *_: Any) -> None:
        """After what is only to be known of before."""

    def enter_made(self, fetcher: Any, dataset: Any) -> int:
        """Before ``_BaseDatasetFetcher.__init__``: a worker is about to begin, once its generators are seeded."""
        try:
            info = sys.modules["torch.utils.data"].get_worker_info()
            turn = self._turns[self.making] = self._turns.get(self.making, -1) + 1
            if max(self.making, turn) >= _MOST_EPOCHS:
                return 1
            place = {"iterator": self.making, "turn": turn, "worker": -1 if info is None else info.id}
            key = id(fetcher)
            fetching = Fetching(place, states(self._torch, dataset))
            self._fetching[key] = (weakref.ref(fetcher, forgetting(self._fetching, key)), fetching)
        except Exception as exc:
            self._facts.failed("a worker's generators", exc)
        return 1

    def leave_fetch(self, _began: int, _was: int, fetcher: Any, value: Any) -> None:
        """After a batch was prepared."""
        try:
            known = self._fetching.get(id(fetcher))
            if known is None or known[0]() is not fetcher:
                return
            fetching = known[1]
            if value is ABSENT or fetching.n >= _FETCHES:
                return
            fetching.n += 1
            if fetching.before:
                self._look(fetching, fetcher.dataset)
            if fetching.n <= _CONTENTS and fetching.place["worker"] >= 0 and hasattr(fetcher, "dataset_iter"):
                held = content(self._torch, value)
                if held is not None:
                    self._facts.mark("held", None, held, **fetching.place, batch=fetching.n)
        except Exception as exc:
            self._facts.failed("a worker's generators", exc)

    def _look(self, fetching: Fetching, dataset: Any) -> None:
        after = states(self._torch, dataset)
        for which, before in list(fetching.before.items()):
            if after.get(which) != before:
                del fetching.before[which]
                if which in after:
                    told = {"which": which, "before": before, "after": after[which], "batch": fetching.n}
                    self._facts.mark("drawn", None, 0, **fetching.place, **told)


def states(torch: ModuleType, dataset: Any) -> dict[str, int]:
    """Digests of the states of all generators that a dataset may draw from, by what they are called."""
    found = {"random": crc32(array("Q", random.getstate()[1]).tobytes())}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        found["numpy.random"] = crc32(dumps(numpy.get_state()))
    if is_quiet(torch):
        with quiet(), torch._C.DisableTorchFunction():
            found["torch"] = crc32(torch.get_rng_state().numpy())
    for name, generator in _own(torch, dataset):
        state = _state(torch, generator)
        if state is not None:
            found[name] = state
    return found


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


def _own(torch: ModuleType, dataset: Any) -> Iterator[tuple[str, Any]]:
    """The generators that a dataset keeps, and those of what it is made of (transforms, datasets), with the path to each."""
    numpy = sys.modules.get("numpy.random")
    kinds = (random.Random, torch.Generator, *((numpy.Generator, numpy.RandomState) if numpy is not None else ()))
    seen: set[int] = set()
    left: list[tuple[str, Any, int]] = [("dataset", dataset, 0)]
    while left and len(seen) < _MOST_OBJECTS:
        path, thing, depth = left.pop(0)
        if id(thing) in seen or isinstance(thing, type | Module | torch.Tensor | str | bytes):
            continue
        seen.add(id(thing))
        if type(thing) in kinds:
            yield path, thing
        elif depth < _DEEPEST:
            if type(thing) in (list, tuple) and len(thing) <= _MOST_PARTS:
                left += [(f"{path}[{at}]", inner, depth + 1) for at, inner in enumerate(thing)]
            elif type(thing) not in (list, tuple, dict, int, float, bool, type(None)):
                try:
                    given = object.__getattribute__(thing, "__dict__")
                except AttributeError:
                    continue
                left += [(f"{path}.{name}", inner, depth + 1) for name, inner in list(given.items())[:_MOST_PARTS]]
