"""The ``--syscalls`` instrument: system calls of each phase, thread and worker."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names, one_of

FOLDER = "syscalls"  # subfolder of the run directory

# full: each call with its arguments; files: each call on files with its arguments; counts: the
# number of calls; counters: what this process can count by itself, without a tracer
MODES = ("full", "files", "counts", "counters")

INSTRUMENT = Instrument(
    "syscalls",
    group="look deeper",
    options=(
        Option(
            "--syscalls",
            "count system calls of each phase, thread and worker, with kernel tracing as root, else"
            " with strace; =full and =files keep each call with its arguments, =counters needs no"
            " tool (default: counts)",
            type=one_of(*MODES),
            const="counts",
            metavar="|".join(MODES),
        ),
    ),
    record="voirkit_instruments.syscalls.record:record",
    parts={"syscalls": dict},
    schema=__name__,
    summarise="voirkit_instruments.syscalls.analyse:summarise",
    summarised_from=(f"{FOLDER}/",),
    of_rank="voirkit_instruments.syscalls.analyse:summarise_rank",
    evidence={"system call": "voirkit_instruments.syscalls.analyse:system_calls"},
    sections="voirkit_instruments.syscalls.show:sections",
    folders=(FOLDER,),
    commands={"syscalls": "voirkit_instruments.syscalls.command"},
)

__getattr__ = lazy_names(__name__, syscalls="record")
