"""``voirkit.run``: a script is run from Python, and what it came to is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CLEAN, Place
from live_training import TRAINING

import voirkit
from voirkit.errors import CommandLineError, VoirkitError
from voirkit.launch import FinishedRun, RunFailedError

TRAINS = TRAINING + "import sys\nTraining(length=int(sys.argv[1])).epoch()\nprint('trained')\n"


@pytest.fixture
def folder(place: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the script is, as the current folder."""
    place.write(main=TRAINS, fails="import sys\nsys.exit('no data')\n")
    monkeypatch.chdir(place.folder)
    return place.folder


def test_a_test_can_hold_a_rate_against_a_target(folder: Path) -> None:
    run = voirkit.run("main.py", args=[40], capture_output=True, check=True)
    assert run.exit_code == 0
    assert run.stdout == "trained\n"
    assert run.summary["steps"]["n"] == 40
    assert run.summary["rates"]["train_rate"]["value"] == pytest.approx(400, rel=0.01)
    assert Path(run.path).parent == folder / "voirkit-runs"
    assert (folder / "voirkit-runs" / "latest").resolve() == Path(run.path)


def test_the_test_of_the_documentation_passes(folder: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "howto" / "notebooks.md").read_text(
        encoding="utf-8"
    )
    (block,) = (one for one in page.split("```python\n")[1:] if "def test_" in one)
    (folder / "main.py").write_text(TRAINS.replace("int(sys.argv[1])", "40"))
    (folder / "test_speed.py").write_text(block.partition("```")[0])
    command = [sys.executable, "-m", "pytest", "-q", "test_speed.py"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=CLEAN)
    assert ended.returncode == 0, ended.stdout


def test_options_are_those_of_the_command_line(folder: Path) -> None:
    run = voirkit.run(
        "main.py",
        [10],
        run_dir="there",
        monitor=0.5,
        quiet=True,
        html=False,
        require=["train_rate>=1", "train_rate>=1000"],
    )
    assert run.path == str(folder / "there")
    assert run.summary["monitor"]["interval_s"] == 0.5
    assert run.exit_code == 3


def test_a_module_takes_the_place_of_a_script(folder: Path) -> None:
    run = voirkit.run(module="main", args=[10], capture_output=True)
    assert run.summary["command"] == ["-m", "main", "10"] or run.summary["command"][0] == "main"
    assert run.stdout == "trained\n"


def test_a_failure_is_an_error_if_that_is_asked_for(folder: Path) -> None:
    assert voirkit.run("fails.py", capture_output=True).exit_code == 1
    with pytest.raises(RunFailedError, match="exit code 1") as caught:
        voirkit.run("fails.py", capture_output=True, check=True)
    assert isinstance(caught.value, VoirkitError)
    assert isinstance(caught.value.run, FinishedRun)
    assert caught.value.run.summary["ended"] == "exit"


def test_what_voirkit_refuses_leaves_no_run(folder: Path) -> None:
    with pytest.raises(CommandLineError, match="unknown option '--no-such'"):
        voirkit.run("main.py", no_such=True, capture_output=True)
    with pytest.raises(CommandLineError, match="one of script and module"):
        voirkit.run()
    with pytest.raises(CommandLineError, match="'5 s' is no number of seconds"):
        voirkit.run("main.py", timeout="5 s")
    assert [
        path.name
        for path in (folder / "voirkit-runs").iterdir()
        if path.is_dir() and not path.is_symlink()
    ] == []


def test_a_run_that_takes_too_long_is_killed(folder: Path) -> None:
    (folder / "waits.py").write_text("input()\nimport time\ntime.sleep(600)\n")
    (folder / "waits.py").write_text("import threading\nthreading.Event().wait()\n")
    with pytest.raises(subprocess.TimeoutExpired):
        voirkit.run("waits.py", run_dir="there", timeout=5)
    assert (folder / "there" / "run.json").exists()


def test_reports_come_in_every_form(folder: Path) -> None:
    run = voirkit.run("main.py", [10], capture_output=True)
    assert "input-bound" in run.report()
    assert run.report("markdown").startswith("# `main.py 10`")
    assert run.report("html").startswith("<!doctype html>")
    assert json.loads(run.report("json"))["steps"]["n"] == 10
    with pytest.raises(VoirkitError, match="'pdf'"):
        run.report("pdf")
    assert repr(run).startswith("<FinishedRun main.py 10: input-bound, exit code 0, voirkit-runs/")


def test_a_notebook_gets_a_part_of_a_page_with_nothing_but_its_own_styles(folder: Path) -> None:
    name = "<script>alert(1)</script>"
    run = voirkit.run("main.py", [10, name], capture_output=True)
    html = run._repr_html_()
    assert html.startswith('<div class="voirkit">')
    assert html.count("<style>") == 1
    assert "alert(1)" in html
    for hostile in ("<script", "<html", "http://", "https://", "@import", "url("):
        assert hostile not in html
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert ":root" not in style
    assert "body {" not in style
    assert style.count("{") == style.count("}")
    assert '[data-jp-theme-light="false"] .voirkit' in style
