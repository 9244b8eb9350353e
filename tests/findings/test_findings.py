"""The catalogue of findings: every kind has words, and ``voirkit explain`` prints them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from voirkit.commands import explain
from voirkit.errors import CommandLineError, PartFailures
from voirkit.findings import CATALOGUE, Finding, Severity, findings_of, ranked
from voirkit.findings.silent_bugs import SILENT_BUGS
from voirkit.plugins import installed_instruments
from voirkit_instruments.checks.analyse import DETECTORS
from voirkit_instruments.what_if.record_changes import CHANGES


@pytest.mark.parametrize("kind", CATALOGUE.values(), ids=CATALOGUE)
def test_each_kind_is_documented_in_whole_sentences(kind) -> None:
    stands_alone = kind.severity not in (
        Severity.ADVICE,
        Severity.VERDICT,
    )  # these stand in brackets, or in other words
    in_report = (kind.because, kind.next) if stands_alone and kind.because else ()
    for words in (*in_report, kind.meaning, kind.condition, kind.confirm, kind.mend):
        assert words.endswith((".", ").", "`"))
        assert "  " not in words
    assert "\n" not in kind.because + kind.next


@pytest.mark.parametrize("kind", CATALOGUE.values(), ids=CATALOGUE)
def test_each_kind_names_options_and_changes_that_there_are(kind) -> None:
    words = " ".join(
        (kind.because, kind.next, kind.meaning, kind.condition, kind.confirm, kind.mend)
    )
    options = {
        option.flag for instrument in installed_instruments() for option in instrument.options
    }
    of_reports = {"--html"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", words)) <= options | of_reports
    assert set(re.findall(r"--what-if ([a-z-]+)", words)) <= CHANGES.keys()


def test_explain_prints_what_a_kind_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main(["evaluation-builds-graphs"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "evaluation-builds-graphs (memory: memory is held or copied for nothing)"
    )
    assert "How to mend it: `with torch.no_grad():`" in printed


def test_explain_lists_all_kinds_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main([]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in CATALOGUE)


def test_explain_names_the_nearest_kind() -> None:
    with pytest.raises(CommandLineError, match="'slow-sampling' is no kind of finding") as raised:
        explain.main(["slow-sampling"])
    assert "slow-sampler" in str(raised.value.next)


def test_a_finding_has_the_words_of_the_catalogue_and_the_figures_alone_as_evidence() -> None:
    finding = Finding.of("same-order", {"epochs": 5, "some_words": "left out"})
    assert "in each of 5 epochs" in finding.because
    assert finding.evidence == {"epochs": 5}
    assert finding.document()["severity"] == "bug"


def test_a_template_that_lacks_a_figure_is_an_error() -> None:
    with pytest.raises(KeyError):
        Finding.of("same-order", {})


def test_the_gravest_comes_first_then_what_saves_most() -> None:
    names = ("iterator-each-step", "slow-sampler", "same-order")
    findings = [
        Finding(name, "", "", gain=gain) for name, gain in zip(names, (0.1, 0.5, None), strict=True)
    ]
    assert [finding.kind for finding in ranked(findings)] == [
        "same-order",
        "slow-sampler",
        "iterator-each-step",
    ]
    assert Severity.BUG < Severity.MEMORY < Severity.SYMPTOM < Severity.TIME


def test_each_check_is_a_kind_of_the_catalogue_and_silences_kinds_that_there_are() -> None:
    assert {kind.name for kind in SILENT_BUGS} == {detector.name for detector in DETECTORS}
    assert {name for kind in CATALOGUE.values() for name in kind.silences} <= CATALOGUE.keys()


def check(name: str, found: bool | None) -> dict[str, Any]:
    return {
        "name": name,
        "found": found,
        "step": 3,
        "where": "train.py:12",
        "because": "Why.",
        "next": "Mend.",
        "evidence": {"n": 8},
    }


def test_a_check_that_found_something_is_a_finding() -> None:
    summary = {
        "checks": [
            check("missing-zero-grad", True),
            check("same-order", False),
            check("dead-units", None),
        ]
    }
    (finding,) = findings_of(summary, PartFailures())
    assert (finding.kind, finding.where, finding.because) == (
        "missing-zero-grad",
        "train.py:12",
        "step 3, train.py:12: Why.",
    )
    assert finding.severity == Severity.BUG
    assert finding.evidence == {"step": 3, "n": 8}


def test_a_specific_finding_silences_what_is_said_in_general_of_the_same() -> None:
    nan = {
        "loss": {"n": 9, "not_finite": {"first": 2, "value": "nan", "n": 7, "of": 9}, "curve": []}
    }
    assert [finding.kind for finding in findings_of(nan, PartFailures())] == ["loss-not-finite"]
    found = {**nan, "checks": [check("not-finite", True)]}
    assert [finding.kind for finding in findings_of(found, PartFailures())] == ["not-finite"]
