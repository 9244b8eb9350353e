"""The account of a run's whole wall time: exclusive parts that sum to its duration."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from voirkit.analysis.document import Rank
from voirkit.analysis.steps import CHECKPOINT, COMMUNICATION, GC, REST, Steps, Table
from voirkit.analysis.summary import Attempt, goodput_of, wall_of
from voirkit.commands.run import process_begun_ns
from voirkit.report.overview import ABOVE, wall_line
from voirkit.runs import manifest as manifests
from voirkit.runs.summary import account

MS = 1_000_000
S = 1000 * MS
# python began at 1 s of the clock, the script's first line ran at 1.2 s, its last at 10.9 s.
MANIFEST: dict[str, Any] = {
    "host": "node",
    "moments": {"begun_ns": S, "script_ns": 1200 * MS, "script_ended_ns": 10_900 * MS},
}


def table(starts_ms: list[int], times_ms: list[int], **columns_ms: int) -> Table:
    own = np.zeros((len(starts_ms), REST + 1), dtype=np.int64)
    time = np.array(times_ms, dtype=np.int64) * MS
    for name, spent in columns_ms.items():
        own[:, {"checkpoint": CHECKPOINT, "gc": GC}[name]] = spent * MS
    own[:, REST] = time - own.sum(axis=1)
    return Table(np.array(starts_ms, dtype=np.int64) * MS, time, np.full(len(time), 4), own)


NONE = table([], [])


def parts(*ranks: Rank, manifest: Any = MANIFEST, duration_s: float = 10.0) -> dict[str, float]:
    wall = wall_of(manifest, duration_s, ranks)
    assert wall is not None
    assert sum(part["total_s"] for part in wall["parts"].values()) == pytest.approx(duration_s)
    assert sum(part["share"] for part in wall["parts"].values()) == pytest.approx(1)
    return {name: round(part["total_s"], 6) for name, part in wall["parts"].items()}


def rank(
    train: Table,
    evaluation: Table = NONE,
    aside_ms: Any = None,
    number: int = 0,
    host: str = "node",
) -> Rank:
    aside = {name: (before * MS, since * MS) for name, (before, since) in (aside_ms or {}).items()}
    return Rank(number, host, Steps(train, evaluation, wait_known=True, aside_ns=aside))


def test_startup_lasts_to_the_first_step_and_between_is_what_is_in_no_part() -> None:
    found = parts(rank(table([3000, 4000, 5000], [1000, 1000, 1000])))
    assert found == {"startup": 2.0, "training": 3.0, "between": 4.9, "exit": 0.1}


def test_evaluation_is_a_part_of_its_own_also_where_it_comes_first() -> None:
    found = parts(rank(table([3000], [1000]), table([2000, 5000], [500, 1500])))
    assert found == {
        "startup": 1.0,
        "training": 1.0,
        "evaluation": 2.0,
        "between": 5.9,
        "exit": 0.1,
    }


def test_checkpoints_count_inside_of_steps_and_between_them_but_once() -> None:
    found = parts(
        rank(table([3000, 4000], [1000, 1000], checkpoint=200), aside_ms={"checkpoint": (300, 600)})
    )
    assert found == {
        "startup": 1.7,
        "training": 1.6,
        "checkpoint": 1.3,
        "between": 5.3,
        "exit": 0.1,
    }


def test_garbage_collections_are_no_part_of_training() -> None:
    found = parts(
        rank(table([3000], [1000], gc=100), table([4000], [1000], gc=50), {"gc": (10, 20)})
    )
    assert found == {
        "startup": 1.99,
        "training": 0.9,
        "evaluation": 0.95,
        "gc": 0.18,
        "between": 5.88,
        "exit": 0.1,
    }


def test_starting_and_stopping_workers_is_no_evaluation_and_not_between() -> None:
    evaluates = rank(table([3000], [1000]), table([4000], [1000]), {"workers": (10, 20)})
    steps = dataclasses.replace(evaluates.steps, workers_in_evaluation_ns=50 * MS)
    found = parts(dataclasses.replace(evaluates, steps=steps))
    assert found == {
        "startup": 1.99,
        "training": 1.0,
        "evaluation": 0.95,
        "workers": 0.08,
        "between": 5.88,
        "exit": 0.1,
    }


def test_imports_of_a_script_whose_children_train_are_not_startup() -> None:
    wall = wall_of(MANIFEST, 10.0, [rank(table([3000], [1000]))], imported_s=0.5)
    assert wall is not None
    assert {
        name: round(part["total_s"], 6)
        for name, part in wall["parts"].items()
        if name in ("startup", "import")
    } == {
        "startup": 1.5,
        "import": 0.5,
    }


def test_imports_are_those_of_the_script_and_of_the_child_that_trains() -> None:
    manifest = {**MANIFEST, "host": "node", "pid": 1}
    child = dataclasses.replace(
        rank(table([3000], [1000]), aside_ms={"import": (600, 0)}),
        host="node",
        processes=(("node", 2),),
        alone=True,
    )
    for kept_s in (
        0.5,
        1.1,
    ):  # what the summary says by now does not count where the manifest knows it
        wall = wall_of(
            {**manifest, "moments": {**manifest["moments"], "imports_ns": 500 * MS}},
            10.0,
            [child],
            imported_s=kept_s,
        )
        assert wall is not None
        assert wall["parts"]["import"]["total_s"] == pytest.approx(1.1)


def test_a_run_without_steps_has_an_account() -> None:
    assert parts() == {"startup": 0.2, "script": 9.7, "exit": 0.1}


def test_a_killed_run_has_no_exit() -> None:
    manifest = {"host": "node", "moments": {"begun_ns": S, "script_ns": 1200 * MS}}
    assert parts(rank(table([3000], [1000])), manifest=manifest, duration_s=4.0) == {
        "startup": 2.0,
        "training": 1.0,
        "between": 1.0,
    }


def test_a_run_of_an_older_version_begins_where_its_record_does() -> None:
    manifest = {"host": "node", "clocks": {"perf_counter_ns": 1200 * MS, "time_ns": 5}}
    assert parts(rank(table([3000], [1000])), manifest=manifest, duration_s=4.0) == {
        "startup": 1.8,
        "training": 1.0,
        "between": 1.2,
    }


def test_without_any_clock_there_is_no_account() -> None:
    assert wall_of({}, 3.0, []) is None
    assert wall_of(MANIFEST, None, []) is None


def test_ranks_of_other_hosts_have_other_clocks() -> None:
    assert (
        parts(rank(table([900_000], [1000]), host="other"), rank(table([3000], [1000]), number=1))[
            "training"
        ]
        == 1.0
    )


def test_steps_that_outlast_the_script_leave_the_sum_as_it_is() -> None:
    found = parts(rank(table([3000], [20_000])), duration_s=10.0)
    assert found["training"] < 10.0
    assert "between" not in found


def test_startup_says_what_passed_before_the_scripts_first_line() -> None:
    wall = wall_of(MANIFEST, 10.0, [rank(table([3000], [1000]))])
    assert wall is not None
    assert wall["parts"]["startup"]["before_script_s"] == pytest.approx(0.2)


def test_the_line_has_the_largest_part_first_and_always_training() -> None:
    wall = account({"startup": 1.0, "evaluation": 8.98, "training": 0.01, "exit": 0.01}, 10.0)
    assert wall_line(wall) == "evaluation 90% (8.98 s) · startup 10% (1 s) · training 0% (10 ms)"


def test_this_process_began_in_the_past_and_has_not_used_more_than_its_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import time

    before = time.perf_counter_ns()
    used = time.process_time_ns()
    begun = process_begun_ns()
    assert begun <= time.perf_counter_ns() - used + 50 * MS
    monkeypatch.setattr("builtins.open", lambda *_, **__: (_ for _ in ()).throw(OSError()))
    assert process_begun_ns() == pytest.approx(before - used, abs=S)


def age_ns(monkeypatch: pytest.MonkeyPatch, faults_of_children: int, now_s: float) -> int:
    """How old a process is taken to be that began 1.23 s after boot, by the kernel's ticks, and has used 30 ms."""
    import io
    import os

    stat = f"1 (a) S {'0 ' * 7}{faults_of_children} {'0 ' * 10}123 0"
    monkeypatch.setattr("builtins.open", lambda *_, **__: io.StringIO(stat))
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    monkeypatch.setattr("time.CLOCK_BOOTTIME", 7, raising=False)
    monkeypatch.setattr("time.clock_gettime", lambda _: now_s)
    monkeypatch.setattr("time.process_time_ns", lambda: 30 * MS)
    monkeypatch.setattr("time.perf_counter_ns", lambda: 90 * S)
    return 90 * S - process_begun_ns()


def test_a_process_is_never_taken_to_be_older_than_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It began at 1.2399 s; 34 ms later it is no 44 ms old."""
    assert 30 * MS <= age_ns(monkeypatch, 0, 1.2399 + 0.034) <= 34 * MS


def test_what_a_shell_did_before_it_became_this_process_is_not_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``sh -c 'prepare; exec voirkit main.py'``: the process is as old as its shell, which has waited for others."""
    assert age_ns(monkeypatch, 0, 60.0) == pytest.approx(58.76 * S, abs=MS)
    assert age_ns(monkeypatch, 431, 60.0) == 30 * MS


# a job that was restarted


# Two attempts: three steps of 1 s from second 3 on, with a checkpoint at second 4.5 to 5; killed at second 7. The next begins at second 8,
# steps from second 10 to 12, and ends at second 13.
ATTEMPTS = (
    Attempt(1 * S, 7 * S, [(4500 * MS, 5 * S)], [(4500 * MS, 5 * S)]),
    Attempt(8 * S, 13 * S, [], [(9 * S, 9500 * MS)]),
)
STEPS = Steps(table([3000, 4000, 5000, 10_000, 11_000], [1000] * 5), NONE, wait_known=True)


def test_what_a_failed_attempt_did_since_its_last_checkpoint_is_lost() -> None:
    goodput = goodput_of(ATTEMPTS, STEPS)
    assert (goodput["attempts"], goodput["steps_lost"], goodput["total_s"]) == (2, 1, 12.0)
    assert goodput["parts"]["lost"]["total_s"] == 2.0
    assert [
        (row["steps"], row["steps_lost"], row["lost_s"], row["restart_s"])
        for row in goodput["by_attempt"]
    ] == [
        (3, 1, 2.0, 1.0),
        (2, 0, 0, 0),
    ]


def test_without_a_loader_a_step_that_begins_with_the_checkpoint_is_lost_too() -> None:
    span = (4010 * MS, 4100 * MS)
    attempt = ATTEMPTS[0]._replace(checkpoints_ns=[span], own_checkpoints_ns=[span])
    assert goodput_of([attempt, ATTEMPTS[1]], STEPS)["steps_lost"] == 2


def test_without_a_checkpoint_all_steps_of_a_failed_attempt_are_lost() -> None:
    attempt = ATTEMPTS[0]._replace(checkpoints_ns=[], own_checkpoints_ns=[])
    goodput = goodput_of([attempt, ATTEMPTS[1]], STEPS)
    assert (goodput["steps_lost"], goodput["parts"]["lost"]["total_s"]) == (3, 4.0)


def test_the_time_of_all_attempts_is_in_exclusive_parts() -> None:
    saves = table([3000, 4000, 5000, 10_000, 11_000], [1000] * 5)
    saves.own_ns[1, [CHECKPOINT, REST]] = 500 * MS
    parts = {
        name: part["total_s"]
        for name, part in goodput_of(ATTEMPTS, Steps(saves, NONE, wait_known=True))["parts"].items()
    }
    assert parts == {
        "training": 3.5,
        "checkpoint": 1.0,
        "start": 3.5,
        "lost": 2.0,
        "restart": 1.0,
        "other": 1.0,
    }
    assert sum(parts.values()) == 12.0


def test_an_attempt_that_never_came_to_a_step_was_starting() -> None:
    failed = Attempt(7 * S, 8 * S, [], [])
    parts = goodput_of([ATTEMPTS[0]._replace(end_ns=6 * S), failed, ATTEMPTS[1]], STEPS)["parts"]
    assert (parts["start"]["total_s"], parts["lost"]["total_s"], parts["restart"]["total_s"]) == (
        4.5,
        1.0,
        1.0,
    )


def test_a_hang_that_was_killed_is_no_lost_time() -> None:
    goodput = goodput_of(ATTEMPTS, STEPS, [(6 * S, 7 * S)])
    parts = {name: part["total_s"] for name, part in goodput["parts"].items()}
    assert (parts["hang"], parts["lost"], sum(parts.values())) == (1.0, 1.0, 12.0)
    assert [(row["hang_s"], row["lost_s"]) for row in goodput["by_attempt"]] == [(1.0, 1.0), (0, 0)]


def test_a_hang_may_be_longer_than_the_32_bits_hold_that_times_of_roll_ups_have() -> None:
    train = dataclasses.replace(STEPS.train, own_ns=STEPS.train.own_ns.astype(np.int32))
    narrow = goodput_of(ATTEMPTS, dataclasses.replace(STEPS, train=train), [(6 * S, 60 * S)])
    assert narrow == goodput_of(ATTEMPTS, STEPS, [(6 * S, 60 * S)])


def test_a_hang_that_passed_is_no_training_and_lasts_no_longer_than_what_took_longest_of_its_step() -> (
    None
):
    steps = table([3000, 4000, 5000, 10_000, 11_000], [1000] * 5)
    steps.own_ns[3, [COMMUNICATION, REST]] = 900 * MS, 100 * MS
    found = goodput_of(ATTEMPTS, Steps(steps, NONE, wait_known=True), [(10_050 * MS, 11_500 * MS)])[
        "parts"
    ]
    parts = {name: round(part["total_s"], 6) for name, part in found.items()}
    assert (parts["hang"], parts["training"], parts.get("communication", 0.0)) == (0.9, 3.1, 0.0)
    assert sum(parts.values()) == 12.0


def test_a_hang_before_the_first_step_is_no_start_and_hangs_that_overlap_count_once() -> None:
    parts = goodput_of(ATTEMPTS, STEPS, [(8500 * MS, 8900 * MS), (8700 * MS, 9 * S)])["parts"]
    assert (parts["hang"]["total_s"], parts["start"]["total_s"]) == (0.5, 3.0)


def test_the_wall_time_of_a_job_is_that_of_all_attempts() -> None:
    moments = {"begun_ns": 8 * S, "script_ns": 8200 * MS, "script_ended_ns": 12_900 * MS}
    wall = wall_of(
        {"host": "node", "moments": moments, "attempts": [{"pid": 1, "begun_ns": S}]},
        5.0,
        [rank(STEPS.train)],
    )
    assert wall is not None
    found = {name: round(part["total_s"], 6) for name, part in wall["parts"].items()}
    assert (wall["total_s"], found) == (
        12.0,
        {"startup": 2.0, "training": 5.0, "between": 2.9, "restart": 2.0, "exit": 0.1},
    )


def test_the_report_of_a_job_says_how_many_attempts_it_took() -> None:
    assert not list(ABOVE["goodput"]({"goodput": None}))
    (section,) = ABOVE["goodput"]({"goodput": goodput_of(ATTEMPTS, STEPS)})
    line = section.blocks[0].blocks[0].text
    assert line.startswith(
        "2 attempts in 12 s, 1 step lost since the last checkpoint: training 33% (4 s) · start 29% (3.5 s) · "
    )


def test_a_manifest_keeps_when_earlier_attempts_began(monkeypatch: pytest.MonkeyPatch) -> None:
    host = manifests.machine()[0]
    first = {"host": host, "pid": 3, "restart": 0, "moments": {"begun_ns": 5}}
    assert manifests.attempts(first) == []
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert manifests.attempts(None) == []
    assert manifests.attempts(first) == [{"pid": 3, "begun_ns": 5}]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    second = {
        **first,
        "pid": 4,
        "restart": 1,
        "moments": {"begun_ns": 9},
        "attempts": manifests.attempts(first),
    }
    assert manifests.attempts(second) == [{"pid": 3, "begun_ns": 5}, {"pid": 4, "begun_ns": 9}]
