"""A run as one HTML page that asks nothing of anybody: what ``voirkit report --html`` and ``voirkit --html`` write. It measures nothing.

Styles, script and pictures are in the page; it works without its script but for zooming and quick tooltips.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from voirkit.analysis.part_failures import reason
from voirkit.report.html import steps
from voirkit.report.html.components import Html, join, section, text
from voirkit.report.html.sections import section_html
from voirkit.report.overview import ABOVE, BELOW, LAST, Part, command_of, how_it_went, instrument_parts
from voirkit.report.sections import Finding, Section, blocks_within

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

Summary = Mapping[str, Any]

Drawing = Callable[[Any, Summary], "str | None"]

_HEAD = re.compile('<section id="([^"]*)"><h2>(.*?)</h2>')
_HERE = os.path.dirname(os.path.abspath(__file__))
MARK = "<!-- made by voirkit -->"  # by which a page is known as one that may be replaced


def page(run: Run, summary: Summary) -> str:
    """The page of a run.

    Args:
        run: The opened run; what of it cannot be read is said on the page.
        summary: Of a run, as ``voirkit.analysis.summary.summary_of`` gives it.
    """
    title = command_of(summary) if summary.get("command") else run.name
    return document(f"{title} · voirkit", list(_parts(run, summary)))


def _contents(parts: Sequence[str]) -> Html:
    """Links to the parts that have a heading."""
    heads = [found.groups() for found in map(_HEAD.match, parts) if found]
    return Html("<nav>" + " ".join(f'<a href="#{id}">{title}</a>' for id, title in heads) + "</nav>") if len(heads) > 1 else Html("")


def _parts(run: Run, summary: Summary) -> Iterator[Html]:
    """The first screen; what leads (findings, experiments); the steps; ranks, other instruments, the machine."""
    leading, others = instrument_parts(True), instrument_parts(False)
    findings = {f"findings of {name}": partial(_findings, part) for name, part in leading.items()}
    below: dict[str, Part] = {**findings, **BELOW, **{name: LAST[name] for name in ("rates", "facts", "warnings")}}
    card = join(_drawn({"head": _head, **_drawing(ABOVE), **_drawing(below)}, run, summary), "\n")
    yield Html(f'<section id="first">{card}</section>')
    ranks, machine = ({name: LAST[name]} for name in ("ranks", "machine"))
    yield from _drawn({**_drawing(leading), "steps": _steps, **_drawing({**ranks, **others, **machine})}, run, summary)


def _drawn(parts: Mapping[str, Drawing], run: Run, summary: Summary) -> Iterator[Html]:
    for name, draw in parts.items():
        try:
            made = draw(run, summary)
        except Exception as exc:  # a summary of another version, a damaged file, records that are like no known ones: the rest is shown
            made = failed(name, exc)
        if made:
            yield Html(made)


def _drawing(parts: Mapping[str, Part]) -> dict[str, Drawing]:
    return {name: partial(_drawn_sections, part) for name, part in parts.items()}


def _drawn_sections(part: Part, run: Run, summary: Summary) -> str:
    return "\n".join(filter(None, (section_html(one, run) for one in part(summary))))


def _findings(part: Part, summary: Summary) -> Iterator[Section]:
    """What a leading instrument has found stands on the first screen too; its own section has all of its evidence."""
    found = [one for section in part(summary) for one in blocks_within(section.blocks) if isinstance(one, Finding)]
    yield Section("findings", "", found)


def _head(run: Run, summary: Summary) -> Html:
    command = command_of(summary) if summary.get("command") else run.name
    recorded = (f"{word}{run.manifest[key]}" for key, word in (("started", ""), ("host", "on ")) if run.manifest.get(key))
    how = " · ".join([*how_it_went(summary), *recorded])
    return Html(f'<h1>{text(command, 600)}</h1>\n<p class="how">{text(how)}</p>')


def _steps(run: Run, summary: Summary) -> Html | None:
    return steps.steps(run, summary)


def failed(part: str, exc: Exception) -> Html:
    """What stands in place of a part of a page."""
    return section(f"failed-{part}", part, f"This part cannot be drawn ({reason(exc)}).")


def document(title: str, parts: Sequence[Html]) -> str:
    """A whole page: head, styles, parts, script."""
    style, script = (_file(name) for name in ("page.css", "page.js"))
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return (
        f'<!doctype html>\n{MARK}\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">\n'
        f"<style>\n{style}</style></head>\n<body><main>\n"
        + "\n".join([*parts[:1], _contents(parts), *parts[1:]])
        + f"\n</main>\n<script>\n{script}</script></body></html>\n"
    )


def _file(name: str) -> str:
    with open(os.path.join(_HERE, name), encoding="utf-8") as file:
        return file.read()
