"""What the program has done to python itself does not change how it ends when its trace is compacted."""

import pytest
from conftest import Place

BEGIN = """
import os, signal, subprocess, sys, types
from voirkit import ai
with ai.compute.forward:
    pass
"""


@pytest.mark.parametrize(
    "meddling",
    [
        """
def no(event, arguments):
    if event == "subprocess.Popen":
        raise RuntimeError("no processes here")
sys.addaudithook(no)
""",
        """
def fake(*words, **options):
    raise KeyError("mine")
subprocess.run = fake
""",
        """sys.modules["subprocess"] = types.ModuleType("subprocess")""",
        """
def handler(*_):
    print("a child ended")
    raise RuntimeError("a worker died")
signal.signal(signal.SIGCHLD, handler)
""",
    ],
    ids=["audit hook", "other function", "other module", "handler"],
)
def test_the_program_ends_as_it_would(place: Place, meddling: str) -> None:
    place.write(main=BEGIN + meddling + "\nprint('end')\n")
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (0, "end\n"), ended.err
