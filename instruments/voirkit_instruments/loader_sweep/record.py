"""``--loader-sweep[=STEPS]``: how fast the training is with other numbers of workers and prefetched batches, measured.

The script itself is run, unedited, once for each setting, for some steps: in processes of their own, one after the other, quiet, with
``--loader-setting``. What the script writes it writes each time. The first run is with ``--loader`` and the script's own setting: from
what it records the rates of all settings are predicted, and the sweep tells how far that holds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile

from voirkit.errors import CommandLineError
from voirkit.instrument import instrument_definition
from voirkit_instruments.child_run import program_words, started_with

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, TypeAlias

    from voirkit.phases import Phase
    from voirkit.runner.overseer import Overseer

    Words: TypeAlias = Sequence[str]
    Run: TypeAlias = Callable[..., "Measured"]

STEPS = 40
LONGEST_S = 90  # of one run
_PREFETCH = (1, 4, 8)  # torch's own is 2
_NEAR = 0.97  # as good as the best: single short runs are no more exact


class Measured:
    """What one run came to.

    Attributes:
        rate: Items per second of its steps but the first quarter; None if it did not train.
        wait: Share of these steps spent waiting for batches.
        loader: Of its summary, with ``--loader``.
        why_not: What went wrong.
    """

    def __init__(self, rate: float | None = None, wait: float = 0.0, loader: Any = None, why_not: str = "") -> None:
        self.rate, self.wait, self.loader, self.why_not = rate, wait, loader, why_not


@instrument_definition
def loader_sweep(ov: Overseer, steps: int) -> Iterator[Phase]:
    """Sweep, and end without running the script here."""
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        raise CommandLineError("the sweep runs one process.", where="--loader-sweep", next="Leave out torchrun, or run one rank.")
    folder = tempfile.mkdtemp(prefix="voirkit-sweep-")
    try:

        def run(**setting: int) -> Measured:
            return measure(folder, program_words(ov.options), steps, **setting)

        for line in sweep(run, _cores()):
            print(line, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ov.stop()
    yield ov.phases.parse_args


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sweep(run: Run, cores: int) -> Iterator[str]:
    """Run the settings, and tell as they end.

    Args:
        run: Runs the script with a setting (none: its own, recorded with ``--loader``).
        cores: Processors.
    """
    own = run()
    if own.loader is None or own.rate is None:
        yield f"The script could not be measured: {own.why_not or 'no loader was seen in it'}."
        return
    predicted = {row["workers"]: row["rate"] for row in own.loader["predicted"]}
    now, told = own.loader["workers"], own.loader["best_workers"]
    yield f"{'workers':>8}{'prefetch':>10}{'items/s':>10}{'predicted':>11}{'wait':>7}"
    found: dict[tuple[int, int | None], float] = {}

    def row(n: int, prefetch: int | None) -> str:
        """Measure one setting; the line that tells it."""
        made = run(num_workers=n) if prefetch is None else run(num_workers=n, prefetch_factor=prefetch)
        said = f"{n:>8}{'' if not n else 'own' if prefetch is None else prefetch:>10}"
        if made.rate is None:
            return f"{said}{'-':>10}   {made.why_not}"
        found[n, prefetch] = made.rate
        expected = f"{_figure(predicted[n]):>11}" if n in predicted and prefetch is None else " " * 11
        marks = " (now)" if n == now and prefetch is None else ""
        return f"{said}{_figure(made.rate):>10}{expected}{made.wait:>7.0%}{marks}"

    for n in numbers(cores, now, told):
        yield row(n, None)
    if not found:
        yield "No setting could be measured."
        return
    best = _best(found)
    if best[0]:
        for prefetch in _PREFETCH:
            yield row(best[0], prefetch)
    yield from recommend(found, predicted, now, told)


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"


def numbers(cores: int, now: int, told: int | None) -> list[int]:
    """The numbers of workers to measure: at most nine."""
    few = {0, 1, 2, cores, 2 * cores, now, *((told,) if told is not None and told <= 4 * cores else ())}
    few |= {cores // 2, 3 * cores // 2} if cores > 2 else {3}
    return sorted(few)


def _best(found: dict[tuple[int, int | None], float]) -> tuple[int, int | None]:
    """Of the settings that are as good as the best, the one with the fewest workers, and with the script's own prefetching."""
    most = max(found.values())
    return min((key for key in found if found[key] >= _NEAR * most), key=lambda key: (key[0], key[1] is not None, key[1] or 0))


def recommend(found: dict[tuple[int, int | None], float], predicted: dict[int, float], now: int, told: int | None) -> Iterator[str]:
    """What to set, what it gains, and how far the prediction held."""
    n, prefetch = _best(found)
    before, after = found.get((now, None)), found[n, prefetch]
    said = f"num_workers={n}" + (f", prefetch_factor={prefetch}" if prefetch is not None else "")
    if before is None:
        yield f"Recommended: {said}: {_figure(after)} items/s."
    elif n == now and prefetch is None:
        yield f"Recommended: {said}, as it is: no other setting gains more than {1 / _NEAR - 1:.0%}."
    else:
        yield f"Recommended: {said}: {_figure(after)} items/s instead of {_figure(before)} ({after / before - 1:+.0%})."
    off = [measured / predicted[k] - 1 for (k, p), measured in found.items() if p is None and predicted.get(k)]
    if off:
        yield f"Predicted were {told} workers; the rates measured were {min(off):+.0%} to {max(off):+.0%} off those predicted."


def measure(folder: str, script: Words, steps: int, looked_into: int = False, **setting: int) -> Measured:
    """Run the script once with a setting; without any as it is, with ``--loader``.

    Args:
        folder: Where the run may lie.
        script: It, and its arguments.
        steps: How many steps it runs.
        looked_into: With ``--loader`` too.
        setting: As ``--loader-setting`` takes them.
    """
    place = os.path.join(folder, "run")
    shutil.rmtree(place, ignore_errors=True)
    numbers_ = ",".join(f"{key}={value}" for key, value in {**setting, "steps": steps}.items())
    words = ["--loader-setting", numbers_, "--stop-after", f"{LONGEST_S}s", *(["--loader"] if looked_into or not setting else []), *script]
    ended = subprocess.run(
        **started_with(place, words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    if ended.returncode:
        return Measured(why_not=(ended.stderr.strip().splitlines() or [f"it ended with exit code {ended.returncode}"])[-1].rstrip("."))
    found = read_run(place)
    return found if setting or found.loader is not None else Measured(why_not="no loader was seen in it")


def read_run(place: str) -> Measured:
    """What a run came to: its steps but the first quarter, in which workers start and the queue is filled."""
    import json

    import duckdb

    with open(os.path.join(place, "summary.json"), encoding="utf-8") as file:
        summary = json.load(file)
    steps = os.path.join(place, "steps", "rank=0.parquet")
    if not os.path.exists(steps):
        return Measured(loader=summary.get("loader"), why_not="no training step was seen")
    query = "SELECT items, time_ns, wait_ns FROM read_parquet(?) WHERE task = 'train' ORDER BY start_ns"
    rows = duckdb.execute(query, [steps]).fetchall()
    rows = rows[len(rows) // 4 :]
    spent = sum(time for _, time, _ in rows)
    items = sum(n for n, _, _ in rows)
    if not spent or items <= 0:
        return Measured(loader=summary.get("loader"), why_not="no training step with a known number of items was seen")
    return Measured(items / spent * 1e9, sum(wait for _, _, wait in rows) / spent, summary.get("loader"))


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    """Record what the options ask for."""
    if options["loader_setting"] is not None:
        from voirkit_instruments.loader_sweep.record_setting import loader_setting

        return loader_setting(options["loader_setting"])(ov)
    return loader_sweep(options["loader_sweep"])(ov)
