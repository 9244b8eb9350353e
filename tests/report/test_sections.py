"""Each block of a section is drawn by the terminal, the HTML page and Markdown; text of the program's stays text."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from voirkit.report.html.sections import section_html
from voirkit.report.markdown import _section, markdown
from voirkit.report.section_terminal import rendered_section
from voirkit.report.sections import Bars, Details, Figure, Figures, Section, Series, Table, Text, figures_of, written

BLOCKS = {
    "a text": (Text("two of <them> | 'x'"), "two of <them> | 'x'"),
    "a strong text": (Text("a win", strong=True, mood="good"), "a win"),
    "figures": (Figures([Figure("time", 0.25, "s"), Figure("calls", 3)]), "250 ms"),
    "a table": (Table(("name", "n"), [("f", "12"), ("g", "13")]), "13"),
    "bars": (Bars([("one", 1.0, "1 s"), ("two", 2.0, "2 s")]), "2 s"),
    "a curve": (Series({"loss": [(0, 2.0), (1, 1.5), (2, 0.5)]}), "0.5"),
}


def terminal(section: Section) -> str:
    file = io.StringIO()
    Console(file=file, width=100, highlight=False).print(rendered_section(section))
    return file.getvalue()


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("draw", [terminal, lambda one: str(section_html(one)), lambda one: "\n".join(_section(one))])
def test_every_report_draws_every_block(name: str, draw: Any) -> None:
    import html

    block, words = BLOCKS[name]
    drawn = html.unescape(draw(Section("key", "A title", [block], note="What it shows.")).replace("\\", ""))
    assert "A title" in drawn
    assert "What it shows." in drawn
    assert words in drawn


def test_a_page_and_markdown_fold_details_away_and_a_terminal_leaves_them_out() -> None:
    section = Section("key", "A title", [Details("more", [Text("inside")])])
    assert "<details><summary>more</summary>" in section_html(section)
    assert "inside" in section_html(section)
    assert "inside" in "\n".join(_section(section))
    assert "inside" not in terminal(section)


def test_a_long_table_is_cut_in_a_terminal_alone() -> None:
    section = Section("key", "A title", [Table(("n",), [(f"row{i}",) for i in range(20)], most=4)])
    assert "row3" in terminal(section)
    assert "row4" not in terminal(section)
    assert "16 more rows" in terminal(section)
    assert "row19" in section_html(section)


def test_text_of_the_program_does_not_become_a_mark() -> None:
    section = Section("key", "<b>", [Text("<script>"), Table(("a|b",), [("`x`|y\nz",)])])
    assert "<script>" not in section_html(section)
    assert "<b>" not in section_html(section)
    drawn = "\n".join(_section(section))
    assert "\\<script\\>" in drawn
    assert "| \\`x\\`\\|y z |" in drawn


def test_figures_are_named_by_their_section() -> None:
    sections = [Section("a", "First", [Figures([Figure("time", 1.0, "s")])]), Section("b", "Second", [Text("none")])]
    assert [(name, one.value) for name, one in figures_of(sections)] == [("First: time", 1.0)]


@pytest.mark.parametrize(
    ("value", "unit", "text"), [(0.002, "s", "2 ms"), (0.125, "share", "12.5%"), (2048, "bytes", "2.05 kB"), (None, "s", "unknown")]
)
def test_a_figure_is_written_with_its_unit(value: float | None, unit: str, text: str) -> None:
    assert written(value, unit) == text


def test_a_summary_as_markdown_has_verdict_steps_and_rates() -> None:
    phases = {"wait": {"share": 0.25, "total_s": 1.0, "step_s": {"median": 0.1}}, "forward": {"share": 0.75, "total_s": 3.0}}
    drawn = markdown(
        {
            "command": ["main.py"], "duration_s": 4.0, "exit_code": 0, "ended": "normal",
            "verdict": {"kind": "compute-bound", "because": "forward is 75 %.", "next": "Try torch.compile."},
            "steps": {"n": 10, "phases": phases},
            "rates": {"train_rate": {"value": 12.5, "median": 12.0, "units": "items/s", "n": 10}},
            "warnings": ["one | two"],
        },
        "runs/a",
    )  # fmt: skip
    assert "# `main.py`" in drawn
    assert "## compute-bound" in drawn
    assert "| wait | 25.0% | 1 s | 100 ms |" in drawn
    assert "| train\\_rate | 12.5 items/s |" in drawn
    assert "> one \\| two" in drawn
    assert drawn.endswith("Run directory: `runs/a`\n")


def test_a_damaged_part_of_a_summary_costs_that_part() -> None:
    drawn = markdown(
        {"command": ["main.py"], "steps": {"n": "many"}, "rates": {"train_rate": {"value": 1.0, "median": 1.0, "units": "items/s", "n": 1}}}
    )
    assert "left out of the report, since it failed: steps" in drawn
    assert "train" in drawn
