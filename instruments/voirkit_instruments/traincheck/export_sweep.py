"""The lines of one process in the order of time: each call opened and closed once, nested in its thread, no two lines at one moment.

TrainCheck asserts all that, and drops or refuses what is otherwise. Calls on one object from two threads end it too, and so do calls on
objects that happen to lie at the same address in two processes or one after the other: an object has a number of its own in each thread.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from voirkit_instruments.traincheck.export_moments import STEP, ZERO_GRAD, Coming, Moment
from voirkit_instruments.traincheck.export_spelling import Spelled, head_of
from voirkit_instruments.traincheck.export_steps import INIT
from voirkit_instruments.traincheck.export_variables import TYPE, Variables

_OPTIMIZES = (STEP, ZERO_GRAD)


class Call(NamedTuple):
    """A call to be written; times are the host's clock, ``object`` is 0 for none."""

    start_ns: int
    end_ns: int
    tid: int
    object: int
    step: int
    stage: str
    spelled: Spelled


class _Open(NamedTuple):
    """A call whose end is still to be written; compared by when that is, of the same moment what began last ends first."""

    end_ns: int
    order: int
    tid: int
    object: int
    head: str
    tail: str
    moment: Moment | None
    step: int
    stage: str


class Sweep:
    """The writer of one process's lines.

    Args:
        pid: What the process is called: a number unlike that of all others, the same in another run of the script, since TrainCheck makes
            conditions of processes and threads. Threads are numbered in it, in the order in which they are met.
        rank: Its rank.
        shift_ns: Added to the times of the host's clock.
        coming: Steps of optimizers and the like, by start.
        variables: The parameters.
        optimizers: Names of the parameters that an optimizer holds, by the id of the object.
        place: Step and stage of a moment.
        begins_ns: What optimizers did before that is known, and not written.
    """

    def __init__(
        self,
        pid: int,
        rank: int,
        shift_ns: int,
        coming: Coming,
        variables: Variables,
        optimizers: Mapping[int, Sequence[str]],
        place: Callable[[int], tuple[int, str]],
        begins_ns: int,
    ) -> None:
        self._pid, self._rank, self._shift = pid, rank, shift_ns
        self._coming, self._variables, self._optimizers, self._place = coming, variables, optimizers, place
        self._begins = begins_ns
        self._last = -(1 << 62)
        self._calls = 0
        self._objects = pid << 32
        self._threads: dict[int, int] = {}
        self._open: list[_Open] = []
        self._stacks: dict[int, list[_Open]] = {}
        self._numbers: dict[tuple[int, int], int] = {}  # of objects by thread and id
        self._metas: dict[tuple[int, str], str] = {}
        self._is_first = True

    def begin(self, call: Call) -> Iterator[str]:
        """The line of a call's entry, and of all that comes before it."""
        while (moment := self._coming.over(call.start_ns)) is not None:
            yield from self._alone(moment)
        yield from self.finish(call.start_ns)
        stack = self._stacks.setdefault(call.tid, [])
        holds, leaf = self._optimizers.get(call.object), call.spelled.leaf
        moment = self._moment_of(call, leaf) if holds is not None and leaf in _OPTIMIZES else None
        meta = self._meta(call.step, call.stage)
        if moment is not None:
            yield from self._enter(moment, call.step, call.stage)
        number, proxies = "null", ""
        if call.object and call.spelled.is_bound:
            key = call.tid, call.object
            known = self._numbers.get(key)
            if known is None or (leaf == "__init__" and not any(one.object == call.object for one in stack)):
                self._objects += 1
                known = self._numbers[key] = self._objects
                if holds is not None:
                    proxies = _proxies(holds)
                    if leaf != "__init__":  # it was made before calls were recorded
                        yield from self._made(call, known, proxies)
                        proxies = ""
            number = str(known)
        if self._is_first and not proxies:
            proxies = _proxies(())  # the reader looks for it, if only in vain
        self._is_first = False
        spelled = call.spelled
        head, end = self._head(call, meta, number), call.end_ns
        if stack and stack[-1].end_ns < end:  # they take turns: coroutines, generators
            end = stack[-1].end_ns
        kind = "function_call (post) (exception)" if spelled.is_error else "function_call (post)"
        tail = f'"type":"{kind}",{spelled.ends}'
        one = _Open(max(end, call.start_ns), -self._calls, call.tid, call.object, head, tail, moment, call.step, call.stage)
        heapq.heappush(self._open, one)
        stack.append(one)
        yield f'{head}"type":"function_call (pre)",{proxies}{spelled.begins},"time":{self._time(call.start_ns)}}}\n'

    def finish(self, until_ns: int) -> Iterator[str]:
        """The lines of calls that ended by some time."""
        while self._open and self._open[0].end_ns <= until_ns:
            one = heapq.heappop(self._open)
            self._stacks[one.tid].remove(one)
            if one.moment is not None and not one.moment.is_left:  # the innermost call ends first
                yield from self._leave(one.moment, one.step, one.stage, one.end_ns)
            yield f'{one.head}{one.tail},"time":{self._time(one.end_ns)}}}\n'

    def end(self) -> Iterator[str]:
        """All that is left."""
        forever = 1 << 62
        while (moment := self._coming.over(forever)) is not None:
            yield from self._alone(moment)
        yield from self.finish(forever)

    def _moment_of(self, call: Call, leaf: str) -> Moment | None:
        for one in self._coming.until(call.end_ns):
            if one.what == leaf and one.tid == call.tid and one.end_ns > call.start_ns:
                return one
        return None

    def _alone(self, moment: Moment) -> Iterator[str]:
        """A moment that lies in no recorded call of its optimizer."""
        if moment.start_ns < self._begins:
            self._variables.enter(moment)
            self._variables.leave(moment)
            self._coming.done(moment)
            return
        step, stage = self._place(moment.start_ns)
        yield from self.finish(moment.start_ns)
        yield from self._enter(moment, step, stage)
        yield from self.finish(moment.end_ns)
        yield from self._leave(moment, step, stage, moment.end_ns)

    def _enter(self, moment: Moment, step: int, stage: str) -> Iterator[str]:
        if moment.is_entered:
            return
        moment.is_entered = True
        self._variables.enter(moment)
        yield from self._changed(moment, step, stage, moment.start_ns)

    def _leave(self, moment: Moment, step: int, stage: str, at_ns: int) -> Iterator[str]:
        moment.is_left = True
        self._variables.leave(moment)
        yield from self._changed(moment, step, stage, at_ns)
        self._coming.done(moment)

    def _changed(self, moment: Moment, step: int, stage: str, at_ns: int) -> Iterator[str]:
        for line, is_first in self._variables.changed(stage):
            # What a parameter is when it is first seen was made before: TrainCheck compares ranks by steps.
            meta = self._meta(max(step - 1, 0) if is_first else step, stage)
            yield f'{{"process_id":{self._pid},"thread_id":{self._thread(moment.tid)},{meta},{line},"time":{self._time(at_ns)}}}\n'

    def _head(self, call: Call, meta: str, number: str) -> str:
        self._calls += 1
        return (
            f'{{"func_call_id":"{self._pid}_{self._calls}","thread_id":{self._thread(call.tid)},"process_id":{self._pid},{meta},'
            f'{call.spelled.head},"obj_id":{number},'
        )

    def _made(self, call: Call, number: int, proxies: str) -> Iterator[str]:
        """The call of an optimizer's ``__init__``, as far as it is known: what it was given."""
        kind = call.spelled.type or "torch.optim.optimizer.Optimizer"
        made = call.spelled._replace(head=head_of(f"{kind}.__init__", True))
        head = self._head(call._replace(spelled=made), self._meta(0, INIT), str(number))
        args = f'"args":{{"0":{{{json.dumps(kind)}:{{}}}}}},"kwargs":{{}}'
        yield f'{head}"type":"function_call (pre)",{proxies}{args},"time":{self._next()}}}\n'
        yield f'{head}"type":"function_call (post)","return_values":{{"NoneType":null}},"time":{self._next()}}}\n'

    def _thread(self, tid: int) -> int:
        return self._threads.get(tid) or self._threads.setdefault(tid, (self._pid << 20) + len(self._threads))

    def _meta(self, step: int, stage: str) -> str:
        found = self._metas.get((step, stage))
        if found is None:
            if len(self._metas) > 1000:
                self._metas.clear()
            found = self._metas[step, stage] = f'"meta_vars":{{"step":{step},"stage":"{stage}","rank":{self._rank}}}'
        return found

    def _time(self, at_ns: int) -> int:
        self._last = max(at_ns + self._shift, self._last + 1)
        return self._last

    def _next(self) -> int:
        self._last += 1
        return self._last


def _proxies(names: Sequence[str]) -> str:
    found = [[name, TYPE] for name in names] or [["", ""]]
    return f'"proxy_obj_names":{json.dumps(found, separators=(",", ":"))},'
