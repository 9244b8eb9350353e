"""A handler of signals may run in the middle of a subscriber: what it raises is the program's, and comes out as without voirkit."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import giving
import pytest

from voirkit import probing
from voirkit.streams import Given

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGUSR1")


class Interrupted(Exception):
    """What the handler raises."""


def half(n: int) -> float:
    result = n / 2
    return result


def handler(number: int, frame: Any) -> None:
    try:
        _ = 1 / 0
    except ZeroDivisionError as exc:
        raise Interrupted(number) from exc


class Handler:
    def __call__(self, number: int, frame: Any) -> None:
        handler(number, frame)

    def method(self, number: int, frame: Any) -> None:
        handler(number, frame)


def interrupt(*_: Any) -> None:
    signal.raise_signal(signal.SIGUSR1)


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def waits() -> Iterator[None]:
    yield
    interrupt()


SUBSCRIBED: dict[str, Callable[[Any], object]] = {
    "alone": lambda probe: probe.subscribe(interrupt),
    "one of several": lambda probe: (
        probe.subscribe(lambda event: None),
        probe.subscribe(interrupt),
    ),
    "behind a plain operator": lambda probe: probe["result"].map(lambda x: x).subscribe(interrupt),
    "behind an operator of reactivex": lambda probe: (
        probe["result"].max(scan=True).subscribe(interrupt)
    ),
    "in an operator of reactivex": lambda probe: probe["result"].scan(interrupt).accum(),
}


@pytest.mark.parametrize("how", SUBSCRIBED)
def test_it_comes_out_where_the_event_is_with_its_cause(
    how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    probe = probing("half > result")
    SUBSCRIBED[how](probe)

    def twice() -> None:
        half(1)
        half(2)

    with probe, pytest.raises(Interrupted) as caught:
        twice()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.__context__ is caught.value.__cause__
    assert capfd.readouterr().err == ""


def test_in_a_pair() -> None:
    probe = probing("half(!#enter as begin, !!#exit as end)")
    probe.wmap(waits).subscribe(lambda result: None)
    with probe, pytest.raises(Interrupted):
        half(1)


def test_in_a_condition() -> None:
    with (
        probing("half(n~interrupt) > result", env={"half": half, "interrupt": interrupt}).values(),
        pytest.raises(Interrupted),
    ):
        half(1)


def test_what_is_given() -> None:
    with Given() as given:
        given.subscribe(interrupt)
        with pytest.raises(Interrupted):
            giving.give(a=1)


def test_the_subscriber_is_not_switched_off() -> None:
    seen: list[Any] = []

    def first_interrupted(event: Any) -> None:
        seen.append(event)
        if len(seen) == 1:
            interrupt()

    with probing("half > result") as probe:
        probe.subscribe(first_interrupted)
        with pytest.raises(Interrupted):
            half(1)
        half(2)
    assert len(seen) == 2


@pytest.mark.parametrize(
    "made",
    [
        lambda: signal.signal(signal.SIGUSR1, Handler()),
        lambda: signal.signal(signal.SIGUSR1, Handler().method),
        lambda: signal.signal(signal.SIGUSR1, functools.partial(handler)),
        lambda: signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit(7)),
    ],
)
def test_whatever_the_handler_is(made: Callable[[], object]) -> None:
    made()
    with probing("half > result") as probe:
        probe.subscribe(interrupt)
        with pytest.raises((Interrupted, SystemExit)):
            half(1)
