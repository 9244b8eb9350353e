"""What an instrument does at the end of a run is done however the script ends."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from conftest import Place

import voirkit_instruments

MODULES = sorted(Path(voirkit_instruments.__file__).parent.glob("**/*.py"))
ENDS = {
    "exit": "sys.exit(0)",
    "error": "raise ValueError('x')",
    "Ctrl-C": "raise KeyboardInterrupt",
}


def _waits(function: ast.AST) -> list[str]:
    """The phases that a generator waits for, in the order of its lines; ``run_script throw`` where its exception is thrown in."""
    found = []
    for node in ast.walk(function):
        if isinstance(node, ast.Yield) and node.value is not None:
            text = ast.unparse(node.value)
            if ".phases." in text:
                name = text.partition(".phases.")[2].partition("(")[0]
                found.append(
                    (
                        node.lineno,
                        f"{name} throw"
                        if name == "run_script" and "throw=False" not in text
                        else name,
                    )
                )
    return [name for _, name in sorted(found)]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_no_instrument_that_has_work_after_the_script_loses_it_to_an_exception(
    module: Path,
) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.FunctionDef):
            waits = _waits(node)
            assert "run_script throw" not in waits or "finalize" not in waits, (
                f"{node.name} may never come to finalize"
            )


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_ends_early_says_as_much_of_its_calls_as_one_that_does_not(
    tmp_path: Path, end: str
) -> None:
    script = "import sys, textwrap\ntextwrap.dedent('x')\n"
    keys = []
    for name, text in (("plain", script), ("ended", f"{script}{ENDS[end]}\n")):
        where = Place(tmp_path / name).write(main=text)
        where.voirkit("--quiet", "--calls", "textwrap", "main.py")
        keys.append(set(json.loads((where.folder / "run" / "summary.json").read_text())["calls"]))
    assert keys[0] == keys[1]
    assert {"watched", "skipped", "asked", "records"} <= keys[1]
