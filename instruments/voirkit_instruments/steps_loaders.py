"""Loaders, as the steps instrument records them: their iterators being made, each request for a batch, and the request that finds none.

Reads attributes of torch's own loader and iterators only, and never what could be code of the program, but for a dataset's length where
its ``__len__`` plainly only looks. Checked with torch 2.1 and 2.15.
"""

from __future__ import annotations

import sys
import weakref

from voirkit.probes.around import ABSENT
from voirkit_instruments.loader_numbers import forgetting
from voirkit_instruments.steps_compute import now
from voirkit_instruments.steps_record import UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FunctionType
    from typing import Any

    from voirkit_instruments.steps_record import Recording


class LoaderRecording:
    """Writes what loaders do into the trace plane.

    Args:
        recording: The recording that this is a part of.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._here = recording.hot.here
        self._span = recording.recorder.span
        self._arguments = recording.recorder.arguments
        self._iter = recording.phase("dataloader", "iter")
        self._fetch = recording.phase("dataloader", "fetch", "items")
        self._end = recording.phase("dataloader", "end")
        self._numbers = recording.numbers
        self._iterators: dict[int, tuple[Any, int, dict[str, Any]]] = {}  # by identity: itself, arguments and what they are

    def _leave_iter(self, began: int, was: int, loader: Any, iterator: Any) -> None:
        end = now()
        self._here.inside = was
        if not began:
            return
        try:
            which = self._numbers.loader(loader)
            if iterator is ABSENT:
                place: dict[str, Any] = {"loader": which, **_error()}
            else:
                place = {"loader": which, "episode": self._numbers.settle(iterator)}
                self._recording.hot.forget()  # a persistent worker's iterator begins again
                self._iterators[id(iterator)] = (
                    weakref.ref(iterator, forgetting(self._iterators, id(iterator))),
                    self._arguments(place),
                    place,
                )
            with self._recording.torch._C.DisableTorchFunction():  # a length may be that of a tensor
                described = _described(loader)
            self._span(self._iter, began, end, self._arguments({**place, **described}))
        except Exception as exc:
            self._recording.failed("a loader's iterator", exc)

    def after_iter(self) -> Any:
        """Called after ``DataLoader.__iter__``: an iterator was made, or begins again."""

        def leave(began: int, was: int, loader: Any, iterator: Any) -> None:
            self._leave_iter(began, was, loader, iterator)

        return leave

    def after_next(self) -> Any:
        """Called after an iterator was asked for a batch."""
        recording, span, intern = self._recording, self._span, self._arguments
        fetch, end_of_data = self._fetch, self._end

        def describe(iterator: Any) -> tuple[int, int]:
            return fetch, self._known(iterator)[1]

        def other(began: int, end: int, iterator: Any, batch: Any) -> None:
            try:
                known = self._known(iterator)
                if batch is not ABSENT:
                    name, args, value = fetch, known[1], recording.items(batch)
                else:
                    error = sys.exc_info()[0]
                    if error is not None and issubclass(error, StopIteration):
                        name, args, value = end_of_data, known[1], 0
                    else:
                        name, args, value = fetch, intern({**known[2], **_error()}), UNKNOWN
            except Exception as exc:
                recording.failed("a batch", exc)
            else:
                span(name, began, end, args, value)

        torch = recording.torch
        modes = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
        return recording.hot.leave_fetch(describe, other, torch.Tensor, modes)

    def _known(self, iterator: Any) -> tuple[Any, int, dict[str, Any]]:
        known = self._iterators.get(id(iterator))
        return self._stranger(iterator) if known is None or known[0]() is not iterator else known

    def _stranger(self, iterator: Any) -> tuple[Any, int, dict[str, Any]]:
        """An iterator that was made before anybody watched, or in a way of its own: a loader that is not known."""
        place = {"loader": None, "episode": self._numbers.settle(iterator)}
        known = (weakref.ref(iterator, forgetting(self._iterators, id(iterator))), self._arguments(place), place)
        self._iterators[id(iterator)] = known
        return known


def _error() -> dict[str, Any]:
    error = sys.exc_info()[0]  # of the body that this is called after
    return {"error": error.__name__ if error is not None else None}


def _described(loader: Any) -> dict[str, Any]:
    return {
        "workers": loader.num_workers,
        "batch_size": loader.batch_size or getattr(loader.batch_sampler, "__dict__", {}).get("batch_size"),
        "length": batches(loader),
        "dataset": type(loader.dataset).__name__,
        "pin_memory": bool(loader.pin_memory),
    }


def batches(loader: Any) -> int | None:
    """How many batches an iterator of the loader will have, or None if that can not be known without running code of the program.

    ``len(loader)`` would tell torch, for an iterable dataset, that the program had asked, and torch then warns of what it would not have
    warned of.
    """
    from torch.utils.data import IterableDataset  # it is there: this is a loader of it

    if isinstance(loader.dataset, IterableDataset) or not only_looks(type(loader).__len__):
        return None
    samplers = [loader.batch_sampler, loader.sampler, getattr(loader.batch_sampler, "sampler", None)]
    sources = [getattr(sampler, "__dict__", {}).get("data_source") for sampler in samplers]
    asked = [thing for thing in (loader.dataset, *samplers, *sources) if thing is not None]
    return len(loader) if all(only_looks(getattr(type(thing), "__len__", None)) for thing in asked) else None


# Loads, operators and calls without keywords; what these names begin is common to python 3.10 to 3.13.
_LOOKING = (
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
_HARMLESS = {"len", "int", "super", "sum", "min", "max"}


def only_looks(function: FunctionType | Any) -> bool:
    """Whether a ``__len__`` does nothing but look: it is torch's own, or calls nothing but ``len`` and the like and sets nothing."""
    module = getattr(function, "__module__", None) or ""
    if module.partition(".")[0] in ("torch", "torchvision"):
        return True
    code = getattr(function, "__code__", None)
    if code is None:
        return function is not None and type(function).__name__ == "wrapper_descriptor"  # a list's, a dictionary's
    import dis

    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if not name.startswith(_LOOKING) or (name.startswith("LOAD_GLOBAL") and instruction.argval not in _HARMLESS):
            return False
        if name == "LOAD_METHOD" or (name == "LOAD_ATTR" and "NULL" in instruction.argrepr):
            return False
    return True
