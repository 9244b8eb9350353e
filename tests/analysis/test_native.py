"""Samples joined with operations and phases: made runs, and a perf that prints what the test says."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from recorded import record_with_manifest

from voirkit.runs.opened import open_run
from voirkit_instruments.stacks.analyse_native import summarise
from voirkit_instruments.stacks.analyse_samples import PerfReader

# One thread of 1000 us: two operations in an item, one of them with another inside; the same thread then computes.
BODY = """
import json
at = NOW
span("data", "item", at, at + 400 * US, kind="loader", loader=0, worker=0, source="Photos.__getitem__")
span("operation", "Crop", at + 100 * US, at + 300 * US, kind="loader")
span("operation", "Inner", at + 150 * US, at + 200 * US, kind="loader")
span("data", "preprocess", at, at + 410 * US, kind="loader")
span("compute", "forward", at + 500 * US, at + 700 * US, kind="phase")
span("compute", "backward", at + 700 * US, at + 900 * US, kind="phase")
span("worker", "idle", at + 900 * US, at + 950 * US, kind="loader")
(open(sys.argv[1] + ".json", "w")).write(json.dumps([at, os.getpid(), threading.get_native_id(), os.uname().nodename]))
"""
Taken = tuple[
    float, int, str
]  # microseconds from the beginning, thread (0: the main one), what follows the event


def made(
    folder: Path,
    taken: Sequence[Taken],
    facts: Mapping[str, Any] | None = None,
    data: str = "{period} cpu-clock:",
    body: str = BODY,
) -> Path:
    """A run that perf sampled so."""
    run = record_with_manifest(folder / "run", body)
    at, pid, tid, host = json.loads((folder / "run.json").read_text())
    lines = []
    for us, thread, code in taken:
        ns = at + int(us * 1000)
        owner = f"{pid}/{tid + thread}" if thread >= 0 else "1/1"
        lines.append(
            f"{owner} {ns // 10**9}.{ns % 10**9:09d}: {data.format(period=50_000)} {code}\n"
        )
    (run / "native").mkdir()
    perf = folder / "perf"
    perf.write_text("#!/bin/sh\ncat " + str(folder / "lines") + "\n")
    perf.chmod(0o755)
    (folder / "lines").write_text("".join(lines))
    (run / "native" / f"{host}-r0-{pid}.data").write_text("")
    known = {
        "schema": 1,
        "tool": "perf",
        "rank": 0,
        "host": host,
        "began_ns": at,
        "ended_ns": at + 1_000_000,
        "frequency_hz": 20_000,
    }
    (run / "native" / f"{host}-r0-{pid}.json").write_text(json.dumps({**known, **(facts or {})}))
    return run


@pytest.fixture(autouse=True)
def perf_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


def document(run: Path) -> dict[str, Any]:
    """``native.json`` of a run."""
    with open_run(run) as opened:
        assert summarise([opened], [], {}) is not None
    found: dict[str, Any] = json.loads((run / "native.json").read_text())
    return found


A, B, K = (
    "7f00 resample (/lib/_imaging.so)",
    "7f01 decode (/lib/libjpeg.so)",
    "ffffffff81000000 page_fault ([kernel.kallsyms])",
)
S = "7f02 [unknown] (/lib/libjpeg.so)"


def test_a_sample_belongs_to_the_innermost_operation(tmp_path: Path) -> None:
    found = document(
        made(tmp_path, [(50, 0, B), (120, 0, A), (160, 0, A), (250, 0, A), (350, 0, B)])
    )
    assert {name: row["samples"] for name, row in found["operations"].items()} == {
        "Crop": 2,
        "Inner": 1,
        "Photos.__getitem__": 2,
    }
    assert found["operations"]["Crop"]["functions"]["resample|_imaging.so"]["share"] == 1


def test_elapsed_time_is_that_without_what_lies_inside(tmp_path: Path) -> None:
    found = document(made(tmp_path, [(120, 0, A)]))
    elapsed = {
        name: round(row["elapsed_s"] * 1e6)
        for name, row in {**found["operations"], **found["phases"]}.items()
    }
    assert elapsed == {
        "Photos.__getitem__": 200,
        "Crop": 150,
        "Inner": 50,
        "forward": 200,
        "backward": 200,
    }
    assert found["operations"]["Crop"]["on_cpu_s"] == pytest.approx(50e-6)


def test_an_operation_inside_one_of_the_same_name_is_part_of_it(tmp_path: Path) -> None:
    body = BODY.replace('"Inner"', '"Crop"')
    found = document(made(tmp_path, [(120, 0, A), (160, 0, A)], body=body))["operations"]["Crop"]
    assert (found["n"], round(found["elapsed_s"] * 1e6), found["samples"]) == (1, 200, 2)


def test_phases_have_samples_of_their_own(tmp_path: Path) -> None:
    found = document(made(tmp_path, [(550, 0, A), (600, 0, B), (750, 0, B)]))
    assert {name: row["samples"] for name, row in found["phases"].items()} == {
        "forward": 2,
        "backward": 1,
    }
    assert all(row["samples"] == 0 for row in found["operations"].values())


def test_other_threads_of_the_process_belong_to_the_phase_but_are_told_apart(
    tmp_path: Path,
) -> None:
    found = document(made(tmp_path, [(750, 0, A), (760, 1, B), (770, 2, B)]))["phases"]["backward"]
    assert (found["samples"], found["other_threads"]["samples"]) == (1, 2)
    assert found["functions"]["decode|libjpeg.so"]["samples_of_other_threads"] == 2
    assert found["functions"]["resample|_imaging.so"]["samples_of_other_threads"] == 0
    assert found["on_cpu_s"] == pytest.approx(50e-6)


def test_what_is_in_nothing_and_what_is_of_other_processes_is_kept_apart(tmp_path: Path) -> None:
    found = document(made(tmp_path, [(450, 0, A), (460, 0, B), (120, -1, B)]))
    assert found["elsewhere"]["samples"] == 2
    assert found["other_processes"]["functions"] == {
        "decode|libjpeg.so": found["other_processes"]["functions"]["decode|libjpeg.so"]
    }


def test_every_sample_is_counted_once(tmp_path: Path) -> None:
    taken: list[Taken] = [(us, us % 3, A) for us in range(1, 1000, 7)]
    found = document(made(tmp_path, taken))
    rows = [*found["operations"].values(), *found["phases"].values(), found["elsewhere"]]
    assert (
        sum(row["samples"] + row["other_threads"]["samples"] for row in rows)
        == len(taken)
        == found["samples"]
    )


def test_the_kernel_and_libraries_without_names_are_apart(tmp_path: Path) -> None:
    found = document(made(tmp_path, [(120, 0, A), (220, 0, S), (230, 0, S), (240, 0, K)]))[
        "operations"
    ]["Crop"]
    assert found["kernel_share"] == 0.25
    assert list(found["functions"]) == [
        "libjpeg.so|?",
        "page_fault|[kernel.kallsyms]",
        "resample|_imaging.so",
    ]
    assert found["functions"]["libjpeg.so|?"]["function"] is None
    assert found["libraries"] == {"libjpeg.so": 0.5, "[kernel.kallsyms]": 0.25, "_imaging.so": 0.25}


def test_shares_of_an_operation_sum_to_one(tmp_path: Path) -> None:
    found = document(made(tmp_path, [(120 + i, 0, (A, B, K, S)[i % 4]) for i in range(27)]))[
        "operations"
    ]["Crop"]
    assert sum(row["share"] for row in found["functions"].values()) == pytest.approx(1)
    assert sum(found["libraries"].values()) == pytest.approx(1)


def test_it_has_the_two_tables_of_p3map(tmp_path: Path) -> None:
    found = document(made(tmp_path, [(50, 0, B), (120, 0, A), (130, 0, B)]))
    assert found["op_to_func"] == {
        "Crop": ["decode|libjpeg.so", "resample|_imaging.so"],
        "Photos.__getitem__": ["decode|libjpeg.so"],
        "Inner": [],
    }
    assert found["common_funcs_to_op"] == {"decode|libjpeg.so": ["Crop", "Photos.__getitem__"]}


def test_what_hardware_counted_is_summed_by_function(tmp_path: Path) -> None:
    lines: list[Taken] = [(120, 0, f"3000 cycles: {A}"), (121, 0, f"900 instructions: {A}"), (122, 0, f"1000 cycles: {B}"),
                          (123, 0, f"2000 instructions: {B}"), (124, 0, f"2000000 cpu-clock: {B}")]  # fmt: skip
    found = document(made(tmp_path, lines, data=""))
    crop = found["operations"]["Crop"]
    assert found["event"] == "cycles"
    assert crop["functions"]["resample|_imaging.so"]["share"] == 0.75
    assert crop["functions"]["resample|_imaging.so"]["counters"] == {
        "cycles": 3000,
        "instructions": 900,
    }
    assert crop["functions"]["decode|libjpeg.so"]["counters"] == {
        "cycles": 1000,
        "instructions": 2000,
    }
    assert (crop["samples"], crop["on_cpu_s"]) == (2, 0.002)


def test_lost_samples_and_lines_that_are_none_are_counted(tmp_path: Path) -> None:
    run = made(tmp_path, [(120, 0, A)])
    with open(tmp_path / "lines", "a") as file:
        file.write("1/1 5.000000000: PERF_RECORD_LOST lost 12\n\nsomething new\n")
    found = document(run)
    assert (found["samples"], found["lost"], found["unread"]) == (1, 12, 1)


def test_many_batches_come_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Taken] = [(us, us % 2, (A, B, K)[us % 3]) for us in range(1, 1000, 3)]
    run = made(tmp_path, taken)
    whole = document(run)
    for path in (run / "native").glob("*.counts.json"):
        path.unlink()
    batches = PerfReader.batches
    monkeypatch.setattr(PerfReader, "batches", lambda self, lines: batches(self, lines, size=7))
    assert document(run) == whole


def test_a_run_is_read_by_perf_once(tmp_path: Path) -> None:
    run = made(tmp_path, [(120, 0, A)])
    whole = document(run)
    os.unlink(tmp_path / "perf")
    assert document(run) == whole


def test_without_perf_where_it_is_read_the_rest_of_the_run_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(tmp_path, [(120, 0, A)])
    os.unlink(tmp_path / "perf")
    monkeypatch.setenv("PATH", str(tmp_path))
    with open_run(run) as opened:
        assert summarise([opened], [], {}) is None
        assert "cannot be read" in opened.warnings[-1]


def test_a_program_that_a_run_names_is_not_executed(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    planted.write_text(f"#!/bin/sh\ntouch {tmp_path / 'executed'}\n")
    planted.chmod(0o755)
    document(made(tmp_path, [(120, 0, A)], {"program": str(planted)}))
    assert not (tmp_path / "executed").exists()


def test_ranks_are_added(tmp_path: Path) -> None:
    run = made(tmp_path, [(120, 0, A), (130, 0, B)])
    document(run)
    (counts,) = (run / "native").glob("*.counts.json")
    (run / "native" / "other-r1-7.json").write_text("{}")
    (run / "native" / "other-r1-7.counts.json").write_text(counts.read_text())
    crop = document(run)["operations"]["Crop"]
    assert (crop["samples"], crop["functions"]["resample|_imaging.so"]["share"]) == (4, 0.5)
