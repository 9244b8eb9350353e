"""Instruments of which a run has one, started twice: by a voirfile and the flag, or by voirfiles."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Ended, Place
from syscall_runs import use

MADE = (
    "calls",
    "flame",
    "loader",
    "memory_snapshot",
    "native",
    "parameters",
    "syscalls",
    "torch_profile",
)  # of arguments; checks has none

# All of them twice, and the end before the script's beginning: who starts an instrument is told at once.
TWICE = """
from importlib import import_module

def instrument_all(ov):
    yield ov.phases.parse_args
    for name in {made!r}:
        package = {{"flame": "stacks", "native": "stacks", "memory_snapshot": "memory"}}.get(name, name)
        make = getattr(import_module("voirkit_instruments." + package), name)
        ov.require(make(), make())
    from voirkit_instruments.checks import checks
    def again(ov):
        yield from checks(ov)
    ov.require(checks, again)
    ov.stop()
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder: Path = tmp_path_factory.mktemp("once")
    return Place(folder).write(main="", voirfile=TWICE.format(made=MADE)).voirkit("main.py")


@pytest.mark.parametrize("name", [*MADE, "checks"])
def test_an_instrument_that_is_started_twice_runs_once_and_that_is_told(
    ended: Ended, name: str
) -> None:
    flag = f"--{name.replace('_', '-')}"
    assert ended.code == 0
    assert ended.err.count(f"voirkit: {flag}: it is started twice") == 1
    assert f"  {name}() is what runs; {name}() does nothing." in ended.err


def test_what_a_voirfile_starts_records_and_the_flag_does_not(place: Place) -> None:
    place.write(
        main="print('done')",
        voirfile="from voirkit_instruments.syscalls import syscalls\ninstrument_a = syscalls('counters')",
    )
    ended = place.voirkit("--quiet", "--syscalls", "main.py")
    assert (ended.code, ended.out) == (0, "done\n")
    assert "syscalls('counters') is what runs; syscalls('counts') does nothing." in ended.err
    assert ended.summary["syscalls"]["tool"] == "counters"
    assert len(ended.summary["warnings"]) == 1


@pytest.mark.usefixtures("strace_traces")
def test_a_strace_that_a_voirfile_starts_has_the_process_for_itself_as_one_that_the_flag_starts(
    place: Place,
) -> None:
    use(place, "strace")
    place.write(main="print('done')")
    ended = place.voirkit("--quiet", "--flame", "main.py")
    assert (ended.code, ended.out) == (0, "done\n")
    assert "--flame: strace, which --syscalls uses, traces this process" in ended.err
