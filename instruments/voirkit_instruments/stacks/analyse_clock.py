"""When py-spy's clock began: it says no time of the day, and none of the machine's clock.

It begins between its start and when it says that it looks, some 17 ms later. That voirkit no longer waits for it, and that the run has
ended, is seen not before it is so. Within these the moment is taken at which the phases that the trace says and those that torch's
functions on the stacks say agree best.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from voirkit.analysis.innermost import NONE
from voirkit_instruments.stacks.analyse_frames import ATTACHING, OWN, STOPPING, Stacks, phase_by_frames
from voirkit_instruments.stacks.analyse_spans import Name, Spans

KNOWN = ("wait", "forward", "backward", "optimizer")  # phases that both tell
_STEP_NS = 250_000
_TRIES = 2000
_STARTS_NS = 1_500_000  # where nothing keeps it from a processor


class Clock(NamedTuple):
    """Where py-spy's clock stands on the run's.

    Attributes:
        zero_ns: Its beginning.
        within_ns: What it may be off by.
        compared: How many stacks were compared: those that say a phase, or were seen in one.
        same: How many say the one that they were seen in.
    """

    zero_ns: int
    within_ns: int
    compared: int = 0
    same: int = 0


def bounds(runs: Sequence[tuple[int, int, int]], attached_ns: int, ended_ns: int, began_ns: int, ready_ns: int) -> tuple[int, int]:
    """Between when and when its clock began.

    Args:
        runs: (from, to, stack) of the main thread, in microseconds of py-spy's clock.
        attached_ns: When voirkit waited for it no longer.
        ended_ns: When the run ended.
        began_ns: When it was started.
        ready_ns: When it said that it looks.
    """
    least = [began_ns]
    least += [attached_ns - end * 1000 for _, end, number in runs if number == ATTACHING][-1:]
    least += [ended_ns - begin * 1000 for begin, _, number in runs if number == STOPPING][:1]
    return min(max(least), ready_ns), ready_ns


def clock(
    runs: Sequence[tuple[int, int, int]] | None, spans: Spans | None, names: Sequence[Name], stacks: Stacks, began_ns: int, ready_ns: int
) -> Clock:
    """Find its beginning.

    Args:
        runs: (from, to, stack) of the thread that trains, in microseconds of py-spy's clock.
        spans: The phases of that thread.
        names: Of operations and phases, by number.
        stacks: The stacks by number.
        began_ns: Its clock did not begin before.
        ready_ns: Nor after this.
    """
    widest = max(ready_ns - began_ns, 0)
    if not runs or spans is None:
        return Clock(began_ns + min(_STARTS_NS, widest), widest)
    code = {name: at for at, (_, name) in enumerate(names) if name in KNOWN}
    by_stack = {number: NONE if number <= OWN else code.get(phase_by_frames(stacks.of(number)), NONE) for _, _, number in runs}
    # The beginning of each run was seen then; of what lies between it is not written when it was.
    at_ns = np.array([begin for begin, _, _ in runs], dtype=np.int64) * 1000
    said = np.array([by_stack[number] for _, _, number in runs], dtype=np.int64)
    known = np.array(sorted(code.values()), dtype=np.int64)
    tries = began_ns + np.arange(0, widest + 1, max(_STEP_NS, widest // _TRIES), dtype=np.int64)
    compared, same = [], []
    for zero in tries.tolist():
        clock = spans.owners(zero + at_ns)
        clock = np.where(np.isin(clock, known), clock, NONE)
        compared.append(int(np.count_nonzero((clock != NONE) | (said != NONE))))
        same.append(int(np.count_nonzero((clock == said) & (said != NONE))))
    shares = np.array(same) / np.maximum(compared, 1)
    best = np.flatnonzero(shares == shares.max())
    middle = int(best[len(best) // 2])
    if not same[middle]:  # no stack says a phase that there was
        return Clock(began_ns + min(_STARTS_NS, widest), widest)
    return Clock(int(tries[middle]), int(tries[best[-1]] - tries[best[0]]) + _STEP_NS, compared[middle], same[middle])
