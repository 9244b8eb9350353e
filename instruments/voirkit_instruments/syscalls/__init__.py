"""``--syscalls``: the system calls of each phase, thread and worker."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names
from voirkit_instruments import flag_values

FOLDER = "syscalls"  # of a run directory

INSTRUMENT = Instrument(
    "syscalls",
    options=(
        Option(
            "--syscalls",
            "count the system calls of each phase, thread and worker, with the kernel's own tracing as root, else with strace; "
            "--syscalls=full or =files keeps them with their arguments, =counters needs no tool",
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
