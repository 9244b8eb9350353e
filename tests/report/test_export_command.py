"""``voirkit export``: what it writes where, what it never overwrites, and what it says when something is wrong."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Ended, Place
from recorded import OF_OTHER_RUNS, files, record_with_manifest

from voirkit.export import formats

pytestmark = pytest.mark.long

HOST = os.uname().nodename
BROKEN = "Give another name with -o, or overwrite it with --force."


def export(place: Place, *words: str, **options: Any) -> Ended:
    return place.run(sys.executable, "-m", "voirkit", "export", *words, **options)


@pytest.fixture
def run(place: Place) -> Path:
    """A run that ``voirkit-runs/latest`` points to."""
    path = record_with_manifest(place.folder / "voirkit-runs/20260101T000000Z-main")
    (place.folder / "voirkit-runs/latest").symlink_to(path.name)
    return path


def test_the_latest_run_goes_into_the_current_folder_under_its_name(
    run: Path, place: Place
) -> None:
    ended = export(place, "--format", "chrome")
    assert (ended.code, ended.err, ended.out) == (0, "", "20260101T000000Z-main.json\n")
    assert (
        json.loads((place.folder / "20260101T000000Z-main.json").read_text())["otherData"]["run"]
        == run.name
    )


def test_a_format_of_several_files_makes_a_folder(run: Path, place: Place) -> None:
    ended = export(place, str(run), "--format", "pfw")
    (name,) = files(place.folder / "20260101T000000Z-main-pfw")
    assert ended.out == f"20260101T000000Z-main-pfw/{name}\n"
    assert name.startswith(f"{HOST}-r0-")
    assert name.endswith(".pfw.gz")


@pytest.mark.parametrize(
    ("format", "output", "written"),
    [("chrome", "x.json", "x.json"), ("chrome", "new/x.json.gz", "new/x.json.gz"), ("chrome", "there", "there/20260101T000000Z-main.json"),
     ("csv", "new/", "new/20260101T000000Z-main.csv"), ("pfw", "x.pfw", "x.pfw"), ("pfw", "x.pfw.gz", "x.pfw.gz")],
)  # fmt: skip
def test_output_is_a_file_or_a_folder(
    run: Path, place: Place, format: str, output: str, written: str
) -> None:
    (place.folder / "there").mkdir()
    ended = export(place, str(run), "--format", format, "-o", output)
    assert (ended.code, ended.err, ended.out) == (0, "", f"{written}\n")
    data = (place.folder / written).read_bytes()
    assert (gzip.decompress(data) if written.endswith(".gz") else data).strip()


@pytest.mark.parametrize(
    "format", [name for name in formats() if name not in ("arrow", *OF_OTHER_RUNS)]
)
def test_nothing_is_overwritten_unasked(run: Path, place: Place, format: str) -> None:
    words = (str(run), "--format", format, "-o", "out")
    assert export(place, *words).code == 0
    before = {name: (place.folder / name).stat().st_mtime_ns for name in files(place.folder)}
    ended = export(place, *words)
    assert ended.code == 2
    assert "it is there already." in ended.err
    assert BROKEN in ended.err
    assert {
        name: (place.folder / name).stat().st_mtime_ns for name in files(place.folder)
    } == before
    assert export(place, *words, "--force").code == 0
    assert files(place.folder) == set(before), "under the same names, and no file more"


def test_a_folder_made_for_what_can_not_be_written_goes_again(run: Path, place: Place) -> None:
    assert export(place, str(run), "--format", "traincheck", "-o", "new").code == 2
    assert not (place.folder / "new").exists()
    (place.folder / "mine").mkdir()
    assert export(place, str(run), "--format", "traincheck", "-o", "mine").code == 2
    assert (place.folder / "mine").exists()


def test_a_folder_with_another_trace_is_not_added_to(run: Path, place: Place) -> None:
    (place.folder / "out").mkdir()
    (place.folder / "out/other.pfw").write_text("[\n]\n")
    (place.folder / "out/notes.txt").write_text("mine")
    assert (
        "out/other.pfw: it is there already"
        in export(place, str(run), "--format", "pfw", "-o", "out").err
    )
    (place.folder / "out/other.pfw").unlink()
    assert export(place, str(run), "--format", "pfw", "-o", "out").code == 0
    assert (place.folder / "out/notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--format", "chrom"],
            "--format: 'chrom' is no format.\n  Did you mean 'chrome'?\n  Formats: chrome",
        ),
        (
            ["--format", "perfetto"],
            "--format: 'perfetto' is no format.\n  Perfetto opens the format 'chrome'.\n  Formats: ",
        ),
        ([], "no format is given.\n  voirkit export [RUN] --format chrome|"),
        (
            ["--format", "csv", "--steps", "x"],
            "--steps: 'x' is no range of steps.\n  Steps 10 to 19: --steps 10:20",
        ),
        (
            ["--format", "csv", "--steps", "50:60"],
            "--steps 50:60: this run has no such steps.\n  It has steps 0 to 2.",
        ),
        (
            ["--format", "csv", "--ranks", "x"],
            "--ranks: 'x' is no list of ranks.\n  Ranks 0, 2 and 3: --ranks 0,2-3",
        ),
        (
            ["--format", "csv", "--ranks", "3"],
            "--ranks: rank 3 has recorded nothing.\n  Ranks of this run: 0.",
        ),
        (
            ["--format", "csv", "--stepz", "1"],
            "unknown option '--stepz'.\n  Did you mean '--steps'?",
        ),
        (["--format", "csv", "another"], "'another' is one word too many."),
        (["--format", "csv", "-o", "file/x"], "file: this is a file, not a folder."),
        (["--format", "pfw", "-o", "file"], "file: this is a file, not a folder."),
        (["--format", "csv", "-o", "/proc/x.csv"], "/proc/x.csv: it cannot be written: "),
        (["--format", "csv", "-o", "/proc/new/x.csv"], "/proc/new: it cannot be written: "),
        (
            ["--format", "csv", "-o", "https://example.org/x"],
            "-o https://example.org/x: this is an address; exports are files.",
        ),
    ],
)
def test_a_wrong_command_is_one_clear_error(
    run: Path, place: Place, words: list[str], said: str
) -> None:
    (place.folder / "file").touch()
    ended = export(place, str(run), *words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"voirkit: {said}")
    assert not any(name.endswith((".tmp", ".csv", ".gz")) for name in files(place.folder))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", "voirkit: missing: there is no such folder."),
        ("voirkit-runs", "voirkit: voirkit-runs: this is no run directory: it has no run.json."),
    ],
)
def test_a_run_that_is_none_is_one_clear_error(
    run: Path, place: Place, name: str, said: str
) -> None:
    ended = export(place, name, "--format", "csv")
    assert ended.code == 2
    assert ended.err.startswith(said)


def test_without_any_run_it_says_how_to_make_one(place: Place) -> None:
    ended = export(place, "--format", "csv")
    assert ended.code == 2
    assert ended.err.startswith(
        "voirkit: voirkit-runs/latest: there is no run in this folder.\n  Name a run directory, or record one."
    )


def test_what_is_damaged_is_said_once_and_the_rest_written(run: Path, place: Place) -> None:
    (run / "run.json").write_text("{")
    ended = export(place, str(run), "--format", "csv", "-o", "x.csv")
    assert (ended.code, ended.out) == (0, "x.csv\n")
    assert ended.err == f"voirkit: {run}/run.json cannot be read; it is damaged.\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is missing"),
        ('{"schema": 999, "voirkit": "9"}', "has schema 999, this voirkit knows 1"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [("export", "--format", "csv", "-o", "x.csv"), ("report", "--json")],
    ids=lambda words: words[0],
)
def test_a_manifest_that_is_missing_or_newer_is_said_in_one_line(
    run: Path, place: Place, command: Any, text: Any, said: str
) -> None:
    (run / "run.json").unlink()
    if text is not None:
        (run / "run.json").write_text(text)
    ended = place.run(sys.executable, "-m", "voirkit", command[0], str(run), *command[1:])
    assert (ended.code, ended.err.count("\n")) == (0, 1), ended.err
    assert said in ended.err


def test_a_folder_of_another_program_is_none(place: Place) -> None:
    place.write({"game/run.json": '{"speed": 3}'})
    ended = export(place, "game", "--format", "csv")
    assert (ended.code, ended.err.partition("\n")[0]) == (
        2,
        "voirkit: game: this is no run directory: its run.json is not voirkit's.",
    )


def test_a_misspelt_subcommand_gets_a_hint(place: Place) -> None:
    ended = place.run(sys.executable, "-m", "voirkit", "exprot", "run")
    assert (ended.code, ended.err) == (
        2,
        "voirkit: 'exprot' is neither a script nor a subcommand.\n  Did you mean 'export' or 'report'?\n",
    )
    place.write(exprot="print('a script')")
    (place.folder / "exprot").write_text("print('a script without an ending')\n")
    assert place.voirkit("exprot").out == "a script without an ending\n"


def test_a_format_that_needs_a_package_names_it(run: Path, place: Place) -> None:
    place.write({"pyarrow/__init__.py": "raise ImportError"})
    ended = export(place, str(run), "--format", "arrow", env={"PYTHONPATH": str(place.folder)})
    assert ended.code == 2
    assert (
        ended.err
        == "voirkit: --format arrow: the format needs pyarrow.\n  Install it: pip install 'voirkit[export]'\n"
    )


def test_help_lists_the_formats(place: Place) -> None:
    ended = export(place, "--help")
    assert ended.code == 0
    assert all(f"\n  {name} " in ended.out for name in formats())


def test_a_script_called_export_is_run_by_its_path(place: Place) -> None:
    place.write({"export": "print('ran')\n"})
    assert place.voirkit("--quiet", "./export").out == "ran\n"


def test_the_python_of_the_documentation_runs(run: Path, place: Place) -> None:
    text = (Path(__file__).parents[2] / "docs/exports.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    ended = place.write(example=code).python("example.py")
    assert (ended.code, ended.err) == (0, "")
    assert "epoch.block" in ended.out
    assert "MainThread" in ended.out


def test_the_documentation_has_every_format() -> None:
    text = (Path(__file__).parents[2] / "docs/exports.md").read_text()
    assert [name for name in formats() if f"| `{name}` |" not in text] == []


def test_each_record_is_exported_once_also_of_a_script_that_executes_itself_anew(
    place: Place,
) -> None:
    place.write(
        main="""
        import os, sys
        from voirkit.ai import ai
        with ai.data.item: pass
        if len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, __file__, "again"])
        """
    )
    assert place.run(sys.executable, "main.py", env={"VOIRKIT_RUN_DIR": "run"}).code == 0
    assert export(place, "run", "--format", "csv", "-o", "-").out.count("item") == 2


def test_a_file_is_exported_where_stdout_is_closed(run: Path, place: Place) -> None:
    ended = place.run(
        "sh", "-c", f"{sys.executable} -m voirkit export --format csv -o made.csv >&-"
    )
    assert (ended.code, ended.err) == (0, "")
    assert (place.folder / "made.csv").exists()
