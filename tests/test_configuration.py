"""Configuration files: where they are looked for, what goes before what, and what is said of wrong ones."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from voirkit.errors import ConfigurationError
from voirkit.options import ExtendedArgumentParser
from voirkit.options.configuration import Setting, collect, find, read

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``outer/inner`` is the current folder; scripts lie in ``outer/inner`` and ``outer/scripts``."""
    for folder in ("outer/inner", "outer/scripts"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "main.py").write_text("")
    monkeypatch.chdir(tmp_path / "outer/inner")
    return tmp_path / "outer"


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def values(script: str | None = "main.py", *configs: str) -> dict[str, Any]:
    return {".".join(s.path): s.value for s in collect(script, os.getcwd(), configs)}


def refusal(text: str, path: str = "voirkit.toml") -> str:
    write(Path(path), text)
    with pytest.raises(ConfigurationError) as caught:
        collect("main.py", os.getcwd(), [] if os.path.basename(path).endswith("t.toml") else [path])
    return str(caught.value)


def duration(text: str) -> float:
    if not text.endswith("s"):
        raise argparse.ArgumentTypeError("not a duration such as 30s")
    return float(text[:-1])


@dataclass
class Network:
    depth: int = 3


@dataclass
class Training:
    epochs: int
    shuffle: bool = True
    files: list[str] = field(default_factory=list)
    network: Network = field(default_factory=Network)


def parsed(text: str, line: str = "", with_training: bool = False) -> argparse.Namespace:
    """The options of a run whose voirkit.toml is ``text``."""
    write(Path("voirkit.toml"), text)
    parser = ExtendedArgumentParser()
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--run-dir")
    parser.apply(collect("main.py", os.getcwd()))
    parser.definer = "instrument_x (voirfile.py:3)"
    parser.add_argument("--dash", action="store_true", dest="--dash")
    parser.add_argument("--loader", action="store_true")
    parser.add_argument("--train-rate", action="store_true")
    parser.add_argument("--plain", action="store_false")
    parser.add_argument("--fast", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--stop", type=int, default=0)
    parser.add_argument("--stop-after", type=duration)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--monitor", nargs="?", type=float, const=1.0)
    parser.add_argument("--pair", nargs=2, type=int)
    parser.add_argument("--calls", nargs="+")
    parser.add_argument("--probe", action="append", default=[])
    parser.add_argument("--also", nargs="*", action="extend", default=argparse.SUPPRESS)
    parser.add_argument("--method", choices=["delta", "wrap"])
    parser.add_argument("-v", action="count", default=0)
    if with_training:
        parser.add_from_model("training", Training)
    return parser.parse_command([*line.split(), "main.py"])


def wrong(text: str, line: str = "", with_training: bool = False) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parsed(text, line, with_training)
    return str(caught.value)


# where


def test_files_are_found_beside_the_script_then_in_the_current_folder_and_its_parents(
    place: Path,
) -> None:
    expected = [
        write(place / "scripts/voirkit.toml", ""),
        write(place / "scripts/pyproject.toml", ""),
        write(place / "inner/voirkit.toml", ""),
        write(place / "voirkit.toml", ""),
        write(place / "pyproject.toml", ""),
    ]
    assert find("../scripts/main.py", os.getcwd()) == expected


def test_each_file_is_found_once_and_the_scripts_parents_are_not_searched(place: Path) -> None:
    mine = write(place / "inner/voirkit.toml", "")
    write(place / "scripts/deep/voirkit.toml", "")
    assert find("main.py", os.getcwd()) == [mine]
    assert find("../scripts/main.py", os.getcwd()) == [mine]
    assert find(None, os.getcwd()) == [mine]


def test_beside_a_folder_that_is_run_means_in_it(place: Path) -> None:
    inside = write(place / "scripts/package/voirkit.toml", "")
    assert find("../scripts/package", os.getcwd()) == [inside]


def test_the_nearest_file_goes_before_the_others_key_by_key(place: Path) -> None:
    write(place / "scripts/voirkit.toml", "stop = 1")
    write(place / "scripts/pyproject.toml", "[tool.voirkit]\nstop = 2\nrate = 2")
    write(place / "inner/voirkit.toml", "stop = 3\nrate = 3\nrun-dir = '3'")
    write(
        place / "pyproject.toml",
        "[tool.voirkit]\nrun_dir = '4'\nloader = true\n[tool.voirkit.training]\nepochs = 4",
    )
    assert values("../scripts/main.py") == {
        "stop": 1,
        "rate": 2,
        "run-dir": "3",
        "loader": True,
        "training.epochs": 4,
    }


def test_files_of_the_command_line_go_before_those_found_and_the_last_before_all(
    place: Path,
) -> None:
    write(place / "inner/voirkit.toml", "a = 1\nb = 1\nc = 1\n[t]\nx = 1\ny = 1")
    write(place / "inner/one.yaml", "b: 2\nc: 2\nt:\n  x: 2\n")
    write(place / "inner/two.json", '{"c": 3}')
    assert values("main.py", "one.yaml", "two.json") == {"a": 1, "b": 2, "c": 3, "t.x": 2, "t.y": 1}


def test_without_a_search_only_the_files_of_the_command_line_are_read(place: Path) -> None:
    write(place / "inner/voirkit.toml", "a = 1")
    one, two = write(place / "one.yaml", "b: 2\nc: 2"), write(place / "two.yaml", "c: 3")
    found = collect("main.py", os.getcwd(), [one, two], search=False)
    assert {s.path[0]: s.value for s in found} == {"b": 2, "c": 3}


def test_a_pyproject_given_with_config_is_read_as_one(place: Path) -> None:
    write(place / "elsewhere/pyproject.toml", "[tool.voirkit]\nstop = 1\n[tool.other]\nstop = 2")
    assert values("main.py", "../elsewhere/pyproject.toml") == {"stop": 1}


@pytest.mark.usefixtures("place")
def test_a_pyproject_that_says_nothing_to_voirkit_is_not_parsed() -> None:
    write(
        Path("pyproject.toml"),
        "[project\nname = 'torn'\ndependencies = ['voirkit']\n# tool.voirkit",
    )
    assert values() == {}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "text",
    [
        "[tool.voirkit]\nstop = 1",
        "[ tool . 'voirkit' ]\nstop = 1",
        "tool.voirkit.stop = 1",
        "tool = {voirkit = {stop = 1}}",
        "[tool]\nvoirkit = {stop = 1}",
        "[tool]\n'voirkit'.stop = 1",
    ],
)
def test_the_table_of_a_pyproject_may_be_written_in_any_way(text: str) -> None:
    write(Path("pyproject.toml"), text)
    assert values() == {"stop": 1}


@pytest.mark.usefixtures("place")
def test_empty_files_say_nothing() -> None:
    write(Path("voirkit.toml"), "")
    write(Path("empty.yaml"), "# nothing\n")
    write(Path("pyproject.toml"), "# voirkit\n[tool]\n")
    assert values("main.py", "empty.yaml") == {}


@pytest.mark.usefixtures("place")
def test_a_byte_order_mark_is_borne() -> None:
    Path("voirkit.toml").write_bytes(b"\xef\xbb\xbfstop = 3\r\nrate = 2\r\n")
    assert values() == {"stop": 3, "rate": 2}


# files that cannot be read


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        (
            "voirkit.toml",
            "[steps\nquiet = true\n",
            ["voirkit.toml:1: this is not TOML: Expected ']'"],
        ),
        ("voirkit.toml", "a = 1\nb = \n", ["voirkit.toml:2: this is not TOML"]),
        ("voirkit.toml", "a = 1\nb = '''", ["voirkit.toml:2: this is not TOML"]),
        ("voirkit.toml", "a = " + "[" * 100_000, ["voirkit.toml", "nested too deep"]),
        (
            "pyproject.toml",
            "[tool]\nvoirkit = 3\n",
            ["pyproject.toml:2: tool.voirkit needs to be a table", "not 3"],
        ),
        ("x.yaml", "a: 1\nb: [1\n", ["x.yaml:3: this is not YAML"]),
        ("x.yaml", "a: 2024-13-45\n", ["x.yaml", "this is not YAML"]),
        ("x.yaml", "a: \x01\n", ["x.yaml:1: this is not YAML"]),
        (
            "x.yaml",
            "- a\n- b\n",
            ["x.yaml: the file needs to be a table of settings, not ['a', 'b']"],
        ),
        ("x.yaml", "on: 3\n", ["x.yaml: the key True is no name of an option"]),
        ("x.json", '{"a": 1,\n "b": }', ["x.json:2: this is not JSON: Expecting value"]),
        ("x.json", "", ["x.json:1: this is not JSON"]),
        ("x.json", "3", ["x.json: the file needs to be a table of settings, not 3"]),
        ("x.ini", "a = 1", ["x.ini", "TOML, YAML or JSON", ".toml"]),
        ("nosuffix", "a = 1", ["nosuffix", "TOML, YAML or JSON"]),
    ],
)
def test_a_malformed_file_is_refused_with_its_name_and_line(
    path: str, text: str, words: list[str]
) -> None:
    said = refusal(text, path)
    assert [word for word in words if word not in said] == []


@pytest.mark.usefixtures("place")
def test_a_missing_file_is_refused_with_the_nearest_name() -> None:
    write(Path("other.toml"), "")
    with pytest.raises(ConfigurationError) as caught:
        values("main.py", "othr.toml")
    assert str(caught.value) == "othr.toml: there is no such file.\n  There is: other.toml"
    with pytest.raises(
        ConfigurationError,
        match=r"nowhere/x\.toml: there is no such file: its folder does not exist",
    ):
        values("main.py", "nowhere/x.toml")


@pytest.mark.usefixtures("place")
def test_a_folder_and_bytes_that_are_no_text_are_refused() -> None:
    Path("folder.toml").mkdir()
    Path("bytes.toml").write_bytes(b"a = 1\nb = '\xff'\n")
    with pytest.raises(
        ConfigurationError, match=r"folder\.toml: the file cannot be read: is a directory"
    ):
        values("main.py", "folder.toml")
    with pytest.raises(ConfigurationError, match=r"bytes\.toml:2: the file is not UTF-8 text"):
        values("main.py", "bytes.toml")


@pytest.mark.usefixtures("place")
def test_a_file_without_permission_is_refused() -> None:
    write(Path("voirkit.toml"), "stop = 1")
    os.chmod("voirkit.toml", 0)
    if os.access("voirkit.toml", os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(
        ConfigurationError, match=r"voirkit\.toml: the file cannot be read: permission denied"
    ):
        values()


# lines


@pytest.mark.usefixtures("place")
def test_each_setting_knows_its_file_and_line() -> None:
    write(
        Path("voirkit.toml"), "# stop = 1\nstop = 2\n\n[training]\nepochs = 3\nnetwork.depth = 4\n"
    )
    write(Path("one.yaml"), "rate: 1\nother:\n  epochs: 3\n")
    write(Path("two.json"), '{"loader": true,\n  "third": {"x": 1,\n  "y": 2}}')
    found = {
        ".".join(s.path): s.where for s in collect("main.py", os.getcwd(), ["one.yaml", "two.json"])
    }
    assert found == {
        "stop": "voirkit.toml:2",
        "training.epochs": "voirkit.toml:5",
        "training.network.depth": "voirkit.toml:6",
        "rate": "one.yaml:1",
        "other.epochs": "one.yaml:3",
        "loader": "two.json:1",
        "third.x": "two.json:2",
        "third.y": "two.json:3",
    }


def test_a_file_that_is_not_in_the_current_folder_is_named_with_its_path(place: Path) -> None:
    path = write(place / "pyproject.toml", "[tool.other]\nstop = 1\n[tool.voirkit]\nstop = 2\n")
    assert [s.where for s in read(path, os.getcwd())] == [f"{path}:4"]


def test_a_setting_shows_what_it_is() -> None:
    assert repr(Setting(("a", "b"), 3, "x.toml:1")) == "<x.toml:1 a.b = 3>"


# settings as options


@pytest.mark.usefixtures("place")
def test_settings_give_options_their_values() -> None:
    text = """
        dash = true
        train_rate = true
        loader = false
        plain = true
        fast = false
        stop = 5
        stop-after = "30s"
        rate = 2
        monitor = 0.5
        pair = [1, 2]
        calls = ["a", "b"]
        probe = ["f > x", "g > y"]
        method = "wrap"
        run-dir = "here"
        v = 2
    """
    options = vars(parsed(text))
    expected: dict[str, object] = {
        "--dash": True,
        "train_rate": True,
        "loader": False,
        "plain": False,
        "fast": False,
        "stop": 5,
    }
    expected |= {
        "stop_after": 30.0,
        "rate": 2.0,
        "monitor": 0.5,
        "pair": [1, 2],
        "calls": ["a", "b"],
    }
    expected |= {"probe": ["f > x", "g > y"], "method": "wrap", "run_dir": "here", "v": 2}
    assert {name: options[name] for name in expected} == expected


@pytest.mark.usefixtures("place")
def test_a_single_value_will_do_for_an_option_that_takes_several() -> None:
    options = parsed("calls = 'a'\nprobe = 'f > x'")
    assert (options.calls, options.probe) == (["a"], ["f > x"])


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("value", "given"), [("[]", []), ("'a'", ["a"]), ("['a', 'b']", ["a", "b"])]
)
def test_an_option_that_extends_takes_a_list_even_an_empty_one(
    value: str, given: list[str]
) -> None:
    assert parsed(f"also = {value}").also == given


@pytest.mark.usefixtures("place")
def test_true_gives_an_option_with_an_optional_value_and_false_does_not() -> None:
    assert parsed("monitor = true").monitor == 1.0
    assert parsed("monitor = false").monitor is None


@pytest.mark.usefixtures("place")
def test_no_before_the_name_of_a_switch_is_understood() -> None:
    assert parsed("no-fast = true").fast is False
    assert parsed("plain = false").plain is True


@pytest.mark.usefixtures("place")
def test_the_command_line_goes_before_all_configuration() -> None:
    text = "stop = 5\nprobe = ['a']\ndash = true\nfast = false\ncalls = ['a']"
    options = parsed(text, "--stop 6 --probe b --probe c --fast --calls=b")
    assert (options.stop, options.probe, options.fast, options.calls) == (
        6,
        ["b", "c"],
        True,
        ["b"],
    )
    assert getattr(options, "--dash") is True


@pytest.mark.usefixtures("place")
def test_a_setting_gives_an_option_that_is_required() -> None:
    write(Path("voirkit.toml"), "target = 'x'")
    parser = ExtendedArgumentParser()
    parser.apply(collect("main.py", os.getcwd()))
    parser.add_argument("--target", required=True)
    assert parser.parse_command(["main.py"]).target == "x"


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lodaer = true", ["voirkit.toml:1: unknown key 'lodaer'", "Did you mean 'loader'?"]),
        ("stop = 1\n\nhelp = true", ["voirkit.toml:3: unknown key 'help'"]),
        ("config = ['a.toml']", ["voirkit.toml:1: --config can stand only on the command line"]),
        ("loader = 'yes'", ["voirkit.toml:1: loader needs true or false, not 'yes'"]),
        ("loader = 1", ["loader needs true or false, not 1"]),
        ("stop = true", ["stop needs a number or a string, not True"]),
        ("stop = [1]", ["stop needs a number or a string, not [1]"]),
        ("stop = 1.5", ["voirkit.toml:1: stop = 1.5: not a whole number"]),
        ("run-dir = 2024-01-01", ["run-dir needs a number or a string"]),
        ("stop-after = '30parsec'", ["stop-after = '30parsec': not a duration such as 30s"]),
        ("monitor = 'often'", ["monitor = 'often': not a number"]),
        ("pair = [1]", ["pair needs a list of 2 values, not 1"]),
        ("pair = [1, 'x']", ["pair = [1, 'x']: not a whole number"]),
        ("calls = []", ["calls needs a list of values, not 0"]),
        ("calls = [true]", ["calls needs a list of values, not [True]"]),
        ("method = 'dleta'", ["method = 'dleta': not one of delta, wrap", "Did you mean 'delta'?"]),
        (
            "[loader]\nx = 1",
            ["voirkit.toml:2: nothing uses the table 'loader'", "loader is an option, not a table"],
        ),
    ],
)
def test_a_setting_that_no_option_takes_is_refused(text: str, words: list[str]) -> None:
    said = wrong(text)
    assert [word for word in words if word not in said] == []


@pytest.mark.usefixtures("place")
def test_a_wrong_setting_is_refused_even_if_the_command_line_goes_before_it() -> None:
    assert "stop = 'x': not a whole number" in wrong("stop = 'x'", "--stop 3")


@pytest.mark.usefixtures("place")
def test_a_table_gives_the_options_of_a_dataclass_their_defaults() -> None:
    text = "stop = 1\n[training]\nepochs = 5\nfiles = ['a']\n[training.network]\ndepth = 9\n"
    assert parsed(text, "", True).training == Training(5, files=["a"], network=Network(9))
    assert parsed(text, "--epochs 6 --no-shuffle", True).training == Training(
        6, False, ["a"], Network(9)
    )


@pytest.mark.usefixtures("place")
def test_fields_of_a_dataclass_may_be_set_by_their_options_names() -> None:
    assert parsed("epochs = 5\nshuffle = false\nfiles = ['a', 'b']", "", True).training == Training(
        5, False, ["a", "b"]
    )


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[trainin]\nepochs = 5",
            ["voirkit.toml:2: nothing uses the table 'trainin'", "Did you mean 'training'?"],
        ),
        (
            "[other]",
            ["voirkit.toml:1: nothing uses the table 'other'", "Tables that are used: training."],
        ),
        (
            "[training]\nepoch = 5",
            ["voirkit.toml:2: unknown key 'training.epoch'", "Did you mean 'epochs'?"],
        ),
        ("[training]\nepochs = 'x'", ["voirkit.toml:2: training.epochs = 'x': not a whole number"]),
        (
            "[training]\nepochs = 1\nshuffle = 0",
            ["voirkit.toml:3: training.shuffle needs true or false, not 0"],
        ),
        (
            "training = 3",
            ["voirkit.toml:1: unknown key 'training'", "It is a table of settings: [training]"],
        ),
    ],
)
def test_a_table_that_no_dataclass_takes_is_refused(text: str, words: list[str]) -> None:
    said = wrong(text, "--epochs 1", True)
    assert [word for word in words if word not in said] == []


# cost


def test_a_parser_is_imported_only_for_a_file_that_needs_it(place: Path) -> None:
    write(place / "inner/pyproject.toml", "[project]\nname = 'x'\n")
    program = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from voirkit.options.configuration import collect
collect("main.py", os.getcwd())
print(*[name for name in ("tomllib", "tomli", "yaml", "json", "pathlib", "typing") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
