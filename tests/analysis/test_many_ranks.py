"""Runs of more ranks than are read at once: what each rank's files say is computed rank by rank, here or elsewhere, and put together."""

from __future__ import annotations

import csv
import json
import multiprocessing
import runpy
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voirkit.analysis import document, overhead
from voirkit.analysis.summary import summary_of
from voirkit.cli import main
from voirkit.errors import EngineError, RunDirectoryError
from voirkit.runs import compaction, opened
from voirkit.runs.directory import clear
from voirkit.runs.opened import Run, open_run
from voirkit.runs.trace_files import layout
from voirkit_instruments.ranks import analyse

GENERATE = Path(__file__).parents[2] / "benchmarks" / "generate_run.py"
generate: Callable[..., list[Path]] = runpy.run_path(str(GENERATE))["generate"]
RANKS, STEPS = 12, 20


@pytest.fixture(autouse=True)
def _few_ranks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "_RANKS_AT_ONCE", 5)
    monkeypatch.setattr(overhead, "_call_s", lambda: 1e-7)


@pytest.fixture
def run(tmp_path: Path) -> str:
    (folder,) = generate(str(tmp_path / "run"), RANKS, STEPS)
    return str(folder)


def summary(path: str, **options: Any) -> dict[str, Any]:
    with Run(path, **options) as run:
        return summary_of(run)


def test_ranks_read_a_few_at_a_time_come_to_what_all_at_once_come_to(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = summary(run, compacts=False)
    monkeypatch.setattr(opened, "_RANKS_AT_ONCE", 100)
    assert parts == summary(run, compacts=False)
    assert parts["steps"]["n"] == STEPS
    assert len(parts["ranks"]) == RANKS
    assert parts["overhead"]["events"] == RANKS * (8 * STEPS + STEPS // 10 * 2 + 3)
    assert parts["collectives"]["late"]["rank"] == 1


def test_a_run_that_has_been_read_is_read_from_its_roll_ups_alone(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, opened_ranks, plain = summary(run), [], Run.connection
    monkeypatch.setattr(
        Run,
        "connection",
        lambda self: opened_ranks.extend(self.ranks or range(RANKS)) or plain(self),
    )
    assert summary(run) == before
    assert 1 in opened_ranks, "what the late rank did is in its records"
    assert len(set(opened_ranks)) == 9, (
        "those of the late rank and of the eight that it is held against"
    )
    monkeypatch.setattr(analyse, "find_straggler", lambda *_: None)
    monkeypatch.setattr(Run, "connection", lambda *_: pytest.fail("the trace was opened"))
    assert summary(run)["collectives"]["waited"] == before["collectives"]["waited"]


def test_an_executor_comes_to_the_same_summary(run: str) -> None:
    before = summary(run, compacts=False)
    with ThreadPoolExecutor(2) as executor, open_run(run) as opened_run:
        opened_run.executor = executor
        assert summary_of(opened_run) == before


def test_what_cannot_be_computed_elsewhere_is_raised_here_as_it_is(run: str) -> None:
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor,
        open_run(run) as opened_run,
    ):
        opened_run.executor = executor
        with pytest.raises(RunDirectoryError, match="rank=3: nothing to be read here") as raised:
            opened_run.map_ranks(_fail)
    assert raised.value.next == "Record it."


def _fail(run: Run) -> None:
    if run.ranks == [3]:
        raise RunDirectoryError("nothing to be read here.", where="rank=3", next="Record it.")


def test_a_directory_that_vanishes_while_it_is_read_ends_the_report(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as executor, open_run(run) as opened_run:
        opened_run.executor = executor
        ranks = opened.ranks_of(run)
        monkeypatch.setattr(opened, "ranks_of", lambda _: ranks)
        shutil.rmtree(run)
        with pytest.raises(EngineError, match="there is no such folder"):
            summary_of(opened_run)


def test_a_file_that_is_damaged_is_named_by_whoever_reads_its_rank(run: str) -> None:
    summary(run)
    Path(f"{run}/trace/kind=phase/rank=9/node001-0.parquet").write_bytes(b"PAR1")
    Path(f"{run}/steps/rank=7.parquet").write_bytes(b"PAR1")
    with ThreadPoolExecutor(2) as executor, open_run(run) as opened_run:
        opened_run.executor = executor
        found = summary_of(opened_run)
    assert [line for line in found["warnings"] if "steps/rank=7.parquet cannot be read" in line]
    assert found["steps"]["n"] == STEPS


def test_a_run_that_is_replaced_takes_its_roll_ups_along(run: str) -> None:
    summary(run)
    assert Path(run, "collectives", "rank=1.parquet").exists()
    clear(run)
    assert not any(Path(run).iterdir())


def test_an_export_of_some_ranks_reads_the_files_of_those_alone(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    words = ("export", run, "--format", "csv", "-o", str(out), "--ranks")
    assert main([*words, "3,9"]) == 0
    assert {row["rank"] for row in csv.DictReader(out.read_text().splitlines())} == {"3", "9"}
    Path(f"{run}/trace/kind=phase/rank=9/node001-0.parquet").write_bytes(b"PAR1")
    capsys.readouterr()
    assert main([*words, "3", "--force"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*words, "9", "--force"]) == 0
    assert "rank=9/node001-0.parquet cannot be read" in capsys.readouterr().err
    assert main([*words, "3,40", "--force"]) == 2
    assert "rank 40 has recorded nothing" in capsys.readouterr().err


def test_what_an_older_voirkit_compacted_is_counted_as_well(run: str) -> None:
    before = summary(run)
    for path in Path(run).glob("trace/processes/*.jsonl"):
        known = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text(
            "".join(
                json.dumps({key: one[key] for key in one if key != "records"}) + "\n"
                for one in known
            )
        )
    assert summary(run) == before


def test_what_a_process_of_another_host_has_recorded_is_compacted_once_it_says_that_this_was_all(
    run: str,
) -> None:
    goes_on = Path(next(Path(run).glob("trace/*-r3-*.names")))
    *lines, _ = goes_on.read_text().splitlines(keepends=True)
    goes_on.write_text("".join(lines))
    assert compaction.compact(run).skipped == [goes_on.stem]
    assert [files.stem for files in layout(run).segments] == [goes_on.stem]


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_a_rank_is_held_against_the_median_of_the_others(n: int) -> None:
    values = np.random.default_rng(n).integers(0, 4, (n, 3, 5))
    others = [np.sort(np.delete(values, rank, axis=0), axis=0)[(n - 2) // 2] for rank in range(n)]
    assert (
        document._usual_of_others(values) == others
    ).all()  # private: the verdict shows it only through thresholds


# directories of several machines without a shared disk


@pytest.fixture
def nodes(tmp_path: Path) -> list[str]:
    return [str(folder) for folder in generate(str(tmp_path / "node"), RANKS, STEPS, 2)]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    folders = [Path(word) for word in words if Path(word).is_dir()]
    before = [sorted(folder.rglob("*")) for folder in folders]
    assert main(["report", *words]) == 2
    assert [sorted(folder.rglob("*")) for folder in folders] == before, "nothing is written"
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[1:] == ["  The directories of all machines are put together: voirkit report NODE0 NODE1 ...; one by itself is "
    "shown as far as it goes."]  # fmt: skip
    return err.splitlines()[0]


def test_directories_of_several_machines_are_one_run(
    nodes: list[str], run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--json", *reversed(nodes)]) == 0
    out, err = capsys.readouterr()
    assert err == "", "one directory has the manifest"
    together = json.loads(out)
    whole = summary(run)
    for key in ("steps", "rates", "ranks", "world_size", "wall", "verdict", "overhead"):
        assert together[key] == whole[key]


def test_ranks_of_different_runs_are_refused(
    nodes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for names in Path(nodes[1]).glob("trace/*.names"):
        names.write_text(names.read_text().replace('"job":"generated"', '"job":"another"'))
    assert (
        refused(capsys, *nodes)
        == f"voirkit: {nodes[1]}: its ranks are of another run than those in {nodes[0]}."
    )
    larger = [str(folder) for folder in generate(str(tmp_path / "larger"), RANKS + 4, STEPS, 2)]
    assert "its ranks are of another run than those in" in refused(capsys, nodes[0], larger[1])


def test_a_rank_that_is_there_twice_is_refused(
    nodes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = str(shutil.copytree(nodes[1], tmp_path / "copy"))
    assert refused(capsys, *nodes, copy) == f"voirkit: {copy}: rank 8 is there and in {nodes[1]}."


def test_a_missing_rank_is_named(nodes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for file in Path(nodes[1]).glob("trace/*-r9-*"):
        file.unlink()
    assert (
        refused(capsys, *nodes) == "voirkit: of 12 ranks these are in none of the directories: 9."
    )


def test_a_directory_of_one_process_is_none_of_a_machine(
    nodes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = str(generate(str(tmp_path / "alone"), 1, STEPS)[0])
    assert (
        refused(capsys, *nodes, alone)
        == f"voirkit: {alone}: nothing that a rank of several has recorded is there."
    )
