"""`voirkit watch`: a run as it is seen from outside."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import CLEAN, Place
from live_training import TRAINING

sys.path.insert(0, str(Path(__file__).parent / "instruments"))
from terminal import Terminal

pytestmark = pytest.mark.long

VOIRKIT = [sys.executable, "-m", "voirkit"]
# Trains an epoch for each line that it is given, and says so.
SCRIPT = (
    TRAINING
    + """
training = Training(length=20, workers=2)
print("ready", flush=True)
for line in sys.stdin:
    training.epoch()
    print("trained", flush=True)
"""
)

Begin = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def begin(place: Place) -> Iterator[Begin]:
    """Begin a run that trains an epoch for each line."""
    started: list[subprocess.Popen[str]] = []

    def run(script: str = SCRIPT, *words: str, **env: str) -> subprocess.Popen[str]:
        place.write(main=script)
        started.append(
            subprocess.Popen(
                [*VOIRKIT, "--quiet", "--run-dir", "run", *words, "main.py"], cwd=place.folder, env={**CLEAN, **env},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        said(started[-1])
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """`voirkit watch` on a terminal."""
    started: list[Terminal] = []

    def run(*words: str, **options: object) -> Terminal:
        started.append(Terminal(tmp_path, *VOIRKIT, "watch", *words, **options))  # type: ignore[arg-type]
        return started[-1]

    yield run
    for one in started:
        one.close()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def train(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert said(process) == "trained"


def watch(place: Place, *words: str, **env: str) -> list[str]:
    """What is printed where there is no terminal."""
    ended = place.run(*VOIRKIT, "watch", *words, env=env)
    assert (ended.code, ended.err) == (0, "")
    return ended.out.splitlines()


def test_a_run_that_goes_on_is_shown_as_it_is_now(place: Place, begin: Begin) -> None:
    process = begin()
    assert "no training step yet" in watch(place, "run")
    train(process)
    shown = "\n".join(watch(place, "run"))
    assert "running" in shown
    assert (
        "w wait 50%  t transfer 5%  f forward 10%  b backward 20%  o optimizer 10%  . other 5%"
        in shown
    )
    assert "the last 20 steps · 20 so far" in shown
    assert "input-bound" in shown
    assert "20/20" in shown
    train(process)
    assert "the last 40 steps · 40 so far" in "\n".join(watch(place, "run"))


def test_a_run_that_has_ended_has_a_last_picture(place: Place, begin: Begin) -> None:
    process = begin()
    train(process)
    process.communicate("")
    lines = watch(place, "run")
    assert "main.py" in lines[0]
    assert "ended, exit code 0" in lines[0]
    assert "· 20 steps" in "\n".join(lines)


def test_a_run_that_was_killed_is_said_to_be(place: Place, begin: Begin) -> None:
    process = begin()
    train(process)
    process.kill()
    process.wait()
    lines = watch(place, "run")
    assert "was killed" in lines[0]
    assert any("wait 50%" in line for line in lines)


@pytest.mark.parametrize("name", ["nowhere", "foreign", "file"])
def test_what_is_no_run_is_one_error(place: Place, name: str) -> None:
    (place.folder / "foreign").mkdir()
    (place.folder / "foreign" / "thesis.tex").write_text("")
    (place.folder / "file").write_text("")
    ended = place.run(*VOIRKIT, "watch", name)
    assert ended.code == 2
    assert ended.err.startswith(f"voirkit: {name}: ")
    assert "Traceback" not in ended.err


def test_the_latest_run_is_watched_by_default(place: Place) -> None:
    assert "there is no run in this folder" in place.run(*VOIRKIT, "watch").err
    place.write(main="print(1)")
    assert place.run(*VOIRKIT, "--quiet", "main.py").code == 0
    assert "main.py" in watch(place)[0]


def test_watching_writes_nothing(place: Place, begin: Begin) -> None:
    process = begin()
    train(process)
    before = {
        path: path.stat().st_mtime_ns
        for path in (place.folder / "run").rglob("*")
        if not path.name.endswith(".seg")
    }
    watch(place, "run")
    assert {
        path: path.stat().st_mtime_ns
        for path in (place.folder / "run").rglob("*")
        if not path.name.endswith(".seg")
    } == before


def test_the_key_q_ends_the_watching_and_the_run_goes_on(
    place: Place, begin: Begin, terminal: Callable[..., Terminal]
) -> None:
    process = begin()
    train(process)
    watching = terminal("run", size=(100, 30))
    watching.until_shows("20 so far")
    train(process)
    watching.until_shows("40 so far")
    watching.type("q")
    assert watching.end() == 0
    assert watching.whole()
    assert any("40 so far" in line for line in watching.scrollback())
    train(process)


def test_the_watching_ends_with_the_run(
    place: Place, begin: Begin, terminal: Callable[..., Terminal]
) -> None:
    process = begin()
    watching = terminal("run", size=(100, 30))
    watching.until_shows("no training step yet")
    train(process)
    process.communicate("")
    assert watching.end() == 0
    shown = "\n".join(watching.scrollback())
    assert "ended, exit code 0" in shown
    assert "training" in shown  # a part of the wall time
    assert any(
        kind in shown for kind in ("input-bound", "host-bound")
    )  # between its steps it waits for what it is told here


def test_a_killed_run_ends_the_watching(
    place: Place, begin: Begin, terminal: Callable[..., Terminal]
) -> None:
    process = begin()
    watching = terminal("run", size=(100, 30))
    watching.until_shows("no training step yet")
    process.kill()
    process.wait()
    assert watching.end() == 0
    assert "was killed" in "\n".join(watching.scrollback())


def test_ctrl_c_ends_the_watching(begin: Begin, terminal: Callable[..., Terminal]) -> None:
    begin()
    watching = terminal("run")
    watching.until_shows("no training step yet")
    watching.type("\x03")
    assert watching.end() == 0
    assert watching.whole()
    assert b"Traceback" not in watching.raw


def test_a_run_directory_that_is_removed_is_one_error(
    place: Place, begin: Begin, terminal: Callable[..., Terminal]
) -> None:
    begin()
    watching = terminal("run")
    watching.until_shows("no training step yet")
    shutil.rmtree(place.folder / "run")
    assert watching.end() == 2
    assert "it cannot be read any more" in "".join(watching.scrollback())


def test_ranks_are_shown_each_and_together(place: Place) -> None:
    place.write(main=TRAINING + "Training(length=20).epoch(); sys.stdin.readline()")
    ranks = [
        subprocess.Popen(
            [*VOIRKIT, "--quiet", "--run-dir", "run", "main.py"], cwd=place.folder, env={**CLEAN, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdin=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        while True:
            if os.path.exists(place.folder / "run" / "run.json"):
                lines = watch(place, "run")
                if sum(line.startswith("rank ") for line in lines) == 2:
                    break
        assert any(line.startswith("rank 1") and "wait 50%" in line for line in lines)
    finally:
        for process in ranks:
            process.communicate(b"\n")


def test_what_is_logged_is_shown(place: Place, begin: Begin) -> None:
    script = "import sys\nfrom voirkit import log\nlog(loss=0.5, task='train')\nlog(loss=0.25, task='train')\nprint('ready', flush=True)\nsys.stdin.readline()"
    begin(script)
    assert any(line.startswith("train loss") and "0.25" in line for line in watch(place, "run"))


def test_counters_of_the_monitor_are_shown(place: Place, begin: Begin) -> None:
    begin(
        "import sys\nfrom voirkit.trace import recorder\n"
        "for name, value, units in (('cpu', 1.75, 'cores'), ('rss', 2.5e9, 'bytes'), ('read', 5, 'bytes'), ('gpu0_load', 0.5, 'share')):\n"
        "    recorder.counter(recorder.name('monitor', name, kind='counter', value=units), recorder.now(), value)\n"
        "print('ready', flush=True)\nsys.stdin.readline()"
    )
    assert "cpu 1.75 cores   rss 2.5 GB   gpu0 load 50.0%" in watch(place, "run")


def test_a_run_of_another_host_is_shown_by_its_own_clock(place: Place, begin: Begin) -> None:
    process = begin()
    train(process)
    process.send_signal(signal.SIGSTOP)
    path = place.folder / "run" / "run.json"
    manifest = json.loads(path.read_text())
    manifest["clocks"]["time_ns"] += 3_600_000_000_000  # its clock is an hour ahead
    manifest["host"] = "elsewhere"
    path.write_text(json.dumps(manifest))
    for names in (place.folder / "run" / "trace").glob("*.names"):
        header, rest = names.read_text().split("\n", 1)
        names.write_text(json.dumps({**json.loads(header), "host": "elsewhere"}) + "\n" + rest)
    lines = watch(place, "run")
    assert re.search(r"\b0:\d\d:\d\d\b", lines[0])  # not an hour
    assert "running" in lines[0]
    assert any("wait 50%" in line for line in lines)


@pytest.mark.parametrize("size", [(20, 24), (12, 5), (5, 3)])
def test_a_small_terminal_is_no_trouble(
    place: Place, begin: Begin, terminal: Callable[..., Terminal], size: tuple[int, int]
) -> None:
    process = begin()
    train(process)
    watching = terminal("run", size=size)
    if size[0] >= 20:
        watching.until_shows("wait 50%")
    process.communicate("")
    assert watching.end() == 0
    assert b"Traceback" not in watching.raw


def test_a_terminal_without_utf_8_gets_what_it_can_show(place: Place, begin: Begin) -> None:
    process = begin()
    train(process)
    ended = place.run(*VOIRKIT, "watch", "run", env={"PYTHONIOENCODING": "ascii"})
    assert ended.code == 0
    assert ended.out.isascii()
    assert "?" not in ended.out
