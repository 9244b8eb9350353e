"""The account of a run's whole wall time: exclusive parts that sum to its duration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from voirkit.analysis.document import Rank
from voirkit.analysis.steps import CHECKPOINT, GC, REST, Steps, Table
from voirkit.analysis.summary import wall_of
from voirkit.commands.run import process_begun_ns
from voirkit.report.overview import wall_line
from voirkit.runs.summary import account

MS = 1_000_000
S = 1000 * MS
# python began at 1 s of the clock, the script's first line ran at 1.2 s, its last at 10.9 s.
MANIFEST: dict[str, Any] = {"host": "node", "moments": {"begun_ns": S, "script_ns": 1200 * MS, "script_ended_ns": 10_900 * MS}}


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


def rank(train: Table, evaluation: Table = NONE, aside_ms: Any = None, number: int = 0, host: str = "node") -> Rank:
    aside = {name: (before * MS, since * MS) for name, (before, since) in (aside_ms or {}).items()}
    return Rank(number, host, Steps(train, evaluation, wait_known=True, aside_ns=aside))


def test_startup_lasts_to_the_first_step_and_between_is_what_is_in_no_part() -> None:
    found = parts(rank(table([3000, 4000, 5000], [1000, 1000, 1000])))
    assert found == {"startup": 2.0, "training": 3.0, "between": 4.9, "exit": 0.1}


def test_evaluation_is_a_part_of_its_own_also_where_it_comes_first() -> None:
    found = parts(rank(table([3000], [1000]), table([2000, 5000], [500, 1500])))
    assert found == {"startup": 1.0, "training": 1.0, "evaluation": 2.0, "between": 5.9, "exit": 0.1}


def test_checkpoints_count_inside_of_steps_and_between_them_but_once() -> None:
    found = parts(rank(table([3000, 4000], [1000, 1000], checkpoint=200), aside_ms={"checkpoint": (300, 600)}))
    assert found == {"startup": 1.7, "training": 1.6, "checkpoint": 1.3, "between": 5.3, "exit": 0.1}


def test_garbage_collections_are_no_part_of_training() -> None:
    found = parts(rank(table([3000], [1000], gc=100), table([4000], [1000], gc=50), {"gc": (10, 20)}))
    assert found == {"startup": 1.99, "training": 0.9, "evaluation": 0.95, "gc": 0.18, "between": 5.88, "exit": 0.1}


def test_imports_of_a_script_whose_children_train_are_not_startup() -> None:
    wall = wall_of(MANIFEST, 10.0, [rank(table([3000], [1000]))], imported_s=0.5)
    assert wall is not None
    assert {name: round(part["total_s"], 6) for name, part in wall["parts"].items() if name in ("startup", "import")} == {
        "startup": 1.5,
        "import": 0.5,
    }


def test_a_run_without_steps_has_an_account() -> None:
    assert parts() == {"startup": 0.2, "script": 9.7, "exit": 0.1}


def test_a_killed_run_has_no_exit() -> None:
    manifest = {"host": "node", "moments": {"begun_ns": S, "script_ns": 1200 * MS}}
    assert parts(rank(table([3000], [1000])), manifest=manifest, duration_s=4.0) == {"startup": 2.0, "training": 1.0, "between": 1.0}


def test_a_run_of_an_older_version_begins_where_its_record_does() -> None:
    manifest = {"host": "node", "clocks": {"perf_counter_ns": 1200 * MS, "time_ns": 5}}
    assert parts(rank(table([3000], [1000])), manifest=manifest, duration_s=4.0) == {"startup": 1.8, "training": 1.0, "between": 1.2}


def test_without_any_clock_there_is_no_account() -> None:
    assert wall_of({}, 3.0, []) is None
    assert wall_of(MANIFEST, None, []) is None


def test_ranks_of_other_hosts_have_other_clocks() -> None:
    assert parts(rank(table([900_000], [1000]), host="other"), rank(table([3000], [1000]), number=1))["training"] == 1.0


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


def test_this_process_began_in_the_past_and_has_not_used_more_than_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    before = time.perf_counter_ns()
    used = time.process_time_ns()
    begun = process_begun_ns()
    assert begun <= time.perf_counter_ns() - used + 50 * MS
    monkeypatch.setattr("builtins.open", lambda *_, **__: (_ for _ in ()).throw(OSError()))
    assert process_begun_ns() == pytest.approx(before - used, abs=S)
