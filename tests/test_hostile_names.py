"""Names that somebody made up to harm who reads a report: in each form of it they are text, and nothing else."""

from __future__ import annotations

import csv
import io
import json
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import hostile
import pytest
from conftest import Place
from hostile import FILE, MARKUP, PAYLOAD, planted
from page import Page
from rich.console import Console

from voirkit.analysis.summary import summary_of
from voirkit.cli import main
from voirkit.export import write_csv
from voirkit.report.html import page
from voirkit.report.markdown import markdown
from voirkit.report.terminal import draw
from voirkit.runs.opened import open_run
from voirkit.runs.selection import EVERYTHING

pytestmark = [pytest.mark.torch, pytest.mark.long]
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
FLAGS = (
    "--loader",
    "--checks",
    "--parameters",
    "--calls",
    "torch.nn",
    "--monitor",
    "--flame",
    "--log",
    "*",
    "--html",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a script whose file, classes, functions, parameters, arguments and exception are called so."""
    place = Place(tmp_path_factory.mktemp("hostile"))
    (place.folder / FILE).write_text(hostile.SCRIPT)
    ended = place.voirkit(*FLAGS, "--run-dir", "run", FILE, f"arg{PAYLOAD}")
    assert ended.code == 1
    ours = ended.err[
        : ended.err.index("Traceback (most recent call last)")
    ]  # the program's own traceback is as python writes it
    assert sorted(set(OBEYED.findall(ours))) == []
    return place.folder / "run"


@pytest.fixture(scope="module", params=["recorded", "planted everywhere"])
def summary(run: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    with open_run(run) as opened:
        found: dict[str, Any] = json.loads(json.dumps(summary_of(opened), default=str))
    assert hostile.PAYLOAD.split("<")[0] in json.dumps(found, ensure_ascii=False).replace(
        '\\"', '"'
    )
    return planted(found) if request.param.startswith("planted") else found


def without_harm(html: str) -> None:
    """No element, attribute or script of a name's, and a policy under which none would do anything."""
    read = Page(html)
    assert read.faults == []
    assert [
        tag
        for tag, _ in read.tags
        if tag in ("img", "iframe", "object", "embed", "base", "form", "link")
    ] == []
    assert [word for word in read.asked if word != "http:"] == []  # that of the name space of SVG
    (policy,) = [
        found["content"]
        for tag, found in read.tags
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "script-src 'unsafe-inline'" not in policy
    for script in re.findall(r"<script>(.*?)</script>", html, re.DOTALL):
        assert f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in policy
    assert "cannot be drawn" not in html


def test_on_the_page_they_are_text(run: Path, summary: dict[str, Any]) -> None:
    with open_run(run) as opened:
        html = page(opened, summary)
    without_harm(html)
    assert "onerror=document.title=&#x27;owned&#x27;" in html


def test_on_the_page_of_two_runs_they_are_text(
    run: Path, tmp_path: Path, summary: dict[str, Any]
) -> None:
    sides = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_bytes((run / "run.json").read_bytes())
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
        sides.append(str(tmp_path / name))
    assert main(["compare", *sides, "--force", "--html", str(tmp_path / "page.html")]) == 0
    without_harm((tmp_path / "page.html").read_text())


def test_in_a_terminal_they_are_text_and_no_lines_of_their_own(summary: dict[str, Any]) -> None:
    file = io.StringIO()
    draw(summary, Console(file=file, width=100, highlight=False), f"run{PAYLOAD}")
    assert sorted(set(OBEYED.findall(file.getvalue()))) == []
    assert [
        line for line in file.getvalue().splitlines() if line.startswith("voirkit: owned")
    ] == []
    assert "\\x1b]0;owned" in file.getvalue()
    assert "left out of the report" not in file.getvalue()


def test_in_markdown_they_are_text(summary: dict[str, Any]) -> None:
    text = markdown(summary, f"run`{PAYLOAD}")
    assert sorted(set(OBEYED.findall(text))) == []
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text)  # without code
    assert re.findall(r"(?<!\\)<(?!/?details>|/?summary>|!-- -->)[^\n]*", outside) == []
    assert "left out of the report" not in text


@pytest.mark.parametrize("command", [["report", "RUN"], ["report", "RUN", "--json"], ["watch", "--once", "RUN"], ["compare", "RUN", "RUN", "--force"],
                                     ["compare", "RUN", "RUN", "--markdown", "--force"]])  # fmt: skip
def test_no_command_prints_what_a_terminal_obeys(
    run: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run) if word == "RUN" else word for word in command]) == 0
    said = capsys.readouterr()
    assert sorted(set(OBEYED.findall(said.out + said.err))) == []
    json.loads(said.out) if "--json" in command else None


@pytest.mark.parametrize(
    "format", ["chrome", "pfw", "csv", "parquet", "lotus", "traincheck", "speedscope"]
)
def test_an_export_writes_into_its_own_folder_alone(
    run: Path, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "into").mkdir()
    before = {path for path in tmp_path.parent.rglob("*") if "into" not in path.parts}
    assert main(["export", str(run), "--format", format, "-o", "into/"]) in (
        0,
        2,
    )  # 2: its package is not installed
    assert {path for path in tmp_path.parent.rglob("*") if "into" not in path.parts} == before


def test_no_cell_of_a_table_is_a_formula(run: Path, tmp_path: Path) -> None:
    with open_run(run) as opened:
        opened.connection()
        opened.database().execute(
            "CREATE OR REPLACE VIEW spans AS SELECT * FROM (VALUES "
            + ", ".join(f"(1::BIGINT, 1::BIGINT, 'c', '{name}', NULL::BIGINT, NULL::DOUBLE, NULL::VARCHAR, NULL::BIGINT, NULL::BIGINT, NULL::VARCHAR,"
                        " 'h', 1::BIGINT, 1::BIGINT, 'span', 0)" for name in ("=1+1", "@SUM(1)", "-2+cmd|x!A0", "-c", "+5", "plain"))
            + ") t(start_ns, duration_ns, category, name, value, number, value_key, epoch, step, args, host, pid, tid, kind, rank)"
        )  # fmt: skip
        (file,) = write_csv(opened, EVERYTHING, str(tmp_path / "table.csv"))
    with open(file, newline="") as lines:
        names = {row["name"] for row in csv.DictReader(lines)}
    assert names == {"'=1+1", "'@SUM(1)", "'-2+cmd|x!A0", "-c", "+5", "plain"}
    assert MARKUP
