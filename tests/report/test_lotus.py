"""``--format lotus``, read back by a reader of its own, after the description of LotusTrace's logs, and held against their invariants."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import Place
from pipelined import Loader, record
from recorded import record as record_without_loader


class Line(NamedTuple):
    name: str
    start: int
    duration: int

    @property
    def end(self) -> int:
        return self.start + self.duration

    @property
    def batch(self) -> int:
        return int(self.name.rpartition("_")[2])


class Log:
    """A folder of LotusTrace: lines by process, and what its analyses make of them."""

    def __init__(self, folder: Path) -> None:
        self.workers: dict[int, list[Line]] = {}
        self.main: list[Line] = []
        for path in sorted(folder.iterdir()):
            prefix, who, pid = (
                path.name.partition("_log_")[0],
                path.name.split("_")[-3],
                int(path.name.rpartition("_")[2]),
            )
            assert prefix == "lotustrace"
            with path.open(newline="") as file:
                lines = [
                    Line(name, int(start), int(duration))
                    for name, start, duration in csv.reader(file)
                ]
            if who == "worker":
                self.workers[pid] = lines
            else:
                assert not self.main, "its scripts read one file of a main process"
                self.main = lines

    def batches(self, kind: str) -> dict[int, Line]:
        found = [
            line
            for lines in (*self.workers.values(), self.main)
            for line in lines
            if line.name.startswith(f"SBatch{kind}_")
        ]
        assert len({line.batch for line in found}) == len(found), "each batch once"
        return {line.batch: line for line in found}

    def made(self) -> Iterator[tuple[Line, list[Line]]]:
        """Each batch with the lines before it in the file, which are those of its samples."""
        for lines in self.workers.values():
            own: list[Line] = []
            for line in lines:
                if line.name.startswith("SBatchPreprocessed"):
                    yield line, own
                    own = []
                else:
                    own.append(line)
            assert own == []


def export(place: Place, run: Path, *words: str, code: int = 0) -> str:
    ended = place.python(
        "-m", "voirkit", "export", str(run), "--format", "lotus", "-o", "logs", *words
    )
    assert ended.code == code, ended.err
    return ended.out if code == 0 else ended.err


OPERATIONS = (("Loader", 2.0), ("RandomCrop", 6.0), ("ToTensor", 1.0))


def test_its_logs_hold_what_was_recorded(place: Place) -> None:
    loader = Loader(operations=OPERATIONS, epochs=2)
    written = export(place, record(place.folder / "run", loader)).split()
    assert [Path(path).parent.name for path in written] == ["b4_gpu1"] * 3
    log = Log(place.folder / "logs/b4_gpu1")
    counts = Counter(
        line.name.partition("_")[0] for lines in log.workers.values() for line in lines
    )
    assert counts == {
        "SLoader": 48, "SRandomCrop": 48, "SToTensor": 48, "STransform": 48, "SCollation": 12, "SBatchPreprocessed": 12,
    }  # fmt: skip
    assert Counter(line.name.partition("_")[0] for line in log.main) == {
        "SBatchWait": 12,
        "SBatchConsumed": 12,
        "SBatchQueued": 12,
    }
    assert sorted(log.batches("Consumed")) == list(range(12)), "the second epoch's numbers go on"


def test_times_are_as_its_invariants_want_them(place: Place) -> None:
    export(
        place, record(place.folder / "run", Loader(operations=OPERATIONS, inner=(("Inner", 0.5),)))
    )
    log = Log(place.folder / "logs/b4_gpu1")
    for batch, lines in log.made():
        by_name = defaultdict(list)
        for line in lines:
            by_name[line.name].append(line)
            assert batch.start <= line.start <= line.end <= batch.end
        assert "SInner" not in by_name, "what runs in an operation has no place in it"
        assert {name: len(own) for name, own in by_name.items()} == {
            "SLoader": 4, "SRandomCrop": 4, "SToTensor": 4, "STransform": 4, "SCollation": 1,
        }  # fmt: skip
        for crop, tensor, loader, whole in zip(
            *(by_name[f"S{n}"] for n in ("RandomCrop", "ToTensor", "Loader", "Transform")),
            strict=True,
        ):
            assert loader.end <= whole.start
            assert crop.duration + tensor.duration <= whole.duration
        parts = sum(
            line.duration
            for name in ("SLoader", "STransform", "SCollation")
            for line in by_name[name]
        )
        assert parts <= batch.duration
    made, consumed, wait = log.batches("Preprocessed"), log.batches("Consumed"), log.batches("Wait")
    for number, line in consumed.items():
        assert line.duration == 1000
        assert line.start - made[number].end >= 0
        assert wait[number].end <= line.start
    assert made[0].duration == 4 * 9.5 * 1_000_000 + 1_000_000
    assert made[0].start > 1.7e18, "the wall clock"


def test_a_batch_that_came_out_of_turn_has_its_marker_for_no_wait(place: Place) -> None:
    slow = Loader(operations=(("Sleep", [60.0, 0.5]),), own=0.0, collate=0.0, pause=0.0)
    export(place, record(place.folder / "run", slow))
    wait = Log(place.folder / "logs/b4_gpu1").batches("Wait")
    assert [number for number in sorted(wait) if wait[number].duration == 1000] == [1, 3, 5]
    assert all(wait[number].start < wait[number - 1].end for number in (1, 3, 5)), (
        "the time is that of its arrival"
    )


def test_loaders_and_ranks_have_folders_of_their_own(place: Place) -> None:
    record(place.folder / "run", Loader(), Loader(number=1, batches=2, workers=0), rank=0)
    record(place.folder / "run", Loader(), rank=1)
    export(place, place.folder / "run")
    assert sorted(path.name for path in (place.folder / "logs").iterdir()) == [
        "b4_gpu2_rank0",
        "b4_gpu2_rank0_loader1",
        "b4_gpu2_rank1",
    ]
    alone = Log(place.folder / "logs/b4_gpu2_rank0_loader1")
    assert sorted(alone.batches("Preprocessed")) == [0, 1]
    assert sorted(alone.batches("Consumed")) == [0, 1]


def test_nothing_is_overwritten_unasked_and_no_other_runs_files_stay(place: Place) -> None:
    export(place, record(place.folder / "run", Loader()))
    assert "it is there already" in export(place, place.folder / "run", code=2)
    (place.folder / "logs/b4_gpu1/lotustrace_log_worker_pid_1").write_text("SLoader,1,1\n")
    export(place, place.folder / "run", "--force")
    assert len(list((place.folder / "logs/b4_gpu1").iterdir())) == 3


@pytest.mark.parametrize("steps", [True, False])
def test_a_run_without_a_loader_is_told_how_to_record_one(place: Place, steps: bool) -> None:
    run = (
        record(place.folder / "run", Loader(records=False))
        if steps
        else record_without_loader(place.folder / "run")
    )
    assert "voirkit --loader SCRIPT" in export(place, run, code=2)
