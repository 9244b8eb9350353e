"""One part of a report that fails costs that part, with one line, never the report."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CLEAN, Place
from live_training import TRAINING
from rich.console import Console

from voirkit.analysis import summary as summaries
from voirkit.commands.compare import compare
from voirkit.commands.report import report
from voirkit.errors import PartFailures, RunDirectoryError, reason
from voirkit.instrument import Instrument
from voirkit.plugins import installed_instruments
from voirkit.report import finish, html, overview, terminal
from voirkit.report.html import comparison as html_comparison
from voirkit.report.sections import Section, Text

pytestmark = pytest.mark.long

SCRIPT = TRAINING + "Training().epoch()\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of ten steps."""
    place = Place(tmp_path_factory.mktemp("run")).write(main=SCRIPT)
    assert place.voirkit("--compact", "main.py").code == 0
    return place.folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A run that was killed: all of its summary is computed from its records."""
    place = Place(tmp_path).write(
        main=TRAINING + "import signal\nTraining().epoch()\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    place.voirkit("main.py")
    return tmp_path / "run"


def fails(*_: Any, **__: Any) -> Any:
    raise KeyError("planted")


def instrument(name: str) -> Instrument:
    return next(one for one in installed_instruments() if one.name == name)


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    assert report(list(words)) == 0
    said = capsys.readouterr()
    return said.out, said.err


@pytest.mark.parametrize(
    "part", [*(one.name for one in installed_instruments() if one.summarise), "overhead"]
)
def test_a_part_of_the_summary_that_fails_costs_that_part(
    part: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if part == "overhead":
        monkeypatch.setattr(summaries, "overhead_of", fails)
    else:
        monkeypatch.setattr(instrument(part), "summarise", f"{__name__}:fails")
        monkeypatch.setattr(instrument(part), "summarised_from", ())
    out, err = shown(capsys, str(run))
    assert "10 steps, 40 items" in out
    named = part.replace("_", " ")
    assert [line for line in err.splitlines() if "planted" in line] == [
        f"voirkit: left out of the report, since it failed: {named} (KeyError: 'planted')."
    ]


@pytest.mark.parametrize("name", ["read_steps", "figures", "conclusions", "_dropped", "_duration"])
def test_a_step_of_the_summary_that_fails_costs_no_other_part(
    name: str, killed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(summaries, name, fails)
    out, err = shown(capsys, str(killed))
    assert "main.py" in out
    assert "was killed" in out
    assert err.count("KeyError: 'planted'") == 1
    if name in ("read_steps", "figures"):
        assert "could not be computed" in out
        assert "No training step was seen" not in out
    else:
        assert "10 steps" in out


def fails_in_the_middle(*_: Any) -> Iterator[Any]:
    yield Section("half", "half of a part", [Text("half of a part")])
    raise KeyError("planted")


OF_FRAMEWORK = [name for parts in (overview.ABOVE, overview.BELOW, overview.LAST) for name in parts]


INSTRUMENTS = [one.name for one in installed_instruments() if one.sections]


@pytest.mark.parametrize("part", [*OF_FRAMEWORK, *INSTRUMENTS])
def test_a_part_of_the_table_that_fails_is_one_line(
    part: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = json.loads((run / "summary.json").read_text())
    for parts in (overview.ABOVE, overview.BELOW, overview.LAST):
        if part in parts:
            monkeypatch.setitem(parts, part, fails_in_the_middle)
    if part not in OF_FRAMEWORK:
        monkeypatch.setattr(instrument(part), "sections", f"{__name__}:fails_in_the_middle")
        summary[next(iter(instrument(part).parts))] = {"n": 1}
    file = io.StringIO()
    terminal.draw(summary, Console(file=file, width=100), "run", terminal.LINES)
    drawn = file.getvalue()
    assert drawn.count("planted") == 1
    assert "half of a part" not in drawn
    for other, words in (
        ("head", "main.py"),
        ("steps", "p10 .. p90"),
        ("rates", "train_rate"),
        ("run directory", "run directory"),
    ):
        assert (words in drawn) == (other != part)


def test_an_instrument_of_the_name_of_a_part_does_not_take_its_place() -> None:
    assert any(one.name == "steps" for one in installed_instruments() if one.sections)
    assert (
        overview.parts_of_report().items()
        >= {**overview.ABOVE, **overview.BELOW, **overview.LAST}.items()
    )


@pytest.mark.parametrize(
    "damage", ["text", [1], {"n": 1}, 3, {"by_function": 1, "n": "many", "kind": 1}]
)
@pytest.mark.parametrize(
    "key",
    [
        "steps",
        "verdict",
        "rates",
        "evaluation",
        "ranks",
        "loader",
        "calls",
        "checks",
        "overhead",
        "memory",
        "loss",
    ],
)
def test_a_summary_with_a_part_of_another_form_is_drawn(key: str, damage: Any, run: Path) -> None:
    summary = {**json.loads((run / "summary.json").read_text()), key: damage}
    file = io.StringIO()
    terminal.draw(summary, Console(file=file, width=100), "run", terminal.LINES)
    assert "main.py" in file.getvalue()
    assert "run directory" in file.getvalue()


def test_a_part_of_a_page_that_fails_is_one_section(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("voirkit.report.html.steps", fails)
    shown(capsys, "--html", str(run))
    page = (run / "report.html").read_text()
    assert "This part cannot be drawn (KeyError: &#x27;planted&#x27;)" in page
    assert "train_rate" in page
    assert callable(html.page)


@pytest.mark.parametrize("name", ["_first", "_figures", "_steps", "_different", *INSTRUMENTS])
def test_a_part_of_a_comparison_page_that_fails_is_one_section(
    name: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name.startswith("_"):
        monkeypatch.setattr(html_comparison, name, fails)
    else:
        monkeypatch.setattr(instrument(name), "parts", {"steps": dict})  # which is there
        monkeypatch.setattr(instrument(name), "sections", f"{__name__}:fails")
    target = tmp_path / "page.html"
    assert compare([str(run), str(run), "--html", str(target)]) == 0
    page = target.read_text()
    assert "This part cannot be drawn" in page
    assert "</html>" in page


@pytest.mark.parametrize("name", ["figures", "different_facts", "environments"])
def test_a_part_of_a_comparison_that_fails_is_one_line(
    name: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"voirkit.report.comparison.{name}", fails)
    assert compare([str(run), str(run)]) == 0
    said = capsys.readouterr()
    assert "first" in said.out
    assert said.err.count("planted") == 1


def test_the_end_of_a_run_writes_its_summary_and_table_whatever_fails(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(summaries, "read_steps", fails)
    (run / "summary.json").unlink()
    assert (
        finish.main([str(run), "--pid", str(os.getpid()), "--draw", "100", "--shown", "run"]) == 0
    )
    summary = json.loads((run / "summary.json").read_text())
    assert any("planted" in warning for warning in summary["warnings"])
    assert summary["verdict"]["kind"] == "unknown"
    assert "planted" in capfd.readouterr().out


def _folder_for_file(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _garbage(path: Path) -> None:
    path.write_bytes(b"\x07" * 300)


def _noise_inside(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:60] + b"\x07" * max(len(data) - 120, 0) + data[-60:])


def _unlinked(path: Path) -> None:
    path.unlink()


DAMAGES = {
    "a folder": _folder_for_file,
    "garbage": _garbage,
    "noise inside": _noise_inside,
    "missing": _unlinked,
    "empty": lambda path: path.write_bytes(b""),
}
FILES = [
    "run.json",
    "summary.json",
    "stream/*.jsonl",
    "trace/**/*.parquet",
    "trace/processes/*",
    "steps/*.parquet",
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("pattern", FILES)
def test_a_report_of_a_damaged_run_is_a_report(
    pattern: str, damage: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report([str(run)])  # compacts the trace
    capsys.readouterr()
    for path in run.glob(pattern):
        DAMAGES[damage](path)
    for words in ([], ["--json"], ["--html"]):
        code = report([str(run), *words])
        said = capsys.readouterr()
        assert code == 0, said.err
        assert said.out
        assert "Traceback" not in said.out + said.err
    assert all(line.startswith(("voirkit: ", "  ")) for line in said.err.splitlines())


@pytest.mark.parametrize("value", [None, 5, "x", [1], {"a": 1}])
def test_a_report_of_a_run_whose_documents_hold_anything_is_a_report(
    value: Any, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("run.json", "summary.json"):
        path = run / name
        whole = json.loads(path.read_text())
        kept = ("schema", "voirkit")
        path.write_text(
            json.dumps({key: held if key in kept else value for key, held in whole.items()})
        )
        for words in ([], ["--json"], ["--html"]):
            assert report([str(run), *words]) == 0
        assert compare([str(run), str(run)]) == 0
        path.write_text(json.dumps(whole))
    assert "Traceback" not in capsys.readouterr().err


def test_a_run_of_an_older_version_opens_like_any_other(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without ``wall``, ``moments``, the ``value`` of rates, sums of steps."""
    import shutil

    newer = Path(shutil.copytree(run, tmp_path / "newer"))
    summary, manifest = (
        json.loads((run / name).read_text()) for name in ("summary.json", "run.json")
    )
    del summary["wall"], manifest["moments"]
    for key in ("total_s", "mean_s", "unlike"):
        summary["steps"].pop(key, None)
    for rate in summary["rates"].values():
        del rate["value"]
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "run.json").write_text(json.dumps(manifest))
    shutil.rmtree(run / "steps")
    out, err = shown(capsys, str(run))
    assert "wall time  " in out
    assert "train_rate" in out
    assert err == ""
    shutil.rmtree(run / "steps")  # which the report has made again
    shutil.rmtree(run / "trace")  # nothing but what it wrote of itself is left
    out, err = shown(capsys, str(run))
    assert "train_rate" in out
    assert "wall time  " not in out
    assert compare([str(run), str(newer)]) == 0
    assert "train_rate" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["stream", "trace", "steps"])
def test_a_file_where_a_folder_should_be_is_one_line(
    name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    shutil.rmtree(run / name)
    (run / name).write_text("")
    out, err = shown(capsys, str(run))
    assert "main.py" in out
    assert "Traceback" not in err


def test_a_reason_is_one_line_and_names_what_failed() -> None:
    assert reason(ValueError("one\ntwo")) == "ValueError: one"
    assert reason(AssertionError()) == "AssertionError"
    assert (
        reason(RunDirectoryError("its trace cannot be read.", where="run", next="x"))
        == "run: its trace cannot be read"
    )


def test_parts_that_fail_for_the_same_reason_share_a_line() -> None:
    failures = PartFailures()
    assert [failures.attempt(part, fails, 7) for part in ("a", "b", "c")] == [7, 7, 7]
    assert failures.lines() == [
        "left out of the report, since it failed: a, b and c (KeyError: 'planted')."
    ]


def test_a_reader_that_closes_the_pipe_is_no_failure_of_a_part() -> None:
    def closed() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        PartFailures().attempt("a", closed, None)


def test_a_stream_file_that_is_a_folder_is_one_clear_line(run: Path) -> None:
    for path in (run / "stream").iterdir():
        _folder_for_file(path)
    done = subprocess.run(
        [sys.executable, "-m", "voirkit", "report", str(run)],
        env=CLEAN,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr.endswith(".jsonl cannot be read: Is a directory.\n")
    assert len(done.stderr.splitlines()) == 1
