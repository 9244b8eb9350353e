"""From the records of the steps instrument to the timelines of the threads that train, one for each rank."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from voirkit.analysis.device import on_device
from voirkit.analysis.document import Rank
from voirkit.analysis.joined import joined
from voirkit.analysis.nesting import Array, distinct, outer_first
from voirkit.analysis.phase_records import Records
from voirkit.analysis.requests import requests_through_queue
from voirkit.analysis.segmentation import Kind, Request
from voirkit.analysis.steps import (
    BACKWARD,
    COMMUNICATION,
    COMPILE,
    FORWARD,
    GC,
    IMPORT,
    MEANING,
    NO_STEPS,
    OPTIMIZER,
    WAIT,
    DeviceTable,
    Table,
    Timeline,
    steps_of,
)
from voirkit.analysis.verdict.script_facts import first_batches, in_training_mode, script_facts

_OF_LOADER = ("workers", "dataset", "batch_size", "pin_memory", "persistent", "whole_batches")
# The script's own word that it evaluates: its annotations, and steps that it gives with a task.
EVALUATIONS = (("annotated", "evaluate"), ("annotated", "test"), ("given", "evaluation"))
_REQUESTS = {
    ("dataloader", "iter"): Kind.ITER, ("dataloader", "fetch"): Kind.FETCH, ("dataloader", "end"): Kind.END,
    # A loop over a loader, whole: it is over where this ends, however that came.
    ("pipeline", "epoch"): Kind.LEFT, ("pipeline", "evaluate"): Kind.LEFT,
}  # fmt: skip


def ranks(
    records: Records, cpus: int | None = None, device: Records | None = None, without: Collection[tuple[str, int]] = ()
) -> list[Rank]:
    """What each rank did, ascending; and what each process did that trains, or evaluates, and is in no group of ranks.

    Args:
        records: Of all ranks.
        cpus: Processors of the host, for the verdict.
        device: What the phases did on GPUs, where they were used.
        without: (host, pid) of processes that are left out.
    """
    parts: list[Rank] = []
    for number, (rank, host, pid) in enumerate(records.processes):
        chosen = training_thread(records, number) if (host, pid) not in without else None
        if chosen is not None:
            alone = bool(records.world_sizes) and records.world_sizes[number] == 1
            parts.append(_process(records, number, chosen, cpus, device, Rank(rank, host, NO_STEPS, {}, ((host, pid),), alone)))
    return joined(parts)


def _process(records: Records, number: int, chosen: Array, cpus: int | None, device: Records | None, of: Rank) -> Rank:
    """What a process did, in the thread that trains."""
    timeline = _timeline(records, chosen)
    steps = steps_of(timeline)
    waited = chosen
    if not steps.wait_known:
        others = np.flatnonzero((records.process == number) & (records.tid != records.tid[chosen[0]]))
        requests = _queue_requests(records, chosen, others, timeline)
        if requests:
            steps, waited = steps_of(replace(timeline, requests=requests)), others
    if device is not None:
        steps = replace(steps, device=_on_device(timeline, device, records.processes[number], int(records.tid[chosen[0]]), steps.train))
    trained = steps.episodes if waited is chosen else ()
    script = script_facts(records, chosen, steps.train, _first_optimizer_ns(timeline))
    inference = in_training_mode(timeline, steps.evaluation) or None
    facts = {**_loader(records, waited, trained), **script, "inference": inference, "cpus": cpus}
    return replace(of, steps=steps, facts={k: v for k, v in facts.items() if v is not None})


def _first_optimizer_ns(timeline: Timeline) -> Array:
    """When the optimizer that stepped first stepped; shape (n,)."""
    stepped = timeline.meaning == OPTIMIZER
    which: Array = timeline.optimizer[stepped]
    return timeline.start_ns[stepped][which == which[0]] if len(which) else which


def _on_device(host: Timeline, device: Records, process: tuple[int, str, int], tid: int, train: Table) -> DeviceTable | None:
    if process not in device.processes:
        return None
    own = np.flatnonzero((device.process == list(device.processes).index(process)) & (device.tid == tid))
    own = own[outer_first(device.start_ns[own], device.duration_ns[own])]
    return on_device(host, _timeline(device, own), train)


def training_thread(records: Records, process: int) -> Array | None:
    """Indices of the records of the thread that steps optimizers, or else works most; ascending by start, outer before inner."""
    own = np.flatnonzero(records.process == process)
    if not len(own):
        return None
    meaning = meanings(records.names)[records.name[own]]
    if np.isin(meaning, (COMPILE, IMPORT, GC)).all():
        return None  # it has imported torch, and that is all
    for wanted in ((OPTIMIZER,), (BACKWARD,), (FORWARD,), tuple(range(COMPILE))):
        threads, counts = np.unique(records.tid[own][np.isin(meaning, wanted)], return_counts=True)
        if len(threads):
            own = own[records.tid[own] == threads[np.argmax(counts)]]
            break
    return own[outer_first(records.start_ns[own], records.duration_ns[own])]


def meanings(names: Sequence[tuple[str, str]]) -> Array:
    """What each name counts for."""
    found = [COMMUNICATION if category == "comm" else MEANING.get((category, name), -1) for category, name in names]
    return np.array(found, dtype=np.int64)


def _timeline(records: Records, chosen: Array) -> Timeline:
    requests = sorted(_requests(records, chosen), key=lambda request: request.start_ns)
    annotated = _annotated(records, chosen)
    meaning, modes, lengths = meanings(records.names)[records.name[chosen]], _modes(records, chosen), _lengths(records, chosen)
    chosen, meaning = chosen[meaning >= 0], meaning[meaning >= 0]
    which, grad, training = (
        np.array([arguments.get(key, otherwise) for arguments in records.arguments])[records.args[chosen]]
        for key, otherwise in (("which", 0), ("grad", True), ("training", True))
    )
    duration, kept = whole_imports(records.start_ns[chosen], records.duration_ns[chosen], meaning)
    start = records.start_ns[chosen]
    return Timeline(
        start[kept], duration[kept], meaning[kept], which[kept], grad[kept], training[kept], requests, modes, lengths, annotated
    )


def whole_imports(start_ns: Array, duration_ns: Array, meaning: Array) -> tuple[Array, Array]:
    """An import that trains is one until it does; garbage that is collected in an import or a compilation is part of it.

    Args:
        start_ns: Of the spans of a thread, ascending; shape (n,).
        duration_ns: Same shape.
        meaning: Same shape.

    Returns:
        Durations, and which spans are left.
    """
    kept = np.ones(len(start_ns), dtype=bool)
    duration_ns = duration_ns.copy()
    work = np.flatnonzero(~np.isin(meaning, (IMPORT, COMPILE, GC)))
    for i in np.flatnonzero(np.isin(meaning, (IMPORT, COMPILE))).tolist():
        end = start_ns[i] + duration_ns[i]
        if meaning[i] == IMPORT:
            at = np.searchsorted(work, i)
            if at < len(work) and start_ns[work[at]] < end:
                end = start_ns[work[at]]
                duration_ns[i] = end - start_ns[i]
        inside = slice(i + 1, int(np.searchsorted(start_ns, end)))
        kept[inside] &= meaning[inside] != GC
    return duration_ns, kept


def _annotated(records: Records, chosen: Array) -> list[tuple[int, int]]:
    """From when to when the script says that it evaluates, the outermost of what lies in each other."""
    names = [i for i, name in enumerate(records.names) if name in EVALUATIONS]
    own = chosen[np.isin(records.name[chosen], names)]
    begins, ends = records.start_ns[own], (records.start_ns + records.duration_ns)[own]
    outer = begins >= np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1])) if len(own) else slice(0)
    return list(zip(begins[outer].tolist(), ends[outer].tolist(), strict=True))


def _lengths(records: Records, chosen: Array) -> dict[int, int]:
    """By loader, how many batches an epoch has."""
    described = [arguments for arguments in (records.arguments[i] for i in distinct(records.args[chosen])) if "length" in arguments]
    return {
        _number(about, "loader"): about["length"] for about in described if type(about["length"]) is int and about.get("loader") is not None
    }


def _modes(records: Records, chosen: Array) -> list[tuple[int, bool]]:
    """When modules were switched between training and evaluation."""
    name = next((i for i, name in enumerate(records.names) if name == ("compute", "mode")), None)
    switched = chosen[records.name[chosen] == name] if name is not None else chosen[:0]
    return list(zip(records.start_ns[switched].tolist(), (records.value[switched] > 0).tolist(), strict=True))


def _requests(records: Records, chosen: Array) -> Iterator[Request]:
    kinds = {i: _REQUESTS[name] for i, name in enumerate(records.names) if name in _REQUESTS}
    asked = chosen[np.isin(records.name[chosen], list(kinds))]
    askers = [(arguments.get("episode", 0), _number(arguments, "loader")) for arguments in records.arguments]
    columns = (records.name, records.start_ns, records.duration_ns, records.value, records.args)
    fetch, left = Kind.FETCH, Kind.LEFT  # looking a member up takes longer than all the rest of a line
    for name, start, duration, value, args in zip(*(c[asked].tolist() for c in columns), strict=True):
        kind, end = kinds[name], start + duration
        episode, loader = askers[args]
        yield Request(kind, end if kind is left else start, end, episode, loader, value if kind is fetch and value >= 0 else None)


def _number(arguments: Mapping[str, Any], key: str) -> int:
    """Of a loader or an episode; -1 where it is not known."""
    number = arguments.get(key)
    return -1 if number is None else int(number)


def _queue_requests(records: Records, chosen: Array, others: Array, timeline: Timeline) -> list[Request]:
    """The requests of a thread with what it got from queues, if other threads fetched batches; empty if that is not so."""
    queue = next((i for i, name in enumerate(records.names) if name == ("dataloader", "queue")), None)
    got = chosen[records.name[chosen] == queue]
    if not len(got):
        return []
    start = records.start_ns[got]
    gets = list(zip(start.tolist(), (start + records.duration_ns[got]).tolist(), strict=True))
    works = timeline.start_ns[np.isin(timeline.meaning, (FORWARD, BACKWARD, OPTIMIZER))]
    made = requests_through_queue(gets, list(_requests(records, others)), works)
    if not made:
        return []
    if made[-1].kind is not Kind.END:  # it asked for no more
        over = int((timeline.start_ns + timeline.duration_ns).max())
        made.append(replace(made[-1], kind=Kind.LEFT, start_ns=over, end_ns=over, items=None))
    return sorted([*timeline.requests, *made], key=lambda request: request.start_ns)


def _loader(records: Records, chosen: Array, trained: Collection[int]) -> dict[str, Any]:
    """What is known of the loader that training waited for longest; ``loaders``: the numbers of all that it waited for, that one first."""
    waits = chosen[meanings(records.names)[records.name[chosen]] == WAIT]
    numbers = np.array([_number(arguments, "loader") for arguments in records.arguments], dtype=np.int64)[records.args[waits]]
    if trained:
        episodes = np.array([_number(arguments, "episode") for arguments in records.arguments], dtype=np.int64)[records.args[waits]]
        of_training = np.isin(episodes, list(trained))
        waits, numbers = waits[of_training], numbers[of_training]
    if not len(numbers) or numbers.max() < 0:
        return {}
    waited = np.bincount(np.maximum(numbers, 0), weights=records.duration_ns[waits])
    loaders = [int(n) for n in np.argsort(-waited, kind="stable") if n in set(numbers.tolist())]
    firsts = first_batches(records, waits, trained)
    for i in distinct(records.args[waits]):
        arguments = records.arguments[i]
        if arguments.get("loader") == loaders[0] and "workers" in arguments:
            return {**{key: arguments.get(key) for key in _OF_LOADER}, "loaders": loaders, "first_batches": firsts}
    return {}
