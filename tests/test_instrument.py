"""Helpers for writing instruments, on an overseer that has phases and options and nothing else."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from voirkit.errors import InstrumentError, VoirkitError
from voirkit.instrument import (
    Instrument,
    Option,
    configurable,
    gated,
    instrument_definition,
    parametrized,
)
from voirkit.options import ExtendedArgumentParser
from voirkit.phases import BaseOverseer
from voirkit.runner.voirfiles import check, place_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator
    from pathlib import Path


class SmallOverseer(BaseOverseer):
    """Reads a command line and runs nothing; an instrument's fault ends it."""

    options: Namespace

    def __init__(self) -> None:
        super().__init__(
            ["init", "parse_args", "load_script", "run_script", "finalize"], args=(self,)
        )
        self.argparser = ExtendedArgumentParser()

    def _run(self, line: str) -> None:
        with self.run_phase(self.phases.init):
            pass
        with self.run_phase(self.phases.parse_args):
            self.options = self.argparser.parse_command([*line.split(), "main.py"])
        for phase in (self.phases.load_script, self.phases.run_script, self.phases.finalize):
            with self.run_phase(phase):
                pass

    def _on_instrument_error(self, exc: BaseException) -> None:
        raise exc


def run(instrument: Callable[..., Any], line: str = "") -> SmallOverseer:
    overseer = SmallOverseer()
    overseer.require(instrument)
    overseer(line)
    return overseer


def help_of(instrument: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        run(instrument, "--help")
    return " ".join(capsys.readouterr().out.split())


def refusal(call: Callable[[], object], kind: type[VoirkitError] = InstrumentError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def seen_after_load(seen: list[str]) -> Callable[[Any], Iterator[Any]]:
    def instrument_note(ov: Any) -> Iterator[Any]:
        """Notes that it ran."""
        yield ov.phases.load_script
        seen.append("ran")

    return instrument_note


@pytest.fixture
def seen() -> list[str]:
    return []


# gated


def test_a_gated_instrument_runs_with_its_flag_and_not_without(seen: list[str]) -> None:
    instrument = gated("--note", seen_after_load(seen))
    run(instrument)
    assert seen == []
    run(instrument, "--note")
    assert seen == ["ran"]


def test_the_flags_value_stands_in_the_options_under_the_flag_itself(seen: list[str]) -> None:
    assert getattr(run(gated("--note", seen_after_load(seen)), "--note").options, "--note") is True


def test_gated_decorates_with_and_without_a_help(
    seen: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(gated("--note")(seen_after_load(seen)), "--note")
    assert seen == ["ran"]
    assert "--note Says so. 5 %" in help_of(
        gated("--note", "Says so. 5 %")(seen_after_load(seen)), capsys
    )
    assert "--note Says so." in help_of(
        gated("--note", help="Says so.")(seen_after_load(seen)), capsys
    )
    assert "--note Says so." in help_of(gated("--note", seen_after_load(seen), "Says so."), capsys)


def test_a_plain_function_may_be_gated(seen: list[str]) -> None:
    @gated("--note")
    def instrument_note(ov: Any) -> None:
        seen.append(ov.status)

    run(instrument_note)
    assert seen == []
    run(instrument_note, "--note")
    assert seen == ["running"]


def test_an_object_that_can_be_called_may_be_gated(seen: list[str]) -> None:
    def note(word: str, ov: Any) -> None:
        seen.append(word)

    instrument = gated("--note", functools.partial(note, "ran"))
    run(instrument, "--note")
    assert (seen, instrument.__name__) == (["ran"], 'gated("--note")')


def test_an_instrument_that_is_named_is_imported_when_its_flag_is_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "costly_to_import.py").write_text(
        "runs = []\n\ndef note(ov):\n    runs.append(ov.status)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    instrument = gated("--note", "costly_to_import:note", "Says so.")
    assert "--note Says so." in help_of(instrument, capsys)
    run(instrument)
    assert "costly_to_import" not in sys.modules
    run(instrument, "--note")
    assert sys.modules.pop("costly_to_import").runs == ["running"]


def test_what_names_no_instrument_is_refused() -> None:
    said = refusal(lambda: gated("--note", "costly to import", "Says so."))
    assert "needs an instrument or the name of one, not 'costly to import'" in said
    assert "gated('--note', 'package.module:function', 'Says so.')" in said


def test_a_gated_instrument_keeps_its_name_its_place_and_the_instrument_behind_it(
    seen: list[str],
) -> None:
    inner = seen_after_load(seen)
    for instrument in (gated("--note", inner), parametrized("--note", inner)):
        assert vars(instrument)["instrument"] is inner
        assert (instrument.__name__, instrument.__doc__) == (
            "instrument_note",
            "Notes that it ran.",
        )
        assert place_of(instrument) == f"{__file__}:{inner.__code__.co_firstlineno}"
        assert check(instrument, "label", "voirfile.py") is instrument


@pytest.mark.parametrize("helper", [gated, parametrized])
@pytest.mark.parametrize("flag", ["note", "", "--", "--a b", "--a=b", 3])
def test_a_flag_without_dashes_is_refused_where_it_was_written(
    helper: Callable[..., Any], flag: Any
) -> None:
    said = refusal(lambda: helper(flag))
    assert said.startswith(f"{__file__}:")
    assert f"{helper.__name__} needs the name of an option, with its dashes, not {flag!r}" in said
    assert f"Write: {helper.__name__}('--" in said


@pytest.mark.parametrize("helper", [gated, parametrized])
def test_what_can_not_be_called_is_refused_as_an_instrument(helper: Callable[..., Any]) -> None:
    assert "needs an instrument, not 3" in refusal(lambda: helper("--note", 3))


# parametrized


def test_a_parametrized_instrument_always_runs_and_finds_its_value_in_the_options(
    seen: list[Any],
) -> None:
    @parametrized("--how-often", type=int, default=3)
    def instrument_note(ov: Any) -> Iterator[Any]:
        yield ov.phases.run_script
        seen.append(ov.options.how_often)

    run(instrument_note)
    run(instrument_note, "--how-often 5")
    assert seen == [3, 5]


def test_parametrized_takes_its_arguments_in_every_order_voir_does(
    seen: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    inner = seen_after_load(seen)

    def hex_number(text: str) -> int:
        return int(text, 16)

    assert run(parametrized("--n", inner, int, "How many.", 2)).options.n == 2
    assert run(parametrized("--n", inner, int), "--n 4").options.n == 4
    assert run(parametrized("--n", inner), "--n 4").options.n == "4"
    assert run(parametrized("--n")(inner), "--n 4").options.n == "4"
    assert run(parametrized("--n", int, "How many.", 2)(inner)).options.n == 2
    assert run(parametrized("--n", int, help="How many.", default=2)(inner), "--n 4").options.n == 4
    assert run(parametrized("--n", hex_number, "How many.")(inner), "--n ff").options.n == 255
    assert "--n N How many." in help_of(parametrized("--n", int, "How many.", 2)(inner), capsys)


def test_a_type_taken_for_an_instrument_is_told() -> None:
    def hex_number(text: str) -> int:
        return int(text, 16)

    def instrument_note(ov: Any) -> None:
        """Never runs."""

    said = refusal(lambda: run(parametrized("--n", hex_number)(instrument_note)))
    assert 'parametrized("--n") got instrument_note where it needs the overseer' in said
    assert "type=..." in said


# configurable


@dataclass
class Noting:
    # how often
    often: int = 3
    loud: bool = False


def test_a_configurable_instrument_gets_its_dataclass(
    seen: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    @configurable
    def instrument_note(ov: Any, noting: Noting) -> Iterator[Any]:
        yield ov.phases.load_script
        seen.append((noting, ov.options.noting))

    run(instrument_note, "--often 5 --loud")
    assert seen == [(Noting(5, True), Noting(5, True))]
    assert "--often OFTEN how often (default: 3)" in help_of(instrument_note, capsys)
    assert check(instrument_note, "label", "voirfile.py").__name__ == "instrument_note"


def test_the_annotation_may_be_the_class_itself_and_the_instrument_a_plain_function(
    seen: list[Any],
) -> None:
    def instrument_note(ov: Any, noting: Any) -> None:
        seen.append(noting)

    instrument_note.__annotations__["noting"] = Noting
    run(configurable(instrument_note), "--often 7")
    assert seen == [Noting(7)]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated at once")
def test_an_annotation_that_nobody_asks_for_may_name_what_is_not_there(seen: list[Any]) -> None:
    names: dict[str, Any] = {"Noting": Noting, "seen": seen}
    exec(
        compile(
            "def instrument_note(ov: Overseer, noting: Noting): seen.append(noting)",
            "x.py",
            "exec",
            dont_inherit=True,
        ),
        names,
    )
    run(configurable(names["instrument_note"]), "--often 7")
    assert seen == [Noting(7)]


def test_a_configurable_instrument_without_a_dataclass_is_refused() -> None:
    def instrument_alone(ov: Any) -> None: ...

    def instrument_bare(ov, noting) -> None: ...  # type: ignore[no-untyped-def]

    def instrument_number(ov: Any, noting: int) -> None: ...

    def instrument_odd(ov: Any, noting: NoSuchClass) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    said = refusal(lambda: configurable(instrument_alone))
    assert "instrument_alone needs two parameters" in said
    assert said.startswith(f"{__file__}:{instrument_alone.__code__.co_firstlineno}: ")
    said = refusal(lambda: configurable(instrument_bare))
    assert "the parameter noting of instrument_bare has no annotation" in said
    said = refusal(lambda: run(configurable(instrument_number)))
    assert "noting of instrument_number is annotated with int, which is no dataclass" in said
    said = refusal(lambda: run(configurable(instrument_odd)))
    assert "the annotation of noting, NoSuchClass, cannot be resolved" in said
    assert "configurable needs a function, not 3" in refusal(lambda: configurable(3))  # type: ignore[arg-type]


# instrument_definition


def test_a_definition_makes_instruments_from_arguments(seen: list[str]) -> None:
    @instrument_definition
    def note(ov: Any, word: str, times: int = 1) -> Iterator[Any]:
        yield ov.phases.load_script
        seen.extend([word] * times)

    overseer = SmallOverseer()
    instruments = [note("a"), note("b", times=2)]
    overseer.require(*instruments)
    overseer("")
    assert seen == ["a", "b", "b"]
    assert [instrument.__name__ for instrument in instruments] == ["note", "note"]


def test_a_definition_may_be_a_plain_function(seen: list[str]) -> None:
    @instrument_definition
    def note(ov: Any, word: str) -> None:
        seen.append(word)

    run(note("a"))
    assert seen == ["a"]


def test_a_definition_gets_the_value_of_each_phase(seen: list[Any]) -> None:
    @instrument_definition
    def note(ov: Any) -> Iterator[Any]:
        seen.append((yield ov.phases.init))

    run(note())
    assert seen == [None]


def test_a_definition_that_is_required_as_an_instrument_is_told(seen: list[str]) -> None:
    @instrument_definition
    def note(ov: Any, word: str) -> None:
        seen.append(word)

    said = refusal(lambda: run(note))
    assert "note defines instruments, and is none itself" in said
    assert "ov.require(note(...))" in said


# together


def test_an_option_that_comes_too_late_is_told(seen: list[str]) -> None:
    said = refusal(
        lambda: run(gated("--note", parametrized("--n", seen_after_load(seen))), "--note")
    )
    assert "the option --n comes after the command line has been read" in said


# what is declared


def heard(line: str, *options: Option) -> list[Any]:
    """The options that an instrument's recording gets from a command line; nothing if it does not run."""
    ov, seen = SmallOverseer(), list[Any]()
    ov.summary = {}  # type: ignore[attr-defined]
    planted = ModuleType("planted_instrument")
    planted.watch = lambda ov, options: seen.append(options)  # type: ignore[attr-defined]
    sys.modules["planted_instrument"] = planted
    try:
        ov.require(
            Instrument(
                "planted",
                options=options,
                record="planted_instrument:watch",
                parts={"planted": dict},
            )
        )
        ov(line)
    finally:
        del sys.modules["planted_instrument"]
    assert ov.summary == {"planted": None}  # type: ignore[attr-defined]
    return seen


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("", []),
        ("--look", [{"look": True, "every": None, "of": []}]),
        ("--every", [{"look": False, "every": 0, "of": []}]),
        ("--every=3", [{"look": False, "every": 3, "of": []}]),
        ("--of a --of b", [{"look": False, "every": None, "of": ["a", "b"]}]),
    ],
)
def test_an_instrument_records_if_one_of_its_options_is_given(
    line: str, options: list[Any]
) -> None:
    every = Option("--every", "often", type=int, const=0, metavar="N")
    assert (
        heard(
            line,
            Option("--look", "look"),
            every,
            Option("--of", "what", metavar="NAME", repeatable=True, default=[]),
        )
        == options
    )


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("", []),
        ("--look", [{"look": True, "every": 10}]),
        ("--every=3", [{"look": False, "every": 3}]),
        ("--every=10", [{"look": False, "every": 10}]),
    ],
)
def test_a_default_does_not_switch_an_instrument_on(line: str, options: list[Any]) -> None:
    assert (
        heard(
            line,
            Option("--look", "look"),
            Option("--every", "often", type=int, metavar="N", default=10),
        )
        == options
    )


def test_a_default_stands_among_the_options_of_the_run() -> None:
    ov = SmallOverseer()
    ov.summary = {}  # type: ignore[attr-defined]
    ov.require(
        Instrument(
            "planted",
            options=[Option("--every", "often", type=int, metavar="N", default=10)],
            parts={},
        )
    )
    ov("")
    assert getattr(ov.options, "--every") == 10


def test_an_instrument_without_options_always_records() -> None:
    assert heard("") == [{}]
