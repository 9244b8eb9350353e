"""Figures of a training's records that point to common causes, as a dictionary that JSON can hold.
Rules of instruments judge them.

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
from voirkit.phase_table import PHASES

if TYPE_CHECKING:
    from voirkit.analysis.phases import Records

_NS = 1e-9
FEW_STEPS = 50  # under which nothing is said of how steps change
_FIFTHS = 5
_LITTLE_BELOW = 0.9  # of the value before
_FULL = 2  # the generation of a garbage collection that looks at all objects


def symptoms_of(
    records: Records, rows: Array, meaning: Array, timeline: Timeline, steps: Steps
) -> dict[str, Any]:
    """The figures of one training.

    Args:
        records: Of all ranks.
        rows: Indices of those of the thread that trains, shape (n,), ascending by start.
        meaning: What each record counts for.
        timeline: Its spans.
        steps: Its steps.

    Returns:
        ``evaluation_graphs``, ``evaluation_mode``, ``evaluated_in_training``, ``iterators``,
        ``first_batches_s``, ``single_samples``, ``slower``, ``collections``: see the function that
        makes each. Empty where nothing is to be said.
    """
    calls = _ModelCalls(records, rows, steps)
    batches = _training_batches(timeline, steps)
    held_out = np.zeros(len(steps.evaluation), dtype=bool)
    has_fetched = any(request.kind is Kind.FETCH for request in timeline.requests)
    if len(steps.evaluation) and has_fetched:
        held_out = _held_out(timeline, steps)
    figures: dict[str, Any] = {
        "evaluation_graphs": _evaluation_graphs(calls, steps, held_out),
        "evaluation_mode": _evaluation_mode(calls, steps),
        "evaluated_in_training": _evaluated_in_training(calls, timeline, held_out),
    }
    figures |= {
        "iterators": _iterators(timeline, batches),
        "first_batches_s": _first_batches(timeline, batches),
        "single_samples": int((steps.evaluation.items == 1).sum()),
        "slower": _slowdown(steps.train),
    }
    figures["collections"] = _collections(records, rows, meaning, steps.train)
    return {name: value for name, value in figures.items() if value}


class _ModelCalls:
    """Outermost module calls; arrays of shape (n,), ascending.

    Attributes:
        training: True if the module was in training mode.
        grad: True if it built a graph: gradients were on, and it has parameters to train.
        modal: True if it was in training mode and has layers that work otherwise in it.
        module: The class, as an index into all arguments: the first with its name.
    """

    def __init__(self, records: Records, rows: Array, steps: Steps) -> None:
        forward = [
            number for number, name in enumerate(records.names) if name == ("compute", "forward")
        ]
        calls = rows[np.isin(records.name[rows], forward)]
        args = records.args[calls]
        modules = [arguments.get("module") for arguments in records.arguments]
        first_of_name: dict[Any, int] = {}
        for i, module in enumerate(modules):
            first_of_name.setdefault(module, i)
        classes = np.array([first_of_name[module] for module in modules], dtype=np.int64)
        self._step, self._evaluation_step = steps.steps_at(records.start_ns[calls])
        self._n_steps, self._n_evaluation_steps = len(steps.train), len(steps.evaluation)
        self.training = _flag(records, "training", True)[args]
        self.grad = (_flag(records, "grad", True) & ~_flag(records, "frozen", False))[args]
        self.modal = _flag(records, "modal", False)[args]
        self.module: Array = classes[args]

    def in_training(self, is_counted: Array) -> Array:
        """The number of some calls that began in each step of training; shape (steps,)."""
        return _counts(self._step, self._n_steps, is_counted)

    def in_evaluation(self, is_counted: Array) -> Array:
        """The same of steps of evaluation."""
        return _counts(self._evaluation_step, self._n_evaluation_steps, is_counted)

    def trained(self) -> Array:
        """The classes of modules that are called with gradients, in training mode, in steps."""
        is_trained = (self._step != NONE) & self.grad & self.training
        return np.unique(self.module[is_trained])


def _counts(step: Array, n_steps: int, is_counted: Array) -> Array:
    return np.bincount(step[is_counted & (step != NONE)], minlength=n_steps)


def _flag(records: Records, key: str, otherwise: bool) -> Array:
    flags = [bool(arguments.get(key, otherwise)) for arguments in records.arguments]
    return np.array(flags, dtype=bool)


def _held_out(timeline: Timeline, steps: Steps) -> Array:
    """True for evaluated batches that come of a loader that training does not read, and are over
    before anything is trained on again: training asks for a batch before the next backward pass;
    shape (steps,)."""
    evaluation = steps.evaluation
    end_ns = evaluation.end_ns
    fetches = [request for request in timeline.requests if request.kind is Kind.FETCH]
    fetched_ns = np.array([request.start_ns for request in fetches], dtype=np.int64)
    loaders = np.array([request.loader for request in fetches], dtype=np.int64)
    is_in_training = steps.training_steps_at(fetched_ns) != NONE
    is_of_training = np.isin(loaders, loaders[is_in_training])
    others_ns = fetched_ns[~is_of_training]
    n_at_start = np.searchsorted(others_ns, evaluation.start_ns)
    reads_other = np.searchsorted(others_ns, end_ns) > n_at_start
    passes_ns = timeline.start_ns[timeline.meaning == BACKWARD]
    next_fetch_ns = first_from(fetched_ns[is_of_training], end_ns)
    next_pass_ns = first_from(passes_ns, end_ns)
    is_over = (next_fetch_ns < next_pass_ns) | (next_pass_ns == NEVER)
    is_held_out: Array = reads_other & (evaluation.own_ns[:, BACKWARD] == 0) & is_over
    return is_held_out


def _evaluation_graphs(calls: _ModelCalls, steps: Steps, held_out: Array) -> dict[str, int]:
    """``batches``: how many of the evaluated ``batches_of`` built graphs that no backward pass
    used; in training mode only those that are held out, of models that are trained: a policy that
    acts is trained on what it did."""
    evaluation = steps.evaluation
    trained = np.isin(calls.module, calls.trained())
    in_evaluation_mode = calls.in_evaluation(calls.grad & ~calls.training) > 0
    in_training_mode = calls.in_evaluation(calls.grad & calls.training & trained) > 0
    is_unused = in_evaluation_mode & (evaluation.own_ns[:, BACKWARD] == 0)
    builds = is_unused | (in_training_mode & held_out)
    if not builds.any():
        return {}
    return {"batches": int(builds.sum()), "batches_of": len(evaluation)}


def _evaluated_in_training(
    calls: _ModelCalls, timeline: Timeline, held_out: Array
) -> dict[str, int]:
    """``batches``: how many of the held-out batches, ``batches_of``, a model was called on, once
    each, in training mode that is trained and has layers for which that matters. Empty where there
    are none, and where any module was put into evaluation mode: then it is on purpose, or inner
    modules are."""
    if not all(training for _, training in timeline.modes):
        return {}
    forgets = calls.modal & np.isin(calls.module, calls.trained())
    batches = int(((calls.in_evaluation(forgets) == 1) & held_out).sum())
    return {"batches": batches, "batches_of": int(held_out.sum())} if batches else {}


def _evaluation_mode(calls: _ModelCalls, steps: Steps) -> dict[str, int]:
    """Of a training that stays in evaluation mode after evaluations, to its end or to the next
    ``train()``: the ``first_step`` in that mode, how many are (``steps_in_eval``), of all
    ``steps``. Empty where a step changes to that mode without an evaluation: that is on purpose."""
    train = steps.train
    if not len(train) or not len(steps.evaluation):
        return {}
    in_training = calls.in_training(calls.grad & calls.training) > 0
    in_evaluation = (calls.in_training(calls.grad & ~calls.training) > 0) & ~in_training
    # steps after one in training mode
    changes = np.flatnonzero(in_training[:-1] & in_evaluation[1:]) + 1
    if not len(changes):
        return {}
    evaluated_ns = steps.evaluation.start_ns
    evaluated_before = np.searchsorted(evaluated_ns, train.start_ns[changes - 1])
    evaluated_by = np.searchsorted(evaluated_ns, train.start_ns[changes])
    if (evaluated_before == evaluated_by).any():
        return {}
    stays = np.flatnonzero(in_evaluation)
    steps_in_eval = int((stays >= changes[0]).sum())
    return {"first_step": int(changes[0]), "steps_in_eval": steps_in_eval, "steps": len(train)}


def _training_batches(timeline: Timeline, steps: Steps) -> list[Request]:
    """The requests for batches that lie in steps of training, ascending."""
    fetches = [request for request in timeline.requests if request.kind is Kind.FETCH]
    fetched_ns = np.array([request.start_ns for request in fetches], dtype=np.int64)
    steps_of_fetches = steps.training_steps_at(fetched_ns).tolist()
    return [
        request for request, step in zip(fetches, steps_of_fetches, strict=True) if step != NONE
    ]


def _iterators(timeline: Timeline, fetches: Sequence[Request]) -> dict[str, Any]:
    """Iterators that gave training one batch each: ``single`` of ``iterators``; ``again_s``: what
    making them took but for the first."""
    batches = Counter(request.episode for request in fetches)
    single = {episode for episode, n in batches.items() if n == 1}
    if len(single) < 2:
        return {}
    making_ns = [
        request.end_ns - request.start_ns
        for request in timeline.requests
        if request.kind is Kind.ITER and request.episode in single
    ]
    return {"single": len(single), "iterators": len(batches), "again_s": sum(making_ns[1:]) * _NS}


def _first_batches(timeline: Timeline, fetches: Sequence[Request]) -> dict[str, Any]:
    """Of the loops that trained: medians of how long the iterator and the ``first`` batch of each
    were waited for and a ``later`` one, and ``again``, what the first ones took longer in all;
    seconds."""
    waits: dict[int, list[int]] = {}
    for request in fetches:
        waits.setdefault(request.episode, []).append(request.end_ns - request.start_ns)
    for request in timeline.requests:
        if request.kind is Kind.ITER and request.episode in waits:
            waits[request.episode][0] += request.end_ns - request.start_ns
    firsts = np.array([durations[0] for durations in waits.values()])
    later = np.array([duration for durations in waits.values() for duration in durations[1:]])
    if len(firsts) < 2 or not len(later):
        return {}
    usual = float(np.median(later))
    excess = np.maximum(firsts - usual, 0).sum()
    return {
        "loops": len(firsts),
        "first": float(np.median(firsts)) * _NS,
        "later": usual * _NS,
        "again": float(excess) * _NS,
    }


def _slowdown(train: Table) -> dict[str, Any]:
    """Of steps that get slower from fifth to fifth of a run: their medians, ``fifths_s``; the
    ``phase`` that grows most, and its medians, ``phase_fifths_s``. Empty for others."""
    if len(train) < FEW_STEPS:
        return {}
    fifths_s = _medians_s(train.time_ns)
    if not rises(fifths_s):
        return {}
    phases = {phase: _medians_s(train.phase_ns(phase)) for phase in PHASES}
    phase = max(phases, key=lambda name: phases[name][-1] - phases[name][0])
    return {"fifths_s": fifths_s, "phase": phase, "phase_fifths_s": phases[phase]}


def _collections(records: Records, rows: Array, meaning: Array, train: Table) -> dict[str, Any]:
    """Pauses for garbage collections of the process that trains, in all of its threads, but for
    those in imports and compilations: ``n`` that took ``total_s``; of them since the first step,
    ``later_s``, and how many were of all generations, ``full``; empty where there were none."""
    is_own = np.zeros(len(meaning), bool)
    if len(rows):
        is_own = records.process == records.process[rows[0]]
    collections = np.flatnonzero(is_own & (meaning == GC))
    outer = np.flatnonzero(is_own & np.isin(meaning, (IMPORT, COMPILE)))
    outer = outer[outer_first(records.start_ns[outer], records.duration_ns[outer])]
    outer_ns = records.start_ns[outer]
    outer_ends_ns = outer_ns + records.duration_ns[outer]
    is_inside = innermost(outer_ns, outer_ends_ns, records.start_ns[collections]) != NONE
    collections = collections[~is_inside]
    if not len(collections):
        return {}
    trains_ns = train.start_ns[0] if len(train) else NEVER
    later = collections[records.start_ns[collections] >= trains_ns]
    generations = np.array(
        [arguments.get("generation", 0) for arguments in records.arguments], dtype=np.int64
    )
    is_full = generations[records.args[later]] == _FULL
    total_ns = int(records.duration_ns[collections].sum())
    later_ns = int(records.duration_ns[later].sum())
    return {
        "n": len(collections),
        "total_s": total_ns * _NS,
        "later_s": later_ns * _NS,
        "full": int(is_full.sum()),
    }


def _medians_s(time_ns: Array) -> list[float]:
    return [float(np.median(part)) * _NS for part in np.array_split(time_ns, _FIFTHS)]


def rises(values: Sequence[float]) -> bool:
    """True if each value is above the one before, but for one that may lie a little below: another
    program released the processors."""
    falls = [(earlier, later) for earlier, later in pairwise(values) if later <= earlier]
    return len(falls) <= 1 and all(later >= _LITTLE_BELOW * earlier for earlier, later in falls)


def read_marks(
    records: Records,
) -> Iterator[tuple[str, int, int, Mapping[str, Any], tuple[int, str, int]]]:
    """Moments that were recorded, ascending by time: name, when (nanoseconds), value, arguments,
    and (rank, host, pid) of the process."""
    for i in np.argsort(records.start_ns, kind="stable").tolist():
        _, name = records.names[records.name[i]]
        arguments = records.arguments[records.args[i]]
        process = records.processes[records.process[i]]
        yield name, int(records.start_ns[i]), int(records.value[i]), arguments, process
