"""A rank's processes as one, and processes that train each for itself on one clock."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from voirkit.analysis.document import Rank, figures
from voirkit.analysis.rank_processes import joined, on_the_clock
from voirkit.analysis.steps import GC, NO_STEPS, Steps, Table
from voirkit.analysis.summary import not_recorded
from voirkit.phase_table import PARTS, PHASES


def process(pid: int, starts: list[int], time: int = 10, rank: int = 0, alone: bool = True) -> Rank:
    """A process that trains steps of four items; all of their time is waiting."""
    n = len(starts)
    own = np.zeros((n, len(PHASES) - 1 + len(PARTS)), np.int64)
    own[:, 0] = time
    table = Table(np.array(starts), np.full(n, time), np.full(n, 4), own)
    return Rank(rank, "here", Steps(table, NO_STEPS.evaluation, True), {}, (("here", pid),), alone)


def test_a_rank_that_was_started_again_has_the_steps_of_all_its_processes() -> None:
    (one,) = joined(
        [process(8, [100, 110], rank=1, alone=False), process(7, [0, 10, 20], rank=1, alone=False)]
    )
    assert one.steps.train.start_ns.tolist() == [0, 10, 20, 100, 110]
    assert one.processes == (("here", 7), ("here", 8))


def test_a_process_that_trains_without_others_is_no_process_beside_others() -> None:
    (one,) = joined([process(7, [0]), Rank(0, "here", NO_STEPS, {}, (("here", 8),), True)])
    assert not one.alone
    assert figures([one])["processes"] == []


def test_steps_of_processes_without_a_group_add_up_and_those_of_ranks_do_not() -> None:
    ranks = [process(5, [0, 10], rank=0, alone=False), process(6, [0, 10], rank=1, alone=False)]
    found = figures(joined([*ranks, process(7, [30, 40, 50]), process(8, [60])]))
    assert (found["steps"]["n"], found["steps"]["items"]) == (2 + 3 + 1, 4 * (2 + 2 + 3 + 1))
    assert [row["rank"] for row in found["ranks"]] == [0, 1]
    assert [(row["rank"], row["pid"], row["steps"], row["items"]) for row in found["processes"]] == [
        (0, 5, 2, 8), (1, 6, 2, 8), (None, 7, 3, 12), (None, 8, 1, 4),
    ]  # fmt: skip


def test_each_rank_has_the_garbage_collections_of_its_own_steps() -> None:
    ranks = [process(5, [0, 10], rank=0, alone=False), process(6, [0, 10], rank=1, alone=False)]
    ranks[1].steps.train.own_ns[0, [0, GC]] = 6, 4
    others = [row["phases"]["other"] for row in figures(ranks)["ranks"]]
    assert [other["parts"] for other in others] == [{}, {"gc": {"share": 4 / 20, "total_s": 4e-9}}]


@pytest.mark.parametrize(
    ("second", "passed"), [([0, 10], 20), ([20, 30], 40), ([5, 15], 25), ([100, 110], 40)]
)
def test_throughput_is_what_all_do_while_any_of_them_trains(second: list[int], passed: int) -> None:
    found = figures(joined([process(7, [0, 10]), process(8, second)]))
    assert found["rates"]["train_rate"]["value"] == pytest.approx(16 / (passed * 1e-9))
    assert found["steps"]["total_s"] == pytest.approx(passed * 1e-9)
    assert found["steps"]["time_s"]["median"] == pytest.approx(10e-9)
    assert (
        on_the_clock([process(7, [0, 10]), process(8, second)]).steps.train.time_ns.sum() == passed
    )


def test_an_import_of_a_later_process_is_one_as_far_as_nobody_trains_meanwhile() -> None:
    first, beside, later = (
        importing(process(pid, [at]), 50) for pid, at in ((7, 100), (8, 105), (9, 140))
    )
    assert on_the_clock([first, beside, later]).steps.aside_ns["import"] == (50, 140 - 115)


def importing(rank: Rank, before_ns: int) -> Rank:
    return replace(rank, steps=replace(rank.steps, aside_ns={"import": (before_ns, 0)}))


def test_what_is_not_recorded_is_said_in_a_line_each() -> None:
    run = {"host": "here", "pid": 1, "voirkit_options": ["--checks", "--parameters=5", "--loader"]}
    ranks = [process(7, [0], rank=1, alone=False)]
    few, flags = not_recorded(run, ranks, 4, [])
    assert few.startswith("4 ranks train, of which 1 is recorded here.")
    assert flags.startswith(
        "--checks, --parameters: not in the processes that the script started (1 that train); their steps are recorded."
    )
    assert list(not_recorded(run, ranks, 1, [("here", 7)])) == []
    assert list(not_recorded({**run, "world_size": 4}, ranks, 4, [])) == []
    assert list(not_recorded({**run, "pid": 7}, ranks, 1, [])) == []
