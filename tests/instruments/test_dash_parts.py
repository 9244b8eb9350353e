"""The parts of `--dash`: what it keeps of values, and how frames and lines are made of that."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given as for_all
from hypothesis import strategies as st

from voirkit.live.frame import Bar, TerminalStyle, width
from voirkit_instruments.dash.record import Board, DeviceNumber, Row
from voirkit_instruments.dash.show import Header, frame, plain_line


def numbers(board: Board) -> dict[str, str]:
    """The table of a board, keys and texts."""
    return {row.key: row.text for row in board.rows()}


def test_no_autograd_graph_is_kept_alive() -> None:
    board = Board()
    saved: list[weakref.ref[object]] = []

    class Saved:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor
            saved.append(weakref.ref(self))

    weight = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda one: one.tensor):
        loss = (weight * weight).sum()
    board.update({"loss": loss})
    assert any(one() for one in saved)
    del loss
    gc.collect()
    assert not any(one() for one in saved)
    assert numbers(board) == {"loss": "3"}


def test_no_batch_and_no_model_is_kept_alive() -> None:
    board = Board()
    batch, pair, model = (
        torch.zeros(8, 3),
        (torch.zeros(8, 3), torch.zeros(8)),
        torch.nn.Linear(1, 1),
    )
    gone = [weakref.ref(batch), weakref.ref(pair[0]), weakref.ref(model)]
    board.update({"batch": batch, "pair": pair, "model": model})
    del batch, pair, model
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3


def test_a_value_that_can_not_be_asked_is_shown_by_its_type() -> None:
    class Rude:
        def __getattribute__(self, name: str) -> object:
            raise RuntimeError("no")

        __repr__ = __str__ = None  # type: ignore[assignment]  # as rude as it gets

    board = Board()
    board.update(
        {
            "rude": Rude(),
            "meta": torch.zeros(1, device="meta"),
            "half": torch.ones(1, dtype=torch.bfloat16),
            "nan": float("nan"),
        }
    )
    assert numbers(board) == {
        "rude": "Rude",
        "meta": "Tensor 1 float32 meta",
        "half": "1",
        "nan": "nan",
    }


def test_numpy_numbers_and_arrays_are_shown() -> None:
    import numpy as np

    board = Board()
    board.update({"one": np.float32(0.5), "many": np.zeros((2, 3))})
    assert numbers(board) == {"one": "0.5", "many": "array 2x3 float64"}


def test_a_string_can_not_move_the_cursor() -> None:
    board = Board()
    board.update({"text": "a\033[2J\nb"})
    assert numbers(board) == {"text": "a [2J b"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_number_on_a_gpu_is_read_without_waiting_for_the_gpu() -> None:
    board = Board()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(2_000_000_000)
        board.update(
            {"loss": torch.full((), 0.5, device="cuda") + 1, "n": torch.tensor(3, device="cuda")}
        )
        assert numbers(board) == {"loss": "...", "n": "..."}
        board.settle(60)
    assert numbers(board) == {"loss": "1.5", "n": "3"}


def test_a_device_without_asynchronous_copies_is_read_by_the_thread_that_gives() -> None:
    for tensor, number in (
        (torch.tensor(3), 3),
        (torch.tensor([0.5]), 0.5),
        (torch.tensor(True), True),
    ):
        on_device = DeviceNumber()
        on_device.latest = tensor
        assert on_device.number() is None
        on_device.copy(torch)
        assert (on_device.number(), type(on_device.number())) == (number, type(number))


words = st.text(st.characters(codec="utf-8"), max_size=30)
rows = st.builds(
    Row,
    words,
    words,
    words.map(lambda text: "".join(c for c in text if c.isprintable())),
    st.booleans(),
    st.integers(0, 10**9),
)
bars = st.builds(Bar, words, words, st.floats(0, 1e6), st.floats(0, 1e6))


@for_all(
    st.lists(rows, max_size=40),
    st.lists(bars, max_size=5),
    st.tuples(st.integers(1, 130), st.integers(1, 60)),
    words,
)
def test_a_frame_never_exceeds_its_part_of_the_terminal(
    rows: list[Row], bars: list[Bar], size: tuple[int, int], title: str
) -> None:
    lines = frame(
        Header(title, 1e4, 5), bars, rows, [3.0] * len(bars), size, TerminalStyle(color=False)
    )
    assert len(lines) <= max(size[1] // 2, size[1] - 11)
    assert all(width(line) < size[0] for line in lines)
    assert all("\n" not in line and "\033" not in line for line in lines)


def test_what_does_not_fit_is_counted() -> None:
    many = [Row("", f"key{i}", str(i), True, 1) for i in range(30)]
    lines = frame(Header("main.py", 5, 30), [], many, [], (80, 20), TerminalStyle(color=False))
    assert lines[-1] == "... 22 more"


def test_what_monitor_gives_takes_no_rows_since_its_figures_are_drawn_from_the_trace() -> None:
    board = Board()
    board.update({"task": "main", "time": 1795339402, "cpudata": {"load": 1}})
    board.update({"task": "train", "time": 3})
    assert [(row.task, row.key) for row in board.rows()] == [("train", "time")]


def test_events_are_counted_in_the_header_when_there_are_values_to_show() -> None:
    row = Row("", "loss", "0.4", True, 3)
    assert (
        "0:00:12 ──"
        in frame(Header("main.py", 12.0, 9), [], [], [], (40, 24), TerminalStyle(color=False))[0]
    )
    assert (
        "0:00:12  9 events ──"
        in frame(Header("main.py", 12.0, 9), [], [row], [], (40, 24), TerminalStyle(color=False))[0]
    )


def test_a_plain_line_has_numbers_only() -> None:
    rows = [Row("", "loss", "0.412", True, 3), Row("", "model", "ResNet", False, 1)]
    assert plain_line(12.34, [Bar("", "", 120, 400)], rows) == "[12.3s] loss 0.412 | 120/400"
