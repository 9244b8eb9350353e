"""Which phase and kind of thread each call of a log belongs to."""

from __future__ import annotations

from typing import Any

import pytest

from voirkit_instruments.syscalls.analyse import difference, figures, merge_documents, system_calls
from voirkit_instruments.syscalls.analyse_attribution import Attribution, TraceContext
from voirkit_instruments.syscalls.analyse_strace import StraceLog

ENOENT = "-1 ENOENT (No such file or directory)"


def mark(tid: int, at: float, text: str) -> str:
    return f'{tid} {at:.6f} access("/vk!{text}", F_OK) = {ENOENT} <0.000001>'


def call(tid: int, at: float, text: str, result: object = 0, took: float = 0.001) -> str:
    return f"{tid} {at:.6f} {text} = {result} <{took:.6f}>"


def made(*lines: str, known: TraceContext | None = None) -> dict[str, Any]:
    log = StraceLog()
    found = Attribution(known).add(log.events([f"{line}\n" for line in lines]))
    return figures(found, log.timed)


def calls(document: dict[str, Any]) -> dict[tuple[str, str, str], int]:
    return {
        (kind, phase, name): row["calls"]
        for kind, phases in document["threads"].items() for phase, rows in phases.items() for name, row in rows.items()
    }  # fmt: skip


def test_a_call_belongs_to_the_innermost_phase_of_its_thread() -> None:
    document = made(
        call(7, 0.5, "getpid()"), mark(7, 1, "wait+"), call(7, 2, "getuid()"), mark(7, 3, "fetch+"), call(7, 4, "getgid()"), mark(7, 5, "fetch-"),
        call(7, 6, "getppid()"), mark(7, 7, "wait-"), call(7, 8, "gettid()"),
    )  # fmt: skip
    assert calls(document) == {
        ("main", "before", "getpid"): 1, ("main", "wait", "getuid"): 1, ("main", "fetch", "getgid"): 1, ("main", "wait", "getppid"): 1,
        ("main", "other", "gettid"): 1,
    }  # fmt: skip
    assert document["totals"]["wait"]["entered"] == 1
    assert document["totals"]["wait"]["lasted_s"] == pytest.approx(6)
    assert document["markers"] == 4
    assert document["calls"] == 5


def test_markers_are_no_calls_of_the_program() -> None:
    document = made(
        mark(7, 1, "forward+"), call(7, 2, 'access("/etc/vk!x", R_OK)'), mark(7, 3, "forward-")
    )
    assert calls(document) == {("main", "forward", "access"): 1}


def test_an_end_without_a_beginning_changes_nothing() -> None:
    document = made(
        mark(7, 1, "forward+"),
        mark(7, 2, "backward-"),
        call(7, 3, "getpid()"),
        mark(7, 4, "forward-"),
        call(7, 5, "getuid()"),
    )
    assert calls(document) == {("main", "forward", "getpid"): 1, ("main", "other", "getuid"): 1}


def test_a_phase_that_an_exception_has_left_ends_with_the_one_around_it() -> None:
    document = made(
        mark(7, 1, "wait+"), mark(7, 2, "fetch+"), mark(7, 3, "wait-"), call(7, 4, "getpid()")
    )
    assert calls(document) == {("main", "other", "getpid"): 1}


def test_errors_bytes_and_seconds_are_summed() -> None:
    document = made(
        mark(7, 1, "forward+"), call(7, 2, 'read(3, "ab", 9)', 2, 0.25), call(7, 3, 'read(3, "", 9)', 0, 0.5), call(7, 4, "read(3, 0x7f, 9)", "-1 EIO (Input/output error)"),
        call(7, 5, 'lseek(3, 0, SEEK_CUR)', 77), mark(7, 6, "forward-"),
    )  # fmt: skip
    assert document["phases"]["forward"]["read"] == {
        "calls": 3,
        "errors": 1,
        "seconds": pytest.approx(0.751),
        "bytes": 2,
    }
    assert document["phases"]["forward"]["lseek"]["bytes"] == 0


@pytest.mark.parametrize("name", ["read", "write", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev", "sendto", "recvfrom",
                                  "sendmsg", "recvmsg", "sendfile", "copy_file_range", "splice"])  # fmt: skip
def test_bytes_are_the_results_of_what_transfers(name: str) -> None:
    assert made(call(7, 1, f"{name}(3, 0x7f, 9)", 5))["phases"]["all"][name]["bytes"] == 5


THREADS = (
    call(
        7,
        1,
        "clone3({flags=CLONE_VM|CLONE_FILES|CLONE_THREAD, stack=0x7f} => {parent_tid=[8]}, 88)",
        8,
    ),
    mark(7, 2, "backward+"),
    call(8, 3, "getpid()"),
    call(8, 3.5, 'prctl(PR_SET_NAME, "pt_autograd_0")'),
    call(8, 4, "getuid()"),
    mark(7, 5, "backward-"),
)


def test_a_thread_that_tells_no_phase_is_in_that_of_its_processs_first_thread() -> None:
    found = calls(made(*THREADS))
    assert found["other", "backward", "getpid"] == 1
    assert found["autograd", "backward", "getuid"] == 1


def test_a_thread_that_tells_phases_is_in_its_own() -> None:
    document = made(
        *THREADS[:2], mark(8, 3, "forward+"), call(8, 4, "getuid()"), mark(8, 5, "forward-")
    )
    assert calls(document)["other", "forward", "getuid"] == 1


def test_a_call_that_blocks_is_split_over_the_phases_that_it_overlaps_and_counts_where_it_began() -> (
    None
):
    document = made(
        THREADS[0], mark(7, 10, "forward+"),
        "8 12.000000 futex(0x7f, FUTEX_WAIT, 2, NULL <unfinished ...>",
        mark(7, 14, "forward-"), mark(7, 15, "backward+"), mark(7, 18, "backward-"), mark(7, 20, "forward+"),
        "8 21.000000 <... futex resumed>) = 0 <9.000000>",
    )  # fmt: skip
    phases = document["threads"]["other"]
    seconds = {phase: rows["futex"]["seconds"] for phase, rows in phases.items()}
    assert seconds == {
        "forward": pytest.approx(2 + 1),
        "backward": pytest.approx(3),
        "other": pytest.approx(1 + 2),
    }
    assert {phase: rows["futex"]["calls"] for phase, rows in phases.items()} == {
        "forward": 1,
        "backward": 0,
        "other": 0,
    }


def test_what_waits_is_summed_apart_from_what_works() -> None:
    totals = made(
        call(7, 1, "futex(0x7f, FUTEX_WAIT, 2, NULL)", took=5.0), call(7, 7, "getpid()", took=0.5)
    )["totals"]["all"]
    assert totals["waiting"] == {"calls": 1, "errors": 0, "seconds": 5.0, "bytes": 0}
    assert totals["working"] == {"calls": 1, "errors": 0, "seconds": 0.5, "bytes": 0}


FORK = "clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD, child_tidptr=0x7f)"


@pytest.mark.parametrize(
    "fork", [FORK, "fork()", "vfork()", "clone3({flags=0, exit_signal=SIGCHLD, stack=NULL}, 88)"]
)
def test_a_forked_process_has_phases_of_its_own(fork: str) -> None:
    document = made(
        mark(7, 1, "wait+"), call(7, 2, fork, 8), call(8, 3, "getpid()"), mark(8, 4, "worker 1"), mark(8, 5, "fetch+"), call(8, 6, "getuid()"),
        mark(8, 7, "fetch-"), call(8, 8, "getgid()"), call(7, 9, "getppid()"),
    )  # fmt: skip
    name = fork.partition("(")[0]
    assert calls(document) == {
        ("main", "wait", name): 1, ("main", "wait", "getppid"): 1, ("worker 1", "worker", "getpid"): 1, ("worker 1", "fetch", "getuid"): 1,
        ("worker 1", "worker", "getgid"): 1,
    }  # fmt: skip


def test_a_child_whose_calls_stand_before_the_line_that_tells_its_parent_is_known_all_the_same() -> (
    None
):
    thread = "clone3({flags=CLONE_VM|CLONE_THREAD, stack=0x7f}"
    document = made(
        mark(7, 1, "backward+"), f"7 2.000000 {thread} <unfinished ...>", call(8, 3, "getuid()"),
        "8 3.500000 futex(0x7f, FUTEX_WAIT <unfinished ...>", "7 4.000000 <... clone3 resumed> => {parent_tid=[8]}, 88) = 8 <2.0>",
        call(8, 5, "gettid()"),
    )  # fmt: skip
    assert calls(document)["other", "backward", "getuid"] == 1
    assert "child" not in document["threads"]
    assert document["calls"] == 4


def test_a_number_that_is_given_again_is_another_process() -> None:
    document = made(
        call(7, 1, FORK, 8), mark(8, 2, "worker 0"), "8 3.000000 +++ exited with 0 +++", call(7, 4, FORK, 8), mark(8, 5, "worker 1"), call(8, 6, "getpid()"),
    )  # fmt: skip
    assert calls(document)["worker 1", "worker", "getpid"] == 1


def test_any_number_of_processes_that_have_ended_take_no_more_room() -> None:
    lines = []
    for i in range(500):
        lines += [
            call(7, 10 * i + 1, FORK, 100 + i),
            call(100 + i, 10 * i + 2, "getpid()"),
            f"{100 + i} {10 * i + 3}.000000 +++ exited with 0 +++",
        ]
    log = StraceLog()
    found = Attribution().add(log.events([f"{line}\n" for line in lines]))
    assert len(found.tree.processes) == 2
    assert calls(figures(found, log.timed)) == {
        ("main", "all", "clone"): 500,
        ("child", "all", "getpid"): 500,
    }


def test_threads_that_were_there_when_tracing_began_are_known() -> None:
    known = TraceContext(pid=7, threads={7: "python", 8: "pt_autograd_0"})
    document = made(
        call(8, 1, "getuid()"),
        mark(7, 2, "other+"),
        call(7, 3, "getgid()"),
        call(8, 3.5, "getppid()"),
        call(9, 4, "getpid()"),
        known=known,
    )
    assert set(calls(document)) == {
        ("main", "other", "getgid"),
        ("autograd", "other", "getppid"),
        ("child", "other", "getpid"),
    }


def test_what_voirkit_does_for_itself_is_not_the_programs() -> None:
    known = TraceContext(
        pid=7,
        threads={7: "", 8: ""},
        files={5: "/runs/a/trace/x.seg"},
        own_threads=frozenset({8}),
        own_folder="/runs/a",
    )
    document = made(
        mark(7, 1, "other+"), call(7, 2, 'write(5, "ab", 2)', 2), call(7, 3, 'openat(AT_FDCWD, "/runs/a/summary.json", O_RDWR)', 6), call(7, 4, 'write(6, "ab", 2)', 2),
        call(8, 5, "getpid()"), mark(7, 6, "voirkit+"), call(7, 7, "getppid()"), mark(7, 8, "voirkit-"), call(7, 9, 'openat(AT_FDCWD, "/runs/ab", O_RDWR)', 7),
        known=known,
    )  # fmt: skip
    assert calls(document) == {("main", "other", "openat"): 1}
    assert document["own"]["calls"] == 5


def test_files_are_followed_through_their_descriptors() -> None:
    document = made(
        call(7, 1, 'openat(AT_FDCWD, "/d/a.txt", O_RDONLY)', 3), call(7, 2, 'read(3, "x", 9)', 100), call(7, 3, "dup(3)", 4), call(7, 4, "close(3)"),
        call(7, 5, 'read(4, "x", 9)', 20), call(7, 6, 'openat(AT_FDCWD, "/d/b.txt", O_WRONLY|O_CREAT, 0666)', 3), call(7, 7, 'write(3, "x", 7)', 7),
        call(7, 8, FORK, 8), call(8, 9, 'pread64(4, "x", 9, 0)', 5), call(7, 10, 'openat(AT_FDCWD, "/d/c.txt", O_RDONLY)', ENOENT),
    )  # fmt: skip
    files = {row["path"]: row for row in document["files"]}
    assert files["/d/a.txt"] == {
        "path": "/d/a.txt",
        "opens": 1,
        "read": 125,
        "written": 0,
        "files": 1,
    }
    assert files["/d/b.txt"] == {
        "path": "/d/b.txt",
        "opens": 1,
        "read": 0,
        "written": 7,
        "files": 1,
    }
    assert document["folders"] == [
        {"path": "/d", "opens": 2, "read": 125, "written": 7, "files": 2}
    ]


def saved(first: str, between: list[str], then: str) -> dict[str, Any]:
    return made(
        mark(7, 1, "backward+"), mark(7, 2, "backward-"), mark(7, 3, "checkpoint+"), call(7, 4, "getpid()"), mark(7, 5, "checkpoint-"),
        *(call(7, 6 + at, text) for at, text in enumerate(between)), mark(7, 9, first), call(7, 10, "getppid()"), mark(7, 11, then),
        call(7, 12, 'rename("/d/b.tmp", "/d/b")'),
    )  # fmt: skip


def test_what_finishes_a_file_between_two_pieces_of_a_checkpoint_is_the_checkpoints() -> None:
    document = saved("checkpoint+", ["fsync(3)", 'rename("/d/a.tmp", "/d/a")'], "checkpoint-")
    assert calls(document) == {
        ("main", "checkpoint", "getpid"): 1, ("main", "checkpoint", "fsync"): 1, ("main", "checkpoint", "rename"): 1,
        ("main", "checkpoint", "getppid"): 1, ("main", "other", "rename"): 1,
    }  # fmt: skip
    assert document["totals"]["checkpoint"] == {
        **document["totals"]["checkpoint"],
        "entered": 2,
        "lasted_s": pytest.approx(8),
    }


def test_what_lies_between_a_checkpoint_and_something_else_is_not() -> None:
    assert ("main", "other", "fsync") in calls(saved("forward+", ["fsync(3)"], "forward-"))
    assert ("main", "other", "getuid") in calls(saved("checkpoint+", ["getuid()"], "checkpoint-"))


def test_shared_memory_of_workers_is_counted_apart_by_phase() -> None:
    document = made(
        mark(7, 1, "fetch+"), call(7, 2, 'openat(AT_FDCWD, "/dev/shm/torch_7_1_0", O_RDWR|O_CREAT, 0600)', 3),
        call(7, 3, 'openat(AT_FDCWD, "/d/a.txt", O_RDONLY)', 4), call(7, 4, 'openat(AT_FDCWD, "/dev/shm/torch_7_2_0", O_RDWR)', ENOENT),
        mark(7, 5, "fetch-"),
    )  # fmt: skip
    assert document["shared_memory"] == {"fetch": 1}
    assert document["phases"]["fetch"]["openat"]["calls"] == 3


def test_names_of_files_are_shown_as_they_are() -> None:
    (row,) = made(call(7, 1, r'openat(AT_FDCWD, "/d/\303\251\"x\".txt", O_RDONLY)', 3))["files"]
    assert row["path"] == '/d/é"x".txt'


def test_a_rings_calls_are_counted_as_a_blind_spot() -> None:
    assert (
        made(call(7, 1, "io_uring_enter(3, 1, 1, IORING_ENTER_GETEVENTS, NULL, 8)", 1))["uring"]
        == 1
    )


def test_what_a_loader_does_meanwhile_is_summed_by_operation_too() -> None:
    known = TraceContext(operation=lambda tid, at: "Read" if 2 <= at < 4 else None)
    document = made(
        call(7, 1, "getpid()"),
        call(7, 2, 'read(3, "x", 9)', 5),
        call(7, 3, "getpid()"),
        call(7, 4, "getpid()"),
        known=known,
    )
    assert {name: row["calls"] for name, row in document["operations"]["Read"].items()} == {
        "getpid": 1,
        "read": 1,
    }
    assert document["phases"]["all"]["getpid"]["calls"] == 3


def test_a_log_without_durations_has_counts_and_no_seconds() -> None:
    document = made("7 getpid() = 7", '7 read(3, "ab", 2) = 2')
    assert document["phases"]["all"]["read"] == {
        "calls": 1,
        "errors": 0,
        "seconds": None,
        "bytes": 2,
    }
    assert document["totals"]["all"]["working"]["seconds"] is None


def test_a_difference_has_the_sign_of_what_the_second_log_has_more() -> None:
    one = made(call(7, 1, "stat()"), call(7, 2, "getpid()"), call(7, 3, "getpid()"))
    two = made(call(7, 1, "fsync(3)"), call(7, 2, "getpid()", took=0.5))
    rows = {row.name: row.more_calls for row in difference(one, two)}
    assert rows == {"stat": -1, "getpid": -1, "fsync": 1}
    (row,) = (row for row in difference(one, two) if row.name == "getpid")
    assert row.more_seconds == pytest.approx(0.498)


def test_the_logs_of_several_ranks_add_up() -> None:
    document = made(
        mark(7, 1, "forward+"),
        call(7, 2, 'openat(AT_FDCWD, "/d/a", O_RDONLY)', 3),
        call(7, 2, 'read(3, "x", 9)', 5),
        mark(7, 3, "forward-"),
    )
    both = merge_documents([document, document])
    assert both["phases"]["forward"]["read"] == {
        "calls": 2,
        "errors": 0,
        "seconds": pytest.approx(0.002),
        "bytes": 10,
    }
    assert both["files"] == [{"path": "/d/a", "opens": 2, "read": 10, "written": 0, "files": 2}]
    assert merge_documents([document]) == document


def test_what_takes_the_time_of_a_phase_is_a_call_of_the_main_thread() -> None:
    document = made(
        call(7, 0.5, "clone(child_stack=0x1, flags=CLONE_VM|CLONE_THREAD)", 8), mark(7, 1, "checkpoint+"),
        call(8, 1, "futex(0x7f, FUTEX_WAIT)", took=9), call(7, 2, "fsync(3)", took=4), mark(7, 11, "checkpoint-"),
    )  # fmt: skip
    (found,) = system_calls(document, ["checkpoint"])
    assert (found.what, found.share) == ("fsync()", pytest.approx(0.4))
