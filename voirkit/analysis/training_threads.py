"""Threads of a process that train, grouped by training: threads that take turns are one training,
as if a single thread had done all of its work.

Threads take turns if, for example, each epoch runs in a thread of its own, or an event loop hands
its steps to a thread pool. Trials that run at the same time do not: each trial is one training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from voirkit.analysis.nesting import Array, begins_inside

# Two threads with different optimizers count as taking turns if each makes, on average, at least
# this many model calls, backward passes and optimizer steps (all together) before the other
# continues.
_LEAST_IN_TURN = 6


@dataclass(frozen=True)
class ThreadActivity:
    """Activity of one thread; the arrays are ascending."""

    tid: int
    # starts and ends of the thread's model calls, backward passes, optimizer steps and requests for
    # batches; these spans do not overlap
    busy: tuple[Array, Array]
    # the same without the requests for batches
    work: tuple[Array, Array]
    updates: int  # number of optimizer steps
    backward_passes: int
    forward_calls: int
    optimizers: frozenset[int]  # numbers of the optimizers that stepped
    fetches: int  # number of batches that the thread requested from loaders
    reads_queue: bool  # True if the thread got batches from a queue that another filled

    @property
    def weight(self) -> tuple[int, int, int]:
        """Sort key by which the greatest of several threads is the one that trains: the thread with
        the most optimizer steps; of equals, with the most backward passes, then model calls."""
        return self.updates, self.backward_passes, self.forward_calls


def outermost(start_ns: Array, end_ns: Array) -> tuple[Array, Array]:
    """Return the starts and ends of the spans that lie in no other span. The given spans are
    ascending by start, outer before inner."""
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
        """True if a thread works or requests batches at the same time as a thread of the group."""
        return _overlap(self._busy, thread.busy)

    def takes_turns_with(self, thread: ThreadActivity) -> bool:
        """True if a thread that works takes turns with the threads of the group, and so belongs to
        the same training."""
        if self.is_busy_beside(thread):
            return False
        if not thread.updates or thread.optimizers & self._optimizers:
            return True
        if any(_feeds(thread, other) or _feeds(other, thread) for other in self.threads):
            return True
        return all(_switches_seldom(thread, other) for other in self.threads if other.updates)


def group_by_training(threads: Sequence[ThreadActivity]) -> list[list[ThreadActivity]]:
    """Return the threads of each training, the thread that does most first; the training with the
    most optimizer steps comes first.

    Two kinds of threads are left out: those that only call models, at the same time as other
    threads train; and those that only read batches for other threads.
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
        # Repeated, because a thread that joins the group may let another thread join: one with the
        # same optimizer, or the one that reads its batches.
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
    """True if thread ``reader`` requests a batch before each optimizer step of thread ``trainer``,
    which requests no batches itself."""
    if not reader.fetches or trainer.fetches or trainer.reads_queue:
        return False
    batch_of_work = np.searchsorted(reader.busy[0], trainer.work[0])
    return len(np.unique(batch_of_work)) >= trainer.updates > 0


def _switches_seldom(first: ThreadActivity, second: ThreadActivity) -> bool:
    """True if two threads with different optimizers work one after the other. If one of them
    requests no batches, also true if they take turns of ``_LEAST_IN_TURN`` pieces of work."""
    starts_ns = np.concatenate((first.work[0], second.work[0]))
    is_of_second = np.arange(len(starts_ns)) >= len(first.work[0])
    in_order = is_of_second[np.argsort(starts_ns, kind="stable")]
    switches = int(np.count_nonzero(np.diff(in_order)))
    may_be_of_one_loop = not first.fetches or not second.fetches
    return switches < 2 or (may_be_of_one_loop and switches * _LEAST_IN_TURN <= len(in_order))


def _overlap(first: tuple[Array, Array], second: tuple[Array, Array]) -> bool:
    """True if a span of one set overlaps a span of the other; the spans within a set are ascending
    and do not overlap."""
    # for each span of ``first``: the first span of ``second`` that ends after the other has begun
    following = np.searchsorted(second[1], first[0], side="right")
    begins_ns = np.append(second[0], np.iinfo(np.int64).max)[following]
    return bool((begins_ns < first[1]).any())


def activities(
    tids: Array, start_ns: Array, end_ns: Array, is_kind: Mapping[str, Array], optimizer: Array
) -> list[ThreadActivity]:
    """Return the activity of each thread of a process.

    Args:
        tids: The thread of each span; shape (n,).
        start_ns: When each span began, ascending, outer before inner; same shape.
        end_ns: When each span ended.
        is_kind: For ``forward``, ``backward``, ``optimizer``, ``request``, ``fetch`` and ``queue``,
            True for each span of that kind.
        optimizer: The optimizer of each span that is an optimizer step; same shape.
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
