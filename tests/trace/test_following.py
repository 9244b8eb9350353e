"""A recording is read as it grows: each record once, and of a long one the newest first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from voirkit.trace import following, layout, recorder
from voirkit.trace.following import Following, Fresh


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A run directory that this process records into."""
    recorder.begin(str(tmp_path / "run"))
    yield tmp_path / "run"
    recorder.end()


def starts(found: list[Fresh], is_past: bool = False) -> list[int]:
    return [
        start
        for fresh in found
        if fresh.is_past is is_past
        for start in fresh.records["start_ns"].tolist()
    ]


def write(first: int, n: int, name: str = "x") -> None:
    number = recorder.name("a", name)
    for at in range(first, first + n):
        recorder.span(number, at, at + 1, recorder.arguments({"at": at % 3}))


def test_each_record_is_read_once(run: Path) -> None:
    followed = Following(str(run))
    assert followed.look() == []
    write(0, 5)
    assert starts(followed.look()) == [0, 1, 2, 3, 4]
    assert followed.look() == []
    write(5, 20_000)
    assert starts(followed.look()) == list(range(5, 20_005))
    recorder.end()
    assert followed.look() == []


def test_names_and_arguments_that_come_later_are_known(run: Path) -> None:
    followed = Following(str(run))
    write(0, 1)
    followed.look()
    write(1, 1, name="y")
    (fresh,) = followed.look()
    (record,) = fresh.records.tolist()
    assert fresh.followed.tables.names[record[4]].name == "y"
    assert fresh.followed.tables.arguments[record[3]] == b'{"at":1}'


def test_only_the_arguments_that_are_wanted_are_kept(run: Path) -> None:
    followed = Following(str(run), wanted=lambda text: text == b'{"at":1}')
    write(0, 3)
    (fresh,) = followed.look()
    assert set(fresh.followed.tables.arguments.values()) == {b'{"at":1}'}


def test_of_a_long_recording_the_newest_records_come_first_and_the_others_once_later(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "LARGEST_WINDOW", 1 << 16)
    monkeypatch.setattr(following, "CHUNK", 1 << 12)
    write(0, 30_000)
    recorder.end()
    followed = Following(str(run), at_once=1000)
    assert starts(followed.look()) == list(range(29_000 + 0, 30_000))
    assert followed.is_behind
    older: list[int] = []
    while followed.is_behind:
        found = followed.look()
        assert starts(found) == []
        older += starts(found, is_past=True)
    assert sorted(older) == list(range(29_000))
    assert {tid for fresh in followed.look() for tid in fresh.tid.tolist()} == set()


def test_a_segment_that_is_removed_is_not_missed(run: Path) -> None:
    followed = Following(str(run))
    write(0, 5)
    followed.look()
    recorder.end()
    for path in (run / "trace").glob("*.seg"):
        path.unlink()
    assert followed.look() == []


def test_a_torn_record_is_read_when_it_is_whole(run: Path) -> None:
    write(0, 2)
    recorder.end()
    (path,) = (run / "trace").glob("*.seg")
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    followed = Following(str(run))
    assert starts(followed.look()) == [0]
    path.write_bytes(whole)
    assert starts(followed.look()) == [1]
