"""Each block of a section is drawn by the terminal, the HTML page and Markdown; text of the program's stays text."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from voirkit.report.comparison import Figure as Compared
from voirkit.report.comparison_sections import figures_section
from voirkit.report.html.sections import compared_sections, section_html
from voirkit.report.markdown import _section, markdown
from voirkit.report.sections import (
    Amounts,
    Bar,
    Bars,
    Cell,
    Column,
    Details,
    Figure,
    Figures,
    FlameGraph,
    Grid,
    Group,
    InText,
    Lines,
    OnPage,
    Section,
    Series,
    StackCount,
    Stacked,
    StackFrame,
    Table,
    Text,
    Timeline,
    figures_of,
    sparkline,
    written,
)
from voirkit.report.terminal import rendered_section

BLOCKS = {
    "a text": (Text("two of <them> | 'x'"), "two of <them> | 'x'"),
    "a strong text": (Text("a win", strong=True, mood="good"), "a win"),
    "figures": (Figures([Figure("time", 0.25, "s"), Figure("calls", 3)]), "250 ms"),
    "a table": (Table(("name", "n"), [("f", "12"), ("g", "13")]), "13"),
    "bars": (Bars([("one", 1.0, "1 s"), ("two", 2.0, "2 s")]), "2 s"),
    "a curve": (Series({"loss": [(0, 2.0), (1, 1.5), (2, 0.5)]}), "0.5"),
    "a curve with a value that is not finite": (
        Series({"loss": [(0, 2.0), (1, None), (2, 0.5)]}, axis="s", logarithmic=True),
        "0.5",
    ),
    "a labelled text": (Text("12 of 13", "batches"), "batches"),
    "a link": (Text("the trace", link="https://example.org/x"), "https://example.org/x"),
    "a cell with a style": (Table(("name",), [(Cell("collate", "dim", indent=1),)]), "collate"),
    "a cell with lines": (Table(("name", "hot"), [("f", Lines(["memcpy", "memset"]))]), "memset"),
    "a bar in a cell": (
        Table(("name", Column(""), "share"), [("f", Bar(0.5, "wait"), "50%")]),
        "50%",
    ),
    "stacked bars": (
        Stacked([("a step", {"wait": 1.0, "forward": 3.0}, "4 s in all")], "s"),
        "4 s in all",
    ),
    "a time line": (Timeline([("worker 0", [0.0, 1.0, 4.0])], 0.0, 0.5, "s", "busy"), "5 s"),
    "a group": (Group("Over time", [Text("inside")], note="of one rank"), "of one rank"),
    "a grid": (Grid([Text("one"), Text("two")]), "two"),
}


def terminal(section: Section, width: int = 100) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(rendered_section(section, width) or "")
    return file.getvalue()


def page(section: Section, run: Any = None) -> str:
    return section_html(section, run) or ""


def as_markdown(section: Section) -> str:
    return "\n".join(_section(section))


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("draw", [terminal, page, as_markdown])
def test_every_report_draws_every_block(name: str, draw: Any) -> None:
    import html

    block, words = BLOCKS[name]
    drawn = html.unescape(
        draw(Section("key", "A title", [block], note="What it shows.")).replace("\\", "")
    )
    assert "A title" in drawn
    assert "What it shows." in drawn
    assert words in drawn


def test_a_page_and_markdown_fold_details_away_and_a_terminal_leaves_them_out() -> None:
    section = Section("key", "A title", [Details("more", [Text("inside")])])
    assert "<details><summary>more</summary>" in page(section)
    assert "inside" in page(section)
    assert "inside" in as_markdown(section)
    assert "inside" not in terminal(section)


def test_a_long_table_is_cut_in_a_terminal_alone() -> None:
    section = Section("key", "A title", [Table(("n",), [(f"row{i}",) for i in range(20)], most=4)])
    assert "row3" in terminal(section)
    assert "row4" not in terminal(section)
    assert "16 more rows" in terminal(section)
    assert "row19" in page(section)


def test_text_of_the_program_does_not_become_a_mark() -> None:
    section = Section("key", "<b>", [Text("<script>"), Table(("a|b",), [("`x`|y\nz",)])])
    assert "<script>" not in page(section)
    assert "<b>" not in page(section)
    drawn = as_markdown(section)
    assert "\\<script\\>" in drawn
    assert "| \\`x\\`\\|y z |" in drawn


def test_what_only_a_page_or_only_text_shows_is_not_elsewhere() -> None:
    section = Section(
        "key", "A title", [OnPage([Text("a picture")]), InText([Text("the same in words")])]
    )
    assert ("a picture" in page(section), "in words" in page(section)) == (True, False)
    for drawn in (terminal(section), as_markdown(section)):
        assert ("a picture" in drawn, "in words" in drawn) == (False, True)


def test_a_page_asks_for_what_must_be_read_of_the_run() -> None:
    section = Section("key", "A title", [OnPage(lambda run: [Text(f"{run} was read")])])
    assert "the run was read" in page(section, "the run")


@pytest.mark.parametrize("draw", [terminal, page, as_markdown])
def test_a_section_with_nothing_in_it_is_left_out(draw: Any) -> None:
    empty = [
        Details("more", []),
        Group("a heading", [Grid([])]),
        Table(("n",), []),
        Bars([]),
        Stacked([]),
        Timeline([], 0, 1),
        Series({}),
    ]
    assert not draw(Section("key", "A title", empty, note="A note.")).strip()


def test_a_terminal_leaves_out_the_columns_that_it_has_no_room_for_and_cuts_what_may_be_cut() -> (
    None
):
    heads = (Column("function", left=True, cut=True), "self", Column("mean", narrowest=60))
    section = Section("key", "A title", [Table(heads, [("f" * 40, "1 s", "2 s")])])
    narrow, wide = terminal(section, 30), terminal(section, 100)
    assert max(map(len, narrow.splitlines())) <= 30
    assert ("2 s" in narrow, "2 s" in wide) == (False, True)
    assert "f…" in narrow
    assert "f" * 40 in wide
    assert "mean" in page(section)


def test_a_list_is_cut_after_an_item() -> None:
    section = Section(
        "key",
        "A title",
        [Table((Column("calls", left=True, cut=True),), [("12 read, 8 openat, 7 close",)])],
    )
    assert "12 read, 8 openat, …" in terminal(section, 25)


def test_columns_without_anything_in_them_are_left_out() -> None:
    section = Section(
        "key", "A title", [Table(("name", "errors", "n"), [("f", "", "1"), ("g", "", "2")])]
    )
    for drawn in (terminal(section), page(section), as_markdown(section)):
        assert "errors" not in drawn


def test_a_name_has_one_colour_in_a_section() -> None:
    blocks = [
        Stacked([("calls", {"read": 2, "close": 1}, "")]),
        Stacked([("time", {"close": 2, "openat": 1}, "")]),
    ]
    drawn = page(Section("key", "A title", blocks))
    legends = [part.split("</p>")[0] for part in drawn.split('<p class="legend">')[1:]]
    kinds = [
        dict(zip(re.findall("</i>(\\w+)", one), re.findall('class="(k-[^"]+)"', one), strict=True))
        for one in legends
    ]
    assert kinds[0]["close"] == kinds[1]["close"]
    assert len({*kinds[0].values(), *kinds[1].values()}) == 3


def test_a_flame_graph_is_on_the_page_alone() -> None:
    frames = [
        StackFrame("main (main.py:3)", "main (main.py)", "the program"),
        StackFrame("relu (nn.py:9)", "relu (nn.py)", "torch"),
    ]
    graph = FlameGraph(
        [StackCount("forward", "rank 0", "threads that train", frames, 7)],
        0.01,
        ["the program", "torch"],
        ["threads that train"],
    )
    section = Section("key", "A title", [graph])
    assert '"names":["main (main.py:3)","relu (nn.py:9)"]' in page(section)
    assert "<noscript>" in page(section)
    assert "relu" not in terminal(section)


def test_the_page_of_two_runs_has_what_is_more_in_the_second() -> None:
    sections = [
        [Section("key", "Calls", [Amounts("time", values, "s")], measured_by=tool)]
        for values, tool in (
            ({"f": 1.0, "g": 2.0}, "perf"),
            ({"f": 1.5, "g": 2.0, "<h>": 1.0}, "strace"),
        )
    ]
    drawn = "".join(compared_sections(*sections))
    assert "+500 ms" in drawn
    assert "&lt;h&gt;" in drawn
    assert "measured by perf and by strace" in drawn
    assert "Recorded in the first alone." in "".join(compared_sections(sections[0], []))
    assert not list(compared_sections([Section("key", "Calls", [Text("none")])], []))


def test_a_sparkline_marks_what_is_not_finite_and_is_as_long_as_there_is_room() -> None:
    assert sparkline([1.0, None, 8.0]) == "▁!█"
    assert sparkline([]) == ""
    assert len(sparkline([float(n) for n in range(100)], 10)) == 10


def test_figures_are_named_by_their_section() -> None:
    sections = [
        Section("a", "First", [Figures([Figure("time", 1.0, "s")])]),
        Section("b", "Second", [Text("none")]),
    ]
    assert [(name, one.value) for name, one in figures_of(sections)] == [("First: time", 1.0)]


@pytest.mark.parametrize(
    ("better", "second", "style"),
    [("lower", 1.5, "good"), ("higher", 1.5, "bad"), ("", 1.5, ""), ("lower", 2.001, "")],
)
def test_a_ratio_has_the_colour_of_what_is_better(better: str, second: float, style: str) -> None:
    (table, *_) = figures_section([Compared("time", "s", 2.0, second, better=better)]).blocks
    assert isinstance(table, Table)
    ratio = table.rows[0][4]
    assert isinstance(ratio, Cell)
    assert ratio.style == style


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.002, "s", "2 ms"),
        (0.125, "share", "12.5%"),
        (2048, "bytes", "2.05 kB"),
        (None, "s", "unknown"),
    ],
)
def test_a_figure_is_written_with_its_unit(value: float | None, unit: str, text: str) -> None:
    assert written(value, unit) == text


def test_a_summary_as_markdown_has_verdict_steps_and_rates() -> None:
    phases = {
        "wait": {"share": 0.25, "total_s": 1.0, "step_s": {"median": 0.1}},
        "forward": {"share": 0.75, "total_s": 3.0},
    }
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
        {
            "command": ["main.py"],
            "steps": {"n": "many"},
            "rates": {"train_rate": {"value": 1.0, "median": 1.0, "units": "items/s", "n": 1}},
        }
    )
    assert "left out of the report, since it failed: steps" in drawn
    assert "train" in drawn
