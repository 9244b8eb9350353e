"""Which threads of a process train, and which of them take turns: those are one training, as if a
single thread had done it all.

An epoch in a thread of its own, or steps that an event loop hands to a pool, take turns. Trials
that run at once do not: each is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from voirkit.analysis.nesting import Array, begins_inside

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
    is_outer = ~begins_inside(start_ns, end_ns)
    return start_ns[is_outer], end_ns[is_outer]


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
    by_weight = sorted(threads, key=lambda thread: thread.weight, reverse=True)
    waiting = [thread for thread in by_weight if any(thread.weight)]
    loading = [thread for thread in by_weight if not any(thread.weight) and thread.fetches]
    groups: list[_Group] = []
    while waiting:
        leader = waiting.pop(0)
        if groups and not (leader.updates or leader.backward_passes):
            break
        group = _Group(leader)
        # One that joins may bring another along: whose optimizer it shares, or whose batches it
        # trains on.
        while joining := [thread for thread in waiting if group.takes_turns_with(thread)]:
            group.add(joining[0])
            waiting.remove(joining[0])
        if not any(thread.reads_queue for thread in group.threads):
            for thread in [thread for thread in loading if not group.is_busy_beside(thread)]:
                group.add(thread)
                loading.remove(thread)
        groups.append(group)
    return [group.threads for group in groups]


def _feeds(reader: ThreadActivity, trainer: ThreadActivity) -> bool:
    """Whether a thread asks loaders for a batch before each step of another, which asks for none
    itself."""
    if not reader.fetches or trainer.fetches or trainer.reads_queue:
        return False
    batch_of_work = np.searchsorted(reader.busy[0], trainer.work[0])
    return len(np.unique(batch_of_work)) >= trainer.updates > 0


def _switches_seldom(first: ThreadActivity, second: ThreadActivity) -> bool:
    """Whether two threads with optimizers of their own work one after the other, or, if one reads
    no loader itself, in turns that last."""
    starts_ns = np.concatenate((first.work[0], second.work[0]))
    is_of_second = np.arange(len(starts_ns)) >= len(first.work[0])
    in_order = is_of_second[np.argsort(starts_ns, kind="stable")]
    switches = int(np.count_nonzero(np.diff(in_order)))
    may_be_of_one_loop = not first.fetches or not second.fetches
    return switches < 2 or (may_be_of_one_loop and switches * _LEAST_IN_TURN <= len(in_order))


def _overlap(first: tuple[Array, Array], second: tuple[Array, Array]) -> bool:
    """Whether any of some spans overlaps with any of others; each lie one after the other."""
    following = np.searchsorted(second[1], first[0], side="right")  # the first that ends later
    begins_ns = np.append(second[0], np.iinfo(np.int64).max)[following]
    return bool((begins_ns < first[1]).any())


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
    thread_ids, edges = np.unique(tids[order], return_index=True)
    threads = []
    for tid, rows in zip(thread_ids.tolist(), np.split(order, edges[1:]), strict=True):
        work, busy = rows[is_work[rows]], rows[is_busy[rows]]
        steps = rows[is_kind["optimizer"][rows]]
        optimizers = frozenset(optimizer[steps].tolist())
        counts = {name: int(np.count_nonzero(is_of[rows])) for name, is_of in is_kind.items()}
        reads_queue = counts["queue"] > 0
        work_ns = outermost(start_ns[work], end_ns[work])
        busy_ns = outermost(start_ns[busy], end_ns[busy])
        activity = ThreadActivity(
            tid,
            busy_ns,
            work_ns,
            updates=counts["optimizer"],
            backward_passes=counts["backward"],
            forward_calls=counts["forward"],
            optimizers=optimizers,
            fetches=counts["fetch"],
            reads_queue=reads_queue,
        )
        threads.append(activity)
    return threads
