"""The changes that ``--what-if`` knows, and what one has to be: a class of its own, imported only where it is asked for.

A change is made for the whole of a run and takes nothing from the program but time: the program's results stay what they are, bit for bit
or within rounding (``exact``). Where it can not do that it raises in ``install``, or changes nothing and says so.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from voirkit.errors import CommandLineError, did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from voirkit.intercept import Patches


class Ceiling(NamedTuple):
    """The most that a change could win.

    Attributes:
        share: Of the run's time, 0 to 1: what the change could touch at most. 0 means that there is nothing to change, and nothing is
            run; None that it can not be told.
        because: What that share is, or why there is none; a sentence.
    """

    share: float | None
    because: str


class Change(Protocol):
    """What each change is. It is made twice: by the driver, for ``ceiling``, and in each run that it changes.

    Attributes:
        exact: Whether the results must be bit-equal; else within rounding (``what_if_equal``).
    """

    exact: bool

    def __init__(self, argument: str | None) -> None:
        """Take the text behind ``=``; None if there is none.

        Raises:
            ValueError: It is wrong; the message says what would be right.
        """

    def ceiling(self, summary: Mapping[str, Any]) -> Ceiling:
        """What could be won at most.

        Args:
            summary: Of a plain run (``summary.json``), and under ``what_if_run`` what ``record_child`` has seen of it: ``work_s`` (seconds
                from the first request for a batch to the script's end), ``saves`` (calls of torch.save), ``saving_s`` (seconds in them,
                also outside of steps), ``cuda``, ``threads``.
        """

    def install(self, patches: Patches) -> None:
        """Make the change, in a run that is to be changed. Called before the script imports anything; ``when_imported`` helps.

        All that is changed in libraries is to be put back by ``end``, or by ``patches``, which are removed after it.
        """

    def end(self) -> None:
        """The script's work is over: wait for what is still going on. The run's time ends after this.

        Raises:
            BaseException: What has gone wrong too late to be raised in the program. The run then counts as one that failed.
        """

    def facts(self) -> dict[str, Any]:
        """After ``end``: ``touched``, how many times it changed something (0: there was nothing to change), and anything else of note.

        ``because``, if it is there, is a sentence that says why nothing was changed, or what else is to be known.
        """


class _Known(NamedTuple):
    path: str  # module:class, beside this one
    argument: str  # how it is shown; empty if there is none
    help: str


CHANGES = {
    "checkpoint-async": _Known("record_checkpoint_async:CheckpointAsync", "", "torch.save writes in a thread"),
    "checkpoint-no-crc": _Known("record_torch:CheckpointNoCrc", "", "torch.save computes no checksums"),
    "read-ahead": _Known("record_read_ahead:ReadAhead", "", "the kernel is told early what the loader will read"),
    "num-threads": _Known("record_torch:NumThreads", "=N", "torch computes with N threads on the CPU"),
    "pin-memory": _Known("record_torch:PinMemory", "", "DataLoader(pin_memory=True)"),
    "non-blocking": _Known("record_torch:NonBlocking", "", "copies from pinned memory to a GPU are not waited for"),
}  # fmt: skip


class _Withdrawn(NamedTuple):
    measured: str
    instead: str


# Names that were changes, and are refused with what they were measured to do.
WITHDRAWN = {
    "io-uring-read": _Withdrawn(
        "files that were not in memory took 0.34 to 1.0 times as long, others 0.8 to 2.6 times: nothing that read-ahead does not win",
        "read-ahead",
    ),
}


LIST = "list"  # asks what there is


def read(text: str) -> tuple[str, str | None]:
    """``NAME`` or ``NAME=ARG`` as (name, argument).

    Raises:
        CommandLineError: There is no such change, or none any more, or its argument is wrong.
        SystemExit: ``list`` has printed what there is.
    """
    if text == LIST:
        print("\n".join(lines()))
        raise SystemExit(0)
    name, equals, argument = text.partition("=")
    if name in WITHDRAWN:
        measured, instead = WITHDRAWN[name]
        raise CommandLineError(f"{name} is made no more. Measured, {measured}.", next=f"Try instead: --what-if {instead}")
    known = CHANGES.get(name)
    if known is None:
        hint = did_you_mean(name, CHANGES)
        raise CommandLineError(f"{name!r} is no change that voirkit knows.", next="\n".join([*([hint] if hint else []), *lines()]))
    shown = f"--what-if {name}{known.argument}"
    if equals and not known.argument:
        raise CommandLineError(f"{name} takes no argument.", next=f"Write: {shown}")
    try:
        made(name, argument if equals else None)
    except ValueError as exc:
        raise CommandLineError(str(exc), next=f"Write: {shown}") from None
    return name, argument if equals else None


def made(name: str, argument: str | None) -> Change:
    """A change that is known.

    Raises:
        ValueError: Its argument is wrong.
    """
    from importlib import import_module

    module, _, kind = CHANGES[name].path.partition(":")
    change: Change = getattr(import_module(f"{__package__}.{module}"), kind)(argument)
    return change


def lines() -> list[str]:
    """What there is, and what there was, a line each."""
    shown = {name + known.argument: known.help for name, known in CHANGES.items()}
    shown |= {name: f"made no more; try {instead}" for name, (_, instead) in WITHDRAWN.items()}
    widest = max(map(len, shown))
    return [f"{name:<{widest}}  {help}" for name, help in shown.items()]


def part_of_work(summary: Mapping[str, Any], seconds: float) -> float | None:
    """Seconds as a share of the run's work, 0 to 1; None if it has not been timed."""
    work_s = (summary.get("what_if_run") or {}).get("work_s")
    return min(seconds / work_s, 1.0) if work_s else None


def seconds_in(summary: Mapping[str, Any], *phases: str) -> float | None:
    """Seconds of all training steps in some phases (``wait``, ``transfer``, ``forward`` …); None if no step was seen."""
    steps = summary.get("steps")
    return sum(steps["phases"][phase]["total_s"] for phase in phases) if steps and steps["n"] else None


def ceiling_of_saving(summary: Mapping[str, Any]) -> Ceiling:
    """Of what is done to ``torch.save``: the time in its calls."""
    seen = summary.get("what_if_run") or {}
    if not seen.get("saves"):
        return Ceiling(0.0, "torch.save is not called in this run.")
    n = seen["saves"]
    calls = "one call of torch.save takes" if n == 1 else f"the {n:,} calls of torch.save take"
    return Ceiling(part_of_work(summary, seen["saving_s"]), f"{calls} that much of it.")


def ceiling_of_phases(summary: Mapping[str, Any], what: str, *phases: str) -> Ceiling:
    """Of what can touch nothing but some phases of the training steps. Of evaluation no phases are known: it counts whole.

    Args:
        summary: As for ``Change.ceiling``.
        what: What these phases are, such as "waiting for batches".
        phases: As for ``seconds_in``.
    """
    spent = seconds_in(summary, *phases)
    if spent is None:
        return Ceiling(None, "no training step was seen.")
    evaluation = summary.get("evaluation")
    if evaluation:
        spent += evaluation["n"] * evaluation["time_s"]["median"]
        what += ", with all of the evaluation,"
    return Ceiling(part_of_work(summary, spent), f"{what} takes that much of it.")
