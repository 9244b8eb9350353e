"""``--loader-sweep[=STEPS]``: how fast the training is with other numbers of workers and prefetched
batches, measured.

The script itself is run, unedited, once for each setting, for some steps: in processes of their
own, one after the other, quiet, with ``--loader-setting`` (which nobody else should use). What the
script writes it writes each time. The first run is with ``--loader`` and the script's own setting:
from what it records the rates of all settings are predicted, and the sweep reports how far that
holds.

    --loader-setting num_workers=4,prefetch_factor=8,steps=40

replaces the arguments of ``torch.utils.data.DataLoader`` where the program makes one (checked with
torch 2.1 to 2.15), and drops what does not go together with them: without workers there is nothing
to prefetch, to keep or to wait for.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from voirkit.errors import CommandLineError
from voirkit.imports import when_imported
from voirkit.instrument import instrument_definition
from voirkit.report import figure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType
    from typing import TypeAlias

    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.runner.overseer import Overseer

    Runner: TypeAlias = Callable[..., "Measurement"]
    # items per second by (workers, prefetch factor; None: the script's own)
    Rates: TypeAlias = dict[tuple[int, int | None], float]

LONGEST_S = 90  # of one run
_PREFETCH = (1, 4, 8)  # torch's own is 2
_NEAR = 0.97  # as good as the best: single short runs are no more exact
_NOT_FOR_IT = ("VOIRKIT_RUN_DIR", "DATA_FD")  # they are of the run that starts it
_KEYS = ("num_workers", "prefetch_factor", "steps")


class Measurement(NamedTuple):
    """The figures of one run."""

    # items per second of its steps but the first quarter; None if it did not train
    rate: float | None = None
    wait: float = 0.0  # share of these steps spent waiting for batches
    loader: Any = None  # of its summary, with ``--loader``
    why_not: str = ""  # what went wrong


@instrument_definition
def loader_sweep(ov: Overseer, steps: int) -> Iterator[Phase]:
    """Sweep, and end without running the script here."""
    import shutil
    import tempfile

    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        raise CommandLineError(
            "the sweep runs one process.",
            where="--loader-sweep",
            next="Leave out torchrun, or run one rank.",
        )
    folder = tempfile.mkdtemp(prefix="voirkit-sweep-")
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    try:

        def run(**setting: int) -> Measurement:
            return measure(folder, program_words(ov.options), steps, **setting)

        for line in sweep(run, cores):
            print(line, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ov.stop()
    yield ov.phases.parse_args


def sweep(run: Runner, cores: int) -> Iterator[str]:
    """Run the settings, and report as they end. ``run``: runs the script with a setting (none: its
    own, recorded with ``--loader``); ``cores``: processors."""
    first = run()
    if first.loader is None or first.rate is None:
        yield f"The script could not be measured: {first.why_not or 'no loader was seen in it'}."
        return
    predicted = {row["workers"]: row["rate"] for row in first.loader["predicted"]}
    now, best_predicted = first.loader["workers"], first.loader["best_workers"]
    yield f"{'workers':>8}{'prefetch':>10}{'items/s':>10}{'predicted':>11}{'wait':>7}"
    rates: Rates = {}

    def row(n: int, prefetch: int | None) -> str:
        """Measure one setting; the line that reports it."""
        setting = {"num_workers": n}
        prefetch_cell, prediction, present = "own", "", ""
        if prefetch is None:
            prediction = figure(predicted[n]) if n in predicted else ""
            present = " (now)" if n == now else ""
        else:
            setting["prefetch_factor"] = prefetch
            prefetch_cell = str(prefetch)
        result = run(**setting)
        line = f"{n:>8}{prefetch_cell if n else '':>10}"
        if result.rate is None:
            return f"{line}{'-':>10}   {result.why_not}"
        rates[n, prefetch] = result.rate
        return f"{line}{figure(result.rate):>10}{prediction:>11}{result.wait:>7.0%}{present}"

    for n in candidate_workers(cores, now, best_predicted):
        yield row(n, None)
    if not rates:
        yield "No setting could be measured."
        return
    best, _ = _best(rates)
    if best:
        for prefetch in _PREFETCH:
            yield row(best, prefetch)
    yield from recommend(rates, predicted, now, best_predicted)


def candidate_workers(cores: int, now: int, best_predicted: int | None) -> list[int]:
    """The numbers of workers to measure: at most nine."""
    numbers = {0, 1, 2, cores, 2 * cores, now}
    if best_predicted is not None and best_predicted <= 4 * cores:
        numbers.add(best_predicted)
    numbers |= {cores // 2, 3 * cores // 2} if cores > 2 else {3}
    return sorted(numbers)


def _best(rates: Rates) -> tuple[int, int | None]:
    """Of the settings that are as good as the best, the one with the fewest workers, and with the
    script's own prefetching."""
    most = max(rates.values())
    as_good = [setting for setting, rate in rates.items() if rate >= _NEAR * most]
    return min(as_good, key=lambda setting: (setting[0], setting[1] is not None, setting[1] or 0))


def recommend(
    rates: Rates, predicted: dict[int, float], now: int, best_predicted: int | None
) -> Iterator[str]:
    """The setting to choose, what it gains, and how far the prediction held."""
    n, prefetch = _best(rates)
    before, after = rates.get((now, None)), rates[n, prefetch]
    setting = f"num_workers={n}"
    if prefetch is not None:
        setting += f", prefetch_factor={prefetch}"
    if before is None:
        yield f"Recommended: {setting}: {figure(after)} items/s."
    elif n == now and prefetch is None:
        yield (
            f"Recommended: {setting}, as it is: no other setting gains more than"
            f" {1 / _NEAR - 1:.0%}."
        )
    else:
        yield (
            f"Recommended: {setting}: {figure(after)} items/s instead of {figure(before)}"
            f" ({after / before - 1:+.0%})."
        )
    deviations = []
    for (workers, prefetch_factor), measured in rates.items():
        if prefetch_factor is None and predicted.get(workers):
            deviations.append(measured / predicted[workers] - 1)
    if deviations:
        yield (
            f"Predicted were {best_predicted} workers; the rates measured were"
            f" {min(deviations):+.0%} to {max(deviations):+.0%} off those predicted."
        )


def measure(
    folder: str, script: Sequence[str], steps: int, looked_into: int = False, **setting: int
) -> Measurement:
    """Run the script once with a setting, as ``--loader-setting`` takes it; without any as it is,
    with ``--loader``. ``folder``: where the run may lie; ``looked_into``: with ``--loader`` too."""
    import shutil
    import subprocess

    run_dir = os.path.join(folder, "run")
    shutil.rmtree(run_dir, ignore_errors=True)
    text = ",".join(f"{key}={value}" for key, value in {**setting, "steps": steps}.items())
    looking = ["--loader"] if looked_into or not setting else []
    program = started_with(
        run_dir,
        ["--compact", "--loader-setting", text, "--stop-after", f"{LONGEST_S}s", *looking, *script],
    )
    ended = subprocess.run(
        **program,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if ended.returncode:
        return Measurement(
            why_not=(
                ended.stderr.strip().splitlines() or [f"it ended with exit code {ended.returncode}"]
            )[-1].rstrip(".")
        )
    result = read_run(run_dir)
    return (
        result
        if setting or result.loader is not None
        else Measurement(why_not="no loader was seen in it")
    )


def read_run(run_dir: str) -> Measurement:
    """What a run showed: its steps but the first quarter, in which workers start and the queue is
    filled."""
    import json

    import duckdb

    with open(os.path.join(run_dir, "summary.json"), encoding="utf-8") as file:
        loader = json.load(file).get("loader")
    steps = os.path.join(run_dir, "steps", "rank=0.parquet")
    if not os.path.exists(steps):
        return Measurement(loader=loader, why_not="no training step was seen")
    query = (
        "SELECT items, time_ns, wait_ns FROM read_parquet(?) WHERE task = 'train' ORDER BY start_ns"
    )
    rows = duckdb.execute(query, [steps]).fetchall()
    rows = rows[len(rows) // 4 :]
    items, time_ns, wait_ns = (sum(row[i] for row in rows) for i in range(3))
    if not time_ns or items <= 0:
        return Measurement(
            loader=loader, why_not="no training step with a known number of items was seen"
        )
    return Measurement(items / time_ns * 1e9, wait_ns / time_ns, loader)


# runs of the script that an experiment starts: under voirkit, quiet, each in a process of its own,
# without the user's voirfile


def program_words(options: Namespace) -> list[str]:
    """The script or module of a command line, and its arguments."""
    return [
        *(["-m", options.MODULE] if options.SCRIPT is None else [options.SCRIPT]),
        *options.ARGV,
    ]


def started_with(run_dir: str, words: Sequence[str]) -> dict[str, Any]:
    """What ``subprocess`` starts a run with: options, and the script with its arguments; where it
    prints is the caller's."""
    import subprocess

    environment = {key: value for key, value in os.environ.items() if key not in _NOT_FOR_IT}
    return {
        "args": [sys.executable, "-m", "voirkit", "--quiet", "--run-dir", run_dir, *words],
        "env": {**environment, "VOIRFILE": ""},
        "stdin": subprocess.DEVNULL,
    }


# such a run, with a setting


def parse_setting(text: str) -> dict[str, int]:
    """The numbers of a setting. Raises ValueError: it has another form."""
    setting = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if key not in _KEYS or not equals or not value.isdigit():
            raise ValueError(f"{part!r} is none of {', '.join(f'{k}=N' for k in _KEYS)}.")
        setting[key] = int(value)
    return setting


@instrument_definition
def loader_setting(ov: Overseer, setting: Mapping[str, int]) -> Iterator[PhaseWithPriority]:
    """Run with this setting."""
    from voirkit.intercept import Patches
    from voirkit_instruments.early_stop.record import Stopper

    patches, stopper = Patches({"torch": "2.1 to 2.15"}), Stopper(ov)
    hooks: list[Any] = []
    counts = ov.summary["loader_setting"] = {**setting, "loaders": 0}
    steps_left = setting.get("steps", 0)

    def patch_loader(module: ModuleType) -> None:
        patches.wrap(
            module.DataLoader,
            "__init__",
            replace_arguments(setting, counts),
            ("num_workers", "prefetch_factor"),
        )

    def count_steps(module: ModuleType) -> None:
        def after_step(*_: object) -> None:
            nonlocal steps_left
            steps_left -= 1
            if steps_left == 0:
                stopper.now()

        if steps_left:
            hooks.append(module.register_optimizer_step_post_hook(after_step))

    when_imported("torch.utils.data.dataloader", patch_loader)
    when_imported("torch.optim.optimizer", count_steps)
    try:
        yield ov.phases.run_script(priority=1000)
    finally:
        stopper.end()
        patches.remove()
        for hook in hooks:
            hook.remove()


def replace_arguments(setting: Mapping[str, int], counts: dict[str, int]) -> Callable[..., Any]:
    """What is called in place of ``DataLoader.__init__``."""
    from inspect import signature

    def init(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            bound = signature(wrapped).bind(*args, **kwargs)
        except TypeError:  # torch says what is wrong with it
            return wrapped(*args, **kwargs)
        arguments = bound.arguments
        workers = arguments["num_workers"] = setting.get(
            "num_workers", arguments.get("num_workers", 0)
        )
        if workers and "prefetch_factor" in setting:
            arguments["prefetch_factor"] = setting["prefetch_factor"]
        if not workers:
            for key in (
                "prefetch_factor",
                "persistent_workers",
                "timeout",
                "multiprocessing_context",
            ):
                arguments.pop(key, None)
        counts["loaders"] += 1
        return wrapped(*bound.args, **bound.kwargs)

    return init


def record(ov: Overseer, options: Mapping[str, Any]) -> Any:
    if options["loader_setting"] is not None:
        return loader_setting(options["loader_setting"])(ov)
    return loader_sweep(options["loader_sweep"])(ov)
