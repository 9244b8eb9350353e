"""``--loader``: every sample, transform, worker and wait of the program's loaders, written into the trace plane.

It only records. The functions of torch and of the program keep their identity: what is recorded is in their bodies
(``voirkit.probes.around``). Processes that load data see it too, forked or started anew: the latter are handed, with what they are to do,
the operations that the user named and the episode whose worker they are.
"""

from __future__ import annotations

from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition, once
from voirkit.processes import inherit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.processes.children import ChildProcess
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.loader.record_torch import LoaderTorch

_ACCEPT = "voirkit_instruments.loader.record:record_in_child"

_recording: tuple[LoaderTorch, list[str]] | None = None  # of this process, for those that it starts


def start_recording(recorder: Any, process: Overseer | ChildProcess, operations: Sequence[str]) -> LoaderTorch:
    """Begin in this process.

    Args:
        recorder: The trace plane's recorder: ``voirkit.trace.recorder``, or what has its functions.
        process: The overseer, or what stands for it in a process that the program has started.
        operations: Those that the user names.
    """
    global _recording
    from voirkit_instruments.loader.record_spans import Recording
    from voirkit_instruments.loader.record_torch import LoaderTorch
    from voirkit_instruments.loader_numbers import LoaderNumbers
    from voirkit_instruments.steps.events import StepEvents

    recording = Recording(recorder, process.warn, process.shared(LoaderNumbers))  # its steps have the same numbers
    torch = LoaderTorch(recording, operations, process.shared(StepEvents))
    _recording = torch, list(operations)
    torch.install()
    return torch


def offer_to_child() -> dict[str, Any] | None:
    """What a process needs that is started anew from this thread."""
    if _recording is None:
        return None
    torch, operations = _recording
    episode = torch.recording.here.making
    return {"operations": operations, "place": None if episode is None else episode.place}


def record_in_child(offer: dict[str, Any]) -> None:
    """In such a process: record as the parent does."""
    from voirkit.processes.children import this_process
    from voirkit.trace import recorder
    from voirkit_instruments.loader.record_spans import Episode

    if _recording is not None or not recorder.is_recording():
        return
    torch = start_recording(recorder, this_process(), offer["operations"])
    if offer["place"] is not None:
        torch.recording.here.making = Episode(**offer["place"])


@instrument_definition
@once("--loader")
def loader(ov: Overseer, *operations: str) -> Iterator[Phase]:
    """Record what the program's loaders do.

    Args:
        ov: The overseer.
        operations: Those that the user names, as ``module:function`` or ``module:Class.method``, several with commas between.

    Raises:
        CommandLineError: A name is none.
    """
    from voirkit_instruments.loader.record_operations import parse_operation_names

    names = parse_operation_names(operations)
    torch: LoaderTorch | None = None
    is_over = False

    def start(module: ModuleType) -> None:
        nonlocal torch
        if is_over:
            return
        try:
            from voirkit.trace import recorder

            torch = start_recording(recorder, ov, names)
            inherit.watch(_ACCEPT, offer_to_child)
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
    _measure_handover(torch.recording)
    torch.remove()
    for name, why in torch.named.missing.items():
        ov.warn(f"--loader-ops {name}: nothing was recorded of it: {why}.")
    table = torch.patches.patches.table
    ov.summary.setdefault("patches", []).extend({"name": name, "why_not": why or None} for name, why in table.items())


def _measure_handover(recording: Any) -> None:
    """Measure what it costs on this machine to hand batches over, and to record: the prediction needs it."""
    from voirkit_instruments.loader.record_handover import measure_handover
    from voirkit_instruments.loader.record_spans import now

    if recording.has_made and recording.folder() is not None:
        costs = measure_handover()
        end = now()
        for name, value in (costs or {}).items():
            recording.span(recording.cost(name), end, end, recording.arguments({}), value)


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    operations = options["loader_ops"]
    return loader(*([operations] if isinstance(operations, str) else operations))(ov)
