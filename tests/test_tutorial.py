"""The tutorial, followed literally in an empty folder: what it prints, and whether its figures are as the page says that they are anywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from following_pages import Page, follow

pytest.importorskip("torch")
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # the first test runs the whole page

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "tutorial.md").read_text()
LOSSES = re.compile(r"^epoch \d: loss (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return follow(TEXT, tmp_path_factory.mktemp("tutorial"))


def summary(page: Page, run: str) -> dict[str, Any]:
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
    assert f"```python\n{(ROOT / 'examples' / 'slow' / 'main.py').read_text()}```" in TEXT


def test_every_command_works(page: Page) -> None:
    assert [(command.line, command.printed) for command in page.commands if command.code] == []


def test_every_run_of_the_script_prints_the_same_losses(page: Page) -> None:
    losses = [LOSSES.findall(command.printed) for command in page.commands if command.line.endswith("main.py")]
    assert len(losses) == 4
    assert len(losses[0]) == 4
    assert all(one == losses[0] for one in losses)


@pytest.mark.parametrize("run", ["before", "after"])
def test_the_verdict_is_that_of_the_page(page: Page, run: str) -> None:
    assert (summary(page, run)["verdict"]["kind"],) * 2 == anywhere(f"verdict {run}")


def test_the_wait_is_as_long_as_the_page_says(page: Page) -> None:
    assert within(summary(page, "before")["steps"]["phases"]["wait"]["share"], anywhere("wait, share of a step, before")[1])


def test_the_transform_with_the_most_work_is_that_of_the_page(page: Page) -> None:
    name, operation = max(summary(page, "cause")["loader"]["operations"].items(), key=lambda item: item[1]["share"])
    assert (name, name) == anywhere("operation with the most work")
    assert within(operation["share"], anywhere("its share of the work")[1])


def test_the_comparison_finds_the_step_as_much_shorter_as_the_page_says(page: Page) -> None:
    row = re.search(r"^ step +\S+ \S+ +\S+ \S+ +([\d.]+)x .*\*$", page.command("voirkit compare before after").printed, re.MULTILINE)
    assert row is not None
    assert within(float(row[1]), anywhere("a step after, to a step before")[1])


@pytest.mark.parametrize(
    "line", ["voirkit --run-dir before", "voirkit --run-dir cause", "voirkit --run-dir after", "voirkit compare before after"]
)
def test_what_is_printed_has_the_rows_that_the_page_shows(page: Page, line: str) -> None:
    command = page.command(line)
    rows = re.findall(r"^ ?([a-z_]+(?: of|,)?(?: [a-z]+)*)  +\S", command.shown, re.MULTILINE)
    assert len(rows) > 5
    assert [row for row in rows if row not in command.printed] == []


def test_the_page_shows_the_line_about_workers_to_its_end(page: Page) -> None:
    line = re.compile(r"^items/s that workers can make, at best  .*·\s+the\s+training\s+takes\s+up\s+to\s+[\d,]+$", re.MULTILINE)
    command = page.command("voirkit --run-dir cause")
    assert line.search(command.printed) is not None
    assert line.search(command.shown) is not None


def test_the_report_is_one_html_file(page: Page) -> None:
    assert (page.folder / "cause" / "report.html").read_text().startswith("<!doctype html>")


def test_the_pictures_are_there_and_small() -> None:
    pictures = [ROOT / "docs" / name for name in re.findall(r"\]\((images/.*?)\)", TEXT)]
    assert len(pictures) == 2
    assert all(picture.stat().st_size < 200_000 for picture in pictures)
