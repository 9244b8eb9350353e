"""``--calls [MODULES]``: records every call of the named functions in the trace, with summaries of
its arguments and result.

The functions are not changed: ``voirkit.probes.call_hooks`` observes their calls, and the program
cannot notice it. Nothing is recorded before the script's own code runs, nor while torch.compile or
a similar tool traces a function.

Functions of modules that are not imported yet are added when the import happens. The functions of a
package are added when the whole package has been imported, so calls during its import are not
recorded.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import defaultdict
from collections.abc import Sequence
from importlib import import_module
from types import BuiltinFunctionType, MethodDescriptorType

from voirkit.errors import CommandLineError, say_as_it_is
from voirkit.fork import at_fork
from voirkit.imports import Watcher, unwatch_below, watch_below, when_imported
from voirkit.instrument import instrument_definition, once
from voirkit.probes.call_hooks import IS_BUILT, CallHooks
from voirkit.processes import inherit
from voirkit_instruments import values
from voirkit_instruments.calls.record_functions import (
    ASKED_BY_OTHERS,
    DEFAULT,
    check,
    functions_named,
    is_shown,
    names,
    of_module,
)
from voirkit_instruments.calls.record_values import CallRecords

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType
    from typing import Any, NoReturn

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.calls.record_functions import Function


_IN_CHILD = "voirkit_instruments.calls.record:record_in_child"
MOST_NAMES = 20  # most names of skipped functions that the summary lists for each reason

_tracing: Tracing | None = None  # the recording of calls in this process


@instrument_definition
@once("--calls")
def calls(
    ov: Overseer, modules: Sequence[str] = (), every: int = 1, warmup: int = 0
) -> Iterator[Phase | PhaseWithPriority]:
    """Record calls, from the start of the script's own code.

    Args:
        modules: Full names of modules, classes and functions; the default list if empty.
        every: Record only one step in this many.
        warmup: Record all of this many first steps.
    """
    yield ov.phases.load_script
    from voirkit.trace import recorder

    tracing = start_tracing(recorder, ov.warn, list(modules or DEFAULT), every, warmup)
    if tracing is None:
        return
    inherit.watch(_IN_CHILD, offered)
    packages = [name.partition(".")[0] for name in tracing.targets]
    if ov.program is not None and "__main__" in packages:
        ov.program.defines = lambda: tracing.ran(sys.modules["__main__"])
    try:
        yield ov.phases.run_script(throw=False)
    finally:
        inherit.unwatch(_IN_CHILD)
        tracing.end()
        _, records, own_ns, _ = tracing.totals
        recorder.timed(records, own_ns)
        for name in tracing.unseen():
            ov.warn(f"--calls {name}: nothing of that name was found in what the program imports.")
    yield ov.phases.finalize
    ov.summary["calls"] = {**(ov.summary.get("calls") or {}), **summary(tracing)}


def summary(tracing: Any) -> dict[str, Any]:
    """Return the part of ``summary.json`` about the recorded calls."""
    skipped: dict[str, dict[str, Any]] = {}
    for name, why in tracing.skipped.items():
        row = skipped.setdefault(why, {"n": 0, "names": []})
        row["n"] += 1
        if len(row["names"]) < MOST_NAMES:
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
    modules, every, warmup = options["calls"], options["calls_every"], options["calls_warmup"]
    if modules is None:
        option, value = "--calls-every", every
        if every is None:
            option, value = "--calls-warmup", warmup
        raise CommandLineError(
            f"{option} is about calls, which are not recorded.",
            next=f"voirkit --calls {option} {value} SCRIPT",
        )
    from voirkit.runner.script import folder_of

    targets = names(modules)
    check(targets, folder_of(ov.options.SCRIPT))
    return calls(targets, every or 1, warmup or 0)(ov)


# Recording in each process of a run: the training process, its forked children, and processes that
# multiprocessing starts.


def start_tracing(
    recorder: Any, warn: Callable[[str], None], targets: Sequence[str], every: int, warmup: int
) -> Tracing | None:
    """Start recording in this process; without the C extension, warn and return None."""
    global _tracing
    in_c = engine()
    if in_c is None:
        warn(f"{NOT_BUILT}\n  The run goes on without it.")
        return None
    _tracing = Tracing(in_c, recorder, warn, targets, every, warmup)
    _tracing.start()
    return _tracing


def offered() -> dict[str, Any] | None:
    """Return the settings for a process that multiprocessing starts from this process; None if this
    process does not record."""
    if _tracing is None or _tracing.over:
        return None
    return {
        "targets": list(_tracing.targets),
        "every": _tracing.every,
        "warmup": _tracing.warmup,
    }


def record_in_child(offer: dict[str, Any]) -> None:
    """Start recording in a process that multiprocessing has started, with the parent's settings."""
    from voirkit.errors import tell
    from voirkit.trace import recorder

    if _tracing is None and recorder.is_recording():
        start_tracing(recorder, tell, **offer)


# The option --calls-list


def print_list(parser: Any, options: Any) -> NoReturn:
    """Print the functions that ``--calls`` would record with these options, and exit with 0
    (SystemExit). This imports the modules."""
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
        for function in functions_named(name):
            functions.setdefault(id(function.function), function)
    hooks = CallHooks(in_c.hooks())
    listed = list(functions.values())
    hooks.add({number: function.function for number, function in enumerate(listed)})
    skipped = dict(hooks.skipped)
    hooks.remove()
    lines: dict[str, list[str]] = defaultdict(list)
    for number, function in enumerate(listed):
        is_c = type(function.function) in (BuiltinFunctionType, MethodDescriptorType)
        language = " (C)" if is_c else ""
        why = f"   not recorded: {skipped[number]}" if number in skipped else ""
        lines[function.category].append(f"  {function.name}{language}{why}")
    for category in sorted(lines):
        print(category, *sorted(lines[category]), sep="\n")
    say_as_it_is(
        f"{len(listed) - len(skipped)} functions would be recorded, {len(skipped)} cannot be.\n"
    )
    raise SystemExit(0)


def _import(name: str) -> None:
    """Import the modules and packages in a dotted name; the rest may be a class or function."""
    parts = name.split(".")
    for n in range(len(parts)):
        module = ".".join(parts[: n + 1])
        try:
            import_module(module)
        except ModuleNotFoundError as exc:
            if exc.name == module:
                return  # the rest of the name is a class or function, not a module
            raise CommandLineError(
                f"it cannot be imported: {exc}.", where=f"--calls {name}"
            ) from exc
        except Exception as exc:
            # the import runs the module's own code, which may raise anything
            raise CommandLineError(
                f"it cannot be imported: {type(exc).__name__}: {exc}.", where=f"--calls {name}"
            ) from exc


NOT_BUILT = (
    "--calls: no call can be recorded: that needs voirkit's part in C, which is not there, or"
    " $VOIRKIT_NO_EXTENSION is 1.\n"
    "  Where there is a C compiler it comes with: pip install --force-reinstall --no-deps"
    " --no-cache-dir --no-binary voirkit voirkit"
)


def engine() -> Any:
    """Return the C extension that records calls; None if it was not built, or is disabled. Only C
    code can observe a call without changing the function."""
    if os.environ.get("VOIRKIT_NO_EXTENSION") == "1" or not IS_BUILT:
        return None
    try:
        from voirkit_instruments.calls import _calls
    except ImportError:
        return None
    return _calls


class Tracing(Watcher):
    """Records the calls in this process."""

    def __init__(
        self,
        engine: Any,
        recorder: Any,
        warn: Callable[[str], None],
        targets: Sequence[str],
        every: int = 1,
        warmup: int = 0,
    ) -> None:
        self.targets = list(targets)
        self.every = every
        self.warmup = warmup
        self.over = False  # True when recording has ended
        # Set when recording ends: number of calls, number of records of all kinds, time spent on
        # recording (ns), number of calls without recorded arguments.
        self.totals = (0, 0, 0, 0)
        self.records = CallRecords(recorder, warn)
        self._warn = warn
        self._engine = engine
        self._entry: Any = None
        self._ticking: Any = None
        # weak references to the functions that were found, by id of the function
        self._added: dict[int, Callable[[], Any]] = {}
        self._found_targets: set[str] = set()
        self._left_out: dict[str, str] = {}
        self._steps: Any = None
        self._called: list[int] = []

    def start(self) -> None:
        if self.every > 1:
            self._steps = Steps(self.every, self.warmup, self._sample)
        self.records.install(self._engine, None if self._steps is None else self._steps.tick)
        self._entry = CallHooks(self._engine.hooks())
        values.mute_calls = self._engine.quiet
        when_imported("torch", self._torch_is_there)
        for name in IGNORED_SCOPES:
            when_imported(name, self._ignore_scopes)
        if self._steps is not None:
            when_imported("torch", self._watch_steps)
        for root in {name.partition(".")[0] for name in self.targets}:
            watch_below(root, self)
            module = sys.modules.get(root)
            if module is not None:
                self.ran(module)
        self._switch(True)
        at_fork("instruments", in_child=self._engine.forked)

    def ran(self, module: ModuleType) -> None:
        """Watch the functions of a newly imported module of a target's package."""
        name = module.__name__
        root = name.partition(".")[0]
        try:
            if self.over or (name != root and _is_being_imported(root)):
                return
            for target in self.targets:
                if target == name or target.startswith(f"{name}."):
                    self._add(target, functions_named(target))
                elif name.startswith(f"{target}.") and is_shown(name, target):
                    self._add(target, of_module(module, name))
        except Exception as exc:  # objects of an unusual library may raise anything
            self._warn(f"calls: nothing is recorded of {name} ({type(exc).__name__}: {exc}).")

    def _ignore_scopes(self, module: ModuleType) -> None:
        """Record no calls that are made inside functions that trace or compile."""
        try:
            if not self.over:
                scopes = []
                for name in IGNORED_SCOPES.get(module.__name__, "").split():
                    functions = functions_named(f"{module.__name__}.{name}")
                    scopes += [function.function for function in functions]
                self._entry.mute(scopes)
        except Exception as exc:  # internals of an unknown version of torch may be different
            self._warn(
                f"calls: what {module.__name__} calls is recorded as the program's"
                f" ({type(exc).__name__}: {exc})."
            )

    def _watch_steps(self, _: ModuleType) -> None:
        places = {
            kind: function.function
            for kind, name in PLACES.items()
            for function in functions_named(name)
        }
        if len(places) < len(PLACES):
            self._warn(
                "calls: --calls-every does not know the steps of this torch; the calls of all are"
                " recorded."
            )
            return
        self._ticking = CallHooks(self._engine.ticks())
        self._ticking.add(places)
        self._ticking.on()

    def _torch_is_there(self, torch: ModuleType) -> None:
        try:
            from voirkit_instruments.calls.record_values import Tensors

            self.records.tensors = Tensors(self._engine, torch)
        except Exception as exc:  # internals of an unknown version of torch may be different
            self._warn(f"calls: nothing is known of tensors ({type(exc).__name__}: {exc}).")

    def _add(self, target: str, functions: Iterable[Function]) -> None:
        """Watch the functions that are not watched yet."""
        new: dict[int, Any] = {}
        for function in functions:
            self._found_targets.add(target)
            address = id(function.function)
            added = self._added.get(address)
            if added is not None and added() is function.function:
                continue
            self._added[address] = _reference(function.function)
            name = f"{function.category}.{function.name}"
            if name in ASKED_BY_OTHERS:
                self._left_out[name] = "is called by voirkit's own instruments"
                continue
            number = self._engine.add(function.kind)
            new[number] = function.function
            function.function = None  # do not keep the function alive
            self.records.functions.append(function)
        if new:
            self._entry.add(new)

    def _switch(self, on: bool) -> None:
        self._engine.switch(on, self.records.operand)
        (self._entry.on if on else self._entry.off)()

    def _sample(self, on: bool) -> None:
        """Switch recording on or off between steps, for the functions that have been called. The
        other functions, often thousands, cost nothing and stay as they are."""
        self._called += self._engine.called()
        self._engine.switch(on, self.records.operand)
        (self._entry.on if on else self._entry.off)(self._called)

    @property
    def skipped(self) -> dict[str, str]:
        """The functions whose calls cannot be seen without a side effect: {name: reason}."""
        if self._entry is None:
            return {}
        functions = self.records.functions
        names = {
            f"{functions[number].category}.{functions[number].name}": why
            for number, why in self._entry.skipped.items()
        }
        return {**self._left_out, **names}

    @property
    def not_watched(self) -> int:
        """Number of functions that were found, but whose calls cannot be seen."""
        return 0 if self._entry is None else len(self._entry.skipped)

    def unseen(self) -> list[str]:
        return [
            name
            for name in self.targets
            if name not in self._found_targets and name.partition(".")[0] in sys.modules
        ]

    def end(self) -> None:
        if self.over or self._entry is None:
            return
        self.over = True
        values.mute_calls = None
        for root in {name.partition(".")[0] for name in self.targets}:
            unwatch_below(root, self)
        self._switch(False)
        self._entry.remove()
        if self._ticking is not None:
            self._ticking.remove()
        self.totals = self._engine.totals()


def _reference(function: Any) -> Callable[[], Any]:
    """Return a weak reference. Methods in C allow none; they live as long as their class, so a
    strong reference is used."""
    try:
        return weakref.ref(function)
    except TypeError:
        return lambda: function


def _is_being_imported(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


# Functions of torch that trace or compile, by module. Calls inside them are torch's own trials on
# tensors without data, not calls of the program. Checked with torch 2.1 and 2.15; a name that one
# version lacks exists in the other versions.
IGNORED_SCOPES = {
    # torch.compile: called for each frame that is compiled
    "torch._dynamo.convert_frame": (
        "CatchErrorsWrapper.__call__ ConvertFrame.__call__ ConvertFrameAssert.__call__ _compile"
    ),
    "torch._dynamo.eval_frame": "export explain",
    # back ends of torch.compile, which compile a backward pass when it first runs
    "torch._functorch.aot_autograd": (
        "aot_module_simplified create_aot_dispatcher_function aot_export_module"
    ),
    "torch._inductor.compile_fx": "compile_fx compile_fx_inner",
    "torch._inductor.codecache": "PyCodeCache.load_by_key_path",
    # tracing into graphs, and export
    "torch.fx._symbolic_trace": "Tracer.trace symbolic_trace",
    "torch.fx.experimental.proxy_tensor": "dispatch_trace",
    "torch.fx.passes.fake_tensor_prop": "FakeTensorProp.propagate",
    "torch.export": "export export_for_training",
    "torch.export._trace": "_export _export_for_training",
    "torch.export.exported_program": "ExportedProgram.run_decompositions",
    "torch.onnx": "export",
    "torch.onnx.utils": "export",
    # TorchScript
    "torch.jit._script": "script",
    "torch.jit._trace": "trace trace_module",
    "torch.jit._freeze": "freeze",
    "torch.jit._recursive": "create_script_module",
    "torch.jit._serialization": "load",
}

NEXT, STEP = 0, 1
# functions that are called before a batch is requested, and at the end of each optimizer step
PLACES = {
    NEXT: "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
    STEP: "torch.optim.optimizer.Optimizer._optimizer_step_code",
}


class Steps:
    """Counts the steps of this process, and switches recording on and off for ``--calls-every N``
    and ``--calls-warmup M``.

    Between recorded steps, functions that have been called run without hooks. A step begins when
    the loader is asked for a batch after an optimizer step; without a loader, when an optimizer
    step ends.

    Args:
        every: One step in this many is recorded, after the first ``warmup``.
        warmup: Number of first steps that are all recorded.
        switch: Called with True or False when recording starts or stops.
    """

    def __init__(self, every: int, warmup: int, switch: Callable[[bool], None]) -> None:
        self._every = every
        self._warmup = warmup
        self._switch = switch
        # Whether, since the current step began, an optimizer step ended (``_trained``) and a batch
        # was requested (``_requested``).
        self._trained = self._requested = False
        self.step, self.is_on = 0, True

    def tick(self, kind: int) -> None:
        """Handle a request for a batch, before it is made (``NEXT``), or the end of an optimizer
        step (``STEP``)."""
        if kind == NEXT:
            if self._trained:
                self._next()
            self._requested = True
        else:
            if self._trained and not self._requested:
                self._next()
            self._trained = True

    def _next(self) -> None:
        self.step += 1
        self._trained = self._requested = False
        is_on = self.step < self._warmup or (self.step - self._warmup) % self._every == 0
        if is_on is not self.is_on:
            self.is_on = is_on
            self._switch(is_on)
