"""``with node:`` and ``node.start()`` … ``node.stop()``: a record for each entry, with its own duration, whatever goes on meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading

import pytest
from annotating import args, counts, names


def test_the_same_node_within_itself_gives_two_records(ai, recorded):
    with ai.compute.forward, ai.compute.forward:
        pass
    outer, inner = recorded()
    assert outer.start_ns <= inner.start_ns
    assert outer.start_ns + outer.duration_ns >= inner.start_ns + inner.duration_ns


def test_a_block_gives_its_node(ai):
    with ai.compute.forward as node:
        assert node is ai.compute.forward


def test_an_exception_comes_out_and_the_block_is_recorded(ai, recorded):
    with pytest.raises(ValueError, match="x"), ai.compute.forward:
        raise ValueError("x")
    assert names(recorded()) == ["forward"]


def test_each_thread_has_its_own(ai, recorded):
    barrier = threading.Barrier(4)

    def work():
        for _ in range(20):
            with ai.compute.forward:
                barrier.wait(120)
            ai.compute.backward.start()
            barrier.wait(120)
            ai.compute.backward.stop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = recorded()
    assert counts(found) == {"forward": 80, "backward": 80}
    assert len({e.tid for e in found}) == 4


def test_interleaved_coroutines_keep_their_times_and_arguments(ai, recorded):
    async def work(who, mine, others):
        with ai.compute.forward(args={"who": who}):
            mine.set()
            await others.wait()

    async def main():
        begun, go_on = asyncio.Event(), asyncio.Event()
        first = asyncio.ensure_future(work("a", begun, go_on))
        await begun.wait()
        await work("b", go_on, begun)
        await first

    asyncio.run(main())
    a, b = recorded()
    assert (a.args, b.args) == ({"who": "a"}, {"who": "b"})
    assert a.start_ns < b.start_ns < b.start_ns + b.duration_ns < a.start_ns + a.duration_ns


def test_interleaved_generators_keep_their_times(ai, recorded):
    def work():
        with ai.compute.forward:
            yield

    a, b = work(), work()
    next(a)
    next(b)
    a.close()
    b.close()
    first, second = recorded()
    assert (
        first.start_ns
        < second.start_ns
        < first.start_ns + first.duration_ns
        < second.start_ns + second.duration_ns
    )


def test_an_exit_stack_can_hold_it(ai, recorded):
    with contextlib.ExitStack() as stack:
        stack.enter_context(ai.compute)
        stack.enter_context(ai.compute.forward)
        stack.enter_context(ai.compute.forward)
    assert counts(recorded()) == {"compute": 1, "forward": 2}


def test_a_signal_handler_may_record_while_recording(ai, recorded):
    handled = []

    def handler(*_):
        with ai.comm.send:
            handled.append(1)

    with ai.compute.forward:  # the files are open from here on
        n = 1
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        while len(handled) < 50:
            with ai.compute.forward(step=n):
                n += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert counts(recorded()) == {"forward": n, "send": len(handled)}


# from start to stop


def test_the_last_started_is_the_first_to_end(ai, recorded):
    node = ai.compute.step
    node.start()
    node.start()
    ai.update(step=1)
    node.stop()
    ai.update(step=2)
    node.stop()
    outer, inner = recorded()
    assert (outer.args, inner.args) == ({"step": 2}, {"step": 1})
    assert outer.duration_ns > inner.duration_ns


def test_a_stop_without_a_start_does_nothing(ai, recorded):
    ai.compute.step.stop()
    ai.compute.step.start()
    ai.compute.step.stop()
    ai.compute.step.stop()
    assert names(recorded()) == ["step"]


def test_a_stop_in_another_thread_does_nothing(ai, recorded):
    ai.compute.step.start()
    thread = threading.Thread(target=ai.compute.step.stop)
    thread.start()
    thread.join()
    ai.compute.step.reset()
    assert recorded() == []


def test_tasks_have_their_own_starts(ai, recorded):
    async def work(who, mine, others):
        use = ai.compute.step(args={"who": who})
        use.start()
        mine.set()
        await others.wait()
        ai.compute.step.stop()

    async def main():
        begun, go_on = asyncio.Event(), asyncio.Event()
        ai.compute.step.start()
        first = asyncio.ensure_future(work("a", begun, go_on))
        await begun.wait()
        await asyncio.ensure_future(work("b", go_on, begun))
        await first

    asyncio.run(main())
    ai.compute.step.stop()
    found = recorded()
    assert [e.args for e in found] == [{"who": "a"}, {"who": "b"}]
    a, b = found
    assert a.start_ns < b.start_ns < b.start_ns + b.duration_ns < a.start_ns + a.duration_ns


def test_reset_forgets_what_was_started_and_keeps_the_arguments(ai, recorded):
    ai.compute.step.update(step=1)
    ai.compute.step.start()
    ai.compute.step.reset()
    ai.compute.step.stop()
    with ai.compute.step:
        pass
    assert args(recorded(), "step") == [{"step": 1}]


def test_a_moment_can_be_recorded_as_metadata(ai, recorded):
    ai.pipeline.epoch.start(metadata=True)
    ai.pipeline.epoch.stop(metadata=True)
    assert [(e.category, e.name, e.kind) for e in recorded()] == [
        ("dftracer", "epoch.start", "meta"),
        ("dftracer", "epoch.end", "meta"),
    ]
