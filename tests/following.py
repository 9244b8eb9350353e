"""What the tests of ``--follow`` share: a folder with a shell script and the pythons that it names."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from conftest import Ended, Place

HOOK = Path(sysconfig.get_paths()["purelib"]) / "voirkit_follow.pth"
NEEDED = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
    pytest.mark.skipif(
        not HOOK.exists(),
        reason="voirkit is not installed into this python: there is no voirkit_follow.pth",
    ),
]
# torchrun's ranks write unbuffered to one pipe, where print would write each of its words by itself
SAYS = """\
import os, sys
os.write(1, f"{sys.argv[1:]} {'VOIRKIT_FOLLOW' in os.environ} {'voirkit.runner.overseer' in sys.modules}\\n".encode())
"""
FOLLOWED, ALONE = "False True", "False False"


def with_pythons(place: Place) -> Place:
    """A folder in which ``python`` and ``python3`` are those of this environment."""
    (place.folder / "bin").mkdir()
    for name in ("python", "python3"):
        launcher = place.folder / "bin" / name
        launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        launcher.chmod(0o755)
    return place.write(main=SAYS)


def environment(place: Place) -> dict[str, str]:
    return {"PATH": f"{place.folder / 'bin'}:{os.environ['PATH']}"}


def follow(
    place: Place, script: str, *words: str, before: tuple[str, ...] = (), **options: Any
) -> Ended:
    place.write({"run.sh": script})
    command = (sys.executable, "-m", "voirkit", *before, "--follow", "run.sh", *words)
    return place.run(*command, env={**environment(place), **options.pop("env", {})}, **options)


def runs(place: Place, folder: str = "voirkit-runs") -> list[list[str]]:
    """The commands of the recorded runs, sorted."""
    paths = [path for path in (place.folder / folder).iterdir() if not path.is_symlink()]
    return sorted(json.loads((path / "run.json").read_text())["command"] for path in paths)
