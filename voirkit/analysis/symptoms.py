"""What the records of a training tell of common causes: figures alone, as a dictionary that JSON can hold. Rules of instruments judge them.

An entry is there only where there is something to judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import NONE, Array, innermost, outer_first
from voirkit.analysis.segmentation import Kind, Request
from voirkit.analysis.steps import BACKWARD, COMPILE, GC, IMPORT, Steps, Table, Timeline
from voirkit.analysis.work_times import NEVER, first_from
from voirkit.runs.summary import PHASES

if TYPE_CHECKING:
    from voirkit.analysis.phases import Records

_NS = 1e-9
FEW_STEPS = 50  # under which nothing is said of how steps change
_FIFTHS = 5


def symptoms_of(records: Records, chosen: Array, meaning: Array, timeline: Timeline, steps: Steps) -> dict[str, Any]:
    """The figures of one training.

    Args:
        records: Of all ranks.
        chosen: Indices of those of the thread that trains, shape (n,), ascending by start.
        meaning: What each record counts for.
        timeline: Its spans.
        steps: Its steps.

    Returns:
        ``evaluation_graphs``, ``evaluation_mode``, ``evaluated_in_training``, ``iterators``, ``first_batches_s``, ``single_samples``,
        ``slower``, ``collections``: see the function that makes each. Empty where nothing is to be said.
    """
    calls = _ModelCalls(records, chosen)
    batches = _training_batches(timeline, steps.train)
    has_evaluation = bool(len(steps.evaluation)) and any(request.kind is Kind.FETCH for request in timeline.requests)
    held_out = _held_out(timeline, steps) if has_evaluation else np.zeros(len(steps.evaluation), dtype=bool)
    figures = {
        "evaluation_graphs": _evaluation_graphs(calls, steps, held_out),
        "evaluation_mode": _evaluation_mode(calls, steps),
        "evaluated_in_training": _evaluated_in_training(calls, timeline, steps, held_out),
        "iterators": _iterators(timeline, batches),
        "first_batches_s": _first_batches(batches),
        "single_samples": int((steps.evaluation.items == 1).sum()),
        "slower": _slowdown(steps.train),
        "collections": _collections(records, chosen, meaning),
    }
    return {name: value for name, value in figures.items() if value}


class _ModelCalls:
    """Outermost module calls; arrays of shape (n,), ascending.

    Attributes:
        start_ns: When each began.
        training: Whether the module was in training mode.
        grad: Whether it built a graph: gradients were on, and it has parameters to train.
        modal: Whether it was in training mode and has layers that work otherwise in it.
        module: Which class, as an index into all arguments: the first with its name.
    """

    def __init__(self, records: Records, chosen: Array) -> None:
        forward = [number for number, name in enumerate(records.names) if name == ("compute", "forward")]
        calls = chosen[np.isin(records.name[chosen], forward)]
        args = records.args[calls]
        first = {name: i for i, name in reversed([*enumerate(one.get("module") for one in records.arguments)])}
        classes = np.array([first[one.get("module")] for one in records.arguments], dtype=np.int64)
        self.start_ns: Array = records.start_ns[calls]
        self.training = _flag(records, "training", True)[args]
        self.grad = (_flag(records, "grad", True) & ~_flag(records, "frozen", False))[args]
        self.modal = _flag(records, "modal", False)[args]
        self.module: Array = classes[args]

    def counts(self, table: Table, which: Array) -> Array:
        """How many of some calls began in each step; shape (steps,)."""
        start_ns = self.start_ns[which]
        first, last = (np.searchsorted(start_ns, at) for at in (table.start_ns, table.start_ns + table.time_ns))
        found: Array = last - first
        return found

    def trained(self, train: Table) -> Array:
        """The classes of modules that are called with gradients, in training mode, in steps."""
        return np.unique(self.module[_inside(self.start_ns, train) & self.grad & self.training])


def _flag(records: Records, key: str, otherwise: bool) -> Array:
    return np.array([bool(arguments.get(key, otherwise)) for arguments in records.arguments], dtype=bool)


def _held_out(timeline: Timeline, steps: Steps) -> Array:
    """Which evaluated batches come of a loader that training does not read, and are over before anything is trained on again: training
    asks for a batch before the next backward pass; shape (steps,)."""
    evaluation = steps.evaluation
    end_ns = evaluation.start_ns + evaluation.time_ns
    asks = [request for request in timeline.requests if request.kind is Kind.FETCH]
    asked_ns, loaders = (np.array(values, dtype=np.int64) for values in zip(*((r.start_ns, r.loader) for r in asks), strict=True))
    is_of_training = np.isin(loaders, loaders[_inside(asked_ns, steps.train)])
    others_ns = asked_ns[~is_of_training]
    reads_other = np.searchsorted(others_ns, end_ns) > np.searchsorted(others_ns, evaluation.start_ns)
    passes_ns = timeline.start_ns[timeline.meaning == BACKWARD]
    ask_ns, pass_ns = (first_from(times, end_ns) for times in (asked_ns[is_of_training], passes_ns))
    found: Array = reads_other & (evaluation.own_ns[:, BACKWARD] == 0) & ((ask_ns < pass_ns) | (pass_ns == NEVER))
    return found


def _evaluation_graphs(calls: _ModelCalls, steps: Steps, held_out: Array) -> dict[str, int]:
    """``batches``: how many of the evaluated ``batches_of`` built graphs that no backward pass used; in training mode only those that are
    held out, of models that are trained: a policy that acts is trained on what it did."""
    evaluation = steps.evaluation
    trained = np.isin(calls.module, calls.trained(steps.train))
    in_evaluation, in_training = (calls.counts(evaluation, calls.grad & which) > 0 for which in (~calls.training, calls.training & trained))
    builds = (in_evaluation & (evaluation.own_ns[:, BACKWARD] == 0)) | (in_training & held_out)
    return {"batches": int(builds.sum()), "batches_of": len(evaluation)} if builds.any() else {}


def _evaluated_in_training(calls: _ModelCalls, timeline: Timeline, steps: Steps, held_out: Array) -> dict[str, int]:
    """``batches``: how many of the held-out batches, ``batches_of``, a model was called on, once each, in training mode that is trained and
    has layers for which that matters. Empty where there are none, and where any module was put into evaluation mode: then it is on
    purpose, or inner modules are."""
    if not all(training for _, training in timeline.modes):
        return {}
    forgets = calls.modal & np.isin(calls.module, calls.trained(steps.train))
    batches = int(((calls.counts(steps.evaluation, forgets) == 1) & held_out).sum())
    return {"batches": batches, "batches_of": int(held_out.sum())} if batches else {}


def _inside(at_ns: Array, table: Table) -> Array:
    """Which instants lie in a step of a table."""
    if not len(table):
        return np.zeros(len(at_ns), dtype=bool)
    step = np.searchsorted(table.start_ns, at_ns, side="right") - 1
    found: Array = (step >= 0) & (at_ns < (table.start_ns + table.time_ns)[np.maximum(step, 0)])
    return found


def _evaluation_mode(calls: _ModelCalls, steps: Steps) -> dict[str, int]:
    """Of a training that stays in evaluation mode after evaluations, to its end or to the next ``train()``: the ``first_step`` in that
    mode, how many are (``steps_in_eval``), of all ``steps``. Empty where a step changes to that mode without an evaluation: that is on
    purpose."""
    train = steps.train
    if not len(train) or not len(steps.evaluation):
        return {}
    in_training = calls.counts(train, calls.grad & calls.training) > 0
    in_evaluation = (calls.counts(train, calls.grad & ~calls.training) > 0) & ~in_training
    changes = np.flatnonzero(in_training[:-1] & in_evaluation[1:]) + 1  # steps after one in training mode
    if not len(changes):
        return {}
    evaluated_ns = steps.evaluation.start_ns
    evaluated_before, evaluated_by = (np.searchsorted(evaluated_ns, train.start_ns[at]) for at in (changes - 1, changes))
    if (evaluated_before == evaluated_by).any():
        return {}
    stays = np.flatnonzero(in_evaluation)
    steps_in_eval = int((stays >= changes[0]).sum())
    return {"first_step": int(changes[0]), "steps_in_eval": steps_in_eval, "steps": len(train)}


def _training_batches(timeline: Timeline, train: Table) -> list[Request]:
    """The requests for batches that lie in steps of training, ascending."""
    asked = [request for request in timeline.requests if request.kind is Kind.FETCH]
    inside = _inside(np.array([request.start_ns for request in asked], dtype=np.int64), train)
    return [request for request, is_inside in zip(asked, inside.tolist(), strict=True) if is_inside]


def _iterators(timeline: Timeline, asked: Sequence[Request]) -> dict[str, Any]:
    """Iterators that gave training one batch each: ``single`` of ``iterators``; ``again_s``: what making them took but for the first."""
    batches = Counter(request.episode for request in asked)
    single = {episode for episode, n in batches.items() if n == 1}
    if len(single) < 2:
        return {}
    made_ns = [
        request.end_ns - request.start_ns for request in timeline.requests if request.kind is Kind.ITER and request.episode in single
    ]
    return {"single": len(single), "iterators": len(batches), "again_s": sum(made_ns[1:]) * _NS}


def _first_batches(asked: Sequence[Request]) -> dict[str, Any]:
    """Of the loops that trained: medians of how long the ``first`` batch of each was waited for and a ``later`` one, and ``again``, what
    the first ones took longer in all; seconds."""
    waits: dict[int, list[int]] = {}
    for request in asked:
        waits.setdefault(request.episode, []).append(request.end_ns - request.start_ns)
    firsts = np.array([durations[0] for durations in waits.values()])
    later = np.array([duration for durations in waits.values() for duration in durations[1:]])
    if len(firsts) < 2 or not len(later):
        return {}
    usual = float(np.median(later))
    excess = np.maximum(firsts - usual, 0).sum()
    return {"loops": len(firsts), "first": float(np.median(firsts)) * _NS, "later": usual * _NS, "again": float(excess) * _NS}


def _slowdown(train: Table) -> dict[str, Any]:
    """Of steps that get slower from fifth to fifth of a run: their medians, ``fifths_s``; the ``phase`` that grows most, and its medians,
    ``phase_fifths_s``. Empty for others."""
    if len(train) < FEW_STEPS:
        return {}
    fifths_s = _medians_s(train.time_ns)
    if not _rises(fifths_s):
        return {}
    phases = {phase: _medians_s(train.phase_ns(phase)) for phase in PHASES}
    phase = max(phases, key=lambda name: phases[name][-1] - phases[name][0])
    return {"fifths_s": fifths_s, "phase": phase, "phase_fifths_s": phases[phase]}


def _collections(records: Records, chosen: Array, meaning: Array) -> dict[str, Any]:
    """Pauses for garbage collections of the process that trains, in all of its threads, but for those in imports and compilations: ``n``
    that took ``total_s``; empty where there were none."""
    in_process = records.process == records.process[chosen[0]] if len(chosen) else np.zeros(len(meaning), bool)
    collections = np.flatnonzero(in_process & (meaning == GC))
    once = np.flatnonzero(in_process & np.isin(meaning, (IMPORT, COMPILE)))
    once = once[outer_first(records.start_ns[once], records.duration_ns[once])]
    begin_ns = records.start_ns[once]
    inside = innermost(begin_ns, begin_ns + records.duration_ns[once], records.start_ns[collections]) != NONE
    kept_ns = records.duration_ns[collections[~inside]]
    return {"n": len(kept_ns), "total_s": int(kept_ns.sum()) * _NS} if len(kept_ns) else {}


def _medians_s(time_ns: Array) -> list[float]:
    return [float(np.median(part)) * _NS for part in np.array_split(time_ns, _FIFTHS)]


def _rises(values: list[float]) -> bool:
    return all(earlier < later for earlier, later in pairwise(values))


def read_marks(records: Records) -> Iterator[tuple[str, int, int, Mapping[str, Any], tuple[int, str, int]]]:
    """Moments that were recorded, ascending by time: name, when (nanoseconds), value, arguments, and (rank, host, pid) of the process."""
    for i in np.argsort(records.start_ns, kind="stable").tolist():
        yield (
            records.names[records.name[i]][1],
            int(records.start_ns[i]),
            int(records.value[i]),
            records.arguments[records.args[i]],
            records.processes[records.process[i]],
        )
