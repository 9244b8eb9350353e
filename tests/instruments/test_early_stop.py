"""``early_stop``, ``--stop`` and ``--stop-after``: where the script ends, and that it ends in order."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from small_overseer import SmallOverseer

from voirkit.instrument import duration as seconds
from voirkit.phases import StopProgram
from voirkit_instruments.early_stop.record import (
    Stopper,
    early_stop,
    interruptible,
    stop_after_rates,
    stop_after_time,
)

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from conftest import Place


# durations


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30s", 30),
        ("5m", 300),
        ("1h", 3600),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("3", 3),
        ("0.5", 0.5),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    ["30parsecs", "", "s", "-3s", "1e3s", "inf", "nan", "1_000", "0s", "3 s s", "1.2.3s", "٣s"],
)
def test_what_is_no_duration_is_refused_with_the_units(text: str) -> None:
    with pytest.raises(ValueError, match=r"ms, s, m or h") as refused:
        seconds(text)
    assert repr(text) in str(refused.value)


# voir's early_stop


def give_x(ov: SmallOverseer) -> list[int]:
    worked = []
    for i in range(100):
        ov.give(x=i)
        worked.append(i)
    return worked


def test_the_program_ends_when_the_key_comes_for_the_time_after_the_nth() -> None:
    ov = SmallOverseer(early_stop(key="x", n=20))
    ov(give_x)
    assert ov.status == "stopped"
    assert ov.values("x") == list(range(21))


def test_progress_is_given() -> None:
    ov = SmallOverseer(early_stop(key="x", n=3))
    ov(give_x)
    assert ov.values("progress") == [(1, 3), (2, 3), (3, 3)]
    assert ov.errors == []


def test_only_the_task_counts() -> None:
    ov = SmallOverseer(early_stop(key="x", n=2, task="train"))

    def program(ov: SmallOverseer) -> None:
        for i in range(100):
            ov.give(x=i, task=("train", "eval")[i % 2])

    ov(program)
    assert ov.values("x") == [0, 1, 2, 3, 4]


def test_its_own_progress_is_no_event_of_the_program() -> None:
    ov = SmallOverseer(early_stop(key="progress", n=2))

    def program(ov: SmallOverseer) -> None:
        for i in range(100):
            ov.give(task="train", progress=(i, 100))

    ov(program)
    assert [event["progress"] for event in ov.events if event["task"] == "train"] == [
        (0, 100),
        (1, 100),
        (2, 100),
    ]


def test_a_signal_that_is_a_string_is_logged_and_stops_nothing() -> None:
    ov = SmallOverseer(early_stop(key="x", n=3, signal="enough"))
    ov(give_x)
    assert ov.records == [{"$event": "enough"}]
    assert len(ov.values("x")) == 100


# when and where it is raised


def test_an_event_of_another_thread_stops_the_main_thread_at_its_next_event() -> None:
    ended: list[str] = []

    def program(ov: SmallOverseer) -> None:
        def work() -> None:
            give_x(ov)
            ended.append("thread")

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        ov.give(y=1)
        ended.append("program")

    ov = SmallOverseer(early_stop(key="x", n=5))
    ov(program)
    assert ended == ["thread"]
    assert ov.status == "stopped"


def test_without_any_event_the_main_thread_is_stopped_all_the_same() -> None:
    def program(ov: SmallOverseer) -> None:
        while True:
            pass

    ov = SmallOverseer(stop_after_time(0.05))
    ov(program)
    assert ov.status == "stopped"


def test_a_script_that_ends_before_its_time_is_not_stopped() -> None:
    ov = SmallOverseer(stop_after_time(3600))
    ov(lambda ov: None)
    stopping = [thread for thread in threading.enumerate() if thread.name == "voirkit-stop"]
    for thread in stopping:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert ov.status != "stopped"


def test_nothing_is_raised_while_voirkit_or_a_destructor_runs() -> None:
    seen: list[bool] = []

    class Dying:
        def __del__(self) -> None:
            seen.append(interruptible(sys._getframe()))

    def called_by(module: str) -> Callable[[], bool]:
        scope: dict[str, Any] = {
            "__name__": module,
            "sys": sys,
            "interruptible": interruptible,
            "inner": None,
        }
        exec("def look(): return interruptible(sys._getframe())\ndef call(f): return f()", scope)
        return (
            scope["look"]
            if module != "threading"
            else lambda: scope["call"](called_by("voirkit.streams"))
        )

    Dying()
    assert seen == [False]
    assert interruptible(sys._getframe())
    assert interruptible(None)
    assert called_by("torch.nn.modules")()
    assert not called_by("voirkit.streams")()
    assert not called_by("voirkit_instruments.rates.record")()
    assert not called_by("threading")()


def test_nothing_is_raised_while_a_descriptor_is_fetched_from_another_process() -> None:
    seen: list[bool] = []
    scope: dict[str, Any] = {"__name__": "multiprocessing.resource_sharer"}
    exec("def detach(connect): connect()", scope)
    scope["detach"](lambda: seen.append(interruptible(sys._getframe())))
    assert seen == [False]


def test_the_nth_rate_reaches_everybody_before_the_script_ends() -> None:
    ov = SmallOverseer(stop_after_rates(2))
    late: list[Any] = []

    def program(ov: SmallOverseer) -> None:
        ov.given.subscribe(late.append)
        for i in range(100):
            ov.give(rate=float(i), units="items/s")

    ov(program)
    assert ov.status == "stopped"
    assert [event["rate"] for event in late][:2] == [0.0, 1.0]
    assert len(late) <= 3


def test_rates_of_tasks_are_counted_apart() -> None:
    ov = SmallOverseer(stop_after_rates(3))

    def program(ov: SmallOverseer) -> None:
        for i in range(100):
            ov.give(rate=float(i), units="items/s", task=("train", "eval")[i % 2])

    ov(program)
    assert len(ov.values("rate")) == 6


def test_a_stopper_that_has_ended_stops_nothing() -> None:
    ov = SmallOverseer()
    stopper = Stopper(ov)  # type: ignore[arg-type]  # as much of an overseer as it needs
    stopper.end()
    stopper.now()
    ov._end_streams()


# the command line

GIVES = """
    import sys, time
    from giving import give
    n = int(sys.argv[1])
    for i in range(n):
        give(step=i, batch=[1, 2, 3])
        time.sleep(0.01)
    print("all")
"""


def test_stop_needs_no_rate_flag(place: Place) -> None:
    ended = place.write(main=GIVES).voirkit("--stop", "2", "main.py", "100000")
    assert (ended.code, ended.out) == (0, "")
    assert ended.summary["rates"]["train_rate"]["n"] >= 2
    assert len([record for record in ended.log if "train_rate" in record]) >= 2


def test_stop_counts_the_rate_that_is_asked_for(place: Place) -> None:
    place.write(
        main="""
        import time
        from giving import give
        while True:
            with give.wrap("compute_start", batch=[1]):
                time.sleep(0.01)
        """
    )
    ended = place.voirkit("--compute-rate", "--stop", "1", "main.py")
    assert ended.code == 0
    assert list(ended.summary["rates"]) == ["compute_rate"]


def test_stop_after_ends_a_script_that_gives(place: Place) -> None:
    ended = place.write(main=GIVES).voirkit("--stop-after", "1s", "main.py", "100000")
    assert (ended.code, ended.out) == (0, "")
    assert 1 <= ended.summary["given"]["step"] < 100_000


def test_stop_after_ends_a_script_that_gives_nothing(place: Place) -> None:
    ended = place.write(main="while True: pass").voirkit("--stop-after", "0.1", "main.py")
    assert ended.code == 0
    assert "Traceback" not in ended.err


def test_a_script_that_ends_before_is_as_ever(place: Place) -> None:
    ended = place.write(main=GIVES).voirkit("--stop", "5", "--stop-after", "1h", "main.py", "3")
    assert (ended.code, ended.out) == (0, "all\n")


def test_a_stop_lets_finally_blocks_run(place: Place) -> None:
    place.write(
        main="""
        try:
            n = 0  # a loop that begins a try is not covered by it in 3.11 and 3.12, nor for KeyboardInterrupt
            while True: n += 1
        finally:
            print("closed")
        """
    )
    ended = place.voirkit("--stop-after", "100ms", "main.py")
    assert (ended.code, ended.out) == (0, "closed\n")


WORKERS = """
    import multiprocessing, sys, threading, time, torch
    from giving import give
    from torch.utils.data import DataLoader, Dataset

    class Data(Dataset):
        def __len__(self):
            return 1_000_000
        def __getitem__(self, i):
            return torch.zeros(2)

    def main():
        loader = DataLoader(Data(), batch_size=4, num_workers=2, persistent_workers=True)
        for n, x in enumerate(loader):
            if n == 3:
                print(*[child.pid for child in multiprocessing.active_children()], flush=True)
                if sys.argv[1] == "here":
                    give(ready=True)
                else:
                    threading.Thread(target=give, kwargs={"ready": True}).start()
            time.sleep(0.01)

    if __name__ == "__main__":
        main()
"""
STOPS = """
    from voirkit_instruments.early_stop.record import early_stop

    def instrument_stop(ov):
        yield ov.phases.init
        ov.require(early_stop(key="ready", n=0))
"""


@pytest.mark.parametrize("where", ["here", "in a thread"])
def test_workers_of_a_loader_end_with_the_script(place: Place, where: str) -> None:
    ended = place.write(main=WORKERS, voirfile=STOPS).voirkit("main.py", where)
    assert ended.code == 0
    workers = [int(word) for word in ended.out.split()]
    assert len(workers) == 2
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert "Traceback" not in ended.err
    assert "Exception ignored" not in ended.err


@pytest.mark.parametrize(
    "words", [("--stop", "0"), ("--stop", "x"), ("--stop", "-1"), ("--stop-after", "30parsecs")]
)
def test_a_wrong_value_is_refused_before_the_script_starts(
    place: Place, words: tuple[str, str]
) -> None:
    ended = place.write(main="print('started')").voirkit(*words, "main.py")
    assert (ended.code, ended.out) == (2, "")
    assert all(word in ended.err for word in words)
    assert "Traceback" not in ended.err


def test_stop_program_is_what_ends_it(place: Place) -> None:
    place.write(
        main="""
        from giving import give
        try:
            while True:
                give(x=1)
        except BaseException as exc:
            print(type(exc).__name__)
            raise
        """
    )
    ended = place.voirkit("--stop-after", "10ms", "main.py")
    assert (ended.code, ended.out) == (0, f"{StopProgram.__name__}\n")
