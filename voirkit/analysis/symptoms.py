"""Symptoms of common causes in a training's records, as values in a dictionary that JSON can hold.
Rules of instruments judge them.

A symptom whose value is empty or zero has no entry.
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
FEW_STEPS = 50  # minimum number of steps to judge whether steps get slower
_FIFTHS = 5
_LITTLE_BELOW = 0.9  # ``rises``: a value must be at least this share of the previous one
_FULL = 2  # generation of a full garbage collection, which looks at all objects


def symptoms_of(
    records: Records, rows: Array, meaning: Array, timeline: Timeline, steps: Steps
) -> dict[str, Any]:
    """Return the symptoms of one training.

    Args:
        records: The phases of all ranks.
        rows: Indices of the records of the thread that trains, shape (n,), ascending by start.
        meaning: The phase of each record.
        timeline: The spans of that thread.
        steps: The steps of that thread.

    Returns:
        ``evaluation_graphs``, ``evaluation_mode``, ``evaluated_in_training``, ``iterators``,
        ``first_batches_s``, ``slower``, ``collections``: each is described at the function that
        makes it. ``single_samples``: the number of evaluated batches of one sample. Empty without
        symptoms.
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
    """Outermost module calls; arrays of shape (n,), ascending by start.

    Attributes:
        training: True if the module was in training mode.
        grad: True if the call built an autograd graph: gradients were on, and the module has
            parameters to train.
        modal: True if the module was in training mode and has layers for which the mode matters.
        module: Class of the module, as the index of the first entry of ``records.arguments`` with
            that class name.
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
        """Return how many of the calls in ``is_counted`` began in each training step; shape
        (steps,)."""
        return _counts(self._step, self._n_steps, is_counted)

    def in_evaluation(self, is_counted: Array) -> Array:
        """Return how many of the calls in ``is_counted`` began in each evaluation step; shape
        (steps,)."""
        return _counts(self._evaluation_step, self._n_evaluation_steps, is_counted)

    def trained(self) -> Array:
        """Return the classes of the modules that training steps call in training mode, with
        gradients."""
        is_trained = (self._step != NONE) & self.grad & self.training
        return np.unique(self.module[is_trained])


def _counts(step: Array, n_steps: int, is_counted: Array) -> Array:
    return np.bincount(step[is_counted & (step != NONE)], minlength=n_steps)


def _flag(records: Records, key: str, otherwise: bool) -> Array:
    flags = [bool(arguments.get(key, otherwise)) for arguments in records.arguments]
    return np.array(flags, dtype=bool)


def _held_out(timeline: Timeline, steps: Steps) -> Array:
    """True for each evaluated batch that is held out; shape (evaluation steps,).

    A batch is held out if it comes from a loader that training does not read, and has no backward
    pass. Its evaluation must also end before training continues: training requests a batch before
    the next backward pass.
    """
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
    """Return ``batches``, the number of evaluated batches that built an autograd graph which no
    backward pass used, and ``batches_of``, the number of all evaluated batches.

    If the model is in training mode, only held-out batches of trained models count: a policy may
    act in training mode because it is trained on its actions later.
    """
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
    """Return ``batches``, the number of held-out batches that were evaluated in training mode, and
    ``batches_of``, the number of all held-out batches.

    Only batches count that are evaluated by one call of a trained model with layers for which the
    mode matters. Empty if no batch counts. Empty too if the script put any module into evaluation
    mode: then training mode is on purpose, or inner modules are in evaluation mode.
    """
    if not all(training for _, training in timeline.modes):
        return {}
    forgets = calls.modal & np.isin(calls.module, calls.trained())
    batches = int(((calls.in_evaluation(forgets) == 1) & held_out).sum())
    return {"batches": batches, "batches_of": int(held_out.sum())} if batches else {}


def _evaluation_mode(calls: _ModelCalls, steps: Steps) -> dict[str, int]:
    """Return values that describe a training that stays in evaluation mode after an evaluation, to
    its end or to the next ``train()``.

    The values: ``first_step``, the first step in evaluation mode; ``steps_in_eval``, the number of
    steps in evaluation mode; ``steps``, the number of all steps. Empty if training enters
    evaluation mode without an evaluation: that is on purpose.
    """
    train = steps.train
    if not len(train) or not len(steps.evaluation):
        return {}
    in_training = calls.in_training(calls.grad & calls.training) > 0
    in_evaluation = (calls.in_training(calls.grad & ~calls.training) > 0) & ~in_training
    # steps in evaluation mode whose previous step was in training mode
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
    """Return the requests for batches that begin in training steps, ascending by start."""
    fetches = [request for request in timeline.requests if request.kind is Kind.FETCH]
    fetched_ns = np.array([request.start_ns for request in fetches], dtype=np.int64)
    steps_of_fetches = steps.training_steps_at(fetched_ns).tolist()
    return [
        request for request, step in zip(fetches, steps_of_fetches, strict=True) if step != NONE
    ]


def _iterators(timeline: Timeline, fetches: Sequence[Request]) -> dict[str, Any]:
    """Return values that describe iterators that gave training only one batch: ``single``, their
    number; ``iterators``, the number of all that gave training batches; ``again_s``, the time to
    make all single ones but the first. Empty if fewer than two iterators gave only one batch."""
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
    """Return the data loader waits of the training loops, in seconds.

    The values: ``loops``, the number of loops; ``first``, the median wait for the iterator and the
    first batch of a loop; ``later``, the median wait for a later batch; ``again``, the time by
    which the first waits exceed ``later``, summed over the loops. Empty if there are fewer than two
    loops or no later batches.
    """
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
    """Return values that describe a run whose steps get slower from each fifth of the run to the
    next.

    The values: ``fifths_s``, the median step of each fifth; ``phase``, the phase that grows most;
    ``phase_fifths_s``, the medians of that phase. Empty if the steps do not get slower.
    """
    if len(train) < FEW_STEPS:
        return {}
    fifths_s = _medians_s(train.time_ns)
    if not rises(fifths_s):
        return {}
    phases = {phase: _medians_s(train.phase_ns(phase)) for phase in PHASES}
    phase = max(phases, key=lambda name: phases[name][-1] - phases[name][0])
    return {"fifths_s": fifths_s, "phase": phase, "phase_fifths_s": phases[phase]}


def _collections(records: Records, rows: Array, meaning: Array, train: Table) -> dict[str, Any]:
    """Return values that describe the garbage collections in all threads of the training process,
    except those during imports and compilations.

    The values: ``n``, the number of collections; ``total_s``, their time; ``later_s``, the time
    of those since the first step; ``full``, the number of full collections since the first step.
    Empty without collections.
    """
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
    """True if each value is above the previous value. One value may lie a little below the previous
    one: another program may have released the CPUs just then."""
    falls = [(earlier, later) for earlier, later in pairwise(values) if later <= earlier]
    return len(falls) <= 1 and all(later >= _LITTLE_BELOW * earlier for earlier, later in falls)


def read_marks(
    records: Records,
) -> Iterator[tuple[str, int, int, Mapping[str, Any], tuple[int, str, int]]]:
    """Yield the recorded marks (instants), ascending by time: name, time in nanoseconds, value,
    arguments, and the process as (rank, host, pid)."""
    for i in np.argsort(records.start_ns, kind="stable").tolist():
        _, name = records.names[records.name[i]]
        arguments = records.arguments[records.args[i]]
        process = records.processes[records.process[i]]
        yield name, int(records.start_ns[i]), int(records.value[i]), arguments, process
