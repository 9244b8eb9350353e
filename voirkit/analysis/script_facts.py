"""Facts of how a script trains: advice is held against them, so that nothing is advised that the
script does already."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import NONE, Array, distinct, outer_first
from voirkit.analysis.steps import FORWARD, Steps, Table, Timeline
from voirkit.analysis.training_threads import outermost
from voirkit.analysis.work_times import time_of_spans_until
from voirkit.phase_table import phase_of_span

if TYPE_CHECKING:
    from voirkit.analysis.phases import Records

_NS = 1e-9
_NO_EPISODE = np.iinfo(np.int64).min
_OF_OPTIMIZER = ("optimizer", "fused", "foreach", "device", "bf16")


def script_facts(records: Records, rows: Array, steps: Steps, leads_ns: Array) -> dict[str, Any]:
    """The facts of the script.

    Args:
        records: Of all ranks.
        rows: Indices of those of the thread that trains.
        steps: Its steps.
        leads_ns: When the optimizer that leads stepped.

    Returns:
        ``optimizers``: ``{"optimizer", "fused", "foreach", "device", "bf16"}`` of each, as far as
        known (``bf16``: the processors have instructions for it); ``autocast``: precisions that
        were switched on; ``compiled``: whether a module was compiled; ``updates``: in how many of
        the steps the optimizer that leads stepped, if not in all; ``calls_a_step``: how often a
        step calls a model (median). What is not known is left out.
    """
    autocasts = _arguments_of(records, _rows_of(records, rows, "script", "autocast"))
    calls = _rows_of(records, rows, "compute", "forward")
    is_compiled = any(call.get("compiled") for call in _arguments_of(records, calls))
    precisions = {str(cast["dtype"]) for cast in autocasts if "dtype" in cast}
    calls_a_step = _calls_a_step(records.start_ns[calls], steps)
    facts = {
        "optimizers": _optimizers(records, rows) or None,
        "autocast": sorted(precisions) or None,
        "compiled": is_compiled or None,
        "calls_a_step": calls_a_step,
        "updates": _updates(leads_ns, steps),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def _rows_of(records: Records, rows: Array, category: str, name: str) -> Array:
    """Those of the records that have a name."""
    numbers = {name: number for number, name in enumerate(records.names)}
    return rows[records.name[rows] == numbers.get((category, name), -1)]


def _arguments_of(records: Records, rows: Array) -> list[Mapping[str, Any]]:
    """The arguments of some records, each once."""
    return [records.arguments[i] for i in distinct(records.args[rows])]


def _optimizers(records: Records, rows: Array) -> list[dict[str, Any]]:
    """The facts of each optimizer, by its number."""
    by_number = {}
    for step in _arguments_of(records, _rows_of(records, rows, "compute", "step")):
        if "optimizer" in step:
            by_number[step.get("which", 0)] = step
    return [
        {key: step[key] for key in _OF_OPTIMIZER if key in step}
        for _, step in sorted(by_number.items())
    ]


def _calls_a_step(calls_ns: Array, steps: Steps) -> float | None:
    """The number of model calls of a step, by the median; None if that is not known."""
    if not len(steps.train) or not len(calls_ns):
        return None
    step = steps.training_steps_at(calls_ns)
    counts = np.bincount(step[step != NONE], minlength=len(steps.train))
    return float(np.median(counts))


def _updates(leads_ns: Array, steps: Steps) -> int | None:
    """The number of steps in which the optimizer that leads stepped; None if that is in all, or not
    known."""
    train = steps.train
    if not len(train) or not len(leads_ns):
        return None
    step = steps.training_steps_at(leads_ns)
    is_inside = step != NONE
    # What a loop that reads ahead trains on when it has no more batches lies in no step.
    is_outside = (leads_ns >= train.start_ns[0]) & ~is_inside
    updates = len(np.unique(step[is_inside])) + int(is_outside.sum())
    return updates if 0 < updates < len(train) else None


def in_training_mode(timeline: Timeline, evaluation: Table) -> float:
    """Share of the evaluation's time that is model calls by hand, without gradients, of modules in
    training mode.

    Rollouts of reinforcement learning and samples of a generator are such, and an evaluation for
    which nobody calls ``eval()``.
    """
    total_ns = int(evaluation.time_ns.sum())
    if not total_ns:
        return 0.0
    is_by_hand = evaluation.items < 0  # a loop over a loader knows how much a batch holds
    for begin_ns, end_ns in timeline.annotated:
        is_by_hand &= (evaluation.start_ns < begin_ns) | (evaluation.start_ns >= end_ns)
    is_call = (timeline.meaning == FORWARD) & timeline.training & ~timeline.grad
    calls_ns = timeline.start_ns[is_call]
    n_at_start = np.searchsorted(calls_ns, evaluation.start_ns)
    is_called = np.searchsorted(calls_ns, evaluation.end_ns) > n_at_start
    return int(evaluation.time_ns[is_by_hand & is_called].sum()) / total_ns


def first_batches(records: Records, waits: Array, trained: Collection[int]) -> dict[str, float]:
    """The times that each loop over the loader waited for its first batch, in which its workers
    start; without garbage collections.

    Args:
        records: Of all ranks.
        waits: Indices of the records of what was waited for, ascending by start.
        trained: The iterators that training used.

    Returns:
        ``loops``; ``first_s``: what they waited for their iterators and first batches; ``late_s``:
        what that is more than for usual later batches of the same loop, of several by the median,
        so that chance makes none late; ``wait_s``: of all batches. Empty for none.
    """
    of_arguments = []
    for arguments in records.arguments:
        number = arguments.get("episode")
        of_arguments.append(number if number in trained else _NO_EPISODE)
    episode = np.array(of_arguments, np.int64)[records.args[waits]]
    is_trained = episode != _NO_EPISODE
    kind = np.array([name for _, name in records.names])[records.name[waits]]
    duration_ns = records.duration_ns[waits] - _collecting_ns(records, waits)
    makings = np.flatnonzero((kind == "iter") & is_trained)
    fetches = np.flatnonzero((kind == "fetch") & is_trained)
    loops, first, loop_of = np.unique(episode[fetches], return_index=True, return_inverse=True)
    if not len(loops):
        return {}
    firsts_ns = duration_ns[fetches[first]]
    later_ns = np.delete(duration_ns[fetches], first)
    makings = makings[np.isin(episode[makings], loops)]
    np.add.at(firsts_ns, np.searchsorted(loops, episode[makings]), duration_ns[makings])
    late_ns = _late_ns(firsts_ns, later_ns, np.delete(loop_of.ravel(), first))
    waited_ns = int(firsts_ns.sum() + later_ns.sum())
    return {
        "loops": len(firsts_ns),
        "first_s": int(firsts_ns.sum()) * _NS,
        "late_s": late_ns * _NS,
        "wait_s": waited_ns * _NS,
    }


def _late_ns(firsts_ns: Array, later_ns: Array, loop_of: Array) -> float:
    """The time that first batches took more than later ones of the same loop.

    Args:
        firsts_ns: By loop, how long its first batch took.
        later_ns: How long each later batch took.
        loop_of: By later batch, its loop.
    """
    n_loops = len(firsts_ns)
    ends = np.cumsum(np.bincount(loop_of, minlength=n_loops))[:-1]
    by_loop = np.split(later_ns[np.argsort(loop_of, kind="stable")], ends)
    usual_ns = float(np.median(later_ns)) if len(later_ns) else 0.0
    medians_ns = [np.median(times_ns) if len(times_ns) else usual_ns for times_ns in by_loop]
    excess_ns = firsts_ns - np.array(medians_ns)
    typical_ns = n_loops * max(float(np.median(excess_ns)), 0.0)
    return min(typical_ns, float(np.maximum(excess_ns, 0.0).sum()))


def _collecting_ns(records: Records, waits: Array) -> Array:
    """The time in which garbage was collected in each of some spans of a process; shape as
    ``waits``."""
    is_collection = np.array([phase_of_span(*name) == "gc" for name in records.names], bool)
    is_own = np.isin(records.process, records.process[waits])
    collections = np.flatnonzero(is_collection[records.name] & is_own)
    start_ns, duration_ns = records.start_ns[collections], records.duration_ns[collections]
    order = outer_first(start_ns, duration_ns)
    pauses = outermost(start_ns[order], start_ns[order] + duration_ns[order])
    begin_ns = records.start_ns[waits]
    end_ns = begin_ns + records.duration_ns[waits]
    return time_of_spans_until(pauses, end_ns) - time_of_spans_until(pauses, begin_ns)
