"""``--format perfetto``: read back with Perfetto's own classes, and by its rules: an end closes the last begin of its track."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_run import HOST, PID, START, MadeRun, Process, row
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from voirkit.export import perfetto

MAIN = (HOST, PID, PID)
OTHER = (HOST, PID, 101)


class Read:
    """A trace as the trace processor understands it."""

    def __init__(self, run: MadeRun, folder: Path) -> None:
        path = folder / "run.pftrace"
        assert perfetto.write(run, None, str(path)) == [str(path)]  # type: ignore[arg-type]
        self.trace = protos.Trace.FromString(path.read_bytes())
        self.tracks: dict[int, Any] = {}
        self.slices: list[tuple[str, str, int, int, str, dict[str, Any]]] = []
        self.instants: list[tuple[str, str, int, dict[str, Any]]] = []
        self.counters: list[tuple[str, int, float]] = []
        names: dict[str, dict[int, str]] = defaultdict(dict)
        open_: dict[int, list[Any]] = defaultdict(list)
        events = []
        for packet in self.trace.packet:
            assert packet.trusted_packet_sequence_id == 1
            for table in ("event_names", "event_categories", "debug_annotation_names"):
                for entry in getattr(packet.interned_data, table):
                    assert entry.iid not in names[table]
                    names[table][entry.iid] = entry.name
            if packet.HasField("track_descriptor"):
                assert packet.track_descriptor.uuid not in self.tracks
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            if packet.HasField("track_event"):
                event = packet.track_event
                assert event.track_uuid in self.tracks, (
                    "a track is described before its first event"
                )
                arguments = {
                    names["debug_annotation_names"][a.name_iid]: getattr(a, a.WhichOneof("value"))
                    for a in event.debug_annotations
                }
                label = (
                    names["event_categories"][event.category_iids[0]]
                    if event.category_iids
                    else "",
                    names["event_names"].get(event.name_iid, ""),
                )
                events.append((packet.timestamp, event, label, arguments))
        for at, event, label, arguments in sorted(
            events, key=lambda one: one[0]
        ):  # stable, as the trace processor sorts
            if event.type == protos.TrackEvent.TYPE_SLICE_BEGIN:
                open_[event.track_uuid].append((at, label, arguments))
            elif event.type == protos.TrackEvent.TYPE_SLICE_END:
                begun, begun_label, begun_arguments = open_[event.track_uuid].pop()
                self.slices.append(
                    (
                        *begun_label,
                        begun - START,
                        at - begun,
                        self.track(event.track_uuid),
                        begun_arguments,
                    )
                )
            elif event.type == protos.TrackEvent.TYPE_INSTANT:
                self.instants.append((*label, at - START, arguments))
            else:
                self.counters.append(
                    (self.track(event.track_uuid), at - START, event.double_counter_value)
                )
        assert not any(open_.values()), "all that begins ends"

    def track(self, uuid: int) -> str:
        """``process/thread/child``."""
        descriptor = self.tracks[uuid]
        name = descriptor.process.process_name or descriptor.thread.thread_name or descriptor.name
        return (
            f"{self.track(descriptor.parent_uuid)}/{name}"
            if descriptor.HasField("parent_uuid")
            else name
        )


def test_a_span_keeps_its_name_category_times_thread_and_arguments(tmp_path: Path) -> None:
    read = Read(
        MadeRun([row("forward", 10, 33, epoch=1, lr=0.1, train=True, what="x", none=None)]),
        tmp_path,
    )
    assert read.slices == [
        (
            "compute",
            "forward",
            10,
            33,
            "main.py/MainThread",
            {"epoch": 1, "lr": 0.1, "train": True, "what": "x", "none": "None"},
        )
    ]


def test_nested_spans_stay_nested_also_where_they_begin_or_end_together(tmp_path: Path) -> None:
    rows = [
        row("outer", 0, 100),
        row("first", 0, 40),
        row("second", 40, 60),
        row("leaf", 50, 50),
        row("next", 100, 5),
    ]
    read = Read(MadeRun(rows), tmp_path)
    assert {(name, start, duration) for _, name, start, duration, _, _ in read.slices} == {
        (r[2], r[3] - START, r[4]) for r in rows
    }
    assert {track for *_, track, _ in read.slices} == {"main.py/MainThread"}


def test_spans_without_a_duration_are_there(tmp_path: Path) -> None:
    read = Read(
        MadeRun([row("a", 0, 0), row("b", 0, 0), row("outer", 10, 5), row("last", 15, 0)]), tmp_path
    )
    assert sorted((name, start, duration) for _, name, start, duration, _, _ in read.slices) == [
        ("a", 0, 0),
        ("b", 0, 0),
        ("last", 15, 0),
        ("outer", 10, 5),
    ]


def test_spans_of_coroutines_that_take_turns_keep_their_durations(tmp_path: Path) -> None:
    rows = [
        row("one", 0, 100),
        row("two", 50, 100),
        row("three", 60, 200),
        row("inner of one", 70, 10),
    ]
    read = Read(MadeRun(rows), tmp_path)
    found = {name: (start, duration, track) for _, name, start, duration, track, _ in read.slices}
    assert found["one"] == (0, 100, "main.py/MainThread")
    assert found["two"] == (50, 100, "main.py/MainThread/MainThread: overlapping 1")
    assert found["three"] == (60, 200, "main.py/MainThread/MainThread: overlapping 2")
    assert found["inner of one"] == (70, 10, "main.py/MainThread")


def test_marks_are_instants_and_counters_are_tracks_of_the_process(tmp_path: Path) -> None:
    rows = [
        row("saved", 5, kind="mark", category="checkpoint", step=3),
        row("epoch.start", 6, kind="meta"),
        row("memory", 7, kind="counter", value=1.5),
    ]
    read = Read(MadeRun(rows), tmp_path)
    assert read.instants == [
        ("checkpoint", "saved", 5, {"step": 3}),
        ("compute", "epoch.start", 6, {}),
    ]
    assert read.counters == [("main.py/memory", 7, 1.5)]


def test_processes_and_threads_have_their_names_and_numbers(tmp_path: Path) -> None:
    run = MadeRun(
        [row("a", 0, 1), row("b", 0, 1, thread=OTHER), row("c", 0, 1, thread=(HOST, 200, 200))]
    )
    run.made_of = (Process(threads={101: "loader"}), Process(pid=200, ppid=PID, name="worker"))
    read = Read(run, tmp_path)
    processes = {
        t.process.pid: t.process.process_name for t in read.tracks.values() if t.HasField("process")
    }
    threads = {
        (t.thread.pid, t.thread.tid): t.thread.thread_name
        for t in read.tracks.values()
        if t.HasField("thread")
    }
    assert processes == {PID: "main.py", 200: "worker"}
    assert threads == {(PID, PID): "MainThread", (PID, 101): "loader", (200, 200): "MainThread"}


def test_processes_of_the_same_number_on_two_hosts_stay_apart(tmp_path: Path) -> None:
    run = MadeRun([row("a", 0, 10), row("b", 5, 10, thread=("node2", PID, PID), rank=1)])
    run.made_of = (Process(), Process(host="node2", rank=1))
    read = Read(run, tmp_path)
    assert {track for *_, track, _ in read.slices} == {
        "main.py (rank 0, node1)/MainThread",
        "main.py (rank 1, node2)/MainThread",
    }
    pids = [t.process.pid for t in read.tracks.values() if t.HasField("process")]
    assert len(set(pids)) == 2
    assert {(t.thread.pid, t.thread.tid) for t in read.tracks.values() if t.HasField("thread")} == {
        (pid, pid) for pid in pids
    }  # main threads


def test_a_device_runs_beside_its_thread(tmp_path: Path) -> None:
    read = Read(MadeRun([row("forward", 0, 10), row("forward", 5, 20, kind="device")]), tmp_path)
    assert {(start, duration, track) for _, _, start, duration, track, _ in read.slices} == {
        (0, 10, "main.py/MainThread"),
        (5, 20, "main.py/MainThread/MainThread: device"),
    }


def test_spans_of_one_flow_are_connected(tmp_path: Path) -> None:
    rows = [
        row("load", 0, 5, flow=7, thread=(HOST, 200, 200)),
        row("other", 1, 5, flow=8),
        row("train", 10, 5, flow=7),
        row("last", 20, 5),
    ]
    packets = Read(MadeRun(rows), tmp_path).trace.packet
    load, other, train, last = [
        list(p.track_event.flow_ids)
        for p in packets
        if p.track_event.type == protos.TrackEvent.TYPE_SLICE_BEGIN
    ]
    assert load == train != other
    assert (len(load), len(other), last) == (1, 1, [])


def test_any_text_and_any_integer_can_be_written(tmp_path: Path) -> None:
    arguments = {
        "quote": 'a"b\\c\n',
        "half": "\ud800",
        "huge": 2**70,
        "big": -(2**63),
        "nan": float("nan"),
    }
    read = Read(MadeRun([row("a\udcffb", 0, 1, **arguments)]), tmp_path)
    ((_, name, _, _, _, found),) = read.slices
    assert name == "a\\udcffb"
    assert found.pop("nan") != found.get("nan")
    assert found == {"quote": 'a"b\\c\n', "half": "\\ud800", "huge": str(2**70), "big": -(2**63)}


def test_times_are_wall_clock_and_tied_to_the_monotonic_clock(tmp_path: Path) -> None:
    read = Read(MadeRun([row("a", 0, 1)]), tmp_path)
    first, snapshot = read.trace.packet[0], read.trace.packet[1].clock_snapshot
    assert first.trace_packet_defaults.timestamp_clock_id == protos.BUILTIN_CLOCK_REALTIME
    assert first.sequence_flags == protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    assert {clock.clock_id: clock.timestamp for clock in snapshot.clocks} == {
        protos.BUILTIN_CLOCK_REALTIME: START,
        protos.BUILTIN_CLOCK_MONOTONIC: 5_000_000_000,
    }


def test_a_run_without_events_gives_a_trace_without_events(tmp_path: Path) -> None:
    read = Read(MadeRun([], made_of=()), tmp_path)
    assert (read.slices, read.tracks) == ([], {})


def test_long_runs_are_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "_PACKETS_AT_ONCE", 7)
    rows = [row(f"name {i % 5}", i * 10, 9, step=i) for i in range(500)]
    read = Read(MadeRun(rows), tmp_path)
    assert sorted(
        (name, start, arguments["step"]) for _, name, start, _, _, arguments in read.slices
    ) == sorted((r[2], r[3] - START, r[-1]["step"]) for r in rows)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    class Long(MadeRun):
        def rows(self, selection: Any) -> Iterator[list[tuple[Any, ...]]]:
            for batch in range(60):
                yield [
                    row("forward", (batch * 1000 + i) * 10, 9, epoch=0, step=i) for i in range(1000)
                ]
                held.append(resident_bytes())

    held: list[int] = []
    perfetto.write(Long(), None, str(tmp_path / "run.pftrace"))  # type: ignore[arg-type]
    assert (
        held[-1] - held[9] < 10_000_000
    )  # 50 000 events; packets that are kept would take some 80 MB


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
