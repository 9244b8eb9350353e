"""``--syscalls[=full|files|counts|counters]``: the system calls of each phase, kind of thread and loader operation (docs/syscalls.md).

A tracer beside the program records them; when the run has ended they are counted. The best one that works here is taken: the kernel's own
tracing as root, else strace, else this process's counters.
"""

from __future__ import annotations

from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition
from voirkit_instruments.once import once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer


class _Strace:
    """Whether strace is to trace a run."""

    is_chosen = False


def strace_comes(ov: Overseer) -> bool:
    """Whether strace is to trace a run, as long as it can: no other program can then attach to it."""
    return ov.shared(_Strace).is_chosen


def _kernel_traces() -> bool:
    """Whether the kernel can trace here; strace comes next."""
    from voirkit_instruments.syscalls.record_kernel import tracefs
    from voirkit_instruments.syscalls.record_tool import CanNotTrace

    try:
        tracefs()
    except CanNotTrace:
        return False
    return True


@instrument_definition
@once("--syscalls")
def syscalls(
    ov: Overseer, mode: str = "counts", tool: str | None = None, is_with_loader: bool = False
) -> Iterator[Phase | PhaseWithPriority]:
    """Record the program's system calls, from the beginning of the script's work to its end.

    Args:
        ov: The overseer.
        mode: ``counts``, ``full``, ``files`` or ``counters``.
        tool: ``kernel``, ``strace`` or ``counters``, to take no other; the best one if left out.
        is_with_loader: Whether the times of loaders are recorded too.
    """
    import sys

    if not sys.platform.startswith("linux"):
        ov.warn("--syscalls: it works on Linux alone.\n  The run goes on without it.")
        return
    if tool == "strace" or (tool is None and (mode in ("full", "files") or (mode == "counts" and not _kernel_traces()))):
        ov.shared(_Strace).is_chosen = True
        if is_with_loader:
            ov.warn("--syscalls by strace stretches the times of --loader: each system call stops for it. Record one of them at a time.")
    yield ov.phases.parse_args(priority=-100)  # after --loader, which tells of fetches itself
    from voirkit_instruments.syscalls.record_tracer import Tracer

    tracer = Tracer(mode, tool, ov.warn)  # before torch is there: its patches are to tell the edges of phases
    when_imported("torch", tracer.watch)
    yield ov.phases.load_script(priority=-100)  # the last to begin, the first to end: no instrument's work lies between
    if ov.run_dir is None:
        tracer.forget()
        return  # it has been said why there is none
    try:
        tracer.start(ov.run_dir, ov.options.trace_limit)
        if ov.program is not None:
            ov.program.begins, ov.program.ends = tracer.begins, tracer.ends
        yield ov.phases.run_script(priority=100, throw=False)
    finally:
        tracer.stop()
    yield ov.phases.finalize
    tracer.wait()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    with_loader = ov.argparser.value(ov.options, "--loader") or ov.argparser.value(ov.options, "--loader-ops")
    return (syscalls(options["syscalls"], is_with_loader=True) if with_loader else syscalls(options["syscalls"]))(ov)
