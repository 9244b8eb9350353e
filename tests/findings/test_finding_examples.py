"""Scripts of the catalogue: each has the finding that it is an example of, and no longer once it is mended."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Place

from voirkit.findings import CATALOGUE, Kind, Severity

PROJECT = Path(__file__).parents[2]
FOUND_BY_ITSELF = {kind for kind in CATALOGUE.values() if kind.example and (kind.severity < Severity.ADVICE) and kind.because}
SCRIPTS = {kind.name: PROJECT / kind.example for kind in FOUND_BY_ITSELF}
NEED_CHECKS = ("padding", "dense-embedding-gradient")


def test_each_kind_but_those_of_the_machine_advice_and_verdicts_has_a_script() -> None:
    without = {kind.name for kind in CATALOGUE.values() if not kind.example}
    allowed = {Severity.MEASUREMENT, Severity.ADVICE, Severity.VERDICT}
    assert {CATALOGUE[name].severity for name in without} <= allowed


@pytest.mark.parametrize("kind", [kind for kind in CATALOGUE.values() if kind.example], ids=lambda kind: kind.name)
def test_a_script_is_there_and_that_of_a_silent_bug_is_of_it(kind: Kind) -> None:
    text = (PROJECT / kind.example).read_text()
    assert "planted" not in kind.example or f"# planted: {kind.name}\n" in text


def kinds(place: Place, kind: str, argument: str) -> set[str]:
    pytest.importorskip("torch")
    flags = ["--checks"] if kind in NEED_CHECKS else []
    return {finding["kind"] for finding in place.voirkit(*flags, str(SCRIPTS[kind]), argument).summary["findings"]}


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(SCRIPTS))
def test_a_script_has_the_finding_that_it_is_an_example_of(place: Place, kind: str) -> None:
    assert kind in kinds(place, kind, "before")


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(SCRIPTS.keys() - {"garbage-collection"}))  # whose collections are shorter then, not gone
def test_a_mended_script_has_that_finding_no_longer(place: Place, kind: str) -> None:
    assert kind not in kinds(place, kind, "after")
