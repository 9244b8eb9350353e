"""The rules of every correct record of a loader, checked on the records of a run: what is broken was recorded wrongly, or not at all.

The rules are about the records, not about the program: a sampler may draw a sample twice, a loop
may be left, a worker may die.
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
from voirkit_instruments.loader.analyse_totals import (
    COLLATE,
    ITEM,
    ITEMS,
    OPERATION,
    PREPROCESS,
    READING,
    by_thread,
    levels,
    whole_batches,
)


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


def check(run: Run, rank: int, drawn_once: bool = False) -> list[Rule]:
    """The rules for one rank's records; ``drawn_once``: each sample is drawn once an epoch, as it
    is without a sampler that repeats."""
    rank_records = read_rank(run, rank)
    if rank_records is None:
        return []
    records, columns, loaders, batches = rank_records
    rules = [
        *_counts(records, loaders, columns),
        *_times(batches),
        *_order(batches),
        *_workers(batches),
        *_samples(records, batches),
    ]
    if drawn_once:
        rules.append(_each_once(records, loaders))
    return [rule for rule in rules if rule.checked]


def _rule(text: str, holds: Array, batches: BatchLifecycle | None = None) -> Rule:
    """A rule, given for each whether it holds."""
    broken = np.flatnonzero(~holds)
    example = ""
    if len(broken) and batches is not None:
        i = broken[0]
        example = (
            f"batch {batches.batch[i]} of loader {batches.source[i]}, iterator {batches.episode[i]}"
        )
    return Rule(text, len(holds), len(broken), example)


def _repeats(source: Array, episode: Array, value: Array) -> Array:
    """How often each (loader, episode, number) is there."""
    if not len(value):
        return np.zeros(0)
    _, counts = np.unique(np.stack([source, episode, value]), axis=1, return_counts=True)
    return counts


def _counts(records: LoaderRecords, loaders: Loaders, columns: Columns) -> Iterator[Rule]:
    source, episode = loaders.of_each(columns), loaders.episode[columns.args]
    for category, name in (
        ("data", "preprocess"),
        ("batch", "queued"),
        ("batch", "arrived"),
        ("batch", "wait"),
        ("batch", "consumed"),
    ):
        codes = [i for i, pair in enumerate(records.names) if pair == (category, name)]
        rows = np.isin(columns.name, codes)
        repeats = _repeats(source[rows], episode[rows], columns.value[rows])
        yield _rule(f"a batch has one record {category}.{name} at most", repeats == 1)


def _times(batches: BatchLifecycle) -> Iterator[Rule]:
    def in_order(text: str, batches: BatchLifecycle, before: str, after: str) -> Rule:
        both = batches.with_all(before, after)
        return _rule(text, both[before] <= both[after], both)

    consumed = batches.select(batches.has("consumed_ns") & (batches["failed"] != 1))
    yield _rule("a batch that was consumed was made", consumed.has("begin_ns"), consumed)
    yield _rule("and asked for", consumed.has("requested_ns"), consumed)
    of_workers = batches.select(batches.by_worker)
    yield in_order("it is queued before it is made", of_workers, "queued_ns", "begin_ns")
    yield in_order("it arrives after it was made", of_workers, "end_ns", "arrived_ns")
    yield in_order("it is consumed after it arrived", of_workers, "arrived_ns", "consumed_ns")
    yield in_order("it is consumed after it was made", batches, "end_ns", "consumed_ns")
    requested = batches.with_all("requested_ns", "consumed_ns")
    ends = requested["received_ns"] <= requested["consumed_ns"]
    yield _rule("its request ends when it is consumed", ends, requested)
    consumed_of_workers = consumed.select(consumed.by_worker)
    is_queued = consumed_of_workers.has("queued_ns")
    yield _rule("a batch of a worker was queued", is_queued, consumed_of_workers)
    yield _rule("and arrived", consumed_of_workers.has("arrived_ns"), consumed_of_workers)


def _order(batches: BatchLifecycle) -> Iterator[Rule]:
    in_turn = Rule("batches are consumed in their order, or as they arrive")
    apart = Rule("requests to an iterator do not overlap")
    within = Rule("no more batches are under way than were put on the queues at first")
    for source in np.unique(batches.source):
        for episode in batches.select(batches.source == source).episodes():
            requests = episode.with_all("requested_ns")
            if not len(requests):
                continue
            requests = requests.select(np.argsort(requests["requested_ns"], kind="stable"))
            requested_ns, received_ns = requests["requested_ns"], requests["received_ns"]
            in_turn.add(np.array([_is_in_turn(requests)], bool))
            apart.add(np.array([(requested_ns[1:] >= received_ns[:-1]).all()], bool))
            # An iterable dataset that has ended leaves numbers on the queues that no
            # batch comes of.
            queued_ns = requests.recorded("queued_ns")
            if len(queued_ns):
                at_first = int((episode.recorded("queued_ns") <= requested_ns[0]).sum())
                got_ns = np.maximum(requests["arrived_ns"], requested_ns)
                within.add(np.array([most_at_once(queued_ns, got_ns) <= max(at_first, 1)]))
    yield from (in_turn, apart, within)


def _is_in_turn(requests: BatchLifecycle) -> bool:
    """True if batches are requested in their order, or (in_order=False) as they arrive."""
    if requests.batch[0] == 0 and (np.diff(requests.batch) == 1).all():
        return True
    return bool(requests.has("arrived_ns").all() and (np.diff(requests["arrived_ns"]) >= 0).all())


def _workers(batches: BatchLifecycle) -> Iterator[Rule]:
    sent = batches.select(batches.by_worker & batches.has("sent_to"))
    yield _rule(
        "the worker that made a batch is the one it was queued to",
        sent["worker"] == sent["sent_to"],
        sent,
    )
    ordered = batches.with_all("begin_ns")
    ordered = ordered.select(np.lexsort((ordered["begin_ns"], ordered["thread"])))
    in_one_thread = ordered["thread"][1:] == ordered["thread"][:-1]
    holds = ordered["begin_ns"][1:] >= ordered["end_ns"][:-1]
    yield _rule(
        "a worker makes one batch after the other",
        holds[in_one_thread],
        ordered.select(np.flatnonzero(in_one_thread) + 1),
    )
    n_known = int((ordered.by_worker & ordered.has("cpu_ns")).sum())
    yield Rule(
        "the processor's time of a batch is known of all or none",
        int(n_known > 0),
        int(0 < n_known < ordered.by_worker.sum()),
    )


def _samples(records: LoaderRecords, batches: BatchLifecycle) -> Iterator[Rule]:
    level = levels(records)
    rules = [
        Rule("a sample lies in a batch, unless its worker died"),
        Rule("an operation lies in a sample or a collation, where there are samples"),
        Rule("what lies in something ends before it does"),
        Rule("what lies in something takes no longer than it"),
    ]
    last_ns = np.full(len(records.threads), NONE)  # by thread: the end of its last whole batch
    ended = batches.with_all("end_ns")
    np.maximum.at(last_ns, ended["thread"], ended["end_ns"])
    for part in whole_batches(records.sample_chunks(), level):
        for thread, columns in by_thread(part, level):
            results = _nesting(columns, level[columns.name], int(last_ns[thread]))
            for rule, holds in zip(rules, results, strict=True):
                rule.add(holds)
    yield from rules


def _nesting(columns: Columns, level: Array, last_ns: int) -> Iterator[Array]:
    """Whether the rules of ``_samples`` hold of the records of a thread."""
    n = len(columns)
    parent = parents(columns.start_ns, columns.duration_ns)
    is_inner, outer = parent >= 0, np.maximum(parent, 0)
    outer_level = level[outer]
    # what comes after the last batch is of one that a dead worker never ended
    lived = columns.start_ns < last_ns
    in_batch = is_inner & np.isin(outer_level, (PREPROCESS, COLLATE, OPERATION, *READING))
    yield in_batch[np.isin(level, READING) & lived]
    # A dataset whose reading is not seen has no samples.
    is_sample = is_inner & np.isin(level, (ITEM, ITEMS))
    has_samples = np.bincount(parent[is_sample], minlength=n) > 0
    in_sample = np.isin(outer_level, (*READING, COLLATE, OPERATION))
    in_bare_batch = (outer_level == PREPROCESS) & ~has_samples[outer]
    yield (is_inner & (in_sample | in_bare_batch))[(level == OPERATION) & lived]
    yield (columns.end_ns <= columns.end_ns[outer])[is_inner]
    inner_ns = np.bincount(parent[is_inner], weights=columns.duration_ns[is_inner], minlength=n)
    yield (inner_ns <= columns.duration_ns)[inner_ns > 0]


def _each_once(records: LoaderRecords, loaders: Loaders) -> Rule:
    codes = [i for i, pair in enumerate(records.names) if pair == ("data", "item")]
    parts = []
    for part in records.sample_chunks():
        parts.append(part.select(np.isin(part.name, codes) & (part.value >= 0)))
    items = Columns.joined(parts)
    repeats = _repeats(loaders.of_each(items), loaders.episode[items.args], items.value)
    return _rule("each sample of an epoch has one record", repeats == 1)
