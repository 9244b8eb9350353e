"""``--monitor[=SECONDS]``: processor, memory, storage, network and GPUs while the run goes on, once a second; and ``--prometheus``.

Every sample is in the trace, as counters, and is given as ``cpudata``, ``iodata``, ``netdata`` and ``gpudata``. What needs psutil is
loaded only when the flag is on.
"""

from __future__ import annotations

import os

from voirkit.errors import CommandLineError
from voirkit.instrument import instrument_definition
from voirkit_instruments.monitor import import_extra

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer


def _nvml(ov: Overseer) -> Any:
    """The module that reads NVIDIA's GPUs, or None; that it is missing is told only where there is a driver."""
    try:
        return import_extra("pynvml", "--monitor")
    except CommandLineError as exc:
        if os.path.exists("/proc/driver/nvidia"):
            ov.warn(f"{exc}\n  GPUs are left out.")
        return None


def _monitor(ov: Overseer, interval_s: float, gpus_only: bool = False) -> Iterator[Phase]:
    yield ov.phases.parse_args
    nvml = _nvml(ov)
    if ov.may_be_listened_to:
        _ = ov.given  # giving is loaded now, and not beside the script
    yield ov.phases.load_script
    from voirkit.trace import recorder
    from voirkit_instruments.monitor.record_gpus import Gpus
    from voirkit_instruments.monitor.record_sampler import Machine, Sampler

    def give(**data: Any) -> None:
        if not gpus_only or "gpudata" in data:
            ov.offer(data)

    sampler = Sampler(Machine(Gpus(nvml, ov.warn) if nvml is not None else None), interval_s, recorder, give, ov.warn)
    sampler.start()
    try:
        yield ov.phases.run_script
    finally:
        sampler.stop()
        recorder.timed(0, int(sampler.cost_s * 1e9), "instruments")
        ov.summary["monitor"] = sampler.summary()


@instrument_definition
def monitor_all(ov: Overseer, poll_interval: float = 10, arch: str | None = None) -> Iterator[Phase]:
    """Monitor processor, memory, storage, network and GPUs, for ``ov.require(monitor_all())`` in a voirfile.

    Args:
        ov: The overseer.
        poll_interval: Seconds from one sample to the next.
        arch: For voirfiles written for voir; NVIDIA's are the only GPUs that are looked at.
    """
    yield from _monitor(ov, poll_interval)


@instrument_definition
def gpu_monitor(ov: Overseer, poll_interval: float = 10, arch: str | None = None) -> Iterator[Phase]:
    """The same, of which only ``gpudata`` is given."""
    yield from _monitor(ov, poll_interval, gpus_only=True)


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    if options["prometheus"] is not None:
        from voirkit_instruments.monitor.record_prometheus import prometheus

        ov.require(prometheus(*options["prometheus"]))
    if options["monitor"] is not None:
        ov.require(monitor_all(options["monitor"]))
