"""What a probe's subscriber raises on purpose reaches the program as itself, wherever the event came from."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import giving
import pytest
from conftest import Place

from voirkit import StopProgram, probing


def half(n: int) -> float:
    result = n / 2
    return result


def other(n: int) -> int:
    same = n
    return same


def forked(function: Callable[[], object]) -> None:
    """Run a function in a forked child, to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def wait_for(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("listeners", [0, 1])
@pytest.mark.parametrize("kind", ["immediate", "total"])
def test_fail_raises_its_own_error_where_the_event_is(listeners: int, kind: str) -> None:
    probe = probing("half > result", probe_type=kind)
    for _ in range(listeners):
        probe.subscribe(lambda event: None)
    probe["result"].fail_if_false("no half")
    with probe:
        half(1)
        with pytest.raises(giving.Failure, match="no half"):
            half(0)


def test_for_an_event_of_a_child_the_next_event_in_the_main_thread_raises_once_it_has_been_seen() -> (
    None
):
    seen: list[Any] = []
    with probing("other > same") as own, probing("half > result") as probe:
        own.subscribe(seen.append)
        probe["result"].fail_if_false("no half")
        forked(lambda: (half(0), half(0)))
        wait_for(lambda: probe._relayed.raised)
        with pytest.raises(giving.Failure, match="no half"):
            other(1)
        other(2)
    assert seen == [{"same": 1}, {"same": 2}]


def test_an_event_in_another_thread_does_not_raise_what_is_for_the_main_thread() -> None:
    with probing("half > result") as probe:
        probe["result"].fail_if_false("no half")
        forked(lambda: half(0))
        wait_for(lambda: probe._relayed.raised)
        thread = threading.Thread(
            target=half, args=(2,)
        )  # what is raised in a thread would be told as a warning
        thread.start()
        thread.join()
        with pytest.raises(giving.Failure):
            half(2)


def test_without_another_event_it_is_raised_when_the_probe_ends_and_the_stream_ends_all_the_same() -> (
    None
):
    least: list[float] = []
    probe = probing("half > result")
    probe["result"].min().subscribe(least.append)
    probe["result"].fail_if_false("no half")
    with pytest.raises(giving.Failure, match="no half"), probe:
        forked(lambda: (half(0), half(2)))
    assert least == [0]


def test_a_value_that_is_given_raises_it_too(place: Place) -> None:
    ended = stopping(place, "giving.give(step=step)", steps=1_000_000)
    assert (ended.code, ended.out) == (0, "closed\nfinalized\n")


def test_a_probe_in_the_loop_raises_it_too(place: Place) -> None:
    ended = stopping(place, "turn(step)", "//turn > n", steps=1_000_000)
    assert (ended.code, ended.out) == (0, "closed\nfinalized\n")


def test_the_run_is_none_the_worse_if_it_comes_at_its_end(place: Place) -> None:
    ended = stopping(place, "pass")
    assert (ended.code, ended.out) == (0, "closed\ncame to its end\nfinalized\n")


def stopping(
    place: Place, body: str, also: str = "//turn > never_called", steps: int = 2000
) -> Any:
    place.write(
        main=f"""
            import giving, multiprocessing, time

            def work(n):
                x = n

            def turn(n):
                never_called = 0

            if __name__ == "__main__":
                child = multiprocessing.get_context("fork").Process(target=work, args=(1,))
                child.start()
                child.join()
                try:
                    for step in range({steps}):
                        {body}
                        time.sleep(0.001)
                finally:
                    print("closed")
                print("came to its end")
        """,
        voirfile=f"""
            def instrument_stop(ov):
                ov.probe("//work > x").subscribe(lambda event: ov.stop())
                ov.probe("{also}").subscribe(lambda event: None)
                yield ov.phases.finalize
                print("finalized")
        """,
    )
    env = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    ended = place.voirkit("--quiet", "main.py", env=env, timeout=240)
    assert ended.err == ""
    return ended


def test_an_exception_that_ends_the_probe_is_not_replaced() -> None:
    def stop(event: Any) -> None:
        raise StopProgram(event["result"])

    def fails() -> None:
        with probing("half > result") as probe:
            probe.subscribe(stop)
            forked(lambda: half(2))
            wait_for(lambda: probe._relayed.raised)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fails()
