"""Functions, variables and loops that selectors name are looked for in the script and in modules before anything runs."""

from __future__ import annotations

import sys

import pytest
from selecting import MAIN, SCRIPT, WHERE, message

from voirkit.errors import SelectorError
from voirkit.probes.selector import parse
from voirkit.probes.selector.catalogue import catalogue
from voirkit.probes.selector.check import check_all

# Functions of the script


def test_a_selector_that_matches_gives_the_place_of_its_function() -> None:
    assert check_all(parse("//train_epoch(batch) > loss", WHERE), SCRIPT, "main.py") == "main.py:13"
    assert check_all(parse("//Trainer/run() as r", WHERE), SCRIPT, "main.py") == "main.py:8"
    assert (
        check_all(parse("//outer > //outer/inner > deep", WHERE), SCRIPT, "main.py") == "main.py:25"
    )


KNOWN = [
    "batch",
    "loss",
    "step",
    "range",
    "LIMIT",
    "#loop_step",
    "#endloop_step",
    "#enter",
    "#error",
    "$x",
]


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_variables_loops_and_names_that_are_read_are_known(name: str) -> None:
    assert check_all(parse(f"//train_epoch > {name}", WHERE), SCRIPT, "main.py") == "main.py:13"


def test_an_unknown_variable_is_told_with_all_and_the_nearest() -> None:
    assert message("//train_epoch > los") == (
        "voirfile.py:7: selector '//train_epoch > los': train_epoch (main.py:13) has no variable 'los'.\n"
        "  Its variables: batch, loss, settings, step.  Did you mean 'loss'?"
    )


def test_an_unknown_context_variable_is_told() -> None:
    said = message("//train_epoch(bath) > loss")
    assert "train_epoch (main.py:13) has no variable 'bath'." in said
    assert "Did you mean 'batch'?" in said


def test_a_variable_of_another_function_is_told_with_that_function() -> None:
    assert "It is a variable of another function: '//Trainer/run > total'." in message(
        "//train_epoch > total"
    )
    assert "'//outer/inner > deep'" in message("//outer > deep")


def test_a_name_that_is_not_read_is_unknown_even_if_it_is_builtin() -> None:
    assert "has no variable 'print'" in message("//train_epoch > print")


def test_an_unknown_function_is_told_with_all_and_the_nearest() -> None:
    assert message("//train_epok > loss") == (
        "voirfile.py:7: selector '//train_epok > loss': main.py has no function 'train_epok'.\n"
        "  Its functions: Trainer/run, train_epoch, silent, outer, outer/inner, later, short.  "
        "Did you mean '//train_epoch'?"
    )


def test_an_unknown_method_is_told_with_the_class() -> None:
    assert message("//Trainer/runn > total") == (
        "voirfile.py:7: selector '//Trainer/runn > total': Trainer (main.py:5) has no method 'runn'.\n"
        "  Its methods: run.  Did you mean '//Trainer/run'?"
    )


def test_a_method_without_its_class_is_found() -> None:
    assert "Did you mean '//Trainer/run'?" in message("//run > total")
    assert "Did you mean '//outer/inner'?" in message("//inner > deep")


def test_an_unknown_inner_function_is_told_with_the_outer() -> None:
    said = message("//outer/iner > deep")
    assert "outer (main.py:24) has no inner function 'iner'." in said
    assert "Did you mean '//outer/inner'?" in said


def test_what_is_not_a_function_is_told_with_its_line() -> None:
    assert "LIMIT (main.py:2) is not a function." in message("//LIMIT > x")
    assert "Trainer.rate (main.py:6) is not a function." in message("//Trainer/rate > x")


def test_a_class_is_told_with_its_methods() -> None:
    said = message("//Trainer > x")
    assert "Trainer (main.py:5) is a class, not a function." in said
    assert "//Trainer/run" in said


def test_an_unknown_loop_is_told_with_the_loops() -> None:
    assert message("//train_epoch > #loop_stepp") == (
        "voirfile.py:7: selector '//train_epoch > #loop_stepp': train_epoch (main.py:13) has no 'for' loop over 'stepp'.\n"
        "  Its loops: step (main.py:15).  Did you mean '#loop_step'?"
    )
    assert "It has no 'for' loops." in message("//silent > #endloop_k")


def test_a_function_that_does_not_yield_has_no_yield() -> None:
    assert "train_epoch (main.py:13) has no 'yield'." in message("//train_epoch > #yield")


def test_every_function_of_a_selector_is_checked() -> None:
    assert "has no variable 'xx'" in message("//outer(xx) > //train_epoch > loss")
    assert "has no variable 'los'" in message("//outer > //train_epoch > los")


def test_any_of_the_definitions_that_can_be_live_will_do() -> None:
    script = catalogue(
        "if a:\n    def f():\n        x = 1\nelse:\n    def f():\n        y = 1\n", "main.py"
    )
    assert check_all(parse("//f > x", WHERE), script, "main.py") == "main.py:2"
    assert check_all(parse("//f > y", WHERE), script, "main.py") == "main.py:5"
    with pytest.raises(SelectorError, match="has no variable 'z'"):
        check_all(parse("//f > z", WHERE), script, "main.py")


def test_long_lists_are_cut() -> None:
    body = "".join(f"    v{i:02} = {i}\n" for i in range(40))
    script = catalogue(f"def f():\n{body}", "main.py")
    with pytest.raises(SelectorError, match=r"v18, v19 and 20 more\.") as caught:
        check_all(parse("//f > w", WHERE), script, "main.py")
    assert "v20" not in str(caught.value)


def test_a_script_without_functions_is_told_so() -> None:
    with pytest.raises(
        SelectorError, match=r"flat.py has no function 'f'.\n  It has no functions."
    ):
        check_all(parse("//f > x", WHERE), catalogue("x = 1", "flat.py"), "flat.py")


def test_without_a_script_its_functions_are_left_unchecked() -> None:
    assert check_all(parse("//f > x", WHERE), None, "") is None


# Modules


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Modules that must not be imported."""
    files = {
        "lab/__init__.py": "raise RuntimeError\nfrom .steps import train\nfrom .parts import *\nfrom . import steps\n",
        "lab/steps.py": "raise RuntimeError\nfrom math import floor\nimport math\n\ndef train(n):\n    loss = n\n",
        "lab/parts.py": "raise RuntimeError\nclass Base:\n    def go(self):\n        pace = 1\n        return pace\n",
        "lab/torn.py": "def f(:\n",
    }
    (tmp_path / "lab").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def about(selector: str, script: str = MAIN) -> str | None:
    return check_all(parse(selector, WHERE), catalogue(script, "main.py"), "main.py")


def test_a_function_of_a_module_is_checked_without_importing_it(library) -> None:
    assert about("/lab.steps/train(n) > loss") == "lab/steps.py:5"
    with pytest.raises(
        SelectorError, match=r"train \(lab/steps.py:5\) has no variable 'los'.[\s\S]*'loss'"
    ):
        about("/lab.steps/train > los")
    with pytest.raises(
        SelectorError, match=r"lab/steps.py has no function 'trian'.[\s\S]*'/lab.steps/train'"
    ):
        about("/lab.steps/trian > loss")
    assert "lab" not in sys.modules


def test_imported_names_are_followed(library) -> None:
    assert about("/lab/train > loss") == "lab/steps.py:5"
    assert about("/lab/steps/train > loss") == "lab/steps.py:5"
    assert about("/lab/Base/go > pace") == "lab/parts.py:3"
    assert about("//train > loss", "from lab import train\n") == "lab/steps.py:5"
    assert about("//steps/train > loss", "import lab.steps as steps\n") == "lab/steps.py:5"
    assert about("//lab/steps/train > loss", "import lab.steps\n") == "lab/steps.py:5"


def test_inherited_methods_are_followed(library) -> None:
    script = "import lab.parts\nfrom lab import Base\nclass A(Base[int]): pass\nclass B(A, dict):\n    def stop(self): pass\n"
    assert about("//B/go > pace", script) == "lab/parts.py:3"
    with pytest.raises(
        SelectorError, match=r"B \(main.py:4\) has no method 'stopp'.[\s\S]*'//B/stop'"
    ):
        about("//B/stopp > x", script)


def test_what_can_not_be_known_without_running_is_left_to_the_run(library) -> None:
    assert about("//A/go > pace", "class A(make()):\n    pass\n") is None
    assert about("//f > x", "from nowhere_at_all import f\n") is None
    assert about("//f > x", "from nowhere_at_all import *\n") is None


def test_imports_in_a_circle_end(library) -> None:
    (library / "ring.py").write_text("from ring2 import f\n")
    (library / "ring2.py").write_text("from ring import f\n")
    assert about("/ring/f > x") is None


def test_an_unknown_module_is_told_with_the_nearest(library) -> None:
    with pytest.raises(
        SelectorError,
        match=r"^voirfile.py:7: selector '/lab.step/f > x': there is no module 'lab.step'.",
    ) as e:
        about("/lab.step/f > x")
    assert "Did you mean 'lab.steps'" in str(e.value)


def test_a_class_in_the_place_of_a_module_is_told(library) -> None:
    with pytest.raises(SelectorError, match="Did you mean '//Trainer/run'"):
        about("/Trainer/run > x")


def test_a_module_without_python_source_is_told(library) -> None:
    with pytest.raises(SelectorError, match="'math' has no Python source"):
        about("/math/floor > x")
    with pytest.raises(SelectorError, match="is imported from 'math', which has no Python source"):
        about("/lab.steps/floor > x")


def test_a_module_in_the_place_of_a_function_is_told(library) -> None:
    with pytest.raises(SelectorError, match="'/lab/steps' is a module, not a function"):
        about("/lab/steps > x")


def test_a_module_that_does_not_parse_is_told(library) -> None:
    with pytest.raises(SelectorError, match=r"the source of 'lab.torn' cannot be read"):
        about("/lab.torn/f > x")


def test_the_script_under_its_module_name_is_told(library) -> None:
    (library / "main.py").write_text(MAIN)
    script = catalogue(MAIN, str(library / "main.py"))
    with pytest.raises(
        SelectorError, match=r"would import main.py a second time[\s\S]*Write '//train_epoch'"
    ):
        check_all(parse("/main/train_epoch > loss", WHERE), script, "main.py")


def test_modules_can_be_left_unchecked() -> None:
    assert (
        check_all(parse("/no_such_module_here/f > x", WHERE), SCRIPT, "main.py", modules=None)
        is None
    )
