"""``--memory-snapshot``: what each phase does to the memory."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names
from voirkit_instruments.flag_values import one_of

INSTRUMENT = Instrument(
    "memory",
    group="look deeper",
    options=(
        Option(
            "--memory-snapshot",
            "report the memory of each phase, with --torch-profile of each operator too, and keep CUDA's history of allocations; "
            "=tracemalloc adds Python objects and slows the program down",
            type=one_of("rss", "tracemalloc"), const="rss", metavar="tracemalloc",
        ),
    ),
    record="voirkit_instruments.memory.record:record",
    parts={"memory": dict},
    sections="voirkit_instruments.memory.show:sections",
    priority=1,  # before the steps instrument, which it sees the phases through
)  # fmt: skip

__getattr__ = lazy_names(__name__, memory_snapshot="record")
