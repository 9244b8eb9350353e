"""``--stop N`` and ``--stop-after 30s``: end the script early and in order; the exit code is then 0.

How the script is ended, and where it can be: ``record_stopper.py``.
"""

from __future__ import annotations

from voirkit.instrument import instrument_definition
from voirkit.phases import StopProgram
from voirkit_instruments.rates import RATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import PhaseWithPriority
    from voirkit.runner.overseer import Overseer


@instrument_definition
def early_stop(
    ov: Overseer, key: str, n: int, task: object = None, signal: type[BaseException] | str = StopProgram
) -> Iterator[PhaseWithPriority]:
    """Stop the program when the key is given for the time after the n-th, so that the n-th is worked on to its end.

    Args:
        ov: The overseer.
        key: The key to count.
        n: How many are let through.
        task: Count only events with this ``task``.
        signal: The exception to end with; or a string, which is logged as ``{"$event": signal}`` and ends nothing.

    Each of the n gives ``progress=(i, n)`` with ``task="early_stop"``.
    """
    yield ov.phases.init(priority=0)
    from voirkit_instruments.early_stop.record_stopper import Stopper

    stopper = Stopper(ov)
    seen = 0

    def count(event: dict[str, Any]) -> None:
        nonlocal seen
        if key not in event or event.get("task") == "early_stop" or (task is not None and event.get("task") != task):
            return
        seen += 1
        if seen <= n:
            ov.offer({"task": "early_stop", "progress": (seen, n)})
        elif seen == n + 1:
            if isinstance(signal, str):
                ov.log({"$event": signal})
            elif signal is StopProgram:
                stopper.now(event)
            else:
                ov.abort(signal(event))

    ov.given.subscribe(count)
    try:
        yield ov.phases.run_script(priority=1000)  # before those who still give values when the script has ended
    finally:
        stopper.end()


@instrument_definition
def stop_after_rates(ov: Overseer, n: int) -> Iterator[PhaseWithPriority]:
    """Stop when one task has given n rates; switches ``train_rate`` on if no rate was asked for."""
    from voirkit_instruments.early_stop.record_stopper import Stopper
    from voirkit_instruments.rates.observed_rate import NO_STEP
    from voirkit_instruments.rates.record import train_rate

    asked = [flag for flag in RATES if getattr(ov.options, flag, False)]
    if not asked or "--train-rate" in asked:
        ov.require(train_rate)
        asked = ["--train-rate"]
    keys = ["rate", *(flag[2:].replace("-", "_") for flag in asked)]  # "rate" is given by voirfiles
    seen: dict[tuple[str, object], int] = {}
    stopper = Stopper(ov)

    def count(event: dict[str, Any]) -> None:
        for key in keys:
            if key in event:
                which = (key, event.get("task"))
                seen[which] = seen.get(which, 0) + 1
                if seen[which] == n:
                    stopper.after(0)  # at the next event, so that all have seen this one

    ov.given.subscribe(count)
    try:
        yield ov.phases.run_script(priority=1000)
    finally:
        stopper.end()
    if not seen:
        ov.warn(f"--stop {n} stopped nothing: no rate was given. {NO_STEP}")
    elif max(seen.values()) < n:
        ov.say(f"--stop {n} was not reached: the script ended after {max(seen.values())} of {n} rates.")


@instrument_definition
def stop_after_time(ov: Overseer, seconds: float) -> Iterator[PhaseWithPriority]:
    """Stop when the script has run that many seconds, from when it has been loaded."""
    from voirkit_instruments.early_stop.record_stopper import Stopper

    stopper = Stopper(ov)
    yield ov.phases.load_script(priority=-1000)
    stopper.after(seconds)
    try:
        yield ov.phases.run_script(priority=1000)
    finally:
        stopper.end()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    if ov.argparser.value(ov.options, "--what-if") or ov.argparser.value(ov.options, "--what-if-setting") is not None:
        return  # which counts steps: runs that are cut by time can not be compared by their time
    if options["stop"] is not None:
        ov.require(stop_after_rates(options["stop"]))
    if options["stop_after"] is not None:
        ov.require(stop_after_time(options["stop_after"]))
