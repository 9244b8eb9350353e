"""What the records say of how a script trains: precision, compilation, optimizers, updates, the start of its loader's workers.

Advice is held against these facts, so that nothing is advised that the script does already.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.nesting import Array, distinct
from voirkit.analysis.steps import FORWARD

if TYPE_CHECKING:
    from voirkit.analysis.phase_records import Records
    from voirkit.analysis.steps import Table, Timeline

_NS = 1e-9
_NONE = np.iinfo(np.int64).min


def script_facts(records: Records, chosen: Array, train: Table, leads_ns: Array) -> dict[str, Any]:
    """What is known of the script.

    Args:
        records: Of all ranks.
        chosen: Indices of those of the thread that trains.
        train: Its steps.
        leads_ns: When the optimizer that stepped first stepped.

    Returns:
        ``optimizers``: ``{"optimizer", "fused", "foreach", "device", "bf16"}`` of each, as far as known (``bf16``: the processors have
        instructions for it); ``autocast``: precisions that were switched on; ``compiled``: whether a module was compiled; ``updates``: in
        how many of the steps the first optimizer stepped, if not in all. What is not known is left out.
    """
    numbers = {name: number for number, name in enumerate(records.names)}
    found: dict[str, Any] = {}

    def arguments(category: str, name: str) -> list[Mapping[str, Any]]:
        at = chosen[records.name[chosen] == numbers.get((category, name), -1)]
        return [records.arguments[i] for i in distinct(records.args[at])]

    optimizers = {one.get("which", 0): one for one in arguments("compute", "step") if "optimizer" in one}
    if optimizers:
        keys = ("optimizer", "fused", "foreach", "device", "bf16")
        found["optimizers"] = [{key: one[key] for key in keys if key in one} for _, one in sorted(optimizers.items())]
    if precisions := sorted({str(one["dtype"]) for one in arguments("script", "autocast") if "dtype" in one}):
        found["autocast"] = precisions
    if any(one.get("compiled") for one in arguments("compute", "forward")):
        found["compiled"] = True
    if len(train) and len(leads_ns):
        step = np.searchsorted(train.start_ns, leads_ns, side="right") - 1
        inside = leads_ns < (train.start_ns + train.time_ns)[np.maximum(step, 0)]
        # What a loop that reads ahead trains on when it has no more batches lies in no step.
        updates = len(np.unique(step[(step >= 0) & inside])) + int(((step >= 0) & ~inside).sum())
        if 0 < updates < len(train):
            found["updates"] = updates
    return found


def in_training_mode(timeline: Timeline, evaluation: Table) -> float:
    """Share of the evaluation's time that is model calls by hand, without gradients, of modules in training mode.

    Rollouts of reinforcement learning and samples of a generator are such, and an evaluation for which nobody calls ``eval()``.
    """
    total = int(evaluation.time_ns.sum())
    if not total:
        return 0.0
    inside = evaluation.items < 0  # a loop over a loader knows how much a batch holds
    for begin, end in timeline.annotated:
        inside &= (evaluation.start_ns < begin) | (evaluation.start_ns >= end)
    calls = (timeline.meaning == FORWARD) & timeline.training & ~timeline.grad
    first, last = (np.searchsorted(timeline.start_ns[calls], at) for at in (evaluation.start_ns, evaluation.start_ns + evaluation.time_ns))
    return int(evaluation.time_ns[inside & (last > first)].sum()) / total


def first_batches(records: Records, waits: Array, trained: Collection[int]) -> dict[str, float]:
    """How long each loop over the loader waited for its first batch, in which its workers start.

    Args:
        records: Of all ranks.
        waits: Indices of the records of what was waited for, ascending by start.
        trained: The iterators that training used.

    Returns:
        ``loops``; ``first_s``: what they waited for their iterators and first batches; ``again_s``: the same without the first loop, and
        without what a later batch takes at the median: what workers that stay would save; ``wait_s``: of all batches. Empty for none.
    """
    of_arguments = [arguments.get("episode") for arguments in records.arguments]
    episode = np.array([one if one in trained else _NONE for one in of_arguments], np.int64)[records.args[waits]]
    kind = np.array([name for _, name in records.names])[records.name[waits]]
    duration = records.duration_ns[waits]
    makes, asks = (np.flatnonzero((kind == name) & (episode != _NONE)) for name in ("iter", "fetch"))
    loops, first = np.unique(episode[asks], return_index=True)
    if not len(loops):
        return {}
    firsts, later = duration[asks[first]], np.delete(duration[asks], first)
    of_loop = makes[np.isin(episode[makes], loops)]
    np.add.at(firsts, np.searchsorted(loops, episode[of_loop]), duration[of_loop])
    firsts = firsts[np.argsort(first)]  # as they came
    usual = float(np.median(later)) if len(later) else 0.0
    again, waited = float(np.maximum(firsts[1:] - usual, 0.0).sum()), int(firsts.sum() + later.sum())
    return {"loops": len(firsts), "first_s": int(firsts.sum()) * _NS, "again_s": again * _NS, "wait_s": waited * _NS}
