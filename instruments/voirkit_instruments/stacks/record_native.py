"""``--native[=HERTZ]``: which C functions and libraries each loader operation and each phase of training spends its time in.

A profiler beside the program samples it from outside; what it took is joined with the trace when the run has ended (docs/native.md).
"""

from __future__ import annotations

from voirkit.instrument import instrument_definition
from voirkit_instruments.once import once
from voirkit_instruments.stacks import NATIVE_HZ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer


@instrument_definition
@once("--native")
def native(ov: Overseer, rate_hz: int = NATIVE_HZ) -> Iterator[Phase | PhaseWithPriority]:
    """Sample what the processor does, from the beginning of the script's work to its end.

    Args:
        ov: The overseer.
        rate_hz: Samples a second of processor time.
    """
    yield ov.phases.load_script
    if ov.run_dir is None:
        return  # it has been said why there is none
    from voirkit_instruments.stacks.record_native_samples import Sampler

    sampler = Sampler(ov.run_dir, rate_hz, ov.options.trace_limit, ov.warn)
    sampler.start()
    try:
        yield ov.phases.run_script(throw=False)
    finally:
        sampler.stop()
    yield ov.phases.finalize
    sampler.wait()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    return native(options["native"])(ov)
