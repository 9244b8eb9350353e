"""When the disk is full, the folder is not to be written to or gone, or the limit is reached: recording stops, one warning, the program goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tracing import Traced

GOES_ON = """
n, more = name("a", "b"), name("a", "more")
recorder.begin(FOLDER)
def work(times=20_000):
    s = Span(more)
    for i in range(times):
        span(n, i, i)
        with s: pass
"""
ONCE = "what comes now is counted as dropped.\n"


def test_a_file_that_may_not_grow(traced: Traced) -> None:
    out, err = traced.told(
        GOES_ON
        + """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
threads = [threading.Thread(target=work) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
totals = recorder.end()
assert totals.stopped and not recorder.is_recording()
print(totals.events, sum(totals.dropped.values()), sorted(totals.dropped))
"""
    )
    assert err.count("voirkit: ") == 1
    assert err.endswith(f"cannot be written (File too large); {ONCE}")
    events, dropped, names = out.split(maxsplit=2)
    assert int(events) == traced.read().rows > 4000
    assert int(events) + int(dropped) == 4 * 40_000
    assert names == "['a.b', 'a.more']\n"
    assert sum(traced.read().dropped.values()) == int(dropped)


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0 or shutil.which("mount") is None,
    reason="mounts a file system",
)
@pytest.mark.parametrize("size", ["8k", "100k", "1m", "5m"])
def test_a_full_disk(traced: Traced, size: str) -> None:
    (traced.folder / "run").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", traced.folder / "run"],
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        out, err = traced.told(
            GOES_ON
            + """
layout.LARGEST_WINDOW = 1 << 22
work(100_000)
if os.fork() == 0:
    work(1000)   # in silence: it has been told
    os._exit(0)
os.wait()
totals = recorder.end()
print(totals.events, sum(totals.dropped.values()))
"""
        )
        events, dropped = map(int, out.split())
        assert err.count("voirkit: ") == 1
        assert err.endswith(f"cannot be written (No space left on device); {ONCE}")
        assert traced.read().rows == events
        assert events + dropped == 200_000
        assert (events > 0) == (size not in ("8k",))
    finally:
        subprocess.run(["umount", traced.folder / "run"], check=True)


def test_a_folder_that_can_not_be_made(traced: Traced) -> None:
    (traced.folder / "run").write_text("a file is in its place")
    out, err = traced.told(
        GOES_ON
        + """
work()
totals = recorder.end()
print(totals.events, totals.dropped)
"""
    )
    assert out == "0 {'a.b': 20000, 'a.more': 20000}\n"
    assert err.count("voirkit: ") == 1
    assert "run/trace cannot be written" in err


@pytest.mark.skipif(
    os.name != "posix" or not Path("/proc/self").exists(),
    reason="needs a folder that nobody may write to",
)
def test_a_read_only_folder(traced: Traced) -> None:
    # /proc may be written to by nobody, root included.
    out, err = traced.told(
        """
FOLDER = "/proc/self"
"""
        + GOES_ON
        + """
work()
print(recorder.end().dropped)
"""
    )
    assert out == "{'a.b': 20000, 'a.more': 20000}\n"
    assert err.count("voirkit: ") == 1


def test_a_folder_that_is_deleted_underneath(traced: Traced) -> None:
    out, err = traced.told(
        GOES_ON
        + """
import shutil
work(100)
shutil.rmtree(FOLDER)
work()
t = threading.Thread(target=work)
t.start()
t.join()
totals = recorder.end()
print(totals.events + sum(totals.dropped.values()))
assert not os.path.exists(FOLDER)
"""
    )
    assert out == f"{2 * (100 + 2 * 20_000)}\n"
    assert err.count("voirkit: ") == 1
    assert "No such file or directory" in err


def test_a_file_that_is_replaced_by_a_link_is_not_followed(traced: Traced) -> None:
    out, err = traced.told(
        GOES_ON
        + """
open("precious", "w").write("precious")
work(10)
[segment] = [f for f in os.listdir(FOLDER + "/trace") if f.endswith(".seg")]
os.unlink(FOLDER + "/trace/" + segment)
os.symlink(os.path.abspath("precious"), FOLDER + "/trace/" + segment)
work()
recorder.end()
print(open("precious").read())
"""
    )
    assert out == "precious\n"
    assert err.count("voirkit: ") == 1


def test_the_limit_holds_for_all_processes_together_and_what_is_beyond_is_counted(
    traced: Traced,
) -> None:
    out, _ = traced.told("""
        recorder.begin(FOLDER, limit=3_000_000)
        n = [name("a", f"n{i}") for i in range(6)]
        children = []
        for k in range(5):
            pid = os.fork()
            if pid == 0:
                for i in range(60_000): span(n[k], i, i)
                os._exit(0)
            children.append(pid)
        for i in range(120_000): span(n[5], i, i)  # more than the limit by itself: it stops, whoever comes first
        for pid in children: os.waitpid(pid, 0)
        print(recorder.end().stopped)
    """)
    assert out == "the recording has reached its limit of 2.861 MiB (--trace-limit)\n"
    used = sum(path.stat().st_size for path in traced.files if path.suffix != ".dropped")
    assert 1_500_000 < used <= 3_000_000 + 6 * 70_000
    columns = traced.read()
    for i in range(6):
        found = traced.counts()[f"n{i}"]
        assert found + columns.dropped.get(f"a.n{i}", 0) == (120_000 if i == 5 else 60_000)


def test_a_limit_below_one_window_records_nothing_and_counts_all(traced: Traced) -> None:
    out, err = traced.told("""
        recorder.begin(FOLDER, limit=1000)
        for i in range(100): span(name("a", "b"), i, i)
        print(recorder.end())
    """)
    assert "dropped={'a.b': 100}" in out
    assert "stopped='the recording has reached its limit of 1000 bytes (--trace-limit)'" in out
    assert (
        err == f"voirkit: the recording has reached its limit of 1000 bytes (--trace-limit); {ONCE}"
    )


def test_lines_of_names_and_arguments_count_towards_the_limit(traced: Traced) -> None:
    traced.told("""
        recorder.begin(FOLDER, limit=400_000)
        n = name("a", "b")
        for i in range(20_000):
            span(n, i, i, recorder.arguments({"text": "x" * 1000, "i": i}))
    """)
    assert sum(path.stat().st_size for path in traced.files if path.suffix != ".dropped") < 450_000


def test_a_warning_that_can_not_be_told_is_in_the_totals(traced: Traced) -> None:
    out = traced.run("""
        def tell(text): raise OSError("closed")
        recorder.begin(FOLDER, limit=1000, tell=tell)
        span(name("a", "b"), 1, 2)
        print(recorder.end().stopped is not None)
    """)
    assert out == "True\n"


def test_a_place_that_a_thread_had_taken_as_recording_stopped_holds_no_event(
    tmp_path: Path,
) -> None:
    """With the recorder in Python: another thread may take the windows away between a place and its record."""
    traced = Traced(tmp_path, "python")
    out, _ = traced.told(
        """
        from voirkit.trace import plain
        n = name("a", "b")
        recorder.begin(FOLDER)
        span(n, 1, 2)
        window, place = plain._local.room

        def interrupted():
            taken = place()
            recorder._process.recording._stop("planted")
            return taken

        plain._local.room = window, interrupted
        span(n, 3, 4)
        totals = recorder.end()
        print(totals.events, totals.dropped)
        """
    )
    assert out == "1 {'a.b': 1}\n"
    assert traced.read().rows == 1
