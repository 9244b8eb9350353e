"""Events of child processes that come too fast, are too large, or of a child that is killed: taken or counted, and never waited for."""

from __future__ import annotations

import collections
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Place
from forking import count_to, forked, half, run

from voirkit import probing
from voirkit.probes.children import plain


def test_a_hundred_thousand_events_are_taken_or_counted() -> None:
    probe = probing("count_to > x")
    seen: list[Any] = []
    probe.subscribe(lambda event: seen.append(event["x"]))
    with probe:
        forked(lambda: count_to(100_000))
    assert len(seen) + probe.dropped == 100_000
    assert seen == sorted(set(seen))
    assert probe.events == len(seen)


def test_what_does_not_fit_is_counted_and_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    probe = probing("count_to > x")
    seen: list[Any] = []
    gate, open_gate = os.pipe()

    def slow(event: Any) -> None:
        if not seen:
            os.read(gate, 1)
        seen.append(event["x"])

    probe.subscribe(slow)
    with probe:
        forked(lambda: count_to(100_000))
        assert probe.dropped > 50_000
        os.write(open_gate, b"!")
    assert len(seen) > 5_000
    assert len(seen) + probe.dropped == 100_000
    assert seen == list(range(len(seen)))
    lines = [line for line in capfd.readouterr().err.splitlines() if "lost" in line]
    assert len(lines) == 1
    assert f"{probe.dropped} events" in lines[0]
    os.close(gate)
    os.close(open_gate)


def test_a_killed_child_loses_nothing_that_it_sent() -> None:
    with probing("half > result").values() as seen:
        forked(lambda: (half(1), half(2), os.kill(os.getpid(), signal.SIGKILL)))
    assert [e["result"] for e in seen] == [0.5, 1.0]


def test_a_large_value_arrives_as_what_it_is() -> None:
    text = "x" * 50_000

    def give(n: int) -> None:
        for _ in range(n):
            t = text  # noqa: F841

    with probing("give > t").values() as seen:
        forked(lambda: give(10))
    assert [e["t"] for e in seen] == [text] * 10
    assert plain("x" * 100_000) == {"$type": "str", "len": 100_000}


def test_large_values_never_make_a_child_wait_and_are_taken_or_counted() -> None:
    seen: list[Any] = []
    gate, open_gate = os.pipe()

    def give(n: int) -> None:
        for i in range(n):
            t = "x" * (60_000 if i % 2 else 3_000)  # noqa: F841

    def waited_ns() -> int:
        """Of the time until now, what went neither into running nor into waiting for a processor."""
        ran, for_processor, _ = map(int, Path("/proc/self/schedstat").read_text().split())
        return time.monotonic_ns() - ran - for_processor

    def timed() -> None:
        begun = waited_ns()
        give(400)
        os._exit(max(0, min((waited_ns() - begun) // 10_000_000, 255)))

    probe = probing("give > t")
    probe.subscribe(lambda event: (seen or os.read(gate, 1), seen.append(event)))
    with probe:
        pid = os.fork()
        if pid == 0:
            timed()
        hundredths = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(open_gate, b"!")
    assert hundredths < 90
    assert len(seen) + probe.dropped == 400
    assert probe.dropped > 0
    os.close(gate)
    os.close(open_gate)


def test_raw_events_that_are_too_large_arrive_as_what_they_are() -> None:
    def give() -> None:
        t = tuple("x" * 60_000 for _ in range(10))  # noqa: F841

    with probing("give > t", raw=True).values() as seen:
        forked(give)
    assert seen[0]["t"].value["$type"] == "tuple"


def test_what_is_dropped_before_a_child_could_connect_is_counted(place: Place) -> None:
    place.write(program="""
        import os, resource, time
        from voirkit import probing
        def work(n):
            half = n / 2
        with probing("work > half") as probe:
            seen = probe.accum()
            pid = os.fork()
            if pid == 0:
                before = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (4, before[1]))
                for _ in range(5):
                    work(1)
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
                time.sleep(1.1)
                work(2)
                os._exit(0)
            os.waitpid(pid, 0)
        print([e["half"] for e in seen], probe.dropped)
    """)  # fmt: skip
    ended = run(place, "program.py")
    assert (ended.code, ended.out) == (0, "[1.0] 5\n")


def test_the_probe_may_end_before_the_child() -> None:
    ready, go = os.pipe()
    with probing("half > result").values() as seen:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            half(1)
            os.read(ready, 1)
            for _ in range(100_000):
                half(2)
            os._exit(7)
        while not seen:
            time.sleep(0.001)
    os.write(go, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert len(seen) == 1
    os.close(ready)
    os.close(go)


def test_drops_stand_in_the_summary(place: Place) -> None:
    place.write(
        main="import os, time\ndef work():\n    for i in range(60000):\n        x = i\npid = os.fork()\nif pid == 0:\n    work()\n    os._exit(0)\nos.waitpid(pid, 0)\nopen('ended', 'w').close()\n",
        voirfile="""
            import os, time
            def instrument_x(ov):
                first = []
                def slow(event):
                    if not first:
                        first.append(event)
                        while not os.path.exists("ended"):
                            time.sleep(0.01)
                ov.probe("//work > x").subscribe(slow)
        """,
    )
    ended = run(place, "main.py", voirkit=True)
    assert ended.code == 0
    dropped = ended.summary["dropped"]["//work > x"]
    assert dropped > 0
    assert dropped + ended.summary["probes"][0]["events"] == 60_000
    assert ended.err.count(f"{dropped} events of child processes were lost") == 1


def test_forks_while_events_come() -> None:
    with probing("half > result").values() as seen:
        children = []
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                for i in range(200):
                    half(2 * i)
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
    assert collections.Counter(e["$pid"] for e in seen) == dict.fromkeys(children, 200)
