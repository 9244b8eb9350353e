# ruff: noqa: F811 -- fixtures are taken over by their names
"""`--dash` on real terminals: what the script prints is all there, in order, and as without the view."""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import dedent

import pytest
from dashing import (
    VOIRKIT,
    WAIT,
    Run,
    on_terminal,  # noqa: F401 -- fixture
    output_of,
)
from terminal import Terminal

pytestmark = pytest.mark.long

PRINTS = (
    WAIT
    + """
    import sys
    give(start=1)
    for i in range(60):
        print(f"line {i} [bold]as it is[/bold] \\033[31mred\\033[0m", flush=True)
        print(f"error {i}", file=sys.stderr)
        give(task="train", loss=i, progress=(i, 60))
        wait(0.01)
    for i in range(40):
        print(f"\\r|{'#' * i:40}| {i}/40", end="", file=sys.stderr, flush=True)
        wait(0.01)
    print("\\r" + "x" * 100)
    print("an unfinished line, ", end="", flush=True)
    wait(0.6)
    print("finished later; a long one: " + "abcdefghij" * 20)
    print("汉字 and 🙂", end="")
"""
)


def test_the_terminal_and_its_scrollback_have_the_output_as_without_dash(on_terminal: Run) -> None:
    with_dash, without = on_terminal(PRINTS), None
    assert with_dash.end() == 0
    without = on_terminal(PRINTS, python=True)
    assert without.end() == 0
    assert output_of(with_dash) == without.scrollback()


def test_bars_on_several_lines_are_drawn_as_without_dash(on_terminal: Run) -> None:
    script = WAIT + """
    give(start=1)
    for outer in range(3):
        print(f"\\router {outer}", end="", flush=True)
        for inner in range(10):
            print(f"\\n\\rinner {inner}\\033[A", end="", flush=True)
            wait(0.05)
            give(inner=inner)
    print("\\n\\ndone")
    """  # fmt: skip
    with_dash, without = on_terminal(script, size=(60, 20)), None
    assert with_dash.end() == 0
    without = on_terminal(script, python=True, size=(60, 20))
    assert without.end() == 0
    assert output_of(with_dash) == without.scrollback()


def test_the_script_has_its_own_streams(on_terminal: Run) -> None:
    terminal = on_terminal("""
    import sys
    print(sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, type(sys.stdout).__name__, sys.stdout.isatty())
    """)
    assert terminal.end() == 0
    assert terminal.scrollback() == ["True True TextIOWrapper True"]


def test_what_workers_and_subprocesses_print_is_not_garbled(on_terminal: Run) -> None:
    script = WAIT + """
    import os, subprocess, sys, torch
    class Numbers(torch.utils.data.Dataset):
        def __len__(self): return 24
        def __getitem__(self, i):
            print(f"worker reads {i:02}\\nin two lines", flush=True)
            return i
    def main():
        give(start=1)
        for batch in torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=1):
            give(batch=batch)
            wait(0.05)
        subprocess.run(["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo a subprocess says $i; done"])
        os.write(2, b"past\\nall\\nof\\npython\\n" * 5)
        give(end=1)
        wait(0.6)
    if __name__ == "__main__":
        main()
    """  # fmt: skip
    with_dash, without = on_terminal(script), None
    assert with_dash.end() == 0
    without = on_terminal(script, python=True)
    assert without.end() == 0
    assert output_of(with_dash) == without.scrollback()


def test_the_output_stays_in_sight_above_the_view(on_terminal: Run) -> None:
    terminal = on_terminal("""
    import sys
    from giving import give
    give(**{f"key{i}": i for i in range(50)})
    for i in range(100):
        print("line", i)
    sys.stdin.readline()
    """, size=(80, 24))  # fmt: skip
    terminal.until_shows("more")
    shown = [line.rstrip() for line in terminal.screen.display]
    assert [f"line {i}" for i in range(90, 100)] == shown[:10]


def test_input_reads_what_is_typed(on_terminal: Run) -> None:
    terminal = on_terminal(WAIT + """
    give(start=1)
    wait(0.6)
    name = input("Your name? ")
    print("Hello", name)
    """)  # fmt: skip
    terminal.until_shows("Your name? ")
    terminal.type("Ada")
    terminal.until(
        lambda: any(line.startswith("Your name? Ada") for line in terminal.screen.display)
    )
    terminal.type("\n")
    assert terminal.end() == 0
    assert output_of(terminal) == ["Your name? Ada", "Hello Ada"]


def test_standard_output_through_a_pipe_to_the_same_terminal_is_not_garbled(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(dedent(WAIT + """
    for i in range(60):
        give(loss=i)
        print("line", i, flush=True)
        wait(0.02)
    """))  # fmt: skip
    terminal = Terminal(tmp_path, "sh", "-c", f"{shlex.join(VOIRKIT)} --dash main.py | tee copy")
    try:
        assert terminal.end() == 0
    finally:
        terminal.close()
    assert output_of(terminal) == [f"line {i}" for i in range(60)]


def test_standard_output_in_a_file_is_the_same_to_the_byte(
    on_terminal: Run, tmp_path: Path
) -> None:
    script = WAIT + """
    import sys
    for i in range(5):
        give(loss=i)
        print("\\r", i, end="")
        sys.stdout.buffer.write(b"\\xff\\n")
        wait(0.1)
    """  # fmt: skip
    outputs = []
    for python in (False, True):
        with open(tmp_path / "out", "wb") as out:
            terminal = on_terminal(script, python=python, stdout=out.fileno())
            assert terminal.end() == 0
        outputs.append((tmp_path / "out").read_bytes())
    assert outputs[0] == outputs[1]
