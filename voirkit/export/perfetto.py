"""``--format perfetto``: Perfetto's own binary trace, for https://ui.perfetto.dev and the trace
processor.

Written with the classes of the package ``perfetto`` (checked with 0.59.1 and protobuf 7.36), in the
extra ``voirkit[export]``. Packets are written as the rows come: memory does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import IO, Any

from voirkit.errors import VoirkitError
from voirkit.export.spans import (
    FLOW,
    LOADER,
    Key,
    Labels,
    Nesting,
    arrow_of,
    event_names,
    typed,
    unicode_text,
)
from voirkit.report.output import complete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from voirkit.runs.opened import Run
    from voirkit.runs.selection import Selection

NAME, SUFFIX, IS_TEXT = "perfetto", ".pftrace", False

_PACKETS_AT_ONCE = 2000  # some 150 KB
_SEQUENCE = 1
# other kinds ("device") run beside their thread and are drawn so
_OF_A_THREAD = ("span", "phase", "loader", "mark", "meta")


def write(run: Run, selection: Selection, target: str) -> list[str]:
    """Write a ``.pftrace`` file; see ``voirkit.export.Format``. Raises VoirkitError: the package
    ``perfetto`` is not installed."""
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
    except ImportError:
        raise VoirkitError(
            "this needs the package 'perfetto', which is not installed.",
            where="--format perfetto",
            next="pip install 'voirkit[export]'",
        ) from None
    with complete(target) as temporary, open(temporary, "wb") as file:
        writer = _Writer(file, protos, run)
        for batch in run.rows(selection):
            for (
                kind,
                category,
                name,
                start_ns,
                duration_ns,
                rank,
                host,
                pid,
                tid,
                arguments,
            ) in batch:
                if kind == "counter":
                    writer.counter((host, rank, pid), name, start_ns, arguments)
                else:
                    writer.event(
                        (host, rank, pid),
                        tid,
                        kind,
                        category,
                        name,
                        start_ns,
                        duration_ns,
                        arguments,
                    )
        writer.end()
    return [target]


def _number_of(*key: object) -> int:
    """A number of 64 bits for anything."""
    return int.from_bytes(
        blake2b(repr(key).encode("utf-8", "backslashreplace"), digest_size=8).digest(), "little"
    )


class _Stack:
    """The events that are drawn as one stack, in as many lanes as overlapping spans need; each lane
    is a track."""

    def __init__(self, lane: int, name: str) -> None:
        self.name = name
        self.nesting: Nesting[None] = Nesting()
        self.lanes = [lane]
        # what is always the same of an event, by (lane, category, name); of an end by its lane
        self.packets: dict[Any, Any] = {}


class _Writer:
    """Turns rows into packets. All are of one sequence: a name is written once, and then referred
    to by its number."""

    def __init__(self, file: IO[bytes], protos: Any, run: Run) -> None:
        self._file, self._protos, self._labels = file, protos, Labels(run)
        self._trace = protos.Trace()
        self._packets = self._trace.packet
        self._event_names = event_names()
        self._numbers: dict[tuple[str, str], int] = {}
        self._pids: dict[Key, int] = {}
        self._stacks: dict[tuple[Key, int, str], _Stack] = {}
        self._tracks: set[int] = set()
        self._describe_clocks()

    def event(
        self,
        process: Key,
        tid: int,
        kind: str,
        category: str,
        name: str,
        start_ns: int,
        duration_ns: int,
        arguments: Mapping[str, Any],
    ) -> None:
        """A span, or a moment (a mark). Spans come by their start; of those with the same start the
        longer first."""
        stack = self._stack(process, tid, "" if kind in _OF_A_THREAD else kind)
        self._close(stack, start_ns)
        lane = (
            -1
            if kind in ("mark", "meta")
            else stack.nesting.add(start_ns, start_ns + duration_ns, None)
        )
        if lane == len(stack.lanes):
            stack.lanes.append(self._child(stack.lanes[0], f"{stack.name}: overlapping {lane}"))
        packet = stack.packets.get((lane, category, name))
        if packet is None:
            types = self._protos.TrackEvent
            label = name if kind == "span" else self._event_names.get((category, name), name)
            packet = self._new_event(
                stack.lanes[max(lane, 0)],
                types.TYPE_INSTANT if lane < 0 else types.TYPE_SLICE_BEGIN,
            )
            packet.track_event.name_iid = self._number("event_names", label)
            packet.track_event.category_iids.append(self._number("event_categories", category))
            stack.packets[lane, category, name] = packet
        packet.timestamp = start_ns
        annotations = packet.track_event.debug_annotations
        del annotations[:], packet.track_event.flow_ids[:]
        if FLOW in arguments and lane >= 0:
            packet.track_event.flow_ids.append(_number_of("flow", arguments[FLOW]))
        arrow = arrow_of(process[1], category, name, arguments) if kind == LOADER else None
        if arrow is not None:
            packet.track_event.flow_ids.append(_number_of(*arrow))
        for key, value in arguments.items():
            self._annotate(annotations.add(), key, value)
        self._packets.append(packet)
        self._flush(_PACKETS_AT_ONCE)

    def counter(self, process: Key, name: str, at_ns: int, arguments: Mapping[str, Any]) -> None:
        """Values of a counter: a track for each."""
        for key, value in arguments.items():
            if isinstance(value, (int, float)):
                packet = self._new_event(
                    self._counter_track(process, name if key == "value" else f"{name} {key}"),
                    self._protos.TrackEvent.TYPE_COUNTER,
                )
                packet.timestamp, packet.track_event.double_counter_value = at_ns, float(value)
                self._packets.append(packet)
        self._flush(_PACKETS_AT_ONCE)

    def end(self) -> None:
        """Close what is open, and write what is left."""
        for stack in self._stacks.values():
            self._close(stack, None)
        self._flush()

    def _describe_clocks(self) -> None:
        """Say that times are wall-clock times, and, of one host, how they relate to the clock of
        system traces."""
        protos = self._protos
        first = self._packets.add(
            trusted_packet_sequence_id=_SEQUENCE,
            sequence_flags=protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED,
        )
        first.trace_packet_defaults.timestamp_clock_id = protos.BUILTIN_CLOCK_REALTIME
        processes = list(self._labels.processes.values())
        began_ns = processes[0].began_ns if processes else 0
        snapshot = self._packets.add(trusted_packet_sequence_id=_SEQUENCE).clock_snapshot
        snapshot.primary_trace_clock = protos.BUILTIN_CLOCK_REALTIME
        snapshot.clocks.add(clock_id=protos.BUILTIN_CLOCK_REALTIME, timestamp=began_ns)
        # each host has a monotonic clock of its own
        if len({process.host for process in processes}) == 1:
            snapshot.clocks.add(
                clock_id=protos.BUILTIN_CLOCK_MONOTONIC, timestamp=began_ns - processes[0].offset_ns
            )

    def _close(self, stack: _Stack, now_ns: int | None) -> None:
        for end_ns, lane, _ in stack.nesting.ended(now_ns):
            packet = stack.packets.get(lane)
            if packet is None:
                packet = stack.packets[lane] = self._new_event(
                    stack.lanes[lane], self._protos.TrackEvent.TYPE_SLICE_END
                )
            packet.timestamp = end_ns
            self._packets.append(packet)

    def _new_event(self, track: int, type: int) -> Any:
        packet = self._protos.TracePacket(
            trusted_packet_sequence_id=_SEQUENCE,
            sequence_flags=self._protos.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE,
        )
        packet.track_event.type, packet.track_event.track_uuid = type, track
        return packet

    def _annotate(self, annotation: Any, key: str, value: Any) -> None:
        annotation.name_iid = self._number("debug_annotation_names", key)
        setattr(annotation, *typed(value))

    def _number(self, table: str, text: str) -> int:
        """The number of a name; the name itself is written before its first use."""
        number = self._numbers.get((table, text))
        if number is None:
            number = self._numbers[table, text] = len(self._numbers) + 1
            packet = self._packets.add(
                trusted_packet_sequence_id=_SEQUENCE,
                sequence_flags=self._protos.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE,
            )
            getattr(packet.interned_data, table).add(iid=number, name=unicode_text(text))
        return number

    def _stack(self, process: Key, tid: int, kind: str) -> _Stack:
        stack = self._stacks.get((process, tid, kind))
        if stack is None:
            track, name = self._thread(process, tid), self._labels.thread(process, tid)
            if kind:
                name = f"{name}: {kind}"
                track = self._child(track, name)
            stack = self._stacks[process, tid, kind] = _Stack(track, name)
        return stack

    def _thread(self, process: Key, tid: int) -> int:
        parent, shown = self._process(process)
        number, described = self._track(parent, "thread", process, tid)
        if described is not None:
            described.thread.pid, described.thread.tid = shown, shown if tid == process[2] else tid
            described.thread.thread_name = unicode_text(self._labels.thread(process, tid))
        return number

    def _process(self, process: Key) -> tuple[int, int]:
        """(the track of a process, its number in the trace): hosts may have processes of the same
        number, and Perfetto knows no hosts."""
        number, described = self._track(None, "process", process)
        if described is not None:
            shown = process[2]
            while shown in self._pids.values():
                shown += 10_000_000  # above the 2**22 of Linux
            self._pids[process] = shown
            described.process.pid, described.process.process_name = (
                shown,
                unicode_text(self._labels.process(process)),
            )
        return number, self._pids[process]

    def _counter_track(self, process: Key, name: str) -> int:
        number, described = self._track(self._process(process)[0], "counter", process, name)
        if described is not None:
            described.name = unicode_text(name)
            described.counter.SetInParent()
        return number

    def _child(self, parent: int, name: str) -> int:
        number, described = self._track(parent, "child", parent, name)
        if described is not None:
            described.name = unicode_text(name)
        return number

    def _track(self, parent: int | None, *key: object) -> tuple[int, Any]:
        """(the number of a track, its descriptor if it is new): the number is the same in every
        export, so that traces can be joined."""
        number = _number_of(*key)
        if number in self._tracks:
            return number, None
        self._tracks.add(number)
        described = self._packets.add(trusted_packet_sequence_id=_SEQUENCE).track_descriptor
        described.uuid = number
        if parent is not None:
            described.parent_uuid = parent
        return number, described

    def _flush(self, least: int = 0) -> None:
        if len(self._packets) < least:
            return
        self._file.write(self._trace.SerializeToString())
        # a new one: protobuf frees what a message held only with the message
        self._trace = self._protos.Trace()
        self._packets = self._trace.packet
        for stack in self._stacks.values():
            stack.packets.clear()
