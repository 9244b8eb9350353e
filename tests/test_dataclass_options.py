"""Options made from dataclasses: names, types, help, and defaults from a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from voirkit.errors import CommandLineError, ConfigurationError, InstrumentError
from voirkit.options import ExtendedArgumentParser


class Colour(Enum):
    RED = "r"
    BLUE = "b"


@dataclass
class Network:
    # number of layers
    depth: int = 3
    wide: bool = False


@dataclass
class Training:
    __help__ = "How it trains"

    # a comment for something else

    # how many epochs,
    # all in all
    epochs: int
    rate: float = 0.1  # step width, at 100 % at most
    name: str = "run"
    """Name of the run."""
    shuffle: bool = True  # shuffle the data
    x: int = 0
    device: Optional[str] = None  # noqa: UP045 - the older spelling has to work too
    seed: int | None = None
    files: list[Path] = field(default_factory=lambda: [Path("a")])
    method: Literal["delta", "wrap", 3] = "delta"
    colour: Colour = Colour.RED
    limit: int | float | str = "none"
    network: Network = field(default_factory=Network)
    steps: int = field(init=False, default=7)


def trained(line: str = "", model: Any = Training, **kwargs: Any) -> Any:
    parser = ExtendedArgumentParser()
    parser.add_from_model("training", model, **kwargs)
    return parser.parse_command([*line.split(), "--", "main.py"]).training


def test_the_fields_of_a_dataclass_become_options_and_an_instance() -> None:
    line = "--epochs 2 --rate 0.5 --name n --no-shuffle -x 4 --device cuda --seed 1"
    assert trained(line) == Training(
        2, rate=0.5, name="n", shuffle=False, x=4, device="cuda", seed=1
    )


def test_fields_without_an_option_keep_their_defaults() -> None:
    assert trained("--epochs 2") == Training(2)


def test_a_field_without_a_default_is_required() -> None:
    with pytest.raises(CommandLineError, match="--epochs has to be given"):
        trained()


def test_lists_paths_enums_literals_and_unions_are_read() -> None:
    found = trained("--epochs 1 --files a b --method 3 --colour BLUE --limit 2.5")
    assert found == Training(
        1, files=[Path("a"), Path("b")], method=3, colour=Colour.BLUE, limit=2.5
    )
    assert trained("--epochs 1 --files=a --files=b --colour b --limit 2") == Training(
        1, files=[Path("a"), Path("b")], colour=Colour.BLUE, limit=2
    )
    assert trained("--epochs 1 --files --limit all") == Training(1, files=[], limit="all")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--epochs two", ["--epochs two: not a whole number"]),
        (
            "--epochs 1 --method dleta",
            ["--method dleta: not one of delta, wrap, 3", "Did you mean 'delta'?"],
        ),
        ("--epochs 1 --colour GREEN", ["--colour GREEN: not one of RED, BLUE"]),
        ("--epochs 1 --network.dpth 3", ["unknown option '--network.dpth'", "'--network.depth'"]),
    ],
)
def test_a_wrong_value_for_a_field_is_refused(line: str, words: list[str]) -> None:
    with pytest.raises(CommandLineError) as caught:
        trained(line)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_dataclass_in_a_dataclass_has_its_name_before_its_options() -> None:
    assert trained("--epochs 1 --network.depth 9 --network.wide").network == Network(9, True)


def test_without_flatten_the_place_stands_before_every_option() -> None:
    line = "--training.epochs 1 --training.no-shuffle --training.network.no-wide"
    assert trained(line, flatten=False) == Training(1, shuffle=False)


def test_an_instance_gives_the_defaults() -> None:
    assert trained("", Training(5, network=Network(8))) == Training(5, network=Network(8))


def test_an_instance_makes_no_default_anew() -> None:
    @dataclass
    class Costly:
        sizes: list[int] = field(default_factory=lambda: pytest.fail("made anew"))

    assert trained(model=Costly([1])) == Costly([1])


def test_the_help_of_fields_comes_from_comments_and_docstrings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        trained("--help")
    said = " ".join(capsys.readouterr().out.split())
    assert "How it trains: --epochs EPOCHS how many epochs, all in all (required)" in said
    assert "--rate RATE step width, at 100 % at most (default: 0.1)" in said
    assert "--name NAME Name of the run. (default: run)" in said
    assert "--shuffle shuffle the data (default) --no-shuffle The opposite of --shuffle." in said
    assert "--device DEVICE --seed SEED" in said
    assert "--colour {RED,BLUE} (default: RED)" in said
    assert "Network: --network.depth NETWORK.DEPTH" not in said
    assert "--network.depth DEPTH number of layers (default: 3)" in said
    assert "something else" not in said


def test_the_check_of_a_dataclass_is_a_wrong_command_line() -> None:
    @dataclass
    class Positive:
        n: int = 1

        def __post_init__(self) -> None:
            if self.n < 1:
                raise ValueError("n has to be positive")

    with pytest.raises(CommandLineError, match="the options of training: n has to be positive"):
        trained("-n -3", Positive)


def test_what_is_no_dataclass_or_can_not_be_read_is_the_instruments_error() -> None:
    @dataclass
    class Odd:
        table: dict[str, int]

    with pytest.raises(InstrumentError, match="int is none"):
        trained("", int)
    with pytest.raises(
        InstrumentError, match=r"training.table is of type dict\[str, int\], which cannot be read"
    ):
        trained("", Odd)


def test_two_dataclasses_can_not_have_the_same_place() -> None:
    parser = ExtendedArgumentParser()
    parser.add_from_model("a", Network)
    with pytest.raises(InstrumentError, match=r"options\.a"):
        parser.add_from_model("a", Network, flatten=False)


# defaults from a configuration


def test_a_base_configuration_sets_defaults_and_the_command_line_wins() -> None:
    parser = ExtendedArgumentParser()
    parser.merge_base_config(
        {"training": {"epochs": 7, "shuffle": False, "network": {"wide": True}}}
    )
    parser.merge_base_config(
        {"training": {"epochs": 8, "files": ["c"], "colour": "BLUE", "seed": None}}
    )
    parser.add_from_model("training", Training)
    found = parser.parse_args(["--rate", "0.5"]).training
    assert found == Training(
        8,
        rate=0.5,
        shuffle=False,
        files=[Path("c")],
        colour=Colour.BLUE,
        network=Network(wide=True),
    )
    again = parser.parse_args(["--shuffle", "--network.no-wide", "--files", "d"]).training
    assert again == Training(8, files=[Path("d")], colour=Colour.BLUE)


def test_a_dataclass_can_not_have_the_place_of_an_option() -> None:
    parser = ExtendedArgumentParser()
    parser.add_argument("--config")
    with pytest.raises(
        InstrumentError, match=r"options\.config is where the value of --config stands"
    ) as error:
        parser.add_from_model("config", Network)
    assert "config_options" in str(error.value)


def test_a_base_configuration_after_the_dataclass_is_an_error() -> None:
    parser = ExtendedArgumentParser()
    parser.add_from_model("training", Training)
    with pytest.raises(
        InstrumentError, match="merge_base_config has to come before add_from_model"
    ):
        parser.merge_base_config({"training": {"epochs": 1}})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"trainin": {"epochs": 1}},
            ["a.yaml:3: nothing uses the table 'trainin'", "Did you mean 'training'?"],
        ),
        (
            {"training": {"epoch": 1}},
            ["a.yaml:3: unknown key 'training.epoch'", "Did you mean 'epochs'?"],
        ),
        ({"training": {"epochs": "x"}}, ["a.yaml:3: training.epochs = 'x': not a whole number"]),
        ({"training": {"shuffle": 1}}, ["a.yaml:3: training.shuffle needs true or false, not 1"]),
        (
            {"training": {"epochs": True}},
            ["a.yaml:3: training.epochs needs a number or a string, not True"],
        ),
        (
            {"training": {"epochs": None}},
            ["a.yaml:3: training.epochs needs a number or a string, not None"],
        ),
        ({"training": {"network": 3}}, ["a.yaml:3: training.network needs to be a table, not 3"]),
        (
            {"training": {"network": {"dpth": 3}}},
            ["unknown key 'training.network.dpth'", "Did you mean 'depth'?"],
        ),
        ({"training": 3}, ["a.yaml:3: training needs to be a table of settings, not 3"]),
    ],
)
def test_a_base_configuration_that_does_not_fit_is_an_error(
    config: dict[str, Any], words: list[str]
) -> None:
    def read() -> None:
        parser = ExtendedArgumentParser()
        parser.merge_base_config(config, "a.yaml:3")
        parser.add_from_model("training", Training(1))
        parser.parse_command(["main.py"])

    with pytest.raises(ConfigurationError) as caught:
        read()
    assert [word for word in words if word not in str(caught.value)] == []
