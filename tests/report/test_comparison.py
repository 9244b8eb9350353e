"""``voirkit compare``: whether step times differ by more than noise, conditions beside a baseline, and what cannot be compared.

In process, over run directories whose steps the tests make up.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voirkit.analysis.document import Rank
from voirkit.analysis.run_steps import roll_up
from voirkit.analysis.steps import BACKWARD, COMPILE, FORWARD, NO_STEPS, REST, Steps, Table
from voirkit.commands import compare as command
from voirkit.commands import report
from voirkit.errors import CommandLineError, RunDirectoryError
from voirkit.phase_table import PARTS, PHASES
from voirkit.runs.opened import open_run
from voirkit.runs.summary import empty

Make = Callable[..., str]


def noise(n: int = 300, seed: int = 0, spread: float = 0.05) -> Any:
    return np.exp(np.random.default_rng(seed).normal(0, spread, n))


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a run directory of steps of such times in ms, half of each forward and half backward."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def make_run(
        name: str,
        times_ms: Sequence[float],
        command: Sequence[str] = ("main.py",),
        compiling_ms: float = 0,
        began: int | None = None,
        **summary: Any,
    ) -> str:
        folder = tmp_path / name
        folder.mkdir()
        manifest: dict[str, Any] = {
            "schema": 1,
            "voirkit": "0",
            "command": list(command),
            "ended": "normal",
            "exit_code": 0,
        }
        manifest |= {} if began is None else {"clocks": {"time_ns": began}}
        (folder / "run.json").write_text(json.dumps(manifest))
        (folder / "summary.json").write_text(
            json.dumps({**empty("0"), "command": list(command), "ended": "normal", **summary})
        )
        if len(times_ms):
            time = (np.asarray(times_ms) * 1e6).astype(np.int64)
            own = np.zeros((len(time), len(PHASES) - 1 + len(PARTS)), np.int64)
            own[:, FORWARD] = time // 2
            own[:, BACKWARD] = time - time // 2
            own[0, COMPILE] = int(compiling_ms * 1e6)
            assert own.shape[1] == REST + 1
            train = Table(np.cumsum(own.sum(axis=1)), own.sum(axis=1), np.full(len(time), 4), own)
            with open_run(str(folder)) as run:
                roll_up(
                    run,
                    Rank(0, "node", Steps(train, NO_STEPS.evaluation, True), {}, (("node", 1),)),
                )
        return name

    return make_run


def compare(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert command.compare(words) == code
    return capsys.readouterr().out


def step_of(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return next(
        row
        for row in json.loads(compare(capsys, "--json", *words))["figures"]
        if row["name"] == "step"
    )


# whether they differ


def test_noise_is_no_significant_difference(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make("a", 10 * noise(seed=1)), make("b", 10 * noise(seed=2))
    out = compare(capsys, "a", "b")
    assert "step time  no significant difference: " in out
    assert "One run a side: how much runs themselves differ is not known" in out


def test_a_step_that_takes_a_tenth_longer_is_significant(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make("a", 10 * noise(seed=1)), make("b", 11 * noise(seed=2))
    step = step_of(capsys, "a", "b")
    assert step["difference"]["low"] < 1.1 < step["difference"]["high"]
    assert (step["difference"]["significant"], step["difference"]["between_runs"]) == (
        True,
        "assumed",
    )
    assert " longer (95%: +" in compare(capsys, "a", "b")


def test_several_runs_show_how_much_runs_differ(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, ms in (("a1", 10), ("a2", 11), ("a3", 12), ("b1", 11), ("b2", 12), ("b3", 13)):
        make(name, ms * noise(seed=ms))
    one_each = step_of(capsys, "a1", "b3")
    several = step_of(capsys, "a1", "a2", "a3", "--with", "b1", "b2", "b3")
    assert (one_each["difference"]["significant"], several["difference"]["significant"]) == (
        True,
        False,
    )
    assert several["difference"]["between_runs"] == "measured"
    assert "One run a side" not in compare(capsys, "a1", "a2", "--with", "b1", "b2")


@pytest.mark.parametrize(("in_turn", "significant"), [(True, True), (False, False)])
def test_many_runs_in_a_row_of_one_side_count_as_two(
    in_turn: bool, significant: bool, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = ([f"{side}{i}" for i in range(6)] for side in "ab")
    for i in range(6):
        drift = (10.0, 10.3)[i // 3]
        make(a[i], drift * noise(seed=i), began=2 * i if in_turn else i)
        make(b[i], 1.04 * drift * noise(seed=10 + i), began=2 * i + 1 if in_turn else 6 + i)
    assert step_of(capsys, *a, "--with", *b)["difference"]["significant"] is significant
    assert ("Record the sides in turn" in compare(capsys, *a, "--with", *b)) is not in_turn


def test_a_first_step_that_compiles_is_no_part_of_the_rate(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    (
        make("a", 10 * noise(seed=1), compiling_ms=20_000),
        make("b", 11 * noise(seed=2), compiling_ms=5_000),
    )
    rows = json.loads(compare(capsys, "--json", "a", "b"))["figures"]
    rate = next(row for row in rows if row["name"] == "train_rate")
    assert rate["second"] > rate["first"]
    assert rate["difference"]["high"] < 1


def test_work_of_others_that_held_up_steps_widens_the_interval(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = np.where(np.arange(300) % 5 == 0, 14, 10) * noise(seed=1, spread=0.1)
    make("a", steps), make("b", 1.07 * steps)
    make("c", steps, processors={"waited_share": 0.3, "others_share": 0.5})
    assert step_of(capsys, "a", "b")["difference"]["significant"]
    assert not step_of(capsys, "c", "b")["difference"]["significant"]
    assert "since other programs held up steps" in compare(capsys, "c", "b")


BUSY = {"waited_share": 0.3, "others_share": 0.5}
QUIET = {"waited_share": 0.01, "others_share": 0.01}


@pytest.mark.parametrize(("first", "second"), [(BUSY, QUIET), (QUIET, BUSY), (BUSY, BUSY)])
def test_a_busy_side_is_said(
    first: Any, second: Any, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    (
        make("a", 10 * noise(seed=1), processors=first),
        make("b", 10 * noise(seed=2), processors=second),
    )
    out = compare(capsys, "a", "b")
    for head, side in (("first", first), ("second", second)):
        assert (f"busy  the {head} side ran on a busy machine" in out) is (side is BUSY)


def test_a_side_that_was_held_up_may_have_been_as_fast(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    (
        make("quiet", 10 * noise(seed=1), processors=QUIET),
        make("busy", 20 * noise(seed=2), processors=BUSY),
    )
    assert not step_of(capsys, "quiet", "busy")["difference"]["significant"]
    make("slow", 20 * noise(seed=2), processors=QUIET)
    assert step_of(capsys, "quiet", "slow")["difference"]["significant"]


def test_a_busy_side_that_is_faster_all_the_same_is_faster(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    (
        make("slow", 20 * noise(seed=1), processors=QUIET),
        make("busy", 10 * noise(seed=2), processors=BUSY),
    )
    assert step_of(capsys, "slow", "busy")["difference"]["significant"]


def test_a_main_thread_that_waits_for_its_own_programs_threads_is_not_held_up_by_others(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    (
        make("a", 10 * noise(seed=1), processors=QUIET),
        make("b", 12 * noise(seed=2), processors={**BUSY, "others_share": 0.01}),
    )
    assert step_of(capsys, "a", "b")["difference"]["significant"]


def test_few_steps_have_no_interval(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make("a", [10.0] * 9), make("b", [20.0] * 9)
    assert step_of(capsys, "a", "b")["difference"] is None
    assert "steps  too few to say whether they differ (9 and 9; 10 are the fewest)." in compare(
        capsys, "a", "b"
    )


def test_equal_steps_are_equal(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make("a", [10.0] * 50), make("b", [10.0] * 50)
    assert step_of(capsys, "a", "b")["ratio"] == 1.0
    assert "no significant difference" in compare(capsys, "a", "b")


def test_markdown_has_the_answer_and_a_table(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make("a", 10 * noise(seed=1)), make("b", 12 * noise(seed=2))
    out = compare(capsys, "a", "b", "--markdown")
    assert out.startswith("# Comparison\n\n**first** a\n\n**second** b\n\n**throughput** ")
    assert "\n\n**step time** " in out
    assert "\n| step | " in out


def test_a_page_of_several_runs_has_each(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a1", "a2", "b1", "b2"):
        make(name, 10 * noise(seed=ord(name[0])))
    compare(capsys, "a1", "a2", "--with", "b1", "b2", "--html", "page.html")
    page = Path("page.html").read_text()
    assert "This part cannot be drawn" not in page
    assert all(f"({name}): time of a step" in page for name in ("a1", "a2", "b1", "b2"))


def test_the_run_directory_itself_is_no_difference(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, options in (
        ("a", ["--run-dir", "a", "--quiet"]),
        ("b", ["--run-dir=b", "--quiet", "--html"]),
    ):
        make(name, [10.0] * 20)
        manifest = json.loads(Path(name, "run.json").read_text())
        Path(name, "run.json").write_text(json.dumps({**manifest, "voirkit_options": options}))
    assert json.loads(compare(capsys, "--json", "a", "b"))["environment"] == {
        "voirkit options": [["--quiet"], ["--quiet", "--html"]]
    }


# the headline


def headline(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """The labelled lines of the answer, by label."""
    answer = compare(capsys, *words).partition("Figures")[0]
    lines = [line.split("  ", 1) for line in answer.splitlines()]
    return {line[0]: line[1] for line in lines if len(line) == 2}


def walls(training_s: float, startup_s: float) -> dict[str, Any]:
    parts = {"training": training_s, "startup": startup_s}
    total = training_s + startup_s
    rows = {name: {"total_s": seconds, "share": seconds / total} for name, seconds in parts.items()}
    return {"duration_s": total, "wall": {"total_s": total, "parts": rows}}


def test_the_headline_is_wall_time_then_throughput_then_steps(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    (
        make("a", 30 * noise(seed=1), **walls(9.0, 2.0)),
        make("b", 10 * noise(seed=2), **walls(3.0, 2.0)),
    )
    out = compare(capsys, "a", "b")
    places = [
        out.index(f"\n{label}  ") for label in ("wall time", "throughput", "step time", "in a step")
    ]
    assert places == sorted(places)
    lines = headline(capsys, "a", "b")
    assert lines["wall time"].startswith("11 s -> 5 s: 54.5% shorter (95%: ")
    assert "faster by a factor of " in lines["throughput"]
    assert lines["in a step"].startswith(("forward 15", "backward 15"))


def test_work_outside_of_the_median_step_is_in_the_headline(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_starts = 10 * noise(seed=1)
    slow_starts[::50] = 1000
    make("a", slow_starts, **walls(9.0, 0.5)), make("b", 10 * noise(seed=2), **walls(3.0, 0.5))
    lines = headline(capsys, "a", "b")
    assert "shorter" in lines["wall time"]
    assert lines["step time"].startswith("no significant difference")


def test_wall_times_that_differ_as_those_of_equal_runs_do_are_not_called_different(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    (
        make("a", 10 * noise(seed=1), **walls(3.0, 3.0)),
        make("b", 10 * noise(seed=2), **walls(3.0, 3.4)),
    )
    assert headline(capsys, "a", "b")["wall time"].startswith(
        "6 s -> 6.4 s: no significant difference: +6.7%"
    )


def test_unequal_work_is_said(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    (
        make("a", [10.0] * 40, steps={"n": 40, "items": 160}),
        make("b", [10.0] * 20, steps={"n": 20, "items": 80}),
    )
    assert (
        "they trained 40 and 20 steps, 160 and 80 items: compare throughput, not wall time."
        in compare(capsys, "a", "b")
    )


def test_runs_of_two_scripts_are_compared_with_a_note(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    (
        make("a", 10 * noise(seed=1), ["main.py"]),
        make("b", 5 * noise(seed=2), ["/elsewhere/other.py", "main.py"]),
    )
    assert "another script  a ran main.py, b ran other.py." in compare(capsys, "a", "b")
    assert json.loads(compare(capsys, "--json", "a", "b"))["different"]["script"] == [
        "main.py",
        "other.py",
    ]


def test_one_script_in_two_folders_is_one_script(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make("a", [10.0] * 20, ["old/main.py"]), make("b", [10.0] * 20, ["new/main.py"])
    assert "another script" not in compare(capsys, "a", "b")


# conditions beside a baseline


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("step_time<+3%", 3),
        ("step_time<+20%", 0),
        ("step_time<-5%", 3),
        ("train_rate>-3%", 3),
        ("step_time<1s", 0),
        ("step_time<1ms", 3),
    ],
)
def test_a_condition_is_held_against_the_first_run(
    condition: str, code: int, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make("a", 10 * noise(seed=1)), make("b", 11 * noise(seed=2))
    assert command.compare(["a", "b", "--require", condition]) == code
    assert (f"{condition}: it is " in capsys.readouterr().err) == (code == 3)


@pytest.mark.parametrize(("condition", "code"), [("step_time<+0.1%", 0), ("step_time<-0.1%", 3)])
def test_what_noise_explains_counts_as_no_difference(
    condition: str, code: int, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make("a", 10 * noise(seed=1)), make("b", 10.1 * noise(seed=2))
    assert step_of(capsys, "a", "b")["ratio"] > 1.005
    assert command.compare(["a", "b", "--require", condition]) == code


def test_a_figure_that_a_run_does_not_have_fails_the_condition(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make("a", [10.0] * 20), make("b", [10.0] * 20)
    assert command.compare(["a", "b", "--require", "memory<+5%"]) == 3
    assert "check failed: memory<+5%: the first has no memory.peak" in capsys.readouterr().err


# what cannot be compared


def refused(*words: str) -> str:
    with pytest.raises((CommandLineError, RunDirectoryError)) as info:
        command.compare(words)
    return str(info.value)


def test_a_run_without_steps_is_refused(make: Make) -> None:
    make("a", [10.0] * 20), make("b", [])
    assert refused("a", "b").startswith("b: no step of a training is recorded there.")


def test_a_directory_that_vanishes_is_one_line(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make("a", [10.0] * 20), make("b", [10.0] * 20)
    check = command._check_comparable  # runs when both have been read

    def remove(*sides: Any) -> None:
        check(*sides)
        shutil.rmtree("b")

    monkeypatch.setattr(command, "_check_comparable", remove)
    assert refused("a", "b", "--html", "page.html").endswith("b: it was removed while it was read.")
    assert not Path("page.html").exists()
    assert capsys.readouterr().out == ""


def test_a_report_of_a_directory_that_vanishes_is_one_line(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("a", [10.0] * 20)
    summarise = report.summary_of

    def remove(*runs: Any) -> Any:
        found = summarise(*runs)
        shutil.rmtree("a")
        return found

    monkeypatch.setattr(report, "summary_of", remove)
    with pytest.raises(RunDirectoryError, match="it was removed while it was read"):
        report.report(["a", "--html"])
    assert not Path("a").exists()


def test_a_run_that_is_given_twice_on_a_side_is_refused(make: Make) -> None:
    make("a", [10.0] * 20), make("b", [10.0] * 20)
    assert refused("a", "./a", "--with", "b") == "a: it is given twice, and counts as one run."


def test_more_than_two_runs_need_sides(make: Make) -> None:
    assert "Several a side: voirkit compare A1 A2 --with B1 B2" in refused("a", "b", "c")
    assert refused("a", "b", "--with", "c", "--calls").startswith(
        "--calls compares one run with one."
    )
