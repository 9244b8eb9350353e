"""Recording for ``--checks``: facts from which ``analyse`` reports silent training bugs after the
run.

Nothing is judged here. This module has the only table of the functions of torch that are patched,
checked with torch 2.1 and 2.15. It never imports torch, but waits until the program does. A patch
that does not fit disables itself and is reported by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from voirkit.imports import when_imported
from voirkit.instrument import once
from voirkit.phases import Phase
from voirkit.probes.around import Around
from voirkit.processes import inherit
from voirkit_instruments.checks.record_backward import Graphs, LossFacts
from voirkit_instruments.checks.record_data import Drawing, Epochs, Ranks
from voirkit_instruments.checks.record_facts import (
    BACKWARD,
    COLLECTING,
    FORWARD,
    SUPPRESSED,
    Facts,
    ModelFacts,
    never_raises,
)
from voirkit_instruments.checks.record_optimizers import OptimizerFacts
from voirkit_instruments.steps.events import COMPILING, FunctionPatches, as_function, innermost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runner.overseer import Overseer

CHILD_ENTRY = "voirkit_instruments.checks.record:record_in_child"
_LOSSES = ("cross_entropy", "nll_loss", "binary_cross_entropy_with_logits")
_PAIRS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_SCHEDULERS = (
    "LRScheduler",
    "ReduceLROnPlateau",
    "SequentialLR",
    "ChainedScheduler",
    "CosineAnnealingWarmRestarts",
)


class Checks:
    """Records the facts of one run, once torch is imported."""

    def __init__(self, ov: Overseer) -> None:
        from voirkit.trace import recorder

        self._ov = ov
        self._facts = Facts(recorder, ov.warn)
        self._patches: list[TrainingPatches | DataPatches] = []
        self._over = False

    def watched(self) -> None:
        """Write a fact that says that recording has begun. It shows that a run without any other
        fact was watched."""
        self._facts.mark("on")

    def torch_imported(self, torch: ModuleType) -> None:
        if self._over:
            return
        try:
            # Each kind is installed before the next is made, so that the first works even if the
            # second cannot be made.
            for kind in (TrainingPatches, DataPatches):
                patches = kind(self._facts, torch, self._ov)
                self._patches.append(patches)
                patches.install()
        except Exception as exc:  # internals of an unknown version of torch may be different
            self._ov.warn(
                f"checks: not everything in torch can be watched ({type(exc).__name__}: {exc})."
            )

    def end(self) -> None:
        self._over = True
        self._facts.cost.report()
        for patches in reversed(self._patches):
            try:
                patches.remove()
            except Exception as exc:  # the program may have changed what was patched
                self._ov.warn(f"checks: {type(exc).__name__}: {exc}.")
        self._facts.mark_tallies()


@once("--checks")
def checks(ov: Overseer) -> Iterator[Phase]:
    """Record facts while the script runs."""
    yield ov.phases.parse_args
    watching = Checks(ov)
    when_imported("torch", watching.torch_imported)
    try:
        yield ov.phases.load_script
        watching.watched()
        yield ov.phases.run_script
    finally:
        watching.end()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    return checks(ov)


class TorchPatches:
    """Patches of functions of torch, which record facts. ``ov`` is None in a process that
    multiprocessing has started."""

    def __init__(self, facts: Facts, torch: ModuleType, ov: Any) -> None:
        self._facts = facts
        self._torch = torch
        self._ov = ov
        self._patches = FunctionPatches(self._warn)

    def _warn(self, message: str) -> None:
        if self._ov is not None:
            self._ov.warn(f"checks: {message}")

    def remove(self) -> None:
        self._patches.remove()
        if self._ov is not None:
            rows = self._ov.summary.setdefault("patches", [])
            for name, why in self._patches.table.items():
                rows.append({"name": name, "why_not": why or None})

    def _around(
        self,
        most: int,
        enter: Any,
        leave: Any,
        variables: tuple[str, ...],
        after: tuple[str, ...] | None = None,
        value: bool = False,
        compiled: bool = True,
    ) -> Around:
        """Make an ``Around``. ``after``: the variables that ``leave`` gets in place of
        ``variables``; ``compiled``: torch.compile may trace the function."""
        return Around(
            self._facts.here,
            most,
            as_function(enter),
            as_function(leave),
            variables,
            value,
            COMPILING if compiled else (),
            after,
        )


class TrainingPatches(TorchPatches):
    """Patches for facts about optimizers, gradients, models and losses."""

    def __init__(self, facts: Facts, torch: ModuleType, ov: Any) -> None:
        super().__init__(facts, torch, ov)
        models = ModelFacts(facts, torch)
        graphs = Graphs(facts, torch, models)
        optimizers = self._optimizers = OptimizerFacts(facts, torch, models, graphs)
        losses = LossFacts(facts, torch)
        self._step = self._around(BACKWARD, optimizers.enter_step, optimizers.leave_step, ("self",))
        self._decorated_step = self._around(
            BACKWARD, optimizers.enter_step, optimizers.leave_step, ("args",)
        )
        self._optimizer_made = self._around(
            SUPPRESSED, optimizers.enter_made, self._leave_made, ("self",)
        )
        self._zero_grad = self._around(
            BACKWARD, optimizers.enter_zero_grad, optimizers.leave_zero_grad, ("self",)
        )
        self._backward = self._around(
            FORWARD, graphs.enter_backward(optimizers), graphs.leave_backward, ("tensors",)
        )
        self._call = self._around(COLLECTING, models.enter_call, models.leave_call, ("self",))
        enter = as_function(optimizers.enter_scheduler)
        leave = as_function(optimizers.leave_scheduler)
        # ``unasked``: torch's module of schedulers has no variable ``torch``, so code that is added
        # to it cannot ask if it is being compiled.
        self._scheduler = Around(
            facts.here, BACKWARD, enter, leave, ("self", "epoch"), unasked=True
        )
        self._scheduler_without_epoch = Around(
            facts.here, BACKWARD, enter, leave, ("self",), unasked=True
        )
        self._scaler = self._around(
            BACKWARD, optimizers.enter_scaler, optimizers.leave_scaler, ("optimizer",)
        )
        self._losses = {
            name: self._around(FORWARD, losses.enter_with_logits(name), losses.leave, ("input",))
            for name in _LOSSES
        }
        for name in _PAIRS:
            self._losses[name] = self._around(
                FORWARD,
                losses.enter_with_pair(name),
                losses.leave,
                ("input", "target", "reduction"),
            )

    def install(self) -> None:
        for name, path, around in (
            ("torch.nn.modules.module", "Module._wrapped_call_impl", self._call),
            ("torch.nn.modules.module", "Module.zero_grad", self._zero_grad),
            ("torch.autograd", "backward", self._backward),
            ("torch.optim.optimizer", "Optimizer.zero_grad", self._zero_grad),
            ("torch.optim.optimizer", "Optimizer._patch_step_function", self._optimizer_made),
            *(("torch.nn.functional", name, around) for name, around in self._losses.items()),
        ):
            self._patches.around_path(name, path, around)
        self._patches.when_imported("torch.optim.lr_scheduler", self._put_schedulers)
        for name in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
            self._patches.when_imported(name, self._put_scaler)
        self._patches.around_steps(self._step, self._decorated_step)

    def remove(self) -> None:
        """Remove the patches, after a last inspection."""
        self._optimizers.finish()
        super().remove()

    def _put_schedulers(self, module: ModuleType) -> None:
        for name in _SCHEDULERS:
            step = vars(getattr(module, name, object)).get("step")
            if type(step) is FunctionType:
                step = innermost(step)
                code = step.__code__
                parameters = code.co_varnames[: code.co_argcount]
                around = self._scheduler
                if "epoch" not in parameters:
                    around = self._scheduler_without_epoch
                self._patches.around_function(f"{module.__name__}.{name}.step", step, around)

    def _put_scaler(self, module: ModuleType) -> None:
        # None in torch.cuda.amp of torch 2.3 and later, which has the scaler of torch.amp
        step = vars(module.GradScaler).get("step")
        if step is not None:
            self._patches.around_function(
                f"{module.__name__}.GradScaler.step", innermost(step), self._scaler
            )

    @never_raises("an optimizer")
    def _leave_made(self, _start_ns: int, was: int, optimizer: Any) -> None:
        self._facts.here.inside = was
        self._facts.trains()
        # Patch ``step`` again: torch decorates it when the first optimizer of a class is made.
        self._patches.around_step(type(optimizer), self._step, self._decorated_step)


class DataPatches(TorchPatches):
    """Patches for facts about loaders, their workers, and ranks."""

    def __init__(self, facts: Facts, torch: ModuleType, ov: Any) -> None:
        super().__init__(facts, torch, ov)
        self.drawing = Drawing(facts, torch)
        self._epochs = Epochs(facts, torch, self.drawing)
        self._ranks = Ranks(facts, torch)

    def install(self) -> None:
        for module, path, around in self._functions():
            self._patches.around_path(module, path, around)
        self._facts.after_look.append(self._ranks.compare)
        inherit.watch(CHILD_ENTRY, self._offer)

    def _offer(self) -> dict[str, Any]:
        """Return the arguments for a process that multiprocessing starts."""
        return {"making": self.drawing.making}

    def remove(self) -> None:
        inherit.unwatch(CHILD_ENTRY)
        self._epochs.finish()
        super().remove()

    # These functions are rarely called, so they are recorded whatever the thread is running: their
    # limit is SUPPRESSED, the highest value of ``inside``.

    def _data(
        self,
        enter: Any,
        leave: Any,
        variables: tuple[str, ...] = (),
        after: tuple[str, ...] = ("self",),
        value: bool = False,
    ) -> Around:
        return self._around(SUPPRESSED, enter, leave, variables, after, value, compiled=False)

    def _functions(self) -> Iterator[tuple[str, str, Around]]:
        epochs, drawing, ranks = self._epochs, self.drawing, self._ranks
        loader, fetch = "torch.utils.data.dataloader", "torch.utils.data._utils.fetch"
        yield (
            loader,
            "DataLoader.__init__",
            self._data(epochs.enter_made, epochs.leave_made, ("shuffle",)),
        )
        yield (
            loader,
            "_BaseDataLoaderIter.__init__",
            self._data(epochs.enter_iterator, epochs.leave, ("self", "loader"), ()),
        )
        yield (
            loader,
            "_BaseDataLoaderIter._reset",
            self._data(epochs.enter_again, epochs.leave, ("self", "first_iter"), ()),
        )
        yield (
            loader,
            "_BaseDataLoaderIter._next_index",
            self._data(epochs.enter, epochs.leave_index, value=True),
        )
        yield (
            loader,
            "_BaseDataLoaderIter.__next__",
            self._data(epochs.enter, epochs.leave_next, value=True),
        )
        yield loader, "DataLoader.__len__", self._data(epochs.enter, epochs.leave_len, value=True)
        yield (
            fetch,
            "_BaseDatasetFetcher.__init__",
            self._data(drawing.enter_made, drawing.leave, ("self", "dataset"), ()),
        )
        fetched = self._data(drawing.enter, drawing.leave_fetch, value=True)
        yield fetch, "_MapDatasetFetcher.fetch", fetched
        yield fetch, "_IterableDatasetFetcher.fetch", fetched
        forward = self._around(SUPPRESSED, ranks.enter_parallel, ranks.leave, ())
        yield "torch.nn.parallel.distributed", "DistributedDataParallel.forward", forward
        collective = self._around(SUPPRESSED, ranks.enter_collective, ranks.leave, ("tensor",), ())
        for name in ("all_reduce", "broadcast", "all_gather", "reduce"):
            yield "torch.distributed.distributed_c10d", name, collective


# Recording in processes that multiprocessing starts


def record_in_child(offer: dict[str, Any]) -> None:
    """Record the random draws of a loader's worker in a process that multiprocessing has started,
    once it has imported torch."""
    from voirkit.errors import tell
    from voirkit.trace import recorder

    if inherit.is_watched(CHILD_ENTRY) or not recorder.is_recording():
        return
    facts = Facts(recorder, tell)

    def imported(torch: ModuleType) -> None:
        if not inherit.is_watched(CHILD_ENTRY):
            data = DataPatches(facts, torch, None)
            data.install()
            data.drawing.making = offer["making"]

    when_imported("torch", imported)
