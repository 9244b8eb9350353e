"""``--train-rate``, ``--loading-rate``, ``--compute-rate``: items per second while the run goes on, once a second.

============ ============================================= ===========================================================
rate         items of                                      over the time
============ ============================================= ===========================================================
train_rate   events with ``step`` and ``batch`` (or        from the event before it, of the same task and thread, to
             ``batch_size``)                               this one
compute_rate the end of ``compute_start``/``compute_end``  inside the wrapper
loading_rate what the iterators of a given ``loader``      inside their ``__next__``
             return
============ ============================================= ===========================================================

An event with ``step`` is taken for the end of that step, as ``//f(X as batch) > #endloop_X as step`` is: its batch is
what was worked on since the event before it. The first event of a task has no time and is not counted. With
``use_cuda`` given, the device is waited for once an interval, never in a step, and the wait counts as the step's time.

Without probes the steps, loaders and batches are those that the recorder sees (``training_values``): ``compute_rate`` is then over what a
step does from its batch's arrival to the next request, and ``train_rate`` in steps/s where a script has no loader.

Costs nothing while no flag is on.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer


def train_rate(ov: Overseer) -> Iterator[Phase]:
    """Measures ``train_rate`` to the end of the run."""
    from voirkit_instruments.rates.observed_rate import Rate

    rate = Rate(ov, "train_rate")
    ov.given.subscribe(rate.on_step)
    try:
        yield ov.phases.run_script
    finally:
        rate.finish()


def compute_rate(ov: Overseer) -> Iterator[Phase]:
    """Measures ``compute_rate`` to the end of the run."""
    from voirkit_instruments.rates.observed_rate import Rate
    from voirkit_instruments.steps.record_values import values_of

    rate = Rate(ov, "compute_rate")
    ov.given.subscribe(rate.on_wrap)
    values_of(ov).on_compute.append(rate.on_span)
    try:
        yield ov.phases.run_script
    finally:
        rate.finish()


def loading_rate(ov: Overseer) -> Iterator[Phase]:
    """Measures ``loading_rate`` to the end of the run."""
    from voirkit_instruments.rates.loading import LoaderWatch
    from voirkit_instruments.rates.observed_rate import Rate
    from voirkit_instruments.steps.record_values import values_of

    rate = Rate(ov, "loading_rate")
    watch = LoaderWatch(rate.on_batch, lambda sentence: ov.warn(f"loading_rate: {sentence}"))

    is_given = False

    def on_loader(event: dict[str, Any]) -> None:
        nonlocal is_given
        if "loader" in event and "$recorder" not in event:
            is_given = True
            watch.watch(event["loader"], event.get("task"))

    def on_fetch(begin: int, end: int, batch: object) -> None:
        if not is_given:
            rate.on_batch(None, begin, end, batch)

    ov.given.subscribe(on_loader)
    values_of(ov).on_fetch.append(on_fetch)
    try:
        yield ov.phases.run_script
    finally:
        watch.remove()
        rate.finish()


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    for name, measure in (("train_rate", train_rate), ("loading_rate", loading_rate), ("compute_rate", compute_rate)):
        if options[name]:
            ov.require(measure)
