"""``--flame[=HERTZ]``: stacks of all threads, workers and children, by phase (docs/flame.md).

py-spy beside the program takes them, or, where it can not, a thread. They are joined with the trace when the run has ended.
"""

from __future__ import annotations

from voirkit.instrument import instrument_definition
from voirkit_instruments.flags import FLAME_HZ
from voirkit_instruments.flags import instrument_flame as instrument_flame
from voirkit_instruments.once import once, started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from voirkit.overseer import Overseer
    from voirkit.phases import Phase, PhaseWithPriority


@instrument_definition
@once("--flame")
def flame(ov: Overseer, rate_hz: int = FLAME_HZ, gil: bool = False) -> Iterator[Phase | PhaseWithPriority]:
    """Take stacks, from the beginning of the script's work to its end.

    Args:
        ov: The overseer.
        rate_hz: Times a second.
        gil: Only of threads that hold the GIL.
    """
    from voirkit_instruments.flame_taker import Taker
    from voirkit_instruments.flame_workers import Workers

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
    from voirkit_instruments.syscalls import strace_comes

    return strace_comes(ov)
