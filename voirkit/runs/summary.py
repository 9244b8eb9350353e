"""Builds and reads parts of ``summary.json``, the results of a run: wall time, overhead, verdict.

All functions are pure. The module imports nothing heavy, since every run loads it.
"""

from __future__ import annotations

from voirkit.runs import thresholds as limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

SCHEMA = 1

# The verdict on a run without any known training step.
NO_STEPS = {
    "kind": "unknown",
    "because": "No training step was seen: no backward pass and no optimizer step of torch.",
    "next": (
        "If it does train, tell with probes in a voirfile.py: voirkit init SCRIPT writes one to"
        " start from."
    ),
    "evidence": {"steps": 0},
}


def no_steps(unrecorded: Sequence[str]) -> dict[str, Any]:
    """Return the verdict on a run without any known training step.

    Args:
        unrecorded: The commands of processes that the script started and voirkit does not record.
            They may have trained unseen.
    """
    if not unrecorded:
        return dict(NO_STEPS)
    return {
        **NO_STEPS,
        "because": (
            "No training step was seen. The script has started processes that voirkit does not"
            f" look into: {', '.join(unrecorded)}."
        ),
        "next": (
            "Have them run under voirkit: voirkit --follow SHELL-SCRIPT, or python -m voirkit"
            " SCRIPT in place of python SCRIPT."
        ),
    }


# parts of the overhead that occur once per run and do not grow with its duration
_PAID_ONCE = ("start", "completing")
# Flags for parts of the overhead that are not exact timings. The time that tracemalloc adds to each
# allocation in Python is not measured at all.
_QUALITY: dict[str, dict[str, bool]] = {
    "sampling": {"estimated": True},
    "tracemalloc": {"unmeasured": True},
}


def empty(version: str) -> dict[str, Any]:
    """Return a summary with voirkit's own keys, and null or empty values for everything not yet
    measured. Instruments add keys of their own."""
    return {
        "schema": SCHEMA,
        "voirkit": version,
        "command": [],
        "exit_code": None,
        "duration_s": None,
        "world_size": 1,
        "rates": {},
        "steps": None,
        "given": {},
        "probes": [],
        "evaluation": None,
        "ranks": [],
        "processes": [],
        "ended": "running",
        "recorded_work": None,
        "wall": None,
        "goodput": None,
        "verdict": dict(NO_STEPS),
        "advice": [],
        "alerts": [],
        "findings": [],
        "overhead": {"events": 0, "seconds": 0.0, "share": 0.0, "parts": {}},
        "dropped": {},
        "warnings": [],
    }


def block_as_json(block: Any) -> Any:
    """Return the JSON form of a block of a report section: ``{"block": "Table", "heads": ["step"],
    ...}``. A string, which stands for a line of text, stays a string.

    Raises:
        TypeError: The value is not a block, or contains a value that JSON cannot hold.
    """
    if not isinstance(block, str) and not (isinstance(block, tuple) and hasattr(block, "_fields")):
        raise TypeError(
            f"{type(block).__name__} is no block of a section; they are in voirkit.report.sections."
        )
    return _value_as_json(block)


def _value_as_json(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = {key: getattr(value, key) for key in value._fields}
        inner: dict[str, Any] = {}
        if isinstance(fields.get("blocks"), (list, tuple)):
            inner["blocks"] = [block_as_json(block) for block in fields.pop("blocks")]
        fields = {key: _value_as_json(field) for key, field in fields.items()}
        return {"block": type(value).__name__, **fields, **inner}
    if isinstance(value, dict):
        items = [(str(key), _value_as_json(item)) for key, item in value.items()]
        return {"block": "dict", "items": items} if "block" in dict(items) else dict(items)
    if isinstance(value, (list, tuple)):
        return [_value_as_json(item) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    if getattr(value, "ndim", None) == 0:  # a scalar of numpy or torch
        return _value_as_json(value.item())
    raise TypeError(
        f"{type(value).__name__} is nothing that a section can show; blocks are in"
        " voirkit.report.sections."
    )


def add_trace(summary: dict[str, Any], totals: Any, duration_s: float) -> None:
    """Add the overhead of recording and the counts of dropped events to a summary.

    Args:
        summary: The summary to modify.
        totals: The return value of ``recorder.end()``: ``events`` (number of records), ``dropped``
            (counts by name), and ``parts`` (seconds of overhead by cause).
        duration_s: The duration of the run.
    """
    summary["overhead"] = overhead(totals.events, duration_s, totals.parts, {})
    summary["dropped"] = {**summary["dropped"], **totals.dropped}


def overhead(
    events: int, duration_s: float, measured: Mapping[str, float], estimated: Mapping[str, float]
) -> dict[str, Any]:
    """Return ``overhead`` of a summary: the time that recording adds to a run, in all processes.

    ``seconds`` and ``share`` count only overhead that continues while the script runs. Parts that
    occur once per run are listed in ``parts``, but are not included in these two.

    Args:
        events: The number of records.
        duration_s: The duration of the run, or the sum over its ranks.
        measured: Seconds of overhead by cause, as timed.
        estimated: Seconds of overhead by cause, estimated from the number of records.
    """
    parts: dict[str, Any] = {
        name: {"seconds": part_s, **_QUALITY.get(name, {})} for name, part_s in measured.items()
    }
    for name, part_s in estimated.items():
        parts[name] = {"seconds": part_s + measured.get(name, 0.0), "estimated": True}
    seconds = sum(part["seconds"] for name, part in parts.items() if name not in _PAID_ONCE)
    return {
        "events": events,
        "seconds": seconds,
        "share": seconds / duration_s if duration_s > 0 else 0.0,
        "parts": parts,
    }


def throughput(rate: Mapping[str, Any]) -> float:
    """Return the value of a rate that reports show: items per second over the whole time. For
    runs recorded by older versions, return the median rate, which is all they have."""
    value = rate.get("value", rate["median"])
    return float(value)


# Names for time outside of training steps. The first three are parts of the wall time, and apply to
# the process that trains. OUTSIDE applies to processes without steps.
STARTUP, EVALUATION, BETWEEN, OUTSIDE = "startup", "evaluation", "between", "before and after"


# The parts of the wall time of a run, in display order; docs/report.md explains each.
PARTS = (
    "startup",
    "import",
    "script",
    "training",
    "evaluation",
    "workers",
    "checkpoint",
    "compile",
    "gc",
    "between",
    "restart",
    "exit",
)


def evaluation_name(evaluation: Mapping[str, Any] | None) -> str:
    """Return the word for evaluation in reports: ``evaluation``, or ``inference`` if most of it
    may be something else.

    Args:
        evaluation: The key ``evaluation`` of a summary. Its ``inference`` is the share of the time
            spent in direct calls of a model in training mode. Such calls are a rollout, samples of
            a generator, or an evaluation without ``eval()``.
    """
    # ``evaluation`` may have any type: reports are made of damaged summaries too
    share = evaluation.get("inference", 0.0) if isinstance(evaluation, dict) else 0.0
    return "inference" if share > limits.INFERENCE else "evaluation"


def account(
    seconds: Mapping[str, float], total_s: float, before_script_s: float | None = None
) -> dict[str, Any]:
    """Return ``wall`` of a summary: ``{"total_s", "parts": {name: {"total_s", "share"}}}``.

    The parts are disjoint. They are scaled so that they add up to the run's duration. Unscaled they
    may not: clocks are read one after the other, and a training thread may outlive the script.

    Args:
        seconds: Seconds by part; values that are not positive are left out.
        total_s: The run's duration.
        before_script_s: The portion of ``startup`` before the script's first line.
    """
    measured_s = {name: float(seconds[name]) for name in PARTS if seconds.get(name, 0.0) > 0}
    factor = total_s / sum(measured_s.values()) if measured_s else 0.0
    parts: dict[str, Any] = {}
    for name, part_s in measured_s.items():
        scaled_s = part_s * factor
        parts[name] = {"total_s": scaled_s, "share": scaled_s / total_s if total_s else 0.0}
    if before_script_s is not None and "startup" in parts:
        parts["startup"]["before_script_s"] = min(before_script_s, parts["startup"]["total_s"])
    return {"total_s": total_s, "parts": parts}


class Moments:
    """The times at which a run began, its script began, and its script ended, in nanoseconds of
    ``time.perf_counter_ns``.

    Args:
        manifest: The contents of ``run.json``. In runs of older versions it lacks ``moments``: the
            run and the script then count as begun when the manifest was created.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        moments = manifest.get("moments") or {}
        record = (manifest.get("clocks") or {}).get("perf_counter_ns")
        # start of the Python process, or of voirkit if the former is not known; None if neither is
        # known
        self.begun: int | None = moments.get("begun_ns", record)
        # start of the script's first line; None if not known
        self.script: int | None = moments.get("script_ns", record)
        # end of the script; None if it did not end
        self.script_ended: int | None = moments.get("script_ended_ns")
        # seconds that the script's own process spent in imports; None if it did not end
        self.imported_s: float | None = (
            moments["imports_ns"] * 1e-9 if "imports_ns" in moments else None
        )


def without_steps(
    moments: Moments, total_s: float, spent_s: Mapping[str, float] | None = None
) -> dict[str, Any] | None:
    """Return ``wall`` of the summary of a run without known steps; None if its start time is not
    known.

    Args:
        moments: The start and end times of the run.
        total_s: The run's duration.
        spent_s: Seconds of the script's time by known part: import, checkpoint, compile, gc.
    """
    if moments.begun is None or moments.script is None:
        return None
    seconds = dict(spent_s or {})
    startup_s = (moments.script - moments.begun) * 1e-9
    exit_s = 0.0
    if moments.script_ended is not None:
        end_ns = moments.begun + total_s * 1e9
        exit_s = max(end_ns - moments.script_ended, 0.0) * 1e-9
    script_s = total_s - startup_s - exit_s - sum(seconds.values())
    seconds |= {"startup": startup_s, "script": script_s, "exit": exit_s}
    return account(seconds, total_s, startup_s)


def has_losses_of_evaluation(summary: Mapping[str, Any]) -> bool:
    """True if the recorded losses include losses of an evaluation, because the evaluation calls
    ``backward`` too, as for adversarial attacks."""
    steps, evaluation, loss = (summary.get(key) or {} for key in ("steps", "evaluation", "loss"))
    return bool(evaluation.get("takes_gradients")) and loss.get("n", 0) > steps.get("n", 0)


def loss_note(loss: Mapping[str, Any]) -> str:
    """Return a note on the first and last loss in a summary: to which optimizer they belong, and
    how they relate to the loss of an update if that has several backward passes."""
    notes = []
    if loss.get("times"):
        notes.append(f"as backward gets it, 1/{loss['times']} of a batch's")
    elif loss.get("divided"):
        notes.append(f"as backward gets it, 1/{loss['passes']} of an update's")
    elif loss.get("passes"):
        notes.append(f"as backward gets it, {loss['passes']} times an update")
    rows = loss.get("series")
    if rows:
        most_updated = max(rows, key=lambda row: (row["updates"], row["optimizer"]))
        notes.append(f"of optimizer {most_updated['optimizer'] + 1} of {len(rows)}")
    return f" ({'; '.join(notes)})" if notes else ""


def is_contended(processors: Mapping[str, Any] | None) -> bool:
    """True if other programs used so much of the CPUs that the measured times are not those of the
    script alone."""
    processors = processors or {}
    waited, other_work = processors.get("waited_share"), processors.get("others_share")
    if waited is None or other_work is None:
        return False
    return bool(waited >= limits.WAITED and other_work >= limits.OTHER_PROGRAMS)


def median(values: Sequence[float]) -> float:
    """Return the median of values; there must be at least one."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def training_counts(optimizer_steps: int, backward_passes: int) -> str:
    """Return the counts in words: ``3 optimizer steps and 12 backward passes``. A count of zero is
    left out."""
    words = []
    if optimizer_steps:
        words.append(f"{optimizer_steps:,} optimizer step{'s' if optimizer_steps != 1 else ''}")
    if backward_passes:
        words.append(f"{backward_passes:,} backward pass{'es' if backward_passes != 1 else ''}")
    return " and ".join(words)


def saving(win: float | None) -> str:
    """Return the estimated saving of a piece of advice in words; empty if it is not known.

    Args:
        win: The saving as a share of the run. It may be below 1 %, as in a run that consists mostly
            of imports.
    """
    if win is None:
        return ""
    share = "less than 1%" if win < 0.01 else f"about {win:.0%}"
    return f"estimated saving: {share} of the run"


# the JSON Schema of summary.json, which is not used during a run


SCHEMA_FILE = "summary.schema.json"


def summary_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of ``summary.json``, with voirkit's own keys and those
    of all installed instruments.

    Two keywords are not part of the standard, and validators ignore them: ``unit``, the unit of a
    value, and ``key``, the meaning of the keys of a mapping.
    """
    import json
    from importlib import resources

    from voirkit.plugins import installed_instruments

    def read(package: str) -> dict[str, Any]:
        text = resources.files(package).joinpath(SCHEMA_FILE).read_text(encoding="utf-8")
        document: dict[str, Any] = json.loads(text)
        return document

    schema = read("voirkit.runs")
    packages = dict.fromkeys(instrument.schema for instrument in installed_instruments())
    for package in packages:
        if package:
            schema["properties"].update(read(package)["properties"])
    return schema
