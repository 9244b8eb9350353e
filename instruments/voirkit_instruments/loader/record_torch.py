"""Which functions of torch the loader instrument stands around: the one table of them. Checked with
torch 2.1 and 2.15, torchdata 0.11.

Nothing here imports torch; what does not fit is told by its name and left out. A function that asks
for its own local variables is left alone, since it would find two more.
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
    """The patches of the loader instrument. ``recording``: says where each thread is, and takes
    warnings."""

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
        """Put something around a function, through its decorators; arguments that are not here are
        those of ``Around``.

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
        watch_picklers(weave.own_code)  # the code may be a lambda's that is pickled by value
        self._known[function] = True
        return True

    def has(self, function: FunctionType) -> bool:
        """True if something is around a function."""
        return self._known.get(function) is True

    def _unique(self, name: str, function: FunctionType) -> str:
        """A name for the table, which undoes by name: lambdas are many, and have one."""
        if name not in self.table:
            return name
        code = function.__code__
        return f"{name} at {code.co_filename}:{code.co_firstlineno} {id(function)}"

    def remove(self) -> None:
        """Put all back."""
        super().remove()
        self._known = IdentityMap()


def _knows_torch(function: FunctionType) -> bool:
    """True if ``torch`` is a global of a function's module, and no local variable of it."""
    return "torch" in function.__globals__ and "torch" not in function.__code__.co_varnames


def _nothing(entered: int, was: int) -> None:
    """After what was only to be known of before."""


def _entered(*_: Any) -> int:
    """Before what is only to be known of after."""
    return 1


def _name_of_own(collate: Any) -> str | None:
    """The name of the program's (or another library's) collate function; None of torch's."""
    collate = _without_partials(collate)
    if is_foreign(collate):
        return None
    return str(getattr(collate, "__name__", type(collate).__name__))


def _without_partials(function: Any) -> Any:
    while hasattr(type(function), "func") and type(function).__module__ == "functools":
        function = function.func
    return function


class LoaderTorch:
    """The patches of the loader instrument in one process. ``events``: who else wants to know when
    batches are fetched."""

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
            self.patches.when_imported(module, install)
        self.named.watch()

    def remove(self) -> None:
        """Put all back as it was."""
        self.named.unwatch()
        self.patches.remove()

    def prepare(self, dataset: Any, collate: Any, whole: bool) -> dict[str, Any]:
        """Record around the functions that a dataset and a collate function run, as far as that is
        not done.

        Args:
            dataset: What a loader reads from.
            collate: What puts its samples together.
            whole: Whether it is not called, and a sample is a batch.

        Returns:
            ``source``: the class whose samples are read, and its method; ``whole``, if it is;
            ``collate``: the name of the program's own.
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
        """Record around a method of datasets that reads samples; its first parameters are handed
        on."""
        owner = next((above for above in kind.__mro__ if vars(above).get(name) is not None), None)
        if owner is None:
            return
        function, where = vars(owner)[name], f"{owner.__module__}.{owner.__qualname__}.{name}"
        if type(function) is not FunctionType:  # ``functools.lru_cache``, C
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

    # one module each

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
        # By position: the names of the others have changed, these are called alike since 2.1.
        self._record_around(
            module,
            "_worker_loop",
            *self._workers.around_loop(),
            OUTSIDE,
            (names[2], names[3], names[10]),
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
    """Records the operations that the user names, each when it is there."""

    def __init__(self, names: Sequence[str], operations: Operations) -> None:
        self._operations = operations
        # for each that has not been found, why
        self.missing = dict.fromkeys(names, "its module was not imported")
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
        """Look for those that have not been found: a module may define one after it was
        imported."""
        for name in list(self.missing):
            module_name, _, path = name.partition(":")
            module = _module(module_name)
            if module is None:
                continue
            try:
                why = self._record_path(module, path)
            except Exception as exc:  # whatever an odd module does when it is looked at
                why = f"{type(exc).__name__}: {exc}"
            if why:
                self.missing[name] = why
            else:
                self.missing.pop(name, None)

    def _record_path(self, module: ModuleType, path: str) -> str:
        """Record a function; returns why that cannot be, or nothing if it is done."""
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
    if name in _MAIN:  # a process that was spawned has the script by the other name
        return sys.modules.get("__mp_main__") or sys.modules.get("__main__")
    return sys.modules.get(name)
