"""Phases: an instrument is resumed when the phase that it waits for has ended."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest

from voirkit.phases import BaseOverseer, GivenOverseer, NotAPhase, OverseerAbort, StopProgram


class Plain(BaseOverseer):
    """Runs three phases with given results; an exception as a result is raised."""

    def __init__(self) -> None:
        super().__init__(["one", "two", "three"], args=(self,))
        self.errors: list[BaseException] = []
        self.seen: list[Any] = []

    def _on_instrument_error(self, exc: BaseException) -> None:
        self.errors.append(exc)

    def _run(self, *results: Any) -> None:
        for phase, result in zip(
            (self.phases.one, self.phases.two, self.phases.three), results, strict=True
        ):
            with self.run_phase(phase) as set_value:
                self.seen.append(f"body {phase.name}")
                if isinstance(result, BaseException):
                    raise result
                set_value(result)


@pytest.fixture
def ov() -> Plain:
    return Plain()


def test_an_instrument_is_resumed_after_the_body_of_the_phase(ov: Plain) -> None:
    def instrument(ov: Plain) -> Any:
        ov.seen.append("start")
        yield ov.phases.one
        ov.seen.append("after one")
        yield ov.phases.three
        ov.seen.append("after three")

    ov.require(instrument)
    ov(1, 2, 3)
    assert ov.seen == ["start", "body one", "after one", "body two", "body three", "after three"]


def test_the_value_of_the_yield_is_the_value_of_the_phase(ov: Plain) -> None:
    def instrument(ov: Plain) -> Any:
        ov.seen.append((yield ov.phases.two))

    ov.require(instrument)
    ov("a", "b", "c")
    assert ov.seen[-2:] == ["b", "body three"]


def test_higher_priority_is_resumed_first_and_ties_go_by_the_order_of_require(ov: Plain) -> None:
    def waiting(name: str, priority: float) -> Any:
        def instrument(ov: Plain) -> Any:
            yield ov.phases.one(priority=priority)
            ov.seen.append(name)

        return instrument

    ov.require(waiting("low", -1), waiting("first", 0), waiting("high", 5), waiting("second", 0))
    ov(1, 2, 3)
    assert ov.seen[1:5] == ["high", "first", "second", "low"]


def test_one_that_is_required_late_runs_through_the_phases_that_are_done(ov: Plain) -> None:
    def late(ov: Plain) -> Any:
        ov.seen.append((yield ov.phases.one))
        yield ov.phases.two
        ov.seen.append("late two")

    def instrument(ov: Plain) -> Any:
        yield ov.phases.two(priority=1)
        ov.require(late)
        ov.seen.append("required")

    ov.require(instrument)
    ov("value", 2, 3)
    assert ov.seen == ["body one", "body two", "value", "required", "late two", "body three"]


def test_phases_may_be_asked_for_in_any_order(ov: Plain) -> None:
    def instrument(ov: Plain) -> Any:
        yield ov.phases.two
        yield ov.phases.one
        ov.seen.append("both")
        yield ov.phases.IMMEDIATE
        ov.seen.append("at once")

    ov.require(instrument)
    ov(1, 2, 3)
    assert ov.seen[2:4] == ["both", "at once"]


def test_the_same_callable_is_required_once(ov: Plain) -> None:
    def instrument(ov: Plain) -> None:
        ov.seen.append("ran")

    ov.require(instrument, instrument)
    ov.require(instrument)
    ov(1, 2, 3)
    assert ov.seen.count("ran") == 1


def test_require_returns_the_state_of_an_instrument(ov: Plain) -> None:
    def plain(ov: Plain) -> None: ...

    def stateful(ov: Plain) -> None: ...

    stateful.__state__ = "the state"  # type: ignore[attr-defined]
    assert ov.require(stateful) == "the state"
    assert ov.require(plain, stateful) == [plain, "the state"]


def test_a_phase_that_fails_throws_into_those_who_wait_and_the_failure_goes_on(ov: Plain) -> None:
    def catches(ov: Plain) -> Any:
        try:
            yield ov.phases.one
        except ValueError:
            ov.seen.append("caught")

    def lets_pass(ov: Plain) -> Any:
        yield ov.phases.one
        ov.seen.append("never")

    ov.require(catches, lets_pass)
    with pytest.raises(ValueError, match="boom"):
        ov(ValueError("boom"), 2, 3)
    assert ov.seen == ["body one", "caught"]
    assert ov.errors == []


def test_one_that_caught_the_failure_may_wait_on(ov: Plain) -> None:
    def instrument(ov: Plain) -> Any:
        try:
            yield ov.phases.two
        except ValueError:
            yield ov.phases.one
            ov.seen.append("still here")

    ov.require(instrument)
    with pytest.raises(ValueError, match="boom"):
        ov(1, ValueError("boom"), 3)
    assert ov.seen[-1] == "still here"


@pytest.mark.parametrize(
    "failure", [ValueError("boom"), SystemExit(0), KeyboardInterrupt(), StopProgram(), None]
)
def test_one_that_asks_for_no_exception_goes_on_however_the_phase_ends(
    ov: Plain, failure: BaseException | None
) -> None:
    def instrument(ov: Plain) -> Any:
        ov.seen.append((yield ov.phases.two(throw=False)))
        ov.seen.append(ov.phases.two.exception)
        yield ov.phases.one(priority=1, throw=False)
        ov.seen.append("after")

    ov.require(instrument)
    with suppress(ValueError, SystemExit, KeyboardInterrupt):
        ov(1, 2 if failure is None else failure, 3)
    assert ov.seen[2:5] == [2 if failure is None else None, failure, "after"]


@pytest.mark.parametrize("when", ["at the start", "later"])
def test_an_instrument_that_fails_ends_alone(ov: Plain, when: str) -> None:
    def fails(ov: Plain) -> Any:
        if when == "at the start":
            raise KeyError("mine")
        yield ov.phases.one
        raise KeyError("mine")

    def works(ov: Plain) -> Any:
        yield ov.phases.three
        ov.seen.append("works")

    ov.require(fails, works)
    ov(1, 2, 3)
    assert [type(e) for e in ov.errors] == [KeyError]
    assert ov.seen[-1] == "works"


@pytest.mark.parametrize("wrong", [3, None, "one", BaseOverseer(["one"]).phases.one])
def test_to_yield_what_is_no_phase_of_this_overseer_is_an_error(ov: Plain, wrong: object) -> None:
    def instrument(ov: Plain) -> Any:
        yield wrong

    ov.require(instrument)
    ov(1, 2, 3)
    assert [type(e) for e in ov.errors] == [NotAPhase]


def test_stop_reaches_every_instrument_and_nobody_else(ov: Plain) -> None:
    def stops(ov: Plain) -> Any:
        yield ov.phases.one
        ov.stop("enough")

    def waits(ov: Plain) -> Any:
        try:
            yield ov.phases.three
        except StopProgram as stop:
            ov.seen.append(stop.args)

    ov.require(stops, waits)
    ov(1, 2, 3)
    assert ov.seen == ["body one", ("enough",)]
    assert ov.status == "stopped"


def test_an_instrument_that_fails_while_it_is_stopped_is_told(ov: Plain) -> None:
    def fails(ov: Plain) -> Any:
        try:
            yield ov.phases.three
        finally:
            raise KeyError("in the end")

    ov.require(fails)
    ov(1, StopProgram(None), 3)
    assert [type(e) for e in ov.errors] == [KeyError]


def test_abort_ends_the_program_with_the_exception(ov: Plain) -> None:
    def aborts(ov: Plain) -> Any:
        yield ov.phases.one
        ov.abort(LookupError("gone"))

    ov.require(aborts)
    with pytest.raises(LookupError, match="gone"):
        ov(1, 2, 3)
    assert ov.seen == ["body one"]


def test_abort_and_stop_are_not_caught_by_except_exception() -> None:
    assert not issubclass(StopProgram, Exception)
    assert not issubclass(OverseerAbort, Exception)


def test_an_overseer_runs_once(ov: Plain) -> None:
    ov(1, 2, 3)
    with pytest.raises(RuntimeError, match="once"):
        ov(1, 2, 3)


def test_the_status_of_a_phase_goes_from_pending_over_running_to_done(ov: Plain) -> None:
    def instrument(ov: Plain) -> Any:
        ov.seen.append(ov.phases.one.pending)
        yield ov.phases.one
        ov.seen.append((ov.phases.one.running, ov.phases.two.pending))
        yield ov.phases.two
        ov.seen.append(ov.phases.one.done)

    ov.require(instrument)
    ov(1, 2, 3)
    assert [s for s in ov.seen if not isinstance(s, str)] == [True, (True, True), True]


class Giving(GivenOverseer):
    def __init__(self) -> None:
        super().__init__(["go"], args=(self,))

    def _run(self, program: Any) -> None:
        with self.run_phase(self.phases.go):
            program(self)


def test_what_is_given_arrives_when_the_call_returns() -> None:
    seen: list[Any] = []

    def program(ov: Giving) -> None:
        ov.given["?x"].subscribe(seen.append)
        ov.give(x=1)
        assert seen == [1]

    Giving()(program)


def test_what_threads_give_arrives_at_once_and_one_after_the_other() -> None:
    seen: list[Any] = []

    def program(ov: Giving) -> None:
        ov.given.subscribe(lambda data: (seen.append((data["who"], data["i"])), seen.append("end")))

        def work(who: int) -> None:
            for i in range(100):
                ov.give(who=who, i=i)
                assert (who, i) in seen

        threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    Giving()(program)
    assert seen[1::2] == ["end"] * 400
    for who in range(4):
        assert [s[1] for s in seen[::2] if s[0] == who] == list(range(100))


def test_queue_adds_the_time() -> None:
    seen: list[Any] = []

    def program(ov: Giving) -> None:
        ov.given.subscribe(seen.append)
        ov.queue(x=1)

    Giving()(program)
    assert seen[0]["x"] == 1
    assert seen[0]["$queued"] > 1e9


def test_reductions_come_out_when_the_run_ends() -> None:
    seen: list[Any] = []

    def program(ov: Giving) -> None:
        ov.given["?x"].min().subscribe(seen.append)
        ov.give(x=3)
        ov.give(x=2)
        assert seen == []

    Giving()(program)
    assert seen == [2]
