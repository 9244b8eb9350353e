"""``log`` and ``--log``: which given values are logged, and as what."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_overseer import SmallOverseer

from voirkit_instruments.log import instrument_log, log
from voirkit_instruments.rates import train_rate

EVENTS: list[dict[str, Any]] = [
    {"x": 2},
    {"x": 2, "task": 123},
    {"x": 2, "a": 3},
    {"xylophone": 1},
    {"a": 3},
    {"a": 3, "task": 123},
]


def logged(instrument: Any, events: list[dict[str, Any]] = EVENTS) -> list[dict[str, Any]]:
    ov = SmallOverseer(instrument)

    def program(ov: SmallOverseer) -> None:
        for event in events:
            ov.give(**event)

    ov(program)
    assert ov.errors == []
    return ov.records


def test_keys_that_match_are_logged() -> None:
    assert logged(log("x")) == [{"x": 2}, {"x": 2}, {"x": 2}]


def test_patterns_are_those_of_file_names() -> None:
    assert logged(log("x*")) == [{"x": 2}, {"x": 2}, {"x": 2}, {"xylophone": 1}]


@pytest.mark.parametrize(
    "instrument", [log("x", "+task"), log("x", context="task"), log("x", context=["t*"])]
)
def test_context_goes_along_with_what_is_logged_only(instrument: Any) -> None:
    assert logged(instrument) == [{"x": 2}, {"x": 2, "task": 123}, {"x": 2}]


def test_a_tensor_of_one_element_is_logged_as_its_number() -> None:
    loss = torch.tensor(0.5, requires_grad=True)
    assert logged(log("loss"), [{"loss": loss}, {"loss": torch.tensor([3])}]) == [
        {"loss": 0.5},
        {"loss": 3},
    ]


def test_a_rate_that_is_logged_anyway_is_logged_once() -> None:
    ov = SmallOverseer(log("*_rate"), train_rate)

    def program(ov: SmallOverseer) -> None:
        for n in range(3):
            ov.give(step=n, batch=[1, 2])

    ov(program)
    assert len([record for record in ov.records if "train_rate" in record]) == 1


def test_the_option_is_repeatable() -> None:
    class Parser:
        def group(self, title: str) -> Parser:
            return self

        def add_argument(self, flag: str, **options: Any) -> None:
            assert (flag, options["action"]) == ("--log", "append")

        def value(self, options: Any, option: str) -> Any:
            return getattr(options, option)

    ov = SmallOverseer(instrument_log, options={"--log": ["x", "+task"]})
    ov.argparser = Parser()  # type: ignore[attr-defined]
    ov(lambda ov: ov.give(x=1, task="t", y=2))
    assert ov.records == [{"x": 1, "task": "t"}]
