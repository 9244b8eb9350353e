"""``--syscalls``: the system calls of each phase, thread and worker."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names
from voirkit_instruments import flag_values

FOLDER = "syscalls"  # of a run directory

INSTRUMENT = Instrument(
    "syscalls",
    group="look deeper",
    options=(
        Option(
            "--syscalls",
            "count system calls of each phase, thread and worker, with kernel tracing as root, else with strace; "
            "=full and =files keep each call with its arguments, =counters needs no tool (default: counts)",
            type=flag_values.syscalls, const="counts", metavar="|".join(flag_values.SYSCALLS),
        ),
    ),
    record="voirkit_instruments.syscalls.record:record",
    parts={"syscalls": dict},
    summarise="voirkit_instruments.syscalls.analyse:summarise",
    table="voirkit_instruments.syscalls.show:table",
    page="voirkit_instruments.syscalls.show_page:syscalls",
    compare="voirkit_instruments.syscalls.show_page:compared",
    folders=(FOLDER,),
    commands={"syscalls": "voirkit_instruments.syscalls.command"},
)  # fmt: skip

__getattr__ = lazy_names(__name__, syscalls="record")
