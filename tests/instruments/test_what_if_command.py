"""``--what-if`` on the command line: what is wrong is told before anything runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import CLEAN, Place

from voirkit_instruments.what_if.record_changes import (
    CHANGES,
    WITHDRAWN,
    lines,
    make_change,
    parse_change,
)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--what-if", "banana"], "--what-if banana: 'banana' is no change that voirkit knows."),
        (
            ["--what-if", "io-uring-read"],
            "--what-if io-uring-read: io-uring-read is made no more. Measured, files that were not in memory",
        ),
        (["--what-if", "io-uring-read"], "Try instead: --what-if read-ahead"),
        (["--what-if", "checkpoint-asynch"], "Did you mean 'checkpoint-async'"),
        (["--what-if", "num-threads"], "num-threads needs a whole number of threads"),
        (["--what-if", "num-threads=0"], "not '0'"),
        (["--what-if", "num-threads=x"], "Write: --what-if num-threads=N"),
        (["--what-if=checkpoint-no-crc=3"], "checkpoint-no-crc takes no argument."),
        (["--what-if", "pin-memory", "--what-if", "non-blocking"], "one change at a time"),
        (["--what-if", "pin-memory", "--pairs", "3"], "a whole number of at least 5"),
        (["--pairs", "6"], "--pairs is about --what-if"),
        (
            ["--what-if", "pin-memory", "--stop-after", "3s"],
            "--stop N ends each after N optimizer steps",
        ),
    ],
)
def test_what_is_wrong_is_told_and_nothing_runs(place: Place, words: list[str], said: str) -> None:
    ended = place.write(main="print('ran')").voirkit(*words, "main.py")
    assert ended.code == 2
    assert said in ended.err
    assert ended.out == ""
    assert not (place.folder / "run").exists()


def test_a_missing_script_is_told_as_ever(place: Place) -> None:
    ended = place.write(main="print('ran')").voirkit("--what-if", "pin-memory", "mian.py")
    assert ended.code == 2
    assert "there is no script 'mian.py'" in ended.err


def test_several_ranks_are_refused(place: Place) -> None:
    ended = place.write(main="print('ran')").voirkit(
        "--what-if", "pin-memory", "main.py", env={"WORLD_SIZE": "2", "RANK": "0"}
    )
    assert ended.code == 2
    assert "it runs one process" in ended.err


def test_every_change_is_listed_and_can_be_made() -> None:
    assert [line.split()[0].partition("=")[0] for line in lines()] == [*CHANGES, *WITHDRAWN]
    for name, known in CHANGES.items():
        argument = "2" if known.argument else None
        assert parse_change(f"{name}={argument}" if argument else name) == (name, argument)
        assert make_change(name, argument).exact in (True, False)


def test_a_script_that_fails_shows_its_error_once_and_its_exit_code(place: Place) -> None:
    ended = place.write(
        main="import sys\nprint('working')\nprint('no data', file=sys.stderr)\nsys.exit(7)"
    ).voirkit("--what-if", "checkpoint-no-crc", "main.py")
    assert ended.code == 7
    assert ended.err.count("no data") == 1
    assert "The plain run failed: it ended with exit code 7." in ended.out


def test_a_script_without_torch_has_nothing_to_change(place: Place) -> None:
    ended = place.write(main="print('hello')").voirkit("--what-if", "checkpoint-no-crc", "main.py")
    assert ended.code == 0, ended.err
    assert "no difference found: there is nothing to change" in ended.out
    assert ended.summary["what_if"]["ceiling"] == {
        "share": 0.0,
        "because": "torch.save is not called in this run.",
    }
    assert ended.summary["what_if"]["verdict"] == "no difference found"
    assert "what_if_run" not in ended.summary


def test_a_page_is_written_and_a_condition_is_told_to_be_no_matter_here(place: Place) -> None:
    ended = place.write(main="print('hello')").voirkit(
        "--html", "--require", "train_rate>=5", "--what-if", "checkpoint-no-crc", "main.py"
    )
    assert ended.code == 0, ended.err
    assert "see it as a page: run/report.html" in ended.out
    assert "What if: checkpoint-no-crc" in (place.folder / "run" / "report.html").read_text()
    assert "--require is of one run, and is not looked at with --what-if" in ended.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_ends_the_run_that_goes_on(place: Place, number: int, code: int) -> None:
    place.write(main="import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(100)")
    words = [
        sys.executable,
        "-m",
        "voirkit",
        "--run-dir",
        "run",
        "--what-if",
        "checkpoint-no-crc",
        "main.py",
    ]
    driver = subprocess.Popen(
        words,
        cwd=place.folder,
        env=CLEAN,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + 240
        while not (place.folder / "pid").exists() or not (place.folder / "pid").read_text():
            assert time.monotonic() < until
            time.sleep(0.05)
        driver.send_signal(number)
        out, err = driver.communicate(timeout=240)
    finally:
        driver.kill()
    assert driver.returncode == code, err
    assert "Interrupted after 0 of 5 pairs." in out
    with pytest.raises(ProcessLookupError):
        os.kill(int((place.folder / "pid").read_text()), 0)


def test_a_driver_that_is_killed_leaves_no_run_behind(place: Place) -> None:
    place.write(main="import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(100)")
    words = [
        sys.executable,
        "-m",
        "voirkit",
        "--run-dir",
        "run",
        "--what-if",
        "checkpoint-no-crc",
        "main.py",
    ]
    driver = subprocess.Popen(
        words, cwd=place.folder, env=CLEAN, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 240
        while not (place.folder / "pid").exists() or not (place.folder / "pid").read_text():
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        driver.kill()
        driver.wait()
    stat = f"/proc/{(place.folder / 'pid').read_text()}/stat"
    with suppress(FileNotFoundError, ProcessLookupError):
        while Path(stat).read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < until
            time.sleep(0.05)
