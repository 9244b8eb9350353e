"""The pages for newcomers say what is there: every path exists, the pictures are those of the code, and docstrings cite only what there is."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import module_at

ROOT = Path(__file__).parent.parent
PAGES = ("docs/architecture.md", "docs/glossary.md", "CONTRIBUTING.md")
_PATH = re.compile(
    r"`((?:voirkit|instruments|tests|docs|benchmarks|examples|\.github)/[\w./-]*|(?:Makefile|pyproject\.toml|hatch_build\.py))`"
)


def drawing() -> Any:
    return module_at(ROOT / "docs" / "make_architecture.py")


def names_defined_in(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    assigned = {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return assigned | {
        node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_path_on_a_page_for_newcomers_exists(page: str) -> None:
    paths = _PATH.findall((ROOT / page).read_text(encoding="utf-8"))
    assert len(paths) >= 5
    assert [path for path in paths if not ((ROOT / path).exists() or "/NAME/" in path)] == []


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/glossary.md"])
def test_every_name_that_a_table_gives_a_file_is_defined_there(page: str) -> None:
    rows = re.findall(
        r"`([\w./-]+\.py)`(?: \| |: )((?:`\w+`(?:, )?)+)", (ROOT / page).read_text(encoding="utf-8")
    )
    pairs = [(path, name) for path, names in rows for name in re.findall(r"`(\w+)`", names)]
    assert len(pairs) >= 5
    assert [pair for pair in pairs if pair[1] not in names_defined_in(ROOT / pair[0])] == []


def test_the_pictures_of_the_architecture_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert drawing().with_pictures(page) == page, "run: python docs/make_architecture.py"


def test_a_layer_that_is_drawn_is_a_module() -> None:
    names = [name for layer in drawing().layers() for name in layer]
    assert [
        name
        for name in names
        if not ((ROOT / "voirkit" / name).is_dir() or (ROOT / "voirkit" / f"{name}.py").is_file())
    ] == []


def test_no_code_cites_a_document_that_the_project_does_not_hold() -> None:
    cites = re.compile(
        r"\b(?:DESIGN|STYLE)(?:\.md)?\b \d|(?<!docs/)\breference/\w+\.md|(?<![\w/])docs/([\w/-]+\.md)"
    )
    wrong = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for folder in ("voirkit", "instruments", "tests", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for found in cites.finditer(path.read_text(encoding="utf-8"))
        if found[1] is None or not (ROOT / "docs" / found[1]).is_file()
    ]
    assert wrong == []


def test_the_change_log_can_be_made_of_the_news_fragments() -> None:
    # towncrier refuses two fragments of one name, type and number; what else stands behind the type it does not read.
    keys: Counter[tuple[str, str, int]] = Counter()
    for path in (ROOT / "docs" / "news").glob("*.md"):
        found = re.fullmatch(
            r"(.+)\.(feature|bugfix|doc|removal|misc)(?:\.(\d+))?(?:\.[^.]*)*?\.md", path.name
        )
        assert found is not None, (
            f"{path.name}: name it NUMBER-WORD.TYPE.md, such as 12-flame.feature.md"
        )
        keys[found[1], found[2], int(found[3] or 0)] += 1
    assert [key for key, n in keys.items() if n > 1] == []
