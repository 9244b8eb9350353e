"""What holds of every correct record of a loader, checked on the records of a run: what is broken was recorded wrongly, or not at all.

The rules are about the records, not about the program: a sampler may draw a sample twice, a loop may be left, a worker may die.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from voirkit.analysis.nesting import Array, parents
from voirkit.runs.opened import Run
from voirkit_instruments.loader.analyse_records import (
    NONE,
    BatchLifecycle,
    Columns,
    LoaderRecords,
    Loaders,
    most_at_once,
    read_rank,
)
from voirkit_instruments.loader.analyse_totals import COLLATE, ITEM, ITEMS, OPERATION, PREPROCESS, READING, by_thread, levels, whole_batches


@dataclass
class Rule:
    """One rule."""

    text: str  # what should hold
    checked: int = 0  # of how many it was asked
    broken: int = 0  # of how many it does not hold
    example: str = ""  # one of those

    def add(self, holds: Array) -> None:
        """Check some more."""
        self.checked += len(holds)
        self.broken += int((~holds).sum())


def check(run: Run, rank: int, once: bool = False) -> list[Rule]:
    """The rules for one rank's records; ``once``: each sample is drawn once an epoch, as it is without a sampler that repeats."""
    found = read_rank(run, rank)
    if found is None:
        return []
    records, columns, loaders, batches = found
    rules = [*_counts(records, loaders, columns), *_times(batches), *_order(batches), *_workers(batches), *_samples(records, batches)]
    if once:
        rules.append(_each_once(records, loaders))
    return [rule for rule in rules if rule.checked]


def _rule(text: str, holds: Array, batches: BatchLifecycle | None = None) -> Rule:
    """A rule from whether it holds of each."""
    broken = np.flatnonzero(~holds)
    example = ""
    if len(broken) and batches is not None:
        i = broken[0]
        example = f"batch {batches.batch[i]} of loader {batches.source[i]}, iterator {batches.episode[i]}"
    return Rule(text, len(holds), len(broken), example)


def _repeats(source: Array, episode: Array, value: Array) -> Array:
    """How often each (loader, episode, number) is there."""
    return np.unique(np.stack([source, episode, value]), axis=1, return_counts=True)[1] if len(value) else np.zeros(0)


def _counts(records: LoaderRecords, loaders: Loaders, columns: Columns) -> Iterator[Rule]:
    source, episode = loaders.of_each(columns), loaders.episode[columns.args]
    for category, name in (("data", "preprocess"), ("batch", "queued"), ("batch", "arrived"), ("batch", "wait"), ("batch", "consumed")):
        rows = np.isin(columns.name, [i for i, pair in enumerate(records.names) if pair == (category, name)])
        yield _rule(f"a batch has one record {category}.{name} at most", _repeats(source[rows], episode[rows], columns.value[rows]) == 1)


def _times(batches: BatchLifecycle) -> Iterator[Rule]:
    def in_order(text: str, some: BatchLifecycle, before: str, after: str) -> Rule:
        both = some.with_all(before, after)
        return _rule(text, both[before] <= both[after], both)

    consumed = batches.select(batches.has("consumed_ns") & (batches["failed"] != 1))
    yield _rule("a batch that was consumed was made", consumed.has("begin_ns"), consumed)
    yield _rule("and asked for", consumed.has("requested_ns"), consumed)
    of_workers = batches.select(batches.by_worker)
    yield in_order("it is queued before it is made", of_workers, "queued_ns", "begin_ns")
    yield in_order("it arrives after it was made", of_workers, "end_ns", "arrived_ns")
    yield in_order("it is consumed after it arrived", of_workers, "arrived_ns", "consumed_ns")
    yield in_order("it is consumed after it was made", batches, "end_ns", "consumed_ns")
    waited = batches.with_all("requested_ns", "consumed_ns")
    yield _rule("its request ends when it is consumed", waited["received_ns"] <= waited["consumed_ns"], waited)
    used = consumed.select(consumed.by_worker)
    yield _rule("a batch of a worker was queued", used.has("queued_ns"), used)
    yield _rule("and arrived", used.has("arrived_ns"), used)


def _order(batches: BatchLifecycle) -> Iterator[Rule]:
    in_turn = Rule("batches are consumed in their order, or as they arrive")
    apart = Rule("requests to an iterator do not overlap")
    within = Rule("no more batches are under way than were put on the queues at first")
    for source in np.unique(batches.source):
        for episode in batches.select(batches.source == source).episodes():
            requested = episode.with_all("requested_ns")
            if not len(requested):
                continue
            requested = requested.select(np.argsort(requested["requested_ns"], kind="stable"))
            arrived = requested["arrived_ns"]
            as_numbered = requested.batch[0] == 0 and (np.diff(requested.batch) == 1).all()
            as_arrived = requested.has("arrived_ns").all() and (np.diff(arrived) >= 0).all()  # in_order=False
            in_turn.add(np.array([as_numbered or as_arrived], bool))
            apart.add(np.array([(requested["requested_ns"][1:] >= requested["received_ns"][:-1]).all()], bool))
            # An iterable dataset that has come to its end leaves numbers on the queues that no batch comes of.
            queued = requested["queued_ns"][requested.has("queued_ns")]
            if len(queued):
                at_first = int((episode["queued_ns"][episode.has("queued_ns")] <= requested["requested_ns"][0]).sum())
                got = np.maximum(arrived, requested["requested_ns"])
                within.add(np.array([most_at_once(queued, got) <= max(at_first, 1)]))
    yield from (in_turn, apart, within)


def _workers(batches: BatchLifecycle) -> Iterator[Rule]:
    sent = batches.select(batches.by_worker & batches.has("sent_to"))
    yield _rule("the worker that made a batch is the one it was queued to", sent["worker"] == sent["sent_to"], sent)
    made = batches.with_all("begin_ns")
    made = made.select(np.lexsort((made["begin_ns"], made["thread"])))
    same = made["thread"][1:] == made["thread"][:-1]
    holds = made["begin_ns"][1:] >= made["end_ns"][:-1]
    yield _rule("a worker makes one batch after the other", holds[same], made.select(np.flatnonzero(same) + 1))
    n = int((made.by_worker & made.has("cpu_ns")).sum())
    yield Rule("the processor's time of a batch is known of all or none", int(n > 0), int(0 < n < made.by_worker.sum()))


def _samples(records: LoaderRecords, batches: BatchLifecycle) -> Iterator[Rule]:
    level = levels(records)
    rules = [
        Rule("a sample lies in a batch, unless its worker died"),
        Rule("an operation lies in a sample or a collation, where there are samples"),
        Rule("what lies in something ends before it does"),
        Rule("what lies in something takes no longer than it"),
    ]
    last = np.full(len(records.threads), NONE)  # by thread: the end of its last whole batch
    made = batches.with_all("end_ns")
    np.maximum.at(last, made["thread"], made["end_ns"])
    for part in whole_batches(records.sample_chunks(), level):
        for thread, columns in by_thread(part, level):
            for rule, holds in zip(rules, _nesting(columns, level[columns.name], int(last[thread])), strict=True):
                rule.add(holds)
    yield from rules


def _nesting(columns: Columns, level: Array, last_ns: int) -> Iterator[Array]:
    """Whether the rules of ``_samples`` hold of the records of a thread."""
    parent = parents(columns.start_ns, columns.duration_ns)
    inner, outer = parent >= 0, np.maximum(parent, 0)
    lived = columns.start_ns < last_ns  # what comes after the last batch is of one that a dead worker never ended
    yield (inner & np.isin(level[outer], (PREPROCESS, COLLATE, OPERATION, *READING)))[np.isin(level, READING) & lived]
    # A dataset whose reading is not seen has no samples.
    has_samples = np.bincount(parent[inner & np.isin(level, (ITEM, ITEMS))], minlength=len(columns)) > 0
    is_held = np.isin(level[outer], (*READING, COLLATE, OPERATION)) | ((level[outer] == PREPROCESS) & ~has_samples[outer])
    yield (inner & is_held)[(level == OPERATION) & lived]
    yield (columns.end_ns <= columns.end_ns[outer])[inner]
    children = np.bincount(parent[inner], weights=columns.duration_ns[inner], minlength=len(columns))
    yield (children <= columns.duration_ns)[children > 0]


def _each_once(records: LoaderRecords, loaders: Loaders) -> Rule:
    codes = [i for i, pair in enumerate(records.names) if pair == ("data", "item")]
    chunks = (part.select(np.isin(part.name, codes) & (part.value >= 0)) for part in records.sample_chunks())
    items = Columns.joined(list(chunks))
    return _rule("each sample of an epoch has one record", _repeats(loaders.of_each(items), loaders.episode[items.args], items.value) == 1)
