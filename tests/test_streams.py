"""Streams: what goes wrong in a subscriber stays there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import giving
import pytest

from voirkit import streams
from voirkit.phases import StopProgram
from voirkit.streams import Given, Stream


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(streams, "report", said.append)
    return said


@pytest.fixture
def given(told: list[str]) -> Iterator[Given]:
    stream = Given()
    with stream:
        yield stream


def test_a_subscriber_that_raises_is_told_once_and_the_others_go_on(
    given: Given, told: list[str]
) -> None:
    seen: list[Any] = []
    given["x"].subscribe(lambda x: 1 / 0)
    given["x"].subscribe(seen.append)
    for i in range(3):
        giving.give(x=i)
    assert seen == [0, 1, 2]
    assert len(told) == 1
    assert "ZeroDivisionError" in told[0]
    assert f"{__file__}:" in told[0]


def test_an_operator_that_raises_is_told_with_the_line_of_the_subscription(
    given: Given, told: list[str]
) -> None:
    given["missing"].print()
    giving.give(x=1)
    giving.give(x=2)
    assert len(told) == 1
    assert "'missing'" in told[0]
    assert f"{__file__}:" in told[0]


def test_a_function_in_an_operator_that_raises_is_told_with_its_own_line(
    given: Given, told: list[str]
) -> None:
    given["x"].map(lambda x: 1 / x).print()
    giving.give(x=0)
    assert "ZeroDivisionError" in told[0]


@pytest.mark.parametrize("reduction", ["min", "max", "last", "first", "sum", "average", "count"])
def test_a_reduction_of_nothing_is_no_error(told: list[str], reduction: str) -> None:
    stream = Given()
    with stream:
        getattr(stream["?never"], reduction)().print()
    assert told == []


def test_a_reduction_that_fails_at_the_end_is_told(told: list[str]) -> None:
    stream = Given()
    with stream:
        stream["?x"].max().subscribe(lambda x: 1 / 0)
        giving.give(x=1)
    assert "ZeroDivisionError" in told[0]


@pytest.mark.parametrize("exc_type", [giving.Failure, ValueError])
def test_fail_raises_in_the_program(given: Given, exc_type: Any) -> None:
    given["?bad"].fail("it is {}", exc_type=exc_type)
    giving.give(good=1)
    with pytest.raises(exc_type, match="it is 3"):
        giving.give(bad=3)


def test_fail_if_false_raises_in_the_program(given: Given) -> None:
    given["?ok"].fail_if_false()
    giving.give(ok=True)
    with pytest.raises(giving.Failure):
        giving.give(ok=False)


@pytest.mark.parametrize("keys", [(), ("ok",)])
def test_fail_raises_in_the_program_though_another_stream_gave_the_value(
    given: Given, keys: tuple[str, ...], told: list[str]
) -> None:
    given["?ok"].fail_if_false()
    source = Stream()
    (source["ok"] if keys else source).give(*keys)
    for _ in range(2):
        with pytest.raises(giving.Failure):
            source._push({"ok": False})
    assert told == []


def test_fail_raises_in_the_program_though_a_subscriber_gave_the_value(
    given: Given, told: list[str]
) -> None:
    given["?ok"].fail_if_false()
    given["?step"].map(lambda step: step > 2).subscribe(lambda ok: giving.give(ok=ok))
    given["?step"].max(scan=True).subscribe(lambda step: giving.give(ok=step > 1))
    giving.give(step=3)
    with pytest.raises(giving.Failure):
        giving.give(step=0)
    with pytest.raises(giving.Failure):
        giving.give(step=2)
    assert told == []


def test_stop_goes_through(given: Given) -> None:
    def stop(_: Any) -> None:
        raise StopProgram(1)

    given["?x"].subscribe(stop)
    with pytest.raises(StopProgram):
        giving.give(x=1)


def test_give_is_heard_in_every_thread(given: Given) -> None:
    seen = given["?x"].accum()
    early = giving.giver("x")
    thread = threading.Thread(target=lambda: (giving.give(x=1), early(2)))
    thread.start()
    thread.join()
    assert seen == [1, 2]


def test_a_stream_can_give_into_another_from_a_thread(given: Given) -> None:
    seen = given["?y"].accum()
    source = Stream()
    source["x"].map(lambda x: x + 1).give("y")
    thread = threading.Thread(target=lambda: source._push({"x": 1}))
    thread.start()
    thread.join()
    assert seen == [2]


def test_after_the_end_giving_is_as_before(told: list[str]) -> None:
    with Given():
        pass
    assert giving.give.context is giving.global_context
    with giving.given() as plain:
        seen = plain["x"].accum()
        giving.give(x=1)
    assert seen == [1]


def test_what_is_given_is_counted_by_key(given: Given) -> None:
    giving.give(a=1, b=2)
    giving.give(a=1)
    assert given.counts == {"a": 2, "b": 1}


def test_a_subscription_can_be_disposed_of(given: Given) -> None:
    seen: list[Any] = []
    subscription = given["?x"].subscribe(seen.append)
    giving.give(x=1)
    subscription.dispose()
    giving.give(x=2)
    assert seen == [1]


def test_a_subscriber_may_give(given: Given) -> None:
    seen: list[Any] = []
    given["?x"].subscribe(lambda x: giving.give(y=x + 1))
    given["?y"].subscribe(seen.append)
    giving.give(x=1)
    assert seen == [2]


def test_an_exception_whose_text_can_not_be_made_is_told_all_the_same(
    given: Given, told: list[str]
) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def odd(_: Any) -> None:
        raise Odd

    given["?x"].subscribe(odd)
    giving.give(x=1)
    assert "Odd" in told[0]


def test_what_a_reduction_gives_at_the_end_reaches_later_subscribers(told: list[str]) -> None:
    seen: list[Any] = []
    stream = Given()
    with stream:
        stream["?x"].min().give("least")
        stream["?least"].subscribe(seen.append)
        giving.give(x=2)
        giving.give(x=1)
    assert seen == [1]


def test_a_reduction_with_a_function_of_nothing_is_no_error(told: list[str]) -> None:
    stream = Given()
    with stream:
        stream["?never"].reduce(min).print()
    assert told == []


def test_a_subscriber_that_waits_for_a_thread_that_gives_does_not_wait_for_ever(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LONGEST_WAIT_S", 0.01)
    seen = given["?z"].accum()

    def wait(_: Any) -> None:
        thread = threading.Thread(target=lambda: giving.give(z=1))
        thread.start()
        thread.join()

    given["?x"].subscribe(wait)
    idle = threading.Event()
    other = threading.Thread(target=idle.wait)
    other.start()
    giving.give(x=1)
    idle.set()
    other.join()
    assert seen == [1]


def test_an_exit_in_a_subscriber_does_not_reach_the_program(given: Given, told: list[str]) -> None:
    def leave(_: Any) -> None:
        raise SystemExit(5)

    given["?x"].subscribe(leave)
    giving.give(x=1)
    assert "SystemExit" in told[0]


# what voirkit itself listens to, and offers


def test_who_watches_a_key_is_called_for_the_events_that_have_it(given: Given) -> None:
    seen: list[Any] = []
    given.watch("x", seen.append)
    giving.give(x=1)
    giving.give(y=2)
    given.offer({"x": 3})
    assert seen == [{"x": 1}, {"x": 3}]


def test_who_watches_what_is_given_alone_hears_of_no_offer(given: Given) -> None:
    seen: list[Any] = []
    given.watch("x", seen.append, only_given=True)
    given.offer({"x": 1})
    giving.give(x=2)
    assert seen == [{"x": 2}]
    assert not given.has_listener("x")


def test_a_key_has_a_listener_if_somebody_watches_it_or_hears_everything(given: Given) -> None:
    given.watch("x", lambda event: None)
    assert (given.has_listener("x"), given.has_listener("y")) == (True, False)
    subscription = given["y"].subscribe(lambda y: None)
    assert given.has_listener("y")
    subscription.dispose()
    assert not given.has_listener("y")


def test_a_watcher_that_fails_is_switched_off(given: Given, told: list[str]) -> None:
    given.watch("x", lambda event: 1 / 0)
    for _ in range(2):
        giving.give(x=1)
    assert len(told) == 1
