"""Probes in forked children: their events reach the parent's stream, once each."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from conftest import Place
from forking import count_to, forked, half, run

from voirkit import probing


def test_a_forked_child() -> None:
    with probing("half(n) > result").values() as seen:
        pid = forked(lambda: half(3))
    assert seen == [{"n": 3, "result": 1.5, "$pid": pid}]


def test_the_events_of_the_parent_itself_have_no_pid() -> None:
    with probing("half > result").values() as seen:
        forked(lambda: half(3))
        half(4)
    assert sorted((e["result"], "$pid" in e) for e in seen) == [(1.5, True), (2.0, False)]


def test_children_of_children() -> None:
    with probing("half > result").values() as seen:
        forked(lambda: (half(1), forked(lambda: (half(2), forked(lambda: half(3)))), half(4)))
    assert sorted(e["result"] for e in seen) == [0.5, 1.0, 1.5, 2.0]
    assert len({e["$pid"] for e in seen}) == 3


def test_several_probes_are_told_apart() -> None:
    with probing("half > n").values() as first, probing("half > result").values() as second:
        forked(lambda: half(3))
    assert [list(e) for e in first + second] == [["n", "$pid"], ["result", "$pid"]]


def test_totals_and_raw_events() -> None:
    with (
        probing("count_to(x)", probe_type="total", raw=True).values() as totals,
        probing("half > result", raw=True).values() as raw,
    ):
        forked(lambda: (count_to(3), half(3)))
    assert totals[0]["x"].values == [0, 1, 2]
    assert (raw[0]["result"].name, raw[0]["result"].value) == ("result", 1.5)


def test_pairs_of_several_children_are_not_mixed_up() -> None:
    probe = probing("count_to(!#enter as begin, !!#exit as end)")
    ids: list[Any] = []
    probe.subscribe(lambda event: ids.append((event["$wrap"]["id"], event["$wrap"]["step"])))
    with probe:
        forked(lambda: count_to(1))
        forked(lambda: count_to(1))
        count_to(1)
    assert [step for _, step in sorted(ids)] == ["begin", "end"] * 3
    assert len({number for number, _ in ids}) == 3


def test_the_copies_of_the_subscribers_in_a_child_are_not_called(place: Place) -> None:
    program = """
        import os
        from voirkit import probing
        def f(n):
            x = n
        with probing("f > x") as probe:
            probe.print()
            probe["x"].min().print("least {}")
            if os.fork() == 0:
                f(1)
            else:
                os.wait()
    """
    place.write(program=program)
    ended = run(place, "program.py")
    assert ended.code == 0
    assert ended.out.startswith("{'x': 1, '$pid': ")
    assert ended.out.endswith("}\nleast 1\n")
    assert ended.out.count("\n") == 2


def test_values_are_replaced_in_forked_children() -> None:
    results: list[Any] = []
    probe = probing("half > result", overridable=True)
    probe.override(10)
    probe.subscribe(results.append)
    read, write = os.pipe()
    with probe:
        forked(lambda: os.write(write, str(half(3)).encode()))
    assert os.read(read, 100) == b"10"
    assert [e["result"] for e in results] == [1.5]
    os.close(read)
    os.close(write)


def test_an_event_arrives_while_the_child_lives() -> None:
    seen: list[Any] = []
    probe = probing("half > result")
    probe.subscribe(seen.append)
    ready, go = os.pipe()
    with probe:
        pid = os.fork()
        if pid == 0:
            half(3)
            os.read(ready, 1)
            os._exit(0)
        while not seen:
            time.sleep(0.001)
        assert len(seen) == 1
        os.write(go, b"!")
        os.waitpid(pid, 0)
    os.close(ready)
    os.close(go)


def test_who_subscribes_later_hears_the_children_too_if_somebody_listened_when_they_began() -> None:
    heard: list[Any] = []
    ready, go = os.pipe()
    with probing("half > result").values() as seen, probing("half > result") as probe:
        probe.subscribe(lambda event: None)
        pid = os.fork()
        if pid == 0:
            os.read(ready, 1)
            half(3)
            os._exit(0)
        probe.subscribe(heard.append)
        os.write(go, b"!")
        os.waitpid(pid, 0)
    assert [e["result"] for e in heard] == [e["result"] for e in seen] == [1.5]
    os.close(ready)
    os.close(go)


def test_what_is_missed_of_children_that_began_when_nobody_listened_is_told_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    heard: list[Any] = []
    ready, go = os.pipe()
    with probing("half > result") as probe:
        pid = os.fork()
        if pid == 0:
            os.read(ready, 1)
            half(3)
            os._exit(0)
        assert capfd.readouterr().err == ""
        probe.subscribe(heard.append)
        probe.subscribe(heard.append)
        os.write(go, b"!")
        os.waitpid(pid, 0)
        forked(lambda: half(5))
    assert [e["result"] for e in heard] == [2.5, 2.5]
    assert (
        capfd.readouterr().err.count(
            "nobody listened to it when processes were started before: it sees nothing in those."
        )
        == 1
    )
    os.close(ready)
    os.close(go)
