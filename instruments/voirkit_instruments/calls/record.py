"""``--calls [MODULES]``: every call of the named functions, with what its arguments and results were, written into the trace plane.

It only records. The functions stay what they are: ``voirkit.probes.call_hooks`` sees their calls, which changes nothing that the program
could look at. Nothing is recorded before the script's own code runs, nor while torch.compile and its like follow a function.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from voirkit.errors import CommandLineError
from voirkit.instrument import instrument_definition
from voirkit.processes import inherit
from voirkit_instruments.once import once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer

SHOWN = 20  # names of skipped functions for each reason, in the summary


@instrument_definition
@once("--calls")
def calls(ov: Overseer, asked: Sequence[str] = (), every: int = 1, warmup: int = 0) -> Iterator[Phase | PhaseWithPriority]:
    """Record calls, from the script's own code on.

    Args:
        ov: The overseer.
        asked: Full names of modules, classes and functions; the default list if there are none.
        every: Record each so many steps.
        warmup: After that many steps, all of which are recorded.
    """
    yield ov.phases.load_script
    from voirkit.trace import recorder
    from voirkit_instruments.calls import record_children as calls_children
    from voirkit_instruments.calls.record_modules import DEFAULT

    tracing = calls_children.watched(recorder, ov.warn, list(asked or DEFAULT), every, warmup)
    if tracing is None:
        return
    inherit.watch(calls_children.BEGIN, calls_children.offered)
    if ov.program is not None and any(name.partition(".")[0] == "__main__" for name in tracing.asked):
        ov.program.defines = lambda: tracing.ran(sys.modules["__main__"])
    try:
        yield ov.phases.run_script(throw=False)
    finally:
        inherit.unwatch(calls_children.BEGIN)
        tracing.end()
        recorder.timed(tracing.totals.records, tracing.totals.own_ns)
        for name in tracing.unseen():
            ov.warn(f"--calls {name}: nothing of that name was found in what the program imports.")
    yield ov.phases.finalize
    ov.summary["calls"] = {**(ov.summary.get("calls") or {}), **summary(tracing)}


def summary(tracing: Any) -> dict[str, Any]:
    """What was recorded, as it stands in ``summary.json``."""
    skipped: dict[str, dict[str, Any]] = {}
    for name, why in tracing.skipped.items():
        said = skipped.setdefault(why, {"n": 0, "names": []})
        said["n"] += 1
        if len(said["names"]) < SHOWN:
            said["names"].append(name)
    totals = tracing.totals
    return {
        "asked": list(tracing.asked),
        "watched": len(tracing.records.functions) - tracing.not_watched,
        "skipped": skipped,
        "events": totals.calls,
        "records": totals.records,
        "without_arguments": totals.beyond,
        "every": tracing.every,
        "warmup": tracing.warmup,
        "python": ".".join(map(str, sys.version_info[:3])),
    }


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    modules, every, warmup = options["calls"], options["calls_every"], options["calls_warmup"]
    if modules is None:
        option, value = ("--calls-every", every) if every is not None else ("--calls-warmup", warmup)
        raise CommandLineError(f"{option} is about calls, which are not recorded.", next=f"voirkit --calls {option} {value} SCRIPT")
    from voirkit.runner.script import folder_of
    from voirkit_instruments.calls import record_modules

    asked = record_modules.names(modules)
    record_modules.check(asked, folder_of(ov.options.SCRIPT))
    return calls(asked, every or 1, warmup or 0)(ov)
