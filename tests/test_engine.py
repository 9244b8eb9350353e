"""``--engine dask:ADDRESS``: a real scheduler and two workers, processes of their own, compute what each rank did."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from analysis.test_many_ranks import generate
from conftest import CLEAN

from voirkit.analysis import overhead
from voirkit.cli import main
from voirkit.commands import report
from voirkit.errors import CommandLineError, EngineError
from voirkit.runs.opened import Run, open_run

pytestmark = pytest.mark.long
RANKS, STEPS = 6, 20


class Cluster:
    """A scheduler on the loopback, with some workers."""

    def __init__(self, folder: Path, workers: int) -> None:
        file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._start(
            folder,
            "scheduler",
            "--port",
            "0",
            "--no-dashboard",
            "--no-show",
            "--scheduler-file",
            str(file),
        )
        self._until(lambda: file.exists() and file.read_text().endswith("}"))
        self.address = "dask:" + json.loads(file.read_text())["address"]
        for _ in range(workers):
            self._start(
                folder,
                "worker",
                self.address[5:],
                "--nthreads",
                "1",
                "--no-nanny",
                "--no-dashboard",
            )
        if workers:
            self._until(lambda: self._workers() == workers)

    def _start(self, folder: Path, what: str, *words: str) -> None:
        command = [
            sys.executable,
            "-m",
            f"distributed.cli.dask_{what}",
            "--host",
            "127.0.0.1",
            *words,
        ]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.processes.append(subprocess.Popen(command, cwd=folder, env=CLEAN, **quiet))

    def _until(self, is_there: Any) -> None:
        while not is_there():
            assert all(process.poll() is None for process in self.processes)
            time.sleep(0.1)

    def _workers(self) -> int:
        from distributed import Client

        with Client(self.address[5:], set_as_default=False) as client:
            return len(client.scheduler_info()["workers"])

    def end(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    made = Cluster(tmp_path_factory.mktemp("cluster"), 2)
    yield made
    made.end()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(overhead, "_call_s", lambda: 1e-7)
    return str(generate(str(tmp_path / "run"), RANKS, STEPS)[0])


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_a_report_and_a_comparison_are_the_same_as_without(
    cluster: Cluster, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, other = f"{run}-whole", f"{run}-other"
    shutil.copytree(run, whole)
    shutil.copytree(run, other)
    there = printed(capsys, "report", "--json", "--engine", cluster.address, run)
    assert Path(run, "steps", "rank=5.parquet").exists(), (
        "the workers have compacted the run, and rolled its steps up"
    )
    assert printed(capsys, "report", "--json", whole) == there
    assert json.loads(there)["steps"]["n"] == STEPS
    late = json.loads(there)["collectives"]["late"]
    assert (late["rank"], late["phase"]) == (1, "wait"), (
        "of the collectives, which the workers have rolled up too"
    )
    assert Path(run, "collectives", "rank=5.parquet").exists()
    assert printed(capsys, "report", "--json", "--engine", cluster.address, run) == there
    words = ("compare", "--json", run, other)
    assert printed(capsys, *words, "--engine", cluster.address) == printed(capsys, *words)


def test_what_the_workers_cannot_do_is_one_error(cluster: Cluster, run: str) -> None:
    with report.engine(cluster.address) as executor, open_run(run) as opened:
        opened.executor = executor
        with pytest.raises(EngineError, match="has failed") as raised:
            opened.map_ranks(_no_module_of_theirs)
    assert (
        raised.value.next
        == "Each worker needs the voirkit that is installed here, and the run directory at the same path."
    )


def _no_module_of_theirs(run: Run) -> None:
    pass


def test_a_scheduler_that_dies_is_one_line(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    pytest.importorskip("distributed")
    made = Cluster(tmp_path, 1)
    try:
        plain = Run._executed

        def dies(self: Run, executor: Any, *words: Any) -> Any:
            made.end()
            return plain(self, executor, *words)

        monkeypatch.setattr(Run, "_executed", dies)
        assert main(["report", "--engine", made.address, run]) == 2
    finally:
        made.end()
    out, err = capsys.readouterr()
    assert out == ""
    assert "what was to compute the parts of the run has failed" in err
    assert len(err.splitlines()) == 2
    assert main(["report", "--engine", made.address, run]) == 2
    assert "no Dask scheduler answers there" in capsys.readouterr().err


def test_a_scheduler_without_workers_is_one_line(run: str, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    made = Cluster(tmp_path, 0)
    try:
        with pytest.raises(CommandLineError, match="has no workers"), report.engine(made.address):
            pass
    finally:
        made.end()


@pytest.mark.parametrize("engine", ["banana", "dask", "dask:", "spark:127.0.0.1:1"])
def test_an_engine_that_is_none_is_named_with_what_there_is(
    engine: str, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--engine", engine, run]) == 2
    assert capsys.readouterr().err.startswith(
        f"voirkit: --engine {engine}: there is no such engine.\n  --engine dask:ADDRESS "
    )


def test_without_distributed_it_is_said_what_to_install(
    run: str, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["report", "--engine", "dask:127.0.0.1:1", run]) == 2
    assert "pip install 'voirkit[dask]'" in capsys.readouterr().err
