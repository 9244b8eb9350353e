"""Stacks joined, by time and thread, with the phases of a rank: how often each was seen in which phase, of which process and thread.

py-spy writes no time of the day, and none of the machine's clock. Its clock begins between its start and when it prints that it samples,
some 17 ms later. That voirkit no longer waits for it, and that the run has ended, is seen not before it is so. Within these the moment is
chosen at which the phases in the trace and those that torch's functions on the stacks show agree best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from voirkit.analysis.nesting import NONE, Array
from voirkit.runs.summary import OUTSIDE
from voirkit_instruments.stacks.analyse_frames import (
    ATTACHING,
    BETWEEN,
    CHILD,
    MAIN,
    OTHER,
    OWN,
    PHASE,
    STOPPING,
    Name,
    RecordedSpans,
    Spans,
    Stacks,
    phase_by_frames,
    worker_phase,
)
from voirkit_instruments.stacks.analyse_samples import Thread

_PHASES_OF_BOTH = ("wait", "forward", "backward", "optimizer")  # that the trace and the stacks show
_STEP_NS = 250_000
_TRIES = 2000
_STARTS_NS = 1_500_000  # where nothing keeps it from a processor
_OWN_THREADS = "voirkit-"

SpansByThread = Mapping[tuple[int, int], Spans]
Runs = Sequence[tuple[int, int, int]]  # (from, to, stack) of a thread, in microseconds of py-spy's clock


class Clock(NamedTuple):
    """Where py-spy's clock stands on the run's."""

    zero_ns: int  # its beginning
    within_ns: int  # what it may be off by
    compared: int = 0  # how many stacks were compared: those that show a phase, or were seen in one
    same: int = 0  # how many show the one that they were seen in


def clock_bounds(runs: Runs, attached_ns: int, ended_ns: int, began_ns: int, ready_ns: int) -> tuple[int, int]:
    """Between when and when its clock began.

    Args:
        runs: Of the main thread.
        attached_ns: When voirkit waited for it no longer.
        ended_ns: When the run ended.
        began_ns: When it was started.
        ready_ns: When it printed that it samples.
    """
    least = [began_ns]
    least += [attached_ns - end * 1000 for _, end, number in runs if number == ATTACHING][-1:]
    least += [ended_ns - begin * 1000 for begin, _, number in runs if number == STOPPING][:1]
    return min(max(least), ready_ns), ready_ns


def find_clock(runs: Runs | None, spans: Spans | None, names: Sequence[Name], stacks: Stacks, began_ns: int, ready_ns: int) -> Clock:
    """Find its beginning.

    Args:
        runs: Of the thread that trains.
        spans: The phases of that thread.
        names: Of operations and phases, by number.
        began_ns: Its clock did not begin before.
        ready_ns: Nor after this.
    """
    widest = max(ready_ns - began_ns, 0)
    unaligned = Clock(began_ns + min(_STARTS_NS, widest), widest)
    if not runs or spans is None:
        return unaligned
    codes = {name: code for code, (_, name) in enumerate(names) if name in _PHASES_OF_BOTH}
    by_stack = {number: NONE if number <= OWN else codes.get(phase_by_frames(stacks.frames_of(number)), NONE) for _, _, number in runs}
    # The beginning of each run was seen then; of what lies between it is not written when it was.
    at_ns = np.array([begin for begin, _, _ in runs], dtype=np.int64) * 1000
    shown = np.array([by_stack[number] for _, _, number in runs], dtype=np.int64)
    comparable = np.array(sorted(codes.values()), dtype=np.int64)
    tries = began_ns + np.arange(0, widest + 1, max(_STEP_NS, widest // _TRIES), dtype=np.int64)
    compared, same = [], []
    for zero in tries.tolist():
        owners = spans.owners(zero + at_ns)
        owners = np.where(np.isin(owners, comparable), owners, NONE)
        compared.append(int(np.count_nonzero((owners != NONE) | (shown != NONE))))
        same.append(int(np.count_nonzero((owners == shown) & (shown != NONE))))
    shares = np.array(same) / np.maximum(compared, 1)
    best = np.flatnonzero(shares == shares.max())
    middle = int(best[len(best) // 2])
    if not same[middle]:  # no stack shows a phase that there was
        return unaligned
    return Clock(int(tries[middle]), int(tries[best[-1]] - tries[best[0]]) + _STEP_NS, compared[middle], same[middle])


class Row(NamedTuple):
    """What is counted: a stack, in a phase of a thread of a process."""

    phase: str
    process: str
    thread: str
    stack: int


class StackCounts:
    """Counts of stacks; they can be added to those of other ranks.

    Args:
        period_ns: From one sample to the next.
        workers: Of loader processes: which worker.
        within_ns: Samples of the training process outside of this are voirkit's own.

    Attributes:
        own: Samples that saw voirkit's own work.
        late: Samples that did not come in time.
    """

    def __init__(
        self, recorded: RecordedSpans, stacks: Stacks, period_ns: int, pid: int, workers: Mapping[int, int], within_ns: tuple[int, int]
    ) -> None:
        self._recorded, self._stacks, self._period_ns, self._pid = recorded, stacks, period_ns, pid
        self._workers, self._within_ns = workers, within_ns
        self._phase_of_stack: dict[int, str] = {}
        self.counts: Counter[Row] = Counter()
        self.processes: dict[int, Counter[str]] = {}  # by process what it is called, with the number of its samples
        self.own = self.late = 0
        self.clocks: list[Clock] = []  # of py-spy, for each file

    def add_chunk(
        self, pid: int, threads: Sequence[Thread], began_ns: int, ready_ns: int, until_ns: int | None, last_seen: Mapping[int, int]
    ) -> None:
        """Count what one file of py-spy's holds.

        Args:
            began_ns: When py-spy was started; its clock begins from here to ``ready_ns``.
            ready_ns: When it printed that it samples.
            until_ns: Until then the process executed what py-spy looked at; None if it always did.
            last_seen: By thread, when it existed last.
        """
        until_us = max((run[1] for thread in threads for run in thread.runs), default=0)
        spans = self._recorded.between(began_ns, ready_ns + until_us * 1000)[PHASE]
        leading = self._recorded.leading[PHASE].get(pid)
        runs = {thread.tid: thread.runs for thread in threads}
        if pid == self._pid:
            began_ns, ready_ns = clock_bounds(runs.get(pid, []), *self._within_ns, began_ns, ready_ns)
        clock = find_clock(runs.get(leading or 0), spans.get((pid, leading or 0)), self._recorded.names, self._stacks, began_ns, ready_ns)
        if pid == self._pid:
            self.clocks.append(clock)
        last = max(last_seen.values(), default=0)
        if until_ns is not None:
            until_us = max((until_ns - clock.zero_ns) // 1000, 0)
        for thread in threads:
            existed = last_seen.get(thread.tid, last)
            # To the end of the file a thread that has ended keeps its last stack.
            gone_us = min((existed - clock.zero_ns) // 1000 if existed < last else until_us, until_us)
            own = [(begin, min(end, max(gone_us, begin + 1)), stack) for begin, end, stack in thread.runs if begin <= until_us]
            if own:
                begin_us, end_us, stack = np.array(own, dtype=np.int64).T
                n = np.maximum(np.round((end_us - begin_us) * 1000 / self._period_ns), 1).astype(np.int64)  # a sample each period
                nth = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
                at_ns = clock.zero_ns + ((np.repeat(begin_us, n) + nth * (self._period_ns / 1000)) * 1000).astype(np.int64)
                self.add(pid, thread.tid, thread.name, at_ns, np.repeat(stack, n), spans, nth == 0)

    def add_samples(self, pid: int, threads: Mapping[int, tuple[str, Array, Array]]) -> None:
        """Count what the sampler saw: by thread its name, the times of samples in nanoseconds, and the stacks that they saw."""
        times = [at_ns for _, at_ns, _ in threads.values() if len(at_ns)]
        if times:
            spans = self._recorded.between(min(int(at_ns[0]) for at_ns in times), max(int(at_ns[-1]) for at_ns in times) + 1)[PHASE]
            for tid, (name, at_ns, stacks) in threads.items():
                self.add(pid, tid, name, at_ns, stacks, spans)

    def add_without_times(self, pid: int, stacks: Iterable[tuple[int, str, int, int]]) -> None:
        """Count (thread, its name, stack, how often), without times: torch's own functions show the phase."""
        for tid, name, stack, n in stacks:
            if stack <= OWN or name.startswith(_OWN_THREADS):
                self.own += n
                continue
            frames = self._stacks.frames_of(stack)
            phase = phase_by_frames(frames) or OTHER if pid == self._pid else worker_phase(frames) or CHILD
            self._count(Row(phase, self._process_name(pid), MAIN if self._is_main(pid, tid) else name or str(tid), stack), pid, n)

    def add(
        self,
        pid: int,
        tid: int,
        name: str,
        at_ns: Array,
        stacks: Array,
        spans: Mapping[tuple[int, int], Spans],
        certain: Array | None = None,
    ) -> None:
        """Count samples of a thread.

        Args:
            at_ns: When they were taken, on the run's clock. Shape (n,).
            stacks: What they saw. Shape (n,).
            spans: The phases around that time.
            certain: Which samples are known to have been; at the others nothing new was seen, if py-spy sampled. A stack that shows another
                phase than the clock is of a sample that was late, and was not taken. All, if left out.
        """
        own = stacks <= OWN
        if pid == self._pid:
            own |= (at_ns < self._within_ns[0]) | (at_ns >= self._within_ns[1])
        if name.startswith(_OWN_THREADS):
            own |= True
        self.own += int(np.count_nonzero(own))
        at_ns, stacks = at_ns[~own], stacks[~own]
        certain = np.ones(len(at_ns), dtype=bool) if certain is None else certain[~own]
        is_main, process = self._is_main(pid, tid), self._process_name(pid)
        thread = MAIN if is_main else name or str(tid)
        samples = Counter(zip(self._phases(pid, tid, at_ns, stacks, spans), stacks.tolist(), certain.tolist(), strict=True))
        for (phase, stack, is_certain), n in samples.items():
            if not is_certain and is_main and phase in _PHASES_OF_BOTH and (self._shown_phase(stack) or phase) != phase:
                self.late += n
            else:
                self._count(Row(phase, process, thread, stack), pid, n)

    def _is_main(self, pid: int, tid: int) -> bool:
        return tid == (self._recorded.leading[PHASE].get(pid) or pid)

    def _shown_phase(self, stack: int) -> str:
        if stack not in self._phase_of_stack:
            self._phase_of_stack[stack] = phase_by_frames(self._stacks.frames_of(stack))
        return self._phase_of_stack[stack]

    def _count(self, row: Row, pid: int, n: int) -> None:
        self.counts[row] += n
        self.processes.setdefault(pid, Counter())[row.process] += n

    def _process_name(self, pid: int) -> str:
        if pid == self._pid:
            return "main"
        return f"worker {self._workers[pid]}" if pid in self._workers else f"child {pid}"

    def _phases(self, pid: int, tid: int, at_ns: Array, stacks: Array, spans: SpansByThread) -> list[str]:
        leading = self._recorded.leading[PHASE].get(pid)
        if pid == self._pid and leading is None:
            return [OUTSIDE] * len(stacks)
        if pid in self._workers or leading is None:
            phases = {number: worker_phase(self._stacks.frames_of(number)) for number in set(stacks.tolist())}
            return [phases[number] or (BETWEEN if pid in self._workers else CHILD) for number in stacks.tolist()]
        owners, _ = self._recorded.owners(PHASE, spans, pid, tid, at_ns)
        first, last = self._recorded.reach(pid, leading)
        names = [name for _, name in self._recorded.names]
        inside: list[Any] = ((at_ns >= first) & (at_ns < last)).tolist()
        return [
            names[owner] if owner != NONE else OTHER if within else OUTSIDE for owner, within in zip(owners.tolist(), inside, strict=True)
        ]
