"""``--what-if workers=N,M``: several numbers of loader workers are compared with the script's own, each with its interval."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Place

from voirkit_instruments.what_if.record import Experiment, RunResult
from voirkit_instruments.what_if.record_changes import Workers, make_change, parse_change
from voirkit_instruments.what_if.rules import findings

pytestmark = pytest.mark.long

Played = tuple[int, list[str], dict[str, Any], list[str]]


def played(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    seconds: Callable[[str, int], float | None],
    argument: str,
    now: int = 1,
    touched: Callable[[str], int] = lambda setting: 1,
) -> Played:
    """Runs whose times are known, None: they fail. The exit code, the lines that are printed, the key ``what_if``, the runs that were made."""
    asked: list[str] = []

    class Runs:
        def run(self, setting: str = "plain", run_dir: str | None = None) -> RunResult:
            asked.append(setting)
            out = tmp_path / f"out-{len(asked)}"
            out.write_text("trained\n")
            work_s = seconds(setting, len(asked))
            facts = {
                "work_s": work_s,
                "set_up_s": 1.0,
                "losses": {"n": 1, "kept": [0.5]},
                "facts": {"touched": touched(setting), "because": "it is so already."},
                "files": [],
            }
            steps = {
                "n": 4,
                "loader": {"workers": now},
                "phases": {"wait": {"share": 0.5, "total_s": 5.0}},
                "time_s": {"median": 1.0},
            }
            summary = {
                "schema": 1,
                "what_if_run": facts,
                "rates": {"train_rate": {"value": 1000 / (work_s or 1)}},
                "steps": steps,
            }
            return RunResult(9 if work_s is None else 0, str(out), "it broke\n", summary)

    runs: Any = Runs()
    experiment = Experiment(runs, "workers", argument, str(tmp_path), str(tmp_path))
    code = experiment.measure(5)
    out = capsys.readouterr().out.splitlines()
    return code, out, json.loads((tmp_path / "summary.json").read_text())["what_if"], asked


def steady(times: Mapping[str, float | None]) -> Callable[[str, int], float | None]:
    """The time of each setting, a little longer from run to run."""

    def seconds(setting: str, n: int) -> float | None:
        time_s = times[setting]
        return None if time_s is None else time_s + n / 1000

    return seconds


FOUR = {"plain": 10.0, "workers=0": 20.0, "workers=2": 5.0, "workers=4": 4.95}


def test_each_round_runs_the_script_plainly_and_with_each_number_the_order_turned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _, asked = played(tmp_path, capsys, steady(FOUR), "0,2,4")
    once = ["plain", "workers=0", "workers=2", "workers=4"]
    assert code == 0
    assert asked == ["plain", *once, *once[::-1], *once, *once[::-1], *once]
    assert out[0] == "what if workers=0,2,4"
    assert (
        out[1]
        == "  What it could win at most cannot be told: the script's 1 worker may also take processors from the training."
    )
    assert "  20 more runs of 11 s and python's start each." in out[2]
    assert sum(line.endswith("   workers=2") for line in out) == 5


def test_there_is_a_row_for_each_number_with_its_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, outcome, _ = played(tmp_path, capsys, steady(FOUR), "0,2,4")
    begin = next(i for i, line in enumerate(out) if line.split()[:2] == ["value", "run"])
    rows = [line.split() for line in out[begin + 1 : begin + 5]]
    assert rows[0] == ["as", "it", "is", "10", "s", "99.9", "50%"]
    assert rows[1][0] == "0"
    assert rows[1][-1] == "loss"
    assert rows[2][:5] == ["2", "5.01", "s", "200", "50%"]
    assert rows[2][-5:] == ["0.501", "(0.5", "..", "0.501)", "win"]
    values = outcome["values"]
    assert [value["argument"] for value in values] == [None, "0", "2", "4"]
    assert [len(value["times_s"]) for value in values] == [5, 5, 5, 5]
    assert [value["verdict"] for value in values] == [None, "loss", "win", "win"]
    assert all(value["low"] <= value["median"] <= value["high"] for value in values[1:])
    assert values[2]["rate"] == pytest.approx(1000 / 5.01, rel=0.01)
    assert values[0]["wait"] == 0.5


def test_the_first_number_that_is_as_good_as_the_best_is_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, outcome, _ = played(tmp_path, capsys, steady(FOUR), "0,2,4")
    assert (outcome["argument"], outcome["verdict"], len(outcome["pairs"])) == ("2", "win", 5)
    assert any(
        line.startswith("win: with workers=2 the run takes 0.501 times as long (0.5 .. 0.501")
        for line in out
    )
    assert any("in less than 12 of 100 cases." in line for line in out), "of three numbers"
    [finding] = findings({"what_if": outcome})
    assert finding.next == "Write it into the script: DataLoader(..., num_workers=2)."
    _, _, outcome, _ = played(tmp_path, capsys, steady({**FOUR, "workers=4": 4.0}), "0,2,4")
    assert outcome["argument"] == "4"


def test_where_none_wins_the_best_is_told_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"plain": 10.0, "workers=0": 20.0, "workers=2": 12.0}
    _, _, outcome, _ = played(tmp_path, capsys, steady(times), "0,2")
    assert (outcome["argument"], outcome["verdict"]) == ("2", "loss")
    assert list(findings({"what_if": outcome})) == []


def test_a_number_with_which_the_script_fails_is_told_and_the_rest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, outcome, asked = played(
        tmp_path, capsys, steady({**FOUR, "workers=2": None}), "0,2,4"
    )
    assert code == 0
    assert asked.count("workers=2") == 1
    assert (outcome["argument"], outcome["verdict"]) == ("4", "win")
    row = [line for line in out if line.split()[:1] == ["2"]][-1]
    assert row.endswith("The changed run failed: it ended with exit code 9.")
    code, _, outcome, _ = played(tmp_path, capsys, steady({"plain": 1.0, "workers=2": None}), "2")
    assert (code, outcome["verdict"], outcome["values"]) == (9, None, None)


def test_a_number_that_the_script_has_already_is_told_and_run_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, outcome, asked = played(
        tmp_path,
        capsys,
        steady(FOUR),
        "2,4",
        touched=lambda setting: int(setting != "workers=2"),
    )
    assert (code, asked.count("workers=2"), asked.count("workers=4")) == (0, 1, 5)
    row = [line for line in out if line.split()[:1] == ["2"]][-1]
    assert row.endswith("there is nothing to change: it is so already.")
    assert outcome["argument"] == "4"


def test_of_a_loader_without_workers_the_wait_is_the_ceiling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, outcome, _ = played(tmp_path, capsys, steady(FOUR), "2,4", now=0)
    assert out[1].startswith("  It could win at most 50% of the run's time: waiting for batches")
    assert outcome["ceiling"]["share"] == pytest.approx(0.5, rel=0.01)


def test_the_report_and_the_page_show_the_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from io import StringIO

    from rich.console import Console

    from voirkit.report.html.sections import section_html
    from voirkit.report.terminal import draw
    from voirkit_instruments.what_if.show import sections

    _, _, outcome, _ = played(tmp_path, capsys, steady(FOUR), "0,2,4")
    drawn = StringIO()
    draw({"command": ["main.py"], "what_if": outcome}, Console(file=drawn, width=100))
    assert "4 4.96 s 201 50% 0.496 (0.495 .. 0.496) win" in " ".join(drawn.getvalue().split())
    (section,) = sections(outcome, {})
    assert "as it is" in section_html(section)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workers", "workers needs a whole number of loader workers of at least 0, not 'nothing'"),
        ("workers=0,x", "not 'x'"),
        ("workers=2,", "not 'nothing'"),
        ("workers=-1", "not '-1'"),
        ("workers=1.5", "Write: --what-if workers=N,M"),
    ],
)
def test_numbers_that_can_not_be_read_are_refused(text: str, said: str) -> None:
    with pytest.raises(Exception, match=said.replace("(", r"\(")) as refused:
        parse_change(text)
    assert said in str(refused.value)


def test_a_number_is_read_once() -> None:
    assert parse_change("workers=0,4,4") == ("workers", "0,4,4")
    assert parse_change("num-threads=1,2") == ("num-threads", "1,2")


def made(workers: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """What a loader is made with."""
    found: dict[str, Any] = {}

    def init(
        dataset: Any,
        batch_size: int = 1,
        num_workers: int = 0,
        timeout: float = 0,
        *,
        prefetch_factor: Any = None,
        **rest: Any,
    ) -> None:
        found.update(
            dataset=dataset,
            batch_size=batch_size,
            num_workers=num_workers,
            timeout=timeout,
            prefetch=prefetch_factor,
            **rest,
        )

    change = make_change("workers", workers)
    assert isinstance(change, Workers)
    change._init(init, None, args, kwargs)  # what stands around DataLoader.__init__
    return {**found, "touched": change.touched}


def test_a_loaders_arguments_are_replaced_and_the_others_kept() -> None:
    assert made("3", "data", 8, 1)["num_workers"] == 3
    assert made("3", "data", batch_size=8, num_workers=1, prefetch_factor=5)["prefetch"] == 5
    none = made("0", "data", 8, 2, 30.0, prefetch_factor=5)
    assert (none["num_workers"], none["prefetch"], none["timeout"], none["batch_size"]) == (
        0,
        None,
        0,
        8,
    )
    same = made("2", "data", 8, 2, 30.0, prefetch_factor=5)
    assert (same["num_workers"], same["timeout"], same["prefetch"], same["touched"]) == (
        2,
        30.0,
        5,
        0,
    )


SCRIPT = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Naps(Dataset):
    def __len__(self): return 240
    def __getitem__(self, i):
        time.sleep(0.02)
        return torch.full((4,), i / 240), i % 3

def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        for x, y in DataLoader(Naps(), 4, num_workers=1, prefetch_factor=2):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("trained")

if __name__ == "__main__":
    main()
"""


@pytest.mark.torch
def test_a_child_runs_the_unedited_script_with_another_number_for_some_steps(place: Place) -> None:
    ended = place.write(main=SCRIPT).voirkit(
        "--what-if-setting", "workers=0", "--stop", "12", "main.py"
    )
    assert ended.code == 0
    assert "trained" not in ended.out
    assert ended.summary["what_if_run"]["facts"] == {"touched": 1}
    assert ended.summary["steps"]["loader"]["workers"] == 0
    assert ended.summary["what_if_run"]["steps"] == 12
    assert 10 <= ended.summary["steps"]["n"] <= 13


def test_a_run_of_an_earlier_sweep_still_opens(place: Place) -> None:
    ended = place.write(main="print('hello')").voirkit("main.py")
    summary = {**ended.summary, "loader_setting": {"num_workers": 0, "steps": 12, "loaders": 1}}
    (place.folder / "run" / "summary.json").write_text(json.dumps(summary))
    shown = place.python("-m", "voirkit", "report", "run")
    assert (shown.code, shown.err) == (0, "")


@pytest.mark.torch
@pytest.mark.slow
def test_more_workers_win_for_a_loader_that_waits(place: Place) -> None:
    ended = place.write(main=SCRIPT).python(
        "-m",
        "voirkit",
        "--run-dir",
        "run",
        "--what-if",
        "workers=0,3",
        "--stop",
        "40",
        "main.py",
        timeout=280,
    )
    assert ended.code == 0, ended.err
    outcome = ended.summary["what_if"]
    assert (outcome["argument"], outcome["verdict"]) == ("3", "win"), ended.out
    assert outcome["equal"]["losses"] is True
    assert [value["argument"] for value in outcome["values"]] == [None, "0", "3"]
    assert outcome["values"][2]["rate"] > outcome["values"][0]["rate"]
