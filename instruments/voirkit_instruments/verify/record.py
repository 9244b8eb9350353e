"""``--verify``: checks whether a run gives the values that a benchmark harness needs.

Such a value is called a reading; examples are loss, step+batch and use_cuda. The report says how
often each reading was given and by which probe, whether the loss decreases, and the three rates:
train_rate, loading_rate and compute_rate. It also lists the readings that voirkit knows without any
probe, from the records of the steps instrument.

The run ends with exit code 3 if loss, step+batch or use_cuda is missing. The flag enables the three
rates. Some hundred losses are kept, detached: no graph stays alive, and nothing waits for a device
while the script runs.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from voirkit.live.frame import GREEN, PLAIN, RED, YELLOW, TerminalStyle, styled
from voirkit.report import figure
from voirkit.report.sections import written
from voirkit.runner.recording import RECORDER
from voirkit_instruments.steps.record import Losses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.live.steps import LiveSteps
    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.probes.selector.suggestions import Candidates
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.steps.record_values import FinishedStep


ESSENTIAL = ("loss", "step+batch", "use_cuda")
READINGS = (*ESSENTIAL, "options", "model", "loader", "compute_start/end")
RATES = ("train_rate", "loading_rate", "compute_rate")
NAMES = (
    "train_rate",
    "loading_rate",
    "compute_rate",
    "step+batch",
    "loader",
    "compute_start/end",
    "model",
    "use_cuda",
    "loss",
    "options",
)
_KEYS = ("loss", "use_cuda", "options", "model", "loader")


class Arrivals:
    """Counts the events of each reading.

    The recorder's events count only for readings that neither the program nor a voirfile gives.
    They are counted separately, because the recorder's first events may come before the program's.
    """

    def __init__(self) -> None:
        # number of events of each reading from the program or a voirfile
        self._given = dict.fromkeys(READINGS, 0)
        self._seen = dict.fromkeys(READINGS, 0)  # number of events from the recorder
        self._given_losses = Losses()
        self._seen_losses = Losses()

    @property
    def counts(self) -> dict[str, int]:
        """Number of events of each reading."""
        return {name: self._given[name] or self._seen[name] for name in READINGS}

    @property
    def recorded(self) -> set[str]:
        """The readings that only the recorder has given."""
        return {name for name in READINGS if self._seen[name] and not self._given[name]}

    @property
    def loss(self) -> Losses:
        """The losses that the program or a voirfile gave; if they gave none, the losses that the
        steps instrument recorded."""
        return self._given_losses if self._given["loss"] else self._seen_losses

    def on_event(self, event: dict[str, Any]) -> None:
        is_own = "$recorder" in event
        counts = self._seen if is_own else self._given
        if "loss" in event:
            losses = self._seen_losses if is_own else self._given_losses
            losses.add(event["loss"])
        for name in _KEYS:
            counts[name] += name in event
        counts["step+batch"] += "step" in event and ("batch" in event or "batch_size" in event)
        wrap = event.get("$wrap")
        if wrap is not None and wrap["name"] == "compute_start" and wrap["step"] == "end":
            counts["compute_start/end"] += 1

    def on_steps(self, steps: list[FinishedStep]) -> None:
        """Count finished steps of the recorder whose batch arrived as events of
        ``compute_start/end``."""
        self._seen["compute_start/end"] += sum(step.arrived_ns is not None for step in steps)


def probes_of(reading: str, probes: list[Any]) -> list[Any]:
    """Return the probes whose selectors capture the variable of a reading."""
    variables = {"step+batch": "step", "compute_start/end": "compute_start"}
    name = variables.get(reading, reading)
    return [p for p in probes if any(_captures(selector, name) for selector in p.selectors)]


def _captures(selector: str, name: str) -> bool:
    return re.search(rf"(?<![\w/.#]){name}(?!\w|\s+as\b|\s*[(>])", selector) is not None


def verify(ov: Overseer) -> Iterator[Phase | PhaseWithPriority]:
    from voirkit_instruments.rates.record import compute_rate, loading_rate, train_rate
    from voirkit_instruments.steps.record_values import values_of

    arrivals = Arrivals()
    ov.given.subscribe(arrivals.on_event)
    values_of(ov).on_steps.append(arrivals.on_steps)
    ov.require(train_rate, loading_rate, compute_rate)
    yield ov.phases.load_script
    # made absolute here, because the script may change the current folder
    script = os.path.abspath(ov.script) if ov.script else ""
    yield ov.phases.finalize(throw=False)  # throw=False: the report is made after an early stop too
    result = _result(ov, arrivals)
    ov.summary["verify"] = result

    ov.say(report(result, script, terminal=sys.stderr is not None and sys.stderr.isatty()))
    missing = [name for name in ESSENTIAL if name in result["missing"]]
    if missing:
        ov.fail(f"--verify: nothing was given as {', '.join(missing)}")


def _result(ov: Overseer, arrivals: Arrivals) -> dict[str, Any]:
    counts = arrivals.counts
    rates = {name: ov.summary["rates"].get(name, {}).get("value") for name in RATES}
    without_probes = _without_probes(ov)
    # The recorder's own rates are those of the last steps only. They are replaced by the rates of
    # the whole run, so that the report has no second number for a rate.
    for name, rate in rates.items():
        if rate is not None and without_probes[name] is not None:
            without_probes[name] = rate
    readings = {name: _reading(ov, name, arrivals) for name in counts}
    missing = [name for name, count in counts.items() if not count]
    return {
        "readings": readings,
        "missing": missing,
        "loss": _loss(arrivals.loss),
        "rates": rates,
        "without_probes": without_probes,
        "passed": all(counts[name] for name in ESSENTIAL),
    }


def _reading(ov: Overseer, name: str, arrivals: Arrivals) -> dict[str, Any]:
    probes = [
        {"selector": ", ".join(p.selectors), "where": p.made_at, "events": p.events}
        for p in probes_of(name, ov.probes)
    ]
    is_recorded = name in arrivals.recorded
    return {"events": arrivals.counts[name], "probes": probes, "recorded": is_recorded}


def _loss(losses: Losses) -> dict[str, Any]:
    means = losses.means()
    if means is None:
        return {"n": losses.n, "first": None, "last": None, "decreases": None}
    first, last = (mean if math.isfinite(mean) else None for mean in means)  # JSON has no nan
    decreases = means[1] < means[0]
    return {"n": losses.n, "first": first, "last": last, "decreases": decreases}


def _without_probes(ov: Overseer) -> dict[str, Any]:
    from voirkit_instruments.steps.record_values import values_of

    try:
        return readings_of_steps(ov.run_dir, values_of(ov).n_losses)
    except Exception as exc:
        # a disk error, or a trace changed by another program: this must not fail the check
        ov.warn(
            f"--verify: what is known without probes cannot be read ({type(exc).__name__}: {exc})."
        )
        return dict.fromkeys(NAMES)


def readings_of_steps(run_dir: str | None, losses: int) -> dict[str, Any]:
    """Return what is known of each reading without probes: the median of a rate (items/s, of the
    last steps), a number of events, or a model's class; None if unknown.

    Args:
        run_dir: The directory in which this process has recorded, or None.
        losses: The number of losses on which ``backward`` was called.
    """
    readings: dict[str, Any] = dict.fromkeys(NAMES)
    if run_dir is None or RECORDER not in sys.modules:  # nothing was recorded
        return readings
    from voirkit.live import Picture
    from voirkit.live.steps import LiveSteps

    steps = LiveSteps(run_dir, pid=os.getpid())
    steps.update()
    while steps.is_behind:
        steps.update()
    picture = Picture()
    steps.fill(picture)
    if picture.steps is None:
        return readings
    readings.update((rate.name, rate.value) for rate in picture.rates)
    batches = 0
    for counts in steps.window.counts.values():
        batches += sum(counts.batches.values())
    readings["compute_start/end"] = picture.n_steps
    readings["loader"] = batches or None
    if picture.steps["items"]:
        readings["step+batch"] = picture.n_steps
    readings["loss"] = losses or None
    # the first module that was called in training mode
    training = (arguments for arguments in steps.arguments() if arguments.get("training"))
    first = next(training, None)
    readings["model"] = None if first is None else str(first["module"])
    readings["use_cuda"] = _uses_cuda(steps)
    return readings


def _uses_cuda(steps: LiveSteps) -> bool:
    """True if spans were recorded on a GPU, or a tensor was copied to one."""
    if any(name.kind == "device" for name in steps.names()):
        return True
    targets = (str(arguments.get("to", "")) for arguments in steps.arguments())
    return any(target.startswith("cuda") for target in targets)


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase | PhaseWithPriority]:
    return verify(ov)


def report(result: dict[str, Any], script: str, terminal: bool) -> str:
    """Return the report of the summary's ``verify`` entry as text. Suggestions for missing readings
    are taken from the script's source, if it can be read."""
    table = _table([*_readings(result), *_checks(result)], TerminalStyle(color=terminal))
    return "\n".join(["--verify", table, *_known_without_probes(result), *_missing(result, script)])


def _readings(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = []
    for name, reading in result["readings"].items():
        probes = reading["probes"]
        origin = "; ".join(f"{p['selector']}  {p['where']}".rstrip() for p in probes)
        if not reading["events"]:
            if origin:
                fired = any(p["events"] for p in probes)
                why = "fired, but gave no such event" if fired else "never fired"
                origin = f"{origin}  {why}"
            rows.append((name, "missing", origin))
            continue
        if not origin:
            if reading["recorded"]:
                origin = "voirkit's recorder, without a probe"
            else:
                origin = "no probe: the script or an instrument gave it"
        rows.append((name, str(reading["events"]), origin))
    return rows


def _checks(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    loss = result["loss"]
    if loss["decreases"] is None:
        because = "needs two losses that are numbers"
    elif loss["first"] is None or loss["last"] is None:
        because = "it is not finite"
    else:
        means = f"{figure(loss['first'], 4)} -> {figure(loss['last'], 4)}"
        because = f"{means}, means of the first and the last quarter of {loss['n']}"
    verdict = {True: "yes", False: "no", None: "unknown"}[loss["decreases"]]
    rows = [("loss decreases", verdict, because)]
    needs = {
        "train_rate": "step+batch twice",
        "loading_rate": "loader",
        "compute_rate": "compute_start/end with batch",
    }
    for name, value in result["rates"].items():
        if value is None:
            rows.append((name, "missing", f"needs {needs[name]}"))
        else:
            rows.append((name, figure(value, 4), "items/s"))
    return rows


def _table(rows: list[tuple[str, str, str]], terminal: TerminalStyle) -> str:
    rows = [("reading", "events", "from"), *rows]
    name_width = max(len(name) for name, _, _ in rows)
    events_width = max(len(events) for _, events, _ in rows)
    colours = {"missing": RED, "no": RED, "unknown": YELLOW, "events": PLAIN}
    lines = []
    for name, events, origin in rows:
        cell = styled(f"{events:>{events_width}}", colours.get(events, GREEN), terminal)
        lines.append(f"  {name:<{name_width}}  {cell}  {origin}".rstrip())
    return "\n".join(lines)


def _known_without_probes(result: dict[str, Any]) -> list[str]:
    """Return lines that list the readings that voirkit gets from torch itself, and the readings
    that need a probe. A rate whose number is already in the table is listed without its number."""
    readings = []
    unknown = []
    for name, value in result["without_probes"].items():
        if value is None:
            unknown.append(name)
        elif result["rates"].get(name) is not None:
            readings.append(name)
        else:
            readings.append(_reading_text(name, value))
    if not readings:
        return ["  Without a probe nothing is known: no training step of torch was seen."]
    lines = [f"  Known without a probe: {', '.join(readings)}."]
    if unknown:
        lines.append(f"  Only a probe tells: {', '.join(unknown)}.")
    return lines


def _reading_text(name: str, value: Any) -> str:
    if name in ("model", "use_cuda"):
        return f"{name} {value}"
    if name.endswith("_rate"):
        return f"{name} {written(value, 'items/s')}"
    return f"{name} {value:,}x"


def _missing(result: dict[str, Any], script: str) -> list[str]:
    missing = result["missing"]
    if not missing:
        return ["  All readings are there."]
    candidates = _candidates(script)
    suggestions = []
    unknown = []
    for name in missing:
        if name == "options":
            continue
        suggestion = candidates.line(name) if candidates else None
        if suggestion:
            suggestions.append(f"        {suggestion}")
        else:
            unknown.append(name)
    lines = []
    if suggestions:
        lines += [
            "  To add to the voirfile, as far as the script shows it:",
            "    def instrument_readings(ov):",
            *suggestions,
        ]
    if unknown:
        lines.append(
            f"  Nothing in the script looks like {', '.join(unknown)}: probe it where it is set, or"
            " give it."
        )
    if "options" in missing:
        lines.append("  options: with --options, if the script uses argparse.")
    return lines


def _candidates(script: str) -> Candidates | None:
    from voirkit.probes.selector.catalogue import catalogue
    from voirkit.probes.selector.suggestions import Candidates

    try:
        with open(script, "rb") as file:
            return Candidates(catalogue(file.read(), script))
    except (OSError, SyntaxError, ValueError):
        return None
