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

Costs nothing while no flag is on.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from voirkit.overseer import Overseer
    from voirkit.phases import Phase


def train_rate(ov: Overseer) -> Iterator[Phase]:
    """Measures ``train_rate`` to the end of the run."""
    from voirkit_instruments.observed_rate import Rate

    rate = Rate(ov, "train_rate")
    ov.given.subscribe(rate.on_step)
    try:
        yield ov.phases.run_script
    finally:
        rate.finish()


def compute_rate(ov: Overseer) -> Iterator[Phase]:
    """Measures ``compute_rate`` to the end of the run."""
    from voirkit_instruments.observed_rate import Rate

    rate = Rate(ov, "compute_rate")
    ov.given.subscribe(rate.on_wrap)
    try:
        yield ov.phases.run_script
    finally:
        rate.finish()


def loading_rate(ov: Overseer) -> Iterator[Phase]:
    """Measures ``loading_rate`` to the end of the run."""
    from voirkit_instruments.loading import LoaderWatch
    from voirkit_instruments.observed_rate import Rate

    rate = Rate(ov, "loading_rate")
    watch = LoaderWatch(rate.on_batch, lambda sentence: ov.warn(f"loading_rate: {sentence}"))

    def on_loader(event: dict[str, Any]) -> None:
        if "loader" in event:
            watch.watch(event["loader"], event.get("task"))

    ov.given.subscribe(on_loader)
    try:
        yield ov.phases.run_script
    finally:
        watch.remove()
        rate.finish()


FLAGS = {
    "--train-rate": (train_rate, "give train_rate (items/s from step and batch) once a second"),
    "--loading-rate": (loading_rate, "give loading_rate (items/s that the given loader delivers) once a second"),
    "--compute-rate": (compute_rate, "give compute_rate (items/s between compute_start and compute_end) once a second"),
}


def instrument_rates(ov: Overseer) -> Iterator[Phase]:
    """Adds the three flags, and measures what is asked for."""
    yield ov.phases.init
    for flag, (_, text) in FLAGS.items():
        ov.argparser.add_argument(flag, action="store_true", dest=flag, help=text)
    yield ov.phases.parse_args
    for flag, (measure, _) in FLAGS.items():
        if getattr(ov.options, flag):
            ov.require(measure)
