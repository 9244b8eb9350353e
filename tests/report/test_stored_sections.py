"""``ov.section``: what an instrument of a voirfile shows is in every report, also when the voirfile is gone."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest
from conftest import Place
from rich.console import Console

from voirkit.report.markdown import markdown
from voirkit.report.sections import (
    Cell,
    Column,
    Facts,
    Figure,
    Figures,
    Group,
    Lines,
    Series,
    Stacked,
    Table,
    Text,
    figures_of,
    stored_sections,
)
from voirkit.report.terminal import draw
from voirkit.runs.summary import block_as_json

REPORT, COMPARE = ((sys.executable, "-m", "voirkit", word) for word in ("report", "compare"))
BLOCKS = [
    Text("33 calls", "calls", mood="note"),
    Figures([Figure("time of a batch", 0.02, "s", "lower")]),
    Facts([("memory", [("peak", "2.3 GB")])]),
    Table(
        ("phase", Column("share", narrowest=40)),
        [("wait", Cell("40%", "bad")), ("other", Lines(["a", "b"]))],
    ),
    Group(
        "Over time",
        [
            Series({"loss": [(0, 2.5), (1, None)]}, axis="step"),
            Stacked([("rank 0", {"block": 0.1}, "100 ms")], "s"),
        ],
    ),
]


def test_blocks_come_back_from_json_as_they_were() -> None:
    summary = {
        "sections": [
            {
                "title": "Own",
                "note": "",
                "blocks": json.loads(json.dumps([block_as_json(block) for block in BLOCKS])),
            }
        ]
    }
    (found,) = stored_sections(summary)
    assert found.title == "Own"
    assert [block_as_json(one) for one in found.blocks] == [block_as_json(one) for one in BLOCKS]
    assert [type(block) for block in found.blocks] == [type(block) for block in BLOCKS]


def test_what_no_report_can_show_is_refused() -> None:
    with pytest.raises(
        TypeError,
        match=r"object is nothing that a section can show; blocks are in voirkit\.report\.sections",
    ):
        block_as_json(Table(("a",), [(object(),)]))


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    assert block_as_json(Figures([Figure("loss", numpy.float32(0.5))])) == block_as_json(
        Figures([Figure("loss", 0.5)])
    )


def test_every_report_has_it_when_the_voirfile_is_gone(place: Place) -> None:
    place.write(
        main="print('ran')",
        voirfile="""
        from voirkit.report.sections import Figure, Figures, Table

        def instrument_own(ov):
            yield ov.phases.run_script
            ov.section("Labels", "seen once", Figures([Figure("most", 0.7, "share")]), Table(("label", "times"), [("cat", "21")]), note="Why.")
        """,
    )
    assert "Labels\n" in place.voirkit("main.py").err
    (place.folder / "voirfile.py").unlink()
    for words in ((), ("--markdown",), ("--html", "page.html")):
        shown = place.run(*REPORT, *words, "run").out + "".join(
            path.read_text() for path in place.folder.glob("page.html")
        )
        assert [word for word in ("Labels", "seen once", "70.0%", "cat") if word not in shown] == []
    assert "Labels: most" in place.run(*COMPARE, "run", "run").out
    assert json.loads(place.run(*REPORT, "--json", "run").out)["sections"][0]["note"] == "Why."


def test_a_stored_section_that_is_damaged_costs_that_part(place: Place) -> None:
    place.write(main="print('ran')")
    place.voirkit("--quiet", "main.py")
    path = place.folder / "run" / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(
        json.dumps(
            {
                **summary,
                "sections": [{"title": "Own", "note": "", "blocks": [{"block": "os", "x": 1}]}],
            }
        )
    )
    reported = place.run(*REPORT, "run")
    assert reported.code == 0
    assert "wall time" in reported.out
    assert "voirfile" in reported.out + reported.err  # the part that is not shown is named


@pytest.mark.parametrize(
    "wrong", [3, None, {"a": 1}, Group("g", [1.5])], ids=["a number", "nothing", "a dictionary", "a number in a group"]
)  # fmt: skip
def test_what_is_no_block_is_refused(wrong: object) -> None:
    with pytest.raises(
        TypeError, match=r"is no block of a section; they are in voirkit\.report\.sections"
    ):
        block_as_json(wrong)


def test_one_that_cannot_be_shown_costs_no_other_and_no_figure() -> None:
    bad = {"title": "Bad", "note": "", "blocks": [{"block": "FlameGraph"}]}
    good = {"title": "Good", "note": "", "blocks": [block_as_json(Figures([Figure("n", 3.0)]))]}
    first, second = stored_sections({"sections": [bad, good]})
    assert "cannot be shown" in str(first.blocks[0])
    assert [name for name, _ in figures_of([first, second])] == ["Good: n"]


def test_two_runs_are_compared_by_titles() -> None:
    same = {"title": "Same", "note": "", "blocks": []}
    alone, other = (
        [one.key for one in stored_sections({"sections": found})]
        for found in ([{**same, "title": "Other"}, same], [same])
    )
    assert alone[1:] == other


def test_numbers_are_cells_and_brackets_no_markup() -> None:
    summary = {
        "sections": [
            {
                "title": "Own",
                "note": "",
                "blocks": [block_as_json(Table(("step", "time [ms]"), [(1, 2.5)]))],
            }
        ]
    }
    file = io.StringIO()
    draw(summary, Console(file=file, width=80), "run")
    assert re.search(r"step +time \[ms\]\n +1 +2\.5\n", file.getvalue())
    assert "| 1 | 2.5 |" in markdown(summary, "run")


def test_an_indent_is_a_small_number() -> None:
    cell = {"block": "Cell", "text": "a", "indent": 60_000_000}
    table = {"block": "Table", "heads": ["a"], "rows": [[cell]]}
    (section,) = stored_sections({"sections": [{"title": "Own", "note": "", "blocks": [table]}]})
    assert section.blocks[0].rows[0][0].indent == 20  # type: ignore[union-attr]
    (damaged,) = stored_sections(
        {
            "sections": [
                {
                    "title": "Own",
                    "note": "",
                    "blocks": [{**table, "rows": [[{**cell, "indent": '1"><h1>'}]]}],
                }
            ]
        }
    )
    assert "cannot be shown" in str(damaged.blocks[0])
