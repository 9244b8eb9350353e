"""What the table says of checks."""

from __future__ import annotations

from rich.console import Console

from voirkit.report.terminal import rendered_section
from voirkit_instruments.checks.analyse import sections


def _shown(*checks: tuple[str, bool | None, str]) -> list[str]:
    console = Console(width=100)
    with console.capture() as capture:
        rows = [{"name": name, "found": found, "because": because, "next": "do"} for name, found, because in checks]
        for section in sections(rows, {}):
            console.print(rendered_section(section, 100))
    return capture.get().splitlines()[1:]


def test_checks_that_cannot_tell_for_one_reason_are_one_line() -> None:
    checks = [(f"check-{n}", None, "No step of a torch optimizer was seen.") for n in range(13)]
    assert _shown(*checks, ("other", None, "No backward pass was seen.")) == [
        "inconclusive  13 checks  No step of a torch optimizer was seen.",
        "inconclusive  other  No backward pass was seen.",
    ]


def test_a_few_that_cannot_tell_are_named() -> None:
    assert _shown(("one", None, "Why."), ("two", None, "Why.")) == ["inconclusive  one, two  Why."]
