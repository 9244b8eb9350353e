"""Run directories that somebody has made to harm who reads them: nothing in them is executed, nor leads to files elsewhere."""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded import files, record_with_manifest, rows

import voirkit
import voirkit_instruments
from voirkit.cli import main
from voirkit.errors import RunDirectoryError, visible
from voirkit.runs import compaction, directory
from voirkit.runs.opened import open_run
from voirkit.runs.parquet import connect
from voirkit.runs.trace_files import journal_path, read_journal
from voirkit.trace.reader import Tables

BODY = "for i in range(10): span('a', 'b', NOW + i, NOW + i + 5, step=i)"


@pytest.fixture(scope="module")
def recorded_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_with_manifest(tmp_path_factory.mktemp("recorded") / "run", BODY)


@pytest.fixture
def run(recorded_once: Path, tmp_path: Path) -> Path:
    return shutil.copytree(recorded_once, tmp_path / "run")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder of the reader's own; it stays as it is."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "precious.json").write_text("precious")
    yield folder
    assert [path.name for path in folder.iterdir()] == ["precious.json"]
    assert (folder / "precious.json").read_text() == "precious"


@pytest.mark.parametrize("part", ["trace", "steps", "stream", "collectives", "syscalls"])
def test_a_folder_that_is_a_link_out_of_the_run_is_refused(
    run: Path, elsewhere: Path, part: str
) -> None:
    if (run / part).exists():
        (run / part).rename(run.parent / f"was-{part}")
    (run / part).symlink_to(elsewhere)
    with pytest.raises(
        RunDirectoryError, match=f"{part}: this link leads out of the run directory"
    ) as refused:
        open_run(run)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "name", ["summary.json", "summary.json.tmp", "trace/settle-r0.json.tmp", "report.html"]
)
def test_a_file_that_is_a_link_out_of_the_run_is_refused(
    run: Path, elsewhere: Path, name: str
) -> None:
    (run / name).symlink_to(elsewhere / "precious.json")
    with pytest.raises(RunDirectoryError, match="leads out"):
        open_run(run)


def test_a_link_within_the_run_may_stay(run: Path) -> None:
    (run / "summary.json").write_text("{}")
    (run / "stream").mkdir(exist_ok=True)
    (run / "stream" / "summary.jsonl").symlink_to(run / "summary.json")
    with open_run(run) as opened:
        assert len(rows(opened)) == 10


def test_a_pipe_in_a_run_is_refused_and_not_waited_for(run: Path) -> None:
    os.mkfifo(run / "trace" / "node-r0-1.names")
    with pytest.raises(RunDirectoryError, match="holds files and folders, and this is neither"):
        open_run(run)


def test_what_is_not_voirkits_in_the_folder_is_not_asked_about(run: Path, elsewhere: Path) -> None:
    (run / "checkpoints").symlink_to(elsewhere)
    open_run(run).close()


@pytest.mark.parametrize("part", ["trace", "stream/deeper"])
def test_force_removes_nothing_through_a_link(run: Path, elsewhere: Path, part: str) -> None:
    if part == "trace":
        shutil.rmtree(run / "trace")
    (run / part).parent.mkdir(exist_ok=True)
    (run / part).symlink_to(elsewhere)
    with pytest.raises(RunDirectoryError, match="leads out"):
        directory.create(str(run), "main.py", force=True)
    directory.clear(str(run))  # where a link came after the look


def test_a_rank_does_not_record_through_a_link(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chosen").mkdir()
    (tmp_path / "chosen" / "trace").symlink_to(elsewhere)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RunDirectoryError, match="leads out"):
        directory.create(str(tmp_path / "chosen"), "main.py", force=False)


@pytest.mark.parametrize(
    "journal",
    [
        {"move": [], "remove": ["../../elsewhere/precious.json"]},
        {"move": [], "remove": ["{0}/precious.json"]},
        {"move": [["settle-r0.x.tmp/a.parquet", "../../elsewhere/new.parquet"]], "remove": []},
        {"move": [["../../elsewhere/precious.json", "kind=a/rank=0/x.parquet"]], "remove": []},
        {
            "move": [["settle-r0.x.tmp/a.parquet", "kind=../../../elsewhere/rank=0/x.parquet"]],
            "remove": [],
        },
        {"move": [["settle-r0.x.tmp/../../a.parquet", "kind=a/rank=0/x.parquet"]], "remove": []},
    ],
)
def test_a_journal_moves_and_removes_nothing_elsewhere(
    run: Path, elsewhere: Path, journal: Any
) -> None:
    written = journal_path(str(run / "trace"), 0)
    Path(written).write_text(json.dumps(journal).replace("{0}", str(elsewhere)))
    draft = run / "trace" / "settle-r0.x.tmp"
    draft.mkdir()
    (draft / "a.parquet").write_text("x")
    assert read_journal(written) is None
    with open_run(run) as opened:
        assert len(rows(opened)) == 10


@pytest.mark.parametrize(
    "kind", ["../../../elsewhere/x", "/tmp/x", "a/b", "..", "", "a\0b", "x" * 100]
)
def test_a_kind_that_is_no_name_of_a_file_is_no_kind(run: Path, elsewhere: Path, kind: str) -> None:
    (names,) = [run / name for name in files(run) if name.endswith(".names")]
    names.write_text(names.read_text().replace('"kind":"span"', f'"kind":{json.dumps(kind)}'))
    compaction.compact(str(run))
    with open_run(run) as opened:
        assert len(rows(opened)) == (10 if kind == ".." else 0)  # `kind=..` is a name like others


def test_a_document_is_not_written_through_a_link(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "counts.json.tmp").symlink_to(elsewhere / "precious.json")
    with pytest.raises(OSError, match="symbolic link"):
        directory.write_json(str(tmp_path / "counts.json"), {"a": 1})


def test_a_record_names_files_of_its_own_folder_alone(tmp_path: Path) -> None:
    for name in ("/etc/passwd", "../../etc/passwd", "passwd"):
        assert directory.file_beside(str(tmp_path / "flame" / "host-r0-1"), name) == str(
            tmp_path / "flame" / "passwd"
        )


def test_a_document_larger_than_any_of_voirkits_is_not_read(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "summary.json").write_text(json.dumps({"voirkit": "x" * 2000}))
    monkeypatch.setattr(directory, "_LARGEST", 1000)
    assert directory.read_summary(str(run)) is None


def test_a_segment_of_any_size_that_holds_nothing_is_read_at_once(run: Path) -> None:
    (segment,) = [run / name for name in files(run) if name.endswith(".seg")]
    os.truncate(segment, 1 << 42)
    with open_run(run) as opened:
        assert len(rows(opened)) == 10


@pytest.mark.parametrize(
    "line",
    [
        b'{"n":4294967295,"kind":"span","category":"a","name":"b","value":null}', b'{"n":-1,"kind":"span","category":"a","name":"b","value":null}',
        b'{"a":4294967295,"arguments":{}}', b'{"a":' + b"9" * 5000 + b',"arguments":{}}', b'{"t":[],"thread":"x"}',
        b'{"n":1,"kind":"span","category":"a","name":"b","value":[]}', b"[" * 100_000, b'{"a":1,"arguments":\xff}', b'{"a":1,"arguments":[]}',
    ],
)  # fmt: skip
def test_a_line_that_no_recorder_writes_costs_nothing_but_itself(run: Path, line: bytes) -> None:
    (names,) = [run / name for name in files(run) if name.endswith(".names")]
    with names.open("ab") as file:
        file.write(line + b"\n")
    with open_run(run) as opened:
        assert len(rows(opened)) == 10


def test_numbers_of_a_process_that_no_table_holds_are_not_taken(run: Path) -> None:
    (names,) = [run / name for name in files(run) if name.endswith(".names")]
    text = names.read_text()
    pid = Tables(str(names)).header["pid"]
    names.write_text(text.replace(f'"pid":{pid}', f'"pid":{2**70}', 1))
    with open_run(run) as opened:
        assert {row[7] for row in rows(opened)} == {pid}


def test_duckdb_fetches_no_code(tmp_path: Path) -> None:
    settings = dict(
        connect(str(tmp_path / "spill"))
        .execute("SELECT name, value FROM duckdb_settings() WHERE name LIKE '%extensions'")
        .fetchall()
    )
    assert (
        settings["autoinstall_known_extensions"] == settings["autoload_known_extensions"] == "false"
    )
    assert settings["allow_community_extensions"] == "false"


def test_no_reader_unpickles_or_evaluates() -> None:
    """In the source of all that runs where a run is read: no import of what executes data, and no call of it."""
    folders = [
        Path(voirkit.__file__).parent / part
        for part in ("analysis", "commands", "export", "live", "report", "runs", "trace")
    ]
    modules = [path for folder in folders for path in folder.rglob("*.py")]
    instruments = Path(voirkit_instruments.__file__).parent
    parts = ("analyse", "show", "export", "command", "difference")
    modules += [path for path in instruments.rglob("*.py") if path.name.startswith(parts)]
    assert len(modules) > 60
    found = {
        (path.name, word) for path in modules for word in executed(ast.parse(path.read_text()))
    }
    assert found == {
        ("analyse_results.py", "torch.load")
    }  # of what the script itself has just saved, and with weights_only


def executed(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
            yield from (
                name
                for name in names
                if name.partition(".")[0]
                in ("pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib")
            )
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in (
                "eval",
                "exec",
                "compile",
                "os.system",
                "os.popen",
                "torch.load",
                "np.load",
                "numpy.load",
                "yaml.load",
            ):
                yield called
            if any(word.arg in ("allow_pickle", "shell") for word in node.keywords):
                yield f"{called} with {[word.arg for word in node.keywords]}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]52;c;eA==\x07", "\\x1b]52;c;eA==\\x07"), ("\x9b2J", "\\x9b2J"), ("a\u202eb", "a\\u202eb"), ("a\rb\nc\td", "a\\rb\\nc d"),
        ("größer 中文 \\x1b", "größer 中文 \\x1b"),
    ],
)  # fmt: skip
def test_what_a_terminal_would_obey_is_written_out(text: str, shown: str) -> None:
    assert visible(text, in_line=True) == shown


def test_an_error_about_a_hostile_name_is_harmless(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "\x1b]0;owned\x07"
    folder.mkdir()
    assert main(["report", str(folder)]) == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "\\x1b]0;owned\\x07" in err


@pytest.mark.parametrize(
    "summary",
    [
        {"steps": {"n": 1}, "alerts": "x"},
        {"steps": {"n": 1}, "rates": {"a": 1}},
        {"steps": {"n": 1}, "dropped": 1.5},
        {"steps": {"n": 1}, "command": [1]},
    ],
)
def test_watching_a_run_whose_summary_is_damaged_ends_with_an_error(
    run: Path, summary: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "run.json").write_text(json.dumps({"schema": 1, "voirkit": "0.1.0", "ended": "normal"}))
    (run / "summary.json").write_text(json.dumps(summary))
    assert main(["watch", "--once", str(run)]) == 2
    assert "it is damaged, or of another version of voirkit" in capsys.readouterr().err


def test_numbers_that_json_lacks_and_documents_without_an_end_are_not_read(run: Path) -> None:
    (run / "summary.json").write_text('{"loss": NaN, "rate": 1e999, "n": 1}')
    assert directory.read_summary(str(run)) == {"loss": None, "rate": None, "n": 1}
    (run / "summary.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    assert directory.read_summary(str(run)) is None


def test_a_log_of_strace_whose_names_a_terminal_obeys_is_shown_harmless(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    lines = [
        f'7 1700000000.{i:06d} openat(AT_FDCWD, "/\x1b]0;owned\x07\x9b2J", O_RDONLY) = 3 <0.000012>\n'
        for i in range(20)
    ]
    log.write_text(
        "".join(lines) + "7 1700000001.0 \x1b[2J is no line of strace\n", encoding="latin-1"
    )
    assert main(["syscalls", "--over-time", str(log)]) == 0
    said = capsys.readouterr()
    assert "openat" in said.out
    assert "\x1b" not in said.out + said.err
    assert "\x9b" not in said.out + said.err
