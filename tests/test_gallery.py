"""Each script of the gallery as it is before its fix: voirkit names the cause that was planted in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Ended, Place

pytest.importorskip("torch")
pytestmark = pytest.mark.long

SCRIPTS = Path(__file__).parent.parent / "examples" / "gallery"
GALLERY = (SCRIPTS.parents[1] / "docs" / "gallery.md").read_text()
# script: the verdict, and words of the first advice
SLOW = {
    "whole_batches": ("input-bound", "Index whole batches at once"),
    "worker_processes": ("input-bound", "num_workers="),
    "keep_workers": ("input-bound", "persistent_workers=True"),
    "fewer_checkpoints": ("checkpoint-bound", "less often, or in the background"),
    "evaluate_less": ("evaluation-bound", "Evaluate half as often"),
    "freeze_garbage": ("host-bound", "gc.freeze()"),
    "larger_batch": ("compute-bound", "larger batch"),
}


def before(place: Place, name: str, *flags: str, ranks: int = 0) -> Ended:
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        if ranks
        else []
    )
    words = [
        "-m",
        "voirkit",
        "--run-dir",
        str(place.folder / "run"),
        *flags,
        str(SCRIPTS / f"{name}.py"),
        "before",
    ]
    return place.python(*launcher, *words)


def test_the_gallery_shows_every_script_that_it_has_figures_of() -> None:
    assert [
        path.stem for path in SCRIPTS.glob("*.py") if f"gallery/{path.name}" not in GALLERY
    ] == []


@pytest.mark.parametrize("name", sorted(SLOW))
def test_the_verdict_and_the_first_advice_name_the_cause(place: Place, name: str) -> None:
    summary = before(place, name).summary
    kind, words = SLOW[name]
    assert summary["verdict"]["kind"] == kind
    assert words in summary["advice"][0]["do"]


def test_flame_names_the_line_that_logs(place: Place) -> None:
    assert (
        "log_less.py:17 weights ="
        in before(place, "log_less", "--flame").summary["verdict"]["next"]
    )


def test_the_guard_that_changes_in_each_step_is_named(place: Place) -> None:
    advice = before(place, "recompiles").summary["advice"]
    assert (
        "forward (recompiles.py:24) from being compiled again: self.calls == 0 no longer held"
        in advice[0]["do"]
    )


def test_the_rank_with_the_long_sentences_is_the_straggler(place: Place) -> None:
    verdict = before(place, "late_rank", ranks=2).summary["verdict"]
    assert (verdict["kind"], verdict["evidence"]["rank"]) == ("straggler", 1)


def test_the_ranks_that_wait_for_each_other_are_named_with_their_collectives(place: Place) -> None:
    ended = before(place, "barrier", "--hang", "5", ranks=2)
    assert "rank 0 waits in barrier 47, checkpoint(), barrier.py:23" in ended.err
    assert "rank 1 waits in all_reduce 47 (backward), main(), barrier.py:" in ended.err
    assert ended.summary["verdict"]["kind"] == "hung"


def test_missing_zero_grad_is_found_with_its_line(place: Place) -> None:
    found = [
        one
        for one in before(place, "missing_zero_grad", "--checks").summary["checks"]
        if one["found"]
    ]
    assert [(one["name"], one["where"].endswith("missing_zero_grad.py:20")) for one in found] == [
        ("missing-zero-grad", True)
    ]


def test_the_step_and_the_gradient_with_the_first_nan_are_named(place: Place) -> None:
    err = before(place, "first_nan", "--parameters").err
    assert "NaN in the gradient of 2.bias came first, in step 30." in " ".join(err.split())
