"""Scripts of ``examples/findings/``: each has the finding that it is named after, and no longer once it is mended."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Place

from voirkit.findings import CATALOGUE, Severity
from voirkit.findings.silent_bugs import SILENT_BUGS

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {script.stem.replace("_", "-"): script for script in sorted((EXAMPLES / "findings").glob("*.py"))}
IN_GALLERY = {"loss-not-finite": "first_nan", "loss-not-falling": "missing_zero_grad", "garbage-collection": "freeze_garbage"}
SCRIPTS |= {kind: EXAMPLES / "gallery" / f"{name}.py" for kind, name in IN_GALLERY.items()}
NEED_CHECKS = ("padding", "dense-embedding-gradient")


def test_each_kind_that_is_found_by_itself_has_a_script() -> None:
    without = {kind.name for kind in SILENT_BUGS if not kind.because}  # of these tests/checks has scripts
    by_machine = {Severity.MEASUREMENT, Severity.ADVICE, Severity.VERDICT}
    assert SCRIPTS.keys() == {kind.name for kind in CATALOGUE.values() if kind.severity not in by_machine} - without


def kinds(place: Place, kind: str, argument: str) -> set[str]:
    pytest.importorskip("torch")
    flags = ["--checks"] if kind in NEED_CHECKS else []
    return {finding["kind"] for finding in place.voirkit(*flags, str(SCRIPTS[kind]), argument).summary["findings"]}


@pytest.mark.long
@pytest.mark.parametrize("kind", SCRIPTS)
def test_a_script_has_the_finding_that_it_is_named_after(place: Place, kind: str) -> None:
    assert kind in kinds(place, kind, "before")


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(SCRIPTS.keys() - {"garbage-collection"}))  # whose collections are shorter then, not gone
def test_a_mended_script_has_that_finding_no_longer(place: Place, kind: str) -> None:
    assert kind not in kinds(place, kind, "after")
