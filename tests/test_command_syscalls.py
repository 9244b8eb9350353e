"""``voirkit syscalls``: logs of strace made anywhere, and what two of them differ in."""

from __future__ import annotations

import json
import resource
import sys

import pytest
from conftest import Ended, Place

pytestmark = pytest.mark.long

LOG = """\
7 1.000000 access("/vk!forward+", F_OK) = -1 ENOENT (No such file or directory) <0.000001>
7 1.100000 openat(AT_FDCWD, "/data/a.txt", O_RDONLY) = 3 <0.000010>
7 1.200000 read(3, "ab", 4096) = 2 <0.000020>
7 1.300000 futex(0x7f, FUTEX_WAIT_PRIVATE, 2, NULL) = 0 <0.500000>
7 1.900000 access("/vk!forward-", F_OK) = -1 ENOENT (No such file or directory) <0.000001>
"""


def syscalls(place: Place, *words: str) -> Ended:
    return place.run(sys.executable, "-m", "voirkit", "syscalls", *words)


def test_a_log_is_shown_by_phase_and_call(place: Place) -> None:
    (place.folder / "a.strace").write_text(LOG)
    shown = syscalls(place, "a.strace")
    assert shown.code == 0, shown.err
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["main", "forward", "all", "3", "30", "µs", "2", "bytes", "working"] in rows
    assert ["read", "1", "20", "µs", "20", "µs", "2", "bytes"] in rows
    assert ["futex", "1", "500", "ms", "500", "ms", "waits"] in rows
    assert "file  /data/a.txt  1 opens, 2 bytes read" in shown.out
    assert "2 markers" in shown.out


def test_json_has_everything(place: Place) -> None:
    (place.folder / "a.strace").write_text(LOG)
    document = json.loads(syscalls(place, "--json", "a.strace").out)
    assert document["phases"]["forward"]["openat"] == {
        "calls": 1,
        "errors": 0,
        "seconds": 0.00001,
        "bytes": 0,
    }


def test_two_logs_are_compared_with_the_sign_of_what_the_second_has_more(place: Place) -> None:
    (place.folder / "a.strace").write_text(LOG)
    (place.folder / "b.strace").write_text(
        LOG.replace("read(3", "pread64(3") + "7 2.0 getpid() = 7 <0.000001>\n" * 3
    )
    rows = [line.split() for line in syscalls(place, "a.strace", "b.strace").out.splitlines()]
    assert [
        "forward",
        "read",
        "1",
        "0",
        "-1",
        "-20",
        "µs",
        "-2",
        "bytes",
        "in",
        "A",
        "alone",
    ] in rows
    assert [
        "forward",
        "pread64",
        "0",
        "1",
        "+1",
        "+20",
        "µs",
        "+2",
        "bytes",
        "in",
        "B",
        "alone",
    ] in rows
    assert ["other", "getpid", "0", "3", "+3", "+3", "µs", "in", "B", "alone"] in rows
    assert ["all", "3", "6", "+3", "+3", "µs"] in rows


def test_errors_are_compared_too(place: Place) -> None:
    (place.folder / "a.strace").write_text(LOG)
    (place.folder / "b.strace").write_text(
        LOG.replace("O_RDONLY) = 3 <", "O_RDONLY) = -1 ENOENT (No such file or directory) <")
    )
    rows = [line.split() for line in syscalls(place, "a.strace", "b.strace").out.splitlines()]
    assert ["forward", "openat", "1", "1", "+0", "+1"] in rows
    (row,) = (
        row
        for row in json.loads(syscalls(place, "--json", "b.strace", "a.strace").out)
        if row["more_errors"]
    )
    assert (row["name"], row["errors"], row["more_errors"]) == ("openat", [1, 0], -1)


def test_a_log_without_phases_is_compared_as_a_whole(place: Place) -> None:
    (place.folder / "a.strace").write_text(LOG)
    (place.folder / "b.strace").write_text(
        "".join(line for line in LOG.splitlines(keepends=True) if "/vk!" not in line)
    )
    shown = syscalls(place, "a.strace", "b.strace").out
    assert "3 rows are alike" in shown


def test_a_log_without_durations_has_no_times_to_compare(place: Place) -> None:
    (place.folder / "a.strace").write_text(LOG)
    (place.folder / "b.strace").write_text(
        LOG.replace(" <0.000020>", "")
        .replace(" <0.000010>", "")
        .replace(" <0.500000>", "")
        .replace(" <0.000001>", "")
    )
    shown = syscalls(place, "a.strace", "b.strace").out
    assert "times are not compared" in shown
    assert "µs" not in shown


def test_the_most_frequent_and_the_longest_calls_have_their_share(place: Place) -> None:
    (place.folder / "a.strace").write_text(LOG)
    rows = [line.split() for line in syscalls(place, "a.strace").out.splitlines()]
    assert ["futex", "1", "33.3%", "read", "20", "µs", "66.7%"] in rows
    assert ["futex", "500", "ms", "100.0%"] in rows


def test_a_map_shows_when_calls_were_made(place: Place) -> None:
    (place.folder / "a.strace").write_text(LOG)
    lines = syscalls(place, "--over-time", "a.strace").out.splitlines()
    phases = next(line for line in lines if line.startswith("phase   "))
    assert set(phases.split()[1]) == {"f"}
    futex = next(line for line in lines if line.startswith("futex ") and "█" in line)
    assert futex.count("█") == 1
    assert any("f forward" in line for line in lines)


def test_when_they_were_made_is_not_known_of_a_log_without_times(place: Place) -> None:
    (place.folder / "a.strace").write_text("7 getpid() = 7\n")
    assert "When they were made is not known" in syscalls(place, "--over-time", "a.strace").out


def test_a_log_that_is_cut_is_read_as_far_as_it_goes(place: Place) -> None:
    (place.folder / "a.strace").write_text(LOG[:-40])
    shown = syscalls(place, "a.strace")
    assert shown.code == 0
    assert "the log is cut in its last line" in shown.out


def test_a_line_of_more_than_memory_holds_is_passed_over(place: Place) -> None:
    lines = "7 1.000000 getpid() = 7 <0.000001>\n" * 1000
    with (place.folder / "a.strace").open("w") as file:
        file.write(lines)
        file.seek(1 << 29)  # a hole, which takes no room on the disk
        file.write("\n" + lines)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))

    shown = place.run(
        sys.executable, "-m", "voirkit", "syscalls", "--json", "a.strace", preexec_fn=limit
    )
    assert shown.code == 0, shown.err
    found = json.loads(shown.out)
    assert (found["calls"], found["log"]["lines"], found["log"]["unread"]) == (2000, 2001, 1)


def test_a_blind_spot_is_named(place: Place) -> None:
    (place.folder / "a.strace").write_text(
        LOG + "7 2.0 io_uring_enter(4, 1, 1, IORING_ENTER_GETEVENTS, NULL, 8) = 1 <0.000001>\n"
    )
    assert "io_uring_enter was called 1 times" in " ".join(syscalls(place, "a.strace").out.split())


@pytest.mark.parametrize(("text", "why"), [
    ("", "it is empty."),
    ("% time     seconds  usecs/call     calls    errors syscall\n 22.50    0.890088        1862       478           writev\n", "strace -c"),
    ("hello\n", "no line of it is a system call"),
    (None, "No such file or directory"),
])  # fmt: skip
def test_what_is_no_log_is_told(place: Place, text: str | None, why: str) -> None:
    if text is not None:
        (place.folder / "a.strace").write_text(text)
    shown = syscalls(place, "a.strace")
    assert shown.code == 2
    assert why in shown.err
    assert shown.err.startswith("voirkit: a.strace: ")


def test_one_log_or_two_are_taken(place: Place) -> None:
    assert syscalls(place).code == 2
    assert syscalls(place, "a", "b", "c").code == 2


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("numbers of calls", '7 1.5 [ 257] openat(AT_FDCWD, "/a", O_RDONLY) = 3 <0.000010>'),
        ("addresses", '7 1.5 [00007f0a] openat(AT_FDCWD, "/a", O_RDONLY) = 3 <0.000010>'),
        ("names of programs", '7<pt main> 1.5 openat(AT_FDCWD, "/a", O_RDONLY) = 3 <0.000010>'),
    ],
)
def test_what_strace_writes_before_a_call_is_passed_over(
    place: Place, form: str, line: str
) -> None:
    (place.folder / "a.strace").write_text(line + "\n")
    found = json.loads(syscalls(place, "--json", "a.strace").out)
    assert found["phases"]["all"]["openat"]["calls"] == 1, form


@pytest.mark.parametrize(
    ("name", "held", "what"),
    [
        ("a.ltrace", b"7 malloc(10) = 0x1d2a2a0\n7 free(0x1d2a2a0) = <void>\n", "a log of ltrace"),
        ("a.perf", b"     0.030 ( 0.002 ms): true/12345 brk() = 0x55d0\n", "a log of perf trace"),
        ("a.bin", bytes(5000), "it is no text."),
        ("a.gz", b"\x1f\x8b\x08\0" + bytes(99), "unpacked first"),
    ],
)
def test_a_log_of_another_tool_is_told_by_its_name(
    place: Place, name: str, held: bytes, what: str
) -> None:
    (place.folder / name).write_bytes(held)
    ended = syscalls(place, name)
    assert (ended.code, ended.out) == (2, "")
    assert what in ended.err
