"""Which call lies in which, for calls that come in chunks: depth, own time, and whether a function is inside itself."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from voirkit.analysis.nesting import Array, parents


@dataclass(frozen=True)
class Calls:
    """Calls of one rank; arrays of shape (n,). Ascending by thread, start, and of the same start the longer first.

    Attributes:
        thread, function, args: Indices into the tables of ``Recorded``.
        start_ns, duration_ns: On the host's clock, nanoseconds.
        object: Id of the object whose method it is; 0 of none.
        self_ns: Time without the calls in it that were recorded.
        depth: How many recorded calls it lies in.
        inside_itself: Whether one of those is of the same function: its time is counted by that one.
        task: Index into ``when.TASKS``: whether it happened in a step of training, of evaluation, or outside.
        step: The step's number, from 0; -1 outside.
        phase: Index into ``PHASES``.
    """

    thread: Array
    start_ns: Array
    duration_ns: Array
    function: Array
    args: Array
    object: Array
    self_ns: Array
    depth: Array
    inside_itself: Array
    task: Array
    step: Array
    phase: Array

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, chosen: Array) -> Calls:
        """Those of these indices, or where a mask is true."""
        return joined([self], chosen)


def joined(parts: list[Calls], chosen: Array | None = None) -> Calls:
    """Several one after the other; only the chosen ones."""
    whole = {field.name: np.concatenate([getattr(one, field.name) for one in parts]) for field in fields(Calls)}
    return Calls(**(whole if chosen is None else {key: values[chosen] for key, values in whole.items()}))


def nested(calls: Calls) -> Calls:
    """The same with ``self_ns``, ``depth`` and ``inside_itself``.

    A call that is new comes with ``self_ns`` = ``duration_ns`` and depth -1. One that went on when the chunk before ended comes again as
    this has left it.
    """
    edges = np.flatnonzero(np.diff(calls.thread)) + 1
    found = np.full(len(calls), -1)
    for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(calls)], strict=True):
        own = parents(calls.start_ns[low:high], calls.duration_ns[low:high])
        found[low:high] = np.where(own >= 0, own + low, -1)
    depth, again = np.zeros(len(calls), dtype=np.int64), calls.inside_itself.copy()
    outer, left = found, np.flatnonzero(found >= 0)
    while len(left):
        depth[left] += 1
        again[left] |= calls.function[left] == calls.function[outer[left]]
        outer = np.where(outer >= 0, found[outer], -1)
        left = left[outer[left] >= 0]
    return replace(calls, self_ns=_without_inner(calls, found), depth=depth, inside_itself=again)


def _without_inner(calls: Calls, found: Array) -> Array:
    new = (found >= 0) & (calls.depth < 0)  # those that come again were taken from their callers before
    inner = np.bincount(found[new], weights=calls.duration_ns[new], minlength=len(calls)).astype(np.int64)
    return np.maximum(calls.self_ns - inner[: len(calls)], 0)
