"""Which threads of a process train, and which of them take turns: those are one training, as if a
single thread had done it all.

An epoch in a thread of its own, or steps that an event loop hands to a pool, take turns. Trials
that run at once do not: each is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from voirkit.analysis.nesting import Array

# Threads with optimizers of their own take turns if each does so many pieces of work at the mean
# before the other goes on.
_LEAST_IN_TURN = 6


@dataclass(frozen=True)
class ThreadActivity:
    """What one thread did; the arrays are ascending."""

    tid: int
    # when its work, and its requests for batches, began and ended; one after the other
    busy: tuple[Array, Array]
    # the same of its work alone: model calls, backward passes, optimizer steps
    work: tuple[Array, Array]
    updates: int  # how many steps optimizers made
    backward_passes: int
    forward_calls: int
    optimizers: frozenset[int]  # which optimizers stepped
    fetches: int  # how many batches it asked loaders for
    reads_queue: bool  # whether it got batches from a queue, which another thread filled

    @property
    def weight(self) -> tuple[int, int, int]:
        """What tells which of several threads trains: that with most optimizer steps, or else
        backward passes, or model calls."""
        return self.updates, self.backward_passes, self.forward_calls


def outermost(start_ns: Array, end_ns: Array) -> tuple[Array, Array]:
    """When those of some spans that lie in no other began and ended; they are given ascending by
    start, outer before inner."""
    before = (
        np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end_ns)[:-1]))
        if len(end_ns)
        else end_ns
    )
    return start_ns[start_ns >= before], end_ns[start_ns >= before]


class _Group:
    """Threads that take turns at one training."""

    def __init__(self, thread: ThreadActivity) -> None:
        self.threads = [thread]
        self._busy = thread.busy
        self._optimizers = thread.optimizers

    def add(self, thread: ThreadActivity) -> None:
        self.threads.append(thread)
        starts_ns, ends_ns = (
            np.concatenate(times) for times in zip(self._busy, thread.busy, strict=True)
        )
        order = np.argsort(starts_ns, kind="stable")
        self._busy = starts_ns[order], ends_ns[order]
        self._optimizers |= thread.optimizers

    def is_busy_beside(self, thread: ThreadActivity) -> bool:
        """Whether a thread works, or reads batches, while these do."""
        return _overlap(self._busy, thread.busy)

    def takes_turns_with(self, thread: ThreadActivity) -> bool:
        """Whether a thread that works takes turns with these."""
        if self.is_busy_beside(thread):
            return False
        if not thread.updates or thread.optimizers & self._optimizers:
            return True
        if any(_feeds(thread, other) or _feeds(other, thread) for other in self.threads):
            return True
        return all(_switches_seldom(thread, other) for other in self.threads if other.updates)


def group_by_training(threads: Sequence[ThreadActivity]) -> list[list[ThreadActivity]]:
    """The threads of each training, the one that does most first; a training that steps most comes
    first.

    Threads that only call models, while others train, are left out where they do so at the same
    time; those that only read batches for others, too.
    """
    waiting = sorted(
        (one for one in threads if any(one.weight)), key=lambda one: one.weight, reverse=True
    )
    loading = [one for one in threads if not any(one.weight) and one.fetches]
    groups: list[_Group] = []
    while waiting:
        leader = waiting.pop(0)
        if groups and not (leader.updates or leader.backward_passes):
            break
        group = _Group(leader)
        # One that joins may bring another along: whose optimizer it shares, or whose batches it
        # trains on.
        while (
            thread := next((one for one in waiting if group.takes_turns_with(one)), None)
        ) is not None:
            group.add(thread)
            waiting.remove(thread)
        if not any(one.reads_queue for one in group.threads):
            for thread in [one for one in loading if not group.is_busy_beside(one)]:
                group.add(thread)
                loading.remove(thread)
        groups.append(group)
    return [group.threads for group in groups]


def _feeds(reader: ThreadActivity, trainer: ThreadActivity) -> bool:
    """Whether a thread asks loaders for a batch before each step of another, which asks for none
    itself."""
    if not reader.fetches or trainer.fetches or trainer.reads_queue:
        return False
    return len(np.unique(np.searchsorted(reader.busy[0], trainer.work[0]))) >= trainer.updates > 0


def _switches_seldom(one: ThreadActivity, other: ThreadActivity) -> bool:
    """Whether two threads with optimizers of their own work one after the other, or, if one reads
    no loader itself, in turns that last."""
    threads = np.concatenate((np.zeros(len(one.work[0])), np.ones(len(other.work[0]))))
    in_order = threads[np.argsort(np.concatenate((one.work[0], other.work[0])), kind="stable")]
    switches = int(np.count_nonzero(np.diff(in_order)))
    may_be_of_one_loop = not one.fetches or not other.fetches
    return switches < 2 or (may_be_of_one_loop and switches * _LEAST_IN_TURN <= len(in_order))


def _overlap(one: tuple[Array, Array], other: tuple[Array, Array]) -> bool:
    """Whether any of some spans overlaps with any of others; each lie one after the other."""
    next_ = np.searchsorted(other[1], one[0], side="right")  # the first that ends later
    begins = np.append(other[0], np.iinfo(np.int64).max)[next_]
    return bool((begins < one[1]).any())


def activities(
    tids: Array, start_ns: Array, end_ns: Array, is_kind: Mapping[str, Array], optimizer: Array
) -> list[ThreadActivity]:
    """What each thread of a process did.

    Args:
        tids: The thread of each span; shape (n,).
        start_ns: When each began, ascending, outer before inner; same shape.
        end_ns: When it ended.
        is_kind: For ``forward``, ``backward``, ``optimizer``, ``request``, ``fetch`` and ``queue``,
            which spans are of that kind.
        optimizer: Of a step of an optimizer, which one.
    """
    is_work = is_kind["forward"] | is_kind["backward"] | is_kind["optimizer"]
    is_busy = is_work | is_kind["request"]
    order = np.argsort(tids, kind="stable")
    known, edges = np.unique(tids[order], return_index=True)
    found = []
    for tid, own in zip(known.tolist(), np.split(order, edges[1:]), strict=True):
        work, busy = own[is_work[own]], own[is_busy[own]]
        stepped = own[is_kind["optimizer"][own]]
        counts = {name: int(np.count_nonzero(which[own])) for name, which in is_kind.items()}
        found.append(
            ThreadActivity(
                tid,
                outermost(start_ns[busy], end_ns[busy]),
                outermost(start_ns[work], end_ns[work]),
                counts["optimizer"],
                counts["backward"],
                counts["forward"],
                frozenset(np.unique(optimizer[stepped]).tolist()),
                counts["fetch"],
                counts["queue"] > 0,
            )
        )
    return found
