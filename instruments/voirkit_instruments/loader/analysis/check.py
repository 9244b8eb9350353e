"""What holds of every correct record of a loader, held against the records of a run: what is broken was recorded wrongly, or not at all.

The rules are about the records, not about the program: a sampler may draw a sample twice, a loop may be left, a worker may die.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from voirkit.analysis.nesting import Array, parents
from voirkit_instruments.loader.analysis.lives import NONE, Lives, lives
from voirkit_instruments.loader.analysis.queue import most_at_once
from voirkit_instruments.loader.analysis.records import Columns, Recorded
from voirkit_instruments.loader.analysis.samples import (
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
from voirkit_instruments.loader.analysis.sources import Sources, sources

if TYPE_CHECKING:
    from voirkit.runs.opened import Run


@dataclass
class Rule:
    """One rule.

    Attributes:
        text: What should hold.
        checked: Of how many it was asked.
        broken: Of how many it does not hold.
        example: One of those.
    """

    text: str
    checked: int = 0
    broken: int = 0
    example: str = ""


def check(run: Run, rank: int, once: bool = False) -> list[Rule]:
    """The rules for one rank's records.

    Args:
        run: The opened run.
        rank: Which.
        once: Whether each sample is drawn once an epoch, as it is without a sampler that repeats.
    """
    recorded = Recorded(run, rank)
    found = recorded.of_batches()
    if not len(found):
        return []
    known = sources(recorded, found)
    own = lives(recorded, known, found)
    rules = [*_counts(recorded, known, found), *_times(own), *_order(own), *_workers(recorded, own), *_samples(recorded, known, own)]
    if once:
        rules.append(_each_once(recorded, known))
    return [rule for rule in rules if rule.checked]


def _rule(text: str, holds: Array, own: Lives | None = None) -> Rule:
    """A rule from whether it holds of each."""
    broken = np.flatnonzero(~holds)
    example = ""
    if len(broken) and own is not None:
        at = broken[0]
        example = f"batch {own.batch[at]} of loader {own.source[at]}, iterator {own.episode[at]}"
    return Rule(text, len(holds), len(broken), example)


def _counts(recorded: Recorded, known: Sources, found: Columns) -> Iterator[Rule]:
    source, episode = known.of(found), known.episode[found.args]
    for category, name in (("data", "preprocess"), ("batch", "queued"), ("batch", "arrived"), ("batch", "wait"), ("batch", "consumed")):
        codes = [i for i, pair in enumerate(recorded.names) if pair == (category, name)]
        rows = np.isin(found.name, codes)
        keys = np.stack([source[rows], episode[rows], found.value[rows]])
        counts = np.unique(keys, axis=1, return_counts=True)[1] if rows.any() else np.zeros(0)
        yield _rule(f"a batch has one record {category}.{name} at most", counts == 1)


def _times(own: Lives) -> Iterator[Rule]:
    consumed = own.take((own["consumed_ns"] != NONE) & (own["failed"] != 1))
    yield _rule("a batch that was consumed was made", consumed["begun_ns"] != NONE, consumed)
    yield _rule("and asked for", consumed["asked_ns"] != NONE, consumed)
    there = own.take(own["worker"] >= 0)
    for text, before, after in (
        ("it is queued before it is made", "queued_ns", "begun_ns"),
        ("it arrives after it was made", "ended_ns", "arrived_ns"),
        ("it is consumed after it arrived", "arrived_ns", "consumed_ns"),
    ):
        both = there.take((there[before] != NONE) & (there[after] != NONE))
        yield _rule(text, both[before] <= both[after], both)
    made = own.take((own["ended_ns"] != NONE) & (own["consumed_ns"] != NONE))
    yield _rule("it is consumed after it was made", made["ended_ns"] <= made["consumed_ns"], made)
    waited = own.take((own["asked_ns"] != NONE) & (own["consumed_ns"] != NONE))
    yield _rule("its request ends when it is consumed", waited["came_ns"] <= waited["consumed_ns"], waited)
    used = there.take((there["consumed_ns"] != NONE) & (there["failed"] != 1))
    yield _rule("a batch of a worker was queued", used["queued_ns"] != NONE, used)
    yield _rule("and arrived", used["arrived_ns"] != NONE, used)


def _order(own: Lives) -> Iterator[Rule]:
    in_turn, apart, within = [], [], []
    for source, episode in np.unique(np.stack([own.source, own.episode]), axis=1).T.tolist():
        batches = own.take((own.source == source) & (own.episode == episode))
        asked = batches.take(batches["asked_ns"] != NONE)
        asked = asked.take(np.argsort(asked["asked_ns"], kind="stable"))
        if not len(asked):
            continue
        # in_order=False: they are consumed as they arrive
        in_turn.append(bool((np.diff(asked.batch) == 1).all() and asked.batch[0] == 0) or _as_they_arrived(asked))
        apart.append(bool((asked["asked_ns"][1:] >= asked["came_ns"][:-1]).all()))
        # An iterable dataset that has come to its end leaves numbers on the queues that no batch comes of.
        queued = np.sort(asked["queued_ns"][asked["queued_ns"] != NONE])
        if len(queued):
            at_first = int((batches["queued_ns"][batches["queued_ns"] != NONE] <= asked["asked_ns"][0]).sum())
            got = np.maximum(asked["arrived_ns"], asked["asked_ns"])
            within.append(most_at_once(queued, np.sort(got)) <= max(at_first, 1))
    yield _rule("batches are consumed in their order, or as they arrive", np.array(in_turn, bool))
    yield _rule("requests to an iterator do not overlap", np.array(apart, bool))
    yield _rule("no more batches are under way than were put on the queues at first", np.array(within, bool))


def _as_they_arrived(asked: Lives) -> bool:
    return bool((asked["arrived_ns"] != NONE).all() and (np.diff(asked["arrived_ns"]) >= 0).all())


def _workers(recorded: Recorded, own: Lives) -> Iterator[Rule]:
    there = own.take((own["worker"] >= 0) & (own["sent_to"] != NONE))
    yield _rule("the worker that made a batch is the one it was queued to", there["worker"] == there["sent_to"], there)
    made = own.take(own["begun_ns"] != NONE)
    made = made.take(np.lexsort((made["begun_ns"], made["thread"])))
    same = made["thread"][1:] == made["thread"][:-1]
    holds = made["begun_ns"][1:] >= made["ended_ns"][:-1]
    yield _rule("a worker makes one batch after the other", holds[same], made.take(np.flatnonzero(same) + 1))
    cpu = made.take((made["cpu_ns"] != NONE) & (made["worker"] >= 0))
    yield Rule(
        "the processor's time of a batch is known of all or none", int(len(cpu) > 0), int(0 < len(cpu) < (made["worker"] >= 0).sum())
    )


def _samples(recorded: Recorded, known: Sources, own: Lives) -> Iterator[Rule]:
    level = levels(recorded)
    homes = Rule("a sample lies in a batch, unless its worker died")
    held = Rule("an operation lies in a sample or a collation, where there are samples")
    nested = Rule("what lies in something ends before it does")
    sums = Rule("what lies in something takes no longer than it")
    last = np.full(len(recorded.threads), NONE)  # by thread: the end of its last whole batch
    made = own["ended_ns"] != NONE
    np.maximum.at(last, own["thread"][made], own["ended_ns"][made])
    for part in whole_batches(recorded.of_samples(), level):
        for thread, columns in by_thread(part, level):
            _nest(columns, level[columns.name], int(last[thread]), homes, held, nested, sums)
    yield from (homes, held, nested, sums)


def _nest(columns: Columns, level: Array, last_ns: int, homes: Rule, held: Rule, nested: Rule, sums: Rule) -> None:
    parent = parents(columns.start_ns, columns.duration_ns)
    inner, outer = parent >= 0, np.maximum(parent, 0)
    lived = columns.start_ns < last_ns  # what comes after the last batch is of one that a dead worker never ended
    items, works = np.isin(level, READING) & lived, (level == OPERATION) & lived
    # A dataset whose reading is not seen has no samples.
    has_samples = np.bincount(parent[inner & np.isin(level, (ITEM, ITEMS))], minlength=len(columns)) > 0
    at_home = np.isin(level[outer], (*READING, COLLATE, OPERATION)) | ((level[outer] == PREPROCESS) & ~has_samples[outer])
    for rule, holds, chosen in (
        (homes, inner & np.isin(level[outer], (PREPROCESS, COLLATE, OPERATION, *READING)), items),
        (held, inner & at_home, works),
        (nested, columns.end_ns <= columns.end_ns[outer], inner),
    ):
        rule.checked += int(chosen.sum())
        rule.broken += int((chosen & ~holds).sum())
    children = np.bincount(parent[inner], weights=columns.duration_ns[inner], minlength=len(columns))
    sums.checked += int((children > 0).sum())
    sums.broken += int((children > columns.duration_ns).sum())


def _each_once(recorded: Recorded, known: Sources) -> Rule:
    rule = Rule("each sample of an epoch has one record")
    codes = [i for i, pair in enumerate(recorded.names) if pair == ("data", "item")]
    seen: list[Array] = []
    for part in recorded.of_samples():
        items = part.take(np.isin(part.name, codes) & (part.value >= 0))
        seen.append(np.stack([known.of(items), known.episode[items.args], items.value]))
    counts = np.unique(np.concatenate(seen, axis=1), axis=1, return_counts=True)[1] if seen else np.zeros(0)
    rule.checked, rule.broken = len(counts), int((counts != 1).sum())
    return rule
