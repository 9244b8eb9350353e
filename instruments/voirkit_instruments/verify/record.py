"""``--verify``: which readings arrive, from which probe, how often; whether the loss falls and the rates exist.

Beside it, which of them voirkit has without any probe, from what the steps instrument has recorded.

Ends the run with exit code 3 if loss, step+batch or use_cuda is missing. Switches the three rates on. Keeps of the loss
some hundred detached numbers, so that no graph stays alive and a device is not waited for while the script runs.
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
    from voirkit.phases import Phase, PhaseWithPriority
    from voirkit.probes.selector.suggestions import Candidates
    from voirkit.runner.overseer import Overseer
    from voirkit_instruments.steps.record_values import FinishedStep


ESSENTIAL = ("loss", "step+batch", "use_cuda")
READINGS = (*ESSENTIAL, "options", "model", "loader", "compute_start/end")
RATES = ("train_rate", "loading_rate", "compute_rate")
NAMES = ("train_rate", "loading_rate", "compute_rate", "step+batch", "loader", "compute_start/end", "model", "use_cuda", "loss", "options")
_KEYS = ("loss", "use_cuda", "options", "model", "loader")


class Arrivals:
    """Counts the readings among all that is given.

    What voirkit's recorder gives counts for a reading that neither the program nor a voirfile
    gives: the recorder's first events may come before the program's.
    """

    def __init__(self) -> None:
        self._given = dict.fromkeys(READINGS, 0)  # how often each reading came from the program or a voirfile
        self._seen = dict.fromkeys(READINGS, 0)  # from the recorder
        self._given_losses, self._seen_losses = Losses(), Losses()

    @property
    def counts(self) -> dict[str, int]:
        """How often each reading came."""
        return {name: self._given[name] or self._seen[name] for name in READINGS}

    @property
    def recorded(self) -> set[str]:
        """The readings that only the recorder has given."""
        return {name for name in READINGS if self._seen[name] and not self._given[name]}

    @property
    def loss(self) -> Losses:
        """The losses."""
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
        """The recorder has seen what steps do with their batches."""
        self._seen["compute_start/end"] += sum(step.arrived_ns is not None for step in steps)


def probes_of(reading: str, probes: list[Any]) -> list[Any]:
    """The probes whose selectors capture what a reading needs."""
    wanted = {"step+batch": ("step",), "compute_start/end": ("compute_start",)}.get(reading, (reading,))
    return [p for p in probes if any(_captures(selector, name) for selector in p.selectors for name in wanted)]


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
    script = os.path.abspath(ov.script) if ov.script else ""  # the script may change the current folder
    yield ov.phases.finalize(throw=False)  # after an early stop as well
    result = _result(ov, arrivals)
    ov.summary["verify"] = result

    ov.say(report(result, script, terminal=sys.stderr is not None and sys.stderr.isatty()))
    missing = [name for name in ESSENTIAL if name in result["missing"]]
    if missing:
        ov.fail(f"--verify: nothing was given as {', '.join(missing)}")


def _result(ov: Overseer, arrivals: Arrivals) -> dict[str, Any]:
    readings = {}
    for name, count in arrivals.counts.items():
        probes = [{"selector": ", ".join(p.selectors), "where": p.made_at, "events": p.events} for p in probes_of(name, ov.probes)]
        readings[name] = {"events": count, "probes": probes, "recorded": name in arrivals.recorded}
    rates = {name: ov.summary["rates"].get(name, {}).get("value") for name in RATES}
    without_probes = _without_probes(ov)
    # The recorder's own rates are of the last steps: a second number for what the rates are of the whole run.
    measured = {name: rate for name, rate in rates.items() if rate is not None and without_probes[name] is not None}
    means = arrivals.loss.means()
    finite = [mean if math.isfinite(mean) else None for mean in means or ()]  # JSON has no nan
    return {
        "readings": readings,
        "missing": [name for name, count in arrivals.counts.items() if not count],
        "loss": {
            "n": arrivals.loss.n,
            "first": finite[0] if finite else None,
            "last": finite[1] if finite else None,
            "decreases": None if means is None else means[1] < means[0],
        },
        "rates": rates,
        "without_probes": {**without_probes, **measured},
        "passed": all(arrivals.counts[name] for name in ESSENTIAL),
    }


def _without_probes(ov: Overseer) -> dict[str, Any]:
    from voirkit_instruments.steps.record_values import values_of

    try:
        return readings_of_steps(ov.run_dir, values_of(ov).n_losses)
    except Exception as exc:  # the disk, or a trace that something else has written to: no reason to fail the check
        ov.warn(f"--verify: what is known without probes cannot be read ({type(exc).__name__}: {exc}).")
        return dict.fromkeys(NAMES)


def readings_of_steps(run_dir: str | None, losses: int) -> dict[str, Any]:
    """By reading: the median of a rate (items/s, of the last steps), how often something came, a model's class; None if it is not known.
    ``run_dir``: where this process has recorded, or None; ``losses``: how many losses ``backward`` was called on."""
    found: dict[str, Any] = dict.fromkeys(NAMES)
    if run_dir is None or RECORDER not in sys.modules:  # nothing was recorded
        return found
    from voirkit.live import Picture
    from voirkit.live.steps import LiveSteps

    steps = LiveSteps(run_dir, pid=os.getpid())
    steps.update()
    while steps.is_behind:
        steps.update()
    picture = Picture()
    steps.fill(picture)
    if picture.steps is None:
        return found
    found.update((rate.name, rate.value) for rate in picture.rates)
    batches = sum(n for counts in steps.window.counts.values() for n in counts.batches.values())
    found["compute_start/end"], found["loader"] = picture.done, batches or None
    if picture.steps["items"]:
        found["step+batch"] = picture.done
    found["loss"] = losses or None
    # The module that was called first while it trained; whether something took time on a GPU, or was copied to one.
    found["model"] = next((str(known["module"]) for known in steps.arguments() if known.get("training")), None)
    timed = any(name.kind == "device" for name in steps.names())
    found["use_cuda"] = timed or any(str(known.get("to", "")).startswith("cuda") for known in steps.arguments())
    return found


def record(ov: Overseer, options: Mapping[str, Any]) -> Iterator[Phase | PhaseWithPriority]:
    return verify(ov)


def report(result: dict[str, Any], script: str, terminal: bool) -> str:
    """The whole text of what the summary holds under ``verify``; the script's source, if it can be read, suggests what to add."""
    table = _table([*_readings(result), *_checks(result)], TerminalStyle(color=terminal))
    return "\n".join(["--verify", table, *_known_without_probes(result), *_missing(result, script)])


def _readings(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = []
    for name, reading in result["readings"].items():
        origin = "; ".join(f"{p['selector']}  {p['where']}".rstrip() for p in reading["probes"])
        if not reading["events"]:
            fired = any(p["events"] for p in reading["probes"])
            origin = f"{origin}  {'fired, but gave no such event' if fired else 'never fired'}" if origin else ""
            rows.append((name, "missing", origin))
        else:
            unprobed = "voirkit's recorder, without a probe" if reading["recorded"] else "no probe: the script or an instrument gave it"
            rows.append((name, str(reading["events"]), origin or unprobed))
    return rows


def _checks(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    loss = result["loss"]
    if loss["decreases"] is None:
        because = "needs two losses that are numbers"
    elif loss["first"] is None or loss["last"] is None:
        because = "it is not finite"
    else:
        because = f"{figure(loss['first'], 4)} -> {figure(loss['last'], 4)}, means of the first and the last quarter of {loss['n']}"
    verdict = {True: "yes", False: "no", None: "unknown"}[loss["decreases"]]
    rows = [("loss decreases", verdict, because)]
    needs = {"train_rate": "step+batch twice", "loading_rate": "loader", "compute_rate": "compute_start/end with batch"}
    for name, value in result["rates"].items():
        found = (figure(value, 4), "items/s") if value is not None else ("missing", f"needs {needs[name]}")
        rows.append((name, *found))
    return rows


def _table(rows: list[tuple[str, str, str]], terminal: TerminalStyle) -> str:
    heads = [("reading", "events", "from"), *rows]
    first, second = (max(len(row[n]) for row in heads) for n in (0, 1))
    colours = {"missing": RED, "no": RED, "unknown": YELLOW, "events": PLAIN}
    lines = (f"  {name:<{first}}  {styled(f'{n:>{second}}', colours.get(n, GREEN), terminal)}  {origin}" for name, n, origin in heads)
    return "\n".join(line.rstrip() for line in lines)


def _known_without_probes(result: dict[str, Any]) -> list[str]:
    """What voirkit has read of torch itself, and what only a probe can tell; a rate that stands in the table without its number."""
    readings = result["without_probes"]
    known = [
        name if result["rates"].get(name) is not None else _reading_text(name, value)
        for name, value in readings.items()
        if value is not None
    ]
    if not known:
        return ["  Without a probe nothing is known: no training step of torch was seen."]
    unknown = [name for name, value in readings.items() if value is None]
    return [f"  Known without a probe: {', '.join(known)}.", *([f"  Only a probe tells: {', '.join(unknown)}."] if unknown else [])]


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
    lines = {name: candidates.line(name) for name in missing if name != "options"} if candidates else {}
    found = [line for line in lines.values() if line]
    said = []
    if found:
        said += ["  To add to the voirfile, as far as the script shows it:", "    def instrument_readings(ov):"]
        said += [f"        {line}" for line in found]
    unknown = [name for name in missing if name != "options" and not lines.get(name)]
    if unknown:
        said.append(f"  Nothing in the script looks like {', '.join(unknown)}: probe it where it is set, or give it.")
    if "options" in missing:
        said.append("  options: with --options, if the script uses argparse.")
    return said


def _candidates(script: str) -> Candidates | None:
    from voirkit.probes.selector.catalogue import catalogue
    from voirkit.probes.selector.suggestions import Candidates

    try:
        with open(script, "rb") as file:
            return Candidates(catalogue(file.read(), script))
    except (OSError, SyntaxError, ValueError):
        return None
