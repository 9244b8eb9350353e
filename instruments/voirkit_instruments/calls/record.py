"""``--calls [MODULES]``: every call of the named functions, with what its arguments and results were, written into the trace plane.

It only records. The functions stay what they are: ``voirkit.probes.call_hooks`` sees their calls, which changes nothing that the program
could look at. Nothing is recorded before the script's own code runs, nor while torch.compile and its like follow a function.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from importlib import import_module
from types import BuiltinFunctionType, MethodDescriptorType

from voirkit.errors import CommandLineError, say_as_it_is
from voirkit.instrument import instrument_definition, once
from voirkit.processes import inherit
from voirkit_instruments.calls.record_functions import DEFAULT, check, functions_named, names
from voirkit_instruments.calls.record_tracing import NOT_BUILT, Tracing, engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, NoReturn

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.calls.record_functions import Function


BEGIN = "voirkit_instruments.calls.record:record_in_child"
SHOWN = 20  # names of skipped functions for each reason, in the summary

_tracing: Tracing | None = None  # of this process


@instrument_definition
@once("--calls")
def calls(ov: Overseer, modules: Sequence[str] = (), every: int = 1, warmup: int = 0) -> Iterator[Phase | PhaseWithPriority]:
    """Record calls, from the script's own code on.

    Args:
        ov: The overseer.
        modules: Full names of modules, classes and functions; the default list if there are none.
        every: Record each so many steps.
        warmup: After that many steps, all of which are recorded.
    """
    yield ov.phases.load_script
    from voirkit.trace import recorder

    tracing = start_tracing(recorder, ov.warn, list(modules or DEFAULT), every, warmup)
    if tracing is None:
        return
    inherit.watch(BEGIN, offered)
    if ov.program is not None and any(name.partition(".")[0] == "__main__" for name in tracing.targets):
        ov.program.defines = lambda: tracing.ran(sys.modules["__main__"])
    try:
        yield ov.phases.run_script(throw=False)
    finally:
        inherit.unwatch(BEGIN)
        tracing.end()
        _, records, own_ns, _ = tracing.totals
        recorder.timed(records, own_ns)
        for name in tracing.unseen():
            ov.warn(f"--calls {name}: nothing of that name was found in what the program imports.")
    yield ov.phases.finalize
    ov.summary["calls"] = {**(ov.summary.get("calls") or {}), **summary(tracing)}


def summary(tracing: Any) -> dict[str, Any]:
    """What was recorded, as it stands in ``summary.json``."""
    skipped: dict[str, dict[str, Any]] = {}
    for name, why in tracing.skipped.items():
        row = skipped.setdefault(why, {"n": 0, "names": []})
        row["n"] += 1
        if len(row["names"]) < SHOWN:
            row["names"].append(name)
    n_calls, records, _, without_arguments = tracing.totals
    return {
        "asked": list(tracing.targets),
        "watched": len(tracing.records.functions) - tracing.not_watched,
        "skipped": skipped,
        "events": n_calls,
        "records": records,
        "without_arguments": without_arguments,
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

    targets = names(modules)
    check(targets, folder_of(ov.options.SCRIPT))
    return calls(targets, every or 1, warmup or 0)(ov)


# the processes of a run: the one that trains, forked children, and those that multiprocessing starts


def start_tracing(recorder: Any, warn: Callable[[str], None], targets: Sequence[str], every: int, warmup: int) -> Tracing | None:
    """Begin in this process; None, and a warning, where the engine was not built."""
    global _tracing
    in_c = engine()
    if in_c is None:
        warn(f"{NOT_BUILT}\n  The run goes on without it.")
        return None
    _tracing = Tracing(in_c, recorder, warn, targets, every, warmup)
    _tracing.start()
    return _tracing


def offered() -> dict[str, Any] | None:
    """What a process needs that multiprocessing starts from here."""
    return (
        None
        if _tracing is None or _tracing.over
        else {"targets": list(_tracing.targets), "every": _tracing.every, "warmup": _tracing.warmup}
    )


def record_in_child(offer: dict[str, Any]) -> None:
    """In such a process: record as the parent does."""
    from voirkit.errors import tell
    from voirkit.trace import recorder

    if _tracing is None and recorder.is_recording():
        start_tracing(recorder, tell, **offer)


# --calls-list


def print_list(parser: Any, options: Any) -> NoReturn:
    """Print what ``--calls`` would record with these options, and end: 0, by SystemExit. The modules are imported here."""
    from voirkit.probes.call_hooks import CallHooks
    from voirkit.runner.script import folder_of

    folder = folder_of(parser.guess_script(sys.argv[1:])[0])
    targets = names(getattr(options, "--calls", None))
    check(targets, folder)
    in_c = engine()
    if in_c is None:
        say_as_it_is(f"{NOT_BUILT}\n")
        raise SystemExit(0)
    sys.path.insert(0, folder)
    functions: dict[int, Function] = {}
    for name in targets:
        _import(name)
        for one in functions_named(name):
            functions.setdefault(id(one.function), one)
    entry = CallHooks(in_c.hooks())
    listed = list(functions.values())
    entry.add({number: one.function for number, one in enumerate(listed)})
    skipped = dict(entry.skipped)
    entry.remove()
    lines: dict[str, list[str]] = defaultdict(list)
    for number, one in enumerate(listed):
        in_c = " (C)" if type(one.function) in (BuiltinFunctionType, MethodDescriptorType) else ""
        why = f"   not recorded: {skipped[number]}" if number in skipped else ""
        lines[one.category].append(f"  {one.name}{in_c}{why}")
    for category in sorted(lines):
        print(category, *sorted(lines[category]), sep="\n")
    say_as_it_is(f"{len(listed) - len(skipped)} functions would be recorded, {len(skipped)} cannot be.\n")
    raise SystemExit(0)


def _import(name: str) -> None:
    """Import the modules that a name stands for, as far as there are any."""
    parts = name.split(".")
    for n in range(len(parts)):
        module = ".".join(parts[: n + 1])
        try:
            import_module(module)
        except ModuleNotFoundError as exc:
            if exc.name == module:
                return  # a class or function
            raise CommandLineError(f"it cannot be imported: {exc}.", where=f"--calls {name}") from exc
        except Exception as exc:
            raise CommandLineError(f"it cannot be imported: {type(exc).__name__}: {exc}.", where=f"--calls {name}") from exc
