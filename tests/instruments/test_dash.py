# ruff: noqa: F811 -- fixtures are taken over by their names
"""`--dash` on real terminals (a pseudo-terminal under an emulator), on files, and its parts."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from textwrap import dedent

import pytest
from dashing import (
    HOLD,
    VOIRKIT,
    WAIT,
    Run,
    on_terminal,  # noqa: F401 -- fixture
    output_of,
)
from terminal import CLEAN

pytestmark = pytest.mark.long

# What it shows


def test_the_last_value_of_every_key_is_shown_with_units_and_count(on_terminal: Run) -> None:
    terminal = on_terminal(HOLD + """
    for i in range(7):
        give(loss=0.5 - i / 100, lr=0.1)
    give(train_rate=512.4, units="items/s")
    sys.stdin.readline()
    """)  # fmt: skip
    terminal.until_shows("512.4 items/s")
    shown = "\n".join(terminal.screen.display)
    assert re.search(r"loss +0\.44 +7x", shown)
    assert re.search(r"train_rate +512\.4 items/s +1x", shown)
    assert re.search(r"── main\.py ─ 0:00:\d\d  8 events ──", shown)


def test_keys_that_begin_with_a_dollar_or_a_hash_are_not_shown(on_terminal: Run) -> None:
    terminal = on_terminal(HOLD + """
    give(**{"$hidden": 1, "#endloop_x": 2, "loss": 3})
    sys.stdin.readline()
    """)  # fmt: skip
    terminal.until_shows("loss")
    assert "hidden" not in terminal.screen.display[-1] + "".join(terminal.screen.display)
    assert "endloop" not in "".join(terminal.screen.display)


def test_tasks_have_rows_of_their_own(on_terminal: Run) -> None:
    terminal = on_terminal(HOLD + """
    give(task="train", loss=1.5)
    give(task="eval", loss=2.5)
    sys.stdin.readline()
    """)  # fmt: skip
    terminal.until_shows("eval")
    shown = "\n".join(terminal.screen.display)
    assert re.search(r"train +loss +1\.5", shown)
    assert re.search(r"eval +loss +2\.5", shown)


def test_progress_is_a_bar(on_terminal: Run) -> None:
    terminal = on_terminal(HOLD + """
    give(progress=(30, 120))
    give(task="eval", progress=2, total=4, descr="images")
    sys.stdin.readline()
    """)  # fmt: skip
    terminal.until_shows("2/4")
    shown = "\n".join(terminal.screen.display)
    assert re.search(r"━{10}─{30}  30/120  25%", shown)
    assert re.search(r"eval images +━{20}─{20}  2/4  50%", shown)
    assert "descr" not in shown


def test_tensors_show_as_their_number_or_as_type_and_shape(on_terminal: Run) -> None:
    terminal = on_terminal("""
    import sys, torch
    from giving import give
    weight = torch.ones(1, requires_grad=True)
    give(loss=(weight * 0.25).sum(), batch=torch.zeros(4, 3), model=torch.nn.Linear(1, 1), pair=[1, 2])
    sys.stdin.readline()
    """)  # fmt: skip
    terminal.until_shows("loss")
    shown = "\n".join(terminal.screen.display)
    assert re.search(r"loss +0\.25", shown)
    assert re.search(r"batch +Tensor 4x3 float32", shown)
    assert re.search(r"model +Linear", shown)
    assert re.search(r"pair +list of 2", shown)


def test_the_values_that_stay_hold_what_is_given_after_the_script(on_terminal: Run) -> None:
    terminal = on_terminal(HOLD + """
    for i in range(5):
        give(loss=5 - i)
    """, voirfile="""
    def instrument_least(ov):
        yield ov.phases.init
        losses = ov.given["?loss"].accum()
        yield ov.phases.run_script
        ov.give(least=min(losses))
    """)  # fmt: skip
    assert terminal.end() == 0
    assert any(re.search(r"^least +1 +1x", line) for line in terminal.scrollback())


def test_ov_stop_ends_the_view_with_the_last_values(on_terminal: Run) -> None:
    terminal = on_terminal(HOLD + """
    for i in range(100):
        give(step=i)
    """, voirfile="""
    def instrument_stop(ov):
        yield ov.phases.init
        ov.given["?step"].skip(9).subscribe(lambda step: ov.stop())
        try:
            yield ov.phases.run_script
        finally:
            ov.give(stopped=9)
    """)  # fmt: skip
    assert terminal.end() == 0
    assert terminal.whole()
    assert any(re.search(r"^stopped +9 ", line) for line in terminal.scrollback())


def test_a_run_that_gives_nothing_leaves_nothing(on_terminal: Run) -> None:
    terminal = on_terminal("print('hello')")
    assert terminal.end() == 0
    assert terminal.scrollback() == ["hello"]


def test_rank_1_shows_no_view(on_terminal: Run) -> None:
    terminal = on_terminal("from giving import give; give(a=1); print('hello')", env={"RANK": "1"})
    assert terminal.end() == 0
    assert terminal.scrollback() == ["hello"]


def test_no_color_is_honoured(on_terminal: Run) -> None:
    terminal = on_terminal("from giving import give; give(loss=1)", env={"NO_COLOR": "1"})
    assert terminal.end() == 0
    assert b"loss" in terminal.raw
    assert not re.search(rb"\033\[[1-9]\d*m", terminal.raw)


# How it ends


@pytest.mark.parametrize(
    ("ending", "code", "last"),
    [
        ("raise ValueError('of the script')", 1, "ValueError: of the script"),
        ("sys.exit(3)", 3, None),
        ("sys.exit('a message')", 1, "a message"),
    ],
)
def test_the_terminal_is_whole_after_any_end(
    on_terminal: Run, ending: str, code: int, last: str | None
) -> None:
    terminal = on_terminal(HOLD + f"""
    give(loss=1)
    print("before", end="", flush=True)
    sys.stdin.readline()
    {ending}
    """)  # fmt: skip
    terminal.until_shows("events")
    assert not terminal.whole()
    terminal.type("\n")
    assert terminal.end() == code
    assert terminal.whole()
    assert not terminal.screen.cursor.hidden
    assert terminal.scrollback()[0] == "before"
    if last:
        assert terminal.scrollback()[-1] == last


def test_ctrl_c_leaves_a_whole_terminal_and_the_traceback(on_terminal: Run) -> None:
    terminal = on_terminal(WAIT + """
    give(loss=1)
    wait(60)
    """)  # fmt: skip
    terminal.until_shows("loss")
    terminal.type("\x03")
    assert terminal.end() in (130, -signal.SIGINT)
    assert terminal.whole()
    assert terminal.scrollback()[-1].startswith("KeyboardInterrupt")


@pytest.mark.parametrize("death", ["os.kill(os.getpid(), 9)", "os._exit(4)"])
def test_the_terminal_is_whole_even_after_a_sudden_death(on_terminal: Run, death: str) -> None:
    terminal = on_terminal(HOLD + f"""
    import os
    give(loss=1)
    print("before")
    sys.stdin.readline()
    {death}
    """)  # fmt: skip
    terminal.until_shows("loss")
    assert not terminal.whole()
    terminal.type("\n")
    terminal.process.wait(60)
    terminal.until(terminal.whole)
    terminal.until(lambda: "loss" not in "\n".join(terminal.screen.display))
    assert terminal.scrollback()[0] == "before"


def test_the_script_has_no_child_that_it_did_not_start(on_terminal: Run) -> None:
    terminal = on_terminal("""
    import os
    from giving import give
    give(loss=1)
    try:
        print(os.wait())
    except ChildProcessError:
        print("no child")
    """)  # fmt: skip
    assert terminal.end() == 0
    assert output_of(terminal) == ["no child"]


def test_a_forked_child_that_ends_leaves_the_view_to_its_parent(on_terminal: Run) -> None:
    terminal = on_terminal("""
    import os, sys
    from giving import give
    give(loss=1)
    if os.fork() == 0:
        print("the child ends")
        sys.exit(0)
    os.wait()
    print("the parent goes on")
    sys.stdin.readline()
    give(loss=2)
    """)  # fmt: skip
    terminal.until_shows("the parent goes on")
    terminal.until_shows("loss")
    assert not terminal.whole()
    terminal.type("\n")
    assert terminal.end() == 0
    assert any(re.search(r"^loss +2 +2x", line) for line in terminal.scrollback())


# Sizes


@pytest.mark.parametrize("size", [(40, 24), (80, 10), (40, 10), (20, 5), (5, 3), (2, 1)])
def test_a_small_terminal_has_a_small_view_and_all_the_output(
    on_terminal: Run, size: tuple[int, int]
) -> None:
    script = WAIT + """
    for i in range(30):
        give(task="train", **{f"a_rather_long_key_{k}": i for k in range(30)}, progress=(i, 30))
        print("line", i)
        wait(0.05)
    """  # fmt: skip
    terminal = on_terminal(script, size=size)
    assert terminal.end() == 0
    text = "".join(terminal.scrollback()).replace(" ", "")
    assert "".join(f"line{i}" for i in range(30)) in text


def test_the_view_follows_a_change_of_size(on_terminal: Run) -> None:
    terminal = on_terminal(HOLD + """
    give(loss=1.25)
    print("line 1")
    sys.stdin.readline()
    print("line 2")
    sys.stdin.readline()
    """, size=(80, 24))  # fmt: skip
    terminal.until_shows("1.25")
    for columns, lines in ((40, 12), (100, 40)):
        terminal.resize(columns, lines)
        terminal.until(lambda lines=lines: "1.25" in terminal.screen.display[lines - 1])  # type: ignore[misc]  # mypy: default of a lambda
        assert sum("1.25" in line for line in terminal.screen.display) == 1
    terminal.type("\n")
    terminal.until_shows("line 2")
    terminal.type("\n")
    assert terminal.end() == 0
    assert terminal.whole()


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_in_tmux_no_line_is_lost_and_no_part_of_the_view_is_left_behind_when_the_window_changes(
    tmp_path: Path,
) -> None:
    (tmp_path / "main.py").write_text(dedent(WAIT + """
    import os
    i = 0
    while not os.path.exists("enough"):
        print(f"line {i} " + "." * 70)
        give(task="train", loss=i, progress=(i % 100, 100))
        i += 1
        wait(0.02)
    """))  # fmt: skip
    (tmp_path / "tmux.conf").write_text("set -g history-limit 100000\n")
    server = ["tmux", "-S", str(tmp_path / "socket"), "-f", str(tmp_path / "tmux.conf")]

    def tmux(*words: str) -> str:
        return subprocess.run(
            [*server, *words], check=True, capture_output=True, text=True, env=CLEAN
        ).stdout

    def until(text: str, *options: str) -> str:
        deadline = time.monotonic() + 60
        while not re.search(
            text, shown := tmux("capture-pane", "-p", "-J", *options), re.MULTILINE
        ):
            assert time.monotonic() < deadline, shown
        return shown

    tmux(
        "new-session",
        "-d",
        "-x",
        "100",
        "-y",
        "30",
        "-c",
        str(tmp_path),
        f"{shlex.join(VOIRKIT)} --dash main.py; echo ended; cat",
    )
    try:
        until("^train +loss")
        for columns, lines in ((60, 15), (120, 40), (40, 10), (100, 30)):
            tmux("resize-window", "-x", str(columns), "-y", str(lines))
            until("─" * (columns - 40))
        (tmp_path / "enough").touch()
        output = until("^ended", "-S", "-").splitlines()
    finally:
        tmux("kill-server")
    printed = [line for line in output if line.startswith("line ")]
    assert [int(line.split()[1]) for line in printed] == list(range(len(printed)))
    assert sum("─ 0:0" in line for line in output) == 1
    assert sum("loss" in line for line in output) == 1


# Without a terminal


def test_without_a_terminal_there_are_plain_lines_on_standard_error_and_nothing_on_standard_output(
    tmp_path: Path,
) -> None:
    (tmp_path / "main.py").write_text(dedent(WAIT + """
    for i in range(5):
        give(loss=0.5 / (i + 1), progress=(i + 1, 400))
        give(train_rate=512.0, units="items/s")
        print(i)
        wait(0.5)
    """))  # fmt: skip
    done = subprocess.run(
        [*VOIRKIT, "--dash", "main.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=CLEAN,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout == "0\n1\n2\n3\n4\n"
    lines = done.stderr.splitlines()
    last = re.fullmatch(r"\[(\d+\.\d)s\] loss 0\.1 \| train_rate 512 items/s \| 5/400", lines[-1])
    assert last is not None
    assert 2 <= len(lines) <= float(last[1]) + 2  # one a second, and the last


def test_a_dumb_terminal_has_plain_lines(on_terminal: Run) -> None:
    terminal = on_terminal("from giving import give; give(loss=1)", env={"TERM": "dumb"})
    assert terminal.end() == 0
    assert re.fullmatch(rb"\[\d+\.\ds\] loss 1\r\n", terminal.raw)


def test_a_voirfile_can_require_it(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("from giving import give; give(loss=1)")
    (tmp_path / "voirfile.py").write_text(
        "from voirkit_instruments.dash import dash\ndef instrument_view(ov):\n    ov.require(dash)\n"
    )
    done = subprocess.run(
        [*VOIRKIT, "main.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=CLEAN,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert re.fullmatch(r"\[\d+\.\ds\] loss 1\n", done.stderr)


def test_without_the_flag_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import sys; print([m for m in sys.modules if m.startswith(('rich', 'voirkit_instruments.dash_'))])"
    )
    done = subprocess.run(
        [*VOIRKIT, "main.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=CLEAN,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.stdout == "[]\n"
