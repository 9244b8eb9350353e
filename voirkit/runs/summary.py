"""``summary.json``: what a run came to. The phases of a step, the account of the wall time and the overhead: pure functions.

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
    "next": "If it does train, tell with probes in a voirfile.py: voirkit init SCRIPT writes one to start from.",
    "evidence": {"steps": 0},
}


def no_steps(unrecorded: Sequence[str]) -> dict[str, Any]:
    """The verdict on such a run. ``unrecorded``: commands of processes that it has started, and that may have trained unseen."""
    if not unrecorded:
        return dict(NO_STEPS)
    return {
        **NO_STEPS,
        "because": f"No training step was seen. The script has started processes that voirkit does not look into: {', '.join(unrecorded)}.",
        "next": "Have them run under voirkit: voirkit --follow SHELL-SCRIPT, or python -m voirkit SCRIPT in place of python SCRIPT.",
    }


ONCE = ("start", "completing")  # parts of the overhead that a run pays once, however long it is
# Of parts of the overhead that are not as they were timed. What tracemalloc adds to each of python's allocations nothing counts.
_QUALITY: dict[str, dict[str, bool]] = {"sampling": {"estimated": True}, "tracemalloc": {"unmeasured": True}}


def empty(version: str) -> dict[str, Any]:
    """A summary with the keys of every run, null for what nothing has measured; instruments add theirs."""
    return {
        "schema": SCHEMA, "voirkit": version, "command": [], "exit_code": None, "duration_s": None, "world_size": 1, "rates": {},
        "steps": None, "given": {}, "probes": [], "evaluation": None, "ranks": [], "processes": [], "ended": "running",
        "recorded_work": None, "wall": None, "goodput": None, "verdict": dict(NO_STEPS), "advice": [], "alerts": [], "findings": [],
        "overhead": {"events": 0, "seconds": 0.0, "share": 0.0, "parts": {}}, "dropped": {}, "warnings": [],
    }  # fmt: skip


def block_as_json(block: Any) -> Any:
    """A block of a section as it stands in a summary: ``{"block": "Table", "heads": ["step"], ...}``; a string is a line of text.

    Raises:
        TypeError: It is none, or holds what JSON cannot.
    """
    if not isinstance(block, str) and not (isinstance(block, tuple) and hasattr(block, "_fields")):
        raise TypeError(f"{type(block).__name__} is no block of a section; they are in voirkit.report.sections.")
    return _value_as_json(block)


def _value_as_json(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = {key: getattr(value, key) for key in value._fields}
        inner = {"blocks": [block_as_json(one) for one in fields.pop("blocks")]} if isinstance(fields.get("blocks"), (list, tuple)) else {}
        return {"block": type(value).__name__, **{key: _value_as_json(one) for key, one in fields.items()}, **inner}
    if isinstance(value, dict):
        items = [(str(key), _value_as_json(one)) for key, one in value.items()]
        return {"block": "dict", "items": items} if "block" in dict(items) else dict(items)
    if isinstance(value, (list, tuple)):
        return [_value_as_json(one) for one in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    if getattr(value, "ndim", None) == 0:  # a number of numpy's or torch's
        return _value_as_json(value.item())
    raise TypeError(f"{type(value).__name__} is nothing that a section can show; blocks are in voirkit.report.sections.")


def add_trace(summary: dict[str, Any], totals: Any, duration_s: float) -> None:
    """Put into a summary what recording came to. ``totals``: what ``recorder.end()`` returned: ``events``, ``dropped`` by name, ``parts``:
    seconds by what they were spent on; ``duration_s``: of the run."""
    summary["overhead"] = overhead(totals.events, duration_s, totals.parts, {})
    summary["dropped"] = {**summary["dropped"], **totals.dropped}


def overhead(events: int, duration_s: float, measured: Mapping[str, float], estimated: Mapping[str, float]) -> dict[str, Any]:
    """``overhead`` of a summary: what the run pays for being recorded, in all processes.

    ``share`` and ``seconds`` are of what goes on while the script runs; ``ONCE`` are parts in seconds alone.

    Args:
        duration_s: Of the run, or of all its ranks.
        measured: Seconds by what they were spent on, as they were timed.
        estimated: The same, as they follow from how many records there are.
    """
    parts: dict[str, Any] = {name: {"seconds": spent, **_QUALITY.get(name, {})} for name, spent in measured.items()}
    for name, spent in estimated.items():
        parts[name] = {"seconds": spent + measured.get(name, 0.0), "estimated": True}
    seconds = sum(part["seconds"] for name, part in parts.items() if name not in ONCE)
    return {"events": events, "seconds": seconds, "share": seconds / duration_s if duration_s > 0 else 0.0, "parts": parts}


def throughput(rate: Mapping[str, Any]) -> float:
    """Items over time, the figure of a rate that every report shows. Runs of older versions have the median alone."""
    value = rate.get("value", rate["median"])
    return float(value)


# Of a training step, in the order in which every table, chart and export lists them; docs/steps.md has what each means. They are exclusive,
# and their shares of a step sum to 1; ``other`` is what no other is.
PHASES = ("wait", "transfer", "forward", "backward", "optimizer", "communication", "other")
OUTSIDE = "before and after"  # of the process that trains: outside all of training


def shown_phases(phases: Mapping[str, Any]) -> list[str]:
    """The phases of a summary that a table lists: those it has, but for communication where there was none (one process)."""
    return [name for name in PHASES if name in phases and (name != "communication" or phases[name]["total_s"])]


# Of the wall time of a run, in their order. What each means is in docs/report.md.
PARTS = ("startup", "import", "script", "training", "evaluation", "workers", "checkpoint", "compile", "gc", "between", "restart", "exit")


def evaluation_name(evaluation: Mapping[str, Any] | None) -> str:
    """What evaluation is called in reports: ``inference`` where most of it may be none.

    Args:
        evaluation: Of a summary. ``inference``: the share of its time that is model calls by hand in training mode: a rollout, a sample of
            a generator, or an evaluation without ``eval()``.
    """
    share = evaluation.get("inference", 0.0) if isinstance(evaluation, dict) else 0.0  # reports are drawn of damaged summaries too
    return "inference" if share > limits.INFERENCE else "evaluation"


def account(seconds: Mapping[str, float], total_s: float, before_script_s: float | None = None) -> dict[str, Any]:
    """``wall`` of a summary: ``{"total_s", "parts": {name: {"total_s", "share"}}}``. Parts are exclusive, and sum to the run's duration.

    Args:
        seconds: Of parts; what is not positive is left out.
        total_s: The run's duration, to which the parts are made to sum: clocks are read one after the other, and a thread that trains may
            outlive the script.
        before_script_s: Of ``startup``, what passed before the script's first line.
    """
    own = {name: float(seconds[name]) for name in PARTS if seconds.get(name, 0.0) > 0}
    factor = total_s / sum(own.values()) if own else 0.0
    parts: dict[str, Any] = {
        name: {"total_s": spent * factor, "share": spent * factor / total_s if total_s else 0.0} for name, spent in own.items()
    }
    if before_script_s is not None and "startup" in parts:
        parts["startup"]["before_script_s"] = min(before_script_s, parts["startup"]["total_s"])
    return {"total_s": total_s, "parts": parts}


class Moments:
    """When a run began, when its script did, and when its script ended; nanoseconds of ``time.perf_counter_ns``.

    Args:
        manifest: ``run.json``. That of an older version has no ``moments``: the run begins where its record does.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        moments = manifest.get("moments") or {}
        record = (manifest.get("clocks") or {}).get("perf_counter_ns")
        self.begun: int | None = moments.get("begun_ns", record)  # when python was started, or, where that is not known, when voirkit was
        self.script: int | None = moments.get("script_ns", record)  # when the script's first line ran
        self.script_ended: int | None = moments.get("script_ended_ns")  # None if it did not come to its end
        # what the script's own process spent on imports; None if it did not come to its end
        self.imported_s: float | None = moments["imports_ns"] * 1e-9 if "imports_ns" in moments else None


def without_steps(moments: Moments, total_s: float, spent_s: Mapping[str, float] | None = None) -> dict[str, Any] | None:
    """The account of a run in which no step was seen; None if nothing is known of when it began. ``spent_s``: time of the script's that is
    known: import, checkpoint, compile, gc."""
    if moments.begun is None or moments.script is None:
        return None
    ended = moments.begun + total_s * 1e9
    startup = (moments.script - moments.begun) * 1e-9
    exit_ = max(ended - moments.script_ended, 0.0) * 1e-9 if moments.script_ended is not None else 0.0
    script = total_s - startup - exit_ - sum((spent_s or {}).values())
    return account({**(spent_s or {}), "startup": startup, "script": script, "exit": exit_}, total_s, startup)


def has_losses_of_evaluation(summary: Mapping[str, Any]) -> bool:
    """Whether some of the losses are those of an evaluation that calls ``backward`` too (attacks)."""
    steps, evaluation, loss = (summary.get(key) or {} for key in ("steps", "evaluation", "loss"))
    return bool(evaluation.get("takes_gradients")) and loss.get("n", 0) > steps.get("n", 0)


def loss_note(loss: Mapping[str, Any]) -> str:
    """What is to be said of the first and last loss of a summary: whose they are, and what of them ``backward`` gets."""
    notes = []
    if loss.get("times"):
        notes.append(f"as backward gets it, 1/{loss['times']} of a batch's")
    elif loss.get("divided"):
        notes.append(f"as backward gets it, 1/{loss['passes']} of an update's")
    elif loss.get("passes"):
        notes.append(f"as backward gets it, {loss['passes']} times an update")
    if rows := loss.get("series"):
        most = max(rows, key=lambda row: (row["updates"], row["optimizer"]))
        notes.append(f"of optimizer {most['optimizer'] + 1} of {len(rows)}")
    return f" ({'; '.join(notes)})" if notes else ""


def is_contended(processors: Mapping[str, Any] | None) -> bool:
    """Whether other work held the processors, so that the times of the run are not the script's own."""
    waited, others = (processors or {}).get("waited_share"), (processors or {}).get("others_share")
    return waited is not None and others is not None and waited >= limits.WAITED and others >= limits.OTHERS


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
    """What a piece of advice saves, in words; nothing where nobody can know. Of a run that is nearly all imports no advice saves much."""
    if win is None:
        return ""
    return f"estimated saving: {'less than 1%' if win < 0.01 else f'about {win:.0%}'} of the run"


# its JSON Schema, which no run asks for


SCHEMA_FILE = "summary.schema.json"


def summary_schema() -> dict[str, Any]:
    """The JSON Schema of ``summary.json``, of draft 2020-12: voirkit's own keys, and those of all installed instruments.

    Two words are not of the standard, and validators pass over them: ``unit`` of a figure, and ``key``, what the keys of a mapping are.
    """
    import json
    from importlib import resources

    from voirkit.plugins import installed_instruments

    def read(package: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(resources.files(package).joinpath(SCHEMA_FILE).read_text(encoding="utf-8"))
        return document

    schema = read("voirkit.runs")
    for package in dict.fromkeys(instrument.schema for instrument in installed_instruments() if instrument.schema):
        schema["properties"].update(read(package)["properties"])
    return schema
