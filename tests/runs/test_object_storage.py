"""Runs on object storage, ``s3://bucket/run``: fetched from a real server of S3 on the loopback, and read as any other."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from analysis.test_many_ranks import generate
from conftest import CLEAN

from voirkit.analysis import overhead
from voirkit.cli import main
from voirkit.errors import RunDirectoryError
from voirkit.runs.directory import create, fetch
from voirkit.runs.opened import open_run

pytestmark = pytest.mark.long
ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    yield "http://{}:{}".format(*running.get_host_and_port())
    running.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty bucket, which processes and commands started here find; no file of the user's is looked at."""
    import s3fs

    for name, value in {
        **ACCOUNT,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_CONFIG_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    storage = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
    if storage.exists("bucket"):
        storage.rm("bucket", recursive=True)
    storage.mkdir("bucket")
    return storage


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(str(tmp_path_factory.mktemp("recorded") / "run"), 2, 20)[0]


@pytest.fixture
def run(bucket: Any, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that is in the bucket too, as ``s3://bucket/runs/run``."""
    monkeypatch.setattr(overhead, "_call_s", lambda: 1e-7)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    bucket.put(f"{recorded}/", "bucket/runs/run/", recursive=True)
    there: Path = shutil.copytree(recorded, tmp_path / "run")
    return there


URL = "s3://bucket/runs/run"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command says in which something is wrong."""
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.removeprefix("voirkit: ")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def keys(bucket: Any) -> dict[str, str]:
    return {name: one["ETag"] for name, one in bucket.find("bucket", detail=True).items()}


def test_a_report_is_that_of_the_directory_and_nothing_is_written_there(
    bucket: Any, run: Path, capsys: Any, tmp_path: Path
) -> None:
    before = keys(bucket)
    assert printed(capsys, "report", "--json", URL) == printed(capsys, "report", "--json", str(run))
    assert f"run directory  {URL}\n" in printed(capsys, "report", URL)
    assert keys(bucket) == before
    assert list((tmp_path / "temporary").iterdir()) == []


def test_runs_are_compared_and_exported_from_there(
    bucket: Any, run: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(run.parent)
    assert f'"{URL}"' in printed(capsys, "compare", "--json", URL, "run")
    printed(capsys, "export", URL, "--format", "chrome")
    printed(capsys, "export", "run", "--format", "chrome", "-o", "other.json")
    assert (run.parent / "run.json").read_text() == (run.parent / "other.json").read_text()


def test_only_what_voirkit_writes_is_fetched(bucket: Any, run: Path, tmp_path: Path) -> None:
    bucket.pipe("bucket/runs/run/checkpoints/step=1.pt", b"large")
    with open_run(URL) as opened:
        assert set(os.listdir(opened.path)) == set(os.listdir(run))
        assert (opened.name, opened.where) == ("run", URL)
    assert not os.path.exists(opened.path)


def test_what_is_damaged_there_is_told_with_its_address(
    bucket: Any, run: Path, capsys: Any
) -> None:
    bucket.rm("bucket/runs/run/run.json")
    bucket.pipe("bucket/runs/run/summary.json", b"{")
    assert main(["report", URL]) == 0
    missing, damaged = capsys.readouterr().err.splitlines()
    assert missing.startswith(f"voirkit: {URL}/run.json is missing")
    assert damaged == f"voirkit: {URL}/summary.json cannot be read; it is damaged."


def test_a_key_cannot_lead_out_of_the_folder_that_is_copied_into(tmp_path: Path) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for name in ("run.json", "trace/a"):
        memory.pipe(f"/planted/run/{name}", b"{}")
    memory.store["/planted/run/trace/../../../out"] = memory.store["/planted/run/run.json"]
    fetch("memory://planted/run", str(tmp_path / "a" / "b"))
    assert [
        str(one.relative_to(tmp_path)) for one in sorted(tmp_path.rglob("*")) if one.is_file()
    ] == [
        "a/b/run/run.json",
        "a/b/run/trace/a",
    ]


@pytest.mark.parametrize("url", ["s3://bucket/runs/other", "s3://nobucket/run"])
def test_what_is_not_there_is_one_line(url: str, run: Path, capsys: Any) -> None:
    assert refused(capsys, "report", url) == f"{url}: there is no such run.\n"


def test_a_folder_of_runs_is_told_with_them(run: Path, capsys: Any) -> None:
    told = refused(capsys, "report", "s3://bucket/runs")
    assert (
        told
        == f"s3://bucket/runs: this is no run directory: it has no run.json.\n  It holds runs: {URL}\n"
    )


def test_a_run_that_vanishes_meanwhile_is_one_line(
    bucket: Any, run: Path, capsys: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    import s3fs

    def vanishing(self: Any, *words: Any, **more: Any) -> Any:
        found = plain(self, *words, **more)
        bucket.rm("bucket/runs/run", recursive=True)
        return found

    plain = s3fs.S3FileSystem.find
    monkeypatch.setattr(s3fs.S3FileSystem, "find", vanishing)
    assert refused(capsys, "report", URL) == f"{URL}: it was removed while it was read.\n"
    assert list((tmp_path / "temporary").iterdir()) == []


def test_without_credentials_or_a_server_it_is_said(
    run: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert (
        refused(capsys, "report", URL)
        == f"{URL}: it cannot be read (NoCredentialsError: Unable to locate credentials).\n"
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert refused(capsys, "export", "--format", "chrome", URL).startswith(
        f"{URL}: it cannot be read (EndpointConnectionError: Could not "
    )


def test_without_the_extra_it_is_said_what_to_install(
    run: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    assert (
        refused(capsys, "report", URL)
        == f"{URL}: what reads runs there is not installed.\n  pip install 'voirkit[s3]'\n"
    )


def test_what_would_write_there_or_watch_is_refused(bucket: Any, run: Path, capsys: Any) -> None:
    before = keys(bucket)
    assert refused(capsys, "report", "--html", URL).startswith(f"{URL}: nothing is written there.")
    assert refused(capsys, "watch", URL).startswith(
        f"{URL}: a run there is read as a whole, and not watched."
    )
    with pytest.raises(
        RunDirectoryError, match=f"--run-dir {URL}: a run is recorded into a folder"
    ):
        create(URL, "main.py", force=False)
    assert keys(bucket) == before


def test_a_process_of_its_own_says_no_more_than_the_report(run: Path) -> None:
    command = [sys.executable, "-m", "voirkit", "report", "--markdown", URL]
    env = {
        **CLEAN,
        **{name: value for name, value in os.environ.items() if name.startswith("AWS_")},
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert URL in done.stdout


def test_a_run_in_a_folder_loads_nothing_of_it(recorded: Path) -> None:
    program = "import sys; from voirkit.cli import main; main(['report', sys.argv[1]]); sys.exit('fsspec' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program, str(recorded)], env=CLEAN, capture_output=True, timeout=120
    )
    assert done.returncode == 0


def test_an_address_that_nothing_reads_is_one_line() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(
        RunDirectoryError, match=r"it cannot be read \(ValueError: Protocol not known: banana"
    ):
        open_run("banana://x/y")
