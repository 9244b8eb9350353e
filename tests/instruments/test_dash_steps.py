# ruff: noqa: F811 -- fixtures are taken over by their names
"""`--dash` shows the steps without any probe, and its key q; on a pseudo-terminal under an emulator."""

from __future__ import annotations

import os
import re
import subprocess
import termios
from pathlib import Path

import pytest
from dashing import (
    VOIRKIT,
    Run,
    on_terminal,  # noqa: F401 -- fixture
)
from live_training import TRAINING
from terminal import CLEAN, Terminal

pytestmark = pytest.mark.long

TRAINS = (
    TRAINING
    + """
training = Training(length=30, workers=0)
training.begin()
for _ in range(20):
    training.step()
"""
)
WAITS = "print('typed', repr(sys.stdin.readline()), flush=True)\n"
# Goes on until there is a file, and reads nothing.
GOES_ON = """
print("begun", flush=True)
while not os.path.exists("go"):
    training.step()
    time.sleep(0.01)
print("gone on", flush=True)
"""


def eol2(terminal: Terminal) -> bytes:
    """What the terminal takes for one more end of a line."""
    found: bytes = termios.tcgetattr(terminal._master)[6][termios.VEOL2]
    return found


def test_steps_are_shown_without_a_probe_or_a_voirfile(on_terminal: Run) -> None:
    terminal = on_terminal(TRAINS + WAITS, size=(100, 30))
    terminal.until_shows("wait 50%")
    shown = "\n".join(terminal.screen.display)
    assert "forward 10%  backward 20%  optimizer 10%" in shown
    assert re.search(r"epoch 1 +━+─+ +20/30 +67%", shown)
    assert re.search(r"train_rate +400 items/s", shown)
    assert "input-bound" in shown
    terminal.type("on\n")
    assert terminal.end() == 0


def test_a_given_rate_is_not_shown_twice(on_terminal: Run) -> None:
    terminal = on_terminal(
        TRAINS + "from giving import give\ngive(train_rate=5.0)\n" + WAITS, size=(100, 30)
    )
    terminal.until_shows("wait 50%")
    assert sum("train_rate" in line for line in terminal.screen.display) == 1
    terminal.type("on\n")
    terminal.end()


@pytest.mark.parametrize("size", [(60, 15), (20, 24)])
def test_a_small_terminal_shows_the_most_important(on_terminal: Run, size: tuple[int, int]) -> None:
    terminal = on_terminal(TRAINS + WAITS, size=size)
    terminal.until_shows("input-bound")
    terminal.type("on\n")
    assert terminal.end() == 0
    assert terminal.whole()


def test_without_steps_there_are_none(on_terminal: Run) -> None:
    terminal = on_terminal("import sys\nfrom giving import give\ngive(loss=1)\n" + WAITS)
    terminal.until_shows("loss")
    assert "step" not in "\n".join(terminal.screen.display[1:])
    terminal.type("on\n")
    assert terminal.end() == 0


def test_elsewhere_than_on_a_terminal_the_steps_are_in_the_line(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(TRAINS + "sys.stdin.readline()\n")
    process = subprocess.Popen(
        [*VOIRKIT, "--dash", "main.py"],
        cwd=tmp_path,
        env=CLEAN,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    while "step" not in line:
        assert line
        line = process.stderr.readline()
    assert (
        "step 10 ms: wait 50%, transfer 5%, forward 10%, backward 20%, optimizer 10%, other 5% | train_rate 400 items/s"
        in line
    )
    process.communicate("\n")


def test_of_several_ranks_all_are_shown(on_terminal: Run, tmp_path: Path) -> None:
    terminal = on_terminal(TRAINS + WAITS, size=(100, 30), env={"RANK": "0", "WORLD_SIZE": "2"})
    terminal.until_shows("wait 50%")
    environment = {**CLEAN, "RANK": "1", "WORLD_SIZE": "2"}
    with subprocess.Popen(
        [*VOIRKIT, "main.py"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    ) as other:
        terminal.until_shows("rank 1")
        assert "rank 0" in "\n".join(terminal.screen.display)
        other.communicate(b"\n")
    terminal.type("on\n")
    assert terminal.end() == 0


# The key q


def test_q_ends_the_view_and_the_run_goes_on(on_terminal: Run, tmp_path: Path) -> None:
    terminal = on_terminal(TRAINS + GOES_ON, size=(100, 30))
    terminal.until_shows("wait 50%")
    assert eol2(terminal) == b"q"
    terminal.type("q")
    terminal.until(terminal.whole)
    terminal.until(lambda: eol2(terminal) == b"\0")
    assert "wait 50%" not in "\n".join(terminal.screen.display)
    (tmp_path / "go").touch()
    assert terminal.end() == 0
    assert "gone on" in "\n".join(terminal.scrollback())
    assert not any("wait" in line for line in terminal.scrollback())


def test_what_is_typed_for_the_script_is_the_scripts(on_terminal: Run) -> None:
    terminal = on_terminal(TRAINS + WAITS + WAITS, size=(100, 30))
    terminal.until_shows("wait 50%")
    terminal.type("quit quickly\n")
    terminal.until_shows("typed 'quit quickly\\n'")
    terminal.type("q\n")
    assert terminal.end() == 0
    assert "typed 'q\\n'" in "\n".join(terminal.scrollback())


def test_lines_that_are_typed_ahead_are_the_scripts(on_terminal: Run, tmp_path: Path) -> None:
    terminal = on_terminal(TRAINS + GOES_ON + WAITS, size=(100, 30))
    terminal.until_shows("wait 50%")
    terminal.type("yes\n")
    terminal.until_shows("0:0")
    (tmp_path / "go").touch()
    assert terminal.end() == 0
    assert "typed 'yes\\n'" in "\n".join(terminal.scrollback())


def test_the_terminal_is_as_it_was_when_the_run_ends(on_terminal: Run) -> None:
    terminal = on_terminal(TRAINS + WAITS, size=(100, 30))
    terminal.until_shows("wait 50%")
    before = termios.tcgetattr(terminal._master)
    terminal.type("on\n")
    assert terminal.end() == 0
    after = termios.tcgetattr(terminal._master)
    assert after[6].pop(termios.VEOL2) == b"\0"
    before[6].pop(termios.VEOL2)
    assert after == before


def test_the_terminal_is_usable_when_the_run_was_killed(on_terminal: Run) -> None:
    terminal = on_terminal(TRAINS + WAITS, size=(100, 30))
    terminal.until_shows("wait 50%")
    os.kill(terminal.process.pid, 9)
    terminal.until(lambda: terminal.whole() and eol2(terminal) == b"\0")
