"""What ranks exchange, and who holds the others up: collectives with planted delays."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from voirkit.analysis.document import Collectives, Rank
from voirkit.analysis.phases import Records, ranks
from voirkit.analysis.steps import BACKWARD, FORWARD, NO_STEPS, WAIT, Steps, Table
from voirkit_instruments.ranks import record
from voirkit_instruments.ranks.analyse import CALLED, document, late_rank, shares, whom
from voirkit_instruments.ranks.analyse_delays import new_delays_ns, released_among_ns, released_ns
from voirkit_instruments.ranks.analyse_matching import Group, aligned, matched
from voirkit_instruments.ranks.analyse_straggler import timeline
from voirkit_instruments.ranks.show import sections

MS = 1_000_000
STEP = 100 * MS


class Training:
    """Ranks that train in steps of 100 ms (or another unit): 10 ms of wait, 20 of forward, 40 of backward with a reduction after 10 and 39 of them.

    Each rank's own delay, in ms, comes by step in a phase; the others wait for it at the end of backward.
    """

    def __init__(
        self,
        delays: Sequence[Sequence[float]],
        phase: int = FORWARD,
        behind_ns: Sequence[int] | None = None,
        group: str = "0",
        unit_ns: int = MS,
        name: str = "all_reduce",
    ) -> None:
        n, self.ranks, self.timelines = len(delays[0]), [], {}
        lasts = [max(own[k] for own in delays) for k in range(n)]
        for rank, own in enumerate(delays):
            spans, starts, entries, at = [], [], [], 0 if behind_ns is None else -behind_ns[rank]
            for k in range(n):
                starts.append(at)
                late = {
                    one: int(own[k] * unit_ns) if one == phase else 0
                    for one in (WAIT, FORWARD, BACKWARD)
                }
                wait, forward = 10 * unit_ns + late[WAIT], 20 * unit_ns + late[FORWARD]
                begin = at + wait + forward
                first = begin + 10 * unit_ns + late[BACKWARD]
                second, end = first + 29 * unit_ns, at + 70 * unit_ns + int(lasts[k] * unit_ns)
                spans += [
                    (at, wait, WAIT),
                    (at + wait, forward, FORWARD),
                    (begin, end - begin, BACKWARD),
                ]
                entries += [(first, 2 * k), (second, 2 * k + 1)]
                at = end + 30 * unit_ns
            self.timelines[rank] = timeline(
                *(np.array(column) for column in zip(*spans, strict=True))
            )
            begun = np.array(starts)
            table = Table(
                begun, np.diff(np.append(begun, at)), np.full(n, 8), np.zeros((n, 14), np.int64)
            )
            passes = [(start, lasted) for start, lasted, meaning in spans if meaning == BACKWARD]
            self.ranks.append(
                Rank(
                    rank,
                    "here",
                    Steps(table, NO_STEPS.evaluation, True),
                    collectives=began(entries, passes, name, group),
                )
            )

    def groups(self) -> list[Group]:
        return matched({i: rank.collectives for i, rank in enumerate(self.ranks)})

    def document(
        self,
        starved: Mapping[int, float] | None = None,
        ran: Mapping[int, float] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        own = []
        for rank in self.ranks:
            shares = {
                name: (given or {}).get(rank.rank)
                for name, given in (("starved", starved), ("ran", ran))
            }
            own.append(replace(rank, collectives=replace(rank.collectives, **shares)))
        return document(
            own, self.groups(), lambda chosen: {i: self.timelines[i] for i in chosen}, **options
        )


def began(
    entries: Sequence[tuple[int, int]],
    passes: Sequence[tuple[int, int]] = ((0, 1),),
    name: str = "all_reduce",
    group: str = "0",
) -> Collectives:
    """What a process began: (when, number), in backward passes: (when, how long)."""
    records = [
        Records(
            *(np.array(column) for column in zip(*rows, strict=True)),
            [what],
            [{"group": group, "bytes": 64}],
            [(0, "here", 1)],
        )
        for rows, what in (
            (
                [(start, lasted, 0, 0, -1, 0, 1) for start, lasted in passes],
                ("compute", "backward"),
            ),
            ([(at, 0, 0, 0, number, 0, 1) for at, number in entries], ("gloo", name)),
        )
    ]
    (rank,) = ranks(records[0], exchanged=records[1])
    return rank.collectives


@pytest.mark.parametrize(
    ("phase", "name"), [(WAIT, "wait"), (FORWARD, "forward"), (BACKWARD, "backward")]
)
@pytest.mark.parametrize("slow", [0, 2])
def test_the_rank_the_phase_and_the_size_of_a_delay_are_found(phase, name, slow):
    delays = [[0.0] * 20 for _ in range(3)]
    delays[slow] = [50.0] * 20
    late = Training(delays, phase).document()["late"]
    assert (late["rank"], late["phase"], late["collective"]) == (slow, name, "all_reduce")
    assert late["time_s"] == pytest.approx(0.05, rel=0.01)
    assert late["share"] == pytest.approx(50 / 150, rel=0.01)


def test_a_delay_that_two_reductions_of_a_pass_are_late_by_counts_once():
    part = Training([[0.0] * 10, [40.0] * 10]).document()
    assert part["waited"]["time_s"] == pytest.approx(0.04, rel=0.01)


def test_ranks_that_take_turns_have_no_late_rank_and_are_told_to_wait():
    part = Training([[50.0 * (k % 2 == rank) for k in range(40)] for rank in range(2)]).document()
    assert part["late"] is None
    assert part["waited"]["share"] > 0.3
    assert "not the same" in next(late_rank(part, ())).what
    assert [row["last"] for row in part["ranks"]] == pytest.approx([0.5, 0.5], abs=0.05)


def test_where_gradients_are_accumulated_waiting_is_a_share_of_an_average_step():
    training = Training([[0.0] * 80, [160.0 * (k % 4 == 3) for k in range(80)]])
    own = (
        training.ranks[1].steps
    )  # its steps are alike: it is late by a quarter in each, and who waits does so in every fourth
    even = replace(own.train, time_ns=np.full(80, 140 * MS))
    training.ranks[1] = replace(training.ranks[1], steps=replace(own, train=even))
    part = training.document()
    assert (part["late"]["time_s"], part["late"]["share"]) == (
        pytest.approx(0.04, rel=0.15),
        pytest.approx(40 / 140, rel=0.15),
    )
    assert part["waited"]["time_s"] == pytest.approx(0.04, rel=0.1)


def test_of_a_rank_that_is_not_named_it_is_told_that_most_waiting_is_for_it():
    part = Training([[0.0] * 3, [100.0] * 3]).document()
    assert part["late"] is None
    assert "mostly rank 1" in next(late_rank(part, ())).what


def mesh(late_ms: int, late: Sequence[int]) -> list[Group]:
    """Four ranks in ten steps of 100 ms: each pair of rows meets after 10 ms, or as much later, each pair of columns 10 ms after that."""
    steps = np.arange(10) * 100 * MS
    own = [10 * MS + (late_ms * MS if rank in late else 0) for rank in range(4)]
    rows = [
        Group(f"row {i}", pair, tuple(steps + own[r] for r in pair), *_alike(10))
        for i, pair in enumerate([(0, 1), (2, 3)])
    ]
    met = [max(own[:2])] * 2 + [max(own[2:])] * 2
    return rows + [
        Group(f"col {i}", pair, tuple(steps + met[r] + 10 * MS for r in pair), *_alike(10))
        for i, pair in enumerate([(0, 2), (1, 3)])
    ]


def _alike(n: int) -> tuple[Any, ...]:
    return np.full(n, "all_reduce"), np.full(n, 64), np.ones(n, bool)


@pytest.mark.parametrize(("late", "counted"), [((2,), [50, 0, 0]), ((2, 3), [0, 50, 50])])
def test_a_delay_that_goes_on_into_other_groups_counts_once_and_that_of_a_whole_group_where_it_meets_another(
    late, counted
):
    groups = mesh(50, late)
    _, row, *columns = (
        new_delays_ns(group.begun_in_ns(slice(None)), free)[1][1:]
        for group, free in zip(
            groups, released_among_ns(groups, np.zeros(4, np.int64)), strict=True
        )
    )
    assert [float(by.mean()) / MS for by in (row, *columns)] == pytest.approx(counted)


def test_reductions_of_a_pass_that_each_is_waited_for_make_nobody_late_anew():
    begun = np.array([[0, 102], [70, 101]])  # rank 0 waited for the first, as FSDP may
    assert new_delays_ns(begun, released_ns(begun, np.zeros(2, bool)))[1].tolist() == [0, 1]


def test_one_outlier_in_fifty_steps_makes_nobody_late():
    delays = [[0.0] * 50, [0.0] * 50]
    delays[1][20] = 500.0
    assert Training(delays).document()["late"] is None


def test_who_causes_less_than_most_of_the_waiting_is_not_named():
    def late(of_ten):
        delays = [
            [100.0 * (k % 10 >= of_ten) for k in range(160)],
            [100.0 * (k % 10 < of_ten) for k in range(160)],
        ]
        return Training(delays).document()["late"]

    assert late(9)["rank"] == 1
    assert late(7) is None


def test_who_is_late_in_a_few_steps_more_than_chance_would_have_it_is_not_named():
    def late(of_sixteen):
        return Training(
            [
                [40.0 * (k >= of_sixteen) for k in range(16)],
                [40.0 * (k < of_sixteen) for k in range(16)],
            ]
        ).document()["late"]

    assert late(14)["rank"] == 1
    assert late(12) is None


def test_what_one_rank_alone_does_every_tenth_step_makes_it_late_by_the_mean_of_that():
    late = Training([[300.0 * (k % 10 == 5) for k in range(120)], [0.0] * 120]).document()["late"]
    assert (late["rank"], late["time_s"]) == (0, pytest.approx(0.03, rel=0.1))
    assert late["share"] == pytest.approx(30 / 130, rel=0.1)


def test_a_delay_is_never_longer_than_the_steps_that_it_lies_in():
    late = Training([[900.0 if k % 3 else 0.0 for k in range(60)], [0.0] * 60]).document()["late"]
    assert late["time_s"] == pytest.approx(0.6, rel=0.1)
    assert late["share"] < 1


def test_of_a_rank_that_was_killed_the_steps_count_in_which_it_is_known_what_it_began():
    training = Training([[0.0] * 40, [50.0] * 40])
    until = int(training.ranks[1].steps.train.start_ns[20])
    known = training.ranks[1].collectives
    kept = {
        name: getattr(known, name)[known.begun_ns < until]
        for name in ("kind", "number", "backward", "begun_ns")
    }
    training.ranks[1] = replace(
        training.ranks[1], collectives=replace(known, until_ns=until, **kept)
    )
    part = training.document()
    assert part["late"]["steps"] > 0.9
    assert part["waited"]["time_s"] == pytest.approx(0.05)


def test_delays_of_a_time_slice_are_named_only_where_the_ranks_have_the_processors():
    def late(delay_ms: float, starved: float, name: str = "all_reduce") -> Any:
        training = Training(
            [[0.0] * 20, [10 * delay_ms] * 20], unit_ns=MS // 10, name=name
        )  # steps of 10 ms and that
        return training.document(dict.fromkeys((0, 1), starved))["late"]

    assert late(2.0, 0.0)["rank"] == 1
    assert late(2.0, 0.1) is None
    assert late(5.0, 0.1)["rank"] == 1
    assert late(0.9, 0.0) is None
    assert late(5.0, 0.1, "all_gather") is None  # two of these are waited for in a step
    assert late(6.0, 0.1, "all_gather")["rank"] == 1


def test_equal_ranks_wait_for_nobody():
    part = Training([[0.0] * 20] * 4).document()
    assert part["late"] is None
    assert part["waited"]["time_s"] == 0.0


def test_a_rank_that_had_no_processor_is_late_for_that():
    late = Training([[0.0] * 20, [50.0] * 20]).document({0: 0.01, 1: 0.4}, {0: 0.5, 1: 0.5})["late"]
    assert late["phase"] == "processor"


def test_a_rank_that_computes_more_waits_more_for_a_processor_that_is_shared_and_is_late_for_what_it_computes():
    late = Training([[0.0] * 20, [50.0] * 20]).document({0: 0.1, 1: 0.4}, {0: 0.15, 1: 0.6})["late"]
    assert late["phase"] == "forward"


def test_where_nobody_waited_each_went_on_by_itself():
    begun = np.array([[0, 10, 20], [50, 60, 70]])  # rank 0 began the second before rank 1 the first
    late, by = new_delays_ns(begun, released_ns(begun, np.ones(3, bool)))
    assert late.tolist() == [1, 1, 1]
    assert by.tolist() == [0, 0, 0]


def test_who_waited_for_the_last_went_on_with_it():
    begun = np.array([[0, 60], [50, 100]])
    assert released_ns(begun, np.ones(2, bool))[:, 1].tolist() == [50, 50]
    assert new_delays_ns(begun, released_ns(begun, np.ones(2, bool)))[1].tolist() == [0, 40]


def test_collectives_that_not_all_members_began_are_left_out():
    (group,) = matched({0: began([(5, 1), (9, 2)]), 1: began([(6, 1)])})
    assert [times.tolist() for times in group.begun_ns] == [[5], [6]]


def test_what_backward_waits_for_at_its_end_is_what_comes_after_its_last_reduction():
    passes = [(100, 80)]
    assert began([(20, 0), (110, 1), (150, 2)], passes).backward_ns == (30, 80)
    assert began([(20, 0)], passes).backward_ns == (0, 80)
    assert began([(150, 0)], passes, "all_gather").backward_ns == (0, 80)


def test_where_nothing_is_reduced_in_backward_the_calls_are_waited_for():
    rows = [(0, 100, 0, 0, -1, 0, 1), (200, 50, 1, 0, -1, 0, 1)], [(210, 0, 0, 0, 0, 0, 1)]
    names = [("compute", "backward"), ("comm", "all_reduce")], [("gloo", "all_reduce")]
    phases, begun = (
        Records(
            *(np.array(column) for column in zip(*own, strict=True)),
            what,
            [{"group": "0", "bytes": 64}],
            [(0, "here", 1)],
        )
        for own, what in zip(rows, names, strict=True)
    )
    (rank,) = ranks(phases, exchanged=begun)
    assert (rank.collectives.exposed_ns, rank.collectives.backward_ns) == ((50,), (0, 100))


def test_a_pass_that_an_exception_ends_after_the_last_step_is_no_waiting_of_steps():
    names = [
        ("dataloader", "fetch"),
        ("compute", "forward"),
        ("compute", "backward"),
        ("compute", "step"),
    ]
    spans = [(at + 10 * i, 10, i) for at in range(0, 500, 50) for i in range(4)] + [
        (500, 10, 0),
        (510, 10, 1),
        (520, 9000, 2),
    ]
    phases = [(start, lasted, name, 0, -1, 0, 1) for start, lasted, name in spans]
    begun = [(at + 24, 0, 0, 0, at, 0, 1) for at in range(0, 550, 50)]
    records = [
        Records(
            *(np.array(column) for column in zip(*rows, strict=True)),
            what,
            [{"group": "0", "bytes": 64}],
            [(0, "here", 1)],
        )
        for rows, what in ((phases, names), (begun, [("gloo", "all_reduce")]))
    ]
    (rank,) = ranks(records[0], exchanged=records[1])
    assert (len(rank.steps.train), rank.collectives.backward_ns) == (10, (60, 100))


def test_the_wait_of_backward_is_that_of_an_average_rank():
    found = Training([[0.0] * 20, [50.0] * 20]).document()["in_backward"]
    assert found["time_s"] == pytest.approx(0.026)  # rank 0 waits 51 ms, rank 1 one


def test_the_report_says_how_long_the_ranks_wait_and_has_a_row_for_each():
    part = Training([[0.0] * 20, [50.0] * 20]).document()
    (section,) = sections(part, {"steps": {"n": 20}})
    text = str(section.blocks)
    assert "50 ms of a step (33%)" in text
    assert "'0', 'here', '0%'" in text


def two_hosts(delays, behind_ns, wall_error_ns):
    """Rank 1 is on another host, whose clock is behind, and whose wall clock is wrong."""
    return aligned(
        Training(delays, behind_ns=[0, behind_ns]).groups(),
        ["one", "other"],
        [0, behind_ns + wall_error_ns],
    )


def test_clocks_of_hosts_are_held_against_each_other_by_what_must_be_true():
    (_, shift), error = two_hosts([[0.0] * 20] * 2, 10**15, 500 * MS)  # half a second wrong
    assert abs(shift - 10**15) <= error <= 150 * MS


def test_a_wall_clock_that_can_be_right_is_believed():
    (_, shift), error = two_hosts([[0.0] * 20] * 2, 10**15, MS)
    assert shift == 10**15 + MS
    assert error > 0


def test_a_delay_within_the_error_of_the_clocks_blames_nobody():
    training = Training([[0.0] * 20, [50.0] * 20])
    for error_ns, is_named in ((0, True), (60 * MS, False), (None, False)):
        part = training.document(error_ns=error_ns)
        assert (part["late"] is not None) == is_named
        assert ("clocks" in whom(part)) != is_named


def test_collectives_of_groups_side_by_side_are_those_of_an_average_rank():
    training = Training([[0.0] * 20] * 4)
    ranks = [
        replace(rank, collectives=began([(5 + k, k) for k in range(20)], group=str(rank.rank // 2)))
        for rank in training.ranks
    ]
    groups = matched({rank.rank: rank.collectives for rank in ranks})
    (row,) = document(ranks, groups, dict)["kinds"]
    assert (row["n"], row["bytes"]) == (20, 20 * 64)


def test_where_only_calls_are_known_the_report_says_so_and_ranks_that_meet_there_are_not_held_to_be_even():
    part = Training([[0.0] * 20] * 2, group=f"0{CALLED}").document()
    (section,) = sections(part, {"steps": {"n": 20}})
    assert "not what DDP exchanges" in str(section.blocks)
    assert list(late_rank(part, ())) == []
    assert len(list(late_rank(Training([[0.0] * 20] * 2).document(), ()))) == 1


# --ranks=timing


@pytest.mark.parametrize(
    ("option", "version", "before", "after"),
    [
        (None, "2.15.0+cu132", {}, {}),
        (
            "timing",
            "2.15.0+cu132",
            {},
            {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_ENABLE_TIMING": "1"},
        ),
        (
            "timing",
            "2.7.1",
            {},
            {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_ENABLE_TIMING": "1"},
        ),
        (
            "timing",
            "2.7.1",
            {"TORCH_FR_BUFFER_SIZE": "9"},
            {"TORCH_FR_BUFFER_SIZE": "9", "TORCH_NCCL_ENABLE_TIMING": "1"},
        ),
        (
            "timing",
            "2.15.0",
            {"TORCH_NCCL_TRACE_BUFFER_SIZE": "9", "NCCL_ENABLE_TIMING": "0"},
            None,
        ),
    ],
)
def test_the_variables_for_times_of_nccl_are_set_with_the_option_alone_where_the_user_has_not(
    monkeypatch, option, version, before, after
):
    monkeypatch.setattr("os.environ", dict(before))
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    said = []
    record(SimpleNamespace(say=said.append), {"ranks": option})
    added = (before if after is None else after).items() - before.items()
    assert dict(os.environ) == (before if after is None else after)
    assert len(said) == (option is not None)
    assert all(f"{name}={value}" in said[0] for name, value in added)


def test_the_shares_of_time_over_a_run_come_to_what_was_spent():
    steps = Table(
        np.array([0, 100, 400]), np.array([100, 200, 100]), np.zeros(3), np.zeros((3, 14), np.int64)
    )  # 100 between the last two
    found = shares(steps, np.array([50, 200, 0]), 5)
    assert found.tolist() == [0.5, 1.0, 1.0, 0.0, 0.0]
    assert shares(steps, np.array([50, 200, 0]), 3).mean() * 500 == pytest.approx(250)


def test_what_is_waited_for_a_collective_is_the_call_around_it_or_the_end_of_the_pass_that_it_is_the_last_of():
    def records(
        rows: Sequence[tuple[int, int, int, int]],
        names: Sequence[tuple[str, str]],
        groups: Sequence[str],
    ) -> Records:
        """Of (when, how long, name, arguments)."""
        columns = [
            np.array(column) for column in zip(*((*row, -1, 0, 1) for row in rows), strict=True)
        ]
        return Records(
            *columns, names, [{"group": one, "bytes": 64} for one in groups], [(0, "here", 1)]
        )

    phases = records(
        [(0, 100, 0, 0), (60, 20, 1, 0), (200, 50, 1, 0)],
        [("compute", "backward"), ("comm", "all_gather")],
        ["0"],
    )
    begun = [(20, 0, 0, 0), (50, 0, 0, 0), (61, 0, 1, 1), (210, 0, 0, 1)]
    (rank,) = ranks(
        phases,
        exchanged=records(begun, [("gloo", "all_reduce"), ("gloo", "all_gather")], ["0", "1"]),
    )
    own = rank.collectives
    waited = {
        (group, name): ns for (group, name, _), ns in zip(own.kinds, own.exposed_ns, strict=True)
    }
    assert waited == {
        ("0", "all_reduce"): 30,
        ("1", "all_gather"): 20,
        ("1", "all_reduce"): 50,
    }  # of 50 after 50 a call takes 20
    assert own.backward_ns == (30, 80)
