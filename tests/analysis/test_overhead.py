"""What voirkit cost a run: what was measured, and what follows from how many records each process made."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Place

from voirkit.analysis import overhead
from voirkit.analysis.overhead import CALLS, overhead_of
from voirkit.runs.opened import open_run
from voirkit.runs.trace_files import Tally

MS = 1_000_000


@pytest.fixture(autouse=True)
def _a_patched_call_costs_a_microsecond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "_call_s", lambda: 1e-6)


class Run:
    """Has rows of (rank, pid, kind, records, cold edges, nanoseconds of looks); process 1 leads."""

    def __init__(self, *rows: tuple[int, int, str, int, int, int]) -> None:
        self.rows, self.manifest = rows, {"rank": 0, "pid": 1}

    def tallies(self) -> Any:
        return [
            (rank, "host", pid, kind, Tally(n, cold, looks_ns, 0, 0))
            for rank, pid, kind, n, cold, looks_ns in self.rows
        ]


def overhead_for(
    *rows: tuple[int, int, str, int, int, int], own: Any = None, **found: Any
) -> dict[str, Any]:
    result = overhead_of([Run(*rows)], {"duration_s": 10.0, "overhead": own, **found})  # type: ignore[list-item]  # all that is used of it
    assert result is not None
    return result


def own(**seconds: float) -> dict[str, Any]:
    return {
        "events": 1,
        "seconds": 0.0,
        "share": 0.0,
        "parts": {name: {"seconds": spent} for name, spent in seconds.items()},
    }


def test_patches_are_what_records_cost_beyond_what_was_measured() -> None:
    result = overhead_for((0, 1, "phase", 1000, 0, 0), own=own(recording=0.001, start=0.1))
    expected = CALLS["phase"] * 1000 * 1e-6
    assert result["parts"]["patches"] == {
        "seconds": pytest.approx(expected - 0.001),
        "estimated": True,
    }
    assert result["parts"]["recording"] == {"seconds": 0.001}
    assert result["seconds"] == pytest.approx(expected), "what is paid once is in no share"
    assert result["share"] == pytest.approx(result["seconds"] / 10)
    assert result["events"] == 1


def test_what_was_measured_is_never_made_less() -> None:
    result = overhead_for((0, 1, "phase", 10, 0, 0), own=own(recording=0.5))
    assert result["parts"]["patches"]["seconds"] == 0
    assert result["seconds"] == 0.5


def test_workers_count_with_their_records_and_looks() -> None:
    result = overhead_for(
        (0, 1, "phase", 10, 0, 0),
        (0, 2, "loader", 1000, 0, 0),
        (0, 3, "phase", 0, 0, 5 * MS),
        own=own(recording=1.0),
    )
    assert result["events"] == 1001
    assert result["parts"]["workers"]["seconds"] == pytest.approx(
        CALLS["loader"] * 1000 * 1e-6 * overhead._WORKERS_SLOWER + 0.005
    )
    assert result["parts"]["workers"]["estimated"]


def test_a_run_that_could_not_tell_has_its_overhead_from_its_records() -> None:
    result = overhead_for((0, 1, "phase", 1000, 0, 3 * MS))
    assert result["events"] == 1000
    assert result["parts"]["patches"]["seconds"] == pytest.approx(CALLS["phase"] * 1000 * 1e-6)
    assert result["parts"]["instruments"] == {"seconds": 0.003, "estimated": True}


def test_estimates_wait_for_processors_as_the_program_does() -> None:
    busy = {"own_s": 2.0, "waited_s": 4.0}
    quiet, stretched = (
        overhead_for((0, 1, "phase", 1000, 0, 0)),
        overhead_for((0, 1, "phase", 1000, 0, 0), processors=busy),
    )
    assert stretched["seconds"] == pytest.approx(3 * quiet["seconds"])


def test_several_ranks_share_what_they_cost() -> None:
    result = overhead_for((0, 1, "phase", 1000, 0, 0), (1, 2, "phase", 1000, 0, 0))
    assert result["share"] == pytest.approx(result["seconds"] / 20)


def test_what_was_completed_before_stays_as_it_is() -> None:
    before = overhead_for((0, 1, "phase", 1000, 0, 0), own=own(recording=0.004))
    assert overhead_for((0, 1, "phase", 9, 0, 0), own=before) == before


def test_a_run_that_ends_at_once_has_its_overhead_where_it_is_read(place: Place) -> None:
    place.write(
        main="""
        import os
        from voirkit import ai
        for _ in range(50):
            with ai.compute.forward:
                pass
        os._exit(0)
    """
    )
    place.voirkit("--quiet", "main.py")
    told = json.loads(
        place.python("-m", "voirkit", "report", "--json", str(place.folder / "run")).out
    )
    assert told["overhead"]["events"] == 50
    assert 0 < told["overhead"]["seconds"] < 0.1


def test_what_cannot_be_measured_is_said() -> None:
    result = overhead_for(
        (0, 1, "phase", 10, 0, 0), own=own(recording=0.5, sampling=0.1, tracemalloc=0.0)
    )
    assert result["parts"]["tracemalloc"] == {"seconds": 0.0, "unmeasured": True}
    assert result["parts"]["sampling"]["estimated"]


@pytest.mark.parametrize(
    ("category", "cold"),
    [("compute", range(1990, 2001)), ("device", range(1))],
    ids=["others", "copies"],
)
def test_a_record_around_the_programs_work_costs_more_than_one_right_after_another(
    place: Place, category: str, cold: range
) -> None:
    """But for copies of tensors, which measure nearly all that they cost themselves."""
    place.write(
        main=f"""
        import os
        from voirkit import ai
        from voirkit.trace import recorder
        name, now = recorder.name("{category}", "of it", kind="phase"), recorder.now()
        for i in range(1000):
            at = now + i * 1_000_000
            recorder.span(name, at, at + 100_000, 0, 0)  # long after all others, and work in it
            recorder.span(name, at + 102_000, at + 103_000, 0, 0)  # right after
        os._exit(0)
    """
    )
    place.voirkit("--quiet", "main.py")
    with open_run(str(place.folder / "run")) as run:
        ((*_, kind, tally),) = run.tallies()
    assert (kind, tally.n) == ("phase", 2000)
    assert tally.cold in cold  # the first records of the run follow one another


def test_an_edge_beside_the_programs_work_costs_besides() -> None:
    warm, cold = (overhead_for((0, 1, "phase", 100, edges, 0))["seconds"] for edges in (0, 50))
    assert cold - warm == pytest.approx(50 * CALLS["cold"] * 1e-6)
