"""``voirkit completion SHELL``: what the shells themselves complete with it, and the man page as man reads it."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import CLEAN, Place

from voirkit.commands import SUBCOMMANDS
from voirkit.commands.command_lines import command_lines

SHARE = Path(__file__).parent.parent / "share"
LIMIT_S = 60.0
# What is typed, and all that it may become: word by word, what stands behind "voirkit".
CASES = [
    ("--mon", ["--monitor"]),
    ("rep", ["report"]),
    ("ma", ["main.py"]),
    ("--checks ma", ["--checks", "main.py"]),
    ("--monitor ma", ["--monitor", "main.py"]),
    ("--stop 5 ma", ["--stop", "5", "main.py"]),
    ("--run-dir su", ["--run-dir", "sub/"]),
    ("--config ma", ["--config", "main.py"]),
    ("--parameters-of b", ["--parameters-of", "buffers"]),
    ("--run-dir sub --verif", ["--run-dir", "sub", "--verify"]),
    ("report --mark", ["report", "--markdown"]),
    ("report su", ["report", "sub/"]),
    ("export --format chr", ["export", "--format", "chrome"]),
    ("syscalls --ov", ["syscalls", "--over-time"]),
    # Nothing of voirkit's: these words are the script's, no word of that command, or no value.
    ("main.py rep", ["main.py", "rep"]),
    ("-- --che", ["--", "--che"]),
    ("report --loa", ["report", "--loa"]),
]
# bash offers files for any value, and bash and fish voirkit's options behind SCRIPT too.
CASES_OF_ZSH = [
    *CASES,
    ("main.py --che", ["main.py", "--che"]),
    ("-m package.train --che", ["-m", "package.train", "--che"]),
    ("--stop ma", ["--stop", "ma"]),
]


def completed(cases: list[tuple[str, list[str]]]) -> dict[str, list[str]]:
    """The words of each line. In a line that goes on the slash behind a folder is gone."""
    return {text: [word.rstrip("/") for word in words] for text, words in cases}


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}, which this machine has not")


@pytest.fixture
def place_with_files(place: Place) -> Place:
    place.write(main="")
    (place.folder / "sub").mkdir()
    return place


class Terminal:
    """A shell in a terminal, with its own completion and nothing of the user's."""

    def __init__(self, command: list[str], folder: Path, begin: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(
                command[0],
                command,
                {**CLEAN, "TERM": "dumb", "HOME": str(folder), "PS1": "", "INPUTRC": "/dev/null"},
            )
        self.count = 0
        self.run(begin)

    def run(self, line: str) -> str:
        """What a line prints."""
        self.count += 1
        mark = f"-{self.count}-"
        os.write(self.fd, f"{line}\necho 'end''{mark}'\n".encode())
        text, limit = "", time.monotonic() + LIMIT_S
        while f"end{mark}" not in text:
            assert select.select([self.fd], [], [], max(limit - time.monotonic(), 0))[0], text
            text += os.read(self.fd, 65536).decode(errors="replace")
        return text

    def complete(self, text: str, key: str) -> list[str]:
        """The words of a line after a key, without the first: the line becomes the arguments of printf."""
        printed = self.run(f"voirkit {text}{key}\x01printf '[%s]\\n' 'begin'")
        words = [
            line[1:-1]
            for line in printed.replace("\r", "").split("\n")
            if line.startswith("[") and line.endswith("]")
        ]
        assert words[0] == "beginvoirkit", printed
        return words[1:]

    def close(self) -> None:
        os.close(self.fd)
        os.waitpid(self.pid, 0)


@pytest.fixture
def terminal(place_with_files: Place) -> Callable[..., Terminal]:
    made: list[Terminal] = []

    def start(command: list[str], begin: str) -> Terminal:
        made.append(Terminal(command, place_with_files.folder, begin))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_bash_completes_with_the_file_of_the_wheel(terminal: Callable[..., Terminal]) -> None:
    needs("bash")
    file = SHARE / "bash-completion" / "completions" / "voirkit"
    shell = terminal(
        ["bash", "--norc", "--noprofile", "-i"],
        f"bind 'set enable-bracketed-paste off'; source {file}; complete -p voirkit",
    )
    assert "-F _shtab_voirkit voirkit" in shell.run("complete -p voirkit")
    every_completion = "\x1b*"  # readline's insert-completions
    assert {text: shell.complete(text, every_completion) for text, _ in CASES} == completed(CASES)
    assert sorted(shell.complete("", every_completion)) == sorted([*SUBCOMMANDS, "syscalls"])
    options = shell.complete("-", every_completion)
    assert sorted(options) == sorted(
        [
            *(
                name
                for option in command_lines(with_plugins=False)[0].options()
                for name in option.names
            ),
            "-m",
        ]
    )


def test_zsh_completes_with_the_file_of_the_wheel(terminal: Callable[..., Terminal]) -> None:
    needs("zsh")
    begin = f"unsetopt zle_bracketed_paste; PROMPT=; fpath=({SHARE}/zsh/site-functions $fpath); autoload -Uz compinit; compinit -u -D"
    shell = terminal(["zsh", "-f", "-i"], begin)
    offered = {text: shell.complete(text, "\t") for text, _ in CASES_OF_ZSH}
    assert offered == completed(CASES_OF_ZSH)


def test_fish_completes_with_the_file_of_the_wheel(place_with_files: Place) -> None:
    needs("fish")
    file = SHARE / "fish" / "vendor_completions.d" / "voirkit.fish"
    wrong = {}
    for text, words in CASES:
        command = ["fish", "--no-config", "-c", f"source {file}; complete -C 'voirkit {text}'"]
        done = subprocess.run(
            command,
            cwd=place_with_files.folder,
            env=CLEAN,
            capture_output=True,
            text=True,
            check=True,
        )
        offered = [line.partition("\t")[0] for line in done.stdout.splitlines()]
        if offered != ([] if text.endswith(words[-1]) else words[-1:]):
            wrong[text] = offered
    assert wrong == {}


def test_what_voirkit_prints_is_the_file_of_the_wheel_where_no_plug_in_is_installed(
    place: Place,
) -> None:
    ended = place.python("-m", "voirkit", "completion", "bash")
    assert (ended.code, ended.out) == (
        0,
        (SHARE / "bash-completion" / "completions" / "voirkit").read_text(),
    )


def test_each_command_shows_its_parser() -> None:
    assert [line.word for line in command_lines() if line.parser is None] == []


def test_printing_it_reads_no_voirfile(place: Place) -> None:
    place.write(voirfile="raise SystemExit('read')")
    assert place.python("-m", "voirkit", "completion", "fish").code == 0


def test_another_shell_is_refused_with_those_that_are_known(place: Place) -> None:
    ended = place.python("-m", "voirkit", "completion", "tcsh")
    assert (ended.code, ended.out) == (2, "")
    assert (
        ended.err
        == "voirkit: 'tcsh' is not a shell that is known.\n  voirkit completion bash|zsh|fish\n"
    )


def test_man_shows_each_option_and_command_without_a_warning() -> None:
    needs("man")
    done = subprocess.run(
        ["man", "--warnings", "-l", str(SHARE / "man" / "man1" / "voirkit.1")], env={**CLEAN, "MANWIDTH": "200", "LC_ALL": "C.UTF-8"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    for line in command_lines(with_plugins=False):
        assert f"voirkit {line.word}".rstrip() in done.stdout
        for option in line.options():
            assert option.names[-1] in done.stdout
