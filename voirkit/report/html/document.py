"""A run as one HTML page that asks nothing of anybody: what ``voirkit report --html`` and ``voirkit --html`` write. It measures nothing.

Styles, script and pictures are in the page; it works without its script but for zooming and quick tooltips. Each part is a
function ``part(run, summary) -> str | None`` in a module of its own, which is imported when a page is made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from voirkit.analysis.part_failures import reason
from voirkit.instrument import Instrument, resolve
from voirkit.plugins import installed_instruments
from voirkit.report.html.components import Html, section, text
from voirkit.report.html.sections import section_html
from voirkit.report.sections import sections_of

if TYPE_CHECKING:
    from voirkit.runs.opened import Run

Summary = Mapping[str, Any]

# From top to bottom; what leads (findings, experiments) is after the first, what else instruments show is before the last. A part whose
# run has nothing of it gives None.
FIRST, STEPS, LAST = (
    ["voirkit.report.html.first:first"],
    ["voirkit.report.html.steps:steps", "voirkit.report.html.ranks:ranks"],
    ["voirkit.report.html.facts:facts"],
)


def _drawing() -> dict[str, Callable[[Run, Summary], Any]]:
    """What draws each part, by name."""
    shown = [instrument for instrument in installed_instruments() if instrument.page or instrument.sections]
    leading, others = ({one.name: partial(_drawn, one) for one in shown if one.leads is leads} for leads in (True, False))
    first, steps, last = ({part.partition(":")[2]: partial(_resolved, part) for part in parts} for parts in (FIRST, STEPS, LAST))
    return {**first, **leading, **steps, **others, **last}


def _resolved(part: str, run: Run, summary: Summary) -> Any:
    return resolve(part)(run, summary)


def _drawn(instrument: Instrument, run: Run, summary: Summary) -> Any:
    if instrument.page:
        return resolve(instrument.page)(run, summary)
    return "\n".join(filter(None, (section_html(section, run) for section in sections_of(instrument, summary)))) or None


_HEAD = re.compile('<section id="([^"]*)"><h2>(.*?)</h2>')
_HERE = os.path.dirname(os.path.abspath(__file__))
MARK = "<!-- made by voirkit -->"  # by which a page is known as one that may be replaced


def page(run: Run, summary: Summary) -> str:
    """The page of a run.

    Args:
        run: The opened run; what of it can not be read is said on the page.
        summary: Of a run, as ``voirkit.analysis.summary.summary_of`` gives it.
    """
    words = summary.get("command")
    command = " ".join(map(str, words)) if isinstance(words, list) else ""
    return document(f"{command or run.name} · voirkit", list(_parts(run, summary)))


def _contents(parts: Sequence[str]) -> Html:
    """Links to the parts that have a heading."""
    heads = [found.groups() for found in map(_HEAD.match, parts) if found]
    return Html("<nav>" + " ".join(f'<a href="#{id}">{title}</a>' for id, title in heads) + "</nav>") if len(heads) > 1 else Html("")


def _parts(run: Run, summary: Summary) -> Iterator[Html]:
    for name, draw in _drawing().items():
        try:
            made = draw(run, summary)
        except Exception as exc:  # a summary of another version, a damaged file, records that are like no known ones: the rest is shown
            made = failed(name, exc)
        if made:
            yield Html(made)


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
