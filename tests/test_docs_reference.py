"""What the reference pages say is so: examples give what they show, and lists have all that the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Place, module_at
from recorded import record

import voirkit
from voirkit.commands.command_lines import command_lines
from voirkit.runs.parquet import COLUMNS

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def blocks(name: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page(name), re.DOTALL | re.MULTILINE)


def generating() -> Any:
    return module_at(ROOT / "docs" / "generate.py")


def test_every_python_block_of_the_reference_is_run_by_a_test_below() -> None:
    counts = {
        path.name: len(blocks(str(path.relative_to(REFERENCE)))) for path in REFERENCE.rglob("*.md")
    }
    assert {name: n for name, n in counts.items() if n} == {
        "given.md": 1,
        "selectors.md": 2,
        "sql.md": 6,
        "summary.md": 1,
        "trace-format.md": 1,
    }


# selectors

EXAMPLES = re.findall(r"^\| `([^`]+)` \| (`.*?`) \|", page("selectors.md"), re.MULTILINE)
VOIRFILE = """
EXAMPLES = {examples!r}
SHOWN = {{}}

def shown(event):
    return "`" + ", ".join(f"{{key}}={{value['step'] if key == '$wrap' else value}}" for key, value in event.items()) + "`"

def instrument_examples(ov):
    for selector in EXAMPLES:
        SHOWN[selector] = []
        ov.probe(selector).subscribe(lambda event, events=SHOWN[selector]: events.append(shown(event)))
    yield ov.phases.finalize
    for selector, events in SHOWN.items():
        print(selector, "|", " · ".join(events))
"""


def test_each_selector_of_the_page_gives_the_events_that_it_shows(place: Place) -> None:
    assert len(EXAMPLES) > 25
    script = blocks("selectors.md")[0]
    place.write(
        main=script, voirfile=VOIRFILE.format(examples=[selector for selector, _ in EXAMPLES])
    )
    ended = place.voirkit("--quiet", "main.py")
    assert ended.code == 0, ended.err
    assert [tuple(line.split(" | ")) for line in ended.out.splitlines()] == EXAMPLES


def test_what_can_be_probed_is_listed_as_the_page_shows(place: Place) -> None:
    script, console = blocks("selectors.md")[0], blocks("selectors.md", "console")[0]
    command, _, output = console.partition("\n")
    assert command == "$ voirkit probes main.py train"
    assert (
        place.write(main=script).python("-m", "voirkit", "probes", "main.py", "train").out == output
    )


def test_probes_in_python_give_what_the_page_asserts(place: Place) -> None:
    ended = place.write(script=blocks("selectors.md")[1]).python("script.py")
    assert ended.code == 0, ended.err


# given names


def test_the_voirfile_of_the_given_names_logs_means(place: Place) -> None:
    script = "from giving import give\nfor i in range(20):\n    give(loss=i)\n"
    ended = place.write(main=script, voirfile=blocks("given.md")[0]).voirkit("main.py")
    assert ended.code == 0, ended.err
    assert [entry["mean_loss"] for entry in ended.log if "mean_loss" in entry] == [4.5, 14.5]


# the trace and its views

STEPS = """
t = NOW
span("dataloader", "iter", t, t + 5 * US, kind="phase", dataset="Images", workers=2)
for step in range(8):
    span("dataloader", "fetch", t, t + 20 * US, ("items", 4), kind="phase", loader=0)
    span("compute", "forward", t + 20 * US, t + 50 * US, kind="phase")
    span("compute", "backward", t + 50 * US, t + 90 * US, kind="phase")
    span("compute", "step", t + 90 * US, t + 95 * US, kind="phase")
    t += 100 * US
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the run ``run`` in it."""
    record(tmp_path / "run", STEPS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_program_that_reads_segments_prints_the_spans(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(blocks("trace-format.md")[0], {})
    durations = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert durations == ["5000", *["20000", "30000", "40000", "5000"] * 8]


def test_each_query_of_the_page_has_an_answer(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = blocks("sql.md")
    assert len(queries) == 6
    for query in queries:
        exec(query, {})
        out = capsys.readouterr().out
        assert out.strip()
        assert "0 rows" not in out


def test_the_columns_of_compacted_records_are_those_of_the_page() -> None:
    assert re.findall(r"^\| `(\w+)` \| ([A-Z]+) \|", page("trace-format.md"), re.MULTILINE) == list(
        COLUMNS.items()
    )


def test_the_schema_can_be_asked_as_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    exec(blocks("summary.md")[0], {})
    assert capsys.readouterr().out == "Number of steps; of several ranks those of one.\n"


# environment variables

_NAME = re.compile(r"[A-Z][A-Z0-9]+(?:_[A-Za-z0-9]+)+")
_READ = re.compile(
    r"""(?:environ(?:b|ment)?(?:\.get|\.pop|\.setdefault)?[\[(]|getenv\(|putenv\(|unsetenv\()["'](\w+)["']|["'](\w+)["'] (?:not )?in os\.environ"""
)
# Words of modules that read the environment which are none of its variables: constants of DFTracer, of the system, of drivers.
_OTHERS = {
    "CUDA_DRIVER", "DRIVER_VERSION", "NVML_VERSION", "SC_CLK_TCK", "DFTRACER_ENABLE_ENV", "DFTRACER_INIT_ENV", "DFTRACER_INIT_PRELOAD",
    "DFTRACER_LOG_LEVEL_ENV", "DFTRACER_TIME_METRIC_ENV",
}  # fmt: skip
_ELSEWHERE = {
    "LINES",
    "TMPDIR",
    "COLUMNS",
    "PAGER",
}  # read by libraries alone, in a loop, or set in a dictionary


def variables_in_code() -> set[str]:
    found = set()
    for path in [*(ROOT / "voirkit").rglob("*.py"), *(ROOT / "instruments").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        if re.search(r"environ|getenv|putenv|unsetenv", text):
            nodes = list(ast.walk(ast.parse(text)))
            attributes = {
                node.args[1]
                for node in nodes
                if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr")
            }
            strings = {
                node.value
                for node in nodes
                if isinstance(node, ast.Constant) and node not in attributes
            }
            names = {
                value for value in strings if isinstance(value, str) and _NAME.fullmatch(value)
            }
            if path.name == "dftracer.py":  # most of its constants are DFTracer's words
                names = {name for name in names if name.startswith(("DFTRACER_", "VOIRKIT_"))}
            found |= names
        found |= {name for pair in _READ.findall(text) for name in pair if name.isupper()}
    return found - _OTHERS


def test_every_environment_variable_of_the_code_is_on_the_page_and_no_other() -> None:
    listed = {
        name
        for row in re.findall(r"^\| (`.*?) \|", page("environment.md"), re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    listed |= set(re.findall(r"old name `(\w+)`", page("environment.md")))
    assert sorted(variables_in_code() - listed) == [], (
        "describe it in docs/reference/environment.md"
    )
    assert sorted(listed - variables_in_code() - _ELSEWHERE) == [], (
        "nothing reads or sets it any more"
    )


# the Python interface and the command line


def documented() -> Iterator[str]:
    for path in (REFERENCE / "api").glob("*.md"):
        text = path.read_text(encoding="utf-8")
        yield from re.findall(r"^\.\. auto\w+:: ([\w.]+)", text, re.MULTILINE)
        yield from re.findall(r"`(voirkit\.\w+)`", text)


def test_every_public_name_is_on_a_page_of_the_python_interface() -> None:
    known = set(documented())
    assert [name for name in voirkit.__all__ if f"voirkit.{name}" not in known] == []


def test_the_page_of_the_command_line_has_every_option_of_every_command() -> None:
    text = generating().command_line()
    options = [
        option for command in command_lines(with_plugins=False) for option in command.options()
    ]
    assert len(options) > 60
    assert [option.names for option in options if f"{option.names[0]}" not in text] == []
    assert text.count("````{option} ") == len(options)


def test_the_page_of_the_summary_has_a_row_for_each_figure() -> None:
    text = generating().summary()
    for row in (
        "| `time_s` | [spread](#summary-shape-spread) | s |",
        "| `operations.<operation>.mean_s` | number | s |",
    ):
        assert row in text
    assert "<!--" not in generating().generated(page("summary.md"))


# links


def test_links_from_the_readme_lead_to_files() -> None:
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        links = re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text(encoding="utf-8"))
        assert links
        assert [link for link in links if not (ROOT / link).exists()] == []
