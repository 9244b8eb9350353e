"""``--flame`` and ``--native``: sample stacks of Python and of C, by phase."""

from __future__ import annotations

from voirkit.instrument import Instrument, Option, lazy_names, whole_number

# Stacks per second. The rate is no divisor or multiple of common rates of recurring events (25, 50,
# 100 Hz), so that sampling does not fall into step with such events.
FLAME_HZ = 97
# Samples per second of CPU time: one in 2 ms. The rate is no divisor or multiple of the kernel's
# tick rates (100, 250, 1000 Hz), so that sampling does not fall into step with the ticks.
# docs/flame.md says what can be seen at this rate.
NATIVE_HZ = 499
FLAME_FOLDER, NATIVE_FOLDER, NATIVE_FILE = "flame", "native", "native.json"  # in a run directory

NATIVE = Instrument(
    "native",
    group="look deeper",
    options=(
        Option(
            "--native",
            "sample C functions of each phase, and with --loader of each loader operation, with"
            f" perf (default: {NATIVE_HZ} Hz)",
            type=whole_number("no rate", " of samples a second, at most 20000", 1, 20_000),
            const=NATIVE_HZ,
            metavar="HERTZ",
        ),
    ),
    record="voirkit_instruments.stacks.record_native:record",
    parts={"native": dict},
    schema=__name__,
    summarise="voirkit_instruments.stacks.analyse_native:summarise",
    summarised_from=(f"{NATIVE_FOLDER}/",),
    sections="voirkit_instruments.stacks.show:native_sections",
    folders=(NATIVE_FOLDER, NATIVE_FILE),
)

FLAME = Instrument(
    "flame",
    group="look deeper",
    options=(
        Option(
            "--flame",
            "sample the stacks of all threads and workers with py-spy, for a flame graph of each"
            f" phase; with --native C functions too (default: {FLAME_HZ} Hz)",
            type=whole_number("no rate", " of stacks a second, at most 1000", 1, 1000),
            const=FLAME_HZ,
            metavar="HERTZ",
        ),
        Option("--gil", "with --flame: only threads that hold the GIL"),
    ),
    record="voirkit_instruments.stacks.record:record",
    in_children=False,
    parts={"flame": dict},
    schema=__name__,
    summarise="voirkit_instruments.stacks.analyse:summarise",
    summarised_from=(f"{FLAME_FOLDER}/",),
    of_rank="voirkit_instruments.stacks.analyse:summarise_rank",
    evidence={"line": "voirkit_instruments.stacks.analyse:source_lines"},
    sections="voirkit_instruments.stacks.show:flame_sections",
    folders=(FLAME_FOLDER,),
    exports={
        "speedscope": (
            "voirkit_instruments.stacks.analyse:SPEEDSCOPE_FORMAT",
            "stacks by phase, for https://www.speedscope.app (of runs with --flame)",
        ),
        "collapsed": (
            "voirkit_instruments.stacks.analyse:COLLAPSED_FORMAT",
            "the same as lines, for flame graph tools (of runs with --flame)",
        ),
    },
)

__getattr__ = lazy_names(__name__, flame="record", native="record_native")
