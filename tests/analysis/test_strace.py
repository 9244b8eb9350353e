"""Lines that strace printed: every kind that was met in logs of training runs, and logs made by chance."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voirkit_instruments.syscalls.analyse_calls import (
    MOST_BINS,
    Call,
    CallEntry,
    OverTime,
    Signal,
    ThreadExit,
)
from voirkit_instruments.syscalls.analyse_strace import StraceLog

NAN = math.nan
# line: (thread, began, name, arguments, result, error, seconds)
RECORDED: dict[str, tuple[Any, ...]] = {
    # a file of strace -f -ttt -T -o
    '3095  1795350167.393136 munmap(0x7f06c9970000, 208896) = 0 <0.000140>':
        (3095, 1795350167.393136, "munmap", "0x7f06c9970000, 208896", 0, "", 0.000140),
    '3095  1795350167.394433 exit_group(3)   = ?': (3095, 1795350167.394433, "exit_group", "3", None, "", NAN),
    '7 1.5 openat(AT_FDCWD, "/etc/x", O_RDONLY|O_CLOEXEC) = -1 ENOENT (No such file or directory) <0.000010>':
        (7, 1.5, "openat", 'AT_FDCWD, "/etc/x", O_RDONLY|O_CLOEXEC', -1, "ENOENT", 0.000010),
    '7 1.5 mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, 3, 0) = 0x7f06c9970000 <0.000005>':
        (7, 1.5, "mmap", "NULL, 8192, PROT_READ, MAP_PRIVATE, 3, 0", 0x7F06C9970000, "", 0.000005),
    # strings, paths and notes that look like the end of a call
    r'7 1.5 write(1, "f(x) = 5\n", 9)    = 9 <0.000003>': (7, 1.5, "write", r'1, "f(x) = 5\n", 9', 9, "", 0.000003),
    r'7 1.5 write(1, ") = 5 (", 7)    = 7 <0.000003>': (7, 1.5, "write", '1, ") = 5 (", 7', 7, "", 0.000003),
    r'7 1.5 write(1, "a) = -1 ENOENT (no) <0.5>", 25)    = 25 <0.000003>':
        (7, 1.5, "write", '1, "a) = -1 ENOENT (no) <0.5>", 25', 25, "", 0.000003),
    r'7 1.5 write(1, "\") = 3", 6) = 6 <0.000003>': (7, 1.5, "write", r'1, "\") = 3", 6', 6, "", 0.000003),
    '7 1.5 openat(AT_FDCWD</w>, "x) = 1", O_RDONLY) = 3</w/x) = 1> <0.000001>':
        (7, 1.5, "openat", 'AT_FDCWD</w>, "x) = 1", O_RDONLY', 3, "", 0.000001),
    '7 1.5 openat(AT_FDCWD, "x", O_RDONLY) = 3</w/x> <0.000001>': (7, 1.5, "openat", 'AT_FDCWD, "x", O_RDONLY', 3, "", 0.000001),
    '7 1.5 read(3<TCP:[127.0.0.1:1->127.0.0.1:2]>, "a", 1) = 1 <0.000001>':
        (7, 1.5, "read", '3<TCP:[127.0.0.1:1->127.0.0.1:2]>, "a", 1', 1, "", 0.000001),
    # notes behind the result
    '7 1.5 poll([{fd=3, events=POLLIN}], 1, 5000) = 1 ([{fd=3, revents=POLLIN}]) <0.000100>':
        (7, 1.5, "poll", "[{fd=3, events=POLLIN}], 1, 5000", 1, "", 0.000100),
    '7 1.5 poll([{fd=3, events=POLLIN}], 1, 0) = 0 (Timeout) <0.000002>':
        (7, 1.5, "poll", "[{fd=3, events=POLLIN}], 1, 0", 0, "", 0.000002),
    '7 1.5 select(4, [3], NULL, NULL, {tv_sec=1, tv_usec=0}) = 1 (in [3], left {tv_sec=0, tv_usec=9999}) <0.1>':
        (7, 1.5, "select", "4, [3], NULL, NULL, {tv_sec=1, tv_usec=0}", 1, "", 0.1),
    '7 1.5 fcntl(1, F_GETFL) = 0x8402 (flags O_RDWR|O_APPEND|O_LARGEFILE) <0.000001>': (7, 1.5, "fcntl", "1, F_GETFL", 0x8402, "", 0.000001),
    '7 1.5 getpid() = 3 /* 9 in strace\'s PID NS */ <0.000001>': (7, 1.5, "getpid", "", 3, "", 0.000001),
    '7 1.5 bpf(0x1f, 0x7f, 8) = -1 (errno 524) <0.000001>': (7, 1.5, "bpf", "0x1f, 0x7f, 8", -1, "", 0.000001),
    '7 1.5 openat(AT_FDCWD, "x", O_RDONLY) = -1 ENOENT (No such file or directory) (INJECTED) <0.000001>':
        (7, 1.5, "openat", 'AT_FDCWD, "x", O_RDONLY', -1, "ENOENT", 0.000001),
    # interrupted and gone on with
    '7 1.5 read(0, 0x7ffd, 1) = ? ERESTARTSYS (To be restarted if SA_RESTART is set) <2.5>':
        (7, 1.5, "read", "0, 0x7ffd, 1", None, "ERESTARTSYS", 2.5),
    '7 1.5 nanosleep({tv_sec=1}, NULL) = ? ERESTART_RESTARTBLOCK (Interrupted by signal) <0.2>':
        (7, 1.5, "nanosleep", "{tv_sec=1}, NULL", None, "ERESTART_RESTARTBLOCK", 0.2),
    '7 1.5 restart_syscall(<... resuming interrupted read ...>) = 0 <0.8>':
        (7, 1.5, "restart_syscall", "<... resuming interrupted read ...>", 0, "", 0.8),
    # threads and processes
    '7 1.5 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD, child_tidptr=0x7f) = 8 <0.000200>':
        (7, 1.5, "clone", "child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD, child_tidptr=0x7f", 8, "", 0.0002),
    '7 1.5 clone3({flags=CLONE_VM|CLONE_THREAD, stack=0x7f, stack_size=0x7fff00} => {parent_tid=[8]}, 88) = 8 <0.000200>':
        (7, 1.5, "clone3", "{flags=CLONE_VM|CLONE_THREAD, stack=0x7f, stack_size=0x7fff00} => {parent_tid=[8]}, 88", 8, "", 0.0002),
    # other forms
    'getpid() = 3': (0, NAN, "getpid", "", 3, "", NAN),
    '[pid    12] getpid() = 3': (12, NAN, "getpid", "", 3, "", NAN),
    '12 getpid() = 3': (12, NAN, "getpid", "", 3, "", NAN),
    '12 10:00:01 getpid() = 3': (12, 36001.0, "getpid", "", 3, "", NAN),
    '[pid 12] 10:00:01.25 getpid() = 3 <0.000001>': (12, 36001.25, "getpid", "", 3, "", 0.000001),
    '1700000000.5 getpid() = 3': (0, 1700000000.5, "getpid", "", 3, "", NAN),
}  # fmt: skip


def read(*lines: str, end: str = "\n") -> tuple[list[Any], StraceLog]:
    log = StraceLog()
    whole = [f"{line}\n" for line in lines]
    whole[-1:] = [lines[-1] + end]
    return list(log.events(whole)), log


def same(one: Iterable[Any], two: Iterable[Any]) -> bool:
    return all(a == b or (a != a and b != b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("line", RECORDED)
def test_a_call_is_read_from_its_line(line: str) -> None:
    (call,), log = read(line)
    assert same(call, (*RECORDED[line], False, 0.0)), call
    assert log.unread == 0
    assert not log.torn


def test_a_call_that_another_thread_interrupts_in_the_log_is_joined_and_began_when_it_was_entered() -> (
    None
):
    events, log = read(
        "7 1.000000 read(3,  <unfinished ...>",
        "8 1.250000 getpid() = 7 <0.000001>",
        '7 1.500000 <... read resumed>"ab", 2) = 2 <0.500100>',
    )  # fmt: skip
    assert events == [
        CallEntry(7, 1.0, "read", "3"), Call(8, 1.25, "getpid", "", 7, "", 0.000001, False), Call(7, 1.0, "read", '3, "ab", 2', 2, "", 0.5001, True),
    ]  # fmt: skip
    assert log.timed
    assert log.dated


def test_without_durations_an_interrupted_call_lasts_from_one_line_to_the_other() -> None:
    events, _ = read(
        "7 1.0 futex(0x7f, FUTEX_WAIT_PRIVATE, 2, NULL <unfinished ...>",
        "7 1.5 <... futex resumed>) = 0",
    )
    assert events[-1] == Call(
        7, 1.0, "futex", "0x7f, FUTEX_WAIT_PRIVATE, 2, NULL", 0, "", 0.5, True
    )


def test_several_threads_calls_are_joined_each_with_its_own() -> None:
    events, _ = read(
        "7 1.0 futex(0x1, FUTEX_WAIT <unfinished ...>", "8 1.1 read(3,  <unfinished ...>", "9 1.2 wait4(-1,  <unfinished ...>",
        '8 1.3 <... read resumed>"", 1) = 0 <0.2>', "9 1.4 <... wait4 resumed>NULL, 0, NULL) = 8 <0.2>", "7 1.5 <... futex resumed>) = 0 <0.5>",
    )  # fmt: skip
    calls = [event for event in events if type(event) is Call]
    assert [(call.tid, call.name, call.args) for call in calls] == [
        (8, "read", '3, "", 1'),
        (9, "wait4", "-1, NULL, 0, NULL"),
        (7, "futex", "0x1, FUTEX_WAIT"),
    ]


def test_a_string_that_says_unfinished_is_a_string() -> None:
    (call,), _ = read(r'7 1.0 write(1, "x <unfinished ...>\n", 19) = 19 <0.000001>')
    assert (call.name, call.result) == ("write", 19)
    events, _ = read(
        '7 1.0 write(1, ") = 5<x", 7 <unfinished ...>', "7 1.1 <... write resumed>) = 7 <0.1>"
    )
    assert events[-1] == Call(7, 1.0, "write", '1, ") = 5<x", 7', 7, "", 0.1, True)


def test_a_call_of_which_the_log_has_only_the_end_is_kept() -> None:
    (call,), _ = read("7 5.0 <... epoll_wait resumed>[], 8, 100) = 0 <2.000000>")
    assert call == Call(7, 3.0, "epoll_wait", "[], 8, 100", 0, "", 2.0, True)


def test_ends_of_threads_and_signals_are_told() -> None:
    events, log = read(
        "8 1.0 +++ exited with 0 +++",
        "7 1.1 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=8, si_uid=0, si_status=0, si_utime=0, si_stime=0} ---",
        "7 1.2 --- stopped by SIGSTOP ---",
        "7 1.3 +++ killed by SIGSEGV (core dumped) +++",
    )
    assert events[0] == ThreadExit(8, 1.0, "exited with 0")
    assert events[-1] == ThreadExit(7, 1.3, "killed by SIGSEGV (core dumped)")
    assert [type(event) for event in events[1:3]] == [Signal, Signal]
    assert log.signals == 2
    assert log.unread == 0


def test_a_killed_thread_leaves_the_call_that_it_was_in() -> None:
    events, _ = read("7 1.0 read(0,  <unfinished ...>", "7 3.0 +++ killed by SIGKILL +++")
    assert events[1:] == [
        Call(7, 1.0, "read", "0", None, "", 2.0, True),
        ThreadExit(7, 3.0, "killed by SIGKILL"),
    ]
    events, _ = read(
        "7 1.0 read(0,  <unfinished ...>",
        "7 3.0 <... read resumed> <unfinished ...>) = ?",
        "7 3.0 +++ killed by SIGKILL +++",
    )
    assert events[1:] == [
        Call(7, 1.0, "read", "0", None, "", 2.0, True),
        ThreadExit(7, 3.0, "killed by SIGKILL"),
    ]


def test_a_thread_that_becomes_another_program_goes_on_under_the_processs_number() -> None:
    events, _ = read(
        '9 1.0 execve("/bin/true", ["true"], 0x7f /* 20 vars */ <unfinished ...>', "7 1.1 +++ superseded by execve in pid 9 +++",
        "7 1.2 <... execve resumed>) = 0 <0.2>",
    )  # fmt: skip
    assert events[-1] == Call(
        7, 1.0, "execve", '"/bin/true", ["true"], 0x7f /* 20 vars */', 0, "", 0.2, True
    )


def test_what_has_not_returned_when_the_log_ends_has_lasted_until_then() -> None:
    events, _ = read("7 1.0 poll([], 0, -1 <unfinished ...>", "8 4.0 getpid() = 7 <0.000001>")
    assert events[-1] == Call(7, 1.0, "poll", "[], 0, -1", None, "", 3.0, True)


@pytest.mark.parametrize("cut", range(1, 70))
def test_a_last_line_that_is_torn_anywhere_is_left_out_and_told(cut: int) -> None:
    line = '7 1.5 openat(AT_FDCWD, "/etc/hostname", O_RDONLY) = -1 ENOENT (No such file or directory) <0.000010>'
    events, log = read("7 1.0 getpid() = 7 <0.000001>", line[:-cut], end="")
    assert [event.name for event in events] == ["getpid"]
    assert log.torn
    assert log.unread == 0


def test_a_whole_last_line_without_its_end_is_read() -> None:
    events, log = read("7 1.0 getpid() = 7 <0.000001>", "7 1.0 getpid() = 7 <0.000001>", end="")
    assert len(events) == 2
    assert not log.torn


def test_straces_own_words_are_no_lines_that_were_not_understood() -> None:
    events, log = read(
        "strace: Process 12 attached", "[pid 12] 10:00:01 getpid() = 3", "/usr/bin/strace: Process 12 detached",
        "what is this", "",
    )  # fmt: skip
    assert len(events) == 1
    assert log.unread == 1
    assert log.examples == [(4, "what is this")]


def test_times_since_the_line_before_are_added_up() -> None:
    events, _ = read(
        "     0.000000 getpid() = 3", "     0.250000 getpid() = 3", "     0.250000 getpid() = 3"
    )
    assert [event.start for event in events] == [0.0, 0.25, 0.5]


# lines that were made to take long


@pytest.mark.parametrize(
    "line",
    [
        "7 1.0 read(" + ") = " * 10_000, "7 1.0 read() = 3<" + "> (" * 10_000, "7 1.0 read() = 3<> (" + ")" * 30_000 + "x",
        "7<" + "> 1.0 x(" * 5_000 + ")", "7" + " " * 40_000 + "x", "7 1.0 x(" + " " * 40_000 + ", <unfinished ...>",
        "7 1.0 <... read resumed>" + ") = 1<" * 8_000, "[pid 7<" + ">" * 40_000, "7" * 5_000 + " 1.0 read(3) = 3", "7 1.0 read(3) = " + "9" * 5_000,
    ],
)  # fmt: skip
def test_a_line_of_any_content_is_read_in_linear_time(line: str) -> None:
    began = time.process_time()
    for lines in ([FIRST, line], [line, FIRST]):
        events, _ = read(*lines)
        assert events
    assert time.process_time() - began < 0.5


FIRST = '7 1700000000.123456 read(3, "a", 2) = 2 <0.000012>'


def test_a_long_line_is_read_as_a_short_one() -> None:
    for end, wanted in (
        ("= 3", (3, "")), ("= -1 ENOENT (No such file or directory) <0.000012>", (-1, "ENOENT")), ("= 5</data/a) = 1> <0.1>", (5, "")),
        ("= 0x7f12 <0.000012>", (0x7F12, "")), ("= ? ERESTARTSYS (To be restarted)", (None, "ERESTARTSYS")), ("= 1 ([{fd=3, revents=POLLIN}])", (1, "")),
        ("= 3</a> (note)", (3, "")),
    ):  # fmt: skip
        for text in ("x", "x" * 2_000, ") = 1 " * 7, ") = 1 " * 200):
            events, log = read(f'7 1700000000.123456 read(3, "{text}", 9) {end}')
            (call,) = events
            assert (call.args, call.result, call.error) == (f'3, "{text}", 9', *wanted)
            assert log.unread == 0


def test_a_clock_that_is_set_back_makes_no_negative_times() -> None:
    events, _ = read(
        "7 1700000000.5 read(3,  <unfinished ...>",
        '7 17.5 <... read resumed>"a", 1) = 1',
        "7 1700000001.0 close(3) = 0",
    )
    over_time = OverTime()
    for event in events:
        if isinstance(event, Call):
            over_time.add(event.name, event.start, event.seconds)
    document = over_time.document(timed=True)
    assert document is not None
    assert max(map(len, document["calls"].values())) <= MOST_BINS


# logs by chance: what is written is read again

texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
SNIPPETS = st.sampled_from(
    [
        ") = 3",
        " = 5",
        "<unfinished ...>",
        ") = ? <0.1>",
        "resumed>) = 0",
        "+++",
        '\\"',
        "(",
        ")",
        ", ",
    ]
)
strings = st.lists(texts | SNIPPETS, max_size=4).map("".join)
results = st.one_of(
    st.integers(-1, 10**6).map(lambda n: (str(n), n, "")),
    st.integers(1, 2**47).map(lambda n: (hex(n), n, "")),
    st.just(("?", None, "")),
    st.sampled_from(["ENOENT", "EAGAIN"]).map(lambda name: (f"-1 {name} (Some text)", -1, name)),
    st.just(("? ERESTARTSYS (To be restarted if SA_RESTART is set)", None, "ERESTARTSYS")),
    st.just(("0 (Timeout)", 0, "")),
    st.just(("1 ([{fd=3, revents=POLLIN}])", 1, "")),
)
one_call = st.tuples(
    st.sampled_from([7, 8, 9]),
    st.sampled_from(["read", "write", "openat", "futex", "clone3"]),
    strings,
    results,
    st.integers(0, 10**6),
    st.booleans(),
)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@settings(max_examples=300, deadline=None)
@given(st.lists(one_call, max_size=30), st.data())
def test_what_is_written_as_strace_does_is_read_as_it_was(
    calls: list[Any], data: st.DataObject
) -> None:
    lines: list[str] = []
    wanted: list[tuple[Any, ...]] = []
    open_: dict[int, tuple[str, tuple[Any, ...]]] = {}
    now = 0

    def close(tid: int) -> None:
        line, call = open_.pop(tid)
        lines.append(line.format(at=f"{now / 1e6:.6f}"))
        wanted.append(call)

    for tid, name, text, (shown, value, error), took, apart in calls:
        now += 1
        if tid in open_:
            close(tid)
        args, after = f"3, {quoted(text)}", f"{len(text)}"
        end = f"= {shown} <{took / 1e6:.6f}>"
        began = now / 1e6
        whole = (tid, began, name, f"{args}, {after}", value, error, took / 1e6)
        if apart:
            lines.append(f"{tid} {began:.6f} {name}({args},  <unfinished ...>")
            open_[tid] = (
                f"{tid} {{at}} <... {name} resumed>{after}) {end}".replace("{fd", "{{fd").replace(
                    "N}]", "N}}]"
                ),
                (*whole, True),
            )
        else:
            lines.append(f"{tid} {began:.6f} {name}({args}, {after}) {end}")
            wanted.append((*whole, False))
        if open_ and data.draw(st.booleans()):
            now += 1
            close(data.draw(st.sampled_from(sorted(open_))))
    for tid in sorted(open_):
        now += 1
        close(tid)
    if not lines:
        return
    events, log = read(*lines)
    found = [event for event in events if type(event) is Call]
    assert [tuple(call[:-1]) for call in found] == wanted
    assert log.unread == 0
    assert not log.torn


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(max_codepoint=255), max_size=60), max_size=10))
def test_anything_at_all_is_read_without_an_error(lines: list[str]) -> None:
    log = StraceLog()
    for event in log.events([f"{line}\n" for line in lines]):
        assert event is not None
    assert log.lines == len(lines)
