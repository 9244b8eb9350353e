"""``symptoms`` of a summary: values for the rules in ``rules.py``, computed from the instrument's
marks and from the records of the training."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from voirkit.analysis.nesting import NONE, Array
from voirkit.analysis.run_steps import records
from voirkit.analysis.symptoms import read_marks
from voirkit.analysis.worker_starts import START
from voirkit.trace.layout import BATCH_KIND
from voirkit_instruments.symptoms.record import KIND

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.analysis.phases import Records
    from voirkit.runs.opened import Run

_EIGHTHS = 8
_NEVER = np.iinfo(np.int64).max
_FEW_SAMPLES = 14  # minimum number of memory samples; with fewer nothing is reported


def summarise(
    runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return ``symptoms`` of a summary: values of the rank with the most training steps, and
    values from the marks of all processes. None if there are no values."""
    leading = max(ranks, key=lambda rank: len(rank.steps.train), default=None)
    figures: dict[str, Any] = {}
    start_ns = np.zeros(0, np.int64)
    drawing = {}
    if leading is not None:
        figures |= leading.facts.get("symptoms") or {}
        start_ns = leading.steps.train.start_ns
        if _trains_alone(leading, summary):
            drawing = _drawing(runs, leading)
    marks = _Marks(runs)
    memory = marks.memory(start_ns)
    from_marks = {
        "cleared_gradients": marks.cleared_gradients(),
        "own_weights": marks.own_weights(runs),
        "kept_weights": marks.kept_weights(),
        "sampler_epochs": marks.sampler_epochs(),
        "worker_memory": marks.worker_memory(),
        "memory": memory,
        "learning_rate": marks.learning_rate(),
        "drawing": drawing,
    }
    figures |= {name: value for name, value in from_marks.items() if value}
    return {"symptoms": figures} if figures else None


class _Mark(NamedTuple):
    at_ns: int
    value: int
    arguments: Mapping[str, Any]
    process: tuple[int, str, int]


class _Marks:
    """The symptom marks of all processes of a run, by name."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._by_name: dict[str, list[_Mark]] = {}
        for run in runs:
            if not run.recorded(KIND):
                continue
            for name, at_ns, value, arguments, process in read_marks(records(run, KIND)):
                mark = _Mark(at_ns, value, arguments, process)
                self._by_name.setdefault(name, []).append(mark)

    def cleared_gradients(self) -> dict[str, Any]:
        """Return how often ``zero_grad`` cleared unused gradients (``n``), out of how many calls
        (``zero_grads``), and the source line (``where``). The values are those of the process with
        the most such calls."""
        marks = self._by_name.get("cleared")
        if not marks:
            return {}
        most = max(marks, key=_value)
        return {
            "n": most.value,
            "zero_grads": most.arguments.get("zero_grads", 0),
            "where": most.arguments.get("where"),
        }

    def own_weights(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Return the first ``load_state_dict`` that was given the module's own tensors after an
        optimizer step. A call is ignored if a checkpoint was read since the last step:
        torch.distributed.checkpoint reads into a model's own tensors, and then passes them to
        it."""
        marks = self._by_name.get("own_weights")
        if not marks:
            return {}
        step_ends = _ends_ns(runs, ("compute", "step"))
        restart_ends = _ends_ns(runs, ("checkpoint", "restart"))
        for mark in marks:
            step_ns = step_ends.get(mark.process, [])
            restart_ns = restart_ends.get(mark.process, [])
            n_steps = bisect_left(step_ns, mark.at_ns)
            if not n_steps:
                continue
            n_restarts = bisect_right(restart_ns, mark.at_ns)
            if n_restarts > bisect_right(restart_ns, step_ns[n_steps - 1]):
                continue
            return {
                "shared": mark.value,
                "tensors": mark.arguments.get("tensors"),
                "where": mark.arguments.get("where"),
            }
        return {}

    def kept_weights(self) -> dict[str, Any]:
        """Return ``how`` and ``where`` a ``state_dict()`` result was first used after the model had
        been trained further."""
        marks = self._by_name.get("kept_weights")
        if not marks:
            return {}
        arguments = marks[0].arguments
        return {"how": arguments.get("how"), "where": arguments.get("where")}

    def sampler_epochs(self) -> dict[str, int]:
        """Return the number of ``iterators`` of a loader with a ``DistributedSampler``, and of the
        different ``epochs`` that the sampler had at their creation. Of several loaders, the one
        with the most iterators counts."""
        epochs: dict[tuple[Any, Any], list[int]] = {}
        for mark in self._by_name.get("sampler_epoch", ()):
            loader = (mark.process, mark.arguments.get("loader"))
            epochs.setdefault(loader, []).append(mark.value)
        if not epochs:
            return {}
        longest = max(epochs.values(), key=len)
        return {"iterators": len(longest), "epochs": len(set(longest))}

    def worker_memory(self) -> dict[str, Any]:
        """Return the measurement in which the workers had the most private memory: their median in
        ``bytes``, the number of ``workers``, and the ``objects`` and type name of the
        ``dataset``."""
        marks = self._by_name.get("worker_memory")
        if not marks:
            return {}
        most = max(marks, key=_value)
        return {"bytes": most.value, **most.arguments}

    def learning_rate(self) -> dict[str, Any]:
        """Return the learning rate that vanished first, of all optimizers.

        Returns:
            ``highest`` and ``last``: the highest and the last rate.
            ``updates``: number of ``zero_grad`` calls after which the rate fell.
            ``updates_of``: number of ``zero_grad`` calls while the optimizer was used, including
                those of other optimizers.
        """
        marks = self._by_name.get("learning_rate")
        if not marks:
            return {}
        first = min(marks, key=lambda mark: _updates(mark) / max(mark.value, 1))
        return {
            "highest": first.arguments["highest"],
            "last": first.arguments["last"],
            "updates": _updates(first),
            "updates_of": first.value,
        }

    def memory(self, start_ns: Array) -> dict[str, Any]:
        """Return the growth of the peak memory of the first process.

        Args:
            start_ns: Start of each training step, ascending; shape (steps,).

        Returns:
            ``eighths``: median bytes in each eighth of the steps, without the first eighth, in
                which libraries and caches fill.
            ``steps``: number of steps between the middles of the first and the last of these
                eighths.
            ``samples``: number of samples.
            ``kept``: the objects that have increased since a step, if they were counted.
            Empty if there are few samples, or an eighth has none.
        """
        samples = self._of_first_process("memory")
        if len(samples) < _FEW_SAMPLES or not len(start_ns):
            return {}
        steps = np.searchsorted(start_ns, [sample.at_ns for sample in samples])
        n_bytes = np.array([sample.value for sample in samples], dtype=float)
        edges = np.linspace(steps[0], steps[-1], _EIGHTHS + 1)
        eighth = np.searchsorted(edges, steps, side="right") - 1
        eighth = np.minimum(eighth, _EIGHTHS - 1)
        parts = [n_bytes[eighth == number] for number in range(1, _EIGHTHS)]
        if not all(map(len, parts)):
            return {}
        medians = [float(np.median(part)) for part in parts]
        steps_between = int(edges[-2:].mean() - edges[1:3].mean())
        memory = {"eighths": medians, "steps": steps_between, "samples": len(samples)}
        process = samples[0].process
        growths = [mark for mark in self._by_name.get("growth", ()) if mark.process == process]
        if growths:
            last = growths[-1]
            more = json.loads(last.arguments["more"])
            memory["kept"] = {"since_step": int(np.searchsorted(start_ns, last.value)), **more}
        return memory

    def _of_first_process(self, name: str) -> list[_Mark]:
        marks = self._by_name.get(name, [])
        return [mark for mark in marks if mark.process == marks[0].process]


def _value(mark: _Mark) -> int:
    return mark.value


def _updates(mark: _Mark) -> int:
    """Return the number of calls of ``zero_grad`` after which a learning rate fell."""
    arguments = mark.arguments
    # Older versions of voirkit have only ``low_since``, which counts from the start of the run.
    updates: int = arguments.get("updates", arguments.get("low_since", 0))
    return updates


def _trains_alone(leading: Rank, summary: Mapping[str, Any]) -> bool:
    """True if only one process of the run trains. With several ranks, all records would have to be
    read again."""
    if summary.get("world_size") != 1 or not leading.processes:
        return False
    return leading.facts.get("workers") is not None


def _drawing(runs: Sequence[Run], leading: Rank) -> dict[str, Any]:
    """Return how long the sampler of a loader took to draw the indices of batches.

    Returns:
        Without workers, times from a request to its indices: ``later_s``, the total for ``n``
        training batches, without the first of each loop; ``first_s``, the total for the first
        batches of all loops but the first loop.
        With workers, which get indices ahead of requests: ``start_s``, see ``drawn_at_start_s``.
        Empty if nothing is known.
    """
    for run in runs:
        if not run.recorded(BATCH_KIND):
            continue
        phases = _of_process(records(run), leading)
        requests = _requests(phases)
        is_training = leading.steps.training_steps_at(requests.start_ns) != NONE
        batches = _of_process(records(run, BATCH_KIND), leading)
        drawn_ns = np.append(np.sort(batches.start_ns), _NEVER)
        if leading.facts["workers"]:
            episodes = set(requests.episode[is_training].tolist())
            start_s = drawn_at_start_s(phases, drawn_ns, episodes)
            return {"start_s": start_s} if start_s else {}
        start_ns = requests.start_ns[is_training]
        end_ns = requests.end_ns[is_training]
        is_first = requests.is_first[is_training]
        drawn_ns = drawn_ns[np.searchsorted(drawn_ns, start_ns)]
        is_known = drawn_ns <= end_ns
        if is_known.any():
            drawing_s = (drawn_ns - start_ns) * 1e-9
            is_later = is_known & ~is_first
            first_s = drawing_s[is_known & is_first]
            later_s = float(drawing_s[is_later].sum())
            n_later = int(np.count_nonzero(is_later))
            return {"later_s": later_s, "n": n_later, "first_s": float(first_s[1:].sum())}
    return {}


def drawn_at_start_s(phases: Records, drawn_ns: Array, trained: Collection[int]) -> float:
    """Return the total seconds from the creation of iterators with workers until their first
    indices were drawn. The time for starting workers is excluded.

    Args:
        phases: Records of the training process.
        drawn_ns: Times at which indices were drawn, ascending, and the largest integer as a
            sentinel.
        trained: Numbers of the iterators that training used.
    """
    episodes = [arguments.get("episode") for arguments in phases.arguments]
    is_trained = np.array([episode in trained for episode in episodes], bool)
    is_iterator = _is_named(phases, ("dataloader", "iter"))
    iterators = np.flatnonzero(is_iterator & is_trained[phases.args])
    starts = np.flatnonzero(_is_named(phases, START))
    begin_ns = phases.start_ns[iterators]
    end_ns = begin_ns + phases.duration_ns[iterators]
    first_ns = drawn_ns[np.searchsorted(drawn_ns, begin_ns)]
    is_known = first_ns <= end_ns
    started_ns = phases.start_ns[starts][:, None]
    is_inside = (started_ns >= begin_ns) & (started_ns < first_ns)
    starting_ns = (phases.duration_ns[starts][:, None] * is_inside).sum(axis=0)
    drawing_ns = first_ns - begin_ns - starting_ns
    return float(drawing_ns[is_known].sum() * 1e-9)


def _is_named(phases: Records, name: tuple[str, str]) -> Array:
    """Return a mask of the records with this name; shape (records,)."""
    numbers = [number for number, other in enumerate(phases.names) if other == name]
    return np.isin(phases.name, numbers)


def _of_process(rows: Records, rank: Rank) -> Records:
    """Return the records of the first process of a rank."""
    numbers = [
        number
        for number, (_, *process) in enumerate(rows.processes)
        if tuple(process) == rank.processes[0]
    ]
    return rows.chosen(np.isin(rows.process, numbers))


@dataclass(frozen=True)
class _Requests:
    """Requests for batches, ascending; arrays of shape (requests,)."""

    start_ns: Array
    end_ns: Array
    is_first: Array  # True for the first request to an iterator
    episode: Array  # number of the iterator; -1 if unknown


def _requests(phases: Records) -> _Requests:
    """Return all requests for batches, in order of time."""
    requests = np.flatnonzero(_is_named(phases, ("dataloader", "fetch")))
    requests = requests[np.argsort(phases.start_ns[requests], kind="stable")]
    episodes = np.array([arguments.get("episode", -1) for arguments in phases.arguments])
    episode = episodes[phases.args[requests]]
    _, first = np.unique(episode, return_index=True)
    is_first = np.zeros(len(requests), bool)
    is_first[first] = True
    start_ns = phases.start_ns[requests]
    end_ns = start_ns + phases.duration_ns[requests]
    return _Requests(start_ns, end_ns, is_first, episode)


def _ends_ns(runs: Sequence[Run], name: tuple[str, str]) -> dict[tuple[int, str, int], list[int]]:
    """Return a dict from process to the end times of its spans with this name, in nanoseconds,
    ascending."""
    ends_ns: dict[tuple[int, str, int], list[int]] = {}
    for run in runs:
        phases = records(run)
        for row in np.flatnonzero(_is_named(phases, name)).tolist():
            process = phases.processes[phases.process[row]]
            end_ns = int(phases.start_ns[row] + phases.duration_ns[row])
            ends_ns.setdefault(process, []).append(end_ns)
    return {process: sorted(times) for process, times in ends_ns.items()}
