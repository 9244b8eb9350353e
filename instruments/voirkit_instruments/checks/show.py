"""What ``--checks`` found, as a person reads it: what was found first, then what could not be told, the healthy ones in a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

_NAMED = 3  # checks of one reason; of more their number


def table(summary: Mapping[str, Any], width: int) -> Iterator[tuple[int, RenderableType]]:
    """The part of the table in a terminal; see ``voirkit.instrument.Instrument``."""
    checks = summary.get("checks")
    if checks:
        yield 4 + 3 * sum(check["found"] is True for check in checks), check_rows(checks)


def check_rows(checks: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The part of the table."""
    return Group(*_rows(checks))


def _rows(checks: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    for check in checks:
        if check["found"]:
            head = Text.assemble((f"{check['name']}  ", "bold red"), (_at(check), "bold"), check["because"])
            yield Padding(Group(head, Text.assemble(("next  ", "bold"), check["next"])), (0, 0, 0, 2))
    inconclusive: dict[str, list[str]] = {}
    for check in checks:
        if check["found"] is None:
            inconclusive.setdefault(check["because"], []).append(check["name"])
    for because, names in inconclusive.items():  # a script that fails early has one reason for all
        shown = ", ".join(names) if len(names) <= _NAMED else f"{len(names)} checks"
        yield Text.assemble((f"inconclusive  {shown}  ", "dim"), because)
    healthy = [check["name"] for check in checks if check["found"] is False]
    if healthy:
        yield Text.assemble((f"not found ({len(healthy)})  ", "dim"), ", ".join(healthy), no_wrap=True, overflow="ellipsis")


def _at(check: Mapping[str, Any]) -> str:
    step, where = check.get("step"), check.get("where")
    said = [*([f"step {step:,}"] if step is not None else []), *([str(where)] if where else [])]
    return f"{', '.join(said)}: " if said else ""
