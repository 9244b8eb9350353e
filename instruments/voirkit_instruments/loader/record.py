"""``--loader``: records every sample, transform, worker and wait of the program's loaders in the
trace.

It only records. The functions of torch and of the program keep their identity: code is added to
their bodies (``voirkit.probes.around``). Processes that load data, forked or spawned, record too. A
spawned process receives, with its task, the operations that the user named and the episode that it
is a worker of.
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
    """Start recording in this process.

    Args:
        recorder: The recorder ``voirkit.trace.recorder``, or an object with its functions.
        process: The overseer, or its replacement in a process that the program has started.
        operations: Names of operations that the user gave.
    """
    from voirkit_instruments.identity import LoaderNumbers
    from voirkit_instruments.loader.record_batches import Recording
    from voirkit_instruments.loader.record_torch import LoaderTorch
    from voirkit_instruments.steps.events import StepEvents

    # ``LoaderNumbers`` is shared, so that the steps instrument numbers loaders and episodes equally
    recording = Recording(recorder, process.warn, process.shared(LoaderNumbers))
    torch = LoaderTorch(recording, operations, process.shared(StepEvents))
    torch.install()
    return torch


def _record_in_children(torch: LoaderTorch, operations: Sequence[str]) -> None:
    """Make the processes that are spawned from this one record too."""

    def offer() -> dict[str, Any]:
        """Return the settings for a process that is started from this thread."""
        episode = torch.recording.state.making
        place = None if episode is None else episode.place
        return {"operations": list(operations), "place": place}

    inherit.watch(_ACCEPT, offer)


def record_in_child(offer: dict[str, Any]) -> None:
    """Start recording, with the parent's settings, in a process that was spawned from it."""
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
    """Return the names in the values of the option. Raises CommandLineError: one is not of the form
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
    """Record what the program's loaders do.

    ``operations`` are additional functions that the user names, as ``module:function`` or
    ``module:Class.method``, separated by commas. Raises CommandLineError: a name has another form.
    """
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
        except Exception as exc:  # internals of an unknown version of torch may be different
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
    """Remove the patches at the end of the program, and report named operations that were not
    seen."""
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


# The cost of handing a batch from one process to another on this machine

_PYTHON = (
    "import sys; sys.path += sys.argv[1:]; from voirkit_instruments.loader.record import"
    " print_handover; print_handover()"
)
_ROUNDS, _CALLS = 40, 1000
_PAGES = 4 << 20  # bytes of shared memory that are written to measure the cost
_LONGEST_S = 5.0


def _record_handover(recording: Any) -> None:
    """Record the costs of handing a batch over, and of recording, on this machine. The prediction
    uses them."""
    from voirkit_instruments.loader.record_batches import now

    if recording.has_made and recording.folder() is not None:
        costs = measure_handover()
        end = now()
        for name, value in (costs or {}).items():
            recording.span(recording.cost(name), end, end, recording.arguments({}), value)


def measure_handover() -> dict[str, int] | None:
    """Measure costs of this machine in another process; None if that fails.

    ``call_ns`` is the cost of a call of a Python function. ``tensor_ns`` is the cost of handing
    over a file of shared memory, and ``mb_ns`` of writing a million bytes into it.
    """
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
    """Measure the costs of handing a batch over, and print them as JSON; runs in its own process.

    torch's loaders send a tensor as a file of shared memory. Its file descriptor goes through
    ``multiprocessing.resource_sharer``: a connection, a handshake and a message for each tensor.
    Here the same is done without torch, and the CPU time of both sides is measured together. This
    takes 0.1 s.
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
