"""Recorder of signs of common training problems, in the process of the script; the rules judge them
later. It records:

- gradients that an optimizer's or module's ``zero_grad`` clears before an optimizer has used them,
  and the source line of the call;
- ``load_state_dict`` that is given the model's own tensors, and ``state_dict()`` results that are
  saved or loaded after later updates;
- the epoch of a ``DistributedSampler`` at each new iterator of its loader;
- the private memory of forked workers at the end of an epoch or of the workers, and the number of
  objects that their dataset holds;
- the peak memory of the process, sampled at every few ``zero_grad`` calls, and the objects that
  have increased if it has grown (``census``);
- the learning rate of the optimizer at the same calls and at the first ``zero_grad``, if the rate
  falls to next to nothing.

Each step costs one short call; everything else happens once an epoch or less often. Memory is read
with getrusage: reading it from /proc cost a step 150 us with cold caches. Checked with torch 2.1
and 2.15.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial

from voirkit.imports import when_imported
from voirkit_instruments.values import number, parameters_of, tensors_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.probes.around import Around
    from voirkit.runner.overseer import Overseer

KIND = CATEGORY = "symptom"
# Number of zero_grad calls from one sample to the next, at first. It is odd, so that of two
# alternating optimizers both are sampled.
SAMPLE_PERIOD = 7
SAMPLES = 128  # after each of this many samples the period between samples is doubled
# growth of memory that triggers the first census; each later census needs twice the growth of the
# one before
GROWTH_BYTES = 32 << 20
MOST_CENSUSES = 3  # maximum number of censuses in a run
LONG_CENSUS_NS = 50_000_000  # after a census longer than this, only one more is made
PLACES_LOOKED_UP = 4  # maximum number of lookups of the program's line for cleared gradients
MOST_MARKS = 64  # maximum number of marks for each name
# maximum number of optimizers whose learning rates are kept, including released ones
MOST_OPTIMIZERS = 256
_MOST_WORKERS = 8
_MOST_SAMPLERS = 8  # maximum number of nested samplers of a loader that are inspected

now = time.perf_counter_ns


class Symptoms:
    """Recorder that marks symptoms in the trace of one run.

    Args:
        ov: The overseer, for warnings and for objects that instruments share.
        recorder: ``voirkit.trace.recorder``, unless a test passes its own.
    """

    def __init__(self, ov: Overseer, recorder: Any = None) -> None:
        self._ov = ov
        self._recorder = recorder
        self._marks: dict[str, int] = {}  # number of marks made, by name
        self._patches: Any = None
        self._places: Any = None
        self._period, self._countdown = SAMPLE_PERIOD, 1
        self._samples = self._worker_looks = 0
        self._zero_grads = self._cleared = 0
        self._where_cleared: str | None = None
        self._pid = os.getpid()
        self._grown_at = self._censuses = 0
        self._first_census: Any = None
        # "optimizer" or "module", whichever has cleared gradients since the last backward pass;
        # empty if neither has
        self._zeroed_by = ""

    def start(self, torch: ModuleType) -> None:
        """Subscribe to the training events and install the patches. Called once torch has been
        imported, and before the steps instrument patches it."""
        from voirkit_instruments.guard import Guard
        from voirkit_instruments.identity import IdentityMap, LoaderNumbers
        from voirkit_instruments.steps.events import (
            BACKWARD_BEGAN,
            LOADER_ITERATED,
            MODULE_ZERO_GRAD,
            WORKERS_STOPPED,
            ZERO_GRAD,
            FunctionPatches,
            StepEvents,
        )
        from voirkit_instruments.symptoms.record_weights import KeptWeights

        if self._recorder is None:
            from voirkit.trace import recorder

            self._recorder = recorder
        self._read_memory = _memory_reader()
        self._torch = torch
        self._guard = Guard(self._ov.warn, "symptoms: nothing more is looked at")
        self._memory = self._recorder.name(CATEGORY, "memory", kind=KIND, value="bytes")
        self._loaders = self._ov.shared(LoaderNumbers)
        self._events = self._ov.shared(StepEvents)
        self._persistent = IdentityMap()  # iterators with persistent workers
        self._kept_weights = KeptWeights(torch)
        self._objects = IdentityMap()  # by dataset: number of objects that it holds
        self._rate_of = IdentityMap()  # by optimizer that still exists: its learning rate
        # the learning rates of all optimizers, since most scripts release their optimizer before
        # they end
        self._learning_rates: list[LearningRate] = []
        self._sample = self._guard.guarded(self._take_sample)
        self._note_cleared = self._guard.guarded(self._look_at_gradients)
        self._events.subscribe(ZERO_GRAD, before=self._before_zero_grad)
        self._events.subscribe(MODULE_ZERO_GRAD, before=self._before_module_zero_grad)
        self._events.subscribe(BACKWARD_BEGAN, before=self._before_backward)
        self._events.subscribe(LOADER_ITERATED, before=self._guard.guarded(self._before_iterator))
        self._events.subscribe(WORKERS_STOPPED, before=self._guard.guarded(self._before_shutdown))
        self._patches = FunctionPatches(lambda message: self._ov.warn(f"symptoms: {message}"))
        self._install()

    def _install(self) -> None:
        from voirkit.intercept import ThreadState
        from voirkit.probes.around import Around
        from voirkit_instruments.steps.events import COMPILING, as_function

        thread: Any = type("ThreadState", (ThreadState,), {})()

        def around(before: Callable[..., None], parameters: tuple[str, ...]) -> Around:
            guarded = self._guard.guarded(before)

            def enter(*arguments: Any) -> int:
                guarded(*arguments)
                return 0

            leave = as_function(self._leave)
            return Around(thread, 9, enter, leave, parameters, False, COMPILING)

        def after_outermost(after: Callable[..., None]) -> Around:
            guarded = self._guard.guarded(after)

            def enter(module: Any) -> int:
                thread.inside = 1
                return 1

            def leave(start_ns: int, was_inside: int, module: Any, result: Any) -> None:
                thread.inside = was_inside
                guarded(module, result)

            return Around(thread, 0, enter, leave, ("self",), True, COMPILING)

        load = around(self._before_load, ("self", "state_dict", "assign"))
        if "assign" not in self._torch.nn.Module.load_state_dict.__code__.co_varnames:
            load = around(self._before_load, ("self", "state_dict"))
        save = around(self._before_save, ("obj",))
        state_dict = after_outermost(self._after_state_dict)
        self._patches.around_path("torch.nn.modules.module", "Module.load_state_dict", load)
        self._patches.around_path("torch.serialization", "save", save)
        self._patches.around_path("torch.nn.modules.module", "Module.state_dict", state_dict)
        worker_ends = around(self._before_worker_ends, ("self", "shutdown"))
        path = "_MultiProcessingDataLoaderIter._mark_worker_as_unavailable"
        self._patches.around_path("torch.utils.data.dataloader", path, worker_ends)

    def _leave(self, *_: object) -> None:
        pass

    def end(self) -> None:
        """Measure the remaining workers, write the final marks and remove all patches. Called when
        the script has ended."""
        if self._patches is None:
            return
        self._guard.guarded(self._look_at_all_workers)()
        if self._cleared:
            arguments = {"where": self._where_cleared, "zero_grads": self._zero_grads}
            self._mark("cleared", self._cleared, arguments)
        self._guard.guarded(self._mark_learning_rates)()
        self._guard.is_off = True
        self._patches.remove()
        patches = self._ov.summary.setdefault("patches", [])
        for name, why in self._patches.table.items():
            patches.append({"name": name, "why_not": why or None})

    def _mark_learning_rates(self) -> None:
        for rate in self._learning_rates:
            if rate.low_since is not None:
                # For the optimizer that was sampled last, the rate counts as low until now.
                is_last = self._zero_grads - rate.until <= self._period
                until = self._zero_grads if is_last else rate.until
                self._mark("learning_rate", until - rate.since + 1, rate.document())

    def _mark(self, name: str, value: int, arguments: Mapping[str, Any]) -> None:
        count = self._marks.get(name, 0)
        if count >= MOST_MARKS:
            return
        self._marks[name] = count + 1
        number = self._recorder.name(CATEGORY, name, kind=KIND, value="value")
        self._recorder.mark(number, now(), self._recorder.arguments(arguments), value)

    # cleared gradients, and memory

    def _before_zero_grad(self, optimizer: Any) -> None:
        self._before_clearing("optimizer", optimizer)

    def _before_module_zero_grad(self, module: Any) -> None:
        self._before_clearing("module", module)

    def _before_backward(self, loss: Any) -> None:
        self._zeroed_by = ""

    def _before_clearing(self, kind: str, owner: Any) -> None:
        """Count a call that is about to clear gradients, and take a sample if one is due. If an
        optimizer and a module both clear gradients between two backward passes, only the first of
        them counts."""
        # Not guarded, because this runs at each step, when the CPU caches hold nothing of voirkit.
        # The rare parts have their own guards.
        if self._zeroed_by and self._zeroed_by != kind:
            return
        self._zeroed_by = kind
        self._zero_grads += 1
        self._countdown -= 1
        if not self._countdown:
            self._sample(kind, owner)
        if not self._events.here.stepped:  # no optimizer has stepped since the last backward pass
            self._note_cleared(kind, owner)

    def _look_at_gradients(self, kind: str, owner: Any) -> None:
        if kind == "optimizer":
            parameters = owner.param_groups[0]["params"]
        else:
            parameters = parameters_of(owner)
        if all(parameter.grad is None for parameter in parameters):
            return
        self._cleared += 1
        if self._cleared <= PLACES_LOOKED_UP:
            self._where_cleared = self._place()

    def _place(self) -> str | None:
        """Return the line of the program that is running."""
        if self._places is None:
            from voirkit_instruments.places import Places

            self._places = Places()
        place: str | None = self._places.of(sys._getframe(1))
        return place

    def _take_sample(self, kind: str, owner: Any) -> None:
        """Sample values that change slowly: the learning rate, and the peak memory of the
        process."""
        self._countdown = self._period
        if kind == "optimizer":
            self._learning_rate(owner).add(self._zero_grads, owner.param_groups)
        if self._zero_grads == 1:  # too early: libraries have not allocated their memory yet
            self._countdown -= 1
            return
        n_bytes = self._read_memory()
        if n_bytes:  # zero on systems other than Linux and macOS
            self._recorder.mark(self._memory, now(), 0, n_bytes)
            self._note_growth(n_bytes)
        self._samples += 1
        if self._samples % SAMPLES == 0:
            self._period = 2 * self._period + 1

    def _note_growth(self, n_bytes: int) -> None:
        """Count the live objects if memory has grown, and mark the objects that have increased
        since the first count."""
        if not self._grown_at:
            self._grown_at = n_bytes + GROWTH_BYTES
        if n_bytes < self._grown_at or self._censuses >= MOST_CENSUSES or os.getpid() != self._pid:
            return
        from voirkit_instruments.symptoms.census import Census, growth, is_affordable

        if not is_affordable():
            self._censuses = MOST_CENSUSES
            return
        census = Census(self._torch, self._first_census)
        name = self._recorder.name("voirkit", "look", kind="phase")
        self._recorder.span(name, census.at_ns, now())
        self._recorder.timed(1, census.took_ns, "instruments")
        if self._first_census is None:
            self._first_census = census
        else:
            more = growth(self._first_census, census)
            self._mark("growth", self._first_census.at_ns, {"more": json.dumps(more)})
        self._censuses += 1
        if census.took_ns > LONG_CENSUS_NS:
            self._censuses = max(self._censuses, MOST_CENSUSES - 1)
        self._grown_at = n_bytes + (GROWTH_BYTES << self._censuses)

    def _learning_rate(self, optimizer: Any) -> LearningRate:
        rate: LearningRate | None = self._rate_of.get(optimizer)
        if rate is None:
            rate = self._rate_of[optimizer] = LearningRate()
            if len(self._learning_rates) < MOST_OPTIMIZERS:
                self._learning_rates.append(rate)
        return rate

    # weights: load_state_dict, state_dict and save

    def _before_load(self, module: Any, state_dict: Any, assign: bool = False) -> None:
        """Mark a ``load_state_dict`` call that is given the model's own tensors, or a
        ``state_dict()`` result that later updates have changed."""
        if assign or not hasattr(state_dict, "values"):
            return
        plain = (self._torch.Tensor, self._torch.nn.Parameter)
        with self._torch._C.DisableTorchFunction():
            addresses = {tensor.data_ptr() for tensor in tensors_of(module)} - {0}
            tensors = [value for value in state_dict.values() if type(value) in plain]
            shared = sum(tensor.data_ptr() in addresses for tensor in tensors)
        n = len(tensors)
        if shared > n / 2:
            self._mark("own_weights", shared, {"where": self._place(), "tensors": n})
        elif self._kept_weights.is_stale(state_dict):
            how = "load_state_dict() was given"
            self._mark("kept_weights", n, {"where": self._place(), "how": how})

    def _before_save(self, saved: Any) -> None:
        """Mark a ``torch.save`` call that is given a ``state_dict()`` result that later updates
        have changed."""
        if self._kept_weights.is_stale(saved):
            self._mark("kept_weights", 0, {"where": self._place(), "how": "torch.save() was given"})

    def _after_state_dict(self, module: Any, result: Any) -> None:
        """Remember a result of ``state_dict()``. Results from before training are ignored: the
        script wants them to follow the training."""
        if self._zero_grads:
            self._kept_weights.add(module, result)

    # data loaders: samplers and workers

    def _before_iterator(self, *arguments: Any) -> None:
        """Record the sampler's epoch and the persistent workers' memory, before a loader's iterator
        is created or restarted."""
        loader = arguments[-1]
        self._note_epoch(loader)
        iterator = getattr(loader, "__dict__", {}).get("_iterator")
        if iterator is not None:
            self._persistent[iterator] = True
            self._look_at_workers(iterator)

    def _note_epoch(self, loader: Any) -> None:
        module = sys.modules.get("torch.utils.data.distributed")
        if module is None:
            return
        distributed = module.DistributedSampler
        for sampler in _samplers(loader):
            if not isinstance(sampler, distributed):
                continue
            if type(sampler).__iter__ is not distributed.__iter__:
                continue  # a subclass with its own order may need no epoch
            if sampler.shuffle and sampler.num_replicas > 1:
                self._mark("sampler_epoch", sampler.epoch, {"loader": self._loaders.loader(loader)})

    def _before_shutdown(self, iterator: Any) -> None:
        if not iterator.__dict__.get("_shutdown", True):
            self._look_at_workers(iterator)

    def _before_worker_ends(self, iterator: Any, is_shutdown: bool) -> None:
        """Measure the workers before one of them is told to end because its ``IterableDataset`` has
        no more batches. This happens before the iterator is shut down."""
        if not is_shutdown:
            self._look_at_workers(iterator)

    def _look_at_all_workers(self) -> None:
        for iterator, _ in self._persistent.items():
            if not iterator.__dict__.get("_shutdown", True):
                self._look_at_workers(iterator)

    def _look_at_workers(self, iterator: Any) -> None:
        """Measure the private memory of each worker of an iterator, and mark the median. Measures
        only at calls 1, 2, 4, 8 … of this method."""
        self._worker_looks += 1
        if self._worker_looks & (self._worker_looks - 1):
            return
        workers = iterator.__dict__.get("_workers") or ()
        dataset = iterator.__dict__.get("_dataset")
        sizes = [private_bytes(worker.pid) for worker in workers[:_MOST_WORKERS]]
        private = sorted(size for size in sizes if size is not None)
        if private:
            arguments = {
                "workers": len(workers),
                "objects": self._count_objects(dataset),
                "dataset": type(dataset).__name__,
            }
            self._mark("worker_memory", private[len(private) // 2], arguments)

    def _count_objects(self, dataset: Any) -> int:
        count: int | None = self._objects.get(dataset)
        if count is None:
            count = self._objects[dataset] = count_objects(dataset)
        return count


def _samplers(loader: Any) -> list[Any]:
    """Return the samplers of a loader and the samplers nested in them, each once. Runs no code of
    the program."""
    samplers: list[Any] = []
    owners = [loader]
    while owners and len(samplers) < _MOST_SAMPLERS:
        attributes = getattr(owners.pop(), "__dict__", {})
        for name in ("sampler", "batch_sampler"):
            sampler = attributes.get(name)
            if sampler is not None and not any(sampler is other for other in samplers):
                samplers.append(sampler)
                owners.append(sampler)
    return samplers


LOW_RATE = 1e-3  # share of the highest rate below which a rate counts as vanished


class LearningRate:
    """The learning rate of one optimizer, sampled now and then.

    Attributes:
        since: Number of ``zero_grad`` calls in the run up to the first sample.
        until: The same number at the last sample.
        low_since: The same number at the sample from which the rate has stayed under ``LOW_RATE``
            of its highest; None if it has not.
    """

    def __init__(self) -> None:
        self.highest = self.last = 0.0
        self.since = self.until = 0
        self.low_since: int | None = None

    def add(self, zero_grads: int, groups: list[dict[str, Any]]) -> None:
        """Add a sample of an optimizer's learning rate, after ``zero_grads`` calls of
        ``zero_grad``. A rate on a device is not read."""
        numbers = [number(group.get("lr"), wait=False) for group in groups]
        rates = [rate for rate in numbers if rate is not None]
        if not rates:
            return
        self.since = self.since or zero_grads
        self.until = zero_grads
        self.last = max(rates)
        self.highest = max(self.highest, self.last)
        if self.last >= LOW_RATE * self.highest:
            self.low_since = None
        elif self.low_since is None:
            self.low_since = zero_grads

    def document(self) -> dict[str, Any]:
        """Return the arguments of the mark of this learning rate."""
        updates = None if self.low_since is None else self.low_since - self.since
        return {"highest": self.highest, "last": self.last, "updates": updates}


def private_bytes(pid: int | None) -> int | None:
    """Return the memory that only this process has and that it has written to, in bytes; None if
    the system does not report it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(b"Private_Dirty:"):
            return int(line.split()[1]) * 1024
    return None


def _memory_reader() -> Callable[[], int]:
    """Return the function that reads the memory of this process in bytes. It reads the peak; if the
    system's peak is that of the launching process, it reads the current memory."""
    from voirkit_instruments import resources

    own_bytes = resources.high_water()
    if own_bytes is not None and resources.max_rss("RUSAGE_SELF") > own_bytes + GROWTH_BYTES:
        return resources.resident_bytes
    return partial(resources.max_rss, "RUSAGE_SELF")


_MOST_COUNTED = 1_000_000
_SAMPLED = 16  # number of elements of a list that are inspected


def count_objects(dataset: Any) -> int:
    """Estimate the number of Python objects in the lists and dictionaries of a dataset's
    attributes, including nested ones.

    A few elements of a long list are inspected, and stand for the rest. Runs no code of the
    program.
    """
    values = list(getattr(dataset, "__dict__", {}).values())
    return min(sum(_objects_in(value, 3) for value in values), _MOST_COUNTED)


def _objects_in(value: Any, depth: int) -> int:
    if type(value) not in (list, tuple, dict, set) or not value:
        return 1
    if type(value) is dict:
        elements: list[Any] = list(value.values())
    else:
        elements = list(value)
    if not depth:
        return len(elements)
    sample = elements[:: max(len(elements) // _SAMPLED, 1)]
    inside = sum(_objects_in(element, depth - 1) for element in sample)
    return 1 + round(len(elements) * inside / len(sample))


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase]:
    """Record symptoms while the script runs; nothing with ``--no-steps``."""
    if getattr(ov.options, "--no-steps", False):
        return
    symptoms = Symptoms(ov)
    when_imported("torch", symptoms.start)
    try:
        yield ov.phases.run_script
    finally:
        symptoms.end()
