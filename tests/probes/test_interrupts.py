"""What is raised in a subscriber and is for the program, by Ctrl-C or a handler of signals, comes out as if there were no probe."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Place

from voirkit import probing


class Timeout(Exception):
    """What the program raises to stop itself."""


def raise_timeout(*_: Any) -> None:
    raise Timeout


class Handler:
    def __call__(self, number: int, frame: Any) -> None:
        del number, frame
        raise Timeout


def leave(number: int, frame: Any) -> None:
    raise SystemExit(143)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def f(n: int) -> str:
    for i in range(n):  # noqa: B007 -- it is watched
        pass
    return "finished"


def interrupts(_: Any) -> Any:
    """A subscriber that a signal comes upon."""
    os.kill(os.getpid(), signal.SIGUSR1)
    for _ in range(10):
        pass


HOW: dict[str, Callable[[Any], Any]] = {
    "alone": lambda p: p.subscribe(interrupts),
    "one of two": lambda p: (p.subscribe(lambda e: None), p.subscribe(interrupts)),
    "behind a plain operator": lambda p: p.map(lambda e: e).subscribe(interrupts),
    "behind an operator of reactivex": lambda p: p.take(9).subscribe(interrupts),
    "in an operator of reactivex": lambda p: p.take(9).map(interrupts).map(str).subscribe(print),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("handler", [raise_timeout, Handler(), leave])
def test_what_a_handler_raises_in_a_subscriber_reaches_the_program(
    handler: Any, how: str, capsys: Any
) -> None:
    signal.signal(signal.SIGUSR1, handler)
    with probing("f > i") as probe:
        HOW[how](probe)
        with pytest.raises((Timeout, SystemExit)) as caught:
            f(2)
        if how != "in an operator of reactivex":
            assert capsys.readouterr().err == ""
            with pytest.raises(type(caught.value)):  # the subscriber is still there
                f(1)
    assert caught.value.__context__ is None
    assert not caught.value.__suppress_context__


def test_what_a_handler_raises_in_a_condition_reaches_the_program() -> None:
    signal.signal(signal.SIGUSR1, raise_timeout)
    with probing("f(i~interrupts) > i", "f > i", env={"f": f, "interrupts": interrupts}) as probe:
        probe.subscribe(lambda event: None)
        with pytest.raises(Timeout):
            f(1)


def test_what_a_subscriber_raises_is_its_own_also_if_there_are_handlers(capsys: Any) -> None:
    signal.signal(signal.SIGUSR1, raise_timeout)

    def wrong(event: Any) -> None:
        raise SystemExit(1)

    with probing("f > i") as probe:
        probe.subscribe(wrong)
        assert f(2) == "finished"
    assert "SystemExit: 1" in capsys.readouterr().err


def test_an_interrupt_has_no_context_and_a_tap_one_line_in_its_traceback() -> None:
    def g(c: int) -> int:
        if c:
            a = b = d = e = 1
        w = 2
        return w + (a + b + d + e if c else 0)

    def interrupted(event: Any) -> None:
        raise KeyboardInterrupt

    for selector in ("g(a) > w", "g(a, b, d) > w", "g(a, b, d, e) > w"):
        with probing(selector) as probe:
            probe.subscribe(interrupted)
            with pytest.raises(KeyboardInterrupt) as caught:
                g(0)
        assert caught.value.__context__ is None
        shown = [
            frame.line
            for frame in traceback.extract_tb(caught.value.__traceback__)
            if frame.filename.endswith("taps.py")
        ]
        assert {line for line in shown if "lineno" in str(line)}
        assert len(set(shown)) == len(shown)


def test_an_interrupt_while_a_value_is_read_from_outside_has_no_context() -> None:
    def h() -> Any:
        return LIMIT

    def interrupted(event: Any) -> None:
        raise KeyboardInterrupt

    with probing("h > LIMIT") as probe:
        probe.subscribe(interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            h()
    assert caught.value.__context__ is None


LIMIT = 5


def test_a_preempted_run_ends_with_the_exit_code_of_its_handler(place: Place) -> None:
    place.write(
        main="""
        import os, signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        def train():
            for i in range(60):
                pass
            print("trained to the end")
        train()
        """,
        voirfile="""
        import os, signal
        def instrument_p(ov):
            def stop(event):
                if event["i"] == 5:
                    os.kill(os.getpid(), signal.SIGTERM)
                    for _ in range(9): pass
            ov.probe("//train > i").subscribe(stop)
        """,
    )
    ended = place.voirkit("--quiet", "main.py")
    assert (ended.code, ended.out, ended.err) == (143, "", "")
