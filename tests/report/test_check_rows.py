"""What the table says of checks."""

from __future__ import annotations

from rich.console import Console

from voirkit.report.terminal import rendered_section
from voirkit_instruments.checks.analyse import sections


def _shown(*checks: tuple[str, bool | None, str]) -> list[str]:
    console = Console(width=100)
    with console.capture() as capture:
        rows = [
            {"name": name, "found": found, "because": because, "next": "do"}
            for name, found, because in checks
        ]
        for section in sections(rows, {}):
            console.print(rendered_section(section, 100))
    return capture.get().splitlines()[1:]


def test_checks_that_cannot_tell_for_one_reason_are_one_line() -> None:
    checks = [(f"check-{n}", None, "No step of a torch optimizer was seen.") for n in range(13)]
    assert _shown(*checks, ("other", None, "No backward pass was seen.")) == [
        "cannot tell  13 checks  No step of a torch optimizer was seen.",
        "cannot tell  other  No backward pass was seen.",
    ]


def test_a_few_that_cannot_tell_are_named() -> None:
    assert _shown(("one", None, "Why."), ("two", None, "Why.")) == ["cannot tell  one, two  Why."]


def test_what_was_looked_at_stands_below_what_was_not_found() -> None:
    check = {
        "name": "one",
        "found": False,
        "because": "All is well.",
        "next": "",
        "looked_at": {"optimizer steps": 1200, "losses": 0},
    }
    (section,) = sections(
        [check, {**check, "name": "two", "looked_at": {"optimizer steps": 1200, "batches": 40}}], {}
    )
    console = Console(width=100)
    with console.capture() as capture:
        console.print(rendered_section(section, 100))
    assert capture.get().splitlines()[1:] == [
        "not found (2)  one, two",
        "looked at  1,200 optimizer steps, 40 batches",
    ]
