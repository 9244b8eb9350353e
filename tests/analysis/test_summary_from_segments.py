"""The end of a run reads segments, everybody else tables: both come to the same summary, and a reader leaves the run compacted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import CLEAN, Place
from recorded import LOOP_EVENTS, record, rows

from voirkit import __version__
from voirkit.analysis import overhead
from voirkit.analysis.summary import summary_of
from voirkit.runner import completion
from voirkit.runs import compaction, manifest, opened
from voirkit.runs.opened import Run, open_run
from voirkit.runs.summary import empty
from voirkit.runs.trace_files import Layout, layout

pytestmark = pytest.mark.long

TRAINING = """
import multiprocessing, os, signal, torch
from voirkit import ai
from torch.utils.data import DataLoader, TensorDataset
multiprocessing.set_start_method("fork", force=True)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=4, num_workers=WORKERS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x.clone()), y)
        loss.backward()
        optimizer.step()
        ai.update(step=epoch)
    with ai.pipeline.evaluate, torch.no_grad():
        for x, y in DataLoader(data, batch_size=8):
            model(x)
END
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"  # nobody has compacted it, or written its summary


def ended(run: Path) -> Path:
    """A killed run as one that has ended, of which nothing has been summed up."""
    begun = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**begun, "ended": "normal", "exit_code": 0}))
    own = {
        **empty(__version__),
        "command": begun["command"],
        "ended": "normal",
        "exit_code": 0,
        "duration_s": 20.0,
        "overhead": None,
    }
    (run / "summary.json").write_text(json.dumps(own))
    return run


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ([], 2),
        (["--loader"], 2),
        (["--checks", "--parameters", "--calls"], 0),
        (["--monitor=0.05", "--memory-snapshot"], 0),
        (["--trace-limit", "80kB", "--loader"], 0),
    ],
)
def test_segments_and_tables_come_to_the_same_summary(
    options: list[str], workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = TRAINING.replace("WORKERS", str(workers)).replace("END", KILLED)
    if "--trace-limit" in options:  # more than the one segment that the limit has room for
        training = training.replace("randn(40,", "randn(400,")
    place = Place(tmp_path).write(main=training)
    place.voirkit(*options, "main.py")
    run = ended(tmp_path / "run")
    other = Path(shutil.copytree(run, tmp_path / "other"))
    monkeypatch.setattr(overhead, "_call_s", lambda: 1e-7)
    with Run(str(run), compacts=False) as read:
        assert read.segments() is not None
        before = summary_of(read)
        lost = [process.dropped for process in read.processes() if process.dropped]
    assert bool(lost) == ("--trace-limit" in options)
    assert before["steps"]["n"] == 20 or lost
    assert [*run.glob("trace/*.seg")]
    with open_run(other) as read:
        after = summary_of(read)
    assert json.dumps(before) == json.dumps(after)
    assert not [*other.glob("trace/*.seg")]
    assert (other / "steps" / "rank=0.parquet").exists() == bool(before["steps"]["n"])
    with open_run(other) as read:  # from the roll-up
        again = summary_of(read)
    assert json.dumps(before) == json.dumps(again)


def test_the_end_of_a_run_leaves_its_trace_as_it_was_written(tmp_path: Path) -> None:
    place = Place(tmp_path).write(main=TRAINING.replace("WORKERS", "0").replace("END", ""))
    assert place.voirkit("main.py").code == 0
    run = tmp_path / "run"
    assert not [*run.glob("**/*.parquet")]
    assert json.loads((run / "summary.json").read_text())["steps"]["n"] == 20


def test_with_compact_a_run_ends_with_its_trace_compacted_and_its_steps_rolled_up(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path).write(main=TRAINING.replace("WORKERS", "0").replace("END", ""))
    assert place.voirkit("--compact", "main.py").code == 0
    run = tmp_path / "run"
    assert not [*run.glob("trace/*.seg")]
    assert [*run.glob("trace/kind=phase/rank=0/*.parquet")]
    assert (run / "steps" / "rank=0.parquet").exists()


def test_the_end_of_a_run_loads_no_duckdb_where_no_instrument_asks_for_it(tmp_path: Path) -> None:
    place = Place(tmp_path).write(main=TRAINING.replace("WORKERS", "0").replace("END", KILLED))
    place.voirkit("main.py")
    run = ended(tmp_path / "run")
    code = "import sys; from voirkit.report.finish import finish; finish(sys.argv[1], 0, 0); print('duckdb' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(run)],
        env=CLEAN,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout == "False\n"


def test_a_run_that_is_compacted_while_its_segments_are_read_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = record(tmp_path / "run")

    def compacted_meanwhile(path: str, ranks: Any) -> Layout:
        found = layout(path, ranks)
        compaction.compact(path)
        return found

    monkeypatch.setattr(opened, "layout", compacted_meanwhile)
    with Run(str(run), compacts=False) as read:
        assert [one.pid for one in read.processes()] != []
        assert len(rows(read)) == LOOP_EVENTS
        assert read.recorded("counter") != []
        assert read.warnings == []


def test_a_run_that_somebody_has_compacted_before_its_end_is_completed(tmp_path: Path) -> None:
    run = record(tmp_path / "run")
    (run / "run.json").write_text(
        json.dumps(
            {**manifest.create(__version__, ["main.py"], [], str(tmp_path)), "ended": "normal"}
        )
    )
    compaction.compact(str(run))
    said: list[str] = []
    completed, _ = completion.finish(str(run), 0, said.append)
    assert said == []
    assert completed is not None
    assert completed["steps"] is not None


def test_several_may_read_a_run_for_the_first_time_at_once(tmp_path: Path) -> None:
    place = Place(tmp_path).write(main=TRAINING.replace("WORKERS", "0").replace("END", ""))
    assert place.voirkit("main.py").code == 0
    command = [sys.executable, "-m", "voirkit", "report", "--json", str(tmp_path / "run")]
    readers = [
        subprocess.Popen(command, env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    said = [reader.communicate(timeout=240) for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0, 0], said
    summaries: list[dict[str, Any]] = [json.loads(out) for out, _ in said]
    assert {err for _, err in said} == {b""}
    assert summaries[0] == summaries[1] == summaries[2]
    assert summaries[0]["steps"]["n"] == 20
    assert sorted(os.listdir(tmp_path / "run" / "steps")) == ["rank=0.parquet"]
