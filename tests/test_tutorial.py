"""The tutorial, followed literally: its output, and the figures that it promises everywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pages import DOCS, Block, follow

pytest.importorskip("torch")
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # the first test runs the whole page

TEXT = (DOCS / "tutorial.md").read_text()
LOSSES = re.compile(r"^epoch \d: loss (\S+)$", re.MULTILINE)


class Followed(NamedTuple):
    folder: Path
    blocks: list[tuple[Block, str]]  # what was run, and what it has printed

    def block(self, command: str) -> tuple[Block, str]:
        """The first whose command begins so."""
        return next(
            (block, printed)
            for block, printed in self.blocks
            if block.commands[0].startswith(command)
        )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """Every command has ended with exit code 0."""
    folder = tmp_path_factory.mktemp("tutorial")
    return Followed(folder, list(follow(DOCS / "tutorial.md", folder, {"COLUMNS": "88"})))


def summary(page: Followed, run: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((page.folder / run / "summary.json").read_text())
    return read


def anywhere(figure: str) -> tuple[str, str]:
    """What the page's last table says of a figure: here, and anywhere."""
    row = re.search(rf"^\| {re.escape(figure)} \| (.*?) \| (.*?) \|$", TEXT, re.MULTILINE)
    assert row is not None, figure
    return row[1], row[2]


def within(value: float, limit: str) -> bool:
    """Whether a share or ratio is ``at least 75 %`` or ``at most 0.40x``."""
    way, number, unit = re.fullmatch(r"at (least|most) ([\d.]+)( %|x)", limit).groups()  # type: ignore[union-attr]
    least = float(number) / (100 if unit == " %" else 1)
    return value >= least if way == "least" else value <= least


def test_the_page_shows_the_script_of_the_examples() -> None:
    assert f"```python\n{(DOCS.parent / 'examples' / 'slow' / 'main.py').read_text()}```" in TEXT


def test_all_commands_but_the_installation_are_run(page: Followed) -> None:
    assert [block.commands[0] for block, _ in page.blocks] == re.findall(
        r"^\$ (?!pip install)(.*)", TEXT, re.MULTILINE
    )


def test_every_run_of_the_script_prints_the_same_losses(page: Followed) -> None:
    losses = [
        LOSSES.findall(printed)
        for block, printed in page.blocks
        if block.commands[0].endswith("main.py")
    ]
    assert len(losses) == 4
    assert len(losses[0]) == 4
    assert all(one == losses[0] for one in losses)


@pytest.mark.parametrize("run", ["before", "after"])
def test_the_verdict_is_that_of_the_page(page: Followed, run: str) -> None:
    assert (summary(page, run)["verdict"]["kind"],) * 2 == anywhere(f"verdict {run}")


def test_the_wait_is_as_long_as_the_page_says(page: Followed) -> None:
    assert within(
        summary(page, "before")["steps"]["phases"]["wait"]["share"],
        anywhere("wait, share of a step, before")[1],
    )


def test_the_transform_with_the_most_work_is_that_of_the_page(page: Followed) -> None:
    name, operation = max(
        summary(page, "cause")["loader"]["operations"].items(), key=lambda item: item[1]["share"]
    )
    assert (name, name) == anywhere("operation with the most work")
    assert within(operation["share"], anywhere("its share of the work")[1])


def test_the_comparison_finds_the_step_as_much_shorter_as_the_page_says(page: Followed) -> None:
    row = re.search(
        r"^ step +\S+ \S+ +\S+ \S+ +([\d.]+)x .*\*$",
        page.block("voirkit compare before after")[1],
        re.MULTILINE,
    )
    assert row is not None
    assert within(float(row[1]), anywhere("a step after, to a step before")[1])


@pytest.mark.parametrize(
    "line",
    [
        "voirkit --run-dir before",
        "voirkit --run-dir cause",
        "voirkit --run-dir after",
        "voirkit compare before after",
    ],
)
def test_what_is_printed_has_the_rows_that_the_page_shows(page: Followed, line: str) -> None:
    block, printed = page.block(line)
    rows = re.findall(r"^ ?([a-z_]+(?: of|,)?(?: [a-z]+)*)  +\S", block.text, re.MULTILINE)
    assert len(rows) > 5
    assert [row for row in rows if row not in printed] == []


def test_the_report_is_one_html_file(page: Followed) -> None:
    assert (page.folder / "cause" / "report.html").read_text().startswith("<!doctype html>")


def test_the_pictures_are_there_and_small() -> None:
    pictures = [DOCS / name for name in re.findall(r"\]\((images/.*?)\)", TEXT)]
    assert len(pictures) == 2
    assert all(picture.stat().st_size < 200_000 for picture in pictures)
