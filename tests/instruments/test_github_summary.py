"""``--github-summary``: the report is appended to the summary of a GitHub Actions job, and nothing is written elsewhere."""

from __future__ import annotations

from conftest import Place
from live_training import TRAINING

TRAINS = TRAINING + "Training(length=20).epoch()\n"


def test_the_report_is_appended_to_the_file_of_the_job(place: Place) -> None:
    place.write({"summary.md": "# before\n"}, main=TRAINS)
    ended = place.voirkit(
        "--github-summary", "main.py", env={"GITHUB_STEP_SUMMARY": str(place.folder / "summary.md")}
    )
    assert ended.code == 0, ended.err
    text = (place.folder / "summary.md").read_text()
    assert text.startswith("# before\n# `main.py`\n")
    assert ended.summary["verdict"]["because"] in text
    assert text.count("# `main.py`") == 1


def test_a_script_and_a_check_that_fail_are_in_it(place: Place) -> None:
    place.write(main=TRAINS, fails=TRAINS + "1 / 0\n")
    env = {"GITHUB_STEP_SUMMARY": str(place.folder / "summary.md")}
    assert (
        place.voirkit("--github-summary", "--require", "train_rate>=1000", "main.py", env=env).code
        == 3
    )
    assert "> **check failed:** train_rate" in (place.folder / "summary.md").read_text()
    assert place.voirkit("--github-summary", "--force", "fails.py", env=env).code == 1
    assert "ended by an exception" in (place.folder / "summary.md").read_text()


def test_elsewhere_nothing_is_written(place: Place) -> None:
    place.write(main=TRAINS)
    ended = place.voirkit("--github-summary", "main.py", env={"GITHUB_STEP_SUMMARY": ""})
    assert ended.code == 0
    assert "$GITHUB_STEP_SUMMARY is not set" in ended.err
    asked = place.voirkit(
        "--force", "main.py", env={"GITHUB_STEP_SUMMARY": str(place.folder / "summary.md")}
    )
    assert asked.code == 0
    assert not (place.folder / "summary.md").exists()


def test_a_file_that_cannot_be_written_is_a_warning(place: Place) -> None:
    place.write(main=TRAINS)
    ended = place.voirkit(
        "--github-summary", "main.py", env={"GITHUB_STEP_SUMMARY": str(place.folder)}
    )
    assert ended.code == 0
    assert "--github-summary: the report was not written (" in ended.err
