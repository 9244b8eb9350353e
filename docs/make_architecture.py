"""Draws the pictures of docs/architecture.md from what the code says of itself: pyproject's import contracts, and docstrings.

``python docs/make_architecture.py`` rewrites the page; with ``--check`` it changes nothing and exits with 1 if the page is out of date.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
FRAMEWORK = ROOT / "voirkit"
INSTRUMENTS = ROOT / "instruments" / "voirkit_instruments"
_WIDTH = 110  # of a line of a picture: the page of the documentation shows it without scrolling


def layers() -> list[list[str]]:
    """The layers of ``voirkit``, from the top: the modules of each."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
    rows = next(
        one["layers"]
        for one in contracts
        if one["type"] == "layers" and one["containers"] == ["voirkit"]
    )
    return [[name.strip() for name in row.split("|")] for row in rows]


def draw_layers() -> str:
    """The layers as text: a module may import what stands below it."""
    rows = [row for layer in layers() for row in _layer(layer)]
    listed = {name for layer in layers() for name in layer}
    others = sorted(
        path.stem
        for path in FRAMEWORK.glob("*.py")
        if path.stem not in listed and not path.stem.startswith("__")
    )
    return "\n".join([*rows, "", "in no layer:", *(_row("  ", name) for name in others)])


def _layer(names: list[str]) -> Iterator[str]:
    for i, name in enumerate(names):
        yield _row(
            "┌ "
            if i == 0 and len(names) > 1
            else "└ "
            if i == len(names) - 1 and i
            else "│ "
            if i
            else "  ",
            name,
        )


def _row(mark: str, name: str) -> str:
    folder = FRAMEWORK / name
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return _fitted(
        f"{mark}{name + '/' if folder.is_dir() else name + '.py':<24}{first_sentence(path)}"
    )


def draw_instruments() -> str:
    """A line for each folder that declares instruments."""
    folders = sorted(path for path in INSTRUMENTS.iterdir() if (path / "__init__.py").is_file())
    return "\n".join(
        _fitted(f"  {path.name + '/':<24}{first_sentence(path / '__init__.py')}")
        for path in folders
    )


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, without the marks of code."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    text = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[a-z`)])\. ", text)[0].replace("`", "").removesuffix(".")


def _fitted(line: str) -> str:
    return (
        line if len(line) <= _WIDTH else line[: _WIDTH - 2].rsplit(" ", 1)[0].rstrip(",;:") + " …"
    )


_PICTURES = {"layers": draw_layers, "instruments": draw_instruments}


def with_pictures(page: str) -> str:
    """The page with its pictures drawn anew."""
    for name, draw in _PICTURES.items():
        pattern = rf"(<!-- picture: {name} -->\n)```text\n.*?```\n"
        page, n = re.subn(
            pattern,
            lambda found, draw=draw: f"{found[1]}```text\n{draw()}\n```\n",
            page,
            flags=re.DOTALL,
        )
        if n != 1:
            raise SystemExit(f"{PAGE}: a place for the picture {name!r} is needed, once.")
    return page


def main(words: list[str]) -> int:
    """Rewrite the page, or say whether that is needed; returns the exit code."""
    before = PAGE.read_text(encoding="utf-8")
    after = with_pictures(before)
    if before == after:
        return 0
    if "--check" in words:
        print(f"{PAGE} is out of date: run  python docs/make_architecture.py")
        return 1
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
