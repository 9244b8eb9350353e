"""A run, or two, as one HTML page that asks nothing of anybody: what ``--html`` writes. It measures nothing.

Styles, script and pictures are in the page; it works without its script but for zooming and quick tooltips.
"""

from __future__ import annotations

import os
import re
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from voirkit.analysis.run_steps import read_steps
from voirkit.analysis.source_names import rename_sources
from voirkit.analysis.steps import Table
from voirkit.errors import CommandLineError, VoirkitError, reason
from voirkit.report import duration, figure
from voirkit.report.html.components import TIME, Html, asset, columns, folded, join, lines, seconds, section, table, text
from voirkit.report.html.sections import section_html
from voirkit.report.output import STDOUT, STDOUT_NAMES, complete
from voirkit.report.overview import ABOVE, BELOW, LAST, VERDICT, Part, command_of, how_it_went, instrument_parts, number, spread
from voirkit.report.sections import Finding, Section, begin_ns, blocks_within
from voirkit.runs.summary import PHASES, evaluation_name

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run


Summary = Mapping[str, Any]

Drawing = Callable[[Any, Summary], "str | None"]

_HEAD = re.compile('<section id="([^"]*)"><h2>(.*?)</h2>')


def page(run: Run, summary: Summary) -> str:
    """The page of a run, by its summary; what of it cannot be read is said on the page."""
    title = command_of(summary) if summary.get("command") else run.name
    return document(f"{title} · voirkit", _named(run, _parts(run, summary)))


def fragment(run: Run, summary: Summary) -> str:
    """The report as a part of another page: of a notebook, light or dark as that is. It has no script."""
    style, parts = _scoped(asset("page.css")), _named(run, _parts(run, summary))
    return f'<div class="voirkit">\n<style>\n{style}</style>\n' + "\n".join(parts) + "\n</div>\n"


def _named(run: Run, parts: Iterable[Html]) -> list[Html]:
    """Parts in which a notebook's cells have their names, also those that are drawn from the run's own files."""
    return [Html(rename_sources(part, run.manifest.get("source_names") or {})) for part in parts]


_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}\s*\}", re.DOTALL)
# JupyterLab, and what nbconvert makes; VS Code; Colab. Elsewhere the browser knows.
_HOSTS = ('[data-jp-theme-light="false"]', ".vscode-dark", ".vscode-high-contrast", '[theme="dark"]')
_KNOWN = ("[data-jp-theme-light]", "[data-vscode-theme-kind]", "[theme]")
# What those pages set for tables and headings of others. Doubled, the class wins against their own rules.
_RESET = """
  --page: transparent; text-align: left; padding: 2px; h2, h3 { font-weight: 600; } figure { padding: 0; }
  table { margin: 0; border: none; table-layout: auto; } tr, tbody tr:nth-child(n), tbody tr:hover { background: none; }
  th, td { white-space: normal; max-width: none; border-style: none none solid; border-width: 0 0 1px; }
"""


def _scoped(style: str) -> str:
    """The page's styles, for what is below an element of the class ``voirkit``; light or dark as the page around it."""
    dark = _DARK.search(style)
    assert dark is not None
    own = _DARK.sub("", style).replace("color-scheme: light dark;", "color-scheme: light;")
    own = re.sub(r"(:root|\bbody) \{", "& {", own)
    names = f"color-scheme: dark; {' '.join(dark[1].split())} --page: transparent;"
    unknown = ", ".join(f"{host} .voirkit" for host in _KNOWN)
    return (
        f".voirkit.voirkit {{ {own}\n{_RESET} }}\n{', '.join(f'{host} .voirkit' for host in _HOSTS)} {{ {names} }}\n"
        f"@media (prefers-color-scheme: dark) {{ .voirkit:not({unknown}) {{ {names} }} }}\n"
    )


def _contents(parts: Sequence[str]) -> Html:
    """Links to the parts that have a heading."""
    heads = [found.groups() for found in map(_HEAD.match, parts) if found]
    return Html("<nav>" + " ".join(f'<a href="#{id}">{title}</a>' for id, title in heads) + "</nav>") if len(heads) > 1 else Html("")


def _parts(run: Run, summary: Summary) -> Iterator[Html]:
    """The first screen; what leads (findings, experiments); the steps; ranks, other instruments, the machine."""
    leading, others = instrument_parts(True), instrument_parts(False)
    findings = {f"findings of {name}": partial(_findings, part) for name, part in leading.items()}
    first: dict[str, Part] = {**ABOVE, **findings, **VERDICT, **BELOW, **{name: LAST[name] for name in ("rates", "facts", "warnings")}}
    card = join(drawn_parts({"head": _head, **_drawing(first)}, run, summary), "\n")
    yield Html(f'<section id="first">{card}</section>')
    ranks, machine = ({name: LAST[name]} for name in ("ranks", "machine"))
    yield from drawn_parts({**_drawing(leading), "steps": steps, **_drawing({**ranks, **others, **machine})}, run, summary)


def drawn_parts(parts: Mapping[str, Callable[..., str | None]], *arguments: object) -> Iterator[Html]:
    """What functions draw, by the name of the part, each called with the arguments; of one that fails, that it did."""
    for name, draw in parts.items():
        try:
            made = draw(*arguments)
        except Exception as exc:  # a summary of another version, a damaged file, records that are like no known ones: the rest is shown
            made = section(f"failed-{name}", name, f"This part cannot be drawn ({reason(exc)}).")
        if made:
            yield Html(made)


def _drawing(parts: Mapping[str, Part]) -> dict[str, Drawing]:
    return {name: partial(_drawn_sections, part) for name, part in parts.items()}


def _drawn_sections(part: Part, run: Run, summary: Summary) -> str:
    return "\n".join(filter(None, (section_html(one, run) for one in part(summary))))


def _findings(part: Part, summary: Summary) -> Iterator[Section]:
    """What a leading instrument has found stands on the first screen too; its own section has all of its evidence."""
    found: list[Finding] = []
    for shown in part(summary):
        for block in blocks_within(shown.blocks):
            if isinstance(block, Finding) and block not in found:  # a terminal may have it in another section than a page
                found.append(block)
    yield Section("findings", "", found)


def _head(run: Run, summary: Summary) -> Html:
    command = command_of(summary) if summary.get("command") else run.name
    recorded = (f"{word}{run.manifest[key]}" for key, word in (("started", ""), ("host", "on ")) if run.manifest.get(key))
    how = " · ".join([*how_it_went(summary), *recorded])
    return Html(f'<h1>{text(command, 600)}</h1>\n<p class="how">{text(how)}</p>')


def document(title: str, parts: Sequence[Html]) -> str:
    """A whole page: head, styles, parts, script."""
    style, script = (asset(name) for name in ("page.css", "page.js"))
    # Two locks: all text is escaped, and if some were not, no script runs but voirkit's own, and nothing is fetched or sent.
    own = " ".join(f"'sha256-{b64encode(sha256(asset(name).encode()).digest()).decode()}'" for name in ("page.js", "flame.js"))
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {own}; img-src data:; base-uri 'none'; form-action 'none'"
    return (
        f'<!doctype html>\n{MARK}\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">\n'
        f"<style>\n{style}</style></head>\n<body><main>\n"
        + "\n".join([*parts[:1], _contents(parts), *parts[1:]])
        + f"\n</main>\n<script>{script}</script></body></html>\n"
    )


# steps over time, with evaluation, epochs and checkpoints; the loss


MOST = 400  # columns
_COLUMNS = 150  # of other ranks
_PICTURES = 8  # ranks whose steps are drawn over time
_EDGES = 200  # epochs and checkpoints that are marked
_BANDS = 200


def steps(run: Run, summary: Summary) -> Html | None:
    """The steps of the first rank, and the loss."""
    ranks = [rank for rank in read_steps(run) if len(_timed_steps(rank))]
    parts: list[object] = []
    note = ""
    if ranks:
        made = _timed_steps(ranks[0])
        parts.append(picture(run, ranks[0]))
        a_column = -(-len(made) // MOST)
        note = f"{len(made):,} steps" + (f", {a_column:,} in a column, which is as high as their mean" if a_column > 1 else "")
        note += f" of rank {ranks[0].rank}." if len(ranks) > 1 else "."
    others = ranks[1:_PICTURES]
    if others:
        parts.append(folded("steps of the others over time", *(_of_other(run, rank) for rank in others)))
    parts += [*_loss(summary.get("loss")), *_evaluation(summary.get("evaluation"))]
    if not parts:
        return None
    hint = Html('<p class="note hint">Drag over a picture to zoom in, double click to see all of it.</p>')
    return section("steps", "Steps over time", *parts, hint, note=note)


def _of_other(run: Run, rank: Rank) -> Html:
    name = f"process {rank.processes[0][1]}" if rank.alone else f"rank {rank.rank}"
    return picture(run, rank, _COLUMNS, f"{name} on {rank.host}: time of a step")


def _timed_steps(rank: Rank) -> Table:
    """On the clock of the device where there is one, as in the summary."""
    return rank.steps.device.table if rank.steps.device is not None else rank.steps.train


def picture(run: Run, rank: Rank, most: int = MOST, caption: str = "time of a step", group: str = TIME) -> Html:
    """The steps of a rank as columns over the time since the run began."""
    made = _timed_steps(rank)
    zero = _zero(run, rank, made)
    edges = list(range(0, len(made), -(-len(made) // most)))
    ends = [*edges[1:], len(made)]
    phases = {phase: made.phase_ns(phase) / 1e9 for phase in PHASES}
    start, time = (made.start_ns - zero) / 1e9, made.time_ns / 1e9
    caption += " on the device" if rank.steps.device is not None else ""
    boxes, peaks = [], []
    for a, b in zip(edges, ends, strict=True):
        means = {phase: float(own[a:b].mean()) for phase, own in phases.items()}
        which = f"step {a:,}" if b == a + 1 else f"steps {a:,} to {b - 1:,}, mean {duration(float(time[a:b].mean()))}, longest"
        said = "\n".join([f"{which} {duration(float(time[a:b].max()))}", f"at {seconds(float(start[a]))}", *_in_words(means)])
        boxes.append((float(start[a]), float(start[b - 1] + time[b - 1]), means, said))
        peaks.append(float(time[a:b].max()))
    return columns(boxes, peaks, _bands(rank.steps.evaluation, zero), _edges(run, rank, zero), caption=caption, group=group, order=PHASES)


def _zero(run: Run, rank: Rank, steps: Table) -> int:
    """Zero of the axis; of a rank on another host, whose clock is its own, its first step."""
    first = int(steps.start_ns[0])
    zero = begin_ns(run, first)
    return zero if run.manifest.get("host") in (None, rank.host) and zero <= first else first


def _in_words(means: Mapping[str, float]) -> Iterator[str]:
    total = sum(means.values()) or 1.0
    yield from (f"{phase} {duration(value)}, {value / total:.0%}" for phase, value in means.items() if value)


def _bands(evaluation: Table, zero: int) -> list[tuple[float, float, str]]:
    """Where batches of evaluation follow upon each other."""
    if not len(evaluation):
        return []
    start, end = (evaluation.start_ns - zero) / 1e9, (evaluation.start_ns + evaluation.time_ns - zero) / 1e9
    gap = max(float(end[-1] - start[0]) / _BANDS, 1e-3)
    first = np.flatnonzero(np.concatenate(([True], start[1:] - end[:-1] > gap)))
    last = [*(first[1:] - 1), len(start) - 1]
    return [
        (float(start[a]), float(end[b]), f"evaluation, {b - a + 1:,} batches, {duration(float(end[b] - start[a]))}")
        for a, b in zip(first.tolist(), map(int, last), strict=True)
    ]


def _edges(run: Run, rank: Rank, zero: int) -> list[tuple[float, str, str]]:
    """When epochs began, and when checkpoints were written or read."""
    found = []
    for where, what, kind in (
        ("category = 'pipeline' AND name = 'epoch'", "a loop over the training's loader begins", "epoch"),
        ("category = 'checkpoint'", "checkpoint", "checkpoint"),
    ):
        query = f"SELECT start_ns, duration_ns FROM spans WHERE kind = 'phase' AND {where} AND rank = ? AND host = ? ORDER BY start_ns"
        rows = run.connection().execute(f"{query} LIMIT {_EDGES}", [rank.rank, rank.host]).fetchall()
        found += [((start - zero) / 1e9, f"{what}, {duration(lasted / 1e9)}" if lasted else what, kind) for start, lasted in rows]
    return found


def _loss(loss: Mapping[str, Any] | None) -> Iterator[Html]:
    curve = (loss or {}).get("curve") or []
    if loss and len(curve) > 1:
        caption = f"loss: {number(loss['first'])} → {number(loss['last'])}, over {loss['n']:,} values"
        yield lines({"loss": [(x, y) for x, y in curve]}, format_value=partial(figure, digits=4), caption=caption, low=None)


def _evaluation(evaluation: Mapping[str, Any] | None) -> Iterator[Html]:
    if evaluation:
        yield table(
            ("", "n", "a batch", "p10 .. p90"),
            [(f"{evaluation_name(evaluation)} batches", f"{evaluation['n']:,}", *spread(evaluation["time_s"]))],
        )


# where a page goes: it replaces nothing but a page that voirkit made


MARK = "<!-- made by voirkit -->"  # by which a page is known as one that may be replaced
NAME = "report.html"  # of a run's, in its directory
_ENDS = (".html", ".htm")


def with_file(words: Sequence[str]) -> list[str]:
    """The words of a command line in which the word after ``--html`` is its file only if it is called like one. ``voirkit report --html
    RUN`` names a run; any file can be given as ``--html=FILE``."""
    made: list[str] = []
    at = 0
    while at < len(words):
        word, following = words[at], words[at + 1] if at + 1 < len(words) else ""
        if word == "--":
            return [*made, *words[at:]]
        if word == "--html":
            taken = following == STDOUT or following.lower().endswith(_ENDS)
            made.append(f"--html={following if taken else ''}")
            at += taken
        else:
            made.append(word)
        at += 1
    return made


def may_write(target: str) -> str:
    """Where a page may be written: that file, or ``report.html`` in that folder. Raises CommandLineError: something is there that voirkit
    did not make."""
    if target in STDOUT_NAMES:
        if sys.stdout is None:
            raise VoirkitError("it is closed.", where="stdout")
        return STDOUT
    if os.path.isdir(target) or target.endswith(os.sep):
        target = os.path.join(target, NAME)
    if os.path.lexists(target) and not _is_own(target):
        raise CommandLineError("it is there already, and is no page of voirkit's.", where=target, next="Give another name: --html=FILE.")
    return target


def _is_own(path: str) -> bool:
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            begin = file.read(200)
    except OSError:
        return False
    return not begin or MARK.encode() in begin


def write(page: str, target: str) -> None:
    """Write a page to where ``may_write`` said that it may go. Raises VoirkitError: it cannot be written."""
    try:
        folder = os.path.dirname(target)
        if target != STDOUT and folder:
            os.makedirs(folder, exist_ok=True)
        with complete(target) as temporary, open(temporary, "wb") as file:
            file.write(page.encode())
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise VoirkitError(f"it cannot be written: {exc.strerror or exc}.", where="stdout" if target == STDOUT else target) from None
