"""Real DFAnalyzer, in an environment of its own, finds in ``--format pfw`` what was recorded: run by ``make test-readers``."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from annotated import COUNTS, PROCESSES, readers, record

pytestmark = [pytest.mark.readers, pytest.mark.timeout(600)]

# DFAnalyzer's layers (preset ai): what of the events is counted in each. pipeline.evaluate has none.
LAYERS: dict[str, Any] = {
    "training": lambda category, name: (category, name) == ("pipeline", "train"),
    "epoch": lambda category, name: category == "pipeline" and name.startswith("epoch"),
    "fetch_data": lambda category, name: name == "fetch.iter",
    "data_loader": lambda category, name: category in ("data", "dataloader"),
    "compute": lambda category, name: category == "compute",
    "checkpoint": lambda category, name: category == "checkpoint",
    "comm": lambda category, name: category == "comm",
    "device": lambda category, name: category == "device",
}


@pytest.fixture(scope="module")
def tools() -> Path:
    """DFAnalyzer's environment."""
    return readers() / "dfanalyzer"


@pytest.fixture(scope="module")
def trace(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An annotated program's run, exported."""
    recorded = record(tmp_path_factory.mktemp("annotated"))
    folder = recorded.folder / "pfw"
    ended = recorded.python("-m", "voirkit", "export", "run", "--format", "pfw", "-o", str(folder))
    assert ended.code == 0, ended.err
    return folder


@pytest.fixture
def copied(trace: Path, tmp_path: Path) -> Path:
    """A copy, since DFAnalyzer and its tools write an index beside what they read."""
    return Path(shutil.copytree(trace, tmp_path / "trace"))


def events(folder: Path) -> list[dict[str, Any]]:
    """Every event of a trace, read by a strict parser."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    lines = [
        line
        for path in sorted(folder.glob("*.pfw.gz"))
        for line in gzip.decompress(path.read_bytes()).decode().splitlines()
    ]
    return [
        event
        for line in lines
        if line.startswith("{") and (event := json.loads(line, parse_constant=refuse))["ph"] == "X"
    ]


def analyze(tools: Path, trace: Path, scratch: Path) -> dict[str, Any]:
    preset = "ai" if (tools / "pair").read_text().strip() == "preview" else "dlio"
    command = [
        tools / "bin" / "dfanalyzer", f"trace_path={trace}", f"analyzer/preset={preset}", "analyzer.checkpoint=false",
        "analyzer.time_granularity=3600",  # s: one period, since times are those of the busiest thread of each
        "cluster=local", "cluster.n_workers=1", "output=json", f"output.file_path={scratch}/out.json", f"hydra.run.dir={scratch}/hydra",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=scratch,
        env={**os.environ, "USER": "user"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert (scratch / "out.json").exists(), f"{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads((scratch / "out.json").read_text())
    return found


def direct(found: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Of each layer, how many events and for how many microseconds in the busiest thread: this is what DFAnalyzer calls a layer's time."""
    layers = {}
    for layer, inside in LAYERS.items():
        times: Counter[tuple[int, int]] = Counter()
        members = [event for event in found if inside(event["cat"], event["name"])]
        for event in members:
            times[event["pid"], event["tid"]] += event["dur"]
        layers[layer] = len(members), max(times.values())
    return layers


def test_counts_and_times_of_each_layer_are_a_direct_sum(
    tools: Path, trace: Path, copied: Path, tmp_path: Path
) -> None:
    found = analyze(tools, copied, tmp_path)
    layers = found["views"]["time_range"]["summary"]["layers"]
    times = {
        layer: (values["count"], round(values["time_s"] * 1e6))
        for layer, values in layers.items()
        if values["count"]
    }
    assert times == direct(events(trace))
    assert found["raw_stats"]["total_event_count"] == len(events(trace))


def test_the_events_are_those_of_the_program(trace: Path) -> None:
    assert (
        Counter(
            (event["cat"], event["name"]) for event in events(trace) if event["cat"] != "dftracer"
        )
        == COUNTS
    )
    assert len({event["pid"] for event in events(trace)}) == PROCESSES


def test_dftracers_own_validator_accepts_every_file(tools: Path, copied: Path) -> None:
    done = subprocess.run(
        [tools / "bin" / "dftracer_validate", "-d", copied],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failed" in done.stdout


def test_dftracers_own_counter_counts_every_event(tools: Path, trace: Path, copied: Path) -> None:
    done = subprocess.run(
        [tools / "bin" / "dftracer_event_count", "-d", copied],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == [str(len(events(trace)))]
