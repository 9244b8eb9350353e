"""Stacks that were taken: files of py-spy and of the sampler, the alignment of clocks, phases of workers, what other tools are given."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voirkit.analysis.nesting import NONE
from voirkit.analysis.steps import NO_STEPS, Steps, Table
from voirkit_instruments.stacks import analyse as figures
from voirkit_instruments.stacks.analyse_frames import (
    ATTACHING,
    BETWEEN_FETCHES,
    FETCH,
    OWN_STACK,
    PHASE,
    STOPPING,
    Frame,
    Spans,
    Stacks,
    label,
    phase_by_frames,
    program_frames,
    worker_phase,
)
from voirkit_instruments.stacks.analyse_join import StackCounts, clock_bounds, find_clock
from voirkit_instruments.stacks.analyse_samples import read_chrome_trace, read_raw, read_sampler
from voirkit_instruments.stacks.record import ThreadSampler

MAIN = Frame("<module>", "/home/me/main.py")
SCRIPT = Frame("run", "/lib/voirkit/runner/script.py")
FORWARD = Frame("Module._call_impl", "/lib/python3.11/site-packages/torch/nn/modules/module.py")
BACKWARD = Frame("Tensor.backward", "/lib/python3.11/site-packages/torch/_tensor.py")
LOOP = Frame("_worker_loop", "/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py")
FETCHER = Frame(
    "_MapDatasetFetcher.fetch", "/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py"
)


def event(
    kind: str, ts: int, name: str, file: str = "/home/me/main.py", ident: int = 7
) -> dict[str, Any]:
    """An event as py-spy writes it."""
    return {
        "args": {"filename": file, "line": None},
        "cat": "py-spy",
        "name": name,
        "ph": kind,
        "pid": 3,
        "tid": ident,
        "ts": ts,
    }


def written(folder: Path, *events: dict[str, Any]) -> str:
    """A file of py-spy's."""
    path = folder / "0.spy"
    path.write_text(json.dumps(events))
    return str(path)


def test_stacks_last_from_one_change_to_the_next(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        event("B", 100, "thread (3): MainThread", ""),
        event("B", 100, "f"),
        event("B", 300, "g"),
        event("E", 500, "g"),
        event("E", 500, "f"),
        event("B", 500, "h"),
        event("E", 900, "h"),
        event("E", 900, "thread (3): MainThread", ""),
    )
    stacks = Stacks()
    (thread,) = read_chrome_trace(path, stacks)
    assert (thread.tid, thread.name) == (3, "MainThread")
    names = [
        (begin, end, [frame.name for frame in stacks.frames_of(number)])
        for begin, end, number in thread.runs
    ]
    assert names == [(100, 300, ["f"]), (300, 500, ["f", "g"]), (500, 900, ["h"])]


def test_threads_with_the_same_identifier_one_after_the_other_are_two(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        event("B", 0, "thread (3): first", ""),
        event("B", 0, "f"),
        event("E", 50, "f"),
        event("E", 50, "thread (3): first", ""),
        event("B", 50, "thread (4)", ""),
        event("B", 50, "f"),
        event("E", 90, "f"),
        event("E", 90, "thread (4)", ""),
    )
    found = {thread.tid: (thread.name, thread.runs) for thread in read_chrome_trace(path, Stacks())}
    assert found == {3: ("first", [(0, 50, 0)]), 4: ("", [(50, 90, 0)])}


def test_a_file_that_is_no_trace_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "0.spy"
    path.write_text("[{")
    with pytest.raises(ValueError, match="Expecting"):
        read_chrome_trace(str(path), Stacks())


def test_a_stack_begins_at_the_script_and_a_forked_worker_s_at_its_loop() -> None:
    command = Frame("main", "/lib/voirkit/cli.py")
    assert program_frames([command, SCRIPT, MAIN, FORWARD]) == [MAIN, FORWARD]
    assert program_frames([command, SCRIPT, MAIN, LOOP, FETCHER]) == [LOOP, FETCHER]
    assert program_frames([command, Frame("start", "/lib/voirkit/phases.py")]) is None
    assert Stacks().number([command]) == OWN_STACK
    assert (worker_phase([LOOP, FETCHER]), worker_phase([LOOP]), worker_phase([MAIN])) == (
        FETCH,
        BETWEEN_FETCHES,
        None,
    )


def test_the_import_system_is_left_out_between_a_module_and_what_imports_it() -> None:
    finds, loads = (
        Frame("_find_and_load", "<frozen importlib._bootstrap>"),
        Frame("get_data", "<frozen importlib._bootstrap_external>"),
    )
    stacks = Stacks()
    assert stacks.frames_of(stacks.number([MAIN, finds, FORWARD, finds, loads])) == [
        MAIN,
        FORWARD,
        finds,
        loads,
    ]


def test_a_line_is_told_of_the_program_s_own_functions() -> None:
    stacks = Stacks()
    one, same, other = (
        stacks.number([MAIN._replace(line=at), FORWARD._replace(line=of_torch)])
        for at, of_torch in ((7, 1), (7, 2), (8, 2))
    )
    assert one == same
    assert [label(frame) for frame in stacks.frames_of(other)] == [
        "<module> (me/main.py:8)",
        "Module._call_impl (torch/nn/modules/module.py)",
    ]


def test_addresses_in_a_library_without_names_are_one_function() -> None:
    stacks = Stacks()
    one, other = (
        stacks.number([MAIN, Frame(address, "[vdso]")])
        for address in ("0x7f7066a0ab7c", "0x7f7066a0ab46")
    )
    assert one == other
    assert stacks.frames_of(one) == [MAIN, Frame("(unnamed)", "[vdso]")]


def test_torch_s_functions_on_a_stack_tell_its_phase() -> None:
    assert phase_by_frames([MAIN, FORWARD]) == "forward"
    assert phase_by_frames([MAIN, BACKWARD]) == "backward"
    assert phase_by_frames([MAIN]) == ""
    assert label(FORWARD) == "Module._call_impl (torch/nn/modules/module.py)"
    assert label(MAIN) == "<module> (me/main.py)"


def test_the_clock_of_py_spy_is_found_where_stacks_and_phases_agree() -> None:
    stacks = Stacks()
    forward, backward = stacks.number([MAIN, FORWARD]), stacks.number([MAIN, BACKWARD])
    # Phases of 7 and 13 ms alternately, seen every millisecond; py-spy's clock begins 11 ms after it was started.
    edges = np.cumsum([0] + [7_000_000, 13_000_000] * 40)
    spans = Spans(edges[:-1], edges[1:], np.arange(80) % 2)
    began, zero = 20_000_000, 31_000_000
    at_us = np.arange(0, 500_000, 1000)
    owners = spans.owners(zero + at_us * 1000)
    runs = [
        (int(at), int(at) + 1000, (forward, backward)[owner])
        for at, owner in zip(at_us, owners, strict=True)
    ]
    found = find_clock(
        runs, spans, [(PHASE, "forward"), (PHASE, "backward")], stacks, began, began + 20_000_000
    )
    assert abs(found.zero_ns - zero) <= 1_000_000
    assert found.within_ns <= 1_500_000
    assert found.compared == found.same == len(runs)


def test_without_phases_the_clock_is_known_by_when_py_spy_began_to_look() -> None:
    found = find_clock([(0, 10, 0)], None, [], Stacks(), 5_000_000, 9_000_000)
    assert 5_000_000 <= found.zero_ns <= 9_000_000
    assert found.within_ns == 4_000_000


def test_the_clock_is_bounded_by_what_is_known_of_voirkit_s_own_work() -> None:
    # Seen at 50 ms of py-spy's clock: voirkit waits no longer, which was so at 1.040 s; at 900 ms: the run has ended, at 1.888 s.
    runs = [(20_000, 50_000, ATTACHING), (50_000, 900_000, 0), (900_000, 950_000, STOPPING)]
    low, high = clock_bounds(runs, 1_040_000_000, 1_888_000_000, 900_000_000, 1_100_000_000)
    assert (low, high) == (990_000_000, 1_100_000_000)
    assert clock_bounds([], 0, 1 << 62, 5, 9) == (5, 9)


def test_what_the_sampler_wrote_is_read_up_to_a_torn_line() -> None:
    lines = [
        '{"thread": 3, "name": "MainThread"}\n',
        '{"frame": ["f", "main.py"]}\n',
        '{"stack": [0]}\n',
        '{"t": 5, "seen": [[3, 0]]}\n',
    ]
    stacks = Stacks()
    name, at, which = read_sampler([*lines, '{"t": 6, "se'], stacks)[3]
    assert (name, at.tolist(), [stacks.frames_of(number) for number in which.tolist()]) == (
        "MainThread",
        [5],
        [[Frame("f", "main.py")]],
    )


def test_a_look_that_waited_for_the_gil_counts_for_those_that_it_came_too_late_for() -> None:
    lines = ['{"frame": ["f", "main.py"]}\n', '{"stack": [0]}\n', '{"t": 100, "seen": [[3, 0]]}\n']
    lines += ['{"t": 145, "seen": [[3, 0], [4, 0]], "waited": 3}\n']
    seen = read_sampler(lines, Stacks())
    assert seen[3][1].tolist() == [100, 145, 145, 145, 145]
    assert seen[4][1].tolist() == [145]  # a thread that was not there before


def test_stacks_without_times_are_read_with_their_threads() -> None:
    stacks = Stacks()
    lines = [
        "thread (3): MainThread;<module> (/a/main.py:9);f (/a/main.py:3) 12\n",
        "thread (9);g (/a b/lib.so) 1\n",
        "nothing\n",
    ]
    found = [
        (tid, name, stacks.frames_of(number), n) for tid, name, number, n in read_raw(lines, stacks)
    ]
    program = [Frame("<module>", "/a/main.py", 9), Frame("f", "/a/main.py", 3)]
    assert found == [(3, "MainThread", program, 12), (9, "", [Frame("g", "/a b/lib.so")], 1)]


def counts(rank: int = 0) -> dict[str, Any]:
    """What was counted of one rank."""
    return {
        "tool": "py-spy", "version": "0.4.3", "rate_hz": 100, "gil": False, "native": False, "by_clock": True, "cut": None, "rank": rank,
        "lost": 1, "clock": {"compared": 50, "agreement": 0.9, "within_s": 0.002}, "cost": {"tool_s": 0.5, "of_a_processor": 0.05},
        "frames": [["f", "/a/main.py"], ["g;h", "/a/main.py"], ["_worker_loop", "worker.py"]],
        "stacks": [[0], [0, 1], [2]],
        "rows": [["forward", "main", "", 1, 30], ["wait", "main", "", 0, 10], ["wait", "main", "tqdm", 0, 40], ["fetch", "worker 1", "", 2, 7]],
        "processes": [],
    }  # fmt: skip


def test_shares_are_of_the_threads_that_train_and_of_the_workers_apart() -> None:
    found = figures.figures([counts()])
    assert {phase: row["share"] for phase, row in found["phases"].items()} == {
        "forward": 0.75,
        "wait": 0.25,
        "fetch": 1.0,
    }
    assert found["phases"]["forward"]["functions"] == {"g;h (a/main.py)": 1.0}
    assert (found["samples"], found["other_threads"], found["lost"]) == (87, 40, 1)


def test_the_lines_of_a_phase_are_the_innermost_of_the_program_on_its_stacks() -> None:
    one = counts()
    one["frames"] = [
        ["f", "/a/main.py", 3],
        ["g;h", "/p/site-packages/g.py", 0],
        ["_worker_loop", "worker.py", 0],
    ]
    found = figures.figures([one])["phases"]
    assert {phase: row["lines"] for phase, row in found.items()} == {
        "forward": {"a/main.py:3": 1.0},
        "wait": {"a/main.py:3": 1.0},
        "fetch": {},
    }
    assert next(figures.collapsed([one])) == "forward;main;f (a/main.py:3);g,h (g.py) 30\n"
    assert figures.speedscope([one])["shared"]["frames"][1] == {
        "name": "f",
        "file": "/a/main.py",
        "line": 3,
    }


def test_a_long_line_of_source_ends_with_a_statement_or_an_argument() -> None:
    statements = "optimizer.zero_grad(); loss = torch.nn.functional.cross_entropy(model(a), b); loss.backward(); optimizer.step()"
    assert (
        figures.shortened_source(statements)
        == "optimizer.zero_grad(); loss = torch.nn.functional.cross_entropy(model(a), b); …"
    )
    call = f"value = compute('a, b; c', {'x' * 30}, first=1, {'y' * 60})"
    assert figures.shortened_source(call) == f"value = compute('a, b; c', {'x' * 30}, first=1, …"
    goes_on = f"value = compute({'x' * 30}, {'z' * 20}, ({'y' * 60},"  # brackets that the next lines close
    assert figures.shortened_source(goes_on) == f"value = compute({'x' * 30}, {'z' * 20}, …"


def test_of_a_long_line_without_such_an_end_the_place_is_shown_alone() -> None:
    assert figures.shortened_source(f"total = {'x' * 50} + {'y' * 50}") == ""
    assert figures.shortened_source(f"text = '{'a, ' * 40}'") == ""
    assert figures.shortened_source("total = a + b") == "total = a + b"


def test_collapsed_stacks_begin_with_phase_and_process() -> None:
    assert list(figures.collapsed([counts()]))[:3] == [
        "forward;main;f (a/main.py);g,h (a/main.py) 30\n", "wait;main;f (a/main.py) 10\n", "wait;main;thread tqdm;f (a/main.py) 40\n"
    ]  # fmt: skip
    assert next(figures.collapsed([counts(), counts(1)])).startswith("forward;rank 0 main;")


def test_speedscope_s_profiles_are_whole() -> None:
    document = figures.speedscope([counts()])
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    assert [profile["name"] for profile in document["profiles"]] == [
        "main",
        "main, thread tqdm",
        "worker 1",
    ]
    for profile in document["profiles"]:
        assert profile["type"] == "sampled"
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == pytest.approx(sum(profile["weights"]))
        assert all(0 <= at < len(frames) for sample in profile["samples"] for at in sample)
    first = document["profiles"][0]
    assert [frames[at]["name"] for at in first["samples"][0]] == ["forward", "f", "g;h"]
    assert first["weights"] == [0.3, 0.1]


def test_a_sample_with_an_object_that_is_no_frame_is_counted_as_lost_and_the_next_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    sampler = ThreadSampler(str(tmp_path / "a.sampled"), 1000, 1 << 20, warned.append)
    took, real = threading.Event(), sys._current_frames
    answers = iter([lambda: {1: {}}])

    def frames() -> Any:
        answer = next(answers, None)
        if answer is not None:
            return answer()
        took.set()
        return real()

    monkeypatch.setattr(sys, "_current_frames", frames)
    sampler.start()
    assert took.wait(30)
    sampler.stop()
    assert (sampler.cut, sampler.late >= 1, warned) == (None, True, [])
    with open(tmp_path / "a.sampled", encoding="utf-8") as lines:
        assert read_sampler(lines, Stacks())


class Recorded:
    """A process, 7, whose thread 7 calls a model from 20 to 30 and from 60 to 70."""

    def __init__(self) -> None:
        self.names = [(PHASE, "forward")]
        self.leading = {PHASE: {7: 7}}

    def owners(
        self, group: str, spans: object, pid: int, tid: int, at_ns: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        called = ((at_ns >= 20) & (at_ns < 30)) | ((at_ns >= 60) & (at_ns < 70))
        return np.where(called, 0, NONE), called

    def reach(self, pid: int, tid: int) -> tuple[int, int]:
        return 20, 70


def table(start_ns: int, time_ns: int) -> Table:
    return Table(
        np.array([start_ns]), np.array([time_ns]), np.array([1]), np.zeros((1, 14), np.int64)
    )


def phases_at(steps: Steps, *at_ns: int) -> list[str]:
    """The phases in which stacks of the main thread are counted, by when they were taken."""
    stacks = Stacks()
    numbers = [stacks.number([MAIN, Frame(f"at_{at}", "/home/me/main.py")]) for at in at_ns]
    counts = StackCounts(Recorded(), stacks, 10, 7, {}, (0, 1000), steps)  # type: ignore[arg-type]
    counts.add(7, 7, "MainThread", np.array(at_ns), np.array(numbers), {})
    return [row.phase for row in sorted(counts.counts, key=lambda row: row.stack)]


def test_a_stack_outside_of_training_steps_is_of_the_part_of_the_run_that_it_lies_in() -> None:
    steps = Steps(table(10, 30), table(50, 30), wait_known=True)
    at = {
        5: "startup",
        15: "other",
        25: "forward",
        45: "between",
        55: "evaluation",
        65: "evaluation",
        95: "between",
    }
    assert phases_at(steps, *at) == list(at.values())


def test_a_run_without_steps_has_what_lies_between_its_phases_and_what_does_not() -> None:
    at = {5: "before and after", 25: "forward", 45: "other", 95: "before and after"}
    assert phases_at(NO_STEPS, *at) == list(at.values())
