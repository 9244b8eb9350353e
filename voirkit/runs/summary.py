"""``summary.json``, the results of a run: the phases of a step, the account of the wall time and
the overhead. Pure functions.

Loads nothing: every run needs it.
"""

from __future__ import annotations

from voirkit.runs import thresholds as limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

SCHEMA = 1

# The verdict on a run of which no training step is known.
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
    """The verdict on such a run. ``unrecorded``: commands of processes that it has started, and
    that may have trained unseen."""
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


# parts of the overhead that a run pays once, however long it is
_PAID_ONCE = ("start", "completing")
# Of parts of the overhead that are not as they were timed. What tracemalloc adds to each of
# python's allocations nothing counts.
_QUALITY: dict[str, dict[str, bool]] = {
    "sampling": {"estimated": True},
    "tracemalloc": {"unmeasured": True},
}


def empty(version: str) -> dict[str, Any]:
    """A summary with the keys of every run, null for what nothing has measured; instruments add
    theirs."""
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
    """A block of a section as it stands in a summary: ``{"block": "Table", "heads": ["step"],
    ...}``; a string is a line of text.

    Raises:
        TypeError: It is none, or holds what JSON cannot.
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
    if getattr(value, "ndim", None) == 0:  # a number of numpy's or torch's
        return _value_as_json(value.item())
    raise TypeError(
        f"{type(value).__name__} is nothing that a section can show; blocks are in"
        " voirkit.report.sections."
    )


def add_trace(summary: dict[str, Any], totals: Any, duration_s: float) -> None:
    """Put the cost of recording and what was dropped into a summary. ``totals``: what
    ``recorder.end()`` returned: ``events``, ``dropped`` by name, ``parts``: seconds by what they
    were spent on; ``duration_s``: of the run."""
    summary["overhead"] = overhead(totals.events, duration_s, totals.parts, {})
    summary["dropped"] = {**summary["dropped"], **totals.dropped}


def overhead(
    events: int, duration_s: float, measured: Mapping[str, float], estimated: Mapping[str, float]
) -> dict[str, Any]:
    """``overhead`` of a summary: what the run pays for being recorded, in all processes.

    ``share`` and ``seconds`` are of what goes on while the script runs; the parts that are paid
    once are in seconds alone.

    Args:
        duration_s: Of the run, or of all its ranks.
        measured: Seconds by what they were spent on, as they were timed.
        estimated: The same, as they follow from how many records there are.
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
    """Items over time, the figure of a rate that every report shows. Runs of older versions have
    the median alone."""
    value = rate.get("value", rate["median"])
    return float(value)


# Of the process that trains, outside of its steps, as parts of the wall time are called; and of one
# that trains nothing.
STARTUP, EVALUATION, BETWEEN, OUTSIDE = "startup", "evaluation", "between", "before and after"


# Of the wall time of a run, in their order. What each means is in docs/report.md.
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
    """The name of evaluation in reports: ``inference`` where most of it may be none.

    Args:
        evaluation: Of a summary. ``inference``: the share of its time that is model calls by hand
            in training mode: a rollout, a sample of a generator, or an evaluation without
            ``eval()``.
    """
    # reports are drawn of damaged summaries too
    share = evaluation.get("inference", 0.0) if isinstance(evaluation, dict) else 0.0
    return "inference" if share > limits.INFERENCE else "evaluation"


def account(
    seconds: Mapping[str, float], total_s: float, before_script_s: float | None = None
) -> dict[str, Any]:
    """``wall`` of a summary: ``{"total_s", "parts": {name: {"total_s", "share"}}}``. Parts are
    exclusive, and sum to the run's duration.

    Args:
        seconds: Of parts; what is not positive is left out.
        total_s: The run's duration, to which the parts are made to sum: clocks are read one after
            the other, and a thread that trains may outlive the script.
        before_script_s: Of ``startup``, what passed before the script's first line.
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
    """The moments at which a run began, its script did, and its script ended; nanoseconds of
    ``time.perf_counter_ns``.

    Args:
        manifest: ``run.json``. That of an older version has no ``moments``: the run begins where
            its record does.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        moments = manifest.get("moments") or {}
        record = (manifest.get("clocks") or {}).get("perf_counter_ns")
        # when python was started, or, where that is not known, when voirkit was
        self.begun: int | None = moments.get("begun_ns", record)
        # when the script's first line ran
        self.script: int | None = moments.get("script_ns", record)
        # None if it did not end
        self.script_ended: int | None = moments.get("script_ended_ns")
        # what the script's own process spent on imports; None if it did not end
        self.imported_s: float | None = (
            moments["imports_ns"] * 1e-9 if "imports_ns" in moments else None
        )


def without_steps(
    moments: Moments, total_s: float, spent_s: Mapping[str, float] | None = None
) -> dict[str, Any] | None:
    """The account of a run in which no step was seen; None if nothing is known of when it began.
    ``spent_s``: time of the script's that is known: import, checkpoint, compile, gc."""
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
    """True if some of the losses are those of an evaluation that calls ``backward`` too
    (attacks)."""
    steps, evaluation, loss = (summary.get(key) or {} for key in ("steps", "evaluation", "loss"))
    return bool(evaluation.get("takes_gradients")) and loss.get("n", 0) > steps.get("n", 0)


def loss_note(loss: Mapping[str, Any]) -> str:
    """A note on the first and last loss of a summary: whose they are, and what of them ``backward``
    gets."""
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
    """True if other work held the processors, so that the times of the run are not the script's
    own."""
    processors = processors or {}
    waited, other_work = processors.get("waited_share"), processors.get("others_share")
    if waited is None or other_work is None:
        return False
    return bool(waited >= limits.WAITED and other_work >= limits.OTHER_PROGRAMS)


def median(values: Sequence[float]) -> float:
    """The value in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def training_counts(optimizer_steps: int, backward_passes: int) -> str:
    """``3 optimizer steps and 12 backward passes``; of what there is none nothing is said."""
    words = []
    if optimizer_steps:
        words.append(f"{optimizer_steps:,} optimizer step{'s' if optimizer_steps != 1 else ''}")
    if backward_passes:
        words.append(f"{backward_passes:,} backward pass{'es' if backward_passes != 1 else ''}")
    return " and ".join(words)


def saving(win: float | None) -> str:
    """The saving of a piece of advice, in words; empty where nobody can know it. Of a run that is
    nearly all imports no advice saves much."""
    if win is None:
        return ""
    share = "less than 1%" if win < 0.01 else f"about {win:.0%}"
    return f"estimated saving: {share} of the run"


# its JSON Schema, which no run asks for


SCHEMA_FILE = "summary.schema.json"


def summary_schema() -> dict[str, Any]:
    """The JSON Schema of ``summary.json``, of draft 2020-12: voirkit's own keys, and those of all
    installed instruments.

    Two words are not of the standard, and validators pass over them: ``unit`` of a figure, and
    ``key``, what the keys of a mapping are.
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
