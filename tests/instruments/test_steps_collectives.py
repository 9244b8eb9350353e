"""The ledger of collectives: what is read of torch's flight recorder, and how often."""

from __future__ import annotations

import pickle
import sys
import time
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")


import torch
from phases import Kept, watched
from torch import distributed

from voirkit_instruments.steps.record_collectives import CollectiveRecording
from voirkit_instruments.steps.record_spans import Recording


class FlightRecorder:
    """Stands for torch's: a ring of as many entries."""

    def __init__(self, holds: int = 2000, backend: str = "gloo") -> None:
        self.entries, self.reads, self.backend = deque(maxlen=holds), 0, backend

    def begin(self, n: int = 1, p2p: bool = False, **more: Any) -> None:
        for _ in range(n):
            number = self.entries[-1]["record_id"] + 1 if self.entries else 0
            self.entries.append({
                "record_id": number, "is_p2p": p2p, "time_created_ns": time.time_ns(), "profiling_name": f"{self.backend}:all_reduce",
                "collective_seq_id": number + 1, "process_group": ("0", "default_pg"), "input_sizes": [[2, 3]], "input_dtypes": ["Float"],
                "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": True, **more,
            })  # fmt: skip

    def dump(
        self, collectives: bool, stacks: bool, active: bool = False, backend: str = "gloo"
    ) -> bytes:
        assert collectives
        assert not stacks
        if backend != self.backend:
            return pickle.dumps({"entries": []})
        self.reads += 1
        return pickle.dumps({"entries": list(self.entries)})


def recorded(ring, config="cpu:gloo,cuda:gloo", **functions):
    kept = Kept()
    c10d = SimpleNamespace(**(functions or {"_dump_fr_trace": ring.dump}))
    recording = Recording(
        kept, SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=c10d)), [].append
    )
    collectives = CollectiveRecording(recording)
    collectives.start_reading(config)
    return kept, collectives


def entries(kept):
    return [seen["number"] for seen in kept.seen("gloo.all_reduce")]


def test_each_collective_is_written_once_with_its_number_group_and_bytes():
    ring = FlightRecorder()
    kept, collectives = recorded(ring)
    for _ in range(3):
        ring.begin(2)
        collectives.read()
    assert entries(kept) == [1, 2, 3, 4, 5, 6]
    assert kept.seen("gloo.all_reduce")[0] == {
        "group": "0",
        "description": "default_pg",
        "bytes": 24,
        "number": 1,
    }


def test_messages_between_two_ranks_are_no_collectives():
    ring = FlightRecorder()
    kept, collectives = recorded(ring)
    ring.begin(2, p2p=True)
    collectives.read()
    assert entries(kept) == []


def test_the_recorder_is_read_seldom_and_before_it_forgets():
    ring = FlightRecorder()
    kept, collectives = recorded(ring)
    for _ in range(10_000):
        ring.begin(3)
        collectives.tick()
    collectives.read()
    assert entries(kept) == list(range(1, 30_001))
    assert ring.reads < 50
    assert collectives.lost == 0


def test_what_was_forgotten_before_it_was_read_is_counted():
    ring = FlightRecorder(100)
    kept, collectives = recorded(ring)
    ring.begin(250)
    collectives.read()
    assert (len(entries(kept)), collectives.lost) == (100, 150)


def test_the_numbers_of_a_recorder_that_the_program_empties_begin_anew():
    ring = FlightRecorder()
    kept, collectives = recorded(ring)
    ring.begin(3)
    collectives.read()
    ring.entries.clear()
    ring.begin(2)
    collectives.read()
    assert entries(kept) == [1, 2, 3, 1, 2]


@pytest.mark.parametrize("backend", ["nccl2", "nccl-lazy"])
def test_nccl_has_a_recorder_of_its_own_by_its_name(backend):
    ring = FlightRecorder(backend=backend)
    kept, collectives = recorded(ring, "cuda:nccl")
    ring.begin(2)
    collectives.read()
    assert [seen["number"] for seen in kept.seen(f"{backend}.all_reduce")] == [1, 2]


def test_nccl_of_torch_up_to_2_14_has_a_recorder_with_a_function_of_its_own():
    ring = FlightRecorder(backend="gloo")
    kept, collectives = recorded(
        ring,
        "cuda:nccl",
        _dump_nccl_trace=ring.dump,
        _dump_fr_trace=lambda _collectives, _stacks: pickle.dumps({}),
    )
    ring.begin(2)
    collectives.read()
    assert entries(kept) == [1, 2]


def test_two_back_ends_of_a_group_count_its_collectives_each_by_itself():
    gloo, nccl = FlightRecorder(), FlightRecorder(backend="nccl2")
    both = {"gloo": gloo, "nccl2": nccl, "nccl-lazy": FlightRecorder()}
    dump = lambda *asked: both[asked[3] if len(asked) > 3 else "gloo"].dump(*asked)  # noqa: E731
    kept, collectives = recorded(gloo, "cpu:gloo,cuda:nccl", _dump_fr_trace=dump)
    gloo.begin()
    nccl.begin()
    collectives.read()
    assert [
        seen["group"] for name in ("gloo", "nccl2") for seen in kept.seen(f"{name}.all_reduce")
    ] == ["0 (gloo)", "0 (nccl2)"]


def lengths_ms(kept):
    return [
        (end - begin) / 1e6
        for name, begin, end, _, _ in kept.spans
        if kept._names[name - 1][1] == "all_reduce"
    ]


def test_a_collective_lasts_as_long_as_it_ran_on_the_device_not_until_somebody_looked():
    ring = FlightRecorder(backend="nccl2")
    kept, collectives = recorded(ring, "cuda:nccl")
    looked = (
        time.time_ns() + 100_000_000
    )  # torch's watchdog, for what had begun and ended long before
    ring.begin(
        1, duration_ms=2.5, time_discovered_started_ns=looked, time_discovered_completed_ns=looked
    )
    collectives.read()
    assert lengths_ms(kept) == pytest.approx([2.5])


def test_without_times_on_the_device_a_collective_is_the_moment_in_which_it_was_begun():
    ring = FlightRecorder(backend="nccl2")
    kept, collectives = recorded(ring, "cuda:nccl")
    ring.begin(1, time_discovered_completed_ns=time.time_ns() + 100_000_000)
    collectives.read()
    assert lengths_ms(kept) == [0]


def test_what_has_just_been_begun_on_a_device_is_written_when_it_is_known_how_long_it_took():
    ring = FlightRecorder(backend="nccl2")
    kept, collectives = recorded(ring, "cuda:nccl")
    ring.begin(1, duration_ms=1.0)
    ring.begin(2, retired=False)
    collectives.read(over=False)
    assert lengths_ms(kept) == pytest.approx([1.0])
    for entry in ring.entries:
        entry.update(retired=True, duration_ms=3.0)
    collectives.read(over=False)
    assert lengths_ms(kept) == pytest.approx([1.0, 3.0, 3.0])


def test_what_never_ends_on_a_device_holds_nothing_up():
    ring = FlightRecorder(backend="nccl2")
    kept, collectives = recorded(ring, "cuda:nccl")
    ring.begin(1, retired=False, time_created_ns=time.time_ns() - 2_000_000_000)
    ring.begin(1, duration_ms=3.0)
    collectives.read(over=False)
    assert len(lengths_ms(kept)) == 2


# where there is no recorder


def all_reduce(tensor, op=None, group=None, async_op=False):
    """As torch's."""


def send(tensor, dst=None, group=None):
    """As torch's."""


@pytest.fixture
def ranks(monkeypatch):
    """What torch.distributed knows of groups: of ``other`` this process is not a member."""
    names = {"whole": "0", "half": "1", "other": "2"}
    known = SimpleNamespace(
        _world=SimpleNamespace(pg_names=names),
        _get_default_group=lambda: "whole",
        get_rank=lambda group: -1 if group == "other" else 0,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", known)


def without_recorder(**functions):
    kept = Kept()
    torch = SimpleNamespace(
        Tensor=int,
        _C=SimpleNamespace(
            _distributed_c10d=SimpleNamespace(**functions), DisableTorchFunction=nullcontext
        ),
    )
    collectives = CollectiveRecording(Recording(kept, torch, [].append))
    collectives.start_reading("cpu:gloo")
    return kept, collectives


EMPTY = {"_dump_fr_trace": lambda *_: pickle.dumps({"version": "2.10"})}  # switched off
OLD = {
    "_dump_nccl_trace": lambda *_: pickle.dumps({"entries": [{"seq_id": 1, "record_id": 0}]})
}  # torch 2.3


@pytest.mark.parametrize("functions", [{}, EMPTY, OLD], ids=["none", "off", "old"])
def test_without_a_recorder_the_functions_that_are_called_are_numbered_in_each_group(
    ranks, functions
):
    kept, collectives = without_recorder(**functions)
    for group in (None, "half", "whole"):
        collectives.called(5, 9, all_reduce, (), {"group": group})
    collectives.called(5, 9, all_reduce, ("tensor", "sum", "half"), {})
    seen = kept.seen("gloo.all_reduce")
    assert [(one["group"], one["number"]) for one in seen] == [
        ("0 (calls)", 1),
        ("1 (calls)", 1),
        ("0 (calls)", 2),
        ("1 (calls)", 2),
    ]


def test_calls_in_groups_of_others_and_messages_are_not_numbered(ranks):
    kept, collectives = without_recorder()
    collectives.called(5, 9, all_reduce, (), {"group": "other"})
    collectives.called(5, 9, send, (), {})
    assert kept.seen("gloo.all_reduce") == kept.seen("gloo.send") == []


def test_with_a_recorder_no_call_is_written_a_second_time(ranks):
    ring = FlightRecorder()
    kept, collectives = recorded(ring)
    ring.begin()
    collectives.called(5, 9, all_reduce, (), {})
    assert [seen["group"] for seen in kept.seen("gloo.all_reduce")] == ["0"]


# in torch


def test_collectives_are_read_as_the_group_of_all_is_done_with_since_the_process_may_be_killed_next(
    tmp_path,
):
    with watched() as watch:
        distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
        )
        watch.steps._torch.collectives.start_reading("cpu:gloo")
        half = distributed.new_group([0])
        for _ in range(3):
            distributed.all_reduce(torch.ones(1))
        before = len(watch.kept.seen("gloo.all_reduce"))
        distributed.destroy_process_group(half)
        assert len(watch.kept.seen("gloo.all_reduce")) == before
        distributed.destroy_process_group()
        assert len(watch.kept.seen("gloo.all_reduce")) > before
