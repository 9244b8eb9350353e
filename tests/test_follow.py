"""``voirkit --follow run.sh``: each python that a shell script starts runs under voirkit, and the script as without it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import CLEAN, Place
from following import ALONE, FOLLOWED, NEEDED, environment, follow, runs, with_pythons

pytestmark = NEEDED


@pytest.fixture
def here(place: Place) -> Place:
    """A folder with pythons in it."""
    return with_pythons(place)


def test_each_python_of_a_script_has_a_run_of_its_own(here: Place) -> None:
    ended = follow(here, 'python main.py a "$1"\npython3 main.py b\n', "two words")
    assert ended.out.splitlines() == [f"['a', 'two words'] {FOLLOWED}", f"['b'] {FOLLOWED}"]
    assert runs(here) == [["main.py", "a", "two words"], ["main.py", "b"]]


def test_the_runs_are_listed_at_the_end(here: Place) -> None:
    last = (
        follow(here, "python main.py a\npython -m main b\n")
        .err.partition("voirkit: run.sh: ")[2]
        .splitlines()
    )
    assert last[0] == "2 runs"
    assert [line.split("   ")[1] for line in last[1:]] == ["main.py a", "-m main b"]
    assert all((here.folder / line.split()[0] / "summary.json").exists() for line in last[1:])


@pytest.mark.parametrize(
    "line",
    [
        f"{sys.executable} main.py", "python -m main", "exec python main.py", "echo x | python main.py", "python main.py | cat", "(cd . && python main.py)",
        "env python main.py", "python -u -X dev -W ignore main.py", "nice python main.py & wait $!", "PYTHONPATH=. python main.py", "python -I main.py",
    ],
)  # fmt: skip
def test_a_python_is_followed_however_it_is_started(here: Place, line: str) -> None:
    ended = follow(here, line)
    assert ended.out == f"[] {FOLLOWED}\n", ended.err
    assert len(runs(here)) == 1


def test_interpreter_options_hold(here: Place) -> None:
    here.write(
        flags="import sys\nprint(sys.flags.optimize, sys.flags.dev_mode, sys.stdout.write_through, sys.warnoptions[-1])\n"
    )
    assert (
        follow(here, "python -u -OO -X dev -Werror flags.py").out
        == here.python("-u", "-OO", "-X", "dev", "-Werror", "flags.py").out
    )


@pytest.mark.parametrize(
    "line", ['python -c "$(cat main.py)"', "python - < main.py", "cat main.py | python"]
)
def test_commands_and_programs_from_stdin_run_as_they_are(here: Place, line: str) -> None:
    ended = follow(here, line)
    assert ended.out == f"[] {ALONE}\n"
    assert (
        ended.err
        == "voirkit: run.sh: nothing was followed: its pythons ran commands, tools, or voirkit itself.\n"
    )


def test_installers_run_as_they_are(here: Place) -> None:
    ended = follow(here, "python -m venv --without-pip there && there/bin/python -c 'print(1)'")
    assert (ended.code, ended.out) == (0, "1\n")
    assert not (here.folder / "voirkit-runs").exists()


def test_what_a_run_starts_is_part_of_it(here: Place) -> None:
    here.write(
        outer="import subprocess, sys\nsubprocess.run([sys.executable, 'main.py', 'inner'])\nsubprocess.run(['python', 'main.py', 'too'])\n"
    )
    ended = follow(here, "python outer.py")
    assert ended.out.splitlines() == [f"['inner'] {ALONE}", f"['too'] {ALONE}"]
    assert runs(here) == [["outer.py"]]


def test_a_python_that_has_nothing_to_run_says_so_itself(here: Place) -> None:
    ended = follow(here, "python nowhere.py; echo $?")
    assert ended.out == "2\n"
    assert "can't open file" in ended.err


def test_a_voirkit_in_the_script_is_left_as_it_is(here: Place) -> None:
    ended = follow(here, "python -m voirkit --quiet main.py a")
    assert ended.out == f"['a'] {FOLLOWED}\n"
    assert runs(here) == [["main.py", "a"]]


# what the script sees


def test_arguments_stdin_folder_and_exit_code_are_those_of_the_script(here: Place) -> None:
    script = 'printf "%s|" "$0" "$@"; read line; echo "$line"; pwd; python -c "raise SystemExit(7)"; exit $(($? + 1))'
    here.write({"run.sh": script, "input": "from stdin\n"})
    with (here.folder / "input").open() as file:
        followed = follow(here, script, "a b", "--follow", "", stdin=file)
    with (here.folder / "input").open() as file:
        plain = here.run("sh", "run.sh", "a b", "--follow", "", env=environment(here), stdin=file)
    assert (followed.code, followed.out) == (plain.code, plain.out)
    assert followed.code == 8


@pytest.mark.parametrize("mode", [0o644, 0o755])
@pytest.mark.parametrize("first", ["", "#!/bin/sh\n", "#!/bin/bash -e\n", "#!/usr/bin/env bash\n"])
def test_a_script_is_run_by_what_its_first_line_names_or_by_sh(
    here: Place, first: str, mode: int
) -> None:
    here.write({"run.sh": ""})
    (here.folder / "run.sh").chmod(mode)
    ended = follow(here, first + 'echo "${BASH_VERSION:+bash} $-"; false; echo on')
    bash, flags, *on = ended.out.split()[-3:] if "bash" in first else ["", *ended.out.split()[-2:]]
    assert (bash == "bash") == ("bash" in first)
    assert (ended.code, ended.out.endswith("on\n")) == (
        (1, False) if "-e" in first else (0, True)
    ), (flags, on)


def test_options_hold_for_each_run(here: Place) -> None:
    here.write(asks="import giving\ngiving.give(loss=1)\n")
    ended = follow(
        here,
        "cd bin; python ../main.py; python ../main.py b",
        before=("--run-dir", "record", "--quiet"),
    )
    assert ended.err == ""
    commands = [
        json.loads((here.folder / name / "run.json").read_text())["command"]
        for name in ("record", "record-2")
    ]
    assert commands == [["../main.py"], ["../main.py", "b"]]


def test_the_word_behind_a_script_is_the_scripts_own(here: Place) -> None:
    ended = here.voirkit("main.py", "--follow", "x")
    assert ended.out == f"['--follow', 'x'] {FOLLOWED}\n"


# signals

WAITS = "import sys, time\nprint('ready', flush=True)\ntime.sleep(120)\n"


@pytest.fixture
def started(here: Place) -> Iterator[Any]:
    """Starts a script in a process group of its own, and waits until it says that it is ready."""
    processes: list[subprocess.Popen[str]] = []

    def start(script: str) -> subprocess.Popen[str]:
        here.write({"run.sh": script, "waits.py": WAITS})
        process = subprocess.Popen(
            [sys.executable, "-m", "voirkit", "--follow", "run.sh"], cwd=here.folder, env={**CLEAN, **environment(here)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


def test_sigterm_reaches_the_script(started: Any) -> None:
    process = started("trap 'echo caught; kill $!; exit 4' TERM\npython waits.py &\nwait")
    process.terminate()
    out, _ = process.communicate(timeout=240)
    assert (process.returncode, out) == (4, "caught\n")


def test_what_a_signal_ends_is_seen_to_end_by_it(started: Any) -> None:
    process = started("exec python waits.py")
    process.terminate()
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGTERM


def test_ctrl_c_reaches_the_python_and_ends_its_run(here: Place, started: Any) -> None:
    process = started("python waits.py; echo $?")
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err
    (path,) = [path for path in (here.folder / "voirkit-runs").iterdir() if not path.is_symlink()]
    assert json.loads((path / "summary.json").read_text())["ended"] in ("exception", "signal")


def test_after_kill_9_the_runs_can_be_read(here: Place, started: Any) -> None:
    process = started("python waits.py")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=240)
    ended = here.python("-m", "voirkit", "report")
    assert ended.code == 0
    assert "was killed" in ended.out


# what can be wrong


def test_a_python_without_voirkit_runs_plainly_and_that_is_told(here: Place) -> None:
    here.run(sys.executable, "-m", "venv", "--without-pip", "other")
    here.write({"run.sh": "other/bin/python -c 'print(\"ready\", flush=True); input()'\n"})
    process = subprocess.Popen(
        [sys.executable, "-m", "voirkit", "--follow", "run.sh"], cwd=here.folder, env={**CLEAN, **environment(here)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stdin is not None
    assert "has no voirkit: what it runs is not recorded." in process.stderr.readline()
    process.stdin.write("\n")
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (0, "ready\n")
    assert "run.sh: nothing was followed: it started no python that has voirkit." in err


def test_a_script_without_python_says_that_nothing_was_followed(here: Place) -> None:
    ended = follow(here, "echo hello")
    assert (ended.code, ended.out) == (0, "hello\n")
    assert (
        ended.err
        == "voirkit: run.sh: nothing was followed: it started no python that has voirkit.\n"
    )


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["nowhere.sh"], "there is no file 'nowhere.sh'."), (["bin"], "'bin' is a folder."), (["main.py"], "'main.py' is no shell script."),
        (["-m", "main"], "-m runs a module, and no shell script."), ([], "no SCRIPT given."), (["sh", "run.sh"], "there is no file 'sh'."),
        (["bad.sh"], "'bad.sh' is to be run by /no/such/shell, which is not there."),
        (["--nonsense", "run.sh"], "unknown option '--nonsense'."),
    ],
)  # fmt: skip
def test_wrong_input_is_told_before_anything_starts(
    here: Place, words: list[str], what: str
) -> None:
    here.write({"run.sh": "echo started", "bad.sh": "#!/no/such/shell\n"})
    ended = here.python("-m", "voirkit", "--follow", *words)
    assert (ended.code, ended.out) == (2, "")
    assert what in ended.err.splitlines()[0]


def test_nothing_is_left_of_the_following(here: Place) -> None:
    (here.folder / "tmp").mkdir()
    follow(here, "python main.py", env={"TMPDIR": str(here.folder / "tmp")})
    assert not [
        path for path in (here.folder / "tmp").iterdir() if path.name.startswith("voirkit-follow")
    ]


def test_where_the_hook_is_missing_that_is_told(here: Place) -> None:
    here.write({"run.sh": "echo on"})
    begin = "import sys; from voirkit.commands import follow; follow.HOOK = 'other.pth'; from voirkit.cli import main; sys.exit(main())"
    ended = here.python("-c", begin, "--follow", "run.sh")
    assert ended.out == "on\n"
    assert ended.err.startswith(
        f"voirkit: there is no other.pth beside voirkit: {sys.executable} is not followed."
    )
