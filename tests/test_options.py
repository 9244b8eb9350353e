"""The command line: which words are voirkit's, and what is said of wrong ones."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from voirkit.errors import CommandLineError, InstrumentError
from voirkit.options import ExtendedArgumentParser

ROOT = Path(__file__).resolve().parents[1]


def seconds(text: str) -> float:
    if not text.endswith("s"):
        raise argparse.ArgumentTypeError(f"not a duration such as 30s: {text}")
    return float(text[:-1])


def own_parser() -> ExtendedArgumentParser:
    """voirkit's own options, as they are known before instruments add theirs."""
    parser = ExtendedArgumentParser()
    parser.add_argument("--run-dir", help="where the run is written")
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--quiet", "-q", action="store_true")
    parser.add_argument("--version", action="version", version="voirkit 1.2.3")
    return parser


@pytest.fixture
def parser() -> ExtendedArgumentParser:
    parser = own_parser()
    parser.definer = "instrument_x (voirfile.py:3)"
    parser.add_argument("--loader", action="store_true", help="at most 5 % of the time")
    parser.add_argument("--dash", action="store_true", dest="--dash")
    parser.add_argument("--stop-after", type=seconds)
    parser.add_argument("--every", "-e", type=int)
    parser.add_argument("--monitor", nargs="?", type=float, const=1.0)
    parser.add_argument("--pair", nargs=2, type=int)
    parser.add_argument("--calls", nargs="+")
    parser.add_argument("--tags", nargs="*")
    parser.add_argument("--method", choices=["delta", "wrap"])
    parser.add_argument("-v", action="count", default=0, dest="verbose")
    parser.definer = None
    return parser


def refusal(parser: ExtendedArgumentParser, line: str) -> str:
    with pytest.raises(CommandLineError) as caught:
        parser.parse_command(line.split())
    return str(caught.value)


# which words are whose


@pytest.mark.parametrize(
    ("line", "own", "script", "arguments"),
    [
        ("main.py", "", "main.py", ""),
        ("--dash main.py --dash", "--dash", "main.py", "--dash"),
        ("--run-dir d main.py --run-dir e", "--run-dir d", "main.py", "--run-dir e"),
        ("--run-dir=d main.py", "--run-dir=d", "main.py", ""),
        ("--monitor main.py", "--monitor", "main.py", ""),
        ("--monitor=2 main.py 3", "--monitor=2", "main.py", "3"),
        ("--pair 1 2 main.py", "--pair 1 2", "main.py", ""),
        ("--every -5 main.py", "--every -5", "main.py", ""),
        ("-e5 main.py", "-e5", "main.py", ""),
        ("-qve 5 main.py", "-qve 5", "main.py", ""),
        ("--calls a b --dash main.py", "--calls a b --dash", "main.py", ""),
        ("--calls a b -- main.py", "--calls a b", "main.py", ""),
        ("--calls=a main.py", "--calls=a", "main.py", ""),
        ("--dash -- -odd.py -x", "--dash", "-odd.py", "-x"),
        ("main.py -- --unknown -m x", "", "main.py", "-- --unknown -m x"),
        ("-", "", "-", ""),
    ],
)
def test_options_before_the_script_are_voirkits_and_all_after_it_is_the_scripts(
    parser: ExtendedArgumentParser, line: str, own: str, script: str, arguments: str
) -> None:
    assert parser.split(line.split()) == (own.split(), script, None, arguments.split())


@pytest.mark.parametrize(
    ("line", "own", "module", "arguments"),
    [
        ("-m pkg.mod", "", "pkg.mod", ""),
        ("--dash -m mod:function --dash -m x", "--dash", "mod:function", "--dash -m x"),
        ("--calls a b -m mod c", "--calls a b", "mod", "c"),
        ("-mmod c", "", "mod", "c"),
    ],
)
def test_the_module_option_ends_voirkits_options(
    parser: ExtendedArgumentParser, line: str, own: str, module: str, arguments: str
) -> None:
    assert parser.split(line.split()) == (own.split(), None, module, arguments.split())


def test_a_command_is_parsed_into_options_script_and_its_arguments(
    parser: ExtendedArgumentParser,
) -> None:
    line = "--stop-after 30s --monitor --pair 1 2 -qvv --dash --calls a b -- main.py --dash=no x"
    options = parser.parse_command(line.split())
    assert (options.SCRIPT, options.MODULE, options.ARGV) == ("main.py", None, ["--dash=no", "x"])
    assert (options.stop_after, options.monitor, options.pair, options.calls) == (
        30.0,
        1.0,
        [1, 2],
        ["a", "b"],
    )
    assert (options.quiet, options.verbose, getattr(options, "--dash"), options.loader) == (
        True,
        2,
        True,
        False,
    )


def test_a_value_attached_with_an_equals_sign_may_begin_with_a_dash(
    parser: ExtendedArgumentParser,
) -> None:
    assert parser.parse_command(["--run-dir=-odd", "main.py"]).run_dir == "-odd"


def test_the_module_and_its_function_are_kept_as_they_were_typed(
    parser: ExtendedArgumentParser,
) -> None:
    options = parser.parse_command(["-m", "pkg.mod:main", "a"])
    assert (options.SCRIPT, options.MODULE, options.ARGV) == (None, "pkg.mod:main", ["a"])


# what is said of a wrong command line


def test_an_option_that_is_not_for_people_is_not_in_the_help(
    parser: ExtendedArgumentParser,
) -> None:
    parser.add_argument(
        "--between-us", help="".join(["==SUP", "PRESS=="])
    )  # a string like argparse's, not its own
    assert "between-us" not in parser.format_help()
    assert "SUPPRESS" not in parser.format_help()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ["no SCRIPT given"]),
        ("--dash", ["no SCRIPT given"]),
        ("--run-dir main.py", ["no SCRIPT given", "'main.py'", "--run-dir"]),
        ("--calls a main.py", ["no SCRIPT given", "'main.py'", "--calls", "put -- before SCRIPT"]),
        ("-m", ["-m needs the name of a module"]),
        ("-m --dash", ["-m needs the name of a module"]),
        ("--lodaer main.py", ["unknown option '--lodaer'", "Did you mean '--loader'?"]),
        ("--lodaer=3 main.py", ["unknown option '--lodaer'", "Did you mean '--loader'?"]),
        ("--stop-aft 30s main.py", ["unknown option '--stop-aft'", "'--stop-after'"]),
        ("-dash main.py", ["unknown option '-dash'", "Did you mean '--dash'?"]),
        ("-monitor=3 main.py", ["unknown option '-monitor'", "Did you mean '--monitor'?"]),
        ("-every 3 main.py", ["unknown option '-every'", "Did you mean '--every'?"]),
        ("-qz main.py", ["unknown option '-qz'"]),
        ("--dash=yes main.py", ["--dash takes no value", "--dash=yes"]),
        ("--run-dir", ["--run-dir needs a value"]),
        ("--run-dir --dash main.py", ["--run-dir needs a value"]),
        ("--run-dir -x main.py", ["--run-dir needs a value", "--run-dir=-x"]),
        ("--run-dir=-- main.py", ["--run-dir needs a value"]),
        ("--pair 1", ["--pair needs 2 values, 1 given"]),
        ("--calls --dash main.py", ["--calls needs a value"]),
        ("--stop-after 30parsec main.py", ["--stop-after 30parsec: not a duration such as 30s"]),
        ("--monitor=often main.py", ["--monitor=often: not a number"]),
        ("--every 1.5 main.py", ["--every 1.5: not a whole number"]),
        (
            "--method dleta main.py",
            ["--method dleta: not one of delta, wrap", "Did you mean 'delta'?"],
        ),
    ],
)
def test_a_wrong_command_line_is_refused_in_the_users_words(
    parser: ExtendedArgumentParser, capsys: pytest.CaptureFixture[str], line: str, words: list[str]
) -> None:
    said = refusal(parser, line)
    assert [word for word in words if word not in said] == []
    assert capsys.readouterr() == ("", "")


def test_options_are_never_abbreviated() -> None:
    parser = ExtendedArgumentParser()
    parser.add_argument("--train-rate", action="store_true")
    assert "Did you mean '--train-rate'?" in refusal(parser, "--train-rat main.py")


def test_the_text_of_a_value_error_is_the_message() -> None:
    def even(text: str) -> int:
        if int(text) % 2:
            raise ValueError("has to be even")
        return int(text)

    parser = ExtendedArgumentParser()
    parser.add_argument("--size", type=even)
    assert refusal(parser, "--size 3 main.py") == "--size 3: has to be even."


def test_a_type_that_breaks_is_a_fault_of_its_instrument(parser: ExtendedArgumentParser) -> None:
    parser.definer = "instrument_y (voirfile.py:9)"
    parser.add_argument("--colour", type=lambda text: {"red": 1}[text])
    with pytest.raises(
        InstrumentError,
        match=r"instrument_y \(voirfile.py:9\): the type of --colour fails on 'blue'",
    ):
        parser.parse_command(["--colour", "blue", "main.py"])


def test_a_required_option_that_is_missing_is_named_with_who_requires_it(
    parser: ExtendedArgumentParser,
) -> None:
    parser.definer = "instrument_y (voirfile.py:9)"
    parser.add_argument("--target", required=True)
    assert (
        refusal(parser, "main.py")
        == "--target has to be given: instrument_y (voirfile.py:9) requires it."
    )


def test_parse_args_for_a_subcommand_refuses_with_the_same_words() -> None:
    parser = ExtendedArgumentParser(prog="voirkit report")
    parser.add_argument("RUN", nargs="?")
    parser.add_argument("--json", action="store_true")
    with pytest.raises(CommandLineError, match="unknown option '--jsn'") as caught:
        parser.parse_args(["--jsn"])
    assert "Did you mean '--json'?" in str(caught.value)
    assert "voirkit report --help" in str(caught.value)
    with pytest.raises(CommandLineError, match="'b' is one word too many"):
        parser.parse_args(["a", "b"])


# help


def test_help_goes_to_stdout_with_voirkits_options_before_those_of_instruments(
    parser: ExtendedArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parser.parse_command(["--dash", "--help", "--no-such-option"])
    out, err = capsys.readouterr()
    assert (caught.value.code, err) == (0, "")
    assert out.startswith(
        "usage: voirkit [options] SCRIPT [script arguments]\n       voirkit [options] -m MODULE[:FUNCTION]"
    )
    places = [out.index(word) for word in ("--run-dir", "instruments:", "--loader")]
    assert places == sorted(places)


def test_a_lone_percent_sign_in_a_help_text_is_printed_as_it_is(
    parser: ExtendedArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser.parse_command(["--help"])
    assert "at most 5 % of the time" in capsys.readouterr().out


def test_version_goes_to_stdout(
    parser: ExtendedArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parser.parse_command(["--version"])
    assert (caught.value.code, capsys.readouterr().out) == (0, "voirkit 1.2.3\n")


def test_help_after_the_script_is_the_scripts(parser: ExtendedArgumentParser) -> None:
    assert parser.parse_command(["main.py", "--help"]).ARGV == ["--help"]


# who adds which option


def adding(parser: ExtendedArgumentParser, definer: str | None, *names: str) -> str:
    parser.definer = definer
    with pytest.raises(InstrumentError) as caught:
        parser.add_argument(*names, action="store_true")
    return str(caught.value)


def test_an_option_of_two_instruments_is_an_error_that_names_both(
    parser: ExtendedArgumentParser,
) -> None:
    said = adding(parser, "instrument_y (other.py:9)", "--loader")
    assert (
        "the option --loader is added by instrument_x (voirfile.py:3) and by instrument_y (other.py:9)"
        in said
    )


def test_an_instrument_can_not_add_one_of_voirkits_own_options(
    parser: ExtendedArgumentParser,
) -> None:
    said = adding(parser, "instrument_y (other.py:9)", "--run-dir")
    assert "instrument_y (other.py:9): the option --run-dir is voirkit's own" in said
    assert "-m is voirkit's own" in adding(parser, "instrument_y (other.py:9)", "--module", "-m")


def test_an_option_that_one_instrument_adds_twice_is_an_error(
    parser: ExtendedArgumentParser,
) -> None:
    assert "--loader is added twice" in adding(parser, "instrument_x (voirfile.py:3)", "--loader")


def test_options_in_groups_of_their_own_are_recorded_too(parser: ExtendedArgumentParser) -> None:
    parser.definer = "instrument_y (other.py:9)"
    exclusive = parser.add_argument_group("mine").add_mutually_exclusive_group()
    exclusive.add_argument("--one", action="store_true")
    assert parser.defined_by("--one") == "instrument_y (other.py:9)"
    assert "added by instrument_y (other.py:9) and by instrument_z" in adding(
        parser, "instrument_z (a.py:1)", "--one"
    )


def test_options_that_exclude_each_other_are_refused_together(
    parser: ExtendedArgumentParser,
) -> None:
    exclusive = parser.add_mutually_exclusive_group()
    exclusive.add_argument("--one", action="store_true")
    exclusive.add_argument("--two", action="store_true")
    assert "--two: not allowed with argument --one" in refusal(parser, "--one --two main.py")


def test_an_instrument_can_not_add_a_positional_argument(parser: ExtendedArgumentParser) -> None:
    parser.definer = "instrument_y (other.py:9)"
    with pytest.raises(InstrumentError, match=r"instrument_y \(other.py:9\): 'rate' is no option"):
        parser.add_argument("rate")


def test_an_option_added_after_the_command_line_was_read_is_an_error(
    parser: ExtendedArgumentParser,
) -> None:
    parser.parse_command(["main.py"])
    said = adding(parser, "instrument_y (other.py:9)", "--late")
    assert "--late comes after the command line has been read" in said
    assert "yield ov.phases.init" in said


# before instruments have added their options


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("main.py", "other.py", "data.json", "tool", "package/__main__.py", "folder/x.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize(
    ("line", "script", "module"),
    [
        ("main.py other.py", "main.py", None),
        ("--run-dir other.py main.py", "main.py", None),
        ("--dash main.py other.py", "main.py", None),
        ("--stop 5 main.py other.py", "main.py", None),
        ("--stop=5 mian.py other.py", "mian.py", None),
        ("mian.py main.py", "mian.py", None),
        ("--file data.json main.py", "main.py", None),
        ("--out folder package x", "package", None),
        ("--dash tool main", "tool", None),
        ("--stop 5 mian.py", "mian.py", None),
        ("--dash", None, None),
        ("-- -odd.py main.py", "-odd.py", None),
        ("-m pkg.mod main.py", None, "pkg.mod"),
        ("--stop 5 -m pkg.mod main.py", None, "pkg.mod"),
        ("--dash main.py -m mod", "main.py", None),
        ("-m", None, None),
    ],
)
def test_the_script_is_guessed_while_options_are_missing(
    line: str, script: str | None, module: str | None
) -> None:
    assert own_parser().guess_script(line.split()) == (script, module)


@pytest.mark.usefixtures("scripts")
def test_values_before_the_guessed_script_are_found_while_options_are_missing() -> None:
    line = [
        "--stop",
        "5",
        "--config",
        "a.toml",
        "--dash",
        "--config=b.toml",
        "main.py",
        "--config",
        "c.toml",
    ]
    assert own_parser().early_values(line, "--config") == ["a.toml", "b.toml"]


@pytest.mark.usefixtures("scripts")
def test_a_value_that_was_not_found_early_is_an_error_later() -> None:
    parser, line = own_parser(), ["--files", "other.py", "x", "--config", "a.toml", "main.py"]
    assert parser.early_values(line, "--config") == []
    parser.add_argument("--files", nargs=2)
    with pytest.raises(
        CommandLineError, match="--config has to stand before the options that instruments add"
    ):
        parser.parse_command(line)


# cost


def test_reading_a_plain_command_line_imports_nothing_heavy() -> None:
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from voirkit.options import ExtendedArgumentParser
import voirkit.options.configuration, voirkit.instrument
parser = ExtendedArgumentParser()
parser.add_argument("--config", action="append", default=[])
line = ["--dash", "main.py"]
parser.early_values(line, "--config")
parser.apply(voirkit.options.configuration.collect(parser.guess_script(line)[0], "/"))
parser.definer = "x"
parser.add_argument("--dash", action="store_true")
parser.parse_command(line)
heavy = "typing dataclasses inspect tokenize pathlib difflib yaml tomllib shutil logging traceback tempfile".split()
print(*[name for name in heavy if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
