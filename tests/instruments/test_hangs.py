"""When a process hangs, and what is said of ranks that do: pure functions, with clocks and documents made up here."""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Place

from voirkit.findings import Finding
from voirkit.instrument import resolve
from voirkit.report.sections import Text
from voirkit.trace import layout
from voirkit_instruments.hangs import FOLDER, INSTRUMENT, ending, limit
from voirkit_instruments.hangs.analyse import (
    differences,
    documents,
    end_lines,
    ends_of,
    hangs_of,
    line_of,
    live_lines,
    phases_of,
    sections,
    summarise,
)
from voirkit_instruments.hangs.analyse import evidence as evidence_of
from voirkit_instruments.hangs.record import Detector, Progress, Watcher
from voirkit_instruments.hangs.record_state import collectives_in
from voirkit_instruments.hangs.rules import findings


def training(median_s: float = 1.0, least_s: float = 60.0) -> Detector:
    """A process that has taken steps up to second 0."""
    detector = Detector(least_s)
    detector.on_progress(-5 * median_s)
    detector.on_progress(-4 * median_s, [0.0])
    detector.on_progress(0.0, [median_s] * 4)
    return detector


def test_a_process_hangs_when_no_step_has_ended_for_the_limit() -> None:
    detector = training()
    assert (detector.hangs(59.9), detector.hangs(60.0)) == (False, True)


def test_the_limit_is_twenty_median_steps_where_these_are_longer() -> None:
    assert training(median_s=5.0).limit_s == 100.0


def test_nothing_is_expected_of_a_process_before_it_has_recorded_anything() -> None:
    assert not Detector(1.0).hangs(1e6)


def test_a_slow_start_makes_no_hang_of_the_second_step() -> None:
    detector = Detector(1.0)
    detector.on_progress(0.0)
    detector.on_progress(1.5, [0.0])
    assert not detector.hangs(1.5 + 5.9)
    assert detector.hangs(1.5 + 6.0)


def test_stacks_that_have_not_been_seen_are_a_sign_of_life_and_a_loop_is_none() -> None:
    compiling, looping = training(), training()
    for second in range(0, 120, 5):
        compiling.on_standstill(second, second, False)
        looping.on_standstill(second, second % 2, False)
    assert not compiling.hangs(120.0)
    assert looping.hangs(120.0)


def test_files_that_are_read_are_a_sign_of_life_up_to_four_times_the_limit() -> None:
    detector = training()
    for second in range(0, 241, 5):
        assert detector.hangs(second) == (second >= 240)
        detector.on_standstill(second, 1, True)


def test_who_waits_while_another_rank_goes_on_does_not_hang_before_ten_times_the_limit() -> None:
    detector = training()
    assert not detector.hangs(599.0, others_s=590.0)
    assert detector.hangs(600.0, others_s=590.0)


def test_behind_a_loop_a_program_may_do_anything_for_ten_times_the_limit() -> None:
    assert not training().hangs(599.0, is_behind=True)
    assert training().hangs(600.0, is_behind=True)


def test_limits_are_read_as_durations_and_0_switches_them_off() -> None:
    assert (limit("0"), limit("30"), limit("5m")) == (0.0, 30.0, 300.0)


def test_what_has_been_recorded_is_read_from_the_segments_counters_and_garbage_left_out(
    tmp_path: Path,
) -> None:
    names = {
        1: ("compute", "step", "phase"),
        2: ("monitor", "rss", "counter"),
        3: ("gc", "collect", "phase"),
        4: ("dataloader", "end", "phase"),
    }
    path = tmp_path / "host-r0-7-0.seg"
    room = struct.pack(layout.HEADER, layout.MAGIC, 1, 32, 7, 0, 0) + bytes(
        layout.GRANULE - layout.HEADER_BYTES
    )
    path.write_bytes(room)
    progress = Progress(
        str(tmp_path), re.compile(r"host-r\d+-7(\.\d+)?-\d+\.seg$"), names.__getitem__
    )
    written = 0

    def record(*records: tuple[int, int]) -> tuple[bool, list[float]]:
        nonlocal written
        with open(path, "r+b") as file:
            file.seek(layout.HEADER_BYTES + written * layout.RECORD_BYTES)
            for start_ns, name in records:
                file.write(struct.pack(layout.RECORD, start_ns, 1, 0, 0, name))
        written += len(records)
        return progress.read()

    assert record() == (False, [])
    assert record((5, layout.THREAD), (10**9, 1)) == (True, [0.0])
    assert record((2 * 10**9, 2), (2 * 10**9, 3)) == (False, [])
    assert record(*((n * 10**9, 1) for n in range(3, 6))) == (True, [2.0, 1.0, 1.0])
    assert record() == (False, [])
    assert progress.is_in_loop
    assert record((6 * 10**9, 4)) == (True, [])
    assert not progress.is_in_loop


def frame(
    function: str, file: str = "/site-packages/torch/x.py", line: int = 1, own: bool = False
) -> dict[str, Any]:
    return {"function": function, "file": file, "line": line, "own": own}


TRAIN = frame("main", "/home/me/train.py", 30, True)
BACKWARD = [
    TRAIN,
    frame("Tensor.backward", "/site-packages/torch/_tensor.py"),
    frame("_engine_run_backward", "/s/torch/autograd/graph.py"),
]
EVALUATE = [TRAIN, frame("evaluate", "/home/me/train.py", 88, True)]
S = 10**9
HOST = os.uname().nodename if hasattr(os, "uname") else "localhost"


def state(
    frames: list[dict[str, Any]],
    hangs: bool = True,
    over_ns: int | None = None,
    at_s: int = 70,
    **more: Any,
) -> dict[str, Any]:
    thread = {
        "name": "MainThread",
        "tid": 1,
        "main": True,
        "frames": frames,
        "busy": 0.0,
        "call": more.pop("call", None),
        "file": None,
    }
    return {
        "hangs": hangs, "noticed_time_ns": at_s * S, "since_time_ns": (at_s - 60) * S, "over_time_ns": over_ns, "limit_s": 60.0,
        "median_step_s": 0.1, "threads": [{**thread, **more.pop("thread", {})}], "workers": more.pop("workers", []),
        "collectives": more.pop("collectives", None),
    }  # fmt: skip


def group(
    enqueued: int, completed: int, name: str = "all_reduce", size: int = 10
) -> list[dict[str, Any]]:
    pending = (
        [
            {
                "seq": enqueued,
                "name": name,
                "sizes": [[size]],
                "dtypes": ["Float"],
                "created_time_ns": 1,
            }
        ]
        if enqueued > completed
        else []
    )
    return [
        {
            "group": "0",
            "name": "default_pg",
            "last_enqueued": enqueued,
            "last_completed": completed,
            "pending": pending,
        }
    ]


def document(
    rank: int,
    *hangs: dict[str, Any],
    size: int = 3,
    ended: dict[str, Any] | None = None,
    pid: int = 0,
) -> dict[str, Any]:
    clocks = {"perf_counter_ns": time.perf_counter_ns(), "time_ns": S}
    return {
        "schema": 1, "rank": rank, "world_size": size, "host": HOST, "pid": pid or os.getpid(), "clocks": clocks, "ended": ended,
        "hangs": list(hangs), "seen_time_ns": 12 * S,
    }  # fmt: skip


def ended(
    how: str = "normal", code: int = 0, error: str | None = None, at_s: int = 20
) -> dict[str, Any]:
    return {"how": how, "exit_code": code, "error": error, "time_ns": at_s * S}


def test_the_sentence_says_who_waits_where_and_who_does_not() -> None:
    waiting = state(BACKWARD, call="futex", collectives=group(41, 40))
    reading = state(EVALUATE, thread={"call": "read", "file": "/data/x"}, collectives=group(40, 40))
    [hang] = hangs_of([document(0, waiting), document(1, reading), document(2, waiting)])
    assert hang["sentence"] == (
        "ranks 0 and 2 wait in all_reduce 41 (backward), main(), train.py:30; rank 1 is in evaluate(), train.py:88, reading /data/x"
    )
    assert hang["different"] == ["all_reduce 41 has not been called by rank 1 (its last is 40)."]


def test_ranks_that_call_different_collectives_are_told_with_their_shapes() -> None:
    found = [
        document(rank, state(BACKWARD, collectives=group(5, 4, name, size)))
        for rank, name, size in ((0, "all_reduce", 10), (1, "gather", 20))
    ]
    assert differences(found, {0: found[0]["hangs"][0], 1: found[1]["hangs"][0]}) == [
        "The ranks of a group do not call the same collective: rank 0 calls all_reduce 5 of [10] Float; rank 1 calls gather 5 of [20] Float."
    ]


def test_a_rank_that_ended_before_is_named_with_its_end() -> None:
    waiting = state(BACKWARD, collectives=group(41, 40), over_ns=90 * S)
    failed = document(1, size=2, ended=ended("exception", 1, "ValueError: no", at_s=20))
    [hang] = hangs_of([document(0, waiting, size=2), failed])
    assert hang["sentence"].endswith("; rank 1 ended by an exception (ValueError: no) 70 s before")
    assert hang["lasted_s"] == 80.0


def test_a_rank_that_died_is_named_by_what_it_has_not_written() -> None:
    dead = document(1, size=2, pid=2**22 + 5)  # no process has such a number
    [hang] = hangs_of([document(0, state(BACKWARD, collectives=group(41, 40)), size=2), dead])
    assert (
        "rank 1 ended without a word: a signal ended it, or os._exit(); last heard of at "
        in hang["sentence"]
    )
    assert [(one["rank"], one["how"]) for one in ends_of([document(0, size=2), dead])] == [
        (1, "died")
    ]
    assert end_lines(ends_of([dead]))[0].startswith(
        "rank 1 ended without a word: a signal ended it, or os._exit(); last heard of at "
    )


def test_ranks_whose_parent_saw_their_end_are_named_with_the_signal_that_which_was_sent_to_the_rest_last(
    tmp_path: Path,
) -> None:
    (tmp_path / FOLDER).mkdir()
    for rank, pid in enumerate((2**22 + 5, 2**22 + 6)):
        (tmp_path / FOLDER / f"{HOST}-r{rank}-{pid}.json").write_text(
            json.dumps(document(rank, size=2, pid=pid))
        )
    codes = {str(2**22 + 5): -15, str(2**22 + 6): -9}
    (tmp_path / FOLDER / f"{HOST}-children-7.json").write_text(
        json.dumps({"schema": 1, "host": HOST, "codes": codes})
    )
    lines = [line.partition(";")[0] for line in end_lines(ends_of(documents(str(tmp_path))))]
    assert lines == ["rank 1 was killed by SIGKILL", "rank 0 was killed by SIGTERM"]


def test_a_rank_that_fails_comes_before_those_of_which_nothing_is_known_and_one_that_misses_its_peer_after_them() -> (
    None
):
    dead = document(1, size=3, pid=2**22 + 5)
    lost = document(
        0,
        size=3,
        ended=ended(
            "exception", 1, "RuntimeError: Connection closed by peer [127.0.0.1]:6582", at_s=9
        ),
    )
    failed = document(2, size=3, ended=ended("exception", 1, "ValueError: no", at_s=20))
    assert [one["rank"] for one in ends_of([lost, dead, failed])] == [2, 1, 0]


def test_ends_are_those_of_the_last_start_of_the_ranks() -> None:
    first = {**document(0, size=2, ended=ended("exception", 1, "ValueError: no")), "restart": 0}
    assert ends_of([first, {**document(1, size=2, ended=ended()), "restart": 1}]) == []


def test_when_a_rank_was_last_heard_of_is_by_its_records_and_not_by_the_time_of_a_file(
    tmp_path: Path,
) -> None:
    (tmp_path / FOLDER).mkdir()
    dead = document(1, size=2, pid=2**22 + 5)
    (tmp_path / FOLDER / f"{HOST}-r1-7.json").write_text(json.dumps(dead))
    last_ns = dead["clocks"]["perf_counter_ns"] + 41 * S
    run: Any = SimpleNamespace(
        path=str(tmp_path),
        tallies=lambda: [(1, HOST, 2**22 + 5, "phase", SimpleNamespace(end_ns=last_ns))],
    )
    part = summarise([run], [], {})
    assert part is not None
    assert part["hangs"]["ends"][0]["time_ns"] == 42 * S


def test_a_hang_ends_where_it_was_last_seen_and_is_told_to_have_been_ended_by_a_restart() -> None:
    hung = {**state(BACKWARD, at_s=70), "seen_time_ns": 95 * S}
    found = [{**document(0, hung, pid=2**22 + 5), "restart": 0}, {**document(0), "restart": 1}]
    assert line_of(hangs_of(found)[0]).startswith(
        "the run hung for 85 s, until its ranks were started again: "
    )
    [evidence] = evidence_of({"hangs": hangs_of(found)}, ())
    assert evidence.details == {"since_time_ns": 10 * S, "until_time_ns": 95 * S}


def findings_of_hangs(*documents: dict[str, Any]) -> list[Finding]:
    return list(findings({"hangs": {"hangs": hangs_of(documents), "ends": ends_of(documents)}}))


def test_a_hang_is_a_finding_at_the_line_of_the_rank_that_the_others_wait_for() -> None:
    waiting = state(BACKWARD, collectives=group(41, 40), over_ns=90 * S)
    evaluating = state(EVALUATE, over_ns=90 * S)
    [finding] = findings_of_hangs(document(0, waiting, size=2), document(1, evaluating, size=2))
    assert (finding.kind, finding.where, finding.evidence["rank"]) == ("hang", "train.py:88", 1)
    assert finding.because == (
        "No step ended for 80 s, then the run went on: rank 0 waits in all_reduce 41 (backward), main(), train.py:30; "
        "rank 1 is in evaluate(), train.py:88."
    )
    assert finding.next.startswith("Look at what rank 1 does there: the others wait for it.")


def test_ranks_that_call_different_collectives_are_told_to_call_the_same() -> None:
    [finding] = findings_of_hangs(
        *(
            document(rank, state(BACKWARD, collectives=group(5, 4, name)), size=2)
            for rank, name in ((0, "all_reduce"), (1, "barrier"))
        )
    )
    assert finding.because.endswith(
        "rank 0 calls all_reduce 5 of [10] Float; rank 1 calls barrier 5 of [10] Float."
    )
    assert finding.next.startswith(
        "Have all ranks make the same collective calls in the same order"
    )


def test_the_longest_hang_is_a_finding_and_the_section_tells_the_others() -> None:
    halts = [state(BACKWARD, at_s=at, over_ns=(at + n) * S) for n, at in enumerate((100, 300, 500))]
    documents = [document(0, *halts, size=1)]
    assert [finding.evidence["seconds"] for finding in findings_of_hangs(*documents)] == [62.0]
    [section] = sections({"hangs": hangs_of(documents), "ends": []}, {})
    said = [block.text for block in section.blocks if isinstance(block, Text)]
    assert [line.partition(":")[0] for line in said] == [
        "No step ended for 60 s, then the run went on", "No step ended for 61 s, then the run went on", "62 s without a step",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("others", "row", "look"),
    [
        (BACKWARD, {"frames": EVALUATE}, "Look at what rank 1 does there: the others wait for it."),
        (EVALUATE, {"frames": EVALUATE}, "Look at what rank 0 does there."),
        (None, {"frames": EVALUATE}, "Look at what evaluate(), train.py:88 waits for."),
        (
            None,
            {"frames": EVALUATE, "thread": {"busy": 0.9}},
            "Look at what evaluate(), train.py:88 does.",
        ),
    ],
    ids=["one waits", "none waits", "alone", "alone and computing"],
)
def test_what_is_to_be_looked_at_is_the_rank_that_does_not_wait(
    others: list[dict[str, Any]] | None, row: dict[str, Any], look: str
) -> None:
    size = 1 if others is None else 2
    ranks = (
        []
        if others is None
        else [
            document(
                0, state(others, collectives=group(5, 4) if others is BACKWARD else None), size=2
            )
        ]
    )
    [finding] = findings_of_hangs(
        *ranks, document(len(ranks), state(row.pop("frames"), **row), size=size)
    )
    assert finding.next.startswith(look)


def test_a_rank_that_is_gone_is_not_to_be_looked_at_there() -> None:
    dead = document(1, size=2, pid=2**22 + 5)
    hang = findings_of_hangs(document(0, state(BACKWARD, collectives=group(41, 40)), size=2), dead)[
        0
    ]
    assert hang.next.startswith("Look at why rank 1 is not there: the others wait for it.")


@pytest.mark.parametrize(("how", "code"), [("signal", 130), ("exit", 143), ("exception", 1)])
def test_what_hung_and_ends_as_soon_as_it_goes_on_hung_to_its_end(how: str, code: int) -> None:
    hung = state(BACKWARD, over_ns=90 * S)
    [hang] = hangs_of([document(0, hung, size=1, ended=ended(how, code, at_s=90))])
    assert line_of(hang).startswith("the run hung to its end: ")
    [hang] = hangs_of([document(0, hung, size=1, ended=ended(how, code, at_s=94))])
    assert line_of(hang).startswith("no step ended for 80 s, then the run went on: ")


def test_a_collective_that_times_out_before_the_ranks_are_started_again_hung_until_then() -> None:
    timed_out = ended("exception", 1, "RuntimeError: Timed out", at_s=90)
    first = [
        {**document(rank, state(BACKWARD, over_ns=90 * S), size=2, ended=timed_out), "restart": 0}
        for rank in (0, 1)
    ]
    second = [{**document(rank, size=2, ended=ended(at_s=200)), "restart": 1} for rank in (0, 1)]
    assert line_of(hangs_of([*first, *second])[0]).startswith(
        "the run hung for 80 s, until its ranks were started again: "
    )


def test_the_rank_that_ended_by_itself_is_a_finding() -> None:
    lost = document(
        0,
        size=2,
        ended=ended(
            "exception", 1, "RuntimeError: Connection closed by peer [127.0.0.1]:6582", at_s=9
        ),
    )
    failed = document(1, size=2, ended=ended("exception", 1, "ValueError: no", at_s=20))
    [finding] = findings_of_hangs(lost, failed)
    assert (finding.kind, finding.because) == (
        "rank-ended",
        "Rank 1 ended by an exception (ValueError: no).",
    )
    assert (
        finding.next
        == "Fix that error, whose traceback is in the output: the other ranks ended because it was gone."
    )


def test_ranks_that_ended_alike_are_told_together_and_none_of_them_is_blamed() -> None:
    [finding] = findings_of_hangs(
        *(
            document(rank, size=2, ended=ended("exception", 1, "FileNotFoundError: x"))
            for rank in (0, 1)
        )
    )
    assert finding.because == "Ranks 0 and 1 ended by an exception (FileNotFoundError: x)."
    assert finding.next == "Fix that error, whose traceback is in the output."


def test_an_error_of_another_connection_is_a_rank_s_own() -> None:
    lost = document(0, size=2, pid=2**22 + 5)
    failed = document(
        1,
        size=2,
        ended=ended("exception", 1, "ConnectionError: HTTPSConnectionPool(host='hub')", at_s=20),
    )
    [finding] = findings_of_hangs(lost, failed)
    assert finding.evidence["rank"] == 1


def test_a_job_that_is_ended_by_ctrl_c_has_no_such_finding() -> None:
    assert (
        findings_of_hangs(*(document(rank, size=2, ended=ended("signal", 130)) for rank in (0, 1)))
        == []
    )


def test_the_rank_that_failed_comes_before_those_that_did_not() -> None:
    first = document(0, size=2, ended=ended(at_s=20))
    assert [
        one["rank"]
        for one in ends_of([first, document(1, size=2, ended=ended("exit", 1, at_s=30))])
    ] == [1, 0]


def test_ranks_that_all_end_normally_are_not_told_of() -> None:
    assert ends_of([document(rank, size=2, ended=ended()) for rank in (0, 1)]) == []


def test_the_workers_that_a_rank_waits_for_are_told_with_what_they_do() -> None:
    loading = [TRAIN, frame("_BaseDataLoaderIter.__next__", "/s/torch/utils/data/dataloader.py")]
    idle = {
        "pid": 8,
        "name": "Process-1",
        "alive": True,
        "exit_code": None,
        "busy": 0.0,
        "call": "sleep",
        "file": None,
    }
    killed = {**idle, "pid": 9, "name": "Process-2", "alive": False, "exit_code": -9}
    [hang] = hangs_of([document(0, state(loading, workers=[idle, killed]), size=1)])
    assert hang["sentence"] == (
        "the program waits for the data loader, main(), train.py:30: worker Process-1 (pid 8) is sleeping and worker Process-2 (pid 9) was "
        "killed by SIGKILL"
    )


def test_what_others_write_of_a_hang_that_nobody_has_is_none() -> None:
    assert hangs_of([document(0, state(BACKWARD, hangs=False))]) == []


def test_ranks_that_were_started_again_hang_anew() -> None:
    started = [
        {**document(0, state(BACKWARD, at_s=70 + 10 * start), size=1), "restart": start}
        for start in (0, 1)
    ]
    assert [len(hang["ranks"]) for hang in hangs_of(started)] == [1, 1]


def test_two_stretches_without_a_step_are_two_hangs() -> None:
    found = [
        document(0, state(BACKWARD, over_ns=80 * S), state(BACKWARD, at_s=300, over_ns=310 * S))
    ]
    assert [one["lasted_s"] for one in hangs_of(found)] == [70.0, 70.0]
    assert line_of(hangs_of(found)[0]).startswith("no step ended for 70 s, then the run went on: ")


def test_the_phase_is_that_of_the_innermost_function_of_torch() -> None:
    reduced = frame("all_reduce", "/s/torch/distributed/distributed_c10d.py")
    assert phases_of([*BACKWARD, reduced]) == ["communication", "backward"]
    assert phases_of([TRAIN, frame("Module._call_impl", "/s/torch/nn/modules/module.py")]) == [
        "forward"
    ]
    assert phases_of(EVALUATE) == []


def test_damaged_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "host-r0-1.json").write_text("{")
    (tmp_path / FOLDER / "host-r1-2.json").write_text(json.dumps(document(1, state(BACKWARD))))
    assert [one["rank"] for one in documents(str(tmp_path))] == [1]
    assert live_lines(str(tmp_path))[0].startswith("the run hangs")


def test_a_dump_of_the_flight_recorder_is_read_by_group() -> None:
    entry = {
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "collective_seq_id": 4,
    }
    shapes = {
        "input_sizes": [[10]],
        "input_dtypes": ["Float"],
        "time_created_ns": 9,
        "state": "scheduled",
    }
    dump = {
        "pg_status": {
            "0": {
                "last_enqueued_collective": "4",
                "last_completed_collective": "3",
                "last_started_collective": "-1",
            }
        },
        "entries": [
            {**entry, **shapes, "retired": True, "collective_seq_id": 3},
            {**entry, **shapes, "retired": False},
        ],
    }
    [found] = collectives_in(dump)
    assert (found["name"], found["last_enqueued"], found["last_completed"]) == ("default_pg", 4, 3)
    assert [(one["seq"], one["name"]) for one in found["pending"]] == [(4, "all_reduce")]


@pytest.mark.parametrize(
    ("exc", "how", "code"),
    [
        (None, "normal", 0),
        (SystemExit(3), "exit", 3),
        (SystemExit("x"), "exit", 1),
        (ValueError("x"), "exception", 1),
    ],
)
def test_how_a_program_ends_is_told_by_what_it_raised(
    exc: BaseException | None, how: str, code: int
) -> None:
    assert (ending(exc)["how"], ending(exc)["exit_code"]) == (how, code)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell less")
def test_no_thread_is_beside_a_fork_and_there_is_one_again_after_it() -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before, python_before, beside = threads(), threading.active_count(), []
    watcher = Watcher(60.0, print, print)
    watcher.start()
    try:
        for _ in range(3):
            watcher.before_fork()
            beside.append(threads())
            watcher.after_fork()
        assert beside == [before] * 3
        assert threading.active_count() == python_before
        until = time.monotonic() + 60
        while threads() == before and time.monotonic() < until:
            time.sleep(0.01)
        assert threads() == before + 1
    finally:
        watcher.stop(ending(None))
    assert threads() == before


def test_a_second_run_of_a_process_finds_the_instrument_too() -> None:
    """The module ``record``, which the first has loaded, is an attribute of the package then."""
    assert callable(resolve(INSTRUMENT.record))


def test_hang_without_steps_is_refused(place: Place) -> None:
    refused = place.write(main="print(1)").voirkit("--no-steps", "--hang", "5", "main.py")
    assert refused.code == 2
    assert "--hang" in refused.err
