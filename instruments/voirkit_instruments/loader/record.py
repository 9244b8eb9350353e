"""``--loader``: every sample, transform, worker and wait of the program's loaders, written into the
trace plane.

It only records. The functions of torch and of the program keep their identity: what is recorded is
in their bodies (``voirkit.probes.around``). Processes that load data see it too, forked or started
anew: the latter are handed, with what they are to do, the operations that the user named and the
episode whose worker they are.
"""

from __future__ import annotations

import os
import sys
from time import process_time_ns

from voirkit.errors import CommandLineError
from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition, once
from voirkit.processes import inherit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.processes.children import ChildProcess
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.loader.record_torch import LoaderTorch

_OPTION = "--loader-ops"
_ACCEPT = "voirkit_instruments.loader.record:record_in_child"


def start_recording(
    recorder: Any, process: Overseer | ChildProcess, operations: Sequence[str]
) -> LoaderTorch:
    """Begin in this process.

    Args:
        recorder: The trace plane's recorder: ``voirkit.trace.recorder``, or what has its functions.
        process: The overseer, or what stands for it in a process that the program has started.
        operations: Those that the user names.
    """
    from voirkit_instruments.identity import LoaderNumbers
    from voirkit_instruments.loader.record_batches import Recording
    from voirkit_instruments.loader.record_torch import LoaderTorch
    from voirkit_instruments.steps.events import StepEvents

    # its steps have the same numbers
    recording = Recording(recorder, process.warn, process.shared(LoaderNumbers))
    torch = LoaderTorch(recording, operations, process.shared(StepEvents))
    torch.install()
    return torch


def _record_in_children(torch: LoaderTorch, operations: Sequence[str]) -> None:
    """Have the processes that are spawned from this one record too."""

    def offer() -> dict[str, Any]:
        """The data that a process needs that is started from this thread."""
        episode = torch.recording.state.making
        place = None if episode is None else episode.place
        return {"operations": list(operations), "place": place}

    inherit.watch(_ACCEPT, offer)


def record_in_child(offer: dict[str, Any]) -> None:
    """In such a process: record as the parent does."""
    from voirkit.processes.children import this_process
    from voirkit.trace import recorder
    from voirkit_instruments.loader.record_batches import Episode

    if inherit.is_watched(_ACCEPT) or not recorder.is_recording():
        return
    torch = start_recording(recorder, this_process(), offer["operations"])
    _record_in_children(torch, offer["operations"])
    if offer["place"] is not None:
        torch.recording.state.making = Episode(**offer["place"])


def _parse_operation_names(values: Sequence[str]) -> list[str]:
    """The names in the values of the option. Raises CommandLineError: one is not of the form
    ``module:function`` or ``module:Class.method``."""
    names = [name.strip() for value in values for name in value.split(",")]
    names = [name for name in dict.fromkeys(names) if name]
    for name in names:
        module, colon, path = name.partition(":")
        parts = [*module.split("."), *path.split(".")]
        if not colon or not all(part.isidentifier() for part in parts):
            raise CommandLineError(
                f"{name!r} names no function.",
                where=_OPTION,
                next=(
                    f"Give module:function or module:Class.method, such as {_OPTION}"
                    " transformers:BertTokenizerFast.__call__"
                ),
            )
    return names


@instrument_definition
@once("--loader")
def loader(ov: Overseer, *operations: str) -> Iterator[Phase]:
    """Record what the program's loaders do. ``operations``: those that the user names, as
    ``module:function`` or ``module:Class.method``, several with commas between. Raises
    CommandLineError: a name is none."""
    names = _parse_operation_names(operations)
    torch: LoaderTorch | None = None
    is_over = False

    def start(module: ModuleType) -> None:
        nonlocal torch
        if is_over:
            return
        try:
            from voirkit.trace import recorder

            torch = start_recording(recorder, ov, names)
            _record_in_children(torch, names)
        except Exception as exc:  # a torch that is not like any known one
            ov.warn(f"loader: nothing is recorded of loaders ({type(exc).__name__}: {exc}).")

    when_imported("torch", start)
    try:
        yield ov.phases.run_script
    finally:
        is_over = True
        if torch is not None:
            _finish(ov, torch)
        elif names:
            ov.warn("--loader-ops: nothing was recorded: the program has not imported torch.")


def _finish(ov: Overseer, torch: LoaderTorch) -> None:
    """The program has ended: put all back as it was, and report what was not seen."""
    inherit.unwatch(_ACCEPT)
    _record_handover(torch.recording)
    torch.remove()
    for name, why in torch.named.missing.items():
        ov.warn(f"--loader-ops {name} was not recorded: {why}.")
    table = torch.patches.table
    ov.summary.setdefault("patches", []).extend(
        {"name": name, "why_not": why or None} for name, why in table.items()
    )


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    operations = options["loader_ops"]
    return loader(*([operations] if isinstance(operations, str) else operations))(ov)


# the cost of handing a batch from one process to another on this machine

_PYTHON = (
    "import sys; sys.path += sys.argv[1:]; from voirkit_instruments.loader.record import"
    " print_handover; print_handover()"
)
_ROUNDS, _CALLS = 40, 1000
_PAGES = 4 << 20  # bytes of shared memory that are written
_LONGEST_S = 5.0


def _record_handover(recording: Any) -> None:
    """Record what handing over a batch and recording cost on this machine; the prediction uses
    it."""
    from voirkit_instruments.loader.record_batches import now

    if recording.has_made and recording.folder() is not None:
        costs = measure_handover()
        end = now()
        for name, value in (costs or {}).items():
            recording.span(recording.cost(name), end, end, recording.arguments({}), value)


def measure_handover() -> dict[str, int] | None:
    """``{"call_ns", "tensor_ns", "mb_ns"}``, measured in another process; None where that is not
    known. A call of a function of python, a file of shared memory handed over, and a million bytes
    of it written first."""
    import json
    import subprocess

    import voirkit
    import voirkit_instruments
    from voirkit_instruments.detached import run_to_end

    paths = [os.path.dirname(package.__path__[0]) for package in (voirkit, voirkit_instruments)]
    command = [sys.executable, "-I", "-S", "-c", _PYTHON, *paths]
    try:
        costs = json.loads(
            run_to_end(command, os.environ, stderr=subprocess.DEVNULL, timeout=_LONGEST_S).stdout
        )
        return {key: int(costs[key]) for key in ("call_ns", "tensor_ns", "mb_ns")}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None


def _median(work: Callable[[], None], rounds: int) -> int:
    times = []
    for _ in range(rounds):
        begin_ns = process_time_ns()
        work()
        times.append(process_time_ns() - begin_ns)
    return sorted(times)[len(times) // 2]


def _file(n_bytes: int) -> int:
    from tempfile import mkstemp

    descriptor, path = mkstemp(prefix="voirkit-", dir="/dev/shm")
    os.unlink(path)
    os.ftruncate(descriptor, n_bytes)
    return descriptor


def print_handover() -> None:
    """In that process: measure, and print as JSON.

    torch's loaders send a tensor as a file of shared memory, whose descriptor goes through
    ``multiprocessing.resource_sharer``: a connection, a handshake and a message for each. Here the
    same is done without torch, in the processor's time of both sides together. It takes 0.1 s.
    """
    import json
    import mmap
    from multiprocessing import resource_sharer

    class Place:
        index = 0

        def call(self, index: int) -> int:
            self.index = index
            return self.index

    place = Place()

    def calls() -> None:
        for index in range(_CALLS):
            place.call(index)

    def tensor() -> None:
        descriptor = _file(4096)
        sent = mmap.mmap(descriptor, 4096)
        received_descriptor = resource_sharer.DupFd(descriptor).detach()
        received = mmap.mmap(received_descriptor, 4096)
        for memory in (sent, received):
            memory.close()
        for number in (descriptor, received_descriptor):
            os.close(number)

    text = bytes(_PAGES)

    def pages() -> None:
        descriptor = _file(_PAGES)
        with mmap.mmap(descriptor, _PAGES) as memory:
            memory[:] = text
        os.close(descriptor)

    costs = {
        "call_ns": _median(calls, _ROUNDS) // _CALLS,
        "tensor_ns": _median(tensor, _ROUNDS),
        "mb_ns": _median(pages, 5) * 1_000_000 // _PAGES,
    }
    resource_sharer.stop()
    print(json.dumps(costs))
