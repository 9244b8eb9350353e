"""The kernel's tracing buffers: pages as Linux lays them out, read as the calls of a log of strace are."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voirkit_instruments.syscalls.analyse import figures
from voirkit_instruments.syscalls.analyse_attribution import Attribution, TraceContext
from voirkit_instruments.syscalls.analyse_calls import Call
from voirkit_instruments.syscalls.analyse_kernel import KernelLog, RingError, call_names
from voirkit_instruments.syscalls.record_phases import (
    PHASES,
    message_of_mode,
    message_of_text,
    path_and_mode,
)

ENTER, EXIT, NEWTASK, RENAME, ENDED, SWITCH = 443, 442, 205, 204, 301, 372
LAYOUT = {
    ENTER: {
        "event": "sys_enter",
        "fields": {"common_type": [0, 2], "common_pid": [4, 4], "id": [8, 8], "args": [16, 48]},
    },
    EXIT: {
        "event": "sys_exit",
        "fields": {"common_type": [0, 2], "common_pid": [4, 4], "id": [8, 8], "ret": [16, 8]},
    },
    NEWTASK: {
        "event": "task_newtask",
        "fields": {"common_pid": [4, 4], "pid": [8, 4], "comm": [12, 16], "clone_flags": [32, 8]},
    },
    RENAME: {
        "event": "task_rename",
        "fields": {"common_pid": [4, 4], "pid": [8, 4], "oldcomm": [12, 16], "newcomm": [28, 16]},
    },
    ENDED: {
        "event": "sched_process_exit",
        "fields": {"common_pid": [4, 4], "comm": [8, 16], "pid": [24, 4], "prio": [28, 4]},
    },
    SWITCH: {
        "event": "sched_switch",
        "fields": {"prev_pid": [24, 4], "prev_state": [32, 8], "next_pid": [56, 4]},
    },
}
NUMBERS = {name: number for number, name in call_names("x86_64").items()}


def enter(tid: int, name: str, *args: int) -> bytes:
    return struct.pack("<HBBiq6Q", ENTER, 0, 0, tid, NUMBERS[name], *args, *[0] * (6 - len(args)))


def leave(tid: int, name: str, result: int = 0) -> bytes:
    return struct.pack("<HBBiqq", EXIT, 0, 0, tid, NUMBERS[name], result)


def newtask(parent: int, tid: int, flags: int) -> bytes:
    return struct.pack("<HBBii16s4xQhxx4x", NEWTASK, 0, 0, parent, tid, b"python", flags, 0)


def rename(tid: int, name: bytes) -> bytes:
    return struct.pack("<HBBii16s16shxx", RENAME, 0, 0, tid, tid, b"python", name, 0)


def ended(tid: int) -> bytes:
    return struct.pack("<HBBi16sii", ENDED, 0, 0, tid, b"python", tid, 120)


def switch(left: int, state: int, came: int) -> bytes:
    return struct.pack(
        "<HBBi16siiq16sii", SWITCH, 0, 0, left, b"python", left, 120, state, b"python", came, 120
    )


def page(*events: tuple[int, bytes]) -> bytes:
    """A page as the kernel writes it, without what is empty; times in nanoseconds."""
    first = last = events[0][0]
    body = b""
    for at, event in events:
        since, last = at - last, at
        if since >= 1 << 27:
            body += struct.pack("<II", 30 | (since & ((1 << 27) - 1)) << 5, since >> 27)
            since = 0
        if len(event) // 4 <= 28:
            body += struct.pack("<I", len(event) // 4 | since << 5) + event
        else:
            body += struct.pack("<II", since << 5, len(event) + 4) + event
    return struct.pack("<QQ", first, len(body)) + body


def log(folder: Path, *pages: bytes, **known: Any) -> KernelLog:
    """A log of one file a processor."""
    for cpu, text in enumerate(pages):
        (folder / f"x.{cpu}.ring").write_bytes(text)
    about = {
        "cpus": list(range(len(pages))),
        "events": LAYOUT,
        "lost": 0,
        "machine": "x86_64",
        "byteorder": "little",
        **known,
    }
    (folder / "x.ring.json").write_text(json.dumps(about))
    return KernelLog(str(folder / "x"))


def marked(tid: int, said: str) -> tuple[bytes, bytes]:
    return enter(tid, "access", 0x7F00, path_and_mode(said)[1]), leave(tid, "access", -22)


def test_a_call_lasts_from_its_entry_to_its_exit(tmp_path: Path) -> None:
    events = list(
        log(
            tmp_path, page((1_000, enter(7, "read", 3, 0, 9)), (3_500, leave(7, "read", 5)))
        ).events()
    )
    assert events == [
        Call(7, pytest.approx(1e-6), "read", "3", 5, "", pytest.approx(2.5e-6), False)
    ]


def test_a_call_waits_while_its_thread_sleeps_and_not_while_a_disk_or_another_thread_has_its_turn(
    tmp_path: Path,
) -> None:
    second = 10**9
    events = [
        (0, enter(7, "read", 3)), (1 * second, switch(7, 1, 0)), (3 * second, switch(0, 0, 7)),  # S: until something comes
        (4 * second, switch(7, 2, 9)), (5 * second, switch(9, 0x100, 7)),  # D: a disk
        (6 * second, switch(7, 0x100, 9)), (8 * second, switch(9, 1, 7)),  # R: another thread's turn; who sleeps then is in no call
        (8 * second, leave(7, "read", 5)), (9 * second, enter(7, "futex")), (9 * second, switch(7, 1, 9)), (11 * second, switch(9, 1, 7)),
        (12 * second, leave(7, "futex")),
    ]  # fmt: skip
    log_ = log(tmp_path, page(*events))
    assert [
        (call.name, call.seconds, call.waited) for call in log_.events() if type(call) is Call
    ] == [("read", 8, 2), ("futex", 3, 2)]
    document = figures(Attribution().add(log_.events()), timed=True)
    assert document["phases"]["all"]["read"] == {
        "calls": 1,
        "errors": 0,
        "seconds": 8,
        "bytes": 5,
        "waited": 2,
    }
    assert "waited" not in document["phases"]["all"]["futex"]  # all of it is waiting
    total = document["totals"]["all"]
    assert (
        total["working"]["calls"],
        total["working"]["seconds"],
        total["waiting"]["seconds"],
    ) == (1, 6, 5)


def test_a_thread_whose_return_from_sleep_was_not_recorded_has_slept_until_its_call_ended(
    tmp_path: Path,
) -> None:
    second = 10**9
    events = [
        (0, enter(7, "read", 3)), (1 * second, switch(7, 1, 9)), (5 * second, leave(7, "read", 5)), (6 * second, enter(7, "read", 3)),
        (7 * second, switch(7, 1, 9)), (8 * second, switch(7, 0, 9)), (9 * second, leave(7, "read", 5)),
    ]  # fmt: skip
    assert [
        call.waited for call in log(tmp_path, page(*events)).events() if type(call) is Call
    ] == [4, 0]


def test_an_error_has_its_name(tmp_path: Path) -> None:
    (call,) = log(tmp_path, page((1, enter(7, "openat")), (2, leave(7, "openat", -2)))).events()
    assert (call.result, call.error) == (-1, "ENOENT")
    (call,) = log(tmp_path, page((1, enter(7, "read", 3)), (2, leave(7, "read", -512)))).events()
    assert call.error == "ERESTARTSYS"


def test_the_processors_events_are_put_in_order(tmp_path: Path) -> None:
    one = page((1_000, enter(7, "read", 3)), (4_000, enter(7, "getpid")))
    two = page((2_000, leave(7, "read", 1)), (5_000, leave(7, "getpid", 7)))
    calls = [event for event in log(tmp_path, one, two).events() if type(event) is Call]
    assert [(call.name, call.result) for call in calls] == [("read", 1), ("getpid", 7)]


def test_long_pauses_and_several_pages_keep_the_time(tmp_path: Path) -> None:
    first = page((10**12, enter(7, "read", 3)), (10**12 + 60 * 10**9, leave(7, "read", 1)))
    second = page(
        (10**12 + 61 * 10**9, enter(7, "getpid")), (10**12 + 61 * 10**9 + 5, leave(7, "getpid", 7))
    )
    calls = [event for event in log(tmp_path, first + second).events() if type(event) is Call]
    assert calls[0].seconds == pytest.approx(60)
    assert calls[1].start == pytest.approx(1061)


def test_padding_ends_a_page_and_a_torn_event_is_left_out(tmp_path: Path) -> None:
    whole = page((1, enter(7, "getpid")), (2, leave(7, "getpid", 7)))
    padded = (
        struct.pack("<QQ", 1, len(whole) - 16 + 4 + 40)
        + whole[16:]
        + struct.pack("<I", 29)
        + b"\xff" * 40
    )
    assert [type(event) for event in log(tmp_path, padded + whole[:-6]).events()] == [Call, Call]


def test_markers_threads_and_processes_are_told_apart(tmp_path: Path) -> None:
    shares = 0x00010000
    events = [
        *marked(7, "other+"), *marked(7, "backward+"), newtask(7, 8, shares), rename(8, b"pt_autograd_0"), enter(8, "getpid"), leave(8, "getpid", 7),
        enter(7, "clone", 0), newtask(7, 9, 0), leave(7, "clone", 9), *marked(9, "worker 3"), *marked(9, "fetch+"), enter(9, "read", 4), leave(9, "read", 6),
        *marked(9, "fetch-"), *marked(7, "backward-"), enter(7, "access", 1, 4), leave(7, "access", 0),
    ]  # fmt: skip
    log_ = log(tmp_path, page(*((1_000 * i, event) for i, event in enumerate(events, 1))))
    document = figures(
        Attribution(TraceContext(pid=7, threads={7: "python"})).add(log_.events()), timed=True
    )
    counted = {
        (kind, phase, name): row["calls"]
        for kind, phases in document["threads"].items()
        for phase, rows in phases.items()
        for name, row in rows.items()
    }
    assert counted == {
        ("autograd", "backward", "getpid"): 1, ("main", "backward", "clone"): 1, ("worker 3", "fetch", "read"): 1, ("main", "other", "access"): 1,
    }  # fmt: skip
    assert document["phases"]["fetch"]["read"]["bytes"] == 6
    assert document["markers"] == 6


def test_a_number_that_is_given_again_is_another_process(tmp_path: Path) -> None:
    events = [
        newtask(7, 8, 0), *marked(8, "worker 0"), enter(8, "read", 3), leave(8, "read", 4), enter(8, "exit_group", 0), ended(8),
        newtask(7, 8, 0), *marked(8, "worker 1"), enter(8, "read", 3), leave(8, "read", 6), enter(8, "futex"), ended(8),
    ]  # fmt: skip
    log_ = log(tmp_path, page(*((1_000 * i, event) for i, event in enumerate(events, 1))))
    document = figures(
        Attribution(TraceContext(pid=7, threads={7: ""})).add(log_.events()), timed=True
    )
    assert document["threads"]["worker 0"]["worker"]["read"]["bytes"] == 4
    assert document["threads"]["worker 0"]["worker"]["exit_group"] == {
        "calls": 1,
        "errors": 0,
        "seconds": 0.0,
        "bytes": 0,
    }
    assert document["threads"]["worker 1"]["worker"]["read"]["bytes"] == 6
    assert document["threads"]["worker 1"]["worker"]["futex"]["seconds"] == pytest.approx(1e-6)


def test_a_process_whose_first_thread_ends_first_ends_with_its_last(tmp_path: Path) -> None:
    events = [
        newtask(7, 8, 0), newtask(8, 9, 0x00010000), enter(8, "exit"), ended(8), enter(9, "getpid"), leave(9, "getpid"), ended(9),
        newtask(7, 9, 0), *marked(9, "worker 2"), enter(9, "getuid"), leave(9, "getuid"),
    ]  # fmt: skip
    found = Attribution(TraceContext(pid=7, threads={7: ""}))
    found.add(
        log(tmp_path, page(*((1_000 * i, event) for i, event in enumerate(events, 1)))).events()
    )
    threads = figures(found, timed=True)["threads"]
    assert {name: row["calls"] for name, row in threads["child"]["other"].items()} == {
        "exit": 1,
        "getpid": 1,
    }
    assert threads["worker 2"]["worker"]["getuid"]["calls"] == 1


def test_a_call_that_blocks_is_split_over_the_phases_of_the_first_thread(tmp_path: Path) -> None:
    second = 10**9
    events = [
        (1 * second, newtask(7, 8, 0x00010000)), (2 * second, marked(7, "forward+")[0]), (2 * second, marked(7, "forward+")[1]),
        (3 * second, enter(8, "futex")), (5 * second, marked(7, "forward-")[0]), (5 * second, marked(7, "forward-")[1]),
        (6 * second, marked(7, "backward+")[0]), (6 * second, marked(7, "backward+")[1]), (9 * second, leave(8, "futex")),
    ]  # fmt: skip
    document = figures(
        Attribution(TraceContext(pid=7, threads={7: ""})).add(
            log(tmp_path, page(*events)).events()
        ),
        timed=True,
    )
    seconds = {
        phase: rows["futex"]["seconds"] for phase, rows in document["threads"]["other"].items()
    }
    assert seconds == {
        "forward": pytest.approx(2),
        "other": pytest.approx(1),
        "backward": pytest.approx(3),
    }


def test_what_was_not_traced_as_it_is_known_is_told(tmp_path: Path) -> None:
    with pytest.raises(RingError, match=r"cannot be read"):
        KernelLog(str(tmp_path / "nothing"))
    with pytest.raises(RingError, match=r"of sparc64 are not known"):
        log(tmp_path, machine="sparc64")
    with pytest.raises(RingError, match=r"sys_exit was not traced"):
        list(log(tmp_path, page((1, enter(7, "getpid"))), events={ENTER: LAYOUT[ENTER]}).events())


@pytest.mark.parametrize(
    "said", [*(f"{phase}{edge}" for phase in PHASES for edge in "+-"), "worker 0", "worker 31"]
)
def test_a_marker_says_the_same_by_its_text_and_by_its_mode(said: str) -> None:
    path, mode = path_and_mode(said)
    assert message_of_text(f'"{path}", {mode:#x}') == said
    assert message_of_text(f'AT_FDCWD, "{path}", {mode:#x}') == said
    assert message_of_mode(mode) == said
    assert mode & ~7  # no file has such a mode: the kernel refuses it at once
    assert mode < 1 << 31


@pytest.mark.parametrize("mode", [0, 1, 2, 4, 7, 0x766B, 0x1_766B_0000])
def test_a_mode_of_the_programs_is_no_marker(mode: int) -> None:
    assert message_of_mode(mode) is None


@settings(max_examples=100, deadline=None)
@given(pages=st.lists(st.binary(max_size=300), max_size=4))
def test_pages_of_anything_at_all_end_without_an_error(
    tmp_path_factory: pytest.TempPathFactory, pages: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("ring")
    whole = b"".join(struct.pack("<QQ", 5, len(body)) + body for body in pages)
    assert len(list(log(folder, whole).events())) >= 0
