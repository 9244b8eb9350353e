"""Facts about how a script trains, so that advice leaves out what the script does already."""

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
    """Return the facts about a script. Facts that are not known are left out.

    Args:
        records: The phases of all ranks.
        rows: Indices of the records of the threads that train.
        steps: The steps of these threads.
        leads_ns: Starts of the steps of the leading optimizer, which is the first one until another
            takes over (``phases.leading_optimizers_ns``).

    Returns:
        ``optimizers``: for each optimizer a dict of ``optimizer``, ``fused``, ``foreach``,
        ``device`` and ``bf16`` (True if the processors have bfloat16 instructions), as far as
        known.
        ``autocast``: the precisions of autocast that were in use. ``compiled``: True if a module
        was compiled. ``updates``: the number of steps in which the leading optimizer stepped, if
        not in all. ``calls_a_step``: the number of model calls in a step (median).
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
    """Return the rows of the records that have the given category and name."""
    numbers = {name: number for number, name in enumerate(records.names)}
    return rows[records.name[rows] == numbers.get((category, name), -1)]


def _arguments_of(records: Records, rows: Array) -> list[Mapping[str, Any]]:
    """Return the distinct arguments of some records."""
    return [records.arguments[i] for i in distinct(records.args[rows])]


def _optimizers(records: Records, rows: Array) -> list[dict[str, Any]]:
    """Return the known facts of each optimizer, in the order of the optimizers' numbers."""
    by_number = {}
    for step in _arguments_of(records, _rows_of(records, rows, "compute", "step")):
        if "optimizer" in step:
            by_number[step.get("which", 0)] = step
    return [
        {key: step[key] for key in _OF_OPTIMIZER if key in step}
        for _, step in sorted(by_number.items())
    ]


def _calls_a_step(calls_ns: Array, steps: Steps) -> float | None:
    """Return the median number of model calls in a step; None if it is not known."""
    if not len(steps.train) or not len(calls_ns):
        return None
    step = steps.training_steps_at(calls_ns)
    counts = np.bincount(step[step != NONE], minlength=len(steps.train))
    return float(np.median(counts))


def _updates(leads_ns: Array, steps: Steps) -> int | None:
    """Return the number of steps in which the leading optimizer stepped; None if it stepped in all
    steps, or if the number is not known."""
    train = steps.train
    if not len(train) or not len(leads_ns):
        return None
    step = steps.training_steps_at(leads_ns)
    is_inside = step != NONE
    # A loop that reads ahead trains on its last batches after its last request. These optimizer
    # steps lie in no training step, and are added.
    is_outside = (leads_ns >= train.start_ns[0]) & ~is_inside
    updates = len(np.unique(step[is_inside])) + int(is_outside.sum())
    return updates if 0 < updates < len(train) else None


def in_training_mode(timeline: Timeline, evaluation: Table) -> float:
    """Return the share of the evaluation's time in steps that call a module in training mode,
    without gradients. Steps of loops over loaders and annotated evaluations do not count.

    Examples are rollouts of reinforcement learning, samples of a generator, and evaluations for
    which the script does not call ``eval()``.
    """
    total_ns = int(evaluation.time_ns.sum())
    if not total_ns:
        return 0.0
    is_by_hand = evaluation.items < 0  # the size of a batch is known only in loops over loaders
    for begin_ns, end_ns in timeline.annotated:
        is_by_hand &= (evaluation.start_ns < begin_ns) | (evaluation.start_ns >= end_ns)
    is_call = (timeline.meaning == FORWARD) & timeline.training & ~timeline.grad
    calls_ns = timeline.start_ns[is_call]
    n_at_start = np.searchsorted(calls_ns, evaluation.start_ns)
    is_called = np.searchsorted(calls_ns, evaluation.end_ns) > n_at_start
    return int(evaluation.time_ns[is_by_hand & is_called].sum()) / total_ns


def first_batches(records: Records, waits: Array, trained: Collection[int]) -> dict[str, float]:
    """Return how long loops over a loader waited for their first batches, while the workers start.
    Garbage collections in these waits do not count.

    Args:
        records: The records of all ranks.
        waits: Indices of the records of waits for loaders, ascending by start.
        trained: The iterators that training used.

    Returns:
        ``loops``, the number of loops; ``first_s``, the wait for their iterators and first batches;
        ``late_s``, the part of it that exceeds the usual wait for later batches of the same loop
        (bounded by the median over the loops, so that a chance delay does not count); ``wait_s``,
        the wait for all batches. Empty if there was no loop.
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
    """Return the total wait for first batches beyond the median wait for later batches of the same
    loop; at most the median of this excess times the number of loops.

    Args:
        firsts_ns: The wait for the first batch of each loop.
        later_ns: The wait for each later batch.
        loop_of: The index of the loop of each later batch.
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
    """Return the time of garbage collections inside of each of some spans of one process; shape as
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
