"""Voirfiles: where they are found, what in them is an instrument, and what happens when they are wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from conftest import Ended, Place

SAYS = "def instrument_says(ov):\n    yield ov.phases.finalize\n    ov.say('{}')\n"


def said(ended: Ended) -> list[str]:
    """What instruments said."""
    own = ("voirkit: run directory", "voirkit: with ", "voirkit: note: ")
    return [
        line.removeprefix("voirkit: ")
        for line in ended.err.splitlines()
        if not line.startswith(own)
    ]


def test_a_voirfile_is_found_beside_the_script(place: Place) -> None:
    place.write({"code/main.py": "", "code/voirfile.py": SAYS.format("beside")})
    assert said(place.voirkit("code/main.py")) == ["beside"]


def test_the_current_folder_and_its_parents_are_searched_nearest_first(place: Place) -> None:
    place.write({"pyproject.toml": "", "code/main.py": "", "code/voirfile.py": SAYS.format("beside"), "voirfile.py": SAYS.format("top"),
                 "a/voirfile.py": SAYS.format("a"), "a/b/voirfile.py": SAYS.format("b")})  # fmt: skip
    ended = place.voirkit("../../code/main.py", cwd="a/b")
    assert said(ended) == ["beside", "b", "a", "top"]


def test_a_voirfile_that_is_found_twice_is_loaded_once(place: Place) -> None:
    place.write(main="", voirfile=SAYS.format("once"))
    assert said(place.voirkit("main.py")) == ["once"]


def test_the_environment_names_voirfiles_instead(place: Place) -> None:
    place.write(
        main="", voirfile=SAYS.format("found"), one=SAYS.format("one"), two=SAYS.format("two")
    )
    assert said(place.voirkit("main.py", env={"VOIRFILE": "two.py one.py"})) == ["two", "one"]
    assert said(place.voirkit("--force", "main.py", env={"VOIRFILE": ""})) == []


def test_a_missing_voirfile_in_the_environment_is_an_error(place: Place) -> None:
    place.write(main="")
    ended = place.voirkit("main.py", env={"VOIRFILE": "gone.py"})
    assert ended.code == 2
    assert "gone.py" in ended.err


def test_dunder_instruments_may_nest_lists_and_dictionaries_and_hides_the_others(
    place: Place,
) -> None:
    place.write(
        main="",
        voirfile="""
        def make(text):
            def instrument(ov):
                ov.say(text)
            return instrument
        def instrument_hidden(ov):
            ov.say("hidden")
        __instruments__ = {"a": make("1"), "b": [make("2"), {"c": make("3")}], "d": (make("4"),)}
        """,
    )
    assert said(place.voirkit("main.py")) == ["1", "2", "3", "4"]


def test_imported_instruments_count(place: Place) -> None:
    place.write(
        main="", voirfile="from tools import instrument_says\n", tools=SAYS.format("imported")
    )
    assert said(place.voirkit("main.py")) == ["imported"]


def test_a_voirfile_imports_what_lies_beside_it_and_the_path_of_the_script_stays(
    place: Place,
) -> None:
    place.write({"voirfile.py": "import beside\n", "beside.py": "", "code/main.py": "import sys\nprint(len([p for p in sys.path if not p]))\n"
                 "try:\n    import other\nexcept ImportError:\n    print('not found')\n", "other.py": ""})  # fmt: skip
    assert place.voirkit("code/main.py").out == "0\nnot found\n"


def test_an_instrument_that_is_no_generator_runs_once_at_init(place: Place) -> None:
    place.write(
        main="print('script')\n",
        voirfile="def instrument_x(ov):\n    print('instrument', ov.phases.init.pending)\n",
    )
    assert place.voirkit("main.py").out == "instrument True\nscript\n"


WRONG = {
    "a syntax error": ("def instrument_x(ov):\n    pass\n\nif ov\n", ["voirfile.py:4"]),
    "an exception at import": ("import os\n\nrate = 1 / 0\n", ["voirfile.py:3", "ZeroDivisionError"]),
    "an import that fails": ("import no_such_module\n", ["voirfile.py:1", "no_such_module"]),
    "an end of python": ("import sys\nsys.exit(0)\n", ["voirfile.py:2"]),
    "null bytes": ("x = '\0'\n", ["voirfile.py"]),
    "an instrument of two arguments": ("def instrument_x(ov, other):\n    pass\n", ["instrument_x", "voirfile.py:1", "2 arguments"]),
    "an instrument of no argument": ("def instrument_x():\n    pass\n", ["instrument_x", "voirfile.py:1", "no argument"]),
    "an instrument that is a number": ("instrument_x = 3\n", ["instrument_x", "int"]),
    "a list with a wrong thing": ("__instruments__ = [[1]]\n", ["__instruments__[0][0]", "int"]),
    "an instrument that yields a number": ("def instrument_x(ov):\n    yield 3\n", ["instrument_x", "voirfile.py:1", "int", "phase"]),
    "an instrument that raises at init": ("def instrument_x(ov):\n    raise ValueError('planted')\n", ["voirfile.py:2", "planted"]),
    "an instrument that raises after init": (
        "def instrument_x(ov):\n    yield ov.phases.init\n    raise ValueError('planted')\n", ["voirfile.py:3", "planted"]),
    "an unknown phase": ("def instrument_x(ov):\n    yield ov.phases.run\n", ["voirfile.py:2", "run"]),
    "an option that is the command's own": (
        "def instrument_x(ov):\n    yield ov.phases.init\n    ov.argparser.add_argument('--force')\n", ["--force", "instrument_x"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_before_the_script_starts(place: Place, name: str) -> None:
    text, words = WRONG[name]
    place.write(main="print('started')\n", voirfile=text)
    ended = place.voirkit("main.py")
    assert ended.code == 2
    assert ended.out == ""
    assert "Traceback" not in ended.err
    assert not (place.folder / "run").exists()
    for word in words:
        assert word in ended.err


def test_a_voirfile_without_an_instrument_is_told(place: Place) -> None:
    place.write(main="", voirfile="def instruments(ov):\n    yield ov.phases.init\n")
    ended = place.voirkit("main.py")
    assert ended.code == 0
    assert (
        "voirfile.py: the voirfile defines no instrument.\n  Write: def instrument_x" in ended.err
    )


def test_duplicate_flags_of_two_instruments_name_both(place: Place) -> None:
    body = "def instrument_{0}(ov):\n    yield ov.phases.init\n    ov.argparser.add_argument('--mine')\n"
    place.write(main="", voirfile=body.format("a") + body.format("b"))
    ended = place.voirkit("main.py")
    assert ended.code == 2
    assert all(
        word in ended.err
        for word in ("--mine", "instrument_a", "instrument_b", "voirfile.py:1", "voirfile.py:4")
    )


def test_an_instrument_that_raises_later_is_told_once_and_the_script_goes_on(place: Place) -> None:
    place.write(
        main="import sys\nprint('started')\nsys.exit(5)\n",
        voirfile="def instrument_x(ov):\n    yield ov.phases.load_script\n    raise ValueError('planted')\n",
    )
    ended = place.voirkit("main.py")
    assert (ended.code, ended.out) == (5, "started\n")
    assert ended.err.count("planted") == 1
    assert "voirfile.py:3" in ended.err
    assert "Traceback" not in ended.err
    assert any("planted" in warning for warning in ended.summary["warnings"])


def plugin(folder: Path, name: str, body: str) -> str:
    """An installed package with an instrument; the folder to put on python's path."""
    site = folder / "site"
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (site / f"{name}.py").write_text(body)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[console_scripts]\nx = y:z\n\n[voirkit.instruments]\nthing = {name}:instrument_thing\n"
    )
    return str(site)


def test_an_installed_package_brings_instruments(place: Place) -> None:
    place.write(main="")
    site = plugin(
        place.folder,
        "somepackage",
        SAYS.format("from a package").replace("instrument_says", "instrument_thing"),
    )
    assert said(place.voirkit("main.py", env={"PYTHONPATH": site})) == ["from a package"]


def test_a_package_that_can_not_be_loaded_is_told_and_the_run_goes_on(place: Place) -> None:
    place.write(main="print('ran')\n")
    ended = place.voirkit(
        "main.py",
        env={"PYTHONPATH": plugin(place.folder, "somepackage", "raise OSError('planted')\n")},
    )
    assert (ended.code, ended.out) == (0, "ran\n")
    assert "somepackage" in ended.err
    assert "planted" in ended.err


def test_an_unreadable_voirfile_is_told(place: Place) -> None:
    place.write(main="")
    os.mkdir(place.folder / "voirfile.py")
    ended = place.voirkit("main.py")
    assert ended.code == 2
    assert "voirfile.py" in ended.err


def test_no_folder_above_the_projects_is_searched(place: Place) -> None:
    place.write({"voirfile.py": SAYS.format("above"), "project/.git/HEAD": "", "project/voirfile.py": SAYS.format("project"),
                 "project/a/main.py": ""})  # fmt: skip
    assert said(place.voirkit("main.py", cwd="project/a")) == ["project"]


def test_without_a_project_only_the_current_folder_is_searched(place: Place) -> None:
    place.write({"voirfile.py": SAYS.format("above"), "a/main.py": ""})
    assert said(place.voirkit("main.py", cwd="a")) == []


def test_a_voirfile_and_what_it_overrides_are_said_and_recorded(place: Place) -> None:
    place.write(
        main="def train():\n    lr = 1\n    print(lr)\ntrain()\n",
        voirfile="def instrument_x(ov):\n    ov.probe('//train > lr', overridable=True).override(5)\n",
    )
    ended = place.voirkit("main.py")
    assert ended.out == "5\n"
    assert "voirkit: with voirfile.py; the values of //train > lr are overridden\n" in ended.err
    (recorded,) = json.loads((place.folder / "run" / "run.json").read_text())["voirfiles"]
    assert recorded["path"].endswith("voirfile.py")
    assert len(recorded["sha256"]) == 64
    assert ended.summary["probes"][0]["overrides"] is True


TAKES_NAMES = """
from dataclasses import dataclass
from voirkit import configurable

@dataclass
class Config:
    dash: bool = False
    stop: int = 20

@configurable
def instrument_main(ov, options: Config):
    yield ov.phases.load_script
    print(options.dash, options.stop)
"""


def test_options_of_a_voirfile_take_the_names_of_built_in_ones_which_is_said_once(
    place: Place,
) -> None:
    place.write(main="print('ran')\n", voirfile=TAKES_NAMES)
    ended = place.voirkit("--dash", "--stop", "3", "main.py")
    assert (ended.code, ended.out) == (0, "True 3\nran\n")
    assert (
        "note: --dash, --stop are of instrument_main (voirfile.py:10) here, not voirkit's own."
        in ended.err
    )


def test_a_configuration_sets_options_that_a_voirfile_has_taken(place: Place) -> None:
    place.write(
        {
            "main.py": "",
            "voirfile.py": TAKES_NAMES,
            "run.json.in.json": '{"options": {"stop": 7, "dash": true}}',
        }
    )
    assert place.voirkit("--config", "run.json.in.json", "main.py").out == "True 7\n"


def test_help_runs_no_instrument_beyond_what_adds_its_options(place: Place) -> None:
    place.write(
        voirfile="""
        def instrument_x(ov):
            yield ov.phases.init
            ov.argparser.add_argument("--mine", help="what is mine")
            yield ov.phases.parse_args
            print("went on")
        def instrument_y(ov):
            yield ov.phases.finalize
            print("finalized")
        """
    )
    ended = place.voirkit("--help")
    assert "what is mine" in ended.out
    assert "went on" not in ended.out
    assert "finalized" not in ended.out


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("from voirkit import probbing\n", "probing"),
        ("import voirkit\nvoirkit.probbing\n", "probing"),
        ("def instrument_x(ov):\n    yield ov.phases.run_scrip\n", "run_script"),
        ("def instrument_x(ov):\n    ov.prob('f > x')\n", "probe"),
    ],
)
def test_a_misspelt_name_of_voirkits_is_answered_with_the_right_one(
    place: Place, text: str, word: str
) -> None:
    place.write(main="", voirfile=text)
    assert f"Did you mean '{word}'" in place.voirkit("main.py").err


def test_an_option_behind_a_script_that_does_not_name_it_is_pointed_out(place: Place) -> None:
    place.write(
        main="import sys\nprint(sys.argv[1:])\n",
        takes="import sys\nprint('--checks' in sys.argv)\n",
    )
    ended = place.voirkit("main.py", "--checks")
    assert ended.out == "['--checks']\n"
    assert (
        "--checks was given to main.py, behind which it stands. voirkit's own: voirkit --checks main.py"
        in ended.err
    )
    assert "behind which" not in place.voirkit("--force", "takes.py", "--checks").err


def test_a_value_that_can_only_be_an_options_is_taken_without_an_equals_sign(place: Place) -> None:
    place.write(main="import sys\nprint(sys.argv)\n")
    ended = place.voirkit("--monitor", "1s", "main.py")
    assert (ended.code, ended.out) == (0, "['main.py']\n")


def test_the_list_of_what_ifs_needs_no_script(place: Place) -> None:
    for words in (["--what-if", "list"], ["--what-if", "list", "main.py"]):
        ended = place.voirkit(*words)
        assert ended.code == 0
        assert "checkpoint-async" in ended.out
