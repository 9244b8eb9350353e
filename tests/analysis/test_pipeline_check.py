"""The rules of what a loader records: they hold of right records, and name each thing that can be wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from loader_rules import Rule, check
from pipelined import Loader, record

from voirkit.runs.opened import Run

pytestmark = pytest.mark.long

OUT_OF_ORDER = Loader(operations=(("Sleep", [60.0, 0.5]),), own=0.0, collate=0.0, pause=0.0)


def rules(folder: Path, loader: Loader, once: bool = True) -> dict[str, Rule]:
    with Run(str(record(folder / "run", loader))) as run:
        return {rule.text: rule for rule in check(run, 0, once)}


@pytest.mark.parametrize(
    "loader", [Loader(epochs=2, inner=(("Jitter", 1.0),), cpu=0.5), Loader(workers=0), OUT_OF_ORDER]
)
def test_right_records_fulfil_every_rule(tmp_path: Path, loader: Loader) -> None:
    found = rules(tmp_path, loader)
    assert {text: rule.broken for text, rule in found.items() if rule.broken} == {}
    assert (
        found["each sample of an epoch has one record"].checked
        == loader.batches * loader.size * loader.epochs
    )
    assert ("and arrived" in found) == (loader.workers > 0)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        ("lose data.preprocess", "a batch that was consumed was made"),
        ("lose batch.arrived", "and arrived"),
        ("lose batch.queued", "a batch of a worker was queued"),
        ("lose batch.wait", "and asked for"),
        ("double batch.consumed", "a batch has one record batch.consumed at most"),
        ("double data.preprocess", "a batch has one record data.preprocess at most"),
        ("move batch.queued", "the worker that made a batch is the one it was queued to"),
        ("hasten batch.arrived", "it arrives after it was made"),
        ("hasten batch.consumed", "it is consumed after it was made"),
        ("hasten data.preprocess", "it is queued before it is made"),
        ("double data.item", "each sample of an epoch has one record"),
        ("lose data.item", "an operation lies in a sample or a collation, where there are samples"),
        ("stretch operation.Normalize", "what lies in something ends before it does"),
        ("stretch data.item", "what lies in something takes no longer than it"),
        ("stretch batch.wait", "its request ends when it is consumed"),
    ],
)
def test_what_is_wrong_is_found(tmp_path: Path, broken: str, rule: str) -> None:
    found = rules(tmp_path, Loader(broken=broken))
    assert found[rule].broken, [r.text for r in found.values() if r.broken]
