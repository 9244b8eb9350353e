"""The catalogue of findings: every kind has words, and ``voirkit explain`` prints them."""

from __future__ import annotations

import pytest

from voirkit.commands import explain
from voirkit.errors import CommandLineError
from voirkit.findings import CATALOGUE, Finding, Severity, ranked


@pytest.mark.parametrize("kind", CATALOGUE.values(), ids=CATALOGUE)
def test_each_kind_is_documented_in_whole_sentences(kind) -> None:
    in_report = (
        () if kind.severity in (Severity.ADVICE, Severity.VERDICT) else (kind.because, kind.next)
    )  # advice stands in brackets, or in the verdict
    for words in (*in_report, kind.meaning, kind.condition, kind.confirm, kind.mend):
        assert words.endswith((".", ").", "`"))
        assert "  " not in words
    assert "\n" not in kind.because + kind.next


def test_explain_prints_what_a_kind_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main(["evaluation-builds-graphs"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("evaluation-builds-graphs (memory: memory is held or copied for nothing)")
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
    finding = Finding.of("same-order-each-epoch", {"epochs": 5, "some_words": "left out"})
    assert "in each of 5 epochs" in finding.because
    assert finding.evidence == {"epochs": 5}
    assert finding.document()["severity"] == "bug"


def test_a_template_that_lacks_a_figure_is_an_error() -> None:
    with pytest.raises(KeyError):
        Finding.of("same-order-each-epoch", {})


def test_the_gravest_comes_first_then_what_saves_most() -> None:
    names = ("iterator-each-step", "slow-sampler", "same-order-each-epoch")
    findings = [Finding(name, "", "", gain=gain) for name, gain in zip(names, (0.1, 0.5, None), strict=True)]
    assert [finding.kind for finding in ranked(findings)] == ["same-order-each-epoch", "slow-sampler", "iterator-each-step"]
    assert Severity.BUG < Severity.MEMORY < Severity.SYMPTOM < Severity.TIME
