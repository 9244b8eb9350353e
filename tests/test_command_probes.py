"""``voirkit probes``: lists what can be probed with selectors that work, runs nothing, and says what is wrong."""

from __future__ import annotations

import argparse
import ast
import json
import json.decoder
import os
import pty
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from conftest import CLEAN, Ended, Place

from voirkit import probing
from voirkit.probes.selector import parse
from voirkit.probes.selector.catalogue import catalogue
from voirkit.probes.selector.check import check_all
from voirkit.probes.selector.offers import offers

pytestmark = pytest.mark.long

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*/main.py"))
STDLIB = [
    Path(str(module.__file__))
    for module in (argparse, ast, json.decoder, shutil, textwrap, subprocess)
]
SCRIPT = """
    import atexit
    raise SystemExit("the script was run")

    class Trainer:
        def run(self, loader):
            total = 0
            for i, (inp, target) in enumerate(loader):
                total += inp
            return total

    def main(epochs):
        with open("x") as file:
            pass
        for epoch in range(epochs):
            result = Trainer().run([])
        return result
"""


def probes(place: Place, *words: str, **options: Any) -> Ended:
    return place.run(sys.executable, "-m", "voirkit", "probes", *words, **options)


HARD = """
    def gen(n):
        yield from n

    def f(n):
        v: int
        k = [i for i in n]
        self.x, self = n
"""


@pytest.fixture
def script(place: Place) -> Place:
    return place.write(main=SCRIPT)


def listed(place: Place, *words: str) -> dict[str, Any]:
    """The functions in the JSON document, by name."""
    ended = probes(place, "--json", *words)
    assert (ended.code, ended.err) == (0, "")
    return {one["name"]: one for one in json.loads(ended.out)["functions"]}


# what is listed


def test_functions_are_listed_with_file_and_line(script: Place) -> None:
    found = [
        (one["name"], one["file"], one["line"], one["prefix"])
        for one in listed(script, "main.py").values()
    ]
    assert found == [
        ("Trainer.run", "main.py", 6, "//Trainer/run"),
        ("main", "main.py", 12, "//main"),
    ]


def test_variables_have_a_line_and_a_selector(script: Place) -> None:
    run = listed(script, "main.py")["Trainer.run"]
    assert run["parameters"][1] == {
        "name": "loader",
        "line": 6,
        "selector": "//Trainer/run > loader",
        "refused": None,
    }
    assert run["variables"][0] == {
        "name": "total",
        "line": 7,
        "selector": "//Trainer/run > total",
        "refused": None,
    }


def test_a_loop_over_batches_gives_steps_and_the_compute_pair(script: Place) -> None:
    assert listed(script, "main.py")["Trainer.run"]["loops"] == [
        {
            "names": ["i", "inp", "target"],
            "line": 8,
            "selectors": [
                "//Trainer/run(inp as batch) > #endloop_inp as step",
                "//Trainer/run(inp as batch, !#loop_inp as compute_start, !!#endloop_inp as compute_end)",
            ],
            "refused": None,
        }
    ]


def test_a_loop_that_counts_is_not_called_a_step(script: Place) -> None:
    assert (
        listed(script, "main.py")["main"]["loops"][0]["selectors"][0]
        == "//main(epoch) > #endloop_epoch as turn"
    )


def test_a_return_has_the_selector_of_the_value(script: Place) -> None:
    assert listed(script, "main.py")["main"]["returns"] == {
        "lines": [17],
        "selector": "//main() as result",
        "refused": None,
    }


def test_a_redefined_function_is_listed_with_the_reason_why_not(place: Place) -> None:
    place.write(main="def f(x):\n    return x\n\ndef f(y):\n    return y\n")
    first = json.loads(probes(place, "--json", "main.py").out)["functions"][0]
    assert first["refused"] == "it is defined again in line 4"
    assert first["parameters"] == [
        {"name": "x", "line": 1, "selector": None, "refused": "it is defined again in line 4"}
    ]


def test_an_attribute_is_listed_even_if_it_can_not_be_probed(place: Place) -> None:
    place.write(main="class A:\n    def f(self):\n        self.x = 1\n")
    found = listed(place, "main.py")["A.f"]["variables"]
    assert [one["name"] for one in found] == ["self.x"]
    assert (found[0]["selector"] is None) == (found[0]["refused"] is not None)


@pytest.mark.parametrize(
    "file", [*EXAMPLES, *STDLIB], ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_selector_passes_the_check_of_a_run(file: Path) -> None:
    found = catalogue(file.read_bytes(), file.name)
    selectors = [
        selector for one in offers(found) for offer in one.offers for selector in offer.selectors
    ]
    assert len(selectors) > 20
    for selector in selectors:
        check_all(parse(selector, ""), found, file.name)


@pytest.mark.parametrize(
    "file", [*EXAMPLES, *STDLIB], ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_what_has_no_selector_has_a_reason(file: Path) -> None:
    for one in offers(catalogue(file.read_bytes(), file.name)):
        for offer in one.offers:
            assert bool(offer.selectors) != bool(offer.refused)


@pytest.mark.parametrize(
    "file",
    [path for path in EXAMPLES if path.with_name("voirfile.py").exists()],
    ids=lambda path: path.parent.name,
)
def test_the_selectors_of_the_examples_voirfiles_are_listed(file: Path, place: Place) -> None:
    text = probes(place, str(file)).out
    assert "//main > use_cuda" in text
    assert "//train_epoch > loss" in text
    assert "as batch) > #endloop_" in text


# modules, folders


def test_a_module_is_listed_as_it_runs(place: Place) -> None:
    place.write(
        {
            "package/__init__.py": "raise SystemExit('imported')\n",
            "package/work.py": "def f(x):\n    return x\n",
        }
    )
    assert listed(place, "-m", "package.work")["f"]["prefix"] == "//f"


def test_a_function_of_a_module_is_listed_under_the_module(place: Place) -> None:
    place.write(work="def f(x):\n    return x\n\ndef g():\n    pass\n")
    found = listed(place, "-m", "work:f")
    assert list(found) == ["f"]
    assert found["f"]["parameters"][0]["selector"] == "/work/f > x"


def test_a_package_means_its_main(place: Place) -> None:
    place.write({"package/__init__.py": "", "package/__main__.py": "def start(): pass\n"})
    assert list(listed(place, "-m", "package")) == ["start"]


def test_a_folder_means_its_main(place: Place) -> None:
    place.write({"app/__main__.py": "def start(): pass\n"})
    assert listed(place, "app")["start"]["file"] == "app/__main__.py"


# choosing a function


@pytest.mark.parametrize("word", ["Trainer.run", "Trainer/run", "//Trainer/run", "run", "Trainer"])
def test_a_function_can_be_chosen(script: Place, word: str) -> None:
    assert list(listed(script, "main.py", word)) == ["Trainer.run"]


def test_options_may_stand_between_the_words(script: Place) -> None:
    ended = probes(script, "main.py", "--json", "main")
    assert [one["name"] for one in json.loads(ended.out)["functions"]] == ["main"]


def test_a_misspelt_function_is_told_the_nearest(script: Place) -> None:
    ended = probes(script, "main.py", "mian")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "voirkit: main.py has no function 'mian'.\n  Did you mean 'main'?\n"


# text


def test_piped_text_is_aligned_and_not_cut_off(place: Place) -> None:
    name = "a_rather_long_name_" * 8
    place.write(main=f"def f():\n    {name} = 1\n    x = 2\n")
    lines = probes(place, "main.py", env={"COLUMNS": "40"}).out.splitlines()
    assert lines[1].endswith(f"//f > {name}")
    assert lines[1].index("//f") == lines[2].index("//f")


def test_each_line_begins_with_a_place_to_click_on(script: Place) -> None:
    lines = [line for line in probes(script, "main.py").out.splitlines() if line]
    assert all(line.startswith("main.py:") for line in lines)


def test_the_top_level_comes_first(place: Place) -> None:
    place.write(main="import os\nfor x in [1]:\n    loss = x\ndef f(): ...\n")
    ended = probes(place, "main.py")
    assert (ended.code, ended.err) == (0, "")
    assert [line.split(maxsplit=2)[1:] for line in ended.out.splitlines()[:4]] == [
        ["function", "<module>"],
        ["loop", "x         //<module>(x as batch) > #endloop_x as step"],
        ["variable", "x         //<module> > x"],
        ["variable", "loss      //<module> > loss"],
    ]
    assert "//<module> > os" not in ended.out


def test_a_script_that_sets_nothing_says_that_nothing_can_be_probed(place: Place) -> None:
    place.write(main="print(1)\n")
    ended = probes(place, "main.py")
    assert (ended.code, ended.err) == (0, "")
    assert "nothing in it to be probed" in ended.out


def test_on_a_terminal_a_table_is_drawn(script: Place) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "voirkit", "probes", "main.py"]
    process = subprocess.Popen(
        command,
        cwd=script.folder,
        env={**CLEAN, "TERM": "xterm", "COLUMNS": "120"},
        stdout=slave,
        stderr=subprocess.PIPE,
    )
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 65536):
            shown += chunk
    except OSError:  # Linux says EIO at the end
        pass
    os.close(master)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, b"")
    assert b"selector" in shown
    assert b"//Trainer/run > total" in shown
    assert b"\x1b[" in shown


def test_a_reader_that_goes_away_is_no_error(place: Place) -> None:
    place.write(main="".join(f"def f{i}(x): return x\n" for i in range(3000)))
    command = f"set -o pipefail; {sys.executable} -m voirkit probes main.py | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command], cwd=place.folder, env=CLEAN, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


# what is wrong


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mian.py"], ["mian.py", "main.py"]),
        (["torn.py"], ["torn.py:3", "if x"]),
        (["coded.py"], ["coded.py", "klingon"]),
        (["folder"], ["folder", "__main__"]),
        (["--jsn", "main.py"], ["--jsn", "--json"]),
        (["main.py", "--banana"], ["--banana"]),
        (["main.py", "main", "again"], ["again"]),
        ([], ["SCRIPT"]),
        (["-m", "no_such_module_here"], ["no_such_module_here"]),
        (["-m", "folder"], ["folder", "__main__"]),
        (["-m", "math"], ["math", "source"]),
        (["-m", "torn"], ["torn:3"]),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(
    script: Place, words: list[str], said: list[str]
) -> None:
    script.write(
        {
            "torn.py": "x = 1\nprint(x)\nif x\n",
            "coded.py": "# -*- coding: klingon -*-\n",
            "folder/x.py": "",
        }
    )
    ended = probes(script, *words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("voirkit: ")
    assert "Traceback" not in ended.err
    for word in said:
        assert word in ended.err


def test_a_script_of_the_same_name_is_run_with_its_path(place: Place) -> None:
    place.write({"probes": "print('mine')\n"})
    assert place.voirkit("./probes").out == "mine\n"


def test_what_a_run_would_refuse_is_not_offered_and_the_reason_is_said_once(place: Place) -> None:
    found = listed(place.write(main=HARD), "main.py")
    assert found["gen"]["yields"] == {
        "lines": [3],
        "selector": None,
        "refused": "'yield from' hands values through (line 3), where no tap can see it",
    }
    refused = {v["name"]: v["refused"] for v in found["f"]["variables"] if v["refused"]}
    assert refused == {
        "self.x": "line 8 sets it where no value shows. Assign to a variable first, and that to the attribute",
    }
    assert [v["name"] for v in found["f"]["variables"] if v["selector"]] == ["k", "self", "i"]


def test_all_that_is_offered_of_a_module_can_be_probed_there() -> None:
    source = catalogue(
        Path(json.decoder.__file__).read_text(), json.decoder.__file__, module="json.decoder"
    )
    functions = offers(source)[1:]  # the top level of this module has run
    for selector in (
        selector for one in functions for offer in one.offers for selector in offer.selectors
    ):
        with probing(selector, env={}):
            pass
