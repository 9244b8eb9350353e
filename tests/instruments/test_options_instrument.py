"""``--options``: the script's arguments arrive once, and argparse behaves and ends as without it."""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from small_overseer import SmallOverseer

from voirkit_instruments.options import PARTIAL, WHOLE, instrument_argparse, options, plain


def parser(**kwargs: Any) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="main.py", **kwargs)
    made.add_argument("--lr", type=float, default=0.1)
    made.add_argument("names", nargs="*")
    return made


def run(program: Any) -> SmallOverseer:
    ov = SmallOverseer(options)
    ov(lambda ov: program())
    assert ov.errors == []
    return ov


def test_parsed_arguments_are_given_logged_and_summarised() -> None:
    ov = run(lambda: parser().parse_args(["--lr", "2", "a"]))
    assert ov.values("options") == [argparse.Namespace(lr=2.0, names=["a"])]
    assert ov.records == [{"options": {"lr": 2.0, "names": ["a"]}}]
    assert ov.summary["options"] == {"lr": 2.0, "names": ["a"]}


def test_the_script_gets_the_very_object_that_is_given() -> None:
    kept: list[Any] = []
    ov = run(lambda: kept.append(parser().parse_args([])))
    assert ov.values("options")[0] is kept[0]


@pytest.mark.parametrize("name", WHOLE + PARTIAL)
def test_every_way_of_parsing_counts(name: str) -> None:
    ov = run(lambda: getattr(parser(), name)(["--lr", "3", "a"]))
    assert [found.lr for found in ov.values("options")] == [3.0]


def test_the_first_arguments_count() -> None:
    ov = run(lambda: [parser().parse_args(["--lr", lr]) for lr in "123"])
    assert [found.lr for found in ov.values("options")] == [1.0]


def test_known_arguments_of_a_first_parser_give_way_to_all_arguments_of_a_second() -> None:
    def program() -> None:
        _, rest = parser(add_help=False).parse_known_args(["--lr", "1", "--wd=2"])
        second = parser()
        second.add_argument("--wd", type=float)
        second.parse_args(rest)

    assert [found.wd for found in run(program).values("options")] == [2.0]


def test_known_arguments_alone_count_when_the_next_value_is_given() -> None:
    ov = SmallOverseer(options)

    def program(ov: SmallOverseer) -> None:
        parser().parse_known_args(["--lr", "1"])
        ov.give(x=1)
        assert len(ov.values("options")) == 1

    ov(program)
    assert ov.errors == []


def test_arguments_of_subcommands_count_once_and_whole() -> None:
    def program() -> None:
        made = argparse.ArgumentParser()
        made.add_argument("--seed", type=int)
        made.add_subparsers(dest="command").add_parser("train").add_argument("--lr", type=float)
        made.parse_args(["--seed", "3", "train", "--lr", "2"])

    assert [vars(found) for found in run(program).values("options")] == [
        {"seed": 3, "command": "train", "lr": 2.0}
    ]


def test_wrong_arguments_end_the_script_as_ever_and_give_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ov = SmallOverseer(options)
    with pytest.raises(SystemExit) as ended:
        ov(lambda ov: parser().parse_args(["--lr", "x"]))
    assert ended.value.code == 2
    assert "invalid float value" in capsys.readouterr().err
    assert ov.values("options") == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="python 3.10 shows the frame of a wrapper")
def test_a_traceback_shows_no_frame_of_voirkit() -> None:
    frames: list[str] = []

    def program() -> None:
        try:
            parser(exit_on_error=False).parse_args(["--lr", "x"])
        except argparse.ArgumentError as exc:
            frames.extend(frame.filename for frame in traceback.extract_tb(exc.__traceback__))

    run(program)
    assert len(frames) > 1
    assert not [name for name in frames if "voirkit" in Path(name).parts[-2]]


def test_argparse_is_as_before_when_the_arguments_have_been_found() -> None:
    before = {name: vars(argparse.ArgumentParser)[name] for name in WHOLE + PARTIAL}

    def program() -> None:
        assert any(
            vars(argparse.ArgumentParser)[name] is not method for name, method in before.items()
        )
        parser().parse_args([])
        assert {name: vars(argparse.ArgumentParser)[name] for name in before} == before

    run(program)


def test_argparse_is_as_before_when_a_script_parses_nothing() -> None:
    before = {name: vars(argparse.ArgumentParser)[name] for name in WHOLE + PARTIAL}
    ov = run(lambda: None)
    assert {name: vars(argparse.ArgumentParser)[name] for name in before} == before
    assert "options" not in ov.summary


def test_what_json_can_not_hold_is_left_out() -> None:
    values = {
        "path": Path("a/b"),
        "f": print,
        "n": float("inf"),
        "t": (1, 2),
        "d": {"x": object(), "y": 1},
        "l": [object()],
        "none": None,
    }
    assert plain(values) == {"path": "a/b", "n": "inf", "t": [1, 2], "d": {"y": 1}, "none": None}


def test_a_voirfile_that_imports_it_needs_no_option_and_no_arguments() -> None:
    ov = SmallOverseer(instrument_argparse)
    ov(lambda ov: parser().parse_args(["--lr", "2"]))
    assert ov.summary["options"] == {"lr": 2.0, "names": []}
    nothing = SmallOverseer(instrument_argparse)
    nothing(lambda ov: None)
    assert (nothing.warned, nothing.errors) == ([], [])
