"""An instrument of another package: installed, it is in the help, the summary and every report, and no file of voirkit's knows of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import CLEAN

PLUGIN = Path(__file__).parent.parent / "examples" / "plugin"
SCRIPT = """
import json, time

class Slow(dict):
    def items(self):
        time.sleep(0.03)
        return super().items()

print(len(json.dumps({"a": 1})))
for _ in range(3):
    json.dumps(Slow(b=2))
print(json.dumps.__module__)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, and a run in it."""
    folder: Path = tmp_path_factory.mktemp("plugin")
    source = folder / "source"
    subprocess.run(["cp", "-r", str(PLUGIN), str(source)], check=True)
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(folder / "site"),
        str(source),
    ]
    subprocess.run(install, check=True, capture_output=True)
    (folder / "main.py").write_text(SCRIPT)
    ended = voirkit(folder, "--run-dir", "run", "--json-time=20", "main.py")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "8\njson\n"
    return folder


def voirkit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {
        **CLEAN,
        "PYTHONPATH": os.pathsep.join(
            [str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    return subprocess.run(
        [sys.executable, "-m", "voirkit", *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_its_option_is_in_the_help_and_its_value_is_checked(installed: Path) -> None:
    assert "--json-time" in voirkit(installed, "--help").stdout
    refused = voirkit(installed, "--json-time=much", "main.py")
    assert refused.returncode == 2
    assert "'much' is no time" in refused.stderr


def test_its_part_is_in_the_summary_of_a_run(installed: Path) -> None:
    summary: dict[str, Any] = json.loads(voirkit(installed, "report", "run", "--json").stdout)
    assert summary["json"]["calls"] == 3
    assert 0.09 <= summary["json"]["total_s"] < 1
    assert summary["json"]["bytes"] == 3 * len('{"b": 2}')


def test_the_schema_of_summaries_describes_its_part(installed: Path) -> None:
    program = "from voirkit.runs.summary import summary_schema; print(summary_schema()['properties']['json']['properties']['calls'])"
    env = {**CLEAN, "PYTHONPATH": str(installed / "site")}
    shown = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    ).stdout
    assert shown == "{'description': 'How many.', 'type': 'integer'}\n"


@pytest.mark.parametrize(
    "words", [("report", "run"), ("report", "run", "--markdown"), ("report", "run", "--html=-")]
)
def test_its_section_is_in_every_report(installed: Path, words: tuple[str, ...]) -> None:
    shown = voirkit(installed, *words)
    assert shown.returncode == 0, shown.stderr
    for text in (
        "json.dumps",
        "calls",
        "written",
        "24 bytes",
        "Calls below the limit of --json-time are not counted.",
    ):
        assert text in shown.stdout, text


def test_two_runs_are_compared_by_its_figures(installed: Path) -> None:
    compared = voirkit(installed, "compare", "run", "run")
    assert "json.dumps: time" in compared.stdout
    assert "json.dumps: calls" in compared.stdout
    page = voirkit(installed, "compare", "run", "run", "--html", "compared.html")
    assert page.returncode == 0
    assert "json.dumps: written" in (installed / "compared.html").read_text()


def test_without_its_option_nothing_is_recorded(installed: Path) -> None:
    ended = voirkit(installed, "--run-dir", "without", "main.py")
    assert ended.returncode == 0
    assert json.loads(voirkit(installed, "report", "without", "--json").stdout)["json"] is None


def test_its_spans_are_in_a_timeline(installed: Path) -> None:
    assert (
        voirkit(installed, "export", "run", "--format", "chrome", "-o", "trace.json").returncode
        == 0
    )
    events = json.loads((installed / "trace.json").read_text())["traceEvents"]
    assert sum(event.get("cat") == "json" and event.get("name") == "dumps" for event in events) == 3
