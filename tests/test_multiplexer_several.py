# ruff: noqa: F811 -- fixtures are taken over by their names
"""A harness of several processes: side by side, waited for, left, asked to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING

import pytest
from multiplexing import (
    Gate,
    NamedEntry,
    ended,
    events,
    gate,  # noqa: F401 -- fixture
    no_descriptor_is_leaked,  # noqa: F401 -- fixture
    of_pipe,
    open_descriptors,
    program,
)

from voirkit.multiplexer import LogEntry, Multiplexer, Stream, run

if TYPE_CHECKING:
    from pathlib import Path


def test_two_processes_run_side_by_side() -> None:
    # Each waits for the other: they would never end one after the other.
    (r1, w1), (r2, w2) = os.pipe(), os.pipe()
    with Multiplexer(timeout=None, constructor=NamedEntry) as multiplexer:
        for name, r, w in (("one", r1, w2), ("two", r2, w1)):
            code = f'log({{"n": 1}}); os.write({w}, b"x"); os.read({r}, 1); log({{"n": 2}})'
            multiplexer.start(program(code), {"name": name}, pass_fds=[r, w])
        for fd in (r1, w1, r2, w2):
            os.close(fd)
        entries = list(multiplexer)
    for name in ("one", "two"):
        own = [e for e in entries if e.name == name]
        assert [e.event for e in own] == ["start", "data", "data", "end"]
        assert [e.data["n"] for e in own[1:3]] == [1, 2]


def test_hundreds_of_processes_at_once_lose_nothing() -> None:
    count = 150
    script = 'for i in range(20): os.write(1, b"%d\\n" % i)\nos.write(int(os.environ["DATA_FD"]), b"[1]\\n")\nos._exit(0)'
    argv = [sys.executable, "-I", "-S", "-c", "import os\n" + script]
    with Multiplexer(timeout=None, constructor=NamedEntry) as multiplexer:
        for i in range(count):
            multiplexer.start(argv, {"name": str(i)})
        entries = list(multiplexer)
    by_name: dict[str, list[NamedEntry]] = {}
    for entry in entries:
        by_name.setdefault(entry.name, []).append(entry)
    assert len(by_name) == count
    for own in by_name.values():
        assert [e.data for e in own if e.pipe == "stdout"] == [f"{i}\n" for i in range(20)]
        assert (own[0].event, own[-1].event, len(own)) == ("start", "end", 23)


def test_descriptors_above_1023_are_no_limit() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip("this machine allows no 2000 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert of_pipe(events(run(program('print("x")'))), "stdout") == ["x\n"]
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_may_be_started_while_iterating() -> None:
    with Multiplexer(timeout=None, constructor=NamedEntry) as multiplexer:
        multiplexer.start(program("pass"), {"name": "first"})
        seen = []
        for entry in multiplexer:
            seen.append((entry.name, entry.event))
            if seen[-1] == ("first", "end"):
                multiplexer.start(program('print("x")'), {"name": "second"})
    assert seen == [
        ("first", "start"),
        ("first", "end"),
        ("second", "start"),
        ("second", "line"),
        ("second", "end"),
    ]


def test_a_process_may_be_started_after_an_iteration() -> None:
    with Multiplexer(timeout=None) as multiplexer:
        for _ in range(2):
            multiplexer.start(program('print("x")'))
            assert [e.event for e in multiplexer] == ["start", "line", "end"]


def test_a_process_of_somebody_else_can_be_taken_in() -> None:
    process = subprocess.Popen(
        program('print("x"); print("[1]", file=sys.stderr)'),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    r, w = os.pipe()
    with Multiplexer(timeout=None, constructor=NamedEntry) as multiplexer:
        streams = [
            Stream(process.stdout, {"pipe": "stdout"}),
            Stream(process.stderr, {"pipe": "data"}, json.loads),
        ]
        multiplexer.add_process(
            proc=process, argv=["it"], info={"name": "me"}, streams=streams, w=w
        )
        entries = list(multiplexer)
    os.close(r)
    assert {(e.event, e.pipe, e.name) for e in entries} == {
        ("line", "stdout", "me"),
        ("data", "data", "me"),
        ("end", None, "me"),
    }
    assert entries[-1].data["command"] == ["it"]


# waiting and leaving


def test_without_a_timeout_nothing_but_entries_comes() -> None:
    with run(program('print("x")'), timeout=None) as multiplexer:
        assert None not in list(multiplexer)


def test_with_a_timeout_none_comes_while_nothing_happens(gate: Gate) -> None:
    with run(program(f"os.read({gate.fd}, 1)"), timeout=0.001, pass_fds=[gate.fd]) as multiplexer:
        ticks = iter(multiplexer)
        assert next(ticks).event == "start"
        assert [next(ticks) for _ in range(5)] == [None] * 5
        gate.open()
        assert [e.event for e in ticks if e is not None] == ["end"]


def test_a_multiplexer_does_not_wait_unless_told() -> None:
    assert Multiplexer().timeout == 0


def test_an_iteration_can_be_taken_up_again_where_it_was_left() -> None:
    with run(program("[print(i) for i in range(100)]")) as multiplexer:
        seen: list[LogEntry] = []
        while multiplexer.processes or not seen or seen[-1].event != "end":
            for entry in multiplexer:
                seen.append(entry)
                break
    assert of_pipe(seen, "stdout") == [f"{i}\n" for i in range(100)]
    assert [e.event for e in (seen[0], seen[-1])] == ["start", "end"]


def test_leaving_the_with_block_closes_the_pipes_and_ends_no_process(gate: Gate) -> None:
    with run(
        program(f'print("x", flush=True); os.read({gate.fd}, 1)'), pass_fds=[gate.fd]
    ) as multiplexer:
        (process,) = multiplexer.processes
        for entry in multiplexer:
            if entry.event == "line":
                break
    assert process.poll() is None
    assert process.stdout is not None
    assert process.stdout.closed
    gate.open()
    assert process.wait() == 0


def test_a_multiplexer_that_nobody_holds_closes_its_pipes(gate: Gate) -> None:
    before = open_descriptors()
    multiplexer = run(program(f"os.read({gate.fd}, 1)"), pass_fds=[gate.fd])
    (process,) = multiplexer.processes
    for entry in multiplexer:
        assert entry.event == "start"
        break
    del multiplexer
    assert open_descriptors() == before
    gate.open()
    process.wait()


def test_a_closed_multiplexer_has_nothing_more_to_tell() -> None:
    multiplexer = run(program("print(1)"))
    (process,) = multiplexer.processes
    multiplexer.close()
    multiplexer.close()
    assert list(multiplexer) == []
    process.wait()
    with pytest.raises(ValueError, match="closed"):
        multiplexer.start(program("pass"))


def test_terminate_asks_the_processes_to_end() -> None:
    with Multiplexer(timeout=None) as multiplexer:
        multiplexer.start(program('print("ready", flush=True); time.sleep(600)'))
        entries = []
        for entry in multiplexer:
            entries.append(entry)
            if entry.event == "line":
                multiplexer.terminate()
    assert ended(entries) == -signal.SIGTERM


def test_terminate_spares_a_process_of_somebody_else(gate: Gate) -> None:
    process = subprocess.Popen(
        program(f"os.read({gate.fd}, 1)"), stdout=subprocess.PIPE, pass_fds=[gate.fd]
    )
    with Multiplexer(timeout=None) as multiplexer:
        multiplexer.add_process(
            proc=process, argv=[], info={}, streams=[Stream(process.stdout, {"pipe": "stdout"})]
        )
        multiplexer.terminate()
        gate.open()
        assert ended(list(multiplexer)) == 0


def test_a_process_that_another_thread_waits_for_ends_here_too(gate: Gate) -> None:
    with run(program(f"os.read({gate.fd}, 1)"), pass_fds=[gate.fd]) as multiplexer:
        (process,) = multiplexer.processes
        thread = threading.Thread(target=process.wait)
        thread.start()
        gate.open()
        assert ended(list(multiplexer)) == 0
        thread.join()


def test_a_pipe_that_the_harness_has_closed_itself_is_no_error() -> None:
    with run(program("pass")) as multiplexer:
        (process,) = multiplexer.processes
        assert process.stdout is not None
        process.stdout.close()
        assert ended(list(multiplexer)) == 0


def test_a_forked_child_that_drops_its_copy_does_not_make_the_parent_deaf(tmp_path: Path) -> None:
    harness = tmp_path / "harness.py"
    child = program('sys.stdin.readline(); print("done")')
    harness.write_text(
        textwrap.dedent(f"""
        import os, subprocess
        from voirkit.multiplexer import run
        multiplexer = run({child!r}, stdin=subprocess.PIPE)
        (process,) = multiplexer.processes
        if os.fork() == 0:
            del multiplexer
            os._exit(0)
        os.wait()
        process.stdin.close()
        print([entry.event for entry in multiplexer])
        multiplexer.close()
        """)
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", harness], capture_output=True, text=True, timeout=240
    )
    assert (done.stdout, done.stderr) == ("['start', 'line', 'end']\n", "")


def test_after_control_c_the_iteration_can_go_on(tmp_path: Path) -> None:
    harness = tmp_path / "harness.py"
    child = program('print("ready", flush=True); sys.stdin.readline(); print("done")')
    harness.write_text(
        textwrap.dedent(f"""
        import subprocess
        from voirkit.multiplexer import run
        with run({child!r}, stdin=subprocess.PIPE, start_new_session=True) as multiplexer:
            (process,) = multiplexer.processes
            try:
                for entry in multiplexer:
                    print(entry.event, flush=True)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            process.stdin.close()
            for entry in multiplexer:
                print(entry.event, entry.data if entry.event == "line" else "")
        """)
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "error", harness],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["start\n", "line\n"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (out.split(), err) == (["interrupted", "line", "done", "end"], "")
