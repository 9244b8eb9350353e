"""``voirkit report --html``, ``voirkit --html`` and ``voirkit compare --html``: pages that anybody can open anywhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Ended, Place
from live_training import TRAINING
from page import Page

from voirkit.phase_table import shown_phases

pytestmark = pytest.mark.long

TRAINED = TRAINING + "Training().epoch()\n"
SEVERAL = (
    TRAINING
    + "training = Training(length=LENGTH, step_ms=STEP)\nfor _ in range(3):\n    training.epoch()\n"
)


def report(place: Place, *words: str, **options: Any) -> Ended:
    return place.run(sys.executable, "-m", "voirkit", "report", *words, **options)


def compare(place: Place, *words: str) -> Ended:
    return place.run(sys.executable, "-m", "voirkit", "compare", *words)


def ran(place: Place, script: str = TRAINED, *words: str) -> Ended:
    place.write(main=script)
    return place.voirkit(*words, "main.py")


def read(path: Path) -> Page:
    """A page, which must be whole and ask nothing of anybody."""
    page = Page.of(path)
    assert page.faults == []
    assert page.asked == []
    return page


# the page of a run


def test_a_page_is_whole_and_asks_nothing_of_anybody(place: Place) -> None:
    ran(place)
    made = report(place, "--html", "run")
    assert (made.code, made.out, made.err) == (0, f"run{os.sep}report.html\n", "")
    page = read(place.folder / "run" / "report.html")
    policies = [
        found["content"]
        for tag, found in page.tags
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies
    assert str(policies[0]).startswith("default-src 'none'")


def test_its_first_screen_says_what_ran_the_verdict_and_where_the_time_of_a_step_goes(
    place: Place,
) -> None:
    ran(place)
    report(place, "--html", "run")
    first = read(place.folder / "run" / "report.html").text["first"]
    summary = json.loads((place.folder / "run" / "summary.json").read_text())
    for words in (
        "main.py",
        "exit code 0",
        "input-bound",
        summary["verdict"]["because"],
        summary["verdict"]["next"],
        "train_rate",
        "10",
    ):
        assert words in first
    shares = {phase: f"{row['share']:.1%}" for phase, row in summary["steps"]["phases"].items()}
    assert shares["wait"] == "50.0%"
    listed = shown_phases(summary["steps"]["phases"])
    assert set(shares) - set(listed) == {"communication"}  # of one process there is none
    for phase in listed:
        assert phase in first
        assert shares[phase] in first


def test_steps_are_drawn_over_time_with_evaluation_and_epochs(place: Place) -> None:
    script = (
        TRAINING
        + "one = Training()\none.epoch()\none.begin()\nfor _ in range(5):\n    one.evaluate()\none.end()\none.epoch()\n"
    )
    ran(place, script)
    report(place, "--html", "run")
    page = read(place.folder / "run" / "report.html")
    said = page.text["steps"]
    assert "20 steps." in said
    assert "step 0 10 ms" in said
    assert "wait 5 ms, 50%" in said
    assert "evaluation, 5 batches, 10" in said


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>.py",
        "a'b\"c&amp;.py",
        "\N{RIGHT-TO-LEFT OVERRIDE}yp.evil.py",
        "--></style>.py",
    ],
)
def test_names_are_text_whatever_they_hold(place: Place, name: str) -> None:
    if "/" in name:
        name = name.replace("/", "\N{DIVISION SLASH}")
    place.write({name: TRAINED})
    place.voirkit(f"./{name}", "--x", "</title><img src=x onerror=alert(1)>", "\udcff\x07")
    assert report(place, "--html", "run").code == 0
    page = read(place.folder / "run" / "report.html")
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "img" not in [tag for tag, _ in page.tags]
    assert "</title><img src=x onerror=alert(1)>" in page.text["first"]
    assert (
        name.replace("\N{RIGHT-TO-LEFT OVERRIDE}", "\N{REPLACEMENT CHARACTER}")
        in page.text["first"]
    )


def test_a_killed_run_has_a_page_that_says_so(place: Place) -> None:
    ran(place, TRAINED + "import signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert report(place, "--html", "run").code == 0
    page = read(place.folder / "run" / "report.html")
    assert "was killed" in page.text["first"]
    assert "10 steps." in page.text["steps"]


def test_a_run_that_goes_on_has_a_page(place: Place) -> None:
    place.write(main=TRAINED + "print('trained', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "voirkit", "--quiet", "--run-dir", "run", "main.py"]
    with subprocess.Popen(command, cwd=place.folder, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "trained\n"
            assert report(place, "--html", "run").code == 0
        finally:
            running.send_signal(signal.SIGKILL)
    assert "is still running" in read(place.folder / "run" / "report.html").text["first"]


def test_a_run_in_which_nothing_trained_has_a_page(place: Place) -> None:
    ran(place, "print(1)")
    assert report(place, "--html", "run").code == 0
    assert (
        "No step of a training was seen."
        in read(place.folder / "run" / "report.html").text["first"]
    )


def test_a_summary_of_an_older_schema_is_made_anew(place: Place) -> None:
    ran(place)
    (place.folder / "run" / "summary.json").write_text('{"schema": 0, "steps": "many"}')
    assert report(place, "--html", "run").code == 0
    page = read(place.folder / "run" / "report.html")
    assert "input-bound" in page.text["first"]
    assert "has schema 0" in page.text["first"]


def test_what_is_damaged_is_said_and_the_rest_is_drawn(place: Place) -> None:
    ran(place)
    path = place.folder / "run" / "summary.json"
    summary = json.loads(path.read_text())
    summary["calls"] = {"by_function": {"f": "often"}}
    path.write_text(json.dumps(summary))
    (place.folder / "run" / "stream" / "torn.jsonl").write_text("{\n")
    assert report(place, "--html", "run").code == 0
    page = read(place.folder / "run" / "report.html")
    assert "This part cannot be drawn" in page.text["failed-calls"]
    assert "torn.jsonl:1" in page.text["first"]
    assert "input-bound" in page.text["first"]


def test_a_silent_bug_that_was_found_stands_on_the_first_screen(place: Place) -> None:
    ran(place)
    path = place.folder / "run" / "summary.json"
    summary = json.loads(path.read_text())
    found = {
        "name": "missing-zero-grad",
        "found": True,
        "step": 3,
        "where": "main.py:12",
        "because": "It is <b>not</b> called.",
    }
    other = {
        "name": "same-order",
        "found": None,
        "step": None,
        "where": None,
        "because": "There was one epoch.",
        "next": "",
        "evidence": {},
    }
    summary["checks"] = [
        {**found, "next": "Call it.", "evidence": {"steps": [1, 2], "share": 0.25}},
        other,
    ]
    path.write_text(json.dumps(summary))
    assert report(place, "--html", "run").code == 0
    page = read(place.folder / "run" / "report.html")
    assert "missing-zero-grad" in page.text["first"]
    assert "step 3, main.py:12: It is <b>not</b> called." in page.text["first"]
    assert "2 looked for, 1 found." in page.text["checks"]
    assert "share0.25" in page.text["checks"]


def test_system_calls_are_drawn_by_phase_and_over_time_and_the_ten_most_have_shares(
    place: Place,
) -> None:
    ran(place)
    path = place.folder / "run" / "summary.json"
    summary = json.loads(path.read_text())

    def calls(**counts: int) -> dict[str, Any]:
        return {
            name: {"calls": n, "errors": 0, "seconds": n / 1000, "bytes": 0}
            for name, n in counts.items()
        }

    wait, other = calls(read=30, futex=10), calls(openat=60)
    summary["syscalls"] = {
        "phases": {"wait": wait, "other": other}, "threads": {"main": {"wait": wait, "other": other}}, "entered": {"main": {"wait": 10}},
        "waits": ["futex"], "tool": "kernel", "calls": 100, "files": [], "folders": [],
        "over_time": {"begin_s": 1.0, "bin_s": 0.5, "calls": {"read": [10, 20], "openat": [0, 60]}, "seconds": None, "phases": {"wait": [1.0, 0.5]}},
    }  # fmt: skip
    path.write_text(json.dumps(summary))
    assert report(place, "--html", "run").code == 0
    page = read(place.folder / "run" / "report.html")
    said = page.text["syscalls"]
    assert "wait · main40, 4 each" in said
    assert "time in calls that waitwait · main" not in said
    titles = [str(found.get("title")) for _, found in page.tags]
    assert "read: 30, 75.0%" in titles  # of the calls in its row
    assert "read: 30 ms, 100.0%" in titles  # of the time in calls that work
    assert "futex: 10 ms, 100.0%" in titles
    assert "openat60.0% 60" in " ".join(said.split()).replace("  ", " ")
    assert "these together 100.0%" in said
    assert "1.5 s .. 2 s: 60" in said  # of the map


def test_ranks_in_directories_of_their_own_are_one_page(place: Place) -> None:
    place.write(main=TRAINED)
    for rank in (0, 1):
        ranks = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
        place.run(sys.executable, "-m", "voirkit", "--run-dir", f"node{rank}", "main.py", env=ranks)
    made = report(place, "--html=both.html", "node0", "node1")
    assert (made.code, made.out) == (0, "both.html\n")
    page = read(place.folder / "both.html")
    assert "rank 1" in page.text["ranks"]


# its file


def test_runs_that_are_not_one_get_a_page_each(place: Place) -> None:
    ran(place)
    shutil.copytree(place.folder / "run", place.folder / "other")
    assert report(place, "--html", "run", "other").code == 0
    assert (place.folder / "other" / "report.html").exists()
    refused = report(place, "run", "other", "--html", "one.html")
    assert (refused.code, refused.out) == (2, "")
    assert "2 runs do not go into one file" in refused.err


def test_the_word_after_html_is_the_file_if_it_is_called_like_one(place: Place) -> None:
    ran(place)
    assert report(place, "--html", "page.html", "run").out == "page.html\n"
    assert report(place, "--html=page", "run").out == "page\n"
    (place.folder / "folder").mkdir()
    assert report(place, "--html=folder", "run").out == f"folder{os.sep}report.html\n"
    assert report(place, "run", "--html=new/page.html").code == 0
    assert report(place, "run", "--html", "-").out.startswith("<!doctype html>")


def test_only_a_page_of_voirkits_own_is_replaced(place: Place) -> None:
    ran(place)
    foreign = place.write({"page.html": "<p>mine"}).folder / "page.html"
    refused = report(place, "--html", "page.html", "run")
    assert (refused.code, refused.out) == (2, "")
    assert "is no page of voirkit's" in refused.err
    assert foreign.read_text() == "<p>mine"
    for _ in range(2):
        assert report(place, "--html", "own.html", "run").code == 0


def test_a_file_that_can_not_be_written_is_one_error(place: Place) -> None:
    ran(place)
    refused = report(place, "--html=/proc/nowhere/page.html", "run")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("voirkit: /proc/nowhere/page.html: it cannot be written: ")
    assert len(refused.err.splitlines()) == 1


def test_one_answer_is_asked_for_at_a_time(place: Place) -> None:
    ran(place)
    assert report(place, "--html", "--json", "run").code == 2
    assert report(place, "--html", "--markdown", "run").code == 2


# at the end of a run


def test_a_run_can_write_its_page_when_it_ends(place: Place) -> None:
    ended = ran(place, TRAINED, "--html")
    assert ended.err.splitlines()[-1] == f"see it as a page  {os.path.join('run', 'report.html')}"
    assert "input-bound" in read(place.folder / "run" / "report.html").text["first"]


def test_its_page_has_what_is_known_only_at_the_very_end(place: Place) -> None:
    ended = ran(place, "import voirkit\nvoirkit.give(loss=1.0)\nraise SystemExit(7)\n", "--html")
    assert ended.code == 7
    assert "see it as a page" in ended.err
    page = read(place.folder / "run" / "report.html")
    assert "exit code 7" in page.text["first"]
    assert "1 names given" in page.text["machine"]


def test_a_page_that_can_not_be_written_is_told_and_changes_nothing_else(place: Place) -> None:
    ended = ran(
        place,
        TRAINED
        + "import pathlib\npathlib.Path('run/report.html').write_text('mine')\nprint('done')\n",
        "--html",
    )
    assert (ended.code, ended.out) == (0, "done\n")
    assert "--html: " in ended.err
    assert (place.folder / "run" / "report.html").read_text() == "mine"


# two runs


def test_the_page_of_two_runs_says_what_the_second_has_more(place: Place) -> None:
    for name, n, ms in (("a", 10, 10), ("b", 20, 5)):
        place.write(main=SEVERAL.replace("LENGTH", str(n)).replace("STEP", str(ms)))
        place.run(sys.executable, "-m", "voirkit", "--run-dir", name, "main.py")
    calls = {"a": {"read": 10, "write": 5, "futex": 1}, "b": {"read": 4, "write": 9, "futex": 1}}
    for name, found in calls.items():
        path = place.folder / name / "summary.json"
        summary = json.loads(path.read_text())
        row = {
            call: {"calls": n, "errors": 0, "seconds": n / 1000, "bytes": 0}
            for call, n in found.items()
        }
        summary["syscalls"] = {"phases": {"wait": row}, "tool": "strace", "waits": ["futex"]}
        path.write_text(json.dumps(summary))
    made = compare(place, "a", "b", "--html", "two.html")
    assert (made.code, made.out, made.err) == (0, "two.html\n", "")
    page = read(place.folder / "two.html")
    figures = page.text["figures"].replace("\n", "")
    assert "steps3060+302.00x" in figures
    assert "step10 ms5 ms-5 ms0.50x" in figures
    assert "wait · read-6" in page.text["syscalls"]
    assert "wait · write+4" in page.text["syscalls"]
    assert "wait · read-6 ms" in page.text["syscalls"]
    assert "futex" not in page.text["syscalls"]


def test_a_comparison_needs_a_file_to_go_to(place: Place) -> None:
    ran(place)
    refused = compare(place, "run", "run", "--html")
    assert refused.code == 2
    assert "FILE is missing" in refused.err
