"""Examples of the catalogue: each script has what it is an example of, and no longer once it is mended."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from conftest import Place

from voirkit.findings import CATALOGUE, Kind, Severity

PROJECT = Path(__file__).parents[2]
EXAMPLES = {kind.name: shlex.split(kind.example) for kind in CATALOGUE.values() if kind.example}
HAVE_A_MENDED_FORM = {
    kind.name
    for kind in CATALOGUE.values()
    if kind.severity < Severity.ADVICE and kind.because and "before" in EXAMPLES.get(kind.name, ())
}
# A minute long, or only where the processor has instructions for bfloat16; the others have tests of their own.
APART = {
    "compile", "memory-creep", "measured-change", "autocast",
    "hung", "hang", "rank-ended", "straggler", "late-rank", "recompilations", "slow-system-call",
}  # fmt: skip


def command_of(kind: str, argument: str = "before") -> tuple[list[str], list[str]]:
    """What stands before ``voirkit`` in the command that shows a kind, and what after it; with the script's whole path."""
    words = [
        argument if word == "before" else str(PROJECT / word) if word.endswith(".py") else word
        for word in EXAMPLES[kind]
    ]
    at = words.index("voirkit")
    return words[:at], words[at + 1 :]


def test_each_kind_has_an_example_but_what_needs_a_gpu() -> None:
    assert CATALOGUE.keys() - EXAMPLES.keys() == {"pinned-copies"}


@pytest.mark.parametrize("kind", [CATALOGUE[name] for name in EXAMPLES], ids=lambda kind: kind.name)
def test_a_script_is_there_and_that_of_a_silent_bug_is_of_it(kind: Kind) -> None:
    (script,) = (Path(word) for word in command_of(kind.name)[1] if word.endswith(".py"))
    assert "planted" not in kind.example or f"# planted: {kind.name}\n" in script.read_text()


def kinds(place: Place, kind: str, argument: str) -> set[str]:
    """All that a run of an example says, by kind."""
    pytest.importorskip("torch")
    launcher, words = command_of(kind, argument)
    torchrun = ["-m", "torch.distributed.run", *launcher[1:]] if launcher else ["-m"]
    into = ["voirkit", "--force", "--run-dir", str(place.folder / "run")]
    for _ in range(3):
        summary = place.python(*torchrun, *into, *words).summary
        said = {row["kind"] for part in ("findings", "advice") for row in summary[part]}
        if kind == "busy-machine" or "busy-machine" not in said:
            break  # else estimates are left out, and advice with them: it is to be run again
    return {summary["verdict"]["kind"], *said}


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    sorted(
        name for name in EXAMPLES if "planted" not in CATALOGUE[name].example and name not in APART
    ),
)
def test_an_example_shows_what_it_is_an_example_of(place: Place, kind: str) -> None:
    assert kind in kinds(place, kind, "before")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", sorted(HAVE_A_MENDED_FORM - {"garbage-collection"})
)  # whose collections are shorter then, not gone
def test_a_mended_script_has_that_finding_no_longer(place: Place, kind: str) -> None:
    assert kind not in kinds(place, kind, "after")
