"""``--memory-snapshot``: what each phase does to the memory."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names
from voirkit_instruments import flag_values

INSTRUMENT = Instrument(
    "memory",
    options=(
        Option(
            "--memory-snapshot",
            "tell how much memory each phase takes, also by operator with --torch-profile, and keep CUDA's history of allocations; "
            "=tracemalloc tells of python's own objects too, and makes the program slow",
            type=flag_values.memory, const="rss", metavar="tracemalloc",
        ),
    ),
    record="voirkit_instruments.memory.record:record",
    parts={"memory": dict},
    sections="voirkit_instruments.memory.show:sections",
    priority=1,  # before the steps instrument, which it sees the phases through
)  # fmt: skip

__getattr__ = lazy_names(__name__, memory_snapshot="record")
