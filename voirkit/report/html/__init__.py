"""The HTML report of a run, or of two sides, as one self-contained page. It measures nothing.

Styles, script and pictures are inside the page, which loads nothing else. Without its script only
zooming and quick tooltips are missing.
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
from voirkit.analysis.steps import Table
from voirkit.errors import CommandLineError, VoirkitError, reason
from voirkit.phase_table import PHASES
from voirkit.report import duration, figure
from voirkit.report.html.components import (
    TIME,
    Html,
    asset,
    columns,
    folded,
    join,
    lines,
    page_style,
    seconds,
    section,
    table,
    text,
)
from voirkit.report.html.sections import section_html
from voirkit.report.output import STDOUT, STDOUT_NAMES, complete
from voirkit.report.overview import (
    ABOVE,
    BELOW,
    LAST,
    VERDICT,
    Part,
    command_of,
    how_it_went,
    instrument_parts,
    number,
    spread,
)
from voirkit.report.sections import Finding, Section, begin_ns, blocks_within
from voirkit.runs.source_names import rename_sources
from voirkit.runs.summary import evaluation_name

if TYPE_CHECKING:
    from voirkit.analysis.document import Rank
    from voirkit.runs.opened import Run


Summary = Mapping[str, Any]

Drawing = Callable[[Any, Summary], "str | None"]

_HEAD = re.compile('<section id="([^"]*)"><h2>(.*?)</h2>')


def page(run: Run, summary: Summary) -> str:
    """Return the HTML page of a run. A part that cannot be drawn is replaced by a message."""
    title = command_of(summary) if summary.get("command") else run.name
    return document(f"{title} · voirkit", _named(run, _parts(run, summary)))


def fragment(run: Run, summary: Summary) -> str:
    """Return the report as a fragment for another page, such as a notebook. It follows that page's
    light or dark theme and has no script."""
    style, parts = _scoped(page_style()), _named(run, _parts(run, summary))
    return f'<div class="voirkit">\n<style>\n{style}</style>\n' + "\n".join(parts) + "\n</div>\n"


def _named(run: Run, parts: Iterable[Html]) -> list[Html]:
    """Return the parts with the temporary file names of notebook cells replaced by the names that
    users know."""
    return [Html(rename_sources(part, run.manifest.get("source_names") or {})) for part in parts]


_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{(.*?)\}\s*\}", re.DOTALL)
# CSS selectors of a dark theme in JupyterLab (and pages of nbconvert), VS Code and Colab. On other
# pages the browser's preference decides whether the report is dark.
_HOSTS = (
    '[data-jp-theme-light="false"]',
    ".vscode-dark",
    ".vscode-high-contrast",
    '[theme="dark"]',
)
_THEMED_HOSTS = ("[data-jp-theme-light]", "[data-vscode-theme-kind]", "[theme]")
# Undoes the styles for tables and headings of the surrounding page. ``_scoped`` writes the class
# twice (``.voirkit.voirkit``), so that these rules win against those of the surrounding page.
_RESET = """
  --page: transparent; text-align: left; padding: 2px; h2, h3 { font-weight: 600; } figure { padding: 0; }
  table { margin: 0; border: none; table-layout: auto; } tr, tbody tr:nth-child(n), tbody tr:hover { background: none; }
  th, td { white-space: normal; max-width: none; border-style: none none solid; border-width: 0 0 1px; }
"""


def _scoped(style: str) -> str:
    """Return the page's style sheet, limited to elements inside one of class ``voirkit``; light or
    dark as the surrounding page."""
    dark = _DARK.search(style)
    assert dark is not None
    light = _DARK.sub("", style).replace("color-scheme: light dark;", "color-scheme: light;")
    light = re.sub(r"(:root|\bbody) \{", "& {", light)
    dark_rules = f"color-scheme: dark; {' '.join(dark[1].split())} --page: transparent;"
    dark_hosts = ", ".join(f"{host} .voirkit" for host in _HOSTS)
    themed_hosts = ", ".join(f"{host} .voirkit" for host in _THEMED_HOSTS)
    return (
        f".voirkit.voirkit {{ {light}\n{_RESET} }}\n"
        f"{dark_hosts} {{ {dark_rules} }}\n"
        "@media (prefers-color-scheme: dark)"
        f" {{ .voirkit:not({themed_hosts}) {{ {dark_rules} }} }}\n"
    )


def _contents(parts: Sequence[str]) -> Html:
    """Return links to the parts that have a heading; empty if there is at most one."""
    heads = [match.groups() for match in map(_HEAD.match, parts) if match]
    if len(heads) <= 1:
        return Html("")
    links = " ".join(f'<a href="#{id}">{title}</a>' for id, title in heads)
    return Html(f"<nav>{links}</nav>")


def _parts(run: Run, summary: Summary) -> Iterator[Html]:
    """Yield the parts of the page in order: first screen, leading instruments
    (``Instrument.leads``: findings, experiments), steps, ranks, other instruments, machine."""
    leading, not_leading = instrument_parts(True), instrument_parts(False)
    findings = {f"findings of {name}": partial(_findings, part) for name, part in leading.items()}
    first: dict[str, Part] = {
        **ABOVE,
        **findings,
        **VERDICT,
        **BELOW,
        **{name: LAST[name] for name in ("rates", "facts", "warnings")},
    }
    card = join(drawn_parts({"head": _head, **_drawing(first)}, run, summary), "\n")
    yield Html(f'<section id="first">{card}</section>')
    last = {"ranks": LAST["ranks"], **not_leading, "machine": LAST["machine"]}
    parts = {**_drawing(leading), "steps": steps, **_drawing(last)}
    yield from drawn_parts(parts, run, summary)


def drawn_parts(
    parts: Mapping[str, Callable[..., str | None]], *arguments: object
) -> Iterator[Html]:
    """Yield the parts that are not empty, each drawn by its function with these arguments. If a
    function fails, yield a section with the error instead.

    Args:
        parts: The functions, by the name of their part.
    """
    for name, draw in parts.items():
        try:
            drawn_part = draw(*arguments)
        except Exception as exc:
            # a summary of another version, a damaged file, or unknown records: the other parts are
            # still shown
            words = f"This part cannot be drawn ({reason(exc)})."
            drawn_part = section(f"failed-{name}", name, words)
        if drawn_part:
            yield Html(drawn_part)


def _drawing(parts: Mapping[str, Part]) -> dict[str, Drawing]:
    return {name: partial(_drawn_sections, part) for name, part in parts.items()}


def _drawn_sections(part: Part, run: Run, summary: Summary) -> str:
    return "\n".join(filter(None, (section_html(section, run) for section in part(summary))))


def _findings(part: Part, summary: Summary) -> Iterator[Section]:
    """Yield a section for the first screen with the findings of a leading instrument; its own
    section has the full evidence."""
    findings: list[Finding] = []
    for source in part(summary):
        for block in blocks_within(source.blocks):
            # a section may contain a finding twice: in the blocks for pages and for terminals
            if isinstance(block, Finding) and block not in findings:
                findings.append(block)
    yield Section("findings", "", findings)


def _head(run: Run, summary: Summary) -> Html:
    command = command_of(summary) if summary.get("command") else run.name
    words = how_it_went(summary)
    if run.manifest.get("started"):
        words.append(f"{run.manifest['started']}")
    if run.manifest.get("host"):
        words.append(f"on {run.manifest['host']}")
    line = text(" · ".join(words))
    return Html(f'<h1>{text(command, 600)}</h1>\n<p class="how">{line}</p>')


def document(title: str, parts: Sequence[Html]) -> str:
    """Return a complete HTML page with these parts."""
    style, script = page_style(), asset("page.js")
    # Two protections against code in strings of the program: all text is escaped; and if some text
    # were not, the policy allows no script but voirkit's own, and no network access.
    own = " ".join(
        f"'sha256-{b64encode(sha256(asset(name).encode()).digest()).decode()}'"
        for name in ("page.js", "flame.js")
    )
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {own}; img-src data:; base-uri"
        " 'none'; form-action 'none'"
    )
    return (
        f'<!doctype html>\n{MARK}\n<html lang="en"><head><meta'
        f' charset="utf-8"><title>{text(title)}</title>\n<meta http-equiv="Content-Security-Policy"'
        f' content="{policy}">\n<meta name="viewport" content="width=device-width,'
        ' initial-scale=1"><meta name="color-scheme" content="light'
        f' dark">\n<style>\n{style}</style></head>\n<body><main>\n'
        + "\n".join([*parts[:1], _contents(parts), *parts[1:]])
        + f"\n</main>\n<script>{script}</script></body></html>\n"
    )


# The section with steps over time (with evaluation, epochs and checkpoints) and the loss


MOST = 400  # maximum number of columns in a picture of steps
_COLUMNS = 150  # maximum number of columns for ranks other than the first
_PICTURES = 8  # maximum number of ranks whose steps are drawn
_EDGES = 200  # maximum number of vertical lines for epochs; the same for checkpoints
# batches of evaluation are drawn as one interval if the gap between them is at most 1/200 of the
# time from the first to the last evaluation batch, or 1 ms
_BANDS = 200


def steps(run: Run, summary: Summary) -> Html | None:
    """Return the section with steps over time (the other ranks' folded), loss and evaluation; None
    if there are none."""
    ranks = [rank for rank in read_steps(run) if len(_timed_steps(rank))]
    parts: list[object] = []
    note = ""
    if ranks:
        parts.append(picture(run, ranks[0]))
        n_steps = len(_timed_steps(ranks[0]))
        per_column = -(-n_steps // MOST)
        note = f"{n_steps:,} steps"
        if per_column > 1:
            note += f", {per_column:,} in a column, which is as high as their mean"
        note += f" of rank {ranks[0].rank}." if len(ranks) > 1 else "."
    other_ranks = [_other_picture(run, rank) for rank in ranks[1:_PICTURES]]
    if other_ranks:
        parts.append(folded("steps of the others over time", *other_ranks))
    parts += _loss(summary.get("loss"))
    parts += _evaluation(summary.get("evaluation"))
    if not parts:
        return None
    hint = Html(
        '<p class="note hint">Drag over a picture to zoom in, double click to see all of it.</p>'
    )
    return section("steps", "Steps over time", *parts, hint, note=note)


def _other_picture(run: Run, rank: Rank) -> Html:
    name = f"process {rank.processes[0][1]}" if rank.alone else f"rank {rank.rank}"
    return picture(run, rank, _COLUMNS, f"{name} on {rank.host}: time of a step")


def _timed_steps(rank: Rank) -> Table:
    """Return the steps timed on the device, if they were, otherwise on the host; as the summary
    does."""
    return rank.steps.device.table if rank.steps.device is not None else rank.steps.train


def picture(
    run: Run, rank: Rank, most: int = MOST, caption: str = "time of a step", group: str = TIME
) -> Html:
    """Draw the steps of a rank as columns over the time since the run began.

    Args:
        most: The maximum number of columns. If there are more steps, a column is the mean of
            several.
        group: Pictures of one group are zoomed together.
    """
    timed_steps = _timed_steps(rank)
    zero = _zero(run, rank, timed_steps)
    firsts = list(range(0, len(timed_steps), -(-len(timed_steps) // most)))
    ends = [*firsts[1:], len(timed_steps)]
    phases = {phase: timed_steps.phase_ns(phase) / 1e9 for phase in PHASES}
    start_s, time_s = (timed_steps.start_ns - zero) / 1e9, timed_steps.time_ns / 1e9
    caption += " on the device" if rank.steps.device is not None else ""
    boxes, peaks = [], []
    for first, end in zip(firsts, ends, strict=True):
        means = {phase: float(phase_s[first:end].mean()) for phase, phase_s in phases.items()}
        longest = float(time_s[first:end].max())
        if end == first + 1:
            name = f"step {first:,}"
        else:
            mean = duration(float(time_s[first:end].mean()))
            name = f"steps {first:,} to {end - 1:,}, mean {mean}, longest"
        place = f"at {seconds(float(start_s[first]))}"
        title = "\n".join([f"{name} {duration(longest)}", place, *_phase_words(means)])
        end_s = float(start_s[end - 1] + time_s[end - 1])
        boxes.append((float(start_s[first]), end_s, means, title))
        peaks.append(longest)
    return columns(
        boxes,
        peaks,
        _bands(rank.steps.evaluation, zero),
        _edges(run, rank, zero),
        caption=caption,
        group=group,
        order=PHASES,
    )


def _zero(run: Run, rank: Rank, steps: Table) -> int:
    """Return the time at which the axis is zero, in ns: the start of the run. For a rank on another
    host, which has its own clock, it is the rank's first step."""
    first = int(steps.start_ns[0])
    zero = begin_ns(run, first)
    return zero if run.manifest.get("host") in (None, rank.host) and zero <= first else first


def _phase_words(means: Mapping[str, float]) -> Iterator[str]:
    total = sum(means.values()) or 1.0
    for phase, value in means.items():
        if value:
            yield f"{phase} {duration(value)}, {value / total:.0%}"


def _bands(evaluation: Table, zero: int) -> list[tuple[float, float, str]]:
    """Return the intervals of consecutive evaluation batches: start and end in seconds, and a
    title."""
    if not len(evaluation):
        return []
    start_s, end_s = (evaluation.start_ns - zero) / 1e9, (evaluation.end_ns - zero) / 1e9
    gap_s = max(float(end_s[-1] - start_s[0]) / _BANDS, 1e-3)
    is_first = np.concatenate(([True], start_s[1:] - end_s[:-1] > gap_s))
    firsts = np.flatnonzero(is_first)
    lasts = [*(firsts[1:] - 1), len(start_s) - 1]
    bands = []
    for first, last in zip(firsts.tolist(), map(int, lasts), strict=True):
        lasted = duration(float(end_s[last] - start_s[first]))
        title = f"evaluation, {last - first + 1:,} batches, {lasted}"
        bands.append((float(start_s[first]), float(end_s[last]), title))
    return bands


def _edges(run: Run, rank: Rank, zero: int) -> list[tuple[float, str, str]]:
    """Return the starts of epochs, and of checkpoints that are written or read, each in seconds
    with a title and its kind."""
    edges = []
    for condition, words, kind in (
        (
            "category = 'pipeline' AND name = 'epoch'",
            "a loop over the training's loader begins",
            "epoch",
        ),
        ("category = 'checkpoint'", "checkpoint", "checkpoint"),
    ):
        query = (
            "SELECT start_ns, duration_ns FROM spans WHERE kind = 'phase' AND"
            f" {condition} AND rank = ? AND host = ? ORDER BY start_ns LIMIT {_EDGES}"
        )
        rows = run.connection().execute(query, [rank.rank, rank.host]).fetchall()
        for start_ns, duration_ns in rows:
            title = f"{words}, {duration(duration_ns / 1e9)}" if duration_ns else words
            edges.append(((start_ns - zero) / 1e9, title, kind))
    return edges


def _loss(loss: Mapping[str, Any] | None) -> Iterator[Html]:
    curve = (loss or {}).get("curve") or []
    if loss and len(curve) > 1:
        caption = (
            f"loss: {number(loss['first'])} → {number(loss['last'])}, over {loss['n']:,} values"
        )
        yield lines(
            {"loss": [(x, y) for x, y in curve]},
            format_value=partial(figure, digits=4),
            caption=caption,
            low=None,
        )


def _evaluation(evaluation: Mapping[str, Any] | None) -> Iterator[Html]:
    if evaluation:
        name = f"{evaluation_name(evaluation)} batches"
        row = (name, f"{evaluation['n']:,}", *spread(evaluation["time_s"]))
        yield table(("", "n", "a batch", "p10 .. p90"), [row])


# The file of a page: an existing file is replaced only if it is a page of voirkit


MARK = "<!-- made by voirkit -->"  # identifies a page of voirkit, which may be replaced
NAME = "report.html"  # file name of a run's page, in the run directory
_ENDS = (".html", ".htm")


def with_file(words: Sequence[str]) -> list[str]:
    """Rewrite ``--html`` in a command line as ``--html=FILE`` or ``--html=``.

    The word after ``--html`` is its file only if it looks like one (``-`` or ``*.html``): in
    ``voirkit report --html RUN`` it is a run. Any file can be given as ``--html=FILE``.
    """
    result: list[str] = []
    number = 0
    while number < len(words):
        word = words[number]
        if word == "--":
            return [*result, *words[number:]]
        if word == "--html":
            following = words[number + 1] if number + 1 < len(words) else ""
            is_file = following == STDOUT or following.lower().endswith(_ENDS)
            result.append(f"--html={following if is_file else ''}")
            number += is_file
        else:
            result.append(word)
        number += 1
    return result


def may_write(target: str) -> str:
    """Return the path to write a page to: the target, or ``report.html`` in it if it is a folder.

    Raises:
        CommandLineError: The path exists and is not a page of voirkit.
        VoirkitError: The target is stdout, which is closed.
    """
    if target in STDOUT_NAMES:
        if sys.stdout is None:
            raise VoirkitError("it is closed.", where="stdout")
        return STDOUT
    if os.path.isdir(target) or target.endswith(os.sep):
        target = os.path.join(target, NAME)
    if os.path.lexists(target) and not _is_own(target):
        raise CommandLineError(
            "it is there already, and is no page of voirkit's.",
            where=target,
            next="Give another name: --html=FILE.",
        )
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
    """Write a page to a path from ``may_write``. Raises VoirkitError if that fails."""
    try:
        folder = os.path.dirname(target)
        if target != STDOUT and folder:
            os.makedirs(folder, exist_ok=True)
        with complete(target) as temporary, open(temporary, "wb") as file:
            file.write(page.encode())
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise VoirkitError(
            f"it cannot be written: {exc.strerror or exc}.",
            where="stdout" if target == STDOUT else target,
        ) from None
