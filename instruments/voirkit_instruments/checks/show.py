"""What ``--checks`` found: each silent bug with its evidence, the others in a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from voirkit.report.sections import Block, Details, Finding, InText, OnPage, Section, Table, Text

_NAMED = 3  # checks of one reason; of more their number

Checks = Sequence[Mapping[str, Any]]


def sections(checks: Checks, summary: Mapping[str, Any]) -> Iterator[Section]:
    """Each silent bug with its evidence; the other checks in a line, on a page with their reasons."""
    found, unknown, healthy = ([check for check in checks if check["found"] is state] for state in (True, None, False))
    blocks: list[Block] = [OnPage([Text(f"{len(checks)} looked for, {len(found) or 'none'} found.", mood="note")])]
    for check in found:
        blocks.append(Finding(check["name"], f"{_place(check)}{check['because']}", check.get("next") or ""))
        evidence = [(str(key), _words(value)) for key, value in (check.get("evidence") or {}).items()]
        blocks.append(OnPage([Table(("evidence", ""), evidence, left=(0, 1))]))
    blocks.append(InText([*_in_lines(unknown, healthy)]))
    for title, head, chosen in (("are inconclusive", "why", unknown), ("looked for and not found", "seen", healthy)):
        if chosen:
            rows = [(check["name"], check["because"]) for check in chosen]
            blocks.append(OnPage([Details(f"{len(chosen)} {title}", [Table(("check", head), rows, left=(0, 1))])]))
    yield Section("checks", "Silent bugs", blocks, least=4 + 3 * len(found))


def _in_lines(unknown: Checks, healthy: Checks) -> Iterator[Text]:
    because: dict[str, list[str]] = {}
    for check in unknown:
        because.setdefault(check["because"], []).append(check["name"])
    for reason, names in because.items():  # a script that fails early has one reason for all
        yield Text(reason, f"inconclusive  {', '.join(names) if len(names) <= _NAMED else f'{len(names)} checks'}")
    if healthy:
        yield Text(", ".join(check["name"] for check in healthy), f"not found ({len(healthy)})", one_line=True)


def _place(check: Mapping[str, Any]) -> str:
    step, where = check.get("step"), check.get("where")
    places = [*([f"step {step:,}"] if step is not None else []), *([str(where)] if where else [])]
    return f"{', '.join(places)}: " if places else ""


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
