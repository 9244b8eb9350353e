"""The end of a run: every probe ends and every instrument is closed, whatever one of them does there."""

from __future__ import annotations

import pytest
from conftest import Place

MAIN = "def f(x):\n    y = x\nf(1)\nprint('ran')\n"


def test_each_probe_ends_though_another_raises_at_its_end(place: Place) -> None:
    place.write(
        main=MAIN,
        voirfile="""
            def instrument_x(ov):
                ov.probe("//f > x").filter(lambda event: False).fail_if_empty("first")
                ov.probe("//f > x").filter(lambda event: False).fail_if_empty("second")
                ov.probe("//f > y")["y"].max().print("largest: {}")
                ov.given["?z"].count().print("given: {}")
        """,
    )
    ended = place.voirkit("main.py")
    assert ended.code == 1
    assert ended.out == "ran\nlargest: 1\ngiven: 0\n"
    assert ended.err.splitlines()[-1].endswith("first")
    assert "there was also Failure: second" in ended.err
    assert [probe["events"] for probe in ended.summary["probes"]] == [1, 1, 1]


WAITS = """
    def instrument_waits(ov):
        try:
            yield ov.phases.{phase}
            print("{phase} is over")
        finally:
            print("closed")

    def instrument_last(ov):
        yield ov.phases.finalize
        print("finalized")
"""


@pytest.mark.parametrize(
    ("main", "phase", "out", "code"),
    [
        ("def f(:\n", "run_script", "finalized\nclosed\n", 1),
        ("import no_such_module_here\n", "run_script", "finalized\nclosed\n", 1),
        ("print('ran')\n", "run_script", "ran\nrun_script is over\nclosed\nfinalized\n", 0),
    ],
)
def test_an_instrument_whose_phase_does_not_come_is_closed_after_finalize(
    place: Place, main: str, phase: str, out: str, code: int
) -> None:
    place.write(main=main, voirfile=WAITS.format(phase=phase))
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (code, out)
    assert "Exception ignored" not in ended.err


def test_what_an_instrument_raises_as_it_is_closed_is_told_and_the_others_are_closed(
    place: Place,
) -> None:
    place.write(
        main="import no_such_module_here\n",
        voirfile="""
            def waiting(name):
                def instrument(ov):
                    try:
                        yield ov.phases.run_script
                    finally:
                        print("closed", name)
                        if name == "b":
                            raise ValueError("in b")
                        if name == "c":
                            ov.stop()
                        if name == "d":
                            yield ov.phases.finalize
                return instrument

            instrument_a, instrument_b, instrument_c, instrument_d, instrument_e = map(waiting, "abcde")
        """,
    )
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (1, "closed a\nclosed b\nclosed c\nclosed d\nclosed e\n")
    assert "raised ValueError: in b" in ended.err
    assert "ignored GeneratorExit" in ended.err
    assert ended.err.count("ModuleNotFoundError") == 1
    assert "Exception ignored" not in ended.err


def test_an_instrument_that_a_stop_did_not_end_is_closed(place: Place) -> None:
    place.write(
        main="from giving import give\ngive(x=1)\nprint('never')\n",
        voirfile="""
            def instrument_stubborn(ov):
                ov.given["?x"].subscribe(lambda x: ov.stop())
                try:
                    yield ov.phases.run_script
                except BaseException as exc:
                    print(type(exc).__name__)
                    try:
                        yield ov.phases.run_script
                    finally:
                        print("closed")
        """,
    )
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (0, "StopProgram\nclosed\n")
    assert "Exception ignored" not in ended.err


@pytest.mark.parametrize(
    ("raised", "ended", "code"),
    [("SystemExit(7)", "exit", 7), ("Preempted('now')", "exception", 1)],
)
def test_what_a_signal_handler_raises_while_an_error_is_put_down_is_how_it_ended(
    place: Place, raised: str, ended: str, code: int
) -> None:
    """A killed loader worker breaks a connection first; torch's handler raises after that."""
    place.write(
        main=f"""
        import signal
        class Preempted(BaseException):
            pass
        def handler(*_):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            raise {raised}
        signal.signal(signal.SIGTERM, handler)
        class Broken(Exception):
            def __str__(self):  # asked for when the error has left the script
                signal.raise_signal(signal.SIGTERM)
                return "broken"
        def train():
            raise Broken
        train()
        """,
    )
    run = place.voirkit("main.py")
    assert (run.code, run.summary["exit_code"], run.summary["ended"]) == (code, code, ended)
    assert "overseer.py" not in run.err  # neither error is shown with voirkit's frames
