"""Stacks joined, by time and thread, with the phases of a rank: how often each stack was seen in
which phase, process and thread.

py-spy writes neither the time of day nor the machine's clock. Its clock starts between its own
start and its message that it samples, some 17 ms later. Two more bounds come from the stacks: that
voirkit no longer waits for py-spy, and that the run has ended, cannot be seen before it happens.
Within these bounds, the start is chosen for which the phases in the trace agree best with the
phases that torch's functions on the stacks show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from voirkit.analysis.nesting import NONE, Array
from voirkit.analysis.steps import ASIDE, NO_STEPS, Steps
from voirkit.phase_table import COMPUTE
from voirkit.runs.summary import BETWEEN, EVALUATION, OUTSIDE, STARTUP
from voirkit_instruments.stacks.analyse_frames import (
    ATTACHING,
    BETWEEN_FETCHES,
    CHILD,
    MAIN,
    OTHER,
    OWN_STACK,
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

# phases that are seen both in the trace and on the stacks, independently of each other
_PHASES_OF_BOTH = ("wait", *COMPUTE)
_STEP_NS = 250_000
_TRIES = 2000
_STARTS_NS = 1_500_000  # how long py-spy's clock takes to start if a processor is free
_OWN_THREADS = "voirkit-"

SpansByThread = Mapping[tuple[int, int], Spans]
# A run (also called a stretch) is a time in which a thread had the same stack: (from, to, stack),
# in microseconds of py-spy's clock.
Runs = Sequence[tuple[int, int, int]]


class Clock(NamedTuple):
    """Position of py-spy's clock on the run's clock."""

    zero_ns: int  # when py-spy's clock started
    within_ns: int  # possible error of ``zero_ns``
    # number of stacks that were compared: those that show a phase, or were seen in one
    compared: int = 0
    same: int = 0  # number of compared stacks that show the phase in which they were seen


def clock_bounds(
    runs: Runs, attached_ns: int, ended_ns: int, began_ns: int, ready_ns: int
) -> tuple[int, int]:
    """Return the earliest and the latest moment at which py-spy's clock may have started.

    Args:
        runs: The stretches of the main thread.
        attached_ns: When voirkit stopped waiting for py-spy.
        ended_ns: When the run ended.
        began_ns: When py-spy was started.
        ready_ns: When py-spy printed that it samples.
    """
    least = [began_ns]
    attaching = [end_us for _, end_us, stack in runs if stack == ATTACHING]
    if attaching:
        least.append(attached_ns - attaching[-1] * 1000)
    stopping = [start_us for start_us, _, stack in runs if stack == STOPPING]
    if stopping:
        least.append(ended_ns - stopping[0] * 1000)
    return min(max(least), ready_ns), ready_ns


def find_clock(
    runs: Runs | None,
    spans: Spans | None,
    names: Sequence[Name],
    stacks: Stacks,
    began_ns: int,
    ready_ns: int,
) -> Clock:
    """Find when py-spy's clock started.

    Args:
        runs: The stretches of the training thread.
        spans: The phases of that thread.
        names: The names of operations and phases, by number.
        began_ns: The earliest moment at which the clock may have started.
        ready_ns: The latest such moment.
    """
    widest = max(ready_ns - began_ns, 0)
    unaligned = Clock(began_ns + min(_STARTS_NS, widest), widest)
    if not runs or spans is None:
        return unaligned
    codes = {name: code for code, (_, name) in enumerate(names) if name in _PHASES_OF_BOTH}
    by_stack = {number: _code_by_frames(number, stacks, codes) for _, _, number in runs}
    # Only the start of each stretch is used, which is the time of a sample; py-spy does not write
    # the times of the samples inside the stretch.
    start_ns = np.array([start_us for start_us, _, _ in runs], dtype=np.int64) * 1000
    by_frames = np.array([by_stack[number] for _, _, number in runs], dtype=np.int64)
    comparable = np.array(sorted(codes.values()), dtype=np.int64)
    tries = began_ns + np.arange(0, widest + 1, max(_STEP_NS, widest // _TRIES), dtype=np.int64)
    compared, same = [], []
    for zero_ns in tries.tolist():
        owners = spans.owners(zero_ns + start_ns)
        by_clock = np.where(np.isin(owners, comparable), owners, NONE)
        compared.append(int(np.count_nonzero((by_clock != NONE) | (by_frames != NONE))))
        same.append(int(np.count_nonzero((by_clock == by_frames) & (by_frames != NONE))))
    shares = np.array(same) / np.maximum(compared, 1)
    best = np.flatnonzero(shares == shares.max())
    middle = int(best[len(best) // 2])
    if not same[middle]:  # no stack shows the phase that was recorded when it was seen
        return unaligned
    within_ns = int(tries[best[-1]] - tries[best[0]]) + _STEP_NS
    return Clock(int(tries[middle]), within_ns, compared[middle], same[middle])


def _code_by_frames(stack: int, stacks: Stacks, codes: Mapping[str, int]) -> int:
    """Return the number of the phase that torch's functions on a stack show; ``NONE`` if they show
    none."""
    if stack <= OWN_STACK:
        return NONE
    return codes.get(phase_by_frames(stacks.frames_of(stack)), NONE)


class Row(NamedTuple):
    """Key of a count: a stack in a phase, thread and process."""

    phase: str
    process: str
    thread: str
    stack: int


class StackCounts:
    """Counts of stacks; they can be added to those of other ranks.

    Args:
        period_ns: Time from one sample to the next.
        workers: The number of each loader worker, by pid.
        within_ns: Samples of the training process outside this time are voirkit's own.
        steps: The steps of the training process.

    Attributes:
        own: Number of samples that saw voirkit's own work.
        late: Number of samples that were not taken in time.
    """

    def __init__(
        self,
        recorded: RecordedSpans,
        stacks: Stacks,
        period_ns: int,
        pid: int,
        workers: Mapping[int, int],
        within_ns: tuple[int, int],
        steps: Steps = NO_STEPS,
    ) -> None:
        self._recorded = recorded
        self._stacks = stacks
        self._period_ns = period_ns
        self._pid = pid
        self._workers = workers
        self._within_ns = within_ns
        self._steps = steps
        self._phase_of_stack: dict[int, str] = {}
        self.counts: Counter[Row] = Counter()
        # by process: its names, each with its number of samples
        self.processes: dict[int, Counter[str]] = {}
        self.own = 0
        self.late = 0
        self.clocks: list[Clock] = []  # the position of py-spy's clock for each of its files

    def add_chunk(
        self,
        pid: int,
        threads: Sequence[Thread],
        began_ns: int,
        ready_ns: int,
        until_ns: int | None,
        last_seen: Mapping[int, int],
    ) -> None:
        """Count the stacks in one file of py-spy.

        Args:
            began_ns: When py-spy was started; its clock starts between this and ``ready_ns``.
            ready_ns: When py-spy printed that it samples.
            until_ns: Until when the process executed the program that py-spy looked at; None if it
                always did.
            last_seen: When each thread was last seen to exist.
        """
        until_us = max((run[1] for thread in threads for run in thread.runs), default=0)
        spans = self._recorded.between(began_ns, ready_ns + until_us * 1000)[PHASE]
        clock = self._find_clock(pid, threads, spans, began_ns, ready_ns)
        if until_ns is not None:
            until_us = max((until_ns - clock.zero_ns) // 1000, 0)
        last_ns = max(last_seen.values(), default=0)
        for thread in threads:
            end_us = until_us
            existed_ns = last_seen.get(thread.tid, last_ns)
            if existed_ns < last_ns:
                # The thread's last stack is cut off here: in the file of py-spy, a thread that has
                # ended keeps its last stack to the end of the file.
                end_us = min((existed_ns - clock.zero_ns) // 1000, until_us)
            runs = [
                (start, min(end, max(end_us, start + 1)), stack)
                for start, end, stack in thread.runs
                if start <= until_us
            ]
            if runs:
                at_us, stacks, is_first = self._samples_of(runs)
                at_ns = clock.zero_ns + (at_us * 1000).astype(np.int64)
                self.add(pid, thread.tid, thread.name, at_ns, stacks, spans, is_first)

    def _find_clock(
        self,
        pid: int,
        threads: Sequence[Thread],
        spans: SpansByThread,
        began_ns: int,
        ready_ns: int,
    ) -> Clock:
        leading = self._recorded.leading[PHASE].get(pid) or 0
        runs = {thread.tid: thread.runs for thread in threads}
        if pid == self._pid:
            attached_ns, ended_ns = self._within_ns
            began_ns, ready_ns = clock_bounds(
                runs.get(pid, []), attached_ns, ended_ns, began_ns, ready_ns
            )
        clock = find_clock(
            runs.get(leading),
            spans.get((pid, leading)),
            self._recorded.names,
            self._stacks,
            began_ns,
            ready_ns,
        )
        if pid == self._pid:
            self.clocks.append(clock)
        return clock

    def _samples_of(self, runs: Runs) -> tuple[Array, Array, Array]:
        """Return (time in microseconds, stack, True if it is the first of its run) of a thread's
        samples, one per period."""
        start_us, end_us, stack = np.array(runs, dtype=np.int64).T
        periods = np.round((end_us - start_us) * 1000 / self._period_ns)
        n = np.maximum(periods, 1).astype(np.int64)
        nth = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
        at_us = np.repeat(start_us, n) + nth * (self._period_ns / 1000)
        return at_us, np.repeat(stack, n), nth == 0

    def add_samples(self, pid: int, threads: Mapping[int, tuple[str, Array, Array]]) -> None:
        """Count the samples of the sampler in the program. ``threads`` holds the name of each
        thread, the times of its samples in nanoseconds, and the stacks that they saw."""
        times = [at_ns for _, at_ns, _ in threads.values() if len(at_ns)]
        if not times:
            return
        first_ns = min(int(at_ns[0]) for at_ns in times)
        last_ns = max(int(at_ns[-1]) for at_ns in times)
        spans = self._recorded.between(first_ns, last_ns + 1)[PHASE]
        for tid, (name, at_ns, stacks) in threads.items():
            self.add(pid, tid, name, at_ns, stacks, spans)

    def add_without_times(self, pid: int, stacks: Iterable[tuple[int, str, int, int]]) -> None:
        """Count stacks without times, given as (thread, its name, stack, number of samples). The
        phase is the one that torch's own functions on the stack show."""
        process = self._process_name(pid)
        for tid, name, stack, n in stacks:
            if stack <= OWN_STACK or name.startswith(_OWN_THREADS):
                self.own += n
                continue
            frames = self._stacks.frames_of(stack)
            if pid == self._pid:
                phase = phase_by_frames(frames) or OTHER
            else:
                phase = worker_phase(frames) or CHILD
            row = Row(phase, process, self._thread_name(pid, tid, name), stack)
            self._count(row, pid, n)

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
            at_ns: When the samples were taken, on the run's clock; shape (n,).
            stacks: The stacks that they saw; shape (n,).
            spans: The phases around that time.
            certain: True for samples that were certainly taken; all, if left out. Of the others it
                is only known that py-spy saw nothing new if it sampled. If the stack of such a
                sample shows another phase than the clock, the sample was late and counts as not
                taken.
        """
        is_own = stacks <= OWN_STACK
        if pid == self._pid:
            attached_ns, ended_ns = self._within_ns
            is_own |= (at_ns < attached_ns) | (at_ns >= ended_ns)
        if name.startswith(_OWN_THREADS):
            is_own |= True
        self.own += int(np.count_nonzero(is_own))
        at_ns, stacks = at_ns[~is_own], stacks[~is_own]
        certain = np.ones(len(at_ns), dtype=bool) if certain is None else certain[~is_own]
        process = self._process_name(pid)
        thread = self._thread_name(pid, tid, name)
        phases = self._phases(pid, tid, at_ns, stacks, spans)
        samples = Counter(zip(phases, stacks.tolist(), certain.tolist(), strict=True))
        for (phase, stack, is_certain), n in samples.items():
            if not is_certain and thread == MAIN and self._is_late(phase, stack):
                self.late += n
            else:
                self._count(Row(phase, process, thread, stack), pid, n)

    def _is_late(self, phase: str, stack: int) -> bool:
        """True if a stack shows another phase than the phase that was recorded at its time."""
        if phase not in _PHASES_OF_BOTH:
            return False
        if stack not in self._phase_of_stack:
            self._phase_of_stack[stack] = phase_by_frames(self._stacks.frames_of(stack))
        return self._phase_of_stack[stack] not in ("", phase)

    def _thread_name(self, pid: int, tid: int, name: str) -> str:
        leading = self._recorded.leading[PHASE].get(pid) or pid
        return MAIN if tid == leading else name or str(tid)

    def _count(self, row: Row, pid: int, n: int) -> None:
        self.counts[row] += n
        self.processes.setdefault(pid, Counter())[row.process] += n

    def _process_name(self, pid: int) -> str:
        if pid == self._pid:
            return "main"
        if pid in self._workers:
            return f"worker {self._workers[pid]}"
        return f"child {pid}"

    def _phases(
        self, pid: int, tid: int, at_ns: Array, stacks: Array, spans: SpansByThread
    ) -> list[str]:
        """Return the phase of each sample."""
        leading = self._recorded.leading[PHASE].get(pid)
        if pid == self._pid and leading is None:
            return [OUTSIDE] * len(stacks)
        if pid in self._workers or leading is None:
            return self._phases_by_frames(pid, stacks.tolist())
        owners, _ = self._recorded.owners(PHASE, spans, pid, tid, at_ns)
        names = [name for _, name in self._recorded.names]
        parts = self._parts_of_run(pid, leading, at_ns)
        recorded = [names[owner] if owner != NONE else "" for owner in owners.tolist()]
        return [_phase(name, part) for name, part in zip(recorded, parts, strict=True)]

    def _phases_by_frames(self, pid: int, stacks: list[int]) -> list[str]:
        default = BETWEEN_FETCHES if pid in self._workers else CHILD
        phases = {
            stack: worker_phase(self._stacks.frames_of(stack)) or default for stack in set(stacks)
        }
        return [phases[stack] for stack in stacks]

    def _parts_of_run(self, pid: int, leading: int, at_ns: Array) -> list[str]:
        """Return the part of the run at each instant: an evaluation, ``OTHER`` in a training step,
        or the name of the time outside of both."""
        tables = [table for table in (self._steps.train, self._steps.evaluation) if len(table)]
        if pid != self._pid or not tables:
            first_ns, last_ns = self._recorded.reach(pid, leading)
            return [
                OTHER if first_ns <= instant_ns < last_ns else OUTSIDE
                for instant_ns in at_ns.tolist()
            ]
        first_ns = min(int(table.start_ns.min()) for table in tables)
        in_training, in_evaluation = (row != NONE for row in self._steps.steps_at(at_ns))
        outside = np.where(at_ns < first_ns, STARTUP, BETWEEN)
        parts = np.select([in_evaluation, in_training], [EVALUATION, OTHER], outside)
        names: list[str] = parts.tolist()
        return names


def _phase(recorded: str, part: str) -> str:
    """Return the recorded phase, or, without one, the part of the run. Forward and wait in an
    evaluation are not distinguished.

    Args:
        recorded: The recorded phase; empty without one.
        part: The part of the run, from ``StackCounts._parts_of_run``.
    """
    if part == EVALUATION:
        return recorded if recorded in ASIDE else part
    return recorded or part
