"""A harness reads the events of runs of voirkit, several at once; and the page that tells how is right."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from voirkit.multiplexer import LogEntry, Multiplexer

PAGE = Path(__file__).parent.parent / "docs" / "harness.md"

SCRIPT = """
import sys
def train(rate):
    loss = 1.0
    for step in range(3):
        loss *= rate
        print("step", step)
train(float(sys.argv[1]))
"""

VOIRFILE = """
def instrument_loss(ov):
    yield ov.phases.init
    ov.probe("//train > loss") >> ov.log
"""


@dataclass
class RunEntry(LogEntry):
    """An entry with the rate of its run."""

    rate: float = 0.0


def two_runs(folder: Path, use_stdout: bool) -> dict[float, list[RunEntry]]:
    """Runs the script with two rates at once; the entries of each run, in order."""
    (folder / "train.py").write_text(dedent(SCRIPT))
    (folder / "voirfile.py").write_text(dedent(VOIRFILE))
    by_rate: dict[float, list[RunEntry]] = {0.5: [], 0.1: []}
    with Multiplexer(timeout=None, constructor=RunEntry) as multiplexer:
        for rate in by_rate:
            argv = [
                sys.executable,
                "-m",
                "voirkit",
                "--run-dir",
                f"run-{rate}",
                "train.py",
                str(rate),
            ]
            multiplexer.start(argv, {"rate": rate}, use_stdout=use_stdout, cwd=folder)
        for entry in multiplexer:
            by_rate[entry.rate].append(entry)
    return by_rate


@pytest.mark.parametrize("use_stdout", [False, True])
def test_a_harness_reads_the_events_of_two_runs_at_once(tmp_path: Path, use_stdout: bool) -> None:
    for rate, entries in two_runs(tmp_path, use_stdout).items():
        assert [e.data["loss"] for e in entries if e.event == "data"] == [
            1.0,
            rate,
            rate * rate,
            rate * rate * rate,
        ]
        assert [e.data for e in entries if e.pipe == "stdout"] == [
            "step 0\n",
            "step 1\n",
            "step 2\n",
        ]
        phases = ["init", "parse_args", "load_script", "run_script", "finalize"]
        assert [e.data["name"] for e in entries if e.event == "phase"] == phases
        assert {e.event for e in entries} == {"start", "phase", "line", "data", "end"}
        assert (entries[0].event, entries[-1].event, entries[-1].data["return_code"]) == (
            "start",
            "end",
            0,
        )


def test_data_in_standard_output_keeps_its_place_among_the_printed_lines(tmp_path: Path) -> None:
    entries = two_runs(tmp_path, use_stdout=True)[0.5]
    told = [e.data for e in entries if e.event == "data" or e.pipe == "stdout"]
    assert told[:3] == [{"loss": 1.0}, {"loss": 0.5}, "step 0\n"]


def test_the_page_for_those_who_write_a_harness_works_as_written(tmp_path: Path) -> None:
    text = PAGE.read_text()
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, flags=re.DOTALL):
        (tmp_path / name).write_text(code)
    sessions = re.findall(r"```console\n\$ python (\w+\.py)\n(.*?)```", text, flags=re.DOTALL)
    assert len(sessions) == 2
    for name, expected in sessions:
        done = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (expected, "")
