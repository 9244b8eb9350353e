"""What torch's profiler wrote: read as a stream, brought onto another clock, given to phases; with kernels, which no CPU has."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voirkit.analysis.phases import Records
from voirkit_instruments.torch_profile.analyse_operators import (
    KERNEL,
    MOST,
    NAMES,
    OPERATOR,
    REMAINDER,
    RUNTIME,
    AttributedEvents,
    Events,
    PhasesOfThread,
    figures,
    find_clock,
    merge_figures,
    shorten,
)

US, MAIN, AUTOGRAD = 1000, 100, 101


def _op(
    name: str, ts: float, dur: float, tid: int = MAIN, cat: str = "cpu_op", **args: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def _took(ts: float, size: int, tid: int = MAIN) -> dict[str, Any]:
    args = {"Bytes": size, "Device Id": -1, "Device Type": 0}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "args": args,
    }


# Forward from 0 to 100 us, backward from 100 to 200. A kernel that is started in forward runs while the host is in backward.
TRACE = [
    _op("aten::linear", 10, 50),
    _op("aten::addmm", 20, 30),
    _op("cudaLaunchKernel", 25, 5, cat="cuda_runtime", correlation=7),
    _op("gemm", 150, 40, tid=7, cat="kernel", correlation=7, device=0, stream=7),
    _op("AddmmBackward0", 120, 30, tid=AUTOGRAD),
    _op("cudaMemcpyAsync", 130, 2, tid=AUTOGRAD, cat="cuda_runtime", correlation=8),
    _op("Memcpy HtoD", 190, 10, tid=7, cat="gpu_memcpy", correlation=8, device=0),
    _op("aten::item", 220, 4),
    _took(22, 4096),
    _took(45, -1024),
    _took(122, 512, AUTOGRAD),
    {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": MAIN, "ts": 25},
    _op("PyTorch Profiler (0)", 0, 300, cat="Trace"),
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
]


def _events(
    folder: Path,
    events: list[dict[str, Any]],
    base: int | None = None,
    name: str = "a.json",
    indent: int | None = None,
) -> Events:
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "traceEvents": events,
        "traceName": "a.json",
    }
    if base is not None:
        document["baseTimeNanoseconds"] = base
    opened: Any = gzip.open if name.endswith(".gz") else open
    with opened(folder / name, "wt") as file:
        file.write(json.dumps(document, indent=indent))
    return Events(str(folder / name))


def _phases() -> PhasesOfThread:
    n = np.arange(2)
    names = [("compute", "forward"), ("compute", "backward")]
    whole = np.array([0, 100]) * US, np.full(2, 100 * US)
    return PhasesOfThread(
        Records(*whole, n, n * 0, n * 0 - 1, n * 0, n * 0 + MAIN, names, [{}], [(0, "node", 1)]), n
    )


def test_a_file_is_read_whole_in_pieces_of_any_form(tmp_path: Path) -> None:
    plain = _events(tmp_path, TRACE * 5000)
    packed = _events(tmp_path, TRACE * 5000, name="b.json.gz", indent=2)
    assert len(plain.start_ns) == 5000 * 11
    for key in ("category", "name", "start_ns", "duration_ns", "tid", "device", "linked", "bytes"):
        assert (getattr(plain, key) == getattr(packed, key)).all()
    assert plain.names == packed.names


def test_times_are_exact_where_the_base_is_apart(tmp_path: Path) -> None:
    events = _events(tmp_path, [_op("a", 4504589047855.293, 13.543)], base=1790857026000000000)
    assert (events.start_ns[0], events.duration_ns[0]) == (1795361615047855293, 13543)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"traceEvents": [{"ph": "X"', '{"traceEvents": [{"a": 1},']
)
def test_a_file_that_is_torn_or_none_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "torn.json").write_text(text)
    with pytest.raises(ValueError, match=r"torn|no trace"):
        Events(str(tmp_path / "torn.json"))


def test_a_kernel_belongs_to_the_operator_and_phase_that_started_it(tmp_path: Path) -> None:
    events = _events(tmp_path, TRACE)
    found = AttributedEvents(events, events.start_ns, _phases(), [])
    at = {
        events.names[name]: i
        for i, name in enumerate(events.name.tolist())
        if events.category[i] in (OPERATOR, RUNTIME, KERNEL)
    }
    phase = {name: NAMES[found.phase[i]] for name, i in at.items()}
    assert phase["gemm"] == phase["aten::addmm"] == "forward"
    assert phase["AddmmBackward0"] == phase["Memcpy HtoD"] == "backward"
    assert phase["aten::item"] == "other"
    made = figures(events, found, np.ones(len(events.start_ns), dtype=bool))
    forward = made["phases"]["forward"]["operators"]
    assert forward["aten::linear"] == pytest.approx(
        {
            "calls": 1,
            "cpu_s": 50e-6,
            "self_cpu_s": 20e-6,
            "device_s": 40e-6,
            "self_device_s": 0,
            "bytes": 0,
            "freed": 0,
        }
    )
    assert forward["aten::addmm"] == pytest.approx(
        {
            "calls": 1,
            "cpu_s": 30e-6,
            "self_cpu_s": 25e-6,
            "device_s": 40e-6,
            "self_device_s": 40e-6,
            "bytes": 4096,
            "freed": 1024,
        }
    )
    assert made["phases"]["backward"]["operators"]["AddmmBackward0"]["bytes"] == 512
    assert made["kernels"]["gemm"] == {
        "calls": 1,
        "device_s": pytest.approx(40e-6),
        "phases": {"forward": pytest.approx(40e-6)},
    }


def test_the_time_of_phases_is_that_of_the_window_and_not_of_whole_steps() -> None:
    found = _phases().times_ns(40 * US, 230 * US, [(150 * US, 170 * US)])
    assert {name: spent // US for name, spent in found.items() if spent} == {
        "forward": 60,
        "backward": 80,
        "evaluation": 20,
        "other": 30,
    }
    assert sum(found.values()) == 190 * US


def test_a_window_of_which_nothing_was_recorded_is_other() -> None:
    assert _phases().times_ns(300 * US, 310 * US) == {**dict.fromkeys(NAMES, 0), "other": 10 * US}


def test_what_lies_in_an_evaluation_is_no_training(tmp_path: Path) -> None:
    events = _events(tmp_path, TRACE)
    found = AttributedEvents(events, events.start_ns, _phases(), [(210 * US, 230 * US)])
    assert NAMES[found.phase[events.names.index("aten::item")]] == "evaluation"


def test_what_spans_several_phases_has_its_own_time_in_the_one_that_it_begins_in(
    tmp_path: Path,
) -> None:
    lbfgs = _op(
        "Optimizer.step#LBFGS.step", 10, 240, cat="user_annotation"
    )  # it calls forward and backward
    events = _events(
        tmp_path,
        [lbfgs, _op("aten::mul", 20, 30), _op("aten::mm", 90, 20), _op("aten::mm", 120, 30)],
    )
    found = AttributedEvents(events, events.start_ns, _phases(), [])
    assert [NAMES[phase] for phase in found.phase] == ["forward", "forward", "forward", "backward"]
    assert (found.self_ns / US).tolist() == [50, 30, 10, 30]


def test_several_recordings_sum_up(tmp_path: Path) -> None:
    events = _events(tmp_path, TRACE)
    one = figures(
        events,
        AttributedEvents(events, events.start_ns, _phases(), []),
        np.ones(len(events.start_ns), dtype=bool),
    )
    two = merge_figures([one, one])
    assert two["phases"]["forward"]["operators"]["aten::addmm"]["calls"] == 2
    assert two["kernels"]["gemm"]["phases"]["forward"] == pytest.approx(80e-6)
    assert list(two["phases"]) == ["forward", "backward", "other"]


def test_the_rows_that_are_left_out_are_summed_in_one(tmp_path: Path) -> None:
    events = _events(tmp_path, [_op(f"op {i}", i, 0.5) for i in range(MOST + 5)])
    found = shorten(
        figures(
            events,
            AttributedEvents(events, events.start_ns, _phases(), []),
            np.ones(MOST + 5, dtype=bool),
        )
    )
    rows = found["phases"]["forward"]["operators"]
    assert (len(rows), rows[REMAINDER]["calls"], found["phases"]["forward"]["calls"]) == (
        MOST + 1,
        5,
        MOST + 5,
    )


@given(
    st.integers(-(10**18), 10**18),
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 5000), st.integers(0, 5000)), min_size=1
    ),
    st.sampled_from([1, 1000]),
)
def test_the_offset_is_right_to_its_error(
    offset: int, marks: list[tuple[int, int, int]], step: int
) -> None:
    """Marks at true times, with the run's clock read some nanoseconds before and after; torch's times cut to a step."""
    true = sorted(at for at, _, _ in marks)
    seen = np.array([at // step * step for at in true])
    found = find_clock(
        seen,
        [
            (at + offset - before, at + offset + after)
            for at, (_, before, after) in zip(true, marks, strict=True)
        ],
    )
    assert abs(found.offset_ns - offset) <= found.error_ns


def test_a_clock_that_was_set_meanwhile_is_seen_in_the_error() -> None:
    marks = [(n * 1000, n * 1000 + 10) for n in range(10)]
    seen = np.array([n * 1000 + 5 + (50_000 if n == 9 else 0) for n in range(10)])
    found = find_clock(np.sort(seen), marks)
    assert (abs(found.offset_ns) < 20, found.error_ns > 49_000) == (True, True)


def test_marks_that_were_not_all_recorded_are_told() -> None:
    with pytest.raises(ValueError, match="of 2 marks 1 were recorded"):
        find_clock(np.array([1]), [(0, 1), (2, 3)])
