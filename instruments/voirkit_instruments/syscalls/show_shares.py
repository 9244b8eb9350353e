"""Which system calls are the most, which work and which wait the longest; and when they were made, as a map in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from voirkit.report.figure import duration
from voirkit_instruments.syscalls.analyse_figures import working_and_waiting_s

_TOP = 10
_SHADES = " ░▒▓█"
_HEAD = 26  # columns before the map

Document = Mapping[str, Any]


def sums(found: Document) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Of each call how often it was made, and the seconds of those that work and of those that wait; of all phases and threads.

    Args:
        found: A document.
    """
    waits = set(found.get("waits") or ())
    made: dict[str, float] = {}
    took: tuple[dict[str, float], dict[str, float]] = {}, {}
    for phase in (found.get("phases") or {}).values():
        for name, call in phase.items():
            made[name] = made.get(name, 0) + call["calls"]
            if call["seconds"] is not None:
                for table, part in zip(took, working_and_waiting_s(name, call, waits), strict=True):
                    if part:
                        table[name] = table.get(name, 0.0) + part
    return made, *took


def top_calls(found: Document) -> RenderableType:
    """The ten calls that are made most often, and those that work and that wait the longest, with their shares.

    Args:
        found: A document.
    """
    made, working, waiting = sums(found)
    tables = [
        _top("most calls", made, "{:,.0f}".format), _top("works longest", working, duration), _top("waits longest", waiting, duration),
    ]  # fmt: skip
    return Columns([table for table in tables if table.row_count], padding=(0, 2))


def _top(head: str, values: Mapping[str, float], shown: Any) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column(head, no_wrap=True, min_width=14)
    for name in ("", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    ordered = sorted(((value, name) for name, value in values.items() if value), key=lambda one: (-one[0], one[1]))
    total = sum(values.values())
    for value, name in ordered[:_TOP]:
        table.add_row(name, shown(value), f"{100 * value / total:.1f}%")
    if len(ordered) > _TOP:
        rest = sum(value for value, _ in ordered[_TOP:])
        table.add_row(Text(f"{len(ordered) - _TOP} others", style="dim"), shown(rest), f"{100 * rest / total:.1f}%")
    return table


def over_time(found: Document, width: int) -> RenderableType:
    """A map: a row for each call, time from left to right, dark where it was made most; above it the phase that had most of the time.

    Args:
        found: A document.
        width: Columns of the terminal.
    """
    bins = found.get("over_time")
    if not bins:
        return Text("When they were made is not known: this has no times.", style="dim")
    n = max((len(row) for row in bins["calls"].values()), default=1)
    each = -(-n // max(width - _HEAD - 1, 1))  # bins in a column
    room = -(-n // each)
    begin, end = bins["begin_s"], bins["begin_s"] + n * bins["bin_s"]
    lines = [Text(f"{'':{_HEAD}}{_ends(f'{begin:.3g} s', f'{end:.3g} s', room)}", style="dim")]
    phases = {phase: _columns(row, each) for phase, row in bins["phases"].items()}
    if phases:
        lines.append(Text(f"{'phase':{_HEAD}}") + Text("".join(_letter(phases, i) for i in range(room))))
    ordered = sorted(bins["calls"].items(), key=lambda item: (item[0] == "others", -sum(item[1])))
    for name, row in ordered:
        cells = _columns(row, each)
        most = max(cells)
        shades = "".join(_SHADES[0 if not cell else max(1, round(cell / most * (len(_SHADES) - 1)))] for cell in cells)
        lines.append(Text(f"{name[:14]:14} {sum(row):>10,} {shades}"))
    lines.append(Text("each row is as dark as its own most; a column is " + duration(each * bins["bin_s"]) + _key(phases), style="dim"))
    return Group(*lines)


def _columns(row: Sequence[float], each: int) -> list[float]:
    return [sum(row[at : at + each]) for at in range(0, len(row), each)]


def _letter(phases: Mapping[str, Sequence[float]], at: int) -> str:
    phase = max(phases, key=lambda phase: phases[phase][at])
    return " " if not phases[phase][at] else "." if phase == "other" else phase[0]


def _key(phases: Mapping[str, Sequence[float]]) -> str:
    seen = {_letter(phases, i) for row in phases.values() for i in range(len(row))} - {" ", "."}
    named = {letter: " or ".join(sorted(phase for phase in phases if phase[0] == letter and phase != "other")) for letter in sorted(seen)}
    return "".join(f" · {letter} {words}" for letter, words in named.items())


def _ends(first: str, last: str, room: int) -> str:
    return first if len(first) + len(last) + 1 > room else f"{first}{'':{room - len(first) - len(last)}}{last}"
