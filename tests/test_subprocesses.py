"""Child pythons take the parent's offer when they import torch; nothing else changes."""

from __future__ import annotations

import json
from typing import Any

from conftest import Place
from following import NEEDED

pytestmark = NEEDED

TOOLS = """
    taken = []

    def take(offer):
        taken.append(offer)

    def offer():
        return {"n": 1}
"""
MAIN = """
    import json, os, subprocess, sys
    import tools
    from voirkit.processes import inherit

    if __name__ == "__main__":
        inherit.watch("tools:take", tools.offer)
        words = [sys.executable if word == "python" else word for word in json.loads(sys.argv[1])]
        before = dict(os.environ)
        environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2"} if "given" in sys.argv[2:] else None
        how = {"env": environment, "shell": "shell" in sys.argv[2:], "close_fds": "open" not in sys.argv[2:]}
        code = subprocess.run(words[0] if how["shell"] else words, **how).returncode
        assert dict(os.environ) == before
        inherit.unwatch("tools:take")
        subprocess.run([sys.executable, "child.py", "torch"])
        sys.exit(code)
"""
CHILD = """
    import json, os, subprocess, sys

    if "torch" in sys.argv[1:]:
        import torch

    tools = sys.modules.get("tools")
    seen = [[name for name in sorted(os.environ) if "VOIRKIT" in name], "voirkit" in sys.modules, [] if tools is None else tools.taken]
    os.write(1, (json.dumps([sys.argv, sys.orig_argv[1:], *seen]) + "\\n").encode())
    if "again" in sys.argv[1:]:
        sys.exit(subprocess.run([sys.executable, "child.py", "torch"]).returncode)
    sys.exit(3)
"""
NOTHING: list[Any] = [[], False, []]
TAKEN: list[Any] = [[], True, [{"n": 1}]]


def started(place: Place, words: list[str], *how: str) -> list[Any]:
    """What each python that is started sees: its arguments, all that python was given, voirkit's variables, voirkit, and the offers."""
    place.write(main=MAIN, tools=TOOLS, child=CHILD, torch="")
    ended = place.python("main.py", json.dumps(words), *how)
    assert (ended.code, ended.err) == (3, ""), ended.err
    *lines, last = map(json.loads, ended.out.splitlines())
    assert last == [
        ["child.py", "torch"],
        ["child.py", "torch"],
        *NOTHING,
    ]  # when nothing is offered any more
    return lines


def test_a_python_that_imports_torch_takes_the_offers_and_is_else_as_it_would_be(
    place: Place,
) -> None:
    found = started(place, ["python", "-X", "dev", "child.py", "torch"])
    assert found == [[["child.py", "torch"], ["-X", "dev", "child.py", "torch"], *TAKEN]]


def test_a_python_that_never_imports_torch_has_nothing_of_voirkit(place: Place) -> None:
    assert started(place, ["python", "child.py"]) == [[["child.py"], ["child.py"], *NOTHING]]


def test_an_environment_that_the_program_gives_is_that_of_the_child(place: Place) -> None:
    assert started(place, ["python", "child.py", "torch"], "given")[0][2:] == TAKEN


def test_where_subprocess_would_use_posix_spawn(place: Place) -> None:
    assert started(place, ["python", "child.py", "torch"], "open")[0][2:] == TAKEN


def test_what_a_child_starts_takes_the_offers_too(place: Place) -> None:
    assert [one[2:] for one in started(place, ["python", "child.py", "torch", "again"])] == [
        TAKEN,
        TAKEN,
    ]


def test_a_shell_command_that_names_python(place: Place) -> None:
    place.write({"python": "#!/bin/sh\n"})
    import sys

    assert started(place, [f"exec {sys.executable} child.py torch"], "shell")[0][2:] == TAKEN


def test_other_programs_have_no_variable_more(place: Place) -> None:
    place.write(main=MAIN, tools=TOOLS, child=CHILD, torch="")
    for words, how in (
        (["env"], ()),
        (["env"], ("shell",)),
        (["python", "-c", "import os; print(*os.environ)"], ()),
    ):
        ended = place.python("main.py", json.dumps(words), *how)
        assert "VOIRKIT" not in ended.out
        assert ended.out


def test_a_program_that_is_not_there_fails_as_ever(place: Place) -> None:
    place.write(main=MAIN, tools=TOOLS, child=CHILD, torch="")
    ended = place.python("main.py", '["python-that-is-not-there", "child.py"]')
    assert (
        ended.err.splitlines()[-1]
        == "FileNotFoundError: [Errno 2] No such file or directory: 'python-that-is-not-there'"
    )
    assert "voirkit" not in ended.err.replace(str(place.folder), "")
