"""Whether two runs came to the same results: losses, what torch.save wrote, what was printed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from voirkit_instruments.what_if.analyse_results import (
    Results,
    final_paths,
    main,
    same_contents,
    same_losses,
)
from voirkit_instruments.what_if.record import RunResult


class Odd:
    """What weights_only does not load."""


def saved(path: Path, value: Any, crc: bool = True) -> str:
    if crc:
        torch.save(value, path)
        return str(path)
    if not hasattr(torch.serialization, "set_crc32_options"):
        pytest.skip("torch before 2.6 always writes checksums")
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(value, path)
    finally:
        torch.serialization.set_crc32_options(True)
    return str(path)


def test_files_without_checksums_hold_the_same_though_their_bytes_differ(tmp_path: Path) -> None:
    value = {"net": torch.arange(5.0), "epoch": 3}
    one, other = saved(tmp_path / "a.pt", value), saved(tmp_path / "b.pt", value, crc=False)
    assert Path(one).read_bytes() != Path(other).read_bytes()
    assert same_contents(one, other, 0.0) == (True, "")


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (
            {"net": [torch.tensor([1.0, 2.0]), 1], "epoch": 3},
            "it['net'][0] differs by 0.45 of itself",
        ),
        ({"net": [torch.tensor([1, 3]), 1], "epoch": 3}, "it['net'][0] differs"),
        ({"net": [torch.tensor([1.0, 3.0]), 2], "epoch": 3}, "it['net'][1] differs"),
        ({"net": [torch.tensor([1.0, 3.0]), 1], "epoch": 4}, "it['epoch'] differs"),
        ({"net": [torch.tensor([1.0, 3.0]), 1]}, "it differs"),
    ],
)
def test_what_differs_is_named(tmp_path: Path, value: Any, where: str) -> None:
    first = {"net": [torch.tensor([1.0, 1.0 + 2.0]), 1], "epoch": 3}
    found, why = same_contents(
        saved(tmp_path / "a.pt", first), saved(tmp_path / "b.pt", value), 0.0
    )
    assert found is False
    assert why.startswith(where[:20])


def test_rounding_is_equal_where_a_change_computes_in_another_order(tmp_path: Path) -> None:
    one, other = (
        saved(tmp_path / "a.pt", [torch.ones(4)]),
        saved(tmp_path / "b.pt", [torch.ones(4) + 1e-6]),
    )
    assert same_contents(one, other, 0.0)[0] is False
    assert same_contents(one, other, 0.01)[0] is True


def test_nan_is_the_same_as_nan(tmp_path: Path) -> None:
    value = [torch.tensor([1.0, float("nan")]), float("nan")]
    assert (
        same_contents(
            saved(tmp_path / "a.pt", value), saved(tmp_path / "b.pt", [*value, 1][:2]), 0.0
        )[0]
        is True
    )


@pytest.mark.parametrize("other", [float("nan"), float("inf")])
def test_a_number_that_only_one_run_has_no_value_for_differs(tmp_path: Path, other: float) -> None:
    files = saved(tmp_path / "a.pt", {"best": 1.0}), saved(tmp_path / "b.pt", {"best": other})
    assert same_contents(*files, 0.01) == (False, "it['best'] differs")


def test_a_file_that_differs_counts_before_one_that_cannot_be_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = saved(tmp_path / "a.pt", Odd()), saved(tmp_path / "b.pt", [Odd()])
    first, second = saved(tmp_path / "c.pt", [1]), saved(tmp_path / "d.pt", [2])
    assert main(["0", one, other, first, second]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["equal"], told["because"]) == (False, f"{second}: it[0] differs")


def test_objects_that_are_not_loaded_are_compared_by_their_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = saved(tmp_path / "a.pt", Odd()), saved(tmp_path / "b.pt", Odd(), crc=False)
    assert same_contents(one, other, 0.0)[0] is True
    third = saved(tmp_path / "c.pt", [Odd()])
    assert main(["0", one, other, one, third]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["equal"] is None
    assert "cannot be loaded with weights_only" in told["because"]


def test_losses_are_equal_bit_for_bit_or_within_rounding() -> None:
    one = {"n": 2, "kept": [1.0, 2.0]}
    near = {"n": 2, "kept": [1.0, 2.000001]}
    assert same_losses(one, dict(one), True) == (True, "")
    assert same_losses(one, near, True)[0] is False
    assert same_losses(one, near, False)[0] is True
    assert same_losses(one, {"n": 2, "kept": [1.0, 2.5]}, False)[0] is False
    assert same_losses(one, {"n": 3, "kept": [1.0, 2.0, 3.0]}, False)[0] is False
    assert same_losses(one, {"n": 2, "kept": [1.0, None]}, False)[0] is False
    assert same_losses({"n": 1, "kept": [None]}, {"n": 1, "kept": [None]}, True) == (True, "")
    assert same_losses({}, {}, True)[0] is None


def test_losses_that_are_nan_in_both_runs_are_equal() -> None:
    diverged = {"n": 2, "kept": [1.0, float("nan")]}
    assert same_losses(diverged, {"n": 2, "kept": [1.0, float("nan")]}, True) == (True, "")
    assert same_losses(diverged, {"n": 2, "kept": [1.0, 2.0]}, False)[0] is False


class Folder:
    """A folder in which runs save, and the results of the first of them."""

    def __init__(self, tmp_path: Path, exact: bool = True) -> None:
        (tmp_path / "copies").mkdir()
        self.folder, self._n = tmp_path, 0
        self.results = Results(str(tmp_path / "copies"), exact)

    def ran(self, *names: str) -> RunResult:
        self._n += 1
        out = self.folder / f"out-{self._n}"
        out.write_text("trained")
        files = [
            {"path": str(self.folder / name), "file": _id(self.folder / name)} for name in names
        ]
        return RunResult(
            0, str(out), "", {"what_if_run": {"losses": {"n": 1, "kept": [1.0]}, "files": files}}
        )


def _id(path: Path) -> tuple[int, int] | None:
    return (path.stat().st_dev, path.stat().st_ino) if path.exists() else None


def test_a_file_that_was_not_written_anew_is_missing(tmp_path: Path) -> None:
    here = Folder(tmp_path)
    saved(tmp_path / "a.pt", [torch.ones(3)])
    here.results.add_first(here.ran("a.pt"))
    here.results.add(here.ran("a.pt"), "change")
    assert here.results.compared("change")["checkpoints"] is False
    assert "a.pt was not written" in here.results.compared("change")["because"]


def test_a_file_that_was_written_anew_with_the_same_bytes_is_equal(tmp_path: Path) -> None:
    here = Folder(tmp_path)
    saved(tmp_path / "a.pt", [torch.ones(3)])
    here.results.add_first(here.ran("a.pt"))
    os.unlink(saved(tmp_path / "a.pt", [torch.ones(3)]))
    saved(tmp_path / "a.pt", [torch.ones(3)])
    here.results.add(here.ran("a.pt"), "change")
    assert here.results.compared("change") == {
        "losses": True,
        "checkpoints": True,
        "output": True,
        "because": "",
    }


def test_a_file_of_another_name_in_each_run_is_compared_by_its_order(tmp_path: Path) -> None:
    here = Folder(tmp_path)
    saved(tmp_path / "monday.pt", [torch.ones(3)])
    here.results.add_first(here.ran("monday.pt"))
    saved(tmp_path / "tuesday.pt", [torch.zeros(3)])
    here.results.add(here.ran("tuesday.pt"), "change")
    assert here.results.compared("change")["checkpoints"] is False
    assert "tuesday.pt" in here.results.compared("change")["because"]


def test_a_file_is_found_under_the_name_that_it_was_given_after_it_was_written(
    tmp_path: Path,
) -> None:
    saved(tmp_path / "a.tmp", [1])
    file = _id(tmp_path / "a.tmp")
    os.replace(tmp_path / "a.tmp", tmp_path / "a.pt")
    assert final_paths([{"path": str(tmp_path / "a.tmp"), "file": file}]) == [
        str(tmp_path / "a.pt")
    ]
    assert final_paths([{"path": str(tmp_path / "b.tmp"), "file": None}]) == []


def test_what_took_the_place_of_a_file_that_was_removed_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text('{"seconds": 1.5}')
    found = os.stat(tmp_path / "metrics.json")
    assert (
        final_paths([{"path": str(tmp_path / "first.pt"), "file": (found.st_dev, found.st_ino)}])
        == []
    )


def test_files_of_plain_runs_that_differ_can_not_be_compared(tmp_path: Path) -> None:
    here = Folder(tmp_path)
    saved(tmp_path / "a.pt", [1])
    here.results.add_first(here.ran("a.pt"))
    for setting, value in (("", 2), ("change", 3)):
        saved(tmp_path / "a.pt", [value, value])
        here.results.add(here.ran("a.pt"), setting)
    assert here.results.compared("change")["checkpoints"] is None
    assert "plain runs differ from each other already" in here.results.compared("change")["because"]
