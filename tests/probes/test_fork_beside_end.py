"""A probe ends in one thread while another forks."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
from conftest import Place

from voirkit import probing
from voirkit.probes import processes


def g(n: int) -> int:
    a = n
    return a


def forked(function: Any) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_fork_starts_no_reader_that_the_end_waits_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with probing("g > n").values(), probing("g > a").values() as seen:
        forked(lambda: g(1))
        exchange: Any = processes._children.exchange
        park = exchange.park

        def parked(*patience_s: float) -> bool:
            done = bool(park(*patience_s))
            exchange.start_reading()  # what the other thread does after its fork
            return done

        monkeypatch.setattr(exchange, "park", parked)
        start = time.monotonic()
    assert time.monotonic() - start < 5
    assert [event["a"] for event in seen] == [1]
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_reader_is_never_joined_before_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()
    with probing("g > n").values(), probing("g > a").values():
        forked(lambda: g(1))
        exchange: Any = processes._children.exchange
        exchange.park()
        start = threading.Thread.start

        def started(thread: threading.Thread) -> None:
            if thread.name == "voirkit-events":
                begun.set()
                go_on.wait(10)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", started)
        forks = threading.Thread(target=exchange.start_reading)
        forks.start()
        assert begun.wait(10)
        ends = threading.Thread(target=exchange.park)
        ends.start()
        go_on.set()
        for thread in (forks, ends):
            thread.join(10)
            assert not thread.is_alive()


def test_nothing_is_said_and_nothing_waits(place: Place) -> None:
    place.write(
        program="""
        import os, threading, time, voirkit
        def g(n):
            a = n
            return a
        stop = False
        def toggle():
            while not stop:
                probe = voirkit.probing("g > a")
                probe.subscribe(lambda e: None)
                probe.activate()
                start = time.monotonic()
                probe.deactivate()
                if time.monotonic() - start > 5:
                    print("leaving the probe took", time.monotonic() - start)
        q = voirkit.probing("g > n")
        q.subscribe(lambda e: None)
        q.activate()
        t = threading.Thread(target=toggle)
        t.start()
        for k in range(40):
            time.sleep(0.003)
            pid = os.fork()
            if pid == 0:
                g(1)
                os._exit(0)
            os.waitpid(pid, 0)
        stop = True
        t.join()
        """
    )
    ended = place.python("-W", "ignore", "program.py")
    assert (ended.out, ended.err, ended.code) == ("", "", 0)
