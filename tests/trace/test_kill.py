"""A program that is killed: every span that had ended is in the files."""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from left_processes import kill_with_children
from tracing import Traced, ended

pytestmark = pytest.mark.long

# The program counts, in memory that survives it, what it has recorded: after each span.
COUNTING = """
import mmap
with open("counts", "r+b") as file:
    counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")  # struct.pack_into would make a number 0 before it writes it
def record(slot, name_id, times=10**9):
    s = Span(name_id)
    for i in range(1, times):
        if i % 3:
            span(name_id, i, i + 1, recorder.arguments({"step": i // 100}) if i % 50 == 0 else 0)
        else:
            with s: pass
        counts[slot] = i
        if i % 700 == 0:
            name_id = name(f"slot {slot}", str(i))
            s = Span(name_id)
recorder.begin(FOLDER)
"""
SLOTS = 16


def counted(traced: Traced) -> list[int]:
    return list(struct.unpack(f"<{SLOTS}q", (traced.folder / "counts").read_bytes()))


def recorded(traced: Traced) -> list[int]:
    columns = traced.read()
    found = [0] * SLOTS
    for code in columns["name"].tolist():
        found[int(columns.names[code].category.removeprefix("slot "))] += (
            1  # a name without its line could not be looked up
        )
    return found


@pytest.fixture(autouse=True)
def reading_says_nothing(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    assert capfd.readouterr() == ("", "")


def kill_when_recording(traced: Traced, program: str, pid_of: str | None = None) -> None:
    """Start a program and kill it, or the process whose id it writes into a file, at some moment."""
    (traced.folder / "counts").write_bytes(bytes(8 * SLOTS))
    victim = traced.folder / (pid_of or "")
    process = traced.start(COUNTING + program, start_new_session=True)
    try:
        while not any(counted(traced)) or not (
            pid_of is None or (victim.exists() and victim.read_text())
        ):
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.3))
        if pid_of is not None:
            os.kill(int(victim.read_text()), signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGKILL)
    except BaseException:
        kill_with_children(process.pid)
        raise
    assert ended(process) == ("", "")


def test_kill_at_any_moment_loses_no_span_that_ended(traced: Traced) -> None:
    for _ in range(12):
        kill_when_recording(traced, """record(0, name("slot 0", "first"))""")
        found, said = recorded(traced)[0], counted(traced)[0]
        assert said <= found <= said + 1  # one may have been recorded and not counted yet
        for path in traced.files:
            path.unlink()


def test_the_export_of_a_killed_run_says_nothing_but_what_it_wrote(traced: Traced) -> None:
    kill_when_recording(traced, """record(0, name("slot 0", "first"))""")
    (traced.folder / "run" / "run.json").write_text(
        '{"schema": 1, "voirkit": "0"}'
    )  # as voirkit's runner writes it
    for _ in ("from segments, and puts them to rest", "from Parquet"):
        done = subprocess.run(
            [sys.executable, "-m", "voirkit", "export", "run", "--format", "csv", "-o", "run.csv", "--force"],
            cwd=traced.folder, env=traced.env, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "run.csv\n", "")
        assert (traced.folder / "run.csv").read_text().count("\n") - 1 in (
            counted(traced)[0],
            counted(traced)[0] + 1,
        )


def test_kill_with_many_threads(traced: Traced) -> None:
    for _ in range(4):
        kill_when_recording(
            traced,
            """
for slot in range(8):
    threading.Thread(target=record, args=(slot, name(f"slot {slot}", "first"))).start()
""",
        )
        for found, said in zip(recorded(traced), counted(traced), strict=True):
            assert said <= found <= said + 1
        for path in traced.files:
            path.unlink()


def test_kill_of_a_worker_and_of_all_processes_at_once(traced: Traced) -> None:
    program = """
for slot in range(4):
    pid = os.fork()
    if pid == 0:
        record(slot, name(f"slot {slot}", "first"))
    open(f"pid {slot}", "w").write(str(pid))
os.wait()
os.killpg(0, signal.SIGKILL)
"""
    for victim in ("pid 0", None, None):
        kill_when_recording(traced, program, victim)
        for found, said in zip(recorded(traced), counted(traced), strict=True):
            assert said <= found <= said + 1
        for path in traced.files:
            path.unlink()


def test_the_counts_of_what_was_dropped_survive_too(traced: Traced) -> None:
    (traced.folder / "counts").write_bytes(bytes(8 * SLOTS))
    process = traced.start(
        COUNTING
        + """
recorder.end()
recorder.begin(FOLDER, limit=100_000, tell=lambda text: None)
n = name("slot 0", "x")
record(0, n, 20_000)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    assert ended(process) == ("", "")
    assert process.returncode == -signal.SIGKILL
    columns = traced.read()
    assert columns.rows > 0
    assert columns.rows + sum(columns.dropped.values()) == counted(traced)[0] == 19_999


def test_a_segment_that_ends_anywhere_is_read_up_to_its_last_whole_record(traced: Traced) -> None:
    traced.run("""
        recorder.begin(FOLDER)
        for i in range(100):
            span(name("a", "b"), i, i + 1)
        recorder.end()
    """)
    [segment] = [path for path in traced.files if path.suffix == ".seg"]
    [names] = [path for path in traced.files if path.suffix == ".names"]
    whole, lines = segment.read_bytes(), names.read_bytes()
    assert len(whole) == 64 + 32 * 101
    for length in [
        *range(0, 200),
        len(whole) - 33,
        len(whole) - 32,
        len(whole) - 31,
        len(whole) - 1,
    ]:
        segment.write_bytes(whole[:length])
        assert traced.read()["start_ns"].tolist() == list(range(max((length - 64) // 32 - 1, 0)))
    for length in range(0, len(lines), 7):
        names.write_bytes(lines[:length])
        traced.read()  # whatever is there


def test_places_that_were_never_written_are_skipped(traced: Traced) -> None:
    traced.run("""
        recorder.begin(FOLDER)
        for i in range(100):
            span(name("a", "b"), i, i + 1)
    """)
    [segment] = [path for path in traced.files if path.suffix == ".seg"]
    with segment.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
        for hole in (3, 50, 99):
            at = 64 + 32 * (hole + 1)
            mapped[at + 28 : at + 32] = bytes(4)  # all of it but the name, which is written last
        mapped.close()
    assert traced.read()["start_ns"].tolist() == [i for i in range(100) if i not in (3, 50, 99)]


def test_a_run_is_read_while_it_is_recorded(traced: Traced) -> None:
    (traced.folder / "counts").write_bytes(bytes(8 * SLOTS))
    slowly = COUNTING.replace(
        "if i % 700 == 0:", "if i % 50 == 0: time.sleep(0.001)\n        if i % 700 == 0:"
    )
    process = traced.start(
        slowly + """record(0, name("slot 0", "first"))""", start_new_session=True
    )
    try:
        while not any(counted(traced)):
            time.sleep(0.001)
        before = 0
        for _ in range(30):
            said = counted(traced)[0]
            found = recorded(traced)[0]
            assert found >= max(said, before)
            before = found
        assert before > 0
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        told = ended(process)
    assert told == ("", "")
