"""``--flame[=HERTZ]``: stacks of all threads, workers and children, by phase (docs/flame.md).

py-spy beside the program takes them, or, where it can not, a thread. They are joined with the trace when the run has ended.
"""

from __future__ import annotations

from voirkit.errors import CommandLineError
from voirkit.instrument import instrument_definition
from voirkit_instruments.once import once, started
from voirkit_instruments.stacks import FLAME_HZ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer


@instrument_definition
@once("--flame")
def flame(ov: Overseer, rate_hz: int = FLAME_HZ, gil: bool = False) -> Iterator[Phase | PhaseWithPriority]:
    """Take stacks, from the beginning of the script's work to its end.

    Args:
        ov: The overseer.
        rate_hz: Times a second.
        gil: Only of threads that hold the GIL.
    """
    from voirkit_instruments.stacks.record_stacks import Taker
    from voirkit_instruments.stacks.record_workers import Workers

    workers = Workers(ov.warn)
    yield ov.phases.load_script(priority=-50)
    if ov.run_dir is None:
        return  # it has been said why there is none
    native = started(ov, "--native")
    taker = Taker(ov.run_dir, rate_hz, gil, native, ov.options.trace_limit, ov.warn)
    taker.start(_strace_comes(ov))
    try:
        yield ov.phases.run_script
    finally:
        workers.remove()
        taker.stop()


def _strace_comes(ov: Overseer) -> bool:
    """Whether strace is about to trace this process, for ``--syscalls``."""
    if not started(ov, "--syscalls"):
        return False
    from voirkit_instruments.syscalls.record import strace_comes

    return strace_comes(ov)


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    if options["flame"] is None:
        raise CommandLineError("--gil is about stacks, which are not taken.", next="voirkit --flame --gil SCRIPT")
    return flame(options["flame"], options["gil"])(ov)
