"""Stacks joined, by clock and thread, with the phases of a rank: how often each was seen in which phase, of which process and thread.

What comes out can be added to that of other ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from voirkit.analysis.innermost import NONE
from voirkit.analysis.nesting import Array
from voirkit.runs.step_phases import OUTSIDE
from voirkit_instruments.stacks import analyse_clock as aligned
from voirkit_instruments.stacks.analyse_chrome import Thread
from voirkit_instruments.stacks.analyse_frames import BETWEEN, CHILD, MAIN, OTHER, OWN, Stacks, of_worker, phase_by_frames
from voirkit_instruments.stacks.analyse_spans import PHASE, Recorded, Spans

_OWN = "voirkit-"
By = Mapping[tuple[int, int], Spans]


class Row(NamedTuple):
    """What is counted: a stack, in a phase of a thread of a process."""

    phase: str
    process: str
    thread: str
    stack: int


class Joined:
    """Counts of stacks.

    Args:
        recorded: What was going on.
        stacks: The stacks by number.
        period_ns: From one look at the program to the next.
        pid: The process that trains.
        workers: Of processes that load: which worker.
        within_ns: Looks at that process outside of this are voirkit's own.
    """

    def __init__(
        self, recorded: Recorded, stacks: Stacks, period_ns: int, pid: int, workers: Mapping[int, int], within_ns: tuple[int, int]
    ) -> None:
        self._recorded, self._stacks, self._period_ns, self._pid = recorded, stacks, period_ns, pid
        self._workers, self._within_ns = workers, within_ns
        self.counts: Counter[Row] = Counter()
        self._phase_of: dict[int, str] = {}
        self.processes: dict[int, Counter[str]] = {}
        self.own = 0  # looks that saw voirkit's own work
        self.late = 0  # looks that did not come in time
        self.clocks: list[aligned.Clock] = []

    def add_chunk(
        self, pid: int, threads: Sequence[Thread], began_ns: int, ready_ns: int, until_ns: int | None, seen: Mapping[int, int]
    ) -> None:
        """Count what one file of py-spy's holds.

        Args:
            pid: The process.
            threads: What its threads did.
            began_ns: When py-spy was started; its clock begins from here to ``ready_ns``.
            ready_ns: When it said that it looks.
            until_ns: Until then the process executed what py-spy looked at; None if it always did.
            seen: By thread, when it was there last.
        """
        until_us = max((run[1] for thread in threads for run in thread.runs), default=0)
        spans = self._recorded.between(began_ns, ready_ns + until_us * 1000)[PHASE]
        lead = self._recorded.leading[PHASE].get(pid)
        leads = next((thread for thread in threads if thread.tid == lead), None)
        if pid == self._pid:
            main = next((thread.runs for thread in threads if thread.tid == pid), [])
            began_ns, ready_ns = aligned.bounds(main, *self._within_ns, began_ns, ready_ns)
        clock = aligned.clock(
            leads.runs if leads else None, spans.get((pid, lead or 0)), self._recorded.names, self._stacks, began_ns, ready_ns
        )
        if pid == self._pid:
            self.clocks.append(clock)
        last = max(seen.values(), default=0)
        if until_ns is not None:
            until_us = max((until_ns - clock.zero_ns) // 1000, 0)
        for thread in threads:
            there = seen.get(thread.tid, last)
            gone_us = (there - clock.zero_ns) // 1000 if there < last else until_us  # to the end of the file its last stack stays
            gone_us = min(gone_us, until_us)
            runs = [(begin, min(end, max(gone_us, begin + 1)), stack) for begin, end, stack in thread.runs if begin <= until_us]
            at = [self._looks(begin, end) for begin, end, _ in runs]
            if at:
                stacks = np.repeat([stack for _, _, stack in runs], [len(looks) for looks in at])
                at_ns = clock.zero_ns + (np.concatenate(at) * 1000).astype(np.int64)
                told = np.concatenate([np.arange(len(looks)) == 0 for looks in at])
                self.add(pid, thread.tid, thread.name, at_ns, stacks, spans, told)

    def _looks(self, begin_us: int, end_us: int) -> Array:
        """The looks that saw a stack: one for each period, at least one; microseconds."""
        n = max(round((end_us - begin_us) * 1000 / self._period_ns), 1)
        return np.asarray(begin_us + np.arange(n) * (self._period_ns / 1000))

    def add_samples(self, pid: int, threads: Mapping[int, tuple[str, Array, Array]]) -> None:
        """Count what the sampler saw: by thread its name, the times of looks in nanoseconds, and the stacks that they saw."""
        times = [at_ns for _, at_ns, _ in threads.values() if len(at_ns)]
        if times:
            spans = self._recorded.between(min(int(at[0]) for at in times), max(int(at[-1]) for at in times) + 1)[PHASE]
            for tid, (name, at_ns, stacks) in threads.items():
                self.add(pid, tid, name, at_ns, stacks, spans)

    def add_counted(self, pid: int, stacks: Iterable[tuple[int, str, int, int]]) -> None:
        """Count (thread, its name, stack, how often), without times: torch's own functions tell the phase."""
        for tid, name, stack, n in stacks:
            if stack <= OWN or name.startswith(_OWN):
                self.own += n
                continue
            frames = self._stacks.of(stack)
            if pid == self._pid:
                phase = phase_by_frames(frames) or OTHER
            else:
                phase = of_worker(frames) or CHILD
            is_main = tid == (self._recorded.leading[PHASE].get(pid) or pid)
            self._count(Row(phase, self._process(pid), MAIN if is_main else name or str(tid), stack), pid, n)

    def add(self, pid: int, tid: int, name: str, at_ns: Array, stacks: Array, spans: By, told: Array | None = None) -> None:
        """Count looks at a thread.

        Args:
            pid: The process.
            tid: The thread.
            name: Its name.
            at_ns: When the looks were, on the run's clock. Shape (n,).
            stacks: What they saw. Shape (n,).
            spans: The phases around that time.
            told: Which looks are known to have been; at the others nothing new was seen, if py-spy looked. A stack that says another phase
                than the clock is of a look that was late, and was not taken. All, if left out.
        """
        ours = stacks <= OWN
        if pid == self._pid:
            ours |= (at_ns < self._within_ns[0]) | (at_ns >= self._within_ns[1])
        if name.startswith(_OWN):
            ours |= True
        self.own += int(np.count_nonzero(ours))
        at_ns, stacks = at_ns[~ours], stacks[~ours]
        told = None if told is None else told[~ours]
        is_main = tid == (self._recorded.leading[PHASE].get(pid) or pid)
        thread, process = MAIN if is_main else name or str(tid), self._process(pid)
        phases = self._phases(pid, tid, at_ns, stacks, spans)
        seen = Counter(zip(phases, stacks.tolist(), [True] * len(phases) if told is None else told.tolist(), strict=True))
        for (phase, stack, known), n in seen.items():
            if not known and is_main and phase in aligned.KNOWN and (self._said(stack) or phase) != phase:
                self.late += n
                continue
            self._count(Row(phase, process, thread, stack), pid, n)

    def _said(self, stack: int) -> str:
        """The phase that a stack says by itself."""
        if stack not in self._phase_of:
            self._phase_of[stack] = phase_by_frames(self._stacks.of(stack))
        return self._phase_of[stack]

    def _count(self, row: Row, pid: int, n: int) -> None:
        self.counts[row] += n
        self.processes.setdefault(pid, Counter())[row.process] += n

    def _process(self, pid: int) -> str:
        if pid == self._pid:
            return "main"
        return f"worker {self._workers[pid]}" if pid in self._workers else f"child {pid}"

    def _phases(self, pid: int, tid: int, at_ns: Array, stacks: Array, spans: By) -> list[str]:
        lead = self._recorded.leading[PHASE].get(pid)
        if pid == self._pid and lead is None:
            return [OUTSIDE] * len(stacks)
        if pid in self._workers or lead is None:
            here = {number: of_worker(self._stacks.of(number)) for number in set(stacks.tolist())}
            return [here[number] or (BETWEEN if pid in self._workers else CHILD) for number in stacks.tolist()]
        owners = np.full(len(at_ns), NONE, dtype=np.int64)
        for one in dict.fromkeys(((pid, tid), (pid, lead))):  # its own phase, or else that of the thread that trains
            if one in spans:
                owners = np.where(owners == NONE, spans[one].owners(at_ns), owners)
        first, last = self._recorded.reach(pid, lead)
        names = [name for _, name in self._recorded.names]
        inside: list[Any] = ((at_ns >= first) & (at_ns < last)).tolist()
        return [
            names[owner] if owner != NONE else OTHER if within else OUTSIDE for owner, within in zip(owners.tolist(), inside, strict=True)
        ]
