"""Calls, their seconds and the phases beside them in bins of time."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voirkit_instruments.syscalls.analyse import figures
from voirkit_instruments.syscalls.analyse_attribution import Attribution, TraceContext
from voirkit_instruments.syscalls.analyse_calls import (
    MOST_BINS,
    MOST_NAMES,
    OverTime,
    merge_over_time,
)
from voirkit_instruments.syscalls.analyse_strace import StraceLog

NAN = float("nan")


def made(
    *calls: tuple[str, float, float],
    origin: float | None = None,
    phases: tuple[tuple[str, float, float], ...] = (),
) -> dict[str, Any]:
    bins = OverTime(origin)
    for name, began, seconds in calls:
        bins.add(name, began, seconds)
    for phase, began, ended in phases:
        bins.add_phase(phase, began, ended)
    found = bins.document(timed=True)
    assert found is not None
    return found


def spans(found: dict[str, Any], key: str, name: str) -> dict[float, float]:
    """By the time that a bin begins what is in it."""
    return {
        found["begin_s"] + i * found["bin_s"]: value
        for i, value in enumerate(found[key][name])
        if value
    }


def test_a_call_counts_in_the_bin_in_which_it_began_and_its_seconds_where_they_passed() -> None:
    found = made(("futex", 100.0, 3.0), ("read", 104.0, 0.25), ("read", 200.0, 0.0))
    assert found["bin_s"] == 0.5
    assert spans(found, "calls", "futex") == {0.0: 1}
    assert spans(found, "seconds", "futex") == {
        0.0: 0.5,
        0.5: 0.5,
        1.0: 0.5,
        1.5: 0.5,
        2.0: 0.5,
        2.5: 0.5,
    }
    assert spans(found, "seconds", "read") == {4.0: 0.25}
    assert spans(found, "calls", "read") == {4.0: 1, 100.0: 1}


def test_time_is_counted_from_the_beginning_of_the_run() -> None:
    found = made(("read", 107.0, 0.0), ("read", 119.0, 0.0), origin=100.0)
    assert found["begin_s"] == 7.0
    assert spans(found, "calls", "read") == {7.0: 1, 19.0: 1}


def test_phases_have_their_share_of_each_bin() -> None:
    found = made(
        ("read", 0.0, 0.0),
        ("read", 119.0, 0.0),
        phases=(("forward", 0.0, 0.25), ("backward", 0.25, 1.0), ("forward", 1.0, 1.5)),
    )
    assert found["bin_s"] == 0.5
    assert found["phases"]["forward"][:4] == [0.5, 0.0, 1.0, 0.0]
    assert found["phases"]["backward"][:4] == [0.5, 1.0, 0.0, 0.0]


def test_the_rarest_and_shortest_are_put_together() -> None:
    found = made(
        *((f"call{i}", 1.0 + k * 0.001, 0.001 * (40 - i)) for i in range(40) for k in range(i + 1))
    )
    assert len(found["calls"]) == MOST_NAMES + 1
    assert list(found["calls"]) == list(found["seconds"])
    assert sum(sum(row) for row in found["calls"].values()) == 820
    assert {"call39", "call0"} <= set(found["calls"]) or "call20" in found["calls"]


def test_without_durations_there_are_counts_and_no_seconds() -> None:
    bins = OverTime()
    bins.add("read", 1.0, NAN)
    found = bins.document(timed=False)
    assert found is not None
    assert found["calls"] == {"read": [1]}
    assert found["seconds"] is None


def test_without_times_there_is_nothing() -> None:
    assert OverTime().document(timed=False) is None
    assert merge_over_time([None, None]) is None


# Times whose sums and differences are exact: what stands at the edge of a bin is on one side of it in any order of adding.
TIMES = st.integers(0, 100_000 << 10).map(lambda n: n / 1024)
CALLS = st.lists(
    st.tuples(st.sampled_from(["read", "write", "futex"]), TIMES, st.floats(0, 500)),
    min_size=1,
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(CALLS)
def test_nothing_is_lost_however_long_the_log_is_and_in_whichever_order(
    calls: list[tuple[str, float, float]],
) -> None:
    found = made(*calls)
    for name in {call[0] for call in calls}:
        mine = [call for call in calls if call[0] == name]
        assert len(found["calls"][name]) <= MOST_BINS
        assert sum(found["calls"][name]) == len(mine)
        assert sum(found["seconds"][name]) == pytest.approx(sum(call[2] for call in mine), abs=1e-6)
    assert math.log2(found["bin_s"]).is_integer()
    origin = calls[0][1]
    for name, began, _ in calls:
        at = math.floor((began - origin - found["begin_s"]) / found["bin_s"])
        assert found["calls"][name][min(max(at, 0), len(found["calls"][name]) - 1)] > 0


@settings(max_examples=50, deadline=None)
@given(CALLS, CALLS)
def test_ranks_together_are_as_one_log_of_both(
    first: list[tuple[str, float, float]], second: list[tuple[str, float, float]]
) -> None:
    both = merge_over_time([made(*first, origin=0.0), made(*second, origin=0.0)])
    one = made(*first, *second, origin=0.0)
    assert both is not None
    assert both["bin_s"] >= one["bin_s"] / 2
    for name in one["calls"]:
        assert sum(both["calls"][name]) == sum(one["calls"][name])
        assert sum(both["seconds"][name]) == pytest.approx(sum(one["seconds"][name]), abs=1e-6)
    if both["bin_s"] == one["bin_s"] and both["begin_s"] == one["begin_s"]:
        assert both["calls"] == one["calls"]


def test_ranks_have_the_mean_of_their_phases() -> None:
    one = made(
        ("read", 0.0, 0.0), ("read", 119.0, 0.0), origin=0.0, phases=(("forward", 0.0, 0.5),)
    )
    two = made(
        ("read", 0.0, 0.0), ("read", 200.0, 0.0), origin=0.0, phases=(("forward", 0.0, 1.0),)
    )
    both = merge_over_time([one, two])
    assert both is not None
    assert both["bin_s"] == 1.0
    assert both["phases"]["forward"][0] == pytest.approx(0.75)


def test_a_log_tells_the_phases_of_the_process_that_trains() -> None:
    log = StraceLog()
    lines = ['7 1.0 access("/vk!wait+", F_OK) = -1 ENOENT (No) <0.000001>', '7 2.0 access("/vk!fetch+", F_OK) = -1 ENOENT (No) <0.000001>',
             "7 2.5 getpid() = 7 <0.1>", '7 3.0 access("/vk!fetch-", F_OK) = -1 ENOENT (No) <0.000001>',
             '7 4.0 access("/vk!wait-", F_OK) = -1 ENOENT (No) <0.000001>', "7 5.0 getpid() = 7 <0.25>", "8 5.5 getpid() = 7 <0.5>"]  # fmt: skip
    found = figures(
        Attribution(TraceContext(pid=7)).add(log.events([f"{line}\n" for line in lines])), log.timed
    )["over_time"]
    lasted = {phase: sum(bins) * found["bin_s"] for phase, bins in found["phases"].items()}
    assert lasted == {
        "wait": pytest.approx(2),
        "fetch": pytest.approx(1),
        "other": pytest.approx(2),
    }
    assert sum(found["calls"]["getpid"]) == 3


def test_a_log_that_tells_the_time_of_day_goes_on_after_midnight() -> None:
    log = StraceLog()
    lines = ["7 23:59:59.500000 getpid() = 7 <1.0>", "7 00:00:01.000000 getppid() = 7 <0.1>"]
    found = figures(Attribution().add(log.events([f"{line}\n" for line in lines])), log.timed)[
        "over_time"
    ]
    assert sum(spans(found, "calls", "getppid")) == pytest.approx(1.5, abs=found["bin_s"])
