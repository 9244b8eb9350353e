"""Where ``voirkit export`` writes to when that is no ordinary file: stdout, pipes, links, full disks, names that are no text."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import CLEAN, Place
from recorded import OF_OTHER_RUNS, files, record, record_with_manifest

from voirkit.export import formats
from voirkit.report.output import complete, remove_unfinished

pytestmark = pytest.mark.long

EXPORT = (sys.executable, "-m", "voirkit", "export")
MANY = "for i in range({}): span('a', 'b', NOW + i, NOW + i + 1, ('count', i), step=i % 97)"


@pytest.fixture
def run(place: Place) -> Path:
    return record_with_manifest(place.folder / "run")


def export(run: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "env": CLEAN,
        "timeout": 60,
        **options,
    }
    return subprocess.run([*EXPORT, "run", *words], cwd=run.parent, **options)


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: os.symlink("real.csv", path)], ids=["fifo", "link"]
)
def test_a_device_or_a_link_is_not_replaced(run: Path, place: Place, make: Any) -> None:
    place.write({"real.csv": "keep"})
    target = place.folder / "target.csv"
    make(str(target))
    before = os.lstat(target)
    ended = export(run, "--format", "csv", "-o", "target.csv", "--force")
    assert ended.returncode == 2
    assert b"left as it is" in ended.stderr
    assert os.lstat(target).st_mode == before.st_mode
    assert (place.folder / "real.csv").read_text() == "keep"


@pytest.mark.parametrize(
    "format", [name for name in formats() if name not in ("arrow", *OF_OTHER_RUNS)]
)
def test_to_stdout_goes_what_would_be_in_the_file(run: Path, format: str) -> None:
    export(run, "--format", format, "-o", f"x.{format}")
    before = files(run.parent)
    for name in ("-", "/dev/stdout"):
        ended = export(run, "--format", format, "-o", name)
        assert ended.returncode == 0
        assert ended.stdout == (run.parent / f"x.{format}").read_bytes()
    assert files(run.parent) == before, "and nowhere else"


def test_a_reader_that_has_enough_is_no_error(place: Place) -> None:
    record_with_manifest(place.folder / "run", MANY.format(5000))
    with subprocess.Popen(
        [*EXPORT, "run", "--format", "csv", "-o", "-"],
        cwd=place.folder,
        env=CLEAN,
        stdout=-1,
        stderr=-1,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(8) == b"start_ns"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("output", ["-", "x.csv"])
def test_a_stdout_that_takes_nothing_is_one_clear_error(run: Path, output: str) -> None:
    with open("/dev/full", "wb") as full:
        ended = export(run, "--format", "csv", "-o", output, stdout=full)
    assert (ended.returncode, ended.stderr) == (
        2,
        b"voirkit: stdout: it cannot be written: No space left on device.\n",
    )


def test_a_terminal_is_not_sent_what_is_no_text(run: Path) -> None:
    terminal, other = os.openpty()
    ended = export(run, "--format", "parquet", "-o", "-", stdout=other)
    os.close(terminal)
    os.close(other)
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        b"voirkit: stdout: parquet is not text, and this is a terminal.\n"
    )


@pytest.mark.parametrize("format", [name for name in formats() if name not in OF_OTHER_RUNS])
def test_a_full_disk_is_one_clear_error_and_leaves_nothing(place: Place, format: str) -> None:
    pytest.importorskip("pyarrow" if format == "arrow" else "duckdb")
    run = record_with_manifest(
        place.folder / "run",
        "import random\n" + MANY.format(4000).replace("i + 1", "random.getrandbits(40)"),
    )

    def limit() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    export(
        run, "--format", "csv", "-o", "-"
    )  # what is in segments is compacted, for which there is room
    before = files(place.folder)
    ended = export(run, "--format", format, "-o", f"new/x.{format}", preexec_fn=limit)
    assert ended.returncode == 2
    assert (
        ended.stderr.decode() == f"voirkit: new/x.{format}: it cannot be written: File too large.\n"
    )
    assert files(place.folder) == before


def test_no_room_for_temporary_files_is_one_clear_error(run: Path) -> None:
    ended = export(run, "--format", "csv", "-o", "x.csv", env={**CLEAN, "TMPDIR": "/proc/self"})
    if ended.returncode:  # python takes another folder, if there is one
        assert b"TMPDIR=FOLDER" in ended.stderr

    def limit() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    ended = export(run, "--format", "csv", "-o", "-", preexec_fn=limit)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert (
        b"temporary files cannot be written there: File too large.\n  Choose another folder"
        in ended.stderr
    )


@pytest.mark.parametrize("format", ["csv", "parquet", "chrome", "pfw"])
def test_names_that_are_no_text(run: Path, format: str) -> None:
    target = os.fsencode(run.parent) + b"/\xff/\xfe'\n." + format.encode()
    for encoding in ("utf-8:strict", "ascii:strict"):
        ended = export(
            run,
            "--format",
            format,
            "-o",
            os.fsdecode(target),
            "--force",
            env={**CLEAN, "PYTHONIOENCODING": encoding},
        )
        assert (ended.returncode, ended.stderr) == (0, b"")
        assert b"\\udcff" in ended.stdout
    assert os.listdir(os.path.dirname(target)) == [os.path.basename(target)]


def test_a_name_may_be_as_long_as_the_file_system_allows(run: Path) -> None:
    name = "n" * 251 + ".csv"
    assert export(run, "--format", "csv", "-o", name).stdout.decode() == f"{name}\n"
    ended = export(run, "--format", "csv", "-o", f"n{name}")
    assert (ended.returncode, ended.stderr.decode()) == (
        2,
        f"voirkit: n{name}: it cannot be written: File name too long.\n",
    )


def test_an_empty_name_is_one_clear_error(run: Path) -> None:
    ended = export(run, "--format", "csv", "-o", "")
    assert (ended.returncode, ended.stderr) == (2, b"voirkit: -o: the name of the file is empty.\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("format", ["chrome", "csv"])
def test_a_signal_ends_it_and_leaves_nothing(place: Place, format: str, number: int) -> None:
    record(place.folder / "run", MANY.format(50_000))
    out = place.folder / "out"
    out.mkdir()
    command = [*EXPORT, "run", "--format", format, "-o", f"out/x.{format}"]
    with subprocess.Popen(command, cwd=place.folder, env=CLEAN, stdout=-1, stderr=-1) as process:
        while not os.listdir(out) and process.poll() is None:
            pass
        process.send_signal(number)
        _, err = process.communicate(timeout=240)
    if process.returncode == 0:
        pytest.skip("it was faster")
    assert b"Traceback" not in err
    assert (process.returncode, os.listdir(out)) == (-number, [])


def test_what_a_signal_interrupts_as_a_file_is_begun_is_removed(tmp_path: Path) -> None:
    begun = complete(str(tmp_path / "x.csv"))
    begun.__enter__()  # and the signal comes before the block that would clear up
    assert len(os.listdir(tmp_path)) == 1
    remove_unfinished()
    assert os.listdir(tmp_path) == []


def test_a_run_in_a_folder_whose_name_is_no_text(place: Place) -> None:
    folder = Path(os.fsdecode(os.fsencode(place.folder) + b"/\xff"))
    place.write(main="from voirkit import ai\nwith ai.compute.forward:\n    pass\n")
    folder.mkdir()
    shutil.copy(place.folder / "main.py", folder)
    ended = Place(folder).python("-m", "voirkit", "--compact", "main.py")
    assert ended.code == 0
    assert "warning" not in ended.err
    assert "run directory" in ended.err
    assert any(name.endswith(".parquet") for name in files(folder / "voirkit-runs/latest/"))
    assert (
        "forward"
        in Place(folder).python("-m", "voirkit", "export", "--format", "csv", "-o", "-").out
    )


def test_ranks_that_are_missing_are_told(place: Place) -> None:
    for rank in (0, 3):
        record(place.folder / "run", RANK=str(rank))
    (place.folder / "run/run.json").write_text(
        '{"schema": 1, "voirkit": "0", "ended": "normal", "world_size": 4}'
    )
    ended = export(place.folder / "run", "--format", "csv")
    assert (ended.returncode, ended.stderr) == (
        0,
        b"voirkit: rank 1-2 of 4 has recorded nothing.\n",
    )
    assert (
        export(place.folder / "run", "--format", "csv", "--ranks", "0,3", "-o", "x.csv").stderr
        == b""
    )
