"""The protocol of a change for ``--what-if``, the table of all changes, and the changes that only
set an option of torch or Python.

Nothing here imports torch. A change applies to a whole run and only affects its time: the program's
results stay the same, bit for bit or within rounding (``exact``). A change that cannot guarantee
this raises in ``install``, or changes nothing and reports why.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from voirkit.errors import CommandLineError, did_you_mean
from voirkit.imports import when_imported
from voirkit.phase_table import COMPUTE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.intercept import Patches

PLAIN = "plain"  # the setting of a run without a change
# arguments that a DataLoader without workers refuses
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")


class Ceiling(NamedTuple):
    """The most that a change could win."""

    # Largest share of the run's time that the change could affect, 0 to 1. 0: there is nothing to
    # change, and no run with the change is made. None: unknown.
    share: float | None
    because: str  # a sentence: what takes this share of the time, or why the share is 0 or unknown


class Change(Protocol):
    """A change of ``--what-if``. It is created twice: by the driver, for ``ceiling``, and in each
    run that it changes."""

    # True if results must be bit-equal; False if they must be equal within rounding (``Results``)
    exact: bool

    def __init__(self, argument: str | None) -> None:
        """Take the value after ``=``; None if there is none, or the change takes none. Raises
        ValueError if the value is wrong; the message says what would be right."""

    def ceiling(self, summary: Mapping[str, Any]) -> Ceiling:
        """Return the most that the change could win.

        Args:
            summary: ``summary.json`` of a plain run. Its ``what_if_run`` has the facts that
                ``record.py`` recorded: ``work_s`` (seconds from the first request for a batch to
                the script's end), ``saves`` (calls of torch.save), ``saving_s`` (seconds in these
                calls, also outside of steps), ``cuda``, ``threads``.
        """

    def install(self, patches: Patches) -> None:
        """Make the change in this run. Called before the script imports anything; use
        ``when_imported`` to wait for a library. ``end`` must undo all changes to libraries, except
        those made with ``patches``, which are removed after ``end``."""

    def end(self) -> None:
        """Wait for work that the change has deferred. Called after the script's work; the run's
        measured time ends after this call.

        Raises:
            BaseException: An error that came too late to be raised in the program. The run then
                counts as failed.
        """

    def facts(self) -> dict[str, Any]:
        """Return facts about the change. Called after ``end``.

        ``touched`` is how many times the change changed something; 0: there was nothing to change.
        ``because``, if present, is a sentence that says why nothing was changed, or a remark.
        ``once_s``, if present, is the one-time cost of the change in seconds, which does not depend
        on the length of the run; it is reported separately from the gain. Other keys are optional.
        """


class _Entry(NamedTuple):
    path: str  # ``module:class``; the module is one of this package
    argument: str  # as shown in the help: "=N", or "=N,M" for several values; empty for none
    help: str


CHANGES = {
    "checkpoint-async": _Entry(
        "record_checkpoint_async:CheckpointAsync", "", "torch.save writes in a thread"
    ),
    "checkpoint-no-crc": _Entry(
        "record_changes:CheckpointNoCrc", "", "torch.save computes no checksums"
    ),
    "read-ahead": _Entry(
        "record_read_ahead:ReadAhead", "", "the kernel is told early what the loader will read"
    ),
    "workers": _Entry(
        "record_changes:Workers", "=N,M", "DataLoader(num_workers=N); several numbers are compared"
    ),
    "num-threads": _Entry(
        "record_changes:NumThreads", "=N", "torch computes with N threads on the CPU"
    ),
    "pin-memory": _Entry("record_changes:PinMemory", "", "DataLoader(pin_memory=True)"),
    "gc-freeze": _Entry(
        "record_changes:GcFreeze",
        "",
        "what lives at the first optimizer step is kept out of garbage collection",
    ),
    "gc-every": _Entry(
        "record_changes:GcEvery",
        "=N",
        "python's young garbage is collected after every N optimizer steps, none between",
    ),
    "non-blocking": _Entry(
        "record_changes:NonBlocking", "", "copies from pinned memory to a GPU are not waited for"
    ),
}


# Names of withdrawn changes: the error message gives their measured effect, and a change to try
# instead.
WITHDRAWN = {
    "io-uring-read": (
        (
            "files that were not in memory took 0.34 to 1.0 times as long, others 0.8 to 2.6 times:"
            " nothing that read-ahead does not win"
        ),
        "read-ahead",
    ),
}


LIST = "list"  # ``--what-if list`` prints all changes


def parse_change(text: str) -> tuple[str, str | None]:
    """Parse ``NAME``, ``NAME=ARG`` or ``NAME=ARG,ARG`` to (name, argument).

    Raises:
        CommandLineError: The change is unknown or withdrawn, or its argument is wrong.
        SystemExit: The text is ``list``; the changes have been printed.
    """
    if text == LIST:
        print("\n".join(lines()))
        raise SystemExit(0)
    name, equals, argument = text.partition("=")
    if name in WITHDRAWN:
        measured, instead = WITHDRAWN[name]
        raise CommandLineError(
            f"{name} is made no more. Measured, {measured}.",
            next=f"Try instead: --what-if {instead}",
        )
    entry = CHANGES.get(name)
    if entry is None:
        hint = did_you_mean(name, CHANGES)
        raise CommandLineError(
            f"{name!r} is no change that voirkit knows.",
            next="\n".join([*([hint] if hint else []), *lines()]),
        )
    typed = f"--what-if {name}{entry.argument}"
    given = argument if equals else None
    try:
        for value in values_of(given):
            make_change(name, value)
    except ValueError as exc:
        raise CommandLineError(str(exc), next=f"Write: {typed}") from None
    return name, given


def values_of(argument: str | None) -> list[str | None]:
    """Return the distinct values of an argument, separated by commas; [None] for no argument."""
    return [None] if argument is None else [*dict.fromkeys(argument.split(","))]


def make_change(name: str, argument: str | None) -> Change:
    """Create a change. Raises ValueError if its argument is wrong."""
    from importlib import import_module

    if argument is not None and not CHANGES[name].argument:
        raise ValueError(f"{name} takes no argument.")
    module, _, kind = CHANGES[name].path.partition(":")
    change: Change = getattr(import_module(f"{__package__}.{module}"), kind)(argument)
    return change


def lines() -> list[str]:
    helps = {name + entry.argument: entry.help for name, entry in CHANGES.items()}
    helps |= {name: f"made no more; try {instead}" for name, (_, instead) in WITHDRAWN.items()}
    widest = max(map(len, helps))
    return [f"{name:<{widest}}  {help}" for name, help in helps.items()]


def ceiling_of_saving(summary: Mapping[str, Any]) -> Ceiling:
    """Return the ceiling of changes to ``torch.save``: the time in its calls."""
    run = summary.get("what_if_run") or {}
    n = run.get("saves")
    if not n:
        return Ceiling(0.0, "torch.save is not called in this run.")
    calls = "one call of torch.save takes" if n == 1 else f"the {n:,} calls of torch.save take"
    return Ceiling(_share_of_work(summary, run["saving_s"]), f"{calls} that much of it.")


def ceiling_of_phases(summary: Mapping[str, Any], what: str, *phases: str) -> Ceiling:
    """Return the ceiling of changes that can affect only some phases of the training steps. The
    phases of evaluation are unknown, so all of its time counts.

    Args:
        summary: As for ``Change.ceiling``.
        what: A name for these phases in the sentence, such as "waiting for batches".
        phases: ``wait``, ``transfer``, ``forward`` ...
    """
    steps, evaluation = summary.get("steps"), summary.get("evaluation")
    if not steps or not steps["n"]:
        return Ceiling(None, "no training step was seen.")
    spent_s = sum(steps["phases"][phase]["total_s"] for phase in phases)
    if evaluation:
        spent_s += evaluation["n"] * evaluation["time_s"]["median"]
        what += ", with all of the evaluation,"
    return Ceiling(_share_of_work(summary, spent_s), f"{what} takes that much of it.")


def _share_of_work(summary: Mapping[str, Any], seconds: float) -> float | None:
    """Return seconds as a share of the run's work, 0 to 1; None if the work was not timed."""
    work_s = (summary.get("what_if_run") or {}).get("work_s")
    return min(seconds / work_s, 1.0) if work_s else None


def _ceiling_of_copies(summary: Mapping[str, Any]) -> Ceiling:
    """Return the ceiling of changes to copies to a GPU."""
    if not (summary.get("what_if_run") or {}).get("cuda"):
        return Ceiling(0.0, "there is no CUDA device here, and nothing is copied to one.")
    return ceiling_of_phases(summary, "copying from one device to another (transfer)", "transfer")


class _Switch:
    """The common base of the changes in this module."""

    exact = True  # results must be bit-equal
    # ``module`` is changed once it is imported; ``idle`` is the reason that is reported if nothing
    # was changed
    module, idle = "torch", "torch was not imported."

    def __init__(self, argument: str | None) -> None:
        self.touched = 0  # number of times that something was changed
        self.because = ""  # reason why nothing was changed; empty if unknown

    def install(self, patches: Patches) -> None:
        """See ``Change``."""
        self.because = self.idle
        when_imported(self.module, lambda module: self.switch(module, patches))

    def switch(self, module: Any, patches: Patches) -> None:
        """Make the change."""

    def end(self) -> None:
        """Do nothing: no work was deferred."""

    def facts(self) -> dict[str, Any]:
        return {"touched": self.touched, **({"because": self.because} if self.because else {})}


def _whole_number(name: str, what: str, argument: str | None, least: int, most: int) -> int:
    """Return the number after ``NAME=``. Raises ValueError if it is not a whole number from
    ``least`` to ``most``."""
    text = argument or ""
    is_number = text.isascii() and text.isdigit()
    if not is_number or not least <= int(text) <= most:
        raise ValueError(
            f"{name} needs a whole number of {what} of at least {least}, not"
            f" {argument or 'nothing'!r}."
        )
    return int(text)


class CheckpointNoCrc(_Switch):
    """``torch.serialization.set_crc32_options(False)``: torch.save writes no checksums. torch.load
    does not read them, but strict readers do: ``zipfile`` reports a file without them as bad, and
    other libraries have refused such files."""

    def __init__(self, argument: str | None) -> None:
        super().__init__(argument)
        self._put_back: Callable[[], object] | None = None

    ceiling = staticmethod(ceiling_of_saving)

    def switch(self, torch: Any, patches: Patches) -> None:
        module = torch.serialization
        if not hasattr(module, "set_crc32_options"):
            self.because = "this torch always writes checksums (2.6 and later can leave them out)."
            return
        self.because = (
            "" if module.get_crc32_options() else "the checksums were switched off already."
        )
        self.touched += not self.because
        module.set_crc32_options(False)
        self._put_back = lambda: module.set_crc32_options(True)

    def end(self) -> None:
        if self._put_back is not None:
            self._put_back()


class NumThreads(_Switch):
    """``torch.set_num_threads(N)`` as soon as torch is imported; a number that the program sets
    later wins."""

    exact = False  # with another number of threads, sums are taken in another order

    def __init__(self, argument: str | None) -> None:
        super().__init__(argument)
        self._n = _whole_number("num-threads", "threads", argument, 1, 4096)
        self._torch: Any = None

    def ceiling(self, summary: Mapping[str, Any]) -> Ceiling:
        """Return the time of computing as the ceiling, if the CPU computes the steps."""
        if (summary.get("what_if_run") or {}).get("threads") == self._n:
            return Ceiling(
                0.0,
                f"the script computes with {self._n} thread{'s' if self._n > 1 else ''} as it is.",
            )
        if (summary.get("steps") or {}).get("time_of") == "device":
            return Ceiling(
                None,
                "the steps are computed by a GPU, which has nothing of it; the host's own work"
                " may.",
            )
        return ceiling_of_phases(summary, f"computing ({', '.join(COMPUTE)})", *COMPUTE)

    def switch(self, torch: Any, patches: Patches) -> None:
        self._torch = torch
        torch.set_num_threads(self._n)

    def end(self) -> None:
        if self._torch is not None:
            threads = self._torch.get_num_threads()
            self.touched = int(threads == self._n)
            self.because = "" if self.touched else f"the program itself has set {threads} threads."


class _LoaderArgument(_Switch):
    """A change of one argument of each ``DataLoader`` that the program makes."""

    module = "torch.utils.data.dataloader"
    name: str  # name of the argument of ``DataLoader``

    def alter(self, arguments: dict[str, Any]) -> bool:
        """Change the given arguments in place, and return True; return False if they already have
        the changed value."""
        raise NotImplementedError

    def switch(self, module: Any, patches: Patches) -> None:
        patches.wrap(module.DataLoader, "__init__", self._init, (self.name,))

    def _init(
        self,
        wrapped: Callable[..., Any],
        instance: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        from inspect import signature

        try:
            bound = signature(wrapped).bind(*args, **kwargs)
        except TypeError:  # wrong arguments: torch raises its own error
            return wrapped(*args, **kwargs)
        if self.alter(bound.arguments):
            self.touched += 1
            self.because = ""
        return wrapped(*bound.args, **bound.kwargs)


class PinMemory(_LoaderArgument):
    """``DataLoader(pin_memory=True)``, for loaders that do not pin memory already."""

    name = "pin_memory"
    idle = "no loader was made that does not pin its batches already."
    ceiling = staticmethod(_ceiling_of_copies)

    def alter(self, arguments: dict[str, Any]) -> bool:
        if arguments.get(self.name):
            return False
        arguments[self.name] = True
        return True


class Workers(_LoaderArgument):
    """``DataLoader(num_workers=N)``. For N = 0 the arguments that a loader only accepts with
    workers are removed (``prefetch_factor``, ``persistent_workers``, ...)."""

    name = "num_workers"

    def __init__(self, argument: str | None) -> None:
        super().__init__(argument)
        self._n = _whole_number("workers", "loader workers", argument, 0, 1024)
        self.idle = f"no loader was made that has another number of workers than {self._n}."

    def ceiling(self, summary: Mapping[str, Any]) -> Ceiling:
        """Return the wait for batches as the ceiling if the script's loader has no workers. With
        workers the ceiling is unknown: workers also take processors from the training, so fewer
        workers may win more than the wait."""
        loader = (summary.get("steps") or {}).get("loader") or {}
        workers = loader.get("workers") or 0
        if workers:
            plural = "s" if workers > 1 else ""
            return Ceiling(
                None,
                f"the script's {workers} worker{plural} may also take processors from the training.",
            )
        return ceiling_of_phases(summary, "waiting for batches", "wait")

    def alter(self, arguments: dict[str, Any]) -> bool:
        if arguments.get(self.name, 0) == self._n:
            return False
        arguments[self.name] = self._n
        if not self._n:
            for name in _OF_WORKERS:
                arguments.pop(name, None)
        return True


class NonBlocking(_Switch):
    """``non_blocking=True`` for copies from pinned memory to a GPU by ``Tensor.to`` and
    ``Tensor.cuda``.

    Other copies are left alone. A copy from other memory gains nothing, and after a copy to the CPU
    the program could read data that has not arrived yet. If the program writes into the pinned
    tensor right after the copy, the new data may arrive instead: comparing the losses shows it.
    """

    idle = "nothing was copied from pinned memory to a GPU."
    ceiling = staticmethod(_ceiling_of_copies)

    def switch(self, torch: Any, patches: Patches) -> None:
        # these patches enclose those of other instruments
        for name in ("to", "cuda"):
            patches.put(torch.Tensor, name, self._copy_method(torch, name))

    def _copy_method(self, torch: ModuleType, name: str) -> Any:
        original = getattr(torch.Tensor, name)
        is_tensor = torch.Tensor

        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                type(tensor) is is_tensor
                and "non_blocking" not in kwargs
                and self._to_gpu(torch, name, args, kwargs)
                and _pinned(tensor)
            ):
                self.touched += 1
                self.because = ""
                kwargs["non_blocking"] = True
            return original(tensor, *args, **kwargs)

        copy.__name__ = copy.__qualname__ = name
        return copy

    def _to_gpu(
        self, torch: ModuleType, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> bool:
        """True if the arguments name a GPU and none of them could be ``non_blocking``, which ``to``
        also takes as a positional argument."""
        if any(type(value) is bool for value in args) or len(args) > 2:
            return False
        device = kwargs.get("device", args[0] if args else None)
        if name == "cuda":
            return True
        if isinstance(device, torch.Tensor):
            return bool(device.is_cuda)
        if type(device) is int:
            return True
        return (
            str(device).partition(":")[0] == "cuda"
            if isinstance(device, str | torch.device)
            else False
        )


def _pinned(tensor: Any) -> bool:
    try:
        return bool(tensor.device.type == "cpu" and tensor.is_pinned())
    except Exception:  # a tensor without memory of its own
        return False


class _Collections(_Switch):
    """Base of changes to Python's garbage collection. They take effect after the first optimizer
    step, when the script's long-lived objects exist."""

    module, idle = "torch.optim.optimizer", "no optimizer of torch made a step."

    def __init__(self, argument: str | None) -> None:
        super().__init__(argument)
        self.steps = 0
        self._hook: Any = None

    def ceiling(self, summary: Mapping[str, Any]) -> Ceiling:
        """Return the time of garbage collections in training steps as the ceiling; if the script
        also evaluates, the time of all garbage collections."""
        steps, wall = summary.get("steps"), summary.get("wall")
        if not steps or not steps["n"]:
            return Ceiling(None, "no training step was seen.")
        parts = (
            wall["parts"]
            if wall and summary.get("evaluation")
            else steps["phases"]["other"]["parts"]
        )
        if "gc" not in parts:
            return Ceiling(0.0, "no garbage collection takes 0.1 ms or more.")
        return Ceiling(
            _share_of_work(summary, parts["gc"]["total_s"]),
            "garbage collections of 0.1 ms and more take that much of it.",
        )

    def switch(self, module: Any, patches: Patches) -> None:
        def after_step(*_: object) -> None:
            self.steps += 1
            self.on_step()

        self._hook = module.register_optimizer_step_post_hook(after_step)

    def on_step(self) -> None:
        """Make the change; called after each optimizer step."""

    def end(self) -> None:
        if self._hook is not None:
            self._hook.remove()


class GcFreeze(_Collections):
    """``gc.collect(); gc.freeze()`` after the first step of an optimizer."""

    _once_ns = 0  # time that the one collection and freeze took

    def on_step(self) -> None:
        if self.steps == 1:
            self.because = (
                "the script itself has frozen its objects." if gc.get_freeze_count() else ""
            )
            if not self.because:
                began_ns = time.perf_counter_ns()
                gc.collect()
                gc.freeze()
                self._once_ns = time.perf_counter_ns() - began_ns
                self.touched = 1

    def end(self) -> None:
        super().end()
        if self.touched:
            gc.unfreeze()

    def facts(self) -> dict[str, Any]:
        facts = super().facts()
        if self._once_ns:
            facts["once_s"] = self._once_ns / 1e9
        return facts


class GcEvery(_Collections):
    """``gc.disable()`` after the first optimizer step, and ``gc.collect(1)`` then and after every N
    steps, as torchtitan does.

    ``gc.collect(1)`` collects the objects that were created since the last collection. A full
    collection takes 0.4 s with torch imported: 7 of them made a script of 6,000 small steps 2.3 to
    2.9 times as slow. Python itself rarely makes one if memory does not grow.
    """

    def __init__(self, argument: str | None) -> None:
        super().__init__(argument)
        self._every = _whole_number("gc-every", "optimizer steps", argument, 1, 1_000_000)

    def on_step(self) -> None:
        if self.steps == 1:
            self.because = (
                ""
                if gc.isenabled()
                else "the script itself has switched automatic collections off."
            )
            self.touched = int(gc.isenabled())
            gc.disable()
        if self.touched and (self.steps - 1) % self._every == 0:
            gc.collect(1)

    def end(self) -> None:
        super().end()
        if self.touched and gc.isenabled():
            self.because = "the script itself switches automatic collections on again."
        elif self.touched:
            gc.enable()
