"""The functions of torch that the loader instrument patches, all of them in this one place. Checked
with torch 2.1 and 2.15, torchdata 0.11.

Nothing here imports torch. A patch that does not fit is reported by its name and left out. A
function that reads its own local variables is not patched, since the patch adds two of them.
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
from voirkit_instruments.loader.record_batches import (
    FETCH,
    OUTSIDE,
    PIN,
    PUTTING,
    Batches,
    Deaths,
    Recording,
)
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
    """The patches of the loader instrument. ``recording`` has the state of each thread, and gets
    the warnings."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(lambda sentence: recording.warn(f"loader: {sentence}"))
        self._state = recording.state
        self._known = IdentityMap()
        self._made: dict[tuple[Any, ...], Around] = {}

    def record_around(
        self,
        name: str,
        function: Any,
        enter: Any,
        leave: Any,
        most: int,
        argument_names: tuple[str, ...] = (),
        on_leave: tuple[str, ...] = (),
        value: bool = False,
        anywhere: bool = False,
    ) -> bool:
        """Call ``enter`` and ``leave`` around the body of a function; if it is decorated, of the
        function inside its decorators. Arguments that are not described here are those of
        ``Around``.

        Args:
            name: The name of the function in the table of patches.
            on_leave: As ``leave_with`` of ``Around``.
            anywhere: The program may ask ``torch.compile`` to compile the function.

        Returns:
            True if the function is patched now.
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
        plain: tuple[Any, ...] = ()
        if anywhere and _knows_torch(function):
            plain = COMPILING
        unasked = anywhere and not plain
        key = (enter, leave, most, argument_names, on_leave, value, bool(plain), unasked)
        around = self._made.get(key)
        if around is None:
            around = self._made[key] = Around(
                self._state, most, enter, leave, argument_names, value, plain, on_leave, unasked
            )
        if not self.around(self._unique(name, function), function, around):
            return False
        # the code may be that of a lambda, which some picklers pickle by value
        watch_picklers(weave.own_code)
        self._known[function] = True
        return True

    def has(self, function: FunctionType) -> bool:
        """True if a function is patched."""
        return self._known.get(function) is True

    def _unique(self, name: str, function: FunctionType) -> str:
        """Return a name that is unique in the table, which removes patches by name: several lambdas
        have the same name."""
        if name not in self.table:
            return name
        code = function.__code__
        return f"{name} at {code.co_filename}:{code.co_firstlineno} {id(function)}"

    def remove(self) -> None:
        """Remove all patches."""
        super().remove()
        self._known = IdentityMap()


def _knows_torch(function: FunctionType) -> bool:
    """True if ``torch`` in the body of a function means a global of its module, not a local
    variable."""
    return "torch" in function.__globals__ and "torch" not in function.__code__.co_varnames


def _nothing(entered: int, was: int) -> None:
    """Do nothing: the ``leave`` of a patch that only needs ``enter``."""


def _entered(*_: Any) -> int:
    """Do nothing: the ``enter`` of a patch that only needs ``leave``."""
    return 1


def _name_of_own(collate: Any) -> str | None:
    """Return the name of a collate function of the program or of another library; None for a
    collate function of torch."""
    collate = _without_partials(collate)
    if is_foreign(collate):
        return None
    return str(getattr(collate, "__name__", type(collate).__name__))


def _without_partials(function: Any) -> Any:
    while hasattr(type(function), "func") and type(function).__module__ == "functools":
        function = function.func
    return function


class LoaderTorch:
    """Patches torch, datasets and operations in one process. ``events`` has the other subscribers
    to the fetching of batches."""

    def __init__(self, recording: Recording, named: Sequence[str], events: StepEvents) -> None:
        self.recording = recording
        self._events = events
        self.patches = LoaderPatches(recording)
        operations = Operations(recording, self.patches)
        self._find = Finder(operations)
        self._libraries = Libraries(operations, self._find.transform)
        self.named = NamedOperations(named, operations)
        self._workers = Workers(recording, self.prepare)
        self._batches = Batches(recording, self.prepare, Deaths(recording).check_workers)
        self._samples = Samples(recording, self._workers)
        self._item = self._samples.around_item()
        self._items = self._samples.around_items()
        self._collate = self._samples.around_collate()

    def install(self) -> None:
        """Install the patches of each module as soon as it is imported."""
        for module, install in (
            ("torch.utils.data._utils.fetch", self._patch_fetch),
            ("torch.utils.data._utils.worker", self._patch_worker),
            ("torch.utils.data._utils.pin_memory", self._patch_pin),
            (_DATALOADER, self._patch_loader),
            ("torchdata.stateful_dataloader.worker", self._patch_worker),
            (_STATEFUL, self._patch_stateful),
            ("multiprocessing.queues", self._patch_queues),
        ):
            self.patches.when_imported(module, install)
        self.named.watch()

    def remove(self) -> None:
        """Remove all patches."""
        self.named.unwatch()
        self.patches.remove()

    def prepare(self, dataset: Any, collate: Any, whole: bool) -> dict[str, Any]:
        """Patch the methods of a dataset that read samples, its transforms and the collate
        function, unless they are patched already.

        Args:
            dataset: The dataset that a loader reads.
            collate: The function that collates its samples.
            whole: True if ``collate`` is not called because each sample is a batch.

        Returns:
            ``source``: the class and method that read samples. ``whole``: True; only if each sample
            is a batch. ``collate``: the name of the collate function; only if it is not torch's.
        """
        self._libraries.update()
        self.named.update()
        for inner in datasets(dataset):
            self._record_reading(type(inner), SAMPLE, self._item, 2)
            self._record_reading(type(inner), BATCH, self._items, 1)
        self._find.dataset(dataset)
        self._record_collate(collate)
        facts: dict[str, Any] = {"source": source_name(dataset)}
        if whole:
            facts["whole"] = True
        collate_name = _name_of_own(collate)
        if collate_name:
            facts["collate"] = collate_name
        return facts

    def _record_reading(
        self, kind: type, name: str, around: tuple[Any, Any], n_parameters: int
    ) -> None:
        """Patch a method of a class of datasets that reads samples. Its first ``n_parameters``
        arguments are passed to ``around``."""
        owner = next((above for above in kind.__mro__ if vars(above).get(name) is not None), None)
        if owner is None:
            return
        function, where = vars(owner)[name], f"{owner.__module__}.{owner.__qualname__}.{name}"
        # e.g. a function with ``functools.lru_cache``, or one that is written in C
        if type(function) is not FunctionType:
            if name == SAMPLE and owner.__module__ != "builtins":
                self.patches.table.setdefault(where, "is not written in Python")
            return
        names = []
        for index in range(n_parameters):
            name_and_kind = parameter(innermost(function), index)
            if name_and_kind is None or name_and_kind[1]:
                self.patches.table.setdefault(where, "has no parameter for an index")
                return
            names.append(name_and_kind[0])
        self.patches.record_around(where, function, *around, FETCH, tuple(names), ())

    def _record_collate(self, collate: Any) -> None:
        collate = _without_partials(collate)
        if type(collate) not in (FunctionType, MethodType):
            method = call_method(type(collate))
            if method is None:
                return
            owner, name = method
            collate = vars(owner)[name]
        function = innermost(collate)
        if type(function) is FunctionType:
            self.patches.record_around(
                f"{function.__module__}.{function.__qualname__}", function, *self._collate, FETCH
            )

    # Patches of torch, by module

    def _record_around(
        self,
        module: ModuleType,
        path: str,
        enter: Any,
        leave: Any,
        most: int,
        before: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        value: bool = False,
    ) -> None:
        function: Any = module
        for part in path.split("."):
            function = getattr(function, part, None)
        name = f"{module.__name__}.{path}"
        if not self.patches.record_around(name, function, enter, leave, most, before, after, value):
            self.patches.mark_unpatched(name, self.patches.table[name])

    def _patch_fetch(self, module: ModuleType) -> None:
        workers, samples = self._workers, self._samples
        preparing, iterating = as_function(workers.preparing), as_function(samples.iterating)
        parts = ("dataset", "collate_fn", "auto_collation")
        self._record_around(
            module, "_BaseDatasetFetcher.__init__", preparing, _nothing, OUTSIDE, parts, ()
        )
        self._record_around(
            module,
            "_IterableDatasetFetcher.__init__",
            _entered,
            iterating,
            OUTSIDE,
            ("self",),
            ("self",),
        )
        by_index = self._events.wrapped("fetch", workers.around_fetch())
        by_turn = self._events.wrapped("fetch", samples.around_fetch())
        self._record_around(module, "_MapDatasetFetcher.fetch", *by_index, OUTSIDE, value=True)
        self._record_around(
            module, "_IterableDatasetFetcher.fetch", *by_turn, OUTSIDE, ("self",), (), value=True
        )

    def _patch_worker(self, module: ModuleType) -> None:
        loop: Any = innermost(getattr(module, "_worker_loop", None))
        names = loop.__code__.co_varnames if type(loop) is FunctionType else ()
        parameters = (names[2], names[3], names[10]) if names else ()
        # The parameters are found by position, which is the same since torch 2.1; names of other
        # parameters have changed.
        self._record_around(
            module,
            "_worker_loop",
            *self._workers.around_loop(),
            OUTSIDE,
            parameters,
            (),
        )
        message = vars(module).get("_ResumeIteration")
        if message is not None and message.__module__ == module.__name__:
            self.patches.put(message, "__init__", self._workers.resume(vars(message)["__init__"]))

    def _patch_queues(self, module: ModuleType) -> None:
        self._record_around(
            module, "Queue.get", *self._workers.around_get(), PIN, (), ("self",), value=True
        )
        self._record_around(
            module, "Queue.put", *self._workers.around_put(), PUTTING, (), ("self", "obj")
        )

    def _patch_pin(self, module: ModuleType) -> None:
        self._record_around(
            module,
            "_pin_memory_loop",
            *self._batches.around_pin_loop(),
            OUTSIDE,
            ("in_queue", "out_queue"),
            (),
        )
        self._record_around(module, "pin_memory", *self._batches.around_pin(), PIN)

    def _patch_loader(self, module: ModuleType) -> None:
        making = as_function(self._batches.making)
        beginning_again = as_function(self._batches.beginning_again)
        self._record_around(
            module,
            "_BaseDataLoaderIter.__init__",
            making,
            _nothing,
            OUTSIDE,
            ("self", "loader"),
            (),
        )
        self._record_around(
            module,
            "_BaseDataLoaderIter._reset",
            beginning_again,
            _nothing,
            OUTSIDE,
            ("self", "loader", "first_iter"),
            (),
        )
        self._patch_iterators(
            module, "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"
        )

    def _patch_stateful(self, module: ModuleType) -> None:
        self._patch_iterators(
            module, "_StatefulSingleProcessDataLoaderIter", "_StatefulMultiProcessingDataLoaderIter"
        )

    def _patch_iterators(self, module: ModuleType, single: str, several: str) -> None:
        batches, self_ = self._batches, ("self",)
        self._record_around(
            module,
            f"{single}._next_data",
            *batches.around_next_here(),
            OUTSIDE,
            self_,
            (),
            value=True,
        )
        self._record_around(
            module,
            f"{several}._next_data",
            *batches.around_next(),
            OUTSIDE,
            self_,
            self_,
            value=True,
        )
        self._record_around(
            module,
            f"{several}._get_data",
            _entered,
            batches.after_get_data(),
            OUTSIDE,
            (),
            self_,
            value=True,
        )
        self._record_around(
            module, f"{several}._try_put_index", *batches.around_put_index(), OUTSIDE, self_, self_
        )


class NamedOperations:
    """Records the operations that the user names, each once it is found."""

    def __init__(self, names: Sequence[str], operations: Operations) -> None:
        self._operations = operations
        # the operations that have not been found: name -> the reason
        self.missing = dict.fromkeys(names, "its module was not imported")
        self._over = False

    def watch(self) -> None:
        """Look for each operation when its module has been imported."""
        for name in list(self.missing):  # a copy, because an operation found at once is removed
            module = name.partition(":")[0]
            if module not in _MAIN:
                when_imported(module, self._imported)

    def unwatch(self) -> None:
        """Stop looking for operations."""
        self._over = True

    def _imported(self, module: ModuleType) -> None:
        if not self._over:
            self.update()

    def update(self) -> None:
        """Look for the operations that have not been found: a module may define one after it was
        imported."""
        for name in list(self.missing):
            module_name, _, path = name.partition(":")
            module = _module(module_name)
            if module is None:
                continue
            try:
                why = self._record_path(module, path)
            except Exception as exc:  # attributes of a module can raise anything
                why = f"{type(exc).__name__}: {exc}"
            if why:
                self.missing[name] = why
            else:
                self.missing.pop(name, None)

    def _record_path(self, module: ModuleType, path: str) -> str:
        """Record the function or method at a path in a module; returns why that is not possible, or
        an empty string if it is done."""
        *outer, last = path.split(".")
        owner: Any = module
        for part in outer:
            owner = getattr(owner, part, None)
        if isinstance(owner, type):
            return self._method(owner, last)
        function = getattr(owner, last, None)
        if function is None:
            return f"{module.__name__} has no {path}"
        if isinstance(function, type):
            return f"{path} is a class; name its method, such as {path}.__call__"
        return "" if self._operations.function(function) else _UNSEEN

    def _method(self, kind: type, name: str) -> str:
        owner = next((above for above in kind.__mro__ if name in vars(above)), None)
        if owner is None:
            return f"{kind.__qualname__} has no {name}"
        method = vars(owner)[name]
        is_recorded = False
        if type(method) in (staticmethod, classmethod):
            is_recorded = self._operations.function(method.__func__, f"{kind.__name__}.{name}")
        elif type(method) is FunctionType:
            suffix = "" if name in ("__call__", "forward") else f".{name}"
            is_recorded = self._operations.method(owner, name, suffix)
        return "" if is_recorded else _UNSEEN


_UNSEEN = "it is not written in Python, or its source is not there to read"


def _module(name: str) -> ModuleType | None:
    if name in _MAIN:  # in a spawned process, the script is the module __mp_main__
        return sys.modules.get("__mp_main__") or sys.modules.get("__main__")
    return sys.modules.get(name)
