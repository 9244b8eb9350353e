# ruff: noqa: F811 -- fixtures are taken over by their names
"""A harness hears all that its processes print and log, in order, and how they end; and leaves nothing open."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
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
    watching,  # noqa: F401 -- fixture
)

from voirkit.multiplexer import LogEntry, Multiplexer, run

if TYPE_CHECKING:
    from pathlib import Path


# entries


def test_an_entry_is_an_event_its_data_and_a_pipe() -> None:
    entry = LogEntry("line", "x\n", pipe="stdout")
    assert entry.dict() == {"event": "line", "data": "x\n", "pipe": "stdout"}
    assert json.loads(entry.json()) == entry.dict()


def test_an_entry_is_asked_for_what_it_may_not_have() -> None:
    assert LogEntry("line", "x").get("event", None) == "line"
    assert LogEntry("line", "x").get("name", "nobody") == "nobody"


def test_an_entry_that_json_can_not_hold_is_still_json() -> None:
    assert json.loads(LogEntry("binary", b"\xff").json())["data"] == {"$unserializable": "b'\\xff'"}


# one process


def test_a_run_starts_prints_logs_and_ends() -> None:
    argv = program(
        'print("hello"); log({"loss": 1.5}); print("oops", file=sys.stderr); sys.exit(3)'
    )
    entries = events(run(argv, {}))
    first, last = entries[0], entries[-1]
    assert (first.event, first.pipe, first.data["command"]) == ("start", None, argv)
    assert of_pipe(entries, "stdout") == ["hello\n"]
    assert of_pipe(entries, "stderr") == ["oops\n"]
    assert of_pipe(entries, "data") == [{"loss": 1.5}]
    assert {e.event for e in entries} == {"start", "line", "data", "end"}
    assert (last.event, last.data["command"], last.data["return_code"]) == ("end", argv, 3)
    assert last.data["time"] >= first.data["time"]


def test_the_number_of_a_signal_is_told_as_subprocess_does() -> None:
    assert ended(events(run(program("os.kill(os.getpid(), 9)")))) == -9


def test_a_named_event_is_an_event_of_its_own() -> None:
    entries = events(
        run(program('log({"$event": "phase", "$data": {"name": "init"}}); log({"$event": "bare"})'))
    )
    assert [(e.event, e.data, e.pipe) for e in entries[1:-1]] == [
        ("phase", {"name": "init"}, "data"),
        ("bare", None, "data"),
    ]


def test_other_keys_of_a_named_event_go_to_the_constructor() -> None:
    entries = events(
        run(program('log({"$event": "x", "$data": 1, "name": "me"})'), constructor=NamedEntry)
    )
    assert entries[1] == NamedEntry("x", 1, "data", name="me")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("{not json", "JSONDecodeError"),
        ("5", "TypeError"),
        ('{"$event": "x", "unknown": 1}', "TypeError"),
    ],
)
def test_a_line_of_data_that_can_not_be_understood_is_told(line: str, kind: str) -> None:
    entries = events(
        run(
            program(
                f'os.write(int(os.environ["DATA_FD"]), {line.encode()!r} + b"\\n"); log({{"x": 1}})'
            )
        )
    )
    problem = entries[1]
    assert (problem.event, problem.pipe) == ("format_error", "data")
    assert (problem.data["line"], problem.data["type"]) == (line + "\n", kind)
    assert problem.data["message"]
    assert entries[2].data == {"x": 1}


@pytest.mark.parametrize("pipe", ["stdout", "stderr"])
def test_bytes_that_are_no_text_come_as_they_are(pipe: str) -> None:
    entries = events(run(program(f'sys.{pipe}.buffer.write(b"a\\xffb\\n" + "é\\n".encode())')))
    assert [(e.event, e.data, e.pipe) for e in entries[1:-1]] == [
        ("binary", b"a\xffb\n", pipe),
        ("line", "é\n", pipe),
    ]


def test_data_that_is_no_text_comes_as_it_is() -> None:
    entries = events(run(program('os.write(int(os.environ["DATA_FD"]), b"\\xff\\n")')))
    assert (entries[1].event, entries[1].data, entries[1].pipe) == ("binary", b"\xff\n", "data")


def test_lines_keep_their_line_ends() -> None:
    entries = events(run(program('sys.stdout.buffer.write(b"a\\r\\n10%\\r20%\\r\\n\\n")')))
    assert of_pipe(entries, "stdout") == ["a\r\n", "10%\r20%\r\n", "\n"]


def test_a_last_line_without_a_newline_is_not_lost() -> None:
    code = 'sys.stdout.write("a\\nout"); sys.stderr.write("err"); os.write(int(os.environ["DATA_FD"]), b"[1]")'
    entries = events(run(program(code)))
    assert of_pipe(entries, "stdout") == ["a\n", "out"]
    assert of_pipe(entries, "stderr") == ["err"]
    assert of_pipe(entries, "data") == [[1]]
    assert entries[-1].event == "end"


def test_a_line_that_comes_in_pieces_is_one_line(gate: Gate) -> None:
    code = f'os.write(1, "é".encode()[:1]); os.read({gate.fd}, 1); os.write(1, "é".encode()[1:] + b"!\\n")'
    with Multiplexer(timeout=0.01) as multiplexer:
        multiplexer.start(program(code), pass_fds=[gate.fd])
        ticks = iter(multiplexer)
        assert next(ticks).event == "start"
        assert next(ticks) is None
        gate.open()
        assert [e.data for e in ticks if e is not None and e.event == "line"] == ["é!\n"]


def test_a_huge_line_comes_whole() -> None:
    entries = events(run(program('print("x" * 5_000_000); log({"x": "y" * 5_000_000})')))
    assert of_pipe(entries, "stdout") == ["x" * 5_000_000 + "\n"]
    assert of_pipe(entries, "data") == [{"x": "y" * 5_000_000}]


def test_all_output_of_a_process_that_ends_at_once_arrives() -> None:
    entries = events(
        run(
            program(
                '[print(i) for i in range(20000)]; [log({"i": i}) for i in range(2000)]; os._exit(0)'
            )
        )
    )
    assert of_pipe(entries, "data") == [{"i": i} for i in range(2000)]
    # os._exit loses what python has buffered, so only what was written counts
    lines = of_pipe(entries, "stdout")
    assert "".join(lines) == "".join(f"{i}\n" for i in range(20000))[: sum(map(len, lines))]
    assert sum(map(len, lines)) > 100_000


def test_a_process_that_closes_its_pipes_and_goes_on_is_waited_for(
    gate: Gate, watching: str
) -> None:
    code = f"""
        for fd in (1, 2, int(os.environ["DATA_FD"])): os.close(fd)
        os.read({gate.fd}, 1)
        os._exit(7)
    """
    with Multiplexer(timeout=0.01) as multiplexer:
        multiplexer.start(program(code), pass_fds=[gate.fd])
        ticks = iter(multiplexer)
        seen = [next(ticks) for _ in range(5)]
        gate.open()
        seen += ticks
    assert [e.event for e in seen if e is not None] == ["start", "end"]
    assert seen[-1].data["return_code"] == 7


@pytest.mark.parametrize("use_stdout", [False, True])
def test_a_grandchild_that_holds_the_pipes_open_does_not_hold_up_the_end(
    gate: Gate, watching: str, use_stdout: bool
) -> None:
    code = f"""
        if os.fork() == 0:
            os.read({gate.fd}, 1)
            os._exit(0)
        os.write(1, b"last words")
        os._exit(5)
    """
    entries = events(run(program(code), use_stdout=use_stdout, pass_fds=[gate.fd]))
    assert of_pipe(entries, "stdout") == ["last words"]
    assert ended(entries) == 5


def test_a_grandchild_that_goes_on_writing_does_not_hold_up_the_end_either() -> None:
    code = """
        if os.fork() == 0:
            while True: os.write(1, b"x" * 1000 + b"\\n")  # ends with SIGPIPE
        os._exit(5)
    """
    assert (
        ended(
            events(
                run(
                    program(
                        "import signal; signal.signal(13, signal.SIG_DFL)" + textwrap.dedent(code)
                    )
                )
            )
        )
        == 5
    )


def test_the_data_pipe_ends_with_the_process_and_not_with_the_harness() -> None:
    multiplexer = run(program("pass"))
    (running,) = multiplexer.processes.values()
    pipes = [stream.pipe for stream in running.streams]
    events(multiplexer)
    assert all(pipe.closed for pipe in pipes)


# options


def test_the_environment_is_this_processs_own_or_the_given_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_TEST", "1")
    code = 'print(os.environ.get("HARNESS_TEST"), "DATA_FD" in os.environ)'
    assert of_pipe(events(run(program(code))), "stdout") == ["1 True\n"]
    assert of_pipe(events(run(program(code), env={})), "stdout") == ["None True\n"]
    assert "DATA_FD" not in os.environ


@pytest.mark.parametrize(("buffered", "value"), [(True, "None"), (False, "1")])
def test_buffering_is_what_its_name_says(
    monkeypatch: pytest.MonkeyPatch, buffered: bool, value: str
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    code = 'print(os.environ.get("PYTHONUNBUFFERED"))'
    assert of_pipe(events(run(program(code), buffered=buffered)), "stdout") == [value + "\n"]


def test_options_of_popen_are_passed_on(tmp_path: Path) -> None:
    entries = events(
        run(
            program('print(os.getcwd()); print("e", file=sys.stderr)'),
            cwd=tmp_path,
            stderr=subprocess.STDOUT,
        )
    )
    assert sorted(of_pipe(entries, "stdout")) == sorted([f"{tmp_path}\n", "e\n"])


def test_each_entry_carries_the_info_of_its_process() -> None:
    entries = events(
        run(program('print("x"); log({"y": 1})'), {"name": "me"}, constructor=NamedEntry)
    )
    assert {e.event for e in entries} == {"start", "line", "data", "end"}
    assert {e.name for e in entries} == {"me"}  # type: ignore[attr-defined]


def test_an_info_that_the_constructor_does_not_take_starts_nothing(tmp_path: Path) -> None:
    with Multiplexer() as multiplexer:
        with pytest.raises(TypeError, match="nickname"):
            multiplexer.start(
                program(f"open({str(tmp_path / 'started')!r}, 'w')"), {"nickname": "me"}
            )
        assert not multiplexer.processes
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("use_stdout", [False, True])
def test_a_program_that_can_not_be_started_leaves_nothing_open(use_stdout: bool) -> None:
    with Multiplexer() as multiplexer:
        before = open_descriptors()
        with pytest.raises(FileNotFoundError):
            multiplexer.start(["/no/such/program"], use_stdout=use_stdout)
        assert open_descriptors() == before
        assert events(multiplexer) == []


def test_run_leaves_nothing_open_either_when_the_program_can_not_be_started() -> None:
    with pytest.raises(FileNotFoundError):
        run(["/no/such/program"])


# data in standard output

SMUGGLER = """
from voirkit.escape import SmuggleWriter
out = SmuggleWriter(sys.stdout)
assert os.environ["DATA_FD"] == "1"
"""


def test_data_hidden_in_standard_output_is_taken_out_of_it() -> None:
    code = SMUGGLER + textwrap.dedent("""
        print("\\x1b[31ma\\x1b[0m é")
        print('{"x": 1}', file=out)
        print("b")
        print('{"y":', file=out, end="")
        print("c")
        print(" 2}", file=out)
    """)
    entries = events(run(program(code), use_stdout=True))
    assert [(e.data, e.pipe) for e in entries[1:-1]] == [
        ("\x1b[31ma\x1b[0m é\n", "stdout"),
        ({"x": 1}, "data"),
        ("b\n", "stdout"),
        ("c\n", "stdout"),
        ({"y": 2}, "data"),
    ]


def test_a_hidden_line_may_stand_in_the_midst_of_a_printed_one() -> None:
    code = SMUGGLER + 'print("a", end=""); print("[1]", file=out); print("b", end="")'
    entries = events(run(program(code), use_stdout=True))
    assert [(e.data, e.pipe) for e in entries[1:-1]] == [([1], "data"), ("ab", "stdout")]


def test_half_a_sequence_at_the_end_is_plain_output() -> None:
    entries = events(run(program('sys.stdout.write("a\\n\\x1b[12")'), use_stdout=True))
    assert of_pipe(entries, "stdout") == ["a\n", "\x1b[12"]
