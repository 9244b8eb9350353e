"""Compilations of torch.compile are phases of their own."""

from __future__ import annotations

import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from voirkit_instruments.steps import record_phases as steps_pauses
from voirkit_instruments.steps.record_phases import CompilationRecording


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

    return SimpleNamespace(recorder=SimpleNamespace(span=span), phase=lambda *_: 1, failed=lambda *_: None)


@pytest.mark.parametrize("arguments", [(), ("why and what",)])
def test_a_compilation_is_a_span(handler: Handler, recording: Any, spans: list[Any], arguments: tuple[str, ...]) -> None:
    CompilationRecording(recording).install()
    handler.begin(*arguments)
    handler.end(*arguments)
    ((begun, ended),) = spans
    assert begun <= ended


def test_one_that_ends_in_another_thread_is_none_of_either(handler: Handler, recording: Any, spans: list[Any]) -> None:
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


def test_callbacks_that_the_program_has_cleared_are_not_missed(handler: Handler, recording: Any) -> None:
    compilations = CompilationRecording(recording)
    compilations.install()
    handler.start_callbacks.clear()
    compilations.remove()
    assert handler.end_callbacks == []


def test_a_torch_without_callbacks_is_left_alone(handler: Handler, recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(__import__("sys").modules["torch._dynamo.callback"], "callback_handler", object())
    compilations = CompilationRecording(recording)
    compilations.install()
    compilations.remove()
    assert steps_pauses.CompilationRecording is type(compilations)
