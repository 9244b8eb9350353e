"""Reads the pages of the kernel's tracing buffers: the same stream of events as of a log of strace. Checked with Linux 6.18.

A page has a head (the time of its first event, how much of it is used) and events one after the other: 5 bits of length, 27 bits of time
since the last one, the event itself. The kernel's numbers become names, and of arguments those are told that are needed.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any

from voirkit_instruments.syscalls.analyse_events import ACCESSES, FORKS, NAN, TRANSFERS, Begun, Call, Ended, Event, Named
from voirkit_instruments.syscalls.analyse_numbers import names
from voirkit_instruments.syscalls.record_markers import said_by_mode

_HEAD = 16
_PADDING, _EXTEND, _STAMP = 29, 30, 31
_MISSED, _MISSED_STORED = 1 << 31, 1 << 30
_THREAD = 0x00010000  # CLONE_THREAD
_SLEEPS = 1  # TASK_INTERRUPTIBLE: until something comes; not for a disk (2), nor because another is to run (0)
_MOST_ERROR = 4095
_DESCRIPTORS = TRANSFERS | {"close"}
_ENDS = frozenset(["exit", "exit_group"])


class RingError(Exception):
    """What the kernel traced can not be read."""


class RingLog:
    """What was traced of a run.

    Args:
        stem: The path of its files, without ``.ring.json``.

    Attributes:
        lost: Events for which the kernel had no room.

    Raises:
        RingError: They are not there, or not as they are known.
    """

    def __init__(self, stem: str) -> None:
        try:
            with open(f"{stem}.ring.json", encoding="utf-8") as file:
                self._known: dict[str, Any] = json.load(file)
        except (OSError, ValueError) as exc:
            raise RingError(f"{stem}.ring.json can not be read: {exc}") from None
        self._stem = stem
        self.lost = int(self._known["lost"])
        self._names = names(self._known["machine"])
        if not self._names or self._known["byteorder"] != "little":
            raise RingError(f"the system calls of {self._known['machine']} are not known")
        self._events = {int(number): event for number, event in self._known["events"].items()}

    def events(self) -> Iterator[Event]:
        """Calls in the order of their ends, and what goes with them."""
        return self._calls(heapq.merge(*(self._pages(f"{self._stem}.{cpu}.ring") for cpu in self._known["cpus"])))

    # pages

    def _pages(self, path: str) -> Iterator[tuple[int, int, bytes]]:
        """(time in nanoseconds, number of the event, the event) of one processor."""
        head = Struct("<QQ").unpack
        if not os.path.exists(path):
            return
        with open(path, "rb") as file:
            while len(first := file.read(_HEAD)) == _HEAD:
                at, commit = head(first)
                yield from _events(file.read(commit & 0xFFFFF), at)

    # calls

    def _field(self, event: str, *fields: str) -> tuple[int, Callable[[bytes], tuple[Any, ...]]]:
        """The number of an event, and what reads some of its fields."""
        for number, known in self._events.items():
            if known["event"] == event:
                places = [known["fields"].get(field) for field in fields]
                if None in places:
                    raise RingError(f"this kernel's {event} has other fields than {', '.join(fields)}")
                return number, _reader([tuple(place) for place in places])
        raise RingError(f"{event} was not traced")

    def _switches(self) -> tuple[int, Callable[[bytes], tuple[Any, ...]]]:
        """As ``_field``; a number that no event has of a run whose switches were not traced, by an older voirkit."""
        if any(known["event"] == "sched_switch" for known in self._events.values()):
            return self._field("sched_switch", "prev_pid", "prev_state", "next_pid")
        return -1, _reader([])

    def _calls(self, merged: Iterator[tuple[int, int, bytes]]) -> Iterator[Event]:
        enter, read_enter = self._field("sys_enter", "common_pid", "id", "args")
        exit_, read_exit = self._field("sys_exit", "common_pid", "id", "ret")
        made, read_made = self._field("task_newtask", "common_pid", "pid", "clone_flags")
        renamed, read_renamed = self._field("task_rename", "pid", "newcomm")
        ended, read_ended = self._field("sched_process_exit", "common_pid")
        switched, read_switched = self._switches()
        asleep: dict[int, int] = {}  # threads that sleep in their call, since when
        slept: dict[int, int] = {}  # how long others have, or this one before
        open_: dict[int, tuple[int, int, Any]] = {}
        told: set[int] = set()  # threads whose call was told to have begun
        known, make, nothing = self._names, tuple.__new__, (0, -1, b"")
        for at, number, event in merged:
            if number == enter:
                tid, call, args = read_enter(event)
                open_[tid] = (at, call, args)
                asleep.pop(tid, None)
                slept.pop(tid, None)
                if known.get(call) in FORKS:
                    yield Begun(tid, at * 1e-9, known[call], "")
            elif number == exit_:
                tid, call, result = read_exit(event)
                if tid in asleep:  # that it runs again was not recorded, as happens while another tracing begins or ends
                    slept[tid] = slept.get(tid, 0) + at - asleep.pop(tid)
                began, entered, args = open_.pop(tid, nothing)
                if call < 0:
                    continue  # of a signal that came: the call itself has been told
                name = known.get(call) or f"syscall_{call}"
                seconds = (at - began) * 1e-9
                if entered != call:  # it was entered before tracing began
                    began, seconds, args = at, NAN, None
                error = ""
                if -_MOST_ERROR <= result < 0:
                    error, result = _error(-result), -1
                text = ""
                if args is not None and (name in _DESCRIPTORS or name in ACCESSES):
                    text = self._arguments(name, args)
                    if name in ACCESSES and text:
                        for other, (since, which, _) in open_.items():  # their calls go on while the phase changes
                            if other not in told:
                                told.add(other)
                                yield Begun(other, since * 1e-9, known.get(which, ""), "")
                joined = tid in told
                told.discard(tid)
                waited = min(slept.pop(tid, 0) * 1e-9, seconds) if tid in slept and seconds == seconds else 0.0
                yield make(Call, (tid, began * 1e-9, name, text, result, error, seconds, joined, waited))
            elif number == switched:
                left, state, came = read_switched(event)
                asleep.pop(left, None)
                if state & _SLEEPS and left in open_:
                    asleep[left] = at
                if came in asleep:
                    slept[came] = slept.get(came, 0) + at - asleep.pop(came)
            elif number == made:
                parent, tid, flags = read_made(event)
                yield Named(tid, "", parent, bool(flags & _THREAD))
            elif number == renamed:
                tid, name = read_renamed(event)
                yield Named(tid, name.partition(b"\0")[0].decode("utf-8", "replace"), None, False)
            elif number == ended:
                (tid,) = read_ended(event)
                asleep.pop(tid, None)
                slept.pop(tid, None)
                if tid in open_:  # it called exit, or was killed in a call
                    began, call, _ = open_.pop(tid)
                    name = known.get(call) or f"syscall_{call}"
                    seconds = NAN if name in _ENDS else (at - began) * 1e-9
                    yield make(Call, (tid, began * 1e-9, name, "", None, "", seconds, tid in told, 0.0))
                    told.discard(tid)
                yield Ended(tid, at * 1e-9, "")
        for tid, (began, call, _) in open_.items():
            yield make(Call, (tid, began * 1e-9, known.get(call) or f"syscall_{call}", "", None, "", NAN, tid in told, 0.0))

    def _arguments(self, name: str, args: bytes) -> str:
        """As strace prints them, what is needed: a marker's text, a descriptor."""
        numbers = Struct("<6Q").unpack(args)
        if name in ACCESSES:
            said = said_by_mode(numbers[1 if name == "access" else 2])
            return "" if said is None else f'"/vk!{said}"'
        return str(numbers[0])


def _events(page: bytes, at: int) -> Iterator[tuple[int, int, bytes]]:
    """The events of a page."""
    place, end = 0, len(page)
    number = int.from_bytes
    while place + 4 <= end:
        head = number(page[place : place + 4], "little")
        length, since = head & 31, head >> 5
        place += 4
        if length == _PADDING:
            if not since:
                return
            place += number(page[place : place + 4], "little")
            at += since
        elif length == _EXTEND:
            at += since + (number(page[place : place + 4], "little") << 27)
            place += 4
        elif length == _STAMP:
            at = (at & ~((1 << 59) - 1)) | (since + (number(page[place : place + 4], "little") << 27))
            place += 4
        else:
            at += since
            size = length * 4
            if not length:
                size = number(page[place : place + 4], "little") - 4
                place += 4
            event = page[place : place + size]
            if len(event) < max(size, 8):
                return  # torn
            yield at, event[0] | event[1] << 8, event
            place += size


def _reader(places: list[tuple[int, int]]) -> Callable[[bytes], tuple[Any, ...]]:
    """What reads fields at their places: numbers, or bytes of fields longer than eight."""
    form, at = "<", 0
    for place, size in sorted(places):
        form += f"{place - at}x" if place > at else ""
        form += {4: "i", 8: "q"}.get(size) or f"{size}s"
        at = place + size
    unpack = Struct(form).unpack_from
    if places == sorted(places):
        return unpack
    raise RingError("the fields of this kernel's events are in another order")


def _error(number: int) -> str:
    import errno

    return errno.errorcode.get(number) or {
        512: "ERESTARTSYS",
        513: "ERESTARTNOINTR",
        514: "ERESTARTNOHAND",
        516: "ERESTART_RESTARTBLOCK",
    }.get(number, f"E{number}")
