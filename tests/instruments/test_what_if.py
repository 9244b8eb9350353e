"""``--what-if``: the ceiling first, then pairs with the order turned, a verdict, and whether the results were equal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from voirkit_instruments.what_if.record import Experiment, RunResult
from voirkit_instruments.what_if.record_changes import CHANGES
from voirkit_instruments.what_if.rules import CODE_BY_CHANGE, findings
from voirkit_instruments.what_if.show import sentences


class Played:
    """Runs whose times are known. They save nothing, and have one loss."""

    def __init__(self, folder: Path, seconds: Callable[[int, bool], float], **told: Any) -> None:
        self._folder, self._seconds, self._told = folder, seconds, told
        self.asked: list[str] = []

    def run(self, setting: str = "plain", run_dir: str | None = None) -> RunResult:
        self.asked.append(setting)
        changed, n = setting != "plain", len(self.asked)
        out = self._folder / f"out-{n}"
        out.write_text("trained\n")
        told: dict[str, Any] = {
            "work_s": self._seconds(n, changed), "set_up_s": 1.0, "saves": 3, "saving_s": 4.0, "losses": {"n": 1, "kept": [0.5]},
            "facts": {"touched": 1}, "files": [],
        }  # fmt: skip
        told.update(
            {
                key: value(n, changed) if callable(value) else value
                for key, value in self._told.items()
            }
        )
        others = {"others_share": told.pop("others_share", 0.0)}
        return RunResult(
            told.pop("code", 0),
            str(out),
            told.pop("err", ""),
            {"what_if_run": told, "schema": 1, "processors": others},
        )


@pytest.fixture
def played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, Mapping[str, Any], list[str]]]:
    """Measure: the exit code, what is printed, the key ``what_if``, the runs that were made."""

    def play(
        seconds: Callable[[int, bool], float], pairs: int = 5, **told: Any
    ) -> tuple[int, str, Mapping[str, Any], list[str]]:
        runs: Any = Played(tmp_path, seconds, **told)
        experiment = Experiment(runs, "checkpoint-no-crc", None, str(tmp_path), str(tmp_path))
        code = experiment.measure(pairs)
        written = tmp_path / "summary.json"
        found = (
            json.loads(written.read_text())["what_if"] if written.exists() else experiment.outcome
        )
        return code, capsys.readouterr().out, found, runs.asked

    return play


def test_a_win_is_told_after_the_ceiling_and_the_pairs(played: Any) -> None:
    code, out, found, asked = played(lambda n, changed: 8.0 if changed else 10.0 + n / 100)
    assert code == 0
    assert asked == [
        "plain",
        *["plain", "checkpoint-no-crc", "checkpoint-no-crc", "plain"] * 2,
        "plain",
        "checkpoint-no-crc",
    ]
    lines = out.splitlines()
    assert lines[0] == "what if checkpoint-no-crc"
    assert (
        lines[1]
        == "  It could win at most 40% of the run's time: the 3 calls of torch.save take that much of it."
    )
    assert (
        "win: with checkpoint-no-crc the run takes 0.795 times as long (0.792 .. 0.798 in 5 pairs)."
        in lines
    )
    assert "results: losses equal, checkpoints not told, output equal" in lines
    assert found["verdict"] == "win"
    assert [set(pair) for pair in found["pairs"]] == [{"plain_s", "changed_s", "ratio"}] * 5
    assert found["equal"] == {
        "losses": True,
        "checkpoints": None,
        "output": True,
        "because": "checkpoints: torch.save has left no file.",
    }


def test_a_win_is_a_finding_with_what_was_measured_and_how_to_write_it(
    played: Any, tmp_path: Path
) -> None:
    _, _, outcome, _ = played(lambda n, changed: 8.0 if changed else 10.0)
    assert [
        found["kind"] for found in json.loads((tmp_path / "summary.json").read_text())["findings"]
    ] == ["measured-change"]
    [finding] = findings({"what_if": outcome, "wall": {"total_s": 40.0}})
    assert finding.kind == "measured-change"
    assert finding.printed_gain == pytest.approx(0.05)  # 2 of 10 s of work, in a run of 40 s
    assert (
        finding.because
        == "With checkpoint-no-crc the run takes 0.8 times as long (0.8 .. 0.8 in 5 pairs of runs)."
    )
    assert finding.next == "Write it into the script: torch.serialization.set_crc32_options(False)."


def test_a_change_that_loses_or_alters_the_results_is_no_finding(played: Any) -> None:
    _, _, loses, _ = played(lambda n, changed: 12.0 if changed else 10.0)
    _, _, alters, _ = played(
        lambda n, changed: 8.0 if changed else 10.0,
        losses=lambda n, changed: {"n": 1, "kept": [0.6 if changed else 0.5]},
    )
    assert alters["verdict"] == "win"
    assert [*findings({"what_if": loses}), *findings({"what_if": alters}), *findings({})] == []


def test_each_change_says_how_a_script_makes_it_itself() -> None:
    assert CODE_BY_CHANGE.keys() == CHANGES.keys()


def test_as_many_pairs_are_run_as_are_asked_for(played: Any) -> None:
    _, _, found, asked = played(lambda n, changed: 10.0 + n % 3, pairs=6)
    assert len(found["pairs"]) == 6
    assert len(asked) == 13
    assert found["verdict"] == "no difference found"


def test_a_ceiling_below_a_hundredth_is_told_before_the_pairs_run(played: Any) -> None:
    _, out, found, _ = played(lambda n, changed: 10.0 + n % 3, saving_s=0.02)
    lines = out.splitlines()
    assert lines[1].startswith("  It could win at most 0.18% of the run's time")
    assert (
        lines[2]
        == "  That is less than runs differ by, as a rule: Ctrl-C, if that is not worth the time."
    )
    assert found["ceiling"]["share"] == pytest.approx(0.02 / 11)


def test_nothing_is_run_where_there_is_nothing_to_change(played: Any) -> None:
    code, out, found, asked = played(lambda n, changed: 10.0, saves=0)
    assert (code, asked, found["verdict"]) == (0, ["plain"], "no difference found")
    assert (
        "no difference found: there is nothing to change, and nothing was run for it: torch.save is not called in this run."
        in out
    )


def test_a_change_that_touches_nothing_ends_the_pairs(played: Any) -> None:
    code, out, found, asked = played(
        lambda n, changed: 10.0, facts={"touched": 0, "because": "the torch is too old."}
    )
    assert (code, asked) == (0, ["plain", "plain", "checkpoint-no-crc"])
    assert "no difference found: there is nothing to change: the torch is too old." in out
    assert (found["verdict"], found["pairs"]) == ("no difference found", [])


def test_a_run_that_fails_with_the_change_is_told_with_its_error(
    played: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, found, _ = played(
        lambda n, changed: 10.0,
        code=lambda n, changed: 9 if changed and n > 3 else 0,
        err="it broke\n",
    )
    assert code == 9
    assert "not told: The changed run failed: it ended with exit code 9." in out
    assert found["verdict"] is None
    assert len(found["pairs"]) == 1


def test_losses_that_differ_are_told_and_where(played: Any) -> None:
    _, out, found, _ = played(
        lambda n, changed: 10.0,
        losses=lambda n, changed: {"n": 2, "kept": [0.5, 0.25 if changed else 0.75]},
    )
    assert found["equal"]["losses"] is False
    assert "results: losses DIFFER" in out
    assert "the first that differs is number 1: 0.75 and 0.25" in out


def test_a_script_whose_plain_runs_differ_can_not_be_compared(played: Any) -> None:
    _, out, found, _ = played(
        lambda n, changed: 10.0, losses=lambda n, changed: {"n": 1, "kept": [float(n)]}
    )
    assert found["equal"]["losses"] is None
    assert "losses: plain runs differ from each other already" in out


def test_contention_is_said_and_widens_the_interval(played: Any) -> None:
    _, out, found, _ = played(
        lambda n, changed: 50.0 if changed else 10.0,
        waited_s=lambda n, changed: 44.0 if changed else 0.1,
        others_share=0.9,
    )
    assert found["verdict"] == "no difference found"
    assert (found["low"], found["high"]) == (pytest.approx(0.6), pytest.approx(5.0))
    assert found["contention"] == {"runs": 5, "of": 10, "most": pytest.approx(0.88)}
    assert (
        "Other programs had the processors in 5 of 10 runs, which waited for them up to 88% of their work"
        in out
    )
    assert "What other programs made the runs wait may be all of it." in out


def test_threads_that_wait_for_each_other_alone_are_no_contention(played: Any) -> None:
    _, out, found, _ = played(
        lambda n, changed: 50.0 if changed else 10.0, waited_s=40.0, others_share=0.01
    )
    assert (found["verdict"], found["contention"]) == ("loss", None)
    assert "Other programs" not in out


def test_what_a_change_takes_once_is_told_apart(played: Any) -> None:
    _, out, found, _ = played(
        lambda n, changed: 10.4 if changed else 10.0 + n / 1000, facts={"touched": 1, "once_s": 0.5}
    )
    assert found["once_s"] == 0.5
    assert [pair["changed_s"] for pair in found["pairs"]] == [pytest.approx(9.9)] * 5
    assert found["verdict"] == "win"
    assert (
        "The change itself takes 500 ms once, however long the run is: 5% of this one, in no figure here."
        in out
    )


def test_an_interruption_leaves_what_is_known(played: Any) -> None:
    def seconds(n: int, changed: bool) -> float:
        if n == 6:
            raise KeyboardInterrupt
        return 8.0 if changed else 10.0

    code, out, found, _ = played(seconds)
    assert code == 130
    assert (
        "not told: Interrupted after 2 of 5 pairs. So far 0.8 times as long (0.8 .. 0.8 in 2 pairs)."
        in out
    )
    assert len(found["pairs"]) == 2


def test_the_report_and_the_page_show_it(played: Any) -> None:
    from io import StringIO

    from rich.console import Console

    from voirkit.report.html.sections import section_html
    from voirkit.report.terminal import draw
    from voirkit_instruments.what_if.show import sections

    _, _, found, _ = played(lambda n, changed: 8.0 if changed else 10.0)
    drawn = StringIO()
    draw({"command": ["main.py"], "what_if": found}, Console(file=drawn, width=100))
    assert "win: with checkpoint-no-crc" in drawn.getvalue()
    assert "3 10 s 8 s 0.800 plain" in " ".join(drawn.getvalue().split())
    (section,) = sections(found, {})
    assert next(sentences(found)) in section_html(section)
    assert "3 changed" in section_html(section)
