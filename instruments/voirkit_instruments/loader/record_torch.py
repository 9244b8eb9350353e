"""Which functions of torch the loader instrument stands around: the one table of them. Checked with torch 2.1 and 2.15, torchdata 0.11.

Nothing here imports torch; what does not fit is told by its name and left out. A function that asks for its own local variables is left
alone, since it would find two more.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

from voirkit.imports import when_imported
from voirkit.probes import weave
from voirkit.probes.around import Around
from voirkit.probes.compatibility import watch_picklers
from voirkit_instruments.identity import IdentityMap
from voirkit_instruments.loader.record_batches import FETCH, OUTSIDE, PIN, PUTTING, Batches, Deaths, Recording
from voirkit_instruments.loader.record_operations import (
    BATCH,
    SAMPLE,
    Finder,
    Libraries,
    Operations,
    call_method,
    datasets,
    innermost,
    is_foreign,
    parameter,
    source_name,
)
from voirkit_instruments.loader.record_workers import Samples, Workers
from voirkit_instruments.steps.events import COMPILING, FunctionPatches, StepEvents, as_function

_DATALOADER = "torch.utils.data.dataloader"
_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"
_ASKING = {"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe"}
_MAIN = ("__main__", "__mp_main__")


class LoaderPatches(FunctionPatches):
    """The patches of the loader instrument. ``recording``: says where each thread is, and takes warnings."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(lambda sentence: recording.warn(f"loader: {sentence}"))
        self._here = recording.here
        self._known = IdentityMap()
        self._made: dict[tuple[Any, ...], Around] = {}

    def record_around(
        self, name: str, function: Any, enter: Any, leave: Any, most: int, passed: tuple[str, ...] = (), on_leave: tuple[str, ...] = (),
        value: bool = False, anywhere: bool = False,
    ) -> bool:  # fmt: skip
        """Put something around a function, through its decorators; arguments that are not here are those of ``Around``.

        Args:
            on_leave: As ``left`` for ``Around``.
            anywhere: The program may ask ``torch.compile`` to compile it.

        Returns:
            Whether it is there now.
        """
        function = innermost(function)
        if type(function) is not FunctionType:
            self.table[name] = "is not written in Python"
            return False
        if self.has(function):
            return True
        if _ASKING & set(function.__code__.co_names):
            self.table[name] = "asks for its own local variables"
            return False
        plain = COMPILING if anywhere and "torch" in function.__globals__ and "torch" not in function.__code__.co_varnames else ()
        unasked = anywhere and not plain
        key = (enter, leave, most, passed, on_leave, value, bool(plain), unasked)
        around = self._made.get(key)
        if around is None:
            around = self._made[key] = Around(self._here, most, enter, leave, passed, value, plain, on_leave, unasked)
        if not self.around(self._unique(name, function), function, around):
            return False
        watch_picklers(weave.own_code)  # the code may be a lambda's that is pickled by value
        self._known[function] = True
        return True

    def has(self, function: FunctionType) -> bool:
        """Whether something is around a function."""
        return self._known.get(function) is True

    def _unique(self, name: str, function: FunctionType) -> str:
        """A name for the table, which undoes by name: lambdas are many, and have one."""
        code = function.__code__
        return name if name not in self.table else f"{name} at {code.co_filename}:{code.co_firstlineno} {id(function)}"

    def remove(self) -> None:
        """Put all back."""
        super().remove()
        self._known = IdentityMap()


def _nothing(began: int, was: int) -> None:
    """After what was only to be known of before."""


def _entered(*_: Any) -> int:
    """Before what is only to be known of after."""
    return 1


def _name_of_own(collate: Any) -> str | None:
    """What the program's (or another library's) collate function is called; None of torch's."""
    while hasattr(type(collate), "func") and type(collate).__module__ == "functools":
        collate = collate.func
    return None if is_foreign(collate) else str(getattr(collate, "__name__", type(collate).__name__))


class LoaderTorch:
    """The patches of the loader instrument in one process. ``events``: who else wants to know when batches are fetched."""

    def __init__(self, recording: Recording, named: Sequence[str], events: StepEvents) -> None:
        self.recording, self._events = recording, events
        self.patches = LoaderPatches(recording)
        operations = Operations(recording, self.patches)
        self._find = Finder(operations)
        self._libraries = Libraries(operations, self._find.transform)
        self.named = NamedOperations(named, operations)
        self._workers = Workers(recording, self.prepare)
        self._batches = Batches(recording, self.prepare, Deaths(recording).check_workers)
        self._samples = Samples(recording, self._workers)
        self._item, self._many, self._collate = self._samples.around_item(), self._samples.around_items(), self._samples.around_collate()

    def install(self) -> None:
        """Put the patches in place, each as soon as its module is there."""
        for module, install in (
            ("torch.utils.data._utils.fetch", self._patch_fetch),
            ("torch.utils.data._utils.worker", self._patch_worker),
            ("torch.utils.data._utils.pin_memory", self._patch_pin),
            (_DATALOADER, self._patch_loader),
            ("torchdata.stateful_dataloader.worker", self._patch_worker),
            (_STATEFUL, self._patch_stateful),
            ("multiprocessing.queues", self._patch_queues),
        ):
            self.patches.upon(module, install)
        self.named.watch()

    def remove(self) -> None:
        """Put all back as it was."""
        self.named.unwatch()
        self.patches.remove()

    def prepare(self, dataset: Any, collate: Any, whole: bool) -> dict[str, Any]:
        """Put what is recorded around what a dataset and a collate function run, as far as it is not there.

        Args:
            dataset: What a loader reads from.
            collate: What puts its samples together.
            whole: Whether it is not called, and a sample is a batch.

        Returns:
            ``source``: the class whose samples are read, and its method; ``whole``, if it is; ``collate``: the name of the program's own.
        """
        self._libraries.update()
        self.named.update()
        for one in datasets(dataset):
            self._record_reading(one)
        self._find.dataset(dataset)
        self._record_collate(collate)
        own = _name_of_own(collate)
        return {"source": source_name(dataset), **({"whole": True} if whole else {}), **({"collate": own} if own else {})}

    def _record_reading(self, dataset: Any) -> None:
        for name, around, passed in ((SAMPLE, self._item, 2), (BATCH, self._many, 1)):
            owner = next((above for above in type(dataset).__mro__ if vars(above).get(name) is not None), None)
            if owner is None:
                continue
            function, where = vars(owner)[name], f"{owner.__module__}.{owner.__qualname__}.{name}"
            if type(function) is not FunctionType:  # ``functools.lru_cache``, C
                if name == SAMPLE and owner.__module__ != "builtins":
                    self.patches.table.setdefault(where, "is not written in Python")
                continue
            parameters = [parameter(innermost(function), which) for which in range(passed)]
            if any(one is None or one[1] for one in parameters):
                self.patches.table.setdefault(where, "has no parameter for an index")
            else:
                self.patches.record_around(where, function, *around, FETCH, tuple(one[0] for one in parameters if one is not None), ())

    def _record_collate(self, collate: Any) -> None:
        while hasattr(type(collate), "func") and type(collate).__module__ == "functools":
            collate = collate.func
        if type(collate) not in (FunctionType, MethodType):
            found = call_method(type(collate))
            if found is None:
                return
            collate = vars(found[0])[found[1]]
        function = innermost(collate)
        if type(function) is FunctionType:
            self.patches.record_around(f"{function.__module__}.{function.__qualname__}", function, *self._collate, FETCH)

    # one module each

    def _record_around(self, module: ModuleType, path: str, enter: Any, leave: Any, most: int, *passed: Any, value: bool = False) -> None:
        found: Any = module
        for part in path.split("."):
            found = getattr(found, part, None)
        name = f"{module.__name__}.{path}"
        before, after = passed if passed else ((), ())
        if not self.patches.record_around(name, found, enter, leave, most, before, after, value):
            self.patches.off(name, self.patches.table[name])

    def _patch_fetch(self, module: ModuleType) -> None:
        workers, samples = self._workers, self._samples
        preparing, iterating = as_function(workers.preparing), as_function(samples.iterating)
        parts = ("dataset", "collate_fn", "auto_collation")
        self._record_around(module, "_BaseDatasetFetcher.__init__", preparing, _nothing, OUTSIDE, parts, ())
        self._record_around(module, "_IterableDatasetFetcher.__init__", _entered, iterating, OUTSIDE, ("self",), ("self",))
        by_index, by_turn = (self._events.wrapped("fetch", calls) for calls in (workers.around_fetch(), samples.around_fetch()))
        self._record_around(module, "_MapDatasetFetcher.fetch", *by_index, OUTSIDE, value=True)
        self._record_around(module, "_IterableDatasetFetcher.fetch", *by_turn, OUTSIDE, ("self",), (), value=True)

    def _patch_worker(self, module: ModuleType) -> None:
        loop: Any = innermost(getattr(module, "_worker_loop", None))
        names = loop.__code__.co_varnames if type(loop) is FunctionType else ()
        # By position: the names of the others have changed, these are called alike since 2.1.
        self._record_around(module, "_worker_loop", *self._workers.around_loop(), OUTSIDE, (names[2], names[3], names[10]), ())
        message = vars(module).get("_ResumeIteration")
        if message is not None and message.__module__ == module.__name__:
            self.patches.put(message, "__init__", self._workers.resume(vars(message)["__init__"]))

    def _patch_queues(self, module: ModuleType) -> None:
        self._record_around(module, "Queue.get", *self._workers.around_get(), PIN, (), ("self",), value=True)
        self._record_around(module, "Queue.put", *self._workers.around_put(), PUTTING, (), ("self", "obj"))

    def _patch_pin(self, module: ModuleType) -> None:
        self._record_around(module, "_pin_memory_loop", *self._batches.around_pin_loop(), OUTSIDE, ("in_queue", "out_queue"), ())
        self._record_around(module, "pin_memory", *self._batches.around_pin(), PIN)

    def _patch_loader(self, module: ModuleType) -> None:
        making, again = as_function(self._batches.making), as_function(self._batches.beginning_again)
        self._record_around(module, "_BaseDataLoaderIter.__init__", making, _nothing, OUTSIDE, ("self", "loader"), ())
        self._record_around(module, "_BaseDataLoaderIter._reset", again, _nothing, OUTSIDE, ("self", "loader", "first_iter"), ())
        self._patch_iterators(module, "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")

    def _patch_stateful(self, module: ModuleType) -> None:
        self._patch_iterators(module, "_StatefulSingleProcessDataLoaderIter", "_StatefulMultiProcessingDataLoaderIter")

    def _patch_iterators(self, module: ModuleType, single: str, several: str) -> None:
        batches, self_ = self._batches, ("self",)
        self._record_around(module, f"{single}._next_data", *batches.around_next_here(), OUTSIDE, self_, (), value=True)
        self._record_around(module, f"{several}._next_data", *batches.around_next(), OUTSIDE, self_, self_, value=True)
        self._record_around(module, f"{several}._get_data", _entered, batches.after_get_data(), OUTSIDE, (), self_, value=True)
        self._record_around(module, f"{several}._try_put_index", *batches.around_put_index(), OUTSIDE, self_, self_)


class NamedOperations:
    """Records the operations that the user names, each when it is there."""

    def __init__(self, names: Sequence[str], operations: Operations) -> None:
        self._operations = operations
        self.missing = dict.fromkeys(names, "its module was not imported")  # for each that has not been found, why
        self._over = False

    def watch(self) -> None:
        """Look for each when its module has been imported."""
        for name in list(self.missing):  # what is found at once is no longer among them
            module = name.partition(":")[0]
            if module not in _MAIN:
                when_imported(module, self._imported)

    def unwatch(self) -> None:
        """No more."""
        self._over = True

    def _imported(self, module: ModuleType) -> None:
        if not self._over:
            self.update()

    def update(self) -> None:
        """Look for those that have not been found: a module may define one after it was imported."""
        for name in list(self.missing):
            module, _, path = name.partition(":")
            found = _module(module)
            if found is None:
                continue
            try:
                why = self._record_path(found, path)
            except Exception as exc:  # whatever an odd module does when it is looked at
                why = f"{type(exc).__name__}: {exc}"
            if why:
                self.missing[name] = why
            else:
                self.missing.pop(name, None)

    def _record_path(self, module: ModuleType, path: str) -> str:
        """Why it cannot be; empty if it is there now."""
        *outer, last = path.split(".")
        owner: Any = module
        for part in outer:
            owner = getattr(owner, part, None)
        if isinstance(owner, type):
            return self._method(owner, last)
        found = getattr(owner, last, None)
        if found is None:
            return f"{module.__name__} has no {path}"
        if isinstance(found, type):
            return f"{path} is a class; name its method, such as {path}.__call__"
        return "" if self._operations.function(found) else _UNSEEN

    def _method(self, kind: type, name: str) -> str:
        owner = next((above for above in kind.__mro__ if name in vars(above)), None)
        if owner is None:
            return f"{kind.__qualname__} has no {name}"
        method = vars(owner)[name]
        if type(method) in (staticmethod, classmethod):
            return "" if self._operations.function(method.__func__, f"{kind.__name__}.{name}") else _UNSEEN
        if type(method) is not FunctionType:
            return _UNSEEN
        return "" if self._operations.method(owner, name, "" if name in ("__call__", "forward") else f".{name}") else _UNSEEN


_UNSEEN = "it is not written in Python, or its source is not there to read"


def _module(name: str) -> ModuleType | None:
    if name in _MAIN:  # a process that was started anew has the script by the other name
        return sys.modules.get("__mp_main__") or sys.modules.get("__main__")
    return sys.modules.get(name)
