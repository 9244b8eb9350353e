"""voirkit: reports what an unchanged training script does and why it is slow.

This module lists the public names. Each name is imported at its first use, so that ``import
voirkit`` costs almost nothing. Only ``log`` and ``iterate``, which a script calls, and the current
overseer, to which they report, are defined here. Without an overseer ``log`` does nothing and
``iterate`` only iterates (and gives events if the program has imported ``giving``), so a script
with these calls also runs under plain Python.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Protocol, TypeVar

    from giving import give, given

    from voirkit.ai import ai
    from voirkit.errors import SelectorError, VoirkitError
    from voirkit.instrument import (
        Instrument,
        Option,
        configurable,
        gated,
        instrument_definition,
        parametrized,
    )
    from voirkit.launch import run
    from voirkit.phases import StopProgram
    from voirkit.probes import Probe, global_probe, probing, refstring
    from voirkit.probes.selector import tag
    from voirkit.report.sections import Section
    from voirkit.runner.overseer import Overseer
    from voirkit.runs.opened import open_run

    T = TypeVar("T")

    class Overseeing(Protocol):
        """Protocol with the parts of ``Overseer`` that this module uses."""

        @property
        def log(self) -> Callable[[dict[str, Any]], Any]: ...


__version__ = "0.1.0"

_HOMES = {
    "Instrument": "voirkit.instrument",
    "Option": "voirkit.instrument",
    "Overseer": "voirkit.runner.overseer",
    "Probe": "voirkit.probes",
    "Section": "voirkit.report.sections",
    "SelectorError": "voirkit.errors",
    "StopProgram": "voirkit.phases",
    "VoirkitError": "voirkit.errors",
    "ai": "voirkit.ai",
    "configurable": "voirkit.instrument",
    "gated": "voirkit.instrument",
    "give": "giving",
    "given": "giving",
    "global_probe": "voirkit.probes",
    "instrument_definition": "voirkit.instrument",
    "load_ipython_extension": "voirkit.notebook",  # only for %load_ext voirkit
    "open_run": "voirkit.runs.opened",
    "parametrized": "voirkit.instrument",
    "probing": "voirkit.probes",
    "refstring": "voirkit.probes",
    "run": "voirkit.launch",
    "tag": "voirkit.probes.selector",
}

__all__ = [
    "Instrument",
    "Option",
    "Overseer",
    "Probe",
    "Section",
    "SelectorError",
    "StopProgram",
    "VoirkitError",
    "__version__",
    "ai",
    "configurable",
    "gated",
    "give",
    "given",
    "global_probe",
    "instrument_definition",
    "iterate",
    "log",
    "open_run",
    "parametrized",
    "probing",
    "refstring",
    "run",
    "tag",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(
            f"module 'voirkit' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Process:
    """State of this process: the overseer of its run."""

    __slots__ = ("overseer",)

    def __init__(self) -> None:
        # not a ContextVar: a new thread has an empty context and would find no overseer
        self.overseer: Overseeing | None = None


_process = _Process()


def current_overseer() -> Overseeing | None:
    """Return the overseer of the run in this process; None if voirkit does not run it."""
    return _process.overseer


def set_current_overseer(overseer: Overseeing | None) -> Overseeing | None:
    """Set the current overseer, for all threads. Returns the previous overseer, which the caller
    sets again afterwards."""
    before = _process.overseer
    _process.overseer = overseer
    return before


def log(**kwargs: Any) -> None:
    """Log names and values to the run directory and the harness.  Does nothing outside voirkit.

    Args:
        kwargs: The values to log, by name. Numbers, strings, booleans, None, and lists and
            dictionaries of these are logged unchanged.
    """
    overseer = _process.overseer
    if overseer is not None:
        overseer.log(kwargs)


def iterate(
    task: str,
    iterable: Iterable[T],
    report_batch: bool = False,
    ignore_loading: bool = False,
    batch_size: Callable[[T], Any] | float | None = None,
) -> Iterator[T]:
    """Iterate as a ``for`` loop does, and give events that report the progress and speed of the
    loop.

    While the loop runs, every given event has ``task=task``.  If ``len(iterable)`` is known,
    ``progress=(i, n)`` is given before the first item and after each item.  The length is asked
    once, and again if more items come than it said; ``n`` is never less than ``i``.

    Args:
        task: The name of the loop's task, such as ``"train"`` or ``"eval"``; each task has its own
            rates.
        iterable: The iterable.  All its items are yielded, whatever its length says.
        report_batch: Wrap each iteration in ``give.wrap("step", ...)``, which the rate instruments
            measure.
        ignore_loading: Exclude the fetch of the item from this wrap.  If it is included, the wrap
            begins with None for the batch (or its size), and a loop of unknown length ends with
            one more wrap, which has no batch.
        batch_size: Value that the wrap gives: None for ``batch=item``, a function for
            ``batch_size=function(item)``, a number for ``batch_size=number``.

    Returns:
        An iterator over the same items.  Its first ``next`` imports ``giving`` if there is an
        overseer; without one, events are given only if the program has imported ``giving``.

    Raises:
        TypeError: The task is not a string.
    """
    if not isinstance(task, str):
        raise TypeError(
            f"iterate(): the task must be a string, such as 'train', not {type(task).__name__}"
        )
    return _iterate(task, iterable, report_batch, ignore_loading, batch_size)


def _iterate(
    task: str,
    iterable: Iterable[T],
    report_batch: bool,
    ignore_loading: bool,
    batch_size: Callable[[T], Any] | float | None,
) -> Iterator[T]:
    # No `yield from`: closing this generator would also close the iterable, which the program may
    # still need. Each item is released before the next is requested, so that `del batch` in the
    # program frees its memory.
    if _process.overseer is None and "giving" not in sys.modules:
        for item in iterable:
            yield item
            del item
        return

    from giving import give  # checked with giving 0.4.3

    def measure(item: T) -> dict[str, Any]:
        if batch_size is None:
            return {"batch": item}
        return {"batch_size": batch_size(item) if callable(batch_size) else batch_size}

    unknown = {"batch": None} if batch_size is None else {"batch_size": None}
    length = _length(iterable)
    count = 0
    below = give.inherited.get()
    layer = {**below, "task": task}
    give.inherited.set(layer)
    try:
        if length is not None:
            give(progress=(0, length))
        iterator = iter(iterable)
        while True:
            # Only the iterator's own StopIteration ends the loop; a StopIteration from batch_size
            # or a subscriber is an error. After as many items as the length says, the next item is
            # requested outside any step, since the iterable should end there.
            if report_batch and not ignore_loading and count != length:
                with give.wrap("step", **unknown) as extra:
                    try:
                        item = next(iterator)
                    except StopIteration:
                        return
                    extra.update(measure(item))
                    yield item
                del extra
            else:
                try:
                    item = next(iterator)
                except StopIteration:
                    return
                if report_batch:
                    with give.wrap("step", **measure(item)):
                        yield item
                else:
                    yield item
            del item
            count += 1
            if length is not None:
                if count > length:
                    length = max(count, _length(iterable) or 0)
                give(progress=(count, length))
    finally:
        # No ContextVar token: loops may end in another order than they began (two loops in a zip),
        # or in another thread (garbage collection). In these cases reset() raises, or restores the
        # task of a loop that has ended.
        if give.inherited.get() is layer:
            give.inherited.set(below)
        else:
            layer.clear()
            layer.update(below)


def _length(iterable: object) -> int | None:
    """Return ``len(iterable)``, or None if it fails for any reason: a plain loop would not have
    called it."""
    try:
        return len(iterable)  # type: ignore[arg-type]
    except Exception:
        return None
