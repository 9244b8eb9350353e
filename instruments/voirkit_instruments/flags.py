"""The flags of the instruments that run only when they are asked for; each is imported only then.

Every run loads this module, and none of theirs: eight modules less take 3 ms less to start.
"""

from __future__ import annotations

import sys

from voirkit.instrument import gated, named
from voirkit_instruments import flag_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Action
    from collections.abc import Iterator, Sequence
    from typing import Any

    from voirkit.overseer import Overseer
    from voirkit.phases import Phase, PhaseWithPriority

_HIDDEN = "==SUPPRESS=="  # argparse's, which is not loaded yet

instrument_checks = gated(
    "--checks",
    "voirkit_instruments.checks:checks",
    "look for silent bugs: no zero_grad, parameters that never change, training in eval mode ...",
)
instrument_dash = gated(
    "--dash", "voirkit_instruments.dash:dash", "show a live view of the steps, rates, progress and given values; the key q ends the view"
)
instrument_display = gated(
    "--display", "voirkit_instruments.display:display", "print everything that is given, one event a line, on stderr"
)
instrument_argparse = gated(
    "--options", "voirkit_instruments.options:options", "give the arguments that the script parses with argparse, as options"
)
instrument_verify = gated(
    "--verify",
    "voirkit_instruments.verify:verify",
    "check that loss, step+batch, use_cuda and others arrive; exit code 3 if one of these three does not",
)


def _value(ov: Overseer, option: str) -> Any:
    return ov.argparser.value(ov.options, option)


def _instrument(name: str) -> Any:
    """What ``"flame:flame"`` names in this package. By its name, as with ``gated``: that module imports its flag from here."""
    return named(f"voirkit_instruments.{name}")


def instrument_calls(ov: Overseer) -> Iterator[Phase]:
    """Adds ``--calls`` and what belongs to it."""
    yield ov.phases.init
    action = ov.argparser.add_argument(
        "--calls",
        nargs="?",
        const=True,
        dest="--calls",
        metavar="MODULES",
        help="record calls of the functions of these modules (commas between; torch, your own), by default those that a training calls",
    )
    action.is_script = _is_script  # type: ignore[attr-defined]  # see voirkit.words
    ov.argparser.add_argument(
        "--calls-every", type=flag_values.every, dest="--calls-every", metavar="N", help="record the calls of one step in N"
    )
    ov.argparser.add_argument(
        "--calls-warmup", type=flag_values.whole, dest="--calls-warmup", metavar="M", help="with --calls-every: of the first M steps all"
    )
    ov.argparser.add_argument(
        "--calls-list", action=_listing(ov), dest="--calls-list", help="print what --calls would record, and what not and why, and exit"
    )
    yield ov.phases.parse_args
    given, every, warmup = (_value(ov, name) for name in ("--calls", "--calls-every", "--calls-warmup"))
    if given is None and (every, warmup) != (None, None):
        from voirkit.errors import CommandLineError

        said = "--calls-every" if every is not None else "--calls-warmup"
        raise CommandLineError(f"{said} is about calls, which are not recorded.", next=f"voirkit --calls {said} {every or warmup} SCRIPT")
    if given is not None:
        from voirkit.script import folder_of
        from voirkit_instruments import calls, calls_asked

        asked = calls_asked.names(given)
        calls_asked.check(asked, folder_of(ov.options.SCRIPT))
        ov.require(calls.calls(asked, every or 1, warmup or 0))


def _listing(ov: Overseer) -> type[Action]:
    from argparse import _VersionAction  # as with --version, no SCRIPT is needed

    class List(_VersionAction):
        reads_on = True  # what follows it may be --calls

        def __call__(self, parser: object, namespace: object, *_: object) -> None:
            from voirkit.script import folder_of
            from voirkit_instruments.calls_list import show

            show(getattr(namespace, "--calls", None), folder_of(ov.argparser.guess_script(sys.argv[1:])[0]))

    return List


def _is_script(word: str, following: Sequence[str]) -> bool:
    from voirkit_instruments.calls_asked import is_script

    return is_script(word, following)


def instrument_early_stop(ov: Overseer) -> Iterator[Phase]:
    """Adds ``--stop`` and ``--stop-after``."""
    yield ov.phases.init
    ov.argparser.add_argument(
        "--stop",
        type=flag_values.positive,
        dest="--stop",
        metavar="N",
        help="stop the script after N rates (train_rate, if no rate is asked for)",
    )
    ov.argparser.add_argument(
        "--stop-after",
        type=flag_values.duration,
        dest="--stop-after",
        metavar="TIME",
        help="stop the script when it has run that long: 30s, 5m, 1.5h, 250ms",
    )
    yield ov.phases.parse_args
    if _value(ov, "--what-if") or _value(ov, "--what-if-setting") is not None:
        return  # which counts steps: runs that are cut by time can not be compared by their time
    rates, seconds = _value(ov, "--stop"), _value(ov, "--stop-after")
    if rates is not None:
        ov.require(_instrument("early_stop:stop_after_rates")(rates))
    if seconds is not None:
        ov.require(_instrument("early_stop:stop_after_time")(seconds))


# Stacks a second: no part or multiple of what repeats (25, 50, 100 Hz), so that it does not fall into step with it.
FLAME_HZ = 97


def instrument_flame(ov: Overseer) -> Iterator[Phase]:
    """Adds ``--flame`` and ``--gil``."""
    yield ov.phases.init
    ov.argparser.add_argument(
        "--flame",
        nargs="?",
        type=flag_values.stacks,
        const=FLAME_HZ,
        dest="--flame",
        metavar="HERTZ",
        help=f"take the stacks of all threads and workers with py-spy, {FLAME_HZ} times a second or HERTZ, for a flame graph of each "
        "phase; with --native those of C too",
    )
    ov.argparser.add_argument("--gil", action="store_true", dest="--gil", help="with --flame: only of threads that hold the GIL")
    yield ov.phases.parse_args
    rate_hz, gil = _value(ov, "--flame"), _value(ov, "--gil")
    if gil and rate_hz is None:
        from voirkit.errors import CommandLineError

        raise CommandLineError("--gil is about stacks, which are not taken.", next="voirkit --flame --gil SCRIPT")
    if rate_hz is not None:
        ov.require(_instrument("flame:flame")(rate_hz, gil))


def instrument_loader(ov: Overseer) -> Iterator[Phase]:
    """Adds ``--loader`` and ``--loader-ops``, which implies it."""
    yield ov.phases.init
    ov.argparser.add_argument(
        "--loader", action="store_true", dest="--loader", help="record every sample, transform, worker and wait of the data loaders"
    )
    ov.argparser.add_argument(
        "--loader-ops",
        action="append",
        default=[],
        dest="--loader-ops",
        metavar="MODULE:CLASS.METHOD",
        help="functions that --loader records as operations of their own, such as a tokenizer's; may be repeated, or have commas",
    )
    yield ov.phases.parse_args
    given = _value(ov, "--loader-ops")
    if given or _value(ov, "--loader"):
        from voirkit_instruments.loader import loader

        ov.require(loader(*([given] if isinstance(given, str) else given)))


def instrument_loader_sweep(ov: Overseer) -> Iterator[Phase]:
    """Adds ``--loader-sweep``, and what it runs the script with."""
    yield ov.phases.init
    ov.argparser.add_argument(
        "--loader-sweep",
        nargs="?",
        type=flag_values.steps,
        const=40,
        dest="--loader-sweep",
        metavar="STEPS",
        help="run the script for some steps (40) with one number of loader workers after the other, and say which is best",
    )
    ov.argparser.add_argument("--loader-setting", type=flag_values.setting, dest="--loader-setting", help=_HIDDEN)
    yield ov.phases.parse_args
    steps, setting = _value(ov, "--loader-sweep"), _value(ov, "--loader-setting")
    if setting is not None:
        from voirkit_instruments.loader_setting import loader_setting

        ov.require(loader_setting(setting))
    elif steps is not None:
        from voirkit_instruments.loader_sweep import loader_sweep

        ov.require(loader_sweep(steps))


def instrument_log(ov: Overseer) -> Iterator[Phase]:
    """Adds ``--log``, which may be given several times."""
    yield ov.phases.init
    ov.argparser.add_argument(
        "--log",
        action="append",
        dest="--log",
        metavar="PATTERN",
        help="log the given values of that key, or of all that match ('*_rate'); '+task' goes along; may be repeated",
    )
    yield ov.phases.parse_args
    patterns = _value(ov, "--log")
    if patterns:
        ov.require(_instrument("log:log")(*([patterns] if isinstance(patterns, str) else patterns)))


def instrument_memory_snapshot(ov: Overseer) -> Iterator[Phase | PhaseWithPriority]:
    """Adds ``--memory-snapshot``."""
    yield ov.phases.init
    ov.argparser.add_argument(
        "--memory-snapshot",
        nargs="?",
        type=flag_values.memory,
        const="rss",
        dest="--memory-snapshot",
        metavar="tracemalloc",
        help="tell how much memory each phase takes, also by operator with --torch-profile, and keep CUDA's history of allocations; "
        "=tracemalloc tells of python's own objects too, and makes the program slow",
    )
    yield ov.phases.parse_args(priority=1)  # before the steps instrument, which it sees the phases through
    given = _value(ov, "--memory-snapshot")
    if given is not None:
        from voirkit_instruments.memory_snapshot import memory_snapshot

        ov.require(memory_snapshot(given == "tracemalloc"))


def instrument_monitor(ov: Overseer) -> Iterator[Phase]:
    """Adds ``--monitor`` and ``--prometheus``."""
    yield ov.phases.init
    ov.argparser.add_argument(
        "--monitor",
        nargs="?",
        type=flag_values.duration,
        const=1.0,
        dest="--monitor",
        metavar="SECONDS",
        help="sample processor, memory, storage, network and GPUs, every second or as often as --monitor=SECONDS says",
    )
    ov.argparser.add_argument(
        "--prometheus",
        metavar="[HOST:]PORT",
        dest="--prometheus",
        type=flag_values.address,
        help="serve rates, steps, shares and what --monitor samples for Prometheus, to this machine alone unless HOST is given",
    )
    yield ov.phases.parse_args
    served = _value(ov, "--prometheus")
    if served is not None:
        ov.require(_instrument("prometheus:prometheus")(*served))
    interval_s = _value(ov, "--monitor")
    if interval_s is not None:
        ov.require(_instrument("monitor:monitor_all")(interval_s))


# Samples a second of processor time: one in 2 ms. No multiple or part of the rates that things repeat with (100, 250, 1000 Hz ticks), so
# that it does not fall into step with them. docs/native.md says what is seen at it.
NATIVE_HZ = 499


def instrument_native(ov: Overseer) -> Iterator[Phase]:
    """Adds ``--native``."""
    yield ov.phases.init
    ov.argparser.add_argument(
        "--native",
        nargs="?",
        type=flag_values.hertz,
        const=NATIVE_HZ,
        dest="--native",
        metavar="HERTZ",
        help=f"sample the C functions under each loader operation (--loader) and phase with perf, {NATIVE_HZ} times a second or HERTZ",
    )
    yield ov.phases.parse_args
    rate_hz = _value(ov, "--native")
    if rate_hz is not None:
        ov.require(_instrument("native:native")(rate_hz))


def instrument_parameters(ov: Overseer) -> Iterator[Phase | PhaseWithPriority]:
    """Adds ``--parameters`` and ``--parameters-of``, which implies it."""
    yield ov.phases.init
    ov.argparser.add_argument(
        "--parameters",
        nargs="?",
        type=flag_values.every,
        const=0,
        dest="--parameters",
        metavar="EVERY",
        help="record norms, changes, gradients and NaN of each parameter at the optimizer's steps, in full every EVERY steps (50)",
    )
    ov.argparser.add_argument(
        "--parameters-of",
        type=flag_values.parameters_of,
        dest="--parameters-of",
        metavar="buffers,state",
        help="look also at the models' buffers, the optimizers' state, or both; implies --parameters",
    )
    yield ov.phases.parse_args(priority=1)  # before the steps instrument, which it sees the steps through
    every, of = _value(ov, "--parameters"), _value(ov, "--parameters-of")
    if every is not None or of is not None:
        from voirkit_instruments.parameters import EVERY, parameters

        ov.require(parameters(every or EVERY, *(of or ())))


RATES = {
    "--train-rate": "give train_rate (items/s from step and batch) once a second",
    "--loading-rate": "give loading_rate (items/s that the given loader delivers) once a second",
    "--compute-rate": "give compute_rate (items/s between compute_start and compute_end) once a second",
}


def instrument_rates(ov: Overseer) -> Iterator[Phase]:
    """Adds the three flags of the rates, and measures what is asked for."""
    yield ov.phases.init
    for flag, text in RATES.items():
        ov.argparser.add_argument(flag, action="store_true", dest=flag, help=text)
    yield ov.phases.parse_args
    for flag in RATES:
        if _value(ov, flag):
            ov.require(_instrument(f"rates:{flag[2:].replace('-', '_')}"))


def instrument_syscalls(ov: Overseer) -> Iterator[Phase]:
    """Adds ``--syscalls``."""
    yield ov.phases.init
    ov.argparser.add_argument(
        "--syscalls",
        nargs="?",
        type=flag_values.syscalls,
        const="counts",
        dest="--syscalls",
        metavar="|".join(flag_values.SYSCALLS),
        help="count the system calls of each phase, thread and worker, with the kernel's own tracing as root, else with strace; "
        "--syscalls=full or =files keeps them with their arguments, =counters needs no tool",
    )
    yield ov.phases.parse_args
    mode = _value(ov, "--syscalls")
    if mode is not None:
        syscalls = _instrument("syscalls:syscalls")
        looked_into = _value(ov, "--loader") or _value(ov, "--loader-ops")
        ov.require(syscalls(mode, is_with_loader=True) if looked_into else syscalls(mode))


def instrument_torch_profile(ov: Overseer) -> Iterator[Phase | PhaseWithPriority]:
    """Adds ``--torch-profile``."""
    yield ov.phases.init
    ov.argparser.add_argument(
        "--torch-profile",
        nargs="?",
        type=flag_values.window,
        const="5:0:3",
        dest="--torch-profile",
        metavar="SKIP:WAIT:ACTIVE",
        help="record torch's operators and kernels with torch's own profiler in a window of steps, by default 5:0:3: "
        "5 steps are left out, 3 are recorded",
    )
    yield ov.phases.parse_args(priority=1)  # before the steps instrument, which it sees the steps through
    given = _value(ov, "--torch-profile")
    if given is not None:
        from voirkit_instruments.torch_profile import torch_profile

        ov.require(torch_profile(given, _value(ov, "--memory-snapshot") is not None))


def instrument_what_if(ov: Overseer) -> Iterator[Phase | PhaseWithPriority]:
    """Adds ``--what-if``, ``--pairs``, and what they run the script with."""
    yield ov.phases.init
    action = ov.argparser.add_argument(
        "--what-if",
        action="append",
        type=flag_values.what_if,
        dest="--what-if",
        metavar="NAME[=ARG]",
        help="run the script in pairs with and without a change, and say what it wins: checkpoint-async, num-threads=4 ... "
        "(--what-if list names them); with --stop N each run ends after N optimizer steps",
    )
    action.asks_for_help = ("list",)  # type: ignore[attr-defined]  # see voirkit.words
    ov.argparser.add_argument(
        "--pairs", type=flag_values.pairs, dest="--pairs", metavar="N", help="with --what-if: how many pairs of runs (5)"
    )
    ov.argparser.add_argument("--what-if-setting", dest="--what-if-setting", help=_HIDDEN)
    yield ov.phases.parse_args(priority=-1000)  # after the steps instrument, so that its changes stand around what that has put in place
    asked, setting, pairs = (_value(ov, f"--{name}") for name in ("what-if", "what-if-setting", "pairs"))
    if setting is not None:
        from voirkit_instruments.what_if_child import what_if_child

        name, equals, argument = setting.partition("=")
        ov.require(what_if_child(name, argument if equals else None, _value(ov, "--stop")))
    elif asked:
        from voirkit_instruments.what_if import what_if

        if len(asked) > 1:
            from voirkit.errors import CommandLineError

            raise CommandLineError("one change at a time can be held against the script as it is.", where="--what-if, given twice")
        ov.require(what_if(*asked[0], pairs or 5, _value(ov, "--stop")))
    elif pairs is not None:
        from voirkit.errors import CommandLineError

        raise CommandLineError("--pairs is about --what-if, which is not asked for.", next=f"voirkit --what-if NAME --pairs {pairs} SCRIPT")


# What the entry point names, in the order of the help.
INSTRUMENTS = [
    instrument_calls,
    instrument_checks,
    instrument_dash,
    instrument_display,
    instrument_early_stop,
    instrument_flame,
    instrument_loader,
    instrument_loader_sweep,
    instrument_log,
    instrument_memory_snapshot,
    instrument_monitor,
    instrument_native,
    instrument_argparse,
    instrument_parameters,
    instrument_rates,
    instrument_syscalls,
    instrument_torch_profile,
    instrument_verify,
    instrument_what_if,
]
