"""``symptoms`` of a summary: figures that the rules judge, from the marks of the recording and from the records of the training."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.run_steps import records
from voirkit.analysis.symptoms import read_marks
from voirkit.trace.layout import BATCH_KIND
from voirkit_instruments.symptoms.record import KIND

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.analysis.phases import Records
    from voirkit.runs.opened import Run

_EIGHTHS = 8
_NEVER = np.iinfo(np.int64).max
_FEW_SAMPLES = 14  # of memory, under which nothing is said


def summarise(runs: Sequence[Run], ranks: Sequence[Rank], summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """``symptoms`` of a summary: of the rank with most steps, and the marks of all; None where there is nothing."""
    leading = max(ranks, key=lambda rank: len(rank.steps.train), default=None)
    figures: dict[str, Any] = dict(leading.facts.get("symptoms") or {}) if leading is not None else {}
    start_ns = np.zeros(0, np.int64) if leading is None else leading.steps.train.start_ns
    marks = _Marks(runs)
    figures |= {
        name: value
        for name, value in {
            "cleared_gradients": marks.cleared_gradients(),
            "own_weights": marks.own_weights(runs),
            "sampler_epochs": marks.sampler_epochs(),
            "worker_memory": marks.worker_memory(),
            "memory": marks.memory(start_ns),
            "learning_rate": marks.learning_rate(),
            "drawing": _drawing(runs, leading) if leading is not None and _draws_alone(leading, summary) else {},
        }.items()
        if value
    }
    return {"symptoms": figures} if figures else None


class _Marks:
    """What the recording has marked, of all processes."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._by_name: dict[str, list[tuple[int, int, Mapping[str, Any], tuple[int, str, int]]]] = {}
        for run in runs:
            if not run.recorded(KIND):
                continue
            for name, at_ns, value, arguments, process in read_marks(records(run, KIND)):
                self._by_name.setdefault(name, []).append((at_ns, value, arguments, process))

    def cleared_gradients(self) -> dict[str, Any]:
        """How often ``zero_grad`` cleared gradients that were not used, and where, of the process in which it was most often."""
        rows = self._by_name.get("cleared", ())
        if not rows:
            return {}
        _, cleared, arguments, _ = max(rows, key=lambda row: row[1])
        return {"n": cleared, "zero_grads": arguments.get("zero_grads", 0), "where": arguments.get("where")}

    def own_weights(self, runs: Sequence[Run]) -> dict[str, Any]:
        """The first ``load_state_dict`` after a step of an optimizer that was given the module's own tensors, without a checkpoint that was
        read since that step: torch.distributed.checkpoint reads into a model's own tensors, and gives them to it."""
        rows = self._by_name.get("own_weights", ())
        if not rows:
            return {}
        stepped, read = (_ends_ns(runs, name) for name in (("compute", "step"), ("checkpoint", "restart")))
        for at_ns, shared, arguments, process in rows:
            steps, reads = stepped.get(process, []), read.get(process, [])
            last = bisect_left(steps, at_ns)
            is_read_since = last and bisect_right(reads, at_ns) > bisect_right(reads, steps[last - 1])
            if last and not is_read_since:
                return {"shared": shared, "tensors": arguments.get("tensors"), "where": arguments.get("where")}
        return {}

    def sampler_epochs(self) -> dict[str, int]:
        """Of the loader with a ``DistributedSampler`` that made most iterators: ``iterators``, and how many ``epochs`` they had."""
        epochs: dict[tuple[Any, Any], list[int]] = {}
        for _, epoch, arguments, process in self._by_name.get("sampler_epoch", ()):
            epochs.setdefault((process, arguments.get("loader")), []).append(epoch)
        if not epochs:
            return {}
        longest = max(epochs.values(), key=len)
        return {"iterators": len(longest), "epochs": len(set(longest))}

    def worker_memory(self) -> dict[str, Any]:
        """Where workers had most memory for themselves alone: the median in ``bytes``, ``workers``, and ``objects`` of the dataset."""
        rows = self._by_name.get("worker_memory", ())
        if not rows:
            return {}
        _, private, arguments, _ = max(rows, key=lambda row: row[1])
        return {"bytes": private, **arguments}

    def learning_rate(self) -> dict[str, Any]:
        """Of the optimizer whose learning rate vanished first: its ``highest`` and ``last``, and after how many calls of ``zero_grad`` it
        fell (``updates``), of all calls, those of other optimizers too (``updates_of``)."""
        rows = self._by_name.get("learning_rate", ())
        if not rows:
            return {}
        _, zero_grads, rate, _ = min(rows, key=lambda row: row[2]["low_since"] / max(row[1], 1))
        return {"highest": rate["highest"], "last": rate["last"], "updates": rate["low_since"], "updates_of": zero_grads}

    def memory(self, start_ns: Array) -> dict[str, Any]:
        """The most that the first rank had held.

        Args:
            start_ns: When each step of training began, ascending; shape (steps,).

        Returns:
            ``eighths``: medians by eighth of the steps, bytes, without the first eighth, in which libraries and caches are filled;
            ``steps``: how many lie between the middles of the first and the last of these; ``samples``; ``kept``: what there is more of
            since a step, where that was looked at. Empty where there are few samples, or an eighth has none.
        """
        rows = self._by_name.get("memory", [])
        own = [row for row in rows if row[3] == rows[0][3]]
        if len(own) < _FEW_SAMPLES or not len(start_ns):
            return {}
        steps, held = np.searchsorted(start_ns, [row[0] for row in own]), np.array([row[1] for row in own], dtype=float)
        edges = np.linspace(steps[0], steps[-1], _EIGHTHS + 1)
        eighth = np.minimum(np.searchsorted(edges, steps, side="right") - 1, _EIGHTHS - 1)
        parts = [held[eighth == number] for number in range(1, _EIGHTHS)]
        if not all(map(len, parts)):
            return {}
        medians = [float(np.median(part)) for part in parts]
        steps_between = int(edges[-2:].mean() - edges[1:3].mean())
        memory = {"eighths": medians, "steps": steps_between, "samples": len(own)}
        growths = [row for row in self._by_name.get("growth", ()) if row[3] == rows[0][3]]
        if growths:
            _, since_ns, arguments, _ = growths[-1]
            kept = json.loads(arguments["more"])
            memory["kept"] = {"since_step": int(np.searchsorted(start_ns, since_ns)), **kept}
        return memory


def _draws_alone(leading: Rank, summary: Mapping[str, Any]) -> bool:
    """Whether the one process of a run loads its batches itself. Of several ranks all records would have to be read again."""
    return summary.get("world_size") == 1 and bool(leading.processes) and leading.facts.get("workers") == 0


def _drawing(runs: Sequence[Run], leading: Rank) -> dict[str, Any]:
    """How long the sampler of a loader without workers took to draw the indices of batches: from a request to its indices.

    Returns:
        ``later_s`` of ``n`` batches of training, without the first of each loop; ``first_s``, that of the first batches of all loops but
        one. Empty where nothing is known of it.
    """
    train = leading.steps.train
    if not len(train):
        return {}
    for run in runs:
        if not run.recorded(BATCH_KIND):
            continue
        phases = _of_process(records(run), leading)
        start_ns, end_ns, is_first = _requests(phases)
        step = np.searchsorted(train.start_ns, start_ns, side="right") - 1
        is_training = (step >= 0) & (start_ns < (train.start_ns + train.time_ns)[step])
        start_ns, end_ns, is_first = start_ns[is_training], end_ns[is_training], is_first[is_training]
        drawn_ns = np.append(np.sort(_of_process(records(run, BATCH_KIND), leading).start_ns), _NEVER)
        drawn_ns = drawn_ns[np.searchsorted(drawn_ns, start_ns)]
        is_known = drawn_ns <= end_ns
        if is_known.any():
            spent_s = (drawn_ns - start_ns) * 1e-9
            is_later = is_known & ~is_first
            first_s = float(spent_s[is_known & is_first][1:].sum())
            return {"later_s": float(spent_s[is_later].sum()), "n": int(np.count_nonzero(is_later)), "first_s": first_s}
    return {}


def _of_process(found: Records, rank: Rank) -> Records:
    """The records of the first process of a rank."""
    own = [number for number, (_, *process) in enumerate(found.processes) if tuple(process) == rank.processes[0]]
    return found.chosen(np.isin(found.process, own))


def _requests(phases: Records) -> tuple[Array, Array, Array]:
    """When requests for batches began and ended, and whether they are the first of their iterators; ascending."""
    numbers = [number for number, name in enumerate(phases.names) if name == ("dataloader", "fetch")]
    asked = np.flatnonzero(np.isin(phases.name, numbers))
    asked = asked[np.argsort(phases.start_ns[asked], kind="stable")]
    episodes = np.array([arguments.get("episode", -1) for arguments in phases.arguments])[phases.args[asked]]
    is_first = np.zeros(len(asked), bool)
    is_first[np.unique(episodes, return_index=True)[1]] = True
    return phases.start_ns[asked], phases.start_ns[asked] + phases.duration_ns[asked], is_first


def _ends_ns(runs: Sequence[Run], name: tuple[str, str]) -> dict[tuple[int, str, int], list[int]]:
    """When spans of a name ended, ascending, by process."""
    ends: dict[tuple[int, str, int], list[int]] = {}
    for run in runs:
        phases = records(run)
        numbers = [number for number, known in enumerate(phases.names) if known == name]
        found = np.flatnonzero(np.isin(phases.name, numbers))
        for i in found.tolist():
            ends.setdefault(phases.processes[phases.process[i]], []).append(int(phases.start_ns[i] + phases.duration_ns[i]))
    return {process: sorted(times) for process, times in ends.items()}
