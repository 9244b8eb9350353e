"""``--steps`` and ``--ranks``: what they accept, and which events they take."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from recorded import record, rows

from voirkit.errors import CommandLineError
from voirkit.runs.opened import Run, open_run
from voirkit.runs.selection import EVERYTHING, Selection, read_ranks, read_steps, selection


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with open_run(record(tmp_path_factory.mktemp("selection") / "run")) as opened:
        yield opened


def chosen(run: Run, steps: str | None = None, ranks: str | None = None) -> Counter[str]:
    return Counter(row[2] for row in rows(run, selection(steps, ranks)))


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("10:20", (10, 20)),
        ("10:", (10, None)),
        (":20", (None, 20)),
        (":", (None, None)),
        ("7", (7, 8)),
        (" 1 : 2 ", (1, 2)),
        ("-5:2", (-5, 2)),
    ],
)
def test_steps_are_half_open(text: str, steps: tuple[int | None, int | None]) -> None:
    assert read_steps(text) == steps


@pytest.mark.parametrize("text", ["", "a:b", "1:2:3", "1-5", "5:5", "5:1", "1.5:3"])
def test_wrong_steps_say_what_is_right(text: str) -> None:
    with pytest.raises(CommandLineError, match="--steps 10:20"):
        read_steps(text)


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", {0}), ("0,2-3", {0, 2, 3}), ("5-5", {5}), (" 1 , 2 ", {1, 2})]
)
def test_ranks_are_numbers_and_ranges(text: str, ranks: set[int]) -> None:
    assert read_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "1,", "3-1", "-1", "0-", "0-99999999999", "²"])
def test_wrong_ranks_say_what_is_right(text: str) -> None:
    with pytest.raises(CommandLineError, match=r"--ranks 0,2-3|no range of ranks"):
        read_ranks(text)


def test_nothing_chosen_is_everything() -> None:
    assert Selection(steps=None, ranks=None) == EVERYTHING
    assert selection() == EVERYTHING
    assert Selection(ranks=frozenset([0])) != EVERYTHING


def test_steps_take_their_events_in_every_epoch_and_what_happened_meanwhile(run: Run) -> None:
    # `read` has no step, and lies within one; `evaluate` lies between the epochs, and `epoch.block` around all.
    assert chosen(run, "1:3") == Counter({"fetch.iter": 4, "forward": 4, "compute": 4, "read": 4})


def test_a_single_step(run: Run) -> None:
    assert chosen(run, "0") == Counter({"fetch.iter": 2, "forward": 2, "compute": 2, "read": 2})


def test_what_lies_between_two_chosen_steps_belongs_to_them(run: Run) -> None:
    # The first epoch's evaluation and block; those of the second end after the last step.
    loop = {"fetch.iter": 6, "forward": 6, "compute": 6, "read": 6}
    assert chosen(run, ":") == Counter({**loop, "evaluate": 1, "epoch.block": 1})


def test_an_event_that_reaches_beyond_the_chosen_steps_is_left_out(tmp_path: Path) -> None:
    body = """
    for step in range(4):
        span("a", "short", NOW + 100 * step + 10, NOW + 100 * step + 20)
        span("a", "long", NOW + 100 * step - 50, NOW + 100 * step + 50)
        span("a", "step", NOW + 100 * step, NOW + 100 * step + 90, step=step)
    """
    with open_run(record(tmp_path / "run", body)) as run:
        assert chosen(run, "1:3") == Counter({"step": 2, "short": 2, "long": 1})


def test_a_span_around_all_steps_does_not_stretch_the_last(tmp_path: Path) -> None:
    # The arguments are those at the end: the whole training says that it is of the last step.
    body = """
    for step in range(4):
        span("a", "inner", NOW + 100 * step + 10, NOW + 100 * step + 20)
        span("a", "step", NOW + 100 * step, NOW + 100 * step + 90, step=step)
    span("a", "train", NOW, NOW + 500, step=3)
    """
    with open_run(record(tmp_path / "run", body)) as run:
        assert chosen(run, "3:4") == Counter({"step": 1, "inner": 1, "train": 1})
        assert chosen(run, "2") == Counter({"step": 1, "inner": 1})


def test_steps_of_one_rank_do_not_choose_events_of_another(tmp_path: Path) -> None:
    for rank in range(2):
        body = f"""
        NOW = 10 ** 12 + {rank} * 1000
        span("a", "inner", NOW + 10, NOW + 20)
        span("a", "step", NOW, NOW + 100, step={rank})
        """
        record(tmp_path / "run", body, RANK=str(rank))
    with open_run(tmp_path / "run") as run:
        assert [(row[2], row[5]) for row in rows(run, selection("1"))] == [
            ("step", 1),
            ("inner", 1),
        ]
        assert {row[5] for row in rows(run, selection(None, "0"))} == {0}


def test_steps_that_a_run_has_not_are_named(run: Run) -> None:
    with pytest.raises(
        CommandLineError,
        match=r"--steps 100:200: this run has no such steps\.\n  It has steps 0 to 2\.",
    ):
        chosen(run, "100:200")


def test_ranks_that_a_run_has_not_are_named(run: Run) -> None:
    with pytest.raises(
        CommandLineError, match=r"--ranks: rank 1 has recorded nothing\.\n  Ranks of this run: 0\."
    ):
        chosen(run, None, "0-1")


def test_a_run_without_steps_says_how_to_have_them(tmp_path: Path) -> None:
    with (
        open_run(record(tmp_path / "run", "span('a', 'b', NOW, NOW)")) as run,
        pytest.raises(CommandLineError, match=r"ai\.update\(step="),
    ):
        chosen(run, "1:2")


@pytest.mark.parametrize("step", ["1.5", "True", "'1'", "None", "2 ** 80"])
def test_only_a_whole_number_is_a_step(tmp_path: Path, step: str) -> None:
    with open_run(record(tmp_path / "run", f"span('a', 'b', NOW, NOW, step={step})")) as run:
        assert run.trace().fetchall()[0][8] is None
        assert list(rows(run)[0][9]) == ["step"]
