"""The marks of a page: lengths are true, everything is text, pictures stay small whatever they are made of."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from page import Page

from voirkit.analysis.document import Rank
from voirkit.analysis.steps import Steps, Table
from voirkit.phase_table import PARTS, PHASES
from voirkit.report.html import picture, with_file
from voirkit.report.html.components import (
    LONGEST,
    Html,
    bars,
    columns,
    differences,
    heat_map,
    lines,
    stacked,
    table,
    text,
    ticks,
)

SECONDS = {"µs": 1e-6, "ms": 1e-3, "min": 60.0, "h": 3600.0, "d": 86400.0}
HOSTILE = "</td><script>alert('\"&')</script>"


def drawn(made: str) -> Page:
    page = Page(made)
    assert page.faults == []
    return page


def styles(page: Page) -> list[str]:
    return [str(found["style"]) for tag, found in page.tags if tag == "i" and "style" in found]


def table_of(n: int, time_ns: int = 2_000_000) -> Table:
    own = np.zeros((n, len(PHASES) - 1 + len(PARTS)), dtype=np.int64)
    own[:, 0], own[:, 2] = time_ns // 4, time_ns - time_ns // 4
    return Table(np.arange(n, dtype=np.int64) * time_ns, np.full(n, time_ns), np.full(n, 4), own)


def steps_of(train: Table, evaluation: Table | None = None) -> Rank:
    return Rank(0, "node1", Steps(train, evaluation or table_of(0), wait_known=True), {})


class Nothing:
    """A run of which nothing but its steps is known."""

    manifest: dict[str, Any] = {}  # noqa: RUF012

    def connection(self) -> Any:
        return SimpleNamespace(execute=lambda *_: SimpleNamespace(fetchall=list))


def test_text_shows_all_of_what_it_is_given() -> None:
    assert drawn(f"<p>{text(HOSTILE)}</p>").text[""] == HOSTILE
    assert text("a\x00\x1b\udc80\u202eb") == "a\ufffd\ufffd\ufffd\ufffdb"
    assert len(text("x" * 10_000)) == LONGEST + 1
    assert text(Html("<b>")) == "<b>"


@pytest.mark.parametrize(
    "made",
    [
        table((HOSTILE, "n"), [(HOSTILE, HOSTILE)], caption=HOSTILE),
        bars([(HOSTILE, 1.0, HOSTILE)], caption=HOSTILE),
        differences([(HOSTILE, -1.0, HOSTILE)], HOSTILE),
        stacked([(HOSTILE, {HOSTILE: 1.0}, HOSTILE)], caption=HOSTILE),
        heat_map([(HOSTILE, [1.0])], 0.0, 1.0, lambda _: HOSTILE, caption=HOSTILE),
        lines({HOSTILE: [(0.0, 1.0), (1.0, 2.0)], "b": [(0.0, 1.0)]}, lambda _: HOSTILE, caption=HOSTILE),
        columns([(0.0, 1.0, {HOSTILE: 1.0}, HOSTILE)], [2.0], [(0.0, 1.0, HOSTILE)], [(0.0, HOSTILE, HOSTILE)], caption=HOSTILE, order=[HOSTILE]),
    ],
)  # fmt: skip
def test_every_mark_takes_text_of_any_kind(made: str) -> None:
    page = drawn(made)
    assert "script" not in [tag for tag, _ in page.tags]
    assert HOSTILE in "".join(page.text.values()) + "".join(
        str(value) for _, found in page.tags for value in found.values()
    )


def test_the_parts_of_a_bar_are_as_long_as_their_share_of_the_longest_row() -> None:
    page = drawn(stacked([("a", {"wait": 1.0, "forward": 3.0}, ""), ("b", {"wait": 2.0}, "")]))
    assert styles(page) == ["width:25.000%", "width:75.000%", "width:50.000%"]
    titles = [found["title"] for tag, found in page.tags if tag == "i" and "title" in found]
    assert titles == ["wait: 1, 25.0%", "forward: 3, 75.0%", "wait: 2, 100.0%"]


def test_a_difference_goes_to_the_right_for_more_and_to_the_left_for_less() -> None:
    page = drawn(differences([("more", 2.0, "+2"), ("less", -1.0, "-1")]))
    assert styles(page) == ["margin-left:50.00%;width:50.00%", "margin-left:25.00%;width:25.00%"]


def test_a_column_that_no_row_fills_is_left_out() -> None:
    assert "errors" not in table(("call", "n", "errors"), [("read", 1, ""), ("write", 2, "")])


def test_a_cell_of_a_map_lies_where_its_time_is() -> None:
    made = heat_map([("read", [0.0, 4.0])], 10.0, 0.5)
    page = drawn(made)
    (cell,) = [found for tag, found in page.tags if tag == "rect"]
    assert (cell["x"], cell["width"]) == ("10.5", "0.51")
    assert "10.5 s .. 11 s: 4" in page.text[""]
    assert 'viewBox="10 0 1 1"' in made


def test_a_map_in_which_nothing_happened_is_none() -> None:
    assert heat_map([("read", [0.0, 0.0])], 0.0, 1.0) == ""
    assert heat_map([], 0.0, 1.0) == ""


def test_a_curve_is_broken_where_a_value_was_not_finite() -> None:
    made = lines({"loss": [(0.0, 1.0), (1.0, None), (2.0, 3.0)]})
    (path,) = re.findall(r' d="([^"]*)"', made)
    assert path.count("M") == 2
    assert "not finite" in made


@pytest.mark.parametrize(
    "values", [[0.0, 0.0], [5.0, 5.0], [-1.0, -1.0], [1e-300, 1e300], [None, None], [0.0]]
)
def test_a_curve_of_any_values_can_be_drawn(values: list[float | None]) -> None:
    points = [(float(at), value) for at, value in enumerate(values)]
    for low in (0.0, None):
        for logarithmic in (False, True):
            made = lines({"x": points}, low=low, logarithmic=logarithmic)
            drawn(made)
            assert not re.search(
                r"(?<![a-z])(nan|inf)(?![a-z])", " ".join(re.findall(r' d="([^"]*)"', made))
            )


@pytest.mark.parametrize(
    ("start", "end", "unit", "labels"),
    [
        (0, 3, "", ["0", "1", "2", "3"]), (0, 1, "", ["0", "1"]), (0, 63, "", ["0", "20", "40", "60"]), (0, 4000, "", ["0", "1,000", "2,000", "3,000", "4,000"]),
        (0.0, 0.9, "", ["0.0", "0.5"]), (0.0, 1.0, "s", ["0.0 s", "0.5 s", "1.0 s"]), (1000.0, 1001.0, "s", ["16.670 min", "16.675 min", "16.680 min"]),
        (0.0, 2e-3, "s", ["0.0 ms", "0.5 ms", "1.0 ms", "1.5 ms", "2.0 ms"]), (-1.0, 1.0, "s", ["-1.0 s", "-0.5 s", "0.0 s", "0.5 s", "1.0 s"]),
        (5.0, 5.0, "s", []),
    ],
)  # fmt: skip
def test_an_axis_has_round_places(start: float, end: float, unit: str, labels: list[str]) -> None:
    assert [label for _, label in ticks(start, end, unit)] == labels


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.sampled_from(["s", ""]))
def test_a_label_of_an_axis_says_its_place(start: float, length: float, unit: str) -> None:
    end = start + length
    made = ticks(start, end, unit)
    assert 1 <= len(made) <= 5
    assert len({label for _, label in made}) == len(made)
    for place, label in made:
        number, _, name = label.replace(",", "").partition(" ")
        assert start - length * 1e-6 <= place <= end + length * 1e-6
        assert float(number) * SECONDS.get(name, 1.0) == pytest.approx(place, abs=length * 1e-6)


def test_a_column_beyond_the_others_is_cut_and_said() -> None:
    boxes = [(float(at), at + 1.0, {"wait": 100.0 if at == 0 else 1.0}, "") for at in range(100)]
    made = columns(boxes, order=["wait"])
    assert "1 beyond the scale, at most 100 s" in made
    assert ">1.5 s<" in made


def test_a_million_steps_are_a_picture_of_some_hundred_columns() -> None:
    made = picture(Nothing(), steps_of(table_of(1_000_000), table_of(1000)))  # type: ignore[arg-type]
    assert len(made) < 300_000
    assert "steps 0 to 2,499, mean 2 ms, longest 2 ms" in made
    assert "wait 500 µs, 25%" in made


def test_the_columns_of_steps_lie_where_the_steps_were() -> None:
    page = drawn(picture(Nothing(), steps_of(table_of(10))))  # type: ignore[arg-type]
    hits = [
        (found["x"], found["width"])
        for tag, found in page.tags
        if tag == "rect" and found.get("class") == "hit"
    ]
    assert hits == [(f"{at * 0.002:.7g}", "0.002") for at in range(10)]


def test_the_word_after_html_is_a_file_only_if_it_looks_like_one() -> None:
    assert with_file(["--html", "run"]) == ["--html=", "run"]
    assert with_file(["--html", "a.html", "run"]) == ["--html=a.html", "run"]
    assert with_file(["run", "--html"]) == ["run", "--html="]
    assert with_file(["--html", "-"]) == ["--html=-"]
    assert with_file(["--html=x", "--", "--html"]) == ["--html=x", "--", "--html"]


def test_a_curve_of_what_is_no_number_and_of_the_largest_there_are_is_drawn() -> None:
    made = lines(
        {"loss": [(0, 1e308), (1, float("nan")), (2, -1e308), (3, float("inf")), (4, 0.0)]},
        low=None,
    )
    assert "nan" not in str(made)
    assert str(made).count("k-bad") == 2
