"""``--monitor`` and ``--prometheus``: processor, memory, storage, network and GPUs."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names
from voirkit_instruments import flag_values

COUNTS = ("read", "write", "disk_read", "disk_write", "net_sent", "net_received")  # bytes since some beginning; other figures are levels

INSTRUMENT = Instrument(
    "monitor",
    group="see a run",
    options=(
        Option(
            "--monitor", "sample processor, memory, storage, network and GPUs every SECONDS (default: 1)",
            type=flag_values.duration, const=1.0, metavar="SECONDS",
        ),
        Option(
            "--prometheus",
            "serve rates, steps, shares and what --monitor samples to Prometheus, on this machine only unless HOST is given",
            type=flag_values.address, metavar="[HOST:]PORT",
        ),
    ),
    record="voirkit_instruments.monitor.record:record",
    parts={"monitor": dict},
    summarise="voirkit_instruments.monitor.analyse:summarise",
    sections="voirkit_instruments.monitor.show:sections",
)  # fmt: skip

__getattr__ = lazy_names(__name__, monitor_all="record", gpu_monitor="record")
