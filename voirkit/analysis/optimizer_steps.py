"""Training that lies in no loop over a loader: stretches of a thread's time, cut at the steps of the optimizer that leads there.

Known as the requests for batches that nobody made: what cuts loops over loaders cuts these too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voirkit.analysis.nesting import Array
from voirkit.analysis.requests import Work
from voirkit.analysis.segmentation import OUTSIDE, Kind, Request, StepInterval


@dataclass(frozen=True)
class Led:
    """Steps of one optimizer, one after the other, that no loop of a loader interrupts.

    Attributes:
        start_ns: When each step of the optimizer began; shape (n,), ascending.
        end_ns: When it ended.
        after_ns: When what trained before them (another optimizer, a loop over a loader) was over.
        is_rest: Whether a loop over a loader came before: steps without a model call of their own are then what remained of it.
        ahead: How many batches that loop had read ahead: as many walks through graphs after it are what remained of it, too.
    """

    start_ns: Array
    end_ns: Array
    after_ns: int
    is_rest: bool
    ahead: int = 0


def steps_outside(work: Work, turn: Array, turns: Sequence[StepInterval], trains: frozenset[int], since_ns: int = 0) -> list[Led]:
    """The steps of training that lie in no loop over a loader.

    Args:
        work: What was done, ascending by start.
        turn: By span of work, the turn in which it lies.
        turns: All turns.
        trains: The episodes in which something is trained.
        since_ns: What was done before is left out.

    Where no step of an optimizer was seen at all (it is compiled, or written by hand), the walks through graphs stand for them.
    """
    kind = Work.OPTIMIZER if (work.kind == Work.OPTIMIZER).any() else Work.BACKWARD
    steps = np.flatnonzero((work.kind == kind) & (turn == OUTSIDE) & (work.start_ns >= since_ns))
    if not len(steps):
        return []
    loops = [t for t in turns if t.episode in trains]
    begins = np.array([t.start_ns for t in loops], dtype=np.int64)
    ends = np.maximum.accumulate([t.start_ns if t.end_ns is None else t.end_ns for t in loops] or [0])
    loop = np.searchsorted(begins, work.start_ns[steps], side="right")
    found = []
    for n in np.unique(loop).tolist():
        inside = steps[loop == n]
        after = int(ends[n - 1]) if n else 0
        for i, leading in enumerate(_led(inside, work.optimizer[inside])):
            before = inside[inside < leading[0]]
            after = int(work.end_ns[before[-1]]) if len(before) else after
            is_rest = bool(n) and not i
            ahead = _read_ahead(work, turn, turns, loops[n - 1].episode) if is_rest else 0
            found.append(Led(work.start_ns[leading], work.end_ns[leading], after, is_rest, ahead))
    return found


def _led(steps: Array, optimizer: Array) -> list[Array]:
    """The steps of the first optimizer; then, if others go on more often than ever between two of its steps, those of the first of them."""
    found = []
    while len(steps):
        leading = np.flatnonzero(optimizer == optimizer[0])
        others, left = np.unique(optimizer[leading[-1] + 1 :], return_counts=True)
        found.append(steps[leading])
        most = [int(np.diff(np.searchsorted(np.flatnonzero(optimizer == one), leading)).max(initial=0)) for one in others.tolist()]
        more = others[left > np.array(most, dtype=np.int64)]
        if not len(more):
            break
        next_ = leading[-1] + 1 + int(np.argmax(np.isin(optimizer[leading[-1] + 1 :], more)))
        steps, optimizer = steps[next_:], optimizer[next_:]
    return found


def _read_ahead(work: Work, turn: Array, turns: Sequence[StepInterval], episode: int) -> int:
    """How many batches a loop asks for before it trains on the first, and so trains on when it has no more (transformers' Trainer)."""
    own = np.flatnonzero([t.episode == episode for t in turns])
    walks = np.isin(own, turn[work.kind == Work.BACKWARD])
    return int(np.argmax(walks)) if walks.any() else 0


def requests_of_steps(led: Sequence[Led], work: Work, number: int) -> list[Request]:
    """One request where each step begins, which is where the optimizer's step before it ends; one that finds nothing at the end.

    Args:
        led: The steps.
        work: Model calls and walks through graphs in no loop over a loader, without evaluation.
        number: Of the first episode; the others count down.

    The first step begins with the first work. A model call before it that nothing was trained on is not told from that.
    """
    found: list[Request] = []
    for steps in led:
        since = int(np.searchsorted(work.start_ns, steps.after_ns))
        walks = np.flatnonzero(work.kind[since:] == Work.BACKWARD)[: steps.ahead]
        begun = work.start_ns[since + (int(walks[-1]) + 1 if len(walks) else 0) :][:1]
        first = int(begun[0]) if len(begun) else int(np.iinfo(np.int64).max)
        rest = int(np.searchsorted(steps.end_ns, first)) if steps.is_rest else 0
        if rest == len(steps.end_ns):
            continue
        edges = [min(first, int(steps.start_ns[rest])), *steps.end_ns[rest:].tolist()]
        found += [Request(Kind.FETCH, at, at, number, number) for at in edges[:-1]]
        found.append(Request(Kind.END, edges[-1], edges[-1], number, number))
        number -= 1
    return found
