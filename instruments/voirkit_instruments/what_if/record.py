"""``--what-if``: what its options ask for, and one run of its experiment (``--what-if-setting``, which nobody else should use).

A run makes the change, counts the optimizer's steps (``--stop``), times the script's work, and keeps what is compared afterwards: losses,
the files that torch.save wrote. All of it is in the run's summary under ``what_if_run``. Plain runs do the same but for the change.

The time of the work begins where the script first asks a loader for batches, or first goes backward: what is imported and set up before
that takes seconds, differs by as much from run to run, and is none of what a change could touch. It ends when the script has, all that
the change has put off is done, and the GPU has nothing left to do.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from voirkit.errors import CommandLineError
from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition
from voirkit.intercept import ThreadState
from voirkit_instruments.values import is_readable
from voirkit_instruments.what_if.record_changes import PLAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType
    from typing import Any

    from voirkit.intercept import Patches
    from voirkit.phases import PhaseWithPriority
    from voirkit.runner.overseer import Overseer

MOST_LOSSES = 10_000  # that are kept


@instrument_definition
def what_if_child(ov: Overseer, name: str, argument: str | None, steps: int | None) -> Iterator[PhaseWithPriority]:
    """Run with a change, or without.

    Args:
        ov: The overseer.
        name: The change's, or ``PLAIN``.
        argument: The text behind ``=``.
        steps: How many steps of optimizers are made: what comes up to the next still is a part of the run.
    """
    from voirkit.intercept import Patches
    from voirkit_instruments.early_stop.record import Stopper
    from voirkit_instruments.what_if.record_changes import make_change

    _end_with_the_driver()
    patches, stopper = Patches(), Stopper(ov)
    change = None if name == PLAIN else make_change(name, argument)
    observer = RunObserver()
    hooks: list[Any] = []
    left = -1 if steps is None else steps

    def before_step(*_: object) -> None:
        nonlocal left
        if left == 0:
            observer.facts["stopped"] = True
            stopper.now()
        left -= 1
        observer.facts["steps"] += 1

    observer.watch(patches)
    when_imported("torch.optim.optimizer", lambda module: hooks.append(module.register_optimizer_step_pre_hook(before_step)))
    if change is not None:
        change.install(patches)
    yield ov.phases.load_script(priority=-1000)
    observer.began_ns = time.perf_counter_ns()
    try:
        yield ov.phases.run_script(priority=1000)
    finally:
        stopper.end()
        facts = observer.facts
        try:
            if change is not None:
                change.end()
        except BaseException as exc:
            facts["failed"] = f"{type(exc).__name__}: {exc}"
            ov.warn(f"--what-if {name}: {facts['failed']}")
        observer.wait_for_devices()
        end_ns = time.perf_counter_ns()
        facts["work_s"] = (end_ns - (observer.works_ns or observer.began_ns)) / 1e9
        facts["set_up_s"] = (observer.works_ns - observer.began_ns) / 1e9 if observer.works_ns else 0.0
        if change is not None:
            facts["facts"] = change.facts()
        observer.end()
        patches.remove()
        for hook in hooks:
            hook.remove()
        ov.summary["what_if_run"] = {"change": name, "argument": argument, **facts}


def _end_with_the_driver() -> None:
    """A driver that is killed leaves no run behind: this one gets SIGTERM then. Processes that it forks do not."""
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG


class RunObserver:
    """What a run did that is compared with another.

    Attributes:
        facts: What ``what_if_run`` of the summary holds.
        began_ns: When the script began.
        works_ns: When it first asked for batches or went backward; 0 if it did neither.
    """

    began_ns = works_ns = 0

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {"steps": 0, "stopped": False, "saves": 0, "saving_s": 0.0, "cuda": False, "threads": None}
        self._losses: list[Any] = []
        self._files: dict[str, tuple[int, int] | None] = {}  # path -> device and number of the file, as far as it is there
        self._torch: ModuleType | None = None
        self._n = 0

    def watch(self, patches: Patches) -> None:
        """Begin as soon as torch is there."""
        from voirkit.intercept import when_there
        from voirkit.probes.around import Around
        from voirkit_instruments.steps.torch_functions import COMPILING, innermost

        saving, facts = ThreadState(), self.facts

        def begin_work() -> int:
            self.works_ns = self.works_ns or time.perf_counter_ns()
            return 1

        def enter_backward(tensors: Any) -> int:
            begin_work()
            with suppress(Exception):  # not what torch takes either: it says what is wrong
                self._note_losses(tensors)
            return 1

        def enter_save(f: Any) -> int:
            saving.inside = 1
            return time.perf_counter_ns()

        def leave_save(begin_ns: int, was: int, f: Any) -> None:
            saving.inside = was
            if begin_ns:
                facts["saves"] += 1
                facts["saving_s"] += (time.perf_counter_ns() - begin_ns) / 1e9
                self._note_file(f)

        def leave(*_: object) -> None:
            pass

        def on_torch(torch: ModuleType) -> None:
            self._torch = torch
            around = Around(ThreadState(), 0, enter_backward, leave, ("tensors",), plain=COMPILING)
            patches.around("torch.autograd.backward", innermost(torch.autograd.backward), around)
            around = Around(saving, 0, enter_save, leave_save, ("f",), plain=COMPILING)
            patches.around("torch.serialization.save", innermost(torch.serialization.save), around)
            when_there("torch.utils.data.dataloader", on_dataloader, lambda _, why: facts.update(why_not=why))

        def on_dataloader(module: ModuleType) -> None:
            around = Around(ThreadState(), 0, begin_work, leave, plain=COMPILING)
            patches.around("torch.utils.data.DataLoader.__iter__", innermost(module.DataLoader.__iter__), around)

        when_there("torch", on_torch, lambda _, why: facts.update(why_not=why))

    def _note_losses(self, tensors: Any) -> None:
        for tensor in (tensors,) if hasattr(tensors, "detach") else tensors:
            self._n += 1
            if len(self._losses) < MOST_LOSSES:
                if not is_readable(sys.modules["torch"], tensor):
                    continue
                value = tensor.detach()
                value = value if value.numel() == 1 else value.float().mean()
                # Reading it from a device would wait for it; the copy is made there.
                self._losses.append(value.item() if value.device.type == "cpu" else value.clone())

    def _note_file(self, file: Any) -> None:
        with suppress(OSError, ValueError, TypeError):  # an object of the program's own
            name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
            if isinstance(name, str | os.PathLike):
                path = os.path.abspath(os.fspath(name))
                self._files[path] = _identity(path)

    def wait_for_devices(self) -> None:
        """What has been started on GPUs is a part of the run's work."""
        if self._torch is not None and self._torch.cuda.is_initialized():
            with suppress(Exception):  # the program's own failure, which it has met
                self._torch.cuda.synchronize()

    def end(self) -> None:
        """Put losses and files into ``facts``."""
        if self._torch is not None:
            self.facts.update(cuda=bool(self._torch.cuda.is_available()), threads=self._torch.get_num_threads())
        losses: list[float | None] = []
        for loss in self._losses:
            try:
                losses.append(float(loss))
            except Exception:  # complex, or of a device that is gone
                losses.append(None)
        self.facts["losses"] = {"n": self._n, "kept": losses}
        self.facts["files"] = [{"path": path, "file": _identity(path) or was} for path, was in self._files.items()]


def _identity(path: str) -> tuple[int, int] | None:
    """What a file is under all its names; None if it is not there."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    changes, setting, pairs = options["what_if"], options["what_if_setting"], options["pairs"]
    steps = ov.argparser.value(ov.options, "--stop")
    if setting is not None:
        name, equals, argument = setting.partition("=")
        return what_if_child(name, argument if equals else None, steps)(ov)
    if not changes:
        raise CommandLineError("--pairs is about --what-if, which is not asked for.", next=f"voirkit --what-if NAME --pairs {pairs} SCRIPT")
    if len(changes) > 1:
        raise CommandLineError("one change at a time can be held against the script as it is.", where="--what-if, given twice")
    from voirkit_instruments.what_if.record_experiment import what_if

    return what_if(*changes[0], pairs or 5, steps)(ov)
