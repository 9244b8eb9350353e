"""Compilations of torch.compile are phases of their own."""

from __future__ import annotations

import re
import threading
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from conftest import Place

from voirkit.report.sections import Lines
from voirkit_instruments.steps import record_phases as steps_pauses
from voirkit_instruments.steps.record_phases import (
    CompilationRecording,
    compilation_events,
    one_line,
)
from voirkit_instruments.steps.show import sections


class Handler:
    """As torch's: lists of what is called back."""

    def __init__(self) -> None:
        self.start_callbacks: list[Any] = []
        self.end_callbacks: list[Any] = []
        self.register_start_callback = self.start_callbacks.append
        self.register_end_callback = self.end_callbacks.append
        self.remove_start_callback = self.start_callbacks.remove
        self.remove_end_callback = self.end_callbacks.remove

    def begin(self, *args: object) -> None:
        for callback in self.start_callbacks:
            callback(*args)

    def end(self, *args: object) -> None:
        for callback in self.end_callbacks:
            callback(*args)


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Handler:
    made = Handler()
    module = ModuleType("torch._dynamo.callback")
    module.callback_handler = made  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    return made


@pytest.fixture
def spans() -> list[tuple[int, int]]:
    return []


@pytest.fixture
def recording(spans: list[tuple[int, int]]) -> Any:
    def span(_name: int, begun: int, ended: int) -> None:
        spans.append((begun, ended))

    return SimpleNamespace(
        recorder=SimpleNamespace(span=span), phase=lambda *_: 1, failed=lambda *_: None
    )


@pytest.mark.parametrize("arguments", [(), ("why and what",)])
def test_a_compilation_is_a_span(
    handler: Handler, recording: Any, spans: list[Any], arguments: tuple[str, ...]
) -> None:
    CompilationRecording(recording).install()
    handler.begin(*arguments)
    handler.end(*arguments)
    ((begun, ended),) = spans
    assert begun <= ended


def test_one_that_ends_in_another_thread_is_none_of_either(
    handler: Handler, recording: Any, spans: list[Any]
) -> None:
    CompilationRecording(recording).install()
    handler.begin()
    thread = threading.Thread(target=handler.end)
    thread.start()
    thread.join()
    assert spans == []


def test_afterwards_nobody_is_called_back(handler: Handler, recording: Any) -> None:
    compilations = CompilationRecording(recording)
    compilations.install()
    compilations.remove()
    assert (handler.start_callbacks, handler.end_callbacks) == ([], [])


def test_callbacks_that_the_program_has_cleared_are_not_missed(
    handler: Handler, recording: Any
) -> None:
    compilations = CompilationRecording(recording)
    compilations.install()
    handler.start_callbacks.clear()
    compilations.remove()
    assert handler.end_callbacks == []


def test_a_torch_without_callbacks_is_left_alone(
    handler: Handler, recording: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        __import__("sys").modules["torch._dynamo.callback"], "callback_handler", object()
    )
    compilations = CompilationRecording(recording)
    compilations.install()
    compilations.remove()
    assert steps_pauses.CompilationRecording is type(compilations)


# what is compiled again, and why


def events(found: SimpleNamespace, *breaks: SimpleNamespace) -> list[tuple[Any, ...]]:
    return list(compilation_events(found, breaks, {"2": ("forward", "/x/main.py:7")}))


def metrics(**known: Any) -> SimpleNamespace:
    return SimpleNamespace(**{
        "co_name": "forward", "co_filename": "/x/main.py", "co_firstlineno": 7, "compile_id": "2/8", "recompile_reason": None, "fail_reason": None,
        "fail_type": None, "duration_us": 1500, **known,
    })  # fmt: skip


def test_a_first_compilation_is_nothing_of_note() -> None:
    assert events(metrics()) == []


def test_a_recompilation_is_known_with_its_guard_and_its_time() -> None:
    why = "0/1: self.flag == 0.0         # return self.l(x)  # x/main.py:8 in forward\nUser stack trace:\n  File main.py"
    assert events(metrics(recompile_reason=why)) == [
        ("recompilation", "forward", "/x/main.py:7", "self.flag == 0.0", 1_500_000)
    ]


def test_what_is_behind_a_graph_break_has_the_name_of_its_function() -> None:
    ((_, function, *_),) = events(
        metrics(co_name="torch_dynamo_resume_in_scale_at_5", recompile_reason="1/0: n == 0")
    )
    assert function == "scale, behind line 5"


def test_a_module_of_torch_is_where_the_script_calls_it() -> None:
    library = Path(pytest.importorskip("torch").__file__).parent
    wrapper = str(library / "_dynamo" / "external_utils.py")
    stack = [
        "Line: 8, Name: train, Filename: /x/main.py",
        f"Line: 1787, Name: _wrapped_call_impl, Filename: {library / 'nn' / 'modules' / 'module.py'}",
        f"Line: 67, Name: inner, Filename: {wrapper}",
    ]
    inner = metrics(
        co_name="inner", co_filename=wrapper, stack_trace=stack, recompile_reason="2/0: n == 0"
    )
    assert events(inner) == [
        ("recompilation", "module called in train", "/x/main.py:8", "n == 0", 1_500_000)
    ]
    assert events(metrics(**{**vars(inner), "stack_trace": None}))[0][2] == f"{wrapper}:7"


def test_a_graph_break_is_where_the_innermost_frame_is() -> None:
    frames = [
        SimpleNamespace(filename="main.py", lineno=line, name=name)
        for line, name in ((9, "outer"), (4, "inner"))
    ]
    found = events(
        metrics(), SimpleNamespace(reason="generic_jump TensorVariable()", user_stack=frames)
    )
    assert found == [
        (
            "graph break",
            "inner",
            "main.py:4",
            "data-dependent branching (generic_jump TensorVariable())",
            0,
        )
    ]


def test_at_the_recompile_limit_a_function_is_left_to_eager_mode() -> None:
    limit = "Dynamo recompile limit exceeded\n  Explanation: Dynamo attempted to recompile the code object too many times"
    found = events(
        metrics(
            co_name=None, recompile_reason="2/7: n == 7", fail_type="Unsupported", fail_reason=limit
        )
    )
    assert found == [
        (
            "eager fallback",
            "forward",
            "/x/main.py:7",
            "recompile limit reached; the last guard that failed: n == 7",
            0,
        )
    ]


def test_an_error_that_the_program_gets_is_no_graph_break() -> None:
    assert events(metrics(fail_type="BackendCompilerFailed", fail_reason="oh")) == []


@pytest.mark.parametrize(("reason", "line"), [
    ("tensor 'x' size mismatch at index 0. expected 2, actual 3", "tensor 'x' size mismatch at index 0. expected 2, actual 3"),
    ("0/0: ___check_type_id(L['n'], 139), type=<class 'int'>  # x", "type(L['n']) is int"),
    ("Failed to trace\n  Explanation: Dynamo cannot\n  Hint: no", "Failed to trace: Dynamo cannot"),
    ("", ""),
])  # fmt: skip
def test_a_reason_is_one_line(reason: str, line: str) -> None:
    assert one_line(reason) == line


def test_the_report_says_how_often_how_long_and_why() -> None:
    row = {
        "function": "forward",
        "place": "/x/main.py:7",
        "reason": "n == 0",
        "n": 3,
        "total_s": 1.5,
    }
    (section,) = sections(
        {"recompilations": [row], "graph_breaks": [], "eager_fallbacks": []}, {"world_size": 1}
    )
    figures, table = section.blocks
    assert [(one.name, one.value, one.note) for one in figures.figures] == [
        ("recompilations", 3, "1.5 s in all")
    ]
    assert table.rows == [
        ("recompiled", "forward", "main.py:7", "3", "1.5 s", "", Lines(["n == 0"]))
    ]


COMPILES = """
import torch

def scale(x, n):
    y = torch.relu(x) * n
    if y.sum() > 0:
        y = y + 1
    return y.sum()

def loop(x):
    for i in range(2):
        x = x + 1
        print("step", i)
    return x

scaled, looped = (torch.compile(one, backend="eager") for one in (scale, loop))
torch.manual_seed(0)
for i in range(12):
    print(float(scaled(torch.randn(4 + i, 4), str(i) and float(i) if i < 3 else torch.tensor(i))))
print(looped(torch.ones(2)))
named = torch.compile(lambda x, name: x if name == "0" else x + len(name), backend="eager")
for i in range(12):
    print(named(torch.ones(1), "x" * i))
"""


@pytest.mark.long
def test_it_is_what_torch_itself_logs_and_the_output_is_as_without(place: Place) -> None:
    place.write(main=COMPILES)
    plain = place.python("main.py")
    logged = place.python("main.py", env={"TORCH_LOGS": "recompiles,graph_breaks"}).err
    seen = place.voirkit("main.py")
    assert (seen.code, seen.out[: len(plain.out)]) == (plain.code, plain.out)
    part = seen.summary["compilations"]
    recompiled = Counter(re.findall(r"Recompiling function \S+ in (\S+)", logged))
    limits = [row for row in part["eager_fallbacks"] if row["reason"].startswith("recompile limit")]
    counted: Counter[str] = Counter()
    for row in (*part["recompilations"], *limits):
        counted[row["place"]] += row["n"]
    assert counted == recompiled
    assert len(recompiled) >= 2
    breaks = Counter(re.findall(r"raph break.*in user code at \S+main.py:(\d+)", logged))
    counted = Counter()
    for row in part["graph_breaks"]:
        counted[row["place"].rpartition(":")[2]] += row["n"]
    assert counted["6"] == breaks["6"] > 0
    assert [row["function"] for row in part["eager_fallbacks"] if row not in limits] == ["loop"]
    assert breaks["13"] == 1
