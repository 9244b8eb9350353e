"""The ledger of collectives: what is read of torch's flight recorder, and how often."""

from __future__ import annotations

import pickle
import time
from collections import deque
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")


from phases import Kept

from voirkit_instruments.steps.record_collectives import CollectiveRecording
from voirkit_instruments.steps.record_spans import Recording


class FlightRecorder:
    """Stands for torch's: a ring of as many entries."""

    def __init__(self, holds: int = 2000) -> None:
        self.entries, self.reads, self._holds = deque(maxlen=holds), 0, holds

    def begin(self, n: int = 1, p2p: bool = False) -> None:
        for _ in range(n):
            number = self.entries[-1]["record_id"] + 1 if self.entries else 0
            self.entries.append({
                "record_id": number, "is_p2p": p2p, "time_created_ns": time.time_ns(), "profiling_name": "gloo:all_reduce",
                "collective_seq_id": number + 1, "process_group": ("0", "default_pg"), "input_sizes": [[2, 3]], "input_dtypes": ["Float"],
            })  # fmt: skip

    def dump(self, *_: bool) -> bytes:
        self.reads += 1
        return pickle.dumps({"entries": list(self.entries)})


def recorded(ring):
    kept = Kept()
    c10d = SimpleNamespace(_dump_fr_trace=ring.dump)
    recording = Recording(kept, SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=c10d)), [].append)
    collectives = CollectiveRecording(recording)
    collectives.start_reading("gloo")
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
    assert kept.seen("gloo.all_reduce")[0] == {"group": "0", "description": "default_pg", "bytes": 24, "number": 1}


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


def test_a_torch_without_the_recorder_records_nothing():
    collectives = CollectiveRecording(Recording(Kept(), SimpleNamespace(_C=SimpleNamespace()), [].append))
    collectives.start_reading("gloo")
    collectives.tick()
    collectives.read()
