"""``--display``: one line an event, short whatever was given, and on stderr."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_overseer import SmallOverseer

from voirkit_instruments.display import display, line
from voirkit_instruments.values import brief, number


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("do not touch")

    def __repr__(self) -> str:
        raise RuntimeError("do not print")


BRIEF = {
    "numbers": (0.5, "0.5"),
    "booleans": (True, "True"),
    "none": (None, "None"),
    "texts": ("abc", "'abc'"),
    "long texts are cut": ("x" * 1000, repr("x" * 80) + "… (1000)"),
    "tensors by type, shape and dtype": (torch.zeros(32, 3), "Tensor[32, 3] float32"),
    "one number in a tensor": (torch.tensor(2.5), "Tensor[] float32 = 2.5"),
    "one number that needs a gradient": (
        torch.tensor([2.5], requires_grad=True),
        "Tensor[1] float32 = 2.5",
    ),
    "a tensor elsewhere by its device, without its value": (
        torch.zeros(1, device="meta"),
        "Tensor[1] float32 meta",
    ),
    "arrays": (np.zeros((2, 3)), "ndarray[2, 3] float64"),
    "lists": ([1, 2], "list(1, 2)"),
    "long lists are cut": (list(range(1000)), "list(0, 1, 2, 3, … 1000 in all)"),
    "deep lists are cut": ([[[[1]]]], "list(list(list(… 1 in all)))"),
    "dictionaries": ({"a": torch.zeros(2)}, "dict('a': Tensor[2] float32)"),
    "arguments": (Namespace(lr=0.1, epochs=3), "Namespace(lr=0.1, epochs=3)"),
    "other objects by their type": (Path("x"), "PosixPath"),
    "classes": (Hostile, "class Hostile"),
    "objects that raise": (Hostile(), "Hostile"),
    "modules by their type": (torch.nn.Linear(2, 2), "Linear"),
}


@pytest.mark.parametrize("name", BRIEF)
def test_a_value_is_shown_in_few_words(name: str) -> None:
    value, text = BRIEF[name]
    assert brief(value) == text


def test_a_value_is_one_line() -> None:
    assert "\n" not in brief({"a\nb": ["c\nd"]})


def test_a_number_is_read_from_one_element_only() -> None:
    assert [
        number(v) for v in (torch.tensor(2), np.float32(0.5), 3, torch.zeros(2), "3", None)
    ] == [2, 0.5, 3, None, None, None]
    assert number(torch.zeros(1, device="meta")) is None


def test_an_event_is_one_line_of_names_and_values() -> None:
    assert line({"loss": 0.5, "task": "train", "$queued": 3.0}) == "loss: 0.5; task: 'train'"


def test_a_wrapper_is_shown_with_its_begin_and_end() -> None:
    event = {"$wrap": {"name": "compute_start", "step": "begin", "id": 3}, "compute_start": True}
    assert line(event) == "compute_start begins; compute_start: True"


def test_what_is_given_goes_to_stderr_and_not_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    SmallOverseer(display)(lambda ov: ov.give(x=1))
    assert capsys.readouterr() == ("", "x: 1\n")
